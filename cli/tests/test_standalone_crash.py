"""What was acknowledged before a kill is there after the next start, as a stock client sees it."""

from __future__ import annotations

import functools
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.clients]

KILLS = 5
LOAD_SECONDS = 0.4
TOPIC = "persistent://public/default/crash"
POSITION_SECONDS_MAX = 1.0
"""The guarantee for acknowledged positions: one is written at most a second after it was acknowledged
(managedLedgerDefaultMarkDeleteRateLimit), as Pulsar does; what was acknowledged later may come again."""


def connect(service_url: str) -> pulsar.Client:
    return pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def subscribe(client: pulsar.Client) -> pulsar.Consumer:
    """Needed before anything is sent: messages that no subscription wants are not kept."""
    return client.subscribe(TOPIC, "check", initial_position=pulsar.InitialPosition.Earliest)


def receive_all(consumer: Any, at_least: int = 0) -> list[Any]:
    """Everything until nothing more comes; so many are waited for longer, as a busy machine may bring them late."""
    messages: list[Any] = []
    try:
        while True:
            messages.append(consumer.receive(30_000 if len(messages) < at_least else 1_000))
    except pulsar.Timeout:
        return messages


def send_until(stopped: Callable[[], bool], producer: Any, run: int, acknowledged: list[bytes]) -> None:
    """Send `<run>-<number>` again and again; what the broker acknowledges goes to the list."""

    def told(payload: bytes, result: Any, _: Any) -> None:
        if result == pulsar.Result.Ok:
            acknowledged.append(payload)

    number = 0
    while not stopped():
        payload = b"%d-%d" % (run, number)
        producer.send_async(payload, functools.partial(told, payload))
        number += 1
        if number % 200 == 0:
            time.sleep(0.005)


def kill_under_load(process: subprocess.Popen[bytes], acknowledged: list[bytes]) -> None:
    """As soon as it has been under load for a while and has acknowledged something."""
    before = len(acknowledged)
    time.sleep(LOAD_SECONDS)
    end = time.monotonic() + 60
    while len(acknowledged) == before and time.monotonic() < end:
        time.sleep(0.01)
    process.kill()


def test_acknowledged_messages_survive_kills(start_standalone: Any) -> None:
    acknowledged: list[bytes] = []
    for kill in range(KILLS):
        standalone = start_standalone().wait_until_ready()
        client = connect(standalone.service_url)
        subscribe(client).close()
        producer = client.create_producer(TOPIC, batching_enabled=kill % 2 == 0)

        killer = threading.Thread(target=kill_under_load, args=(standalone.process, acknowledged))
        killer.start()
        send_until(standalone.has_ended, producer, kill, acknowledged)
        killer.join()
        client.shutdown()
    standalone = start_standalone().wait_until_ready()
    client = connect(standalone.service_url)
    stored = [message.data() for message in receive_all(subscribe(client), len(set(acknowledged)))]
    client.close()
    assert standalone.stop() == 0
    assert len({payload.partition(b"-")[0] for payload in acknowledged}) == KILLS
    assert set(acknowledged) <= set(stored)
    # Nothing twice, and each producer's in its order.
    assert len(stored) == len(set(stored))
    assert stored == sorted(stored, key=lambda payload: [int(part) for part in payload.split(b"-")])


def test_acknowledged_positions_survive_a_kill(start_standalone: Any) -> None:
    standalone = start_standalone().wait_until_ready()
    client = connect(standalone.service_url)
    cumulative = client.subscribe(TOPIC, "cumulative")
    shared = client.subscribe(TOPIC, "shared", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for number in range(20):
        producer.send(b"%d" % number)
    messages = [cumulative.receive(30_000) for _ in range(20)]
    cumulative.acknowledge_cumulative(messages[9])
    for message in [shared.receive(30_000) for _ in range(20)]:
        if int(message.data()) % 2:
            shared.acknowledge(message)
    # The client groups acknowledgements for a tenth of a second before it sends them.
    time.sleep(POSITION_SECONDS_MAX + 2.0)
    standalone.kill()
    client.shutdown()

    standalone = start_standalone().wait_until_ready()
    client = connect(standalone.service_url)
    cumulative = client.subscribe(TOPIC, "cumulative")
    shared = client.subscribe(TOPIC, "shared", consumer_type=pulsar.ConsumerType.Shared)
    after_cumulative = [int(message.data()) for message in receive_all(cumulative, 10)]
    after_shared = sorted(int(message.data()) for message in receive_all(shared, 10))
    client.close()
    assert standalone.stop() == 0
    assert after_cumulative == list(range(10, 20))
    assert after_shared == list(range(0, 20, 2))


def test_a_stop_under_load_is_quick_and_loses_nothing(start_standalone: Any) -> None:
    standalone = start_standalone().wait_until_ready()
    client = connect(standalone.service_url)
    subscribe(client).close()
    producer = client.create_producer(TOPIC)
    acknowledged: list[bytes] = []
    stopping = threading.Event()

    sender = threading.Thread(target=send_until, args=(stopping.is_set, producer, 0, acknowledged))
    sender.start()
    time.sleep(LOAD_SECONDS)
    while not acknowledged:
        time.sleep(0.01)
    before = time.monotonic()
    code = standalone.stop()
    seconds = time.monotonic() - before
    stopping.set()
    client.shutdown()
    sender.join()
    assert code == 0
    # A fifth of a second on a machine that does nothing else.
    assert seconds < 10
    assert "Traceback" not in standalone.output

    standalone = start_standalone().wait_until_ready()
    client = connect(standalone.service_url)
    stored = {message.data() for message in receive_all(subscribe(client), len(set(acknowledged)))}
    client.close()
    assert standalone.stop() == 0
    assert set(acknowledged) <= stored
