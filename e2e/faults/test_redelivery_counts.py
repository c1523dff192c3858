"""A message that no consumer manages reaches the dead-letter topic after as many redeliveries as its policy says,
whatever happens to brokers and consumers between them."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

from e2e.faults.support import FaultyServer, client_of, running, subscribe

pytestmark = [pytest.mark.slow, pytest.mark.clients]

REDELIVERIES = 3
SUBSCRIPTION = "s"
WAIT_MS = 60_000
STORED_SECONDS = 2.5
"""A cursor's state is written at most a second after it changed; only a kill before that takes counts with it."""
TYPES = {"shared": pulsar.ConsumerType.Shared, "key-shared": pulsar.ConsumerType.KeyShared}

Disturbance = Callable[[FaultyServer], None]


def unload_the_namespace(server: FaultyServer) -> None:
    url = f"{server.admin_url}/admin/v2/namespaces/public/default/unload"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60):
        pass


def kill_and_start(server: FaultyServer) -> None:
    time.sleep(STORED_SECONDS)
    server.kill()
    server.start()


def stop_and_start(server: FaultyServer) -> None:
    server.restart()


def consumer_of(client: Any, topic: str, kind: Any) -> Any:
    return subscribe(
        client,
        topic,
        SUBSCRIPTION,
        consumer_type=kind,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(REDELIVERIES),
    )


def refuse_until_dead(consumer: Any, dead: Any, disturb: list[Disturbance], server: FaultyServer) -> list[int]:
    """Refuse the message each time, after something has happened to its broker; the counts that consumers saw."""
    seen = []
    for redeliveries in range(REDELIVERIES + 1):
        message = consumer.receive(WAIT_MS)
        seen.append(message.redelivery_count())
        assert message.data() == b"poison"
        if redeliveries < REDELIVERIES:
            disturb[redeliveries](server)
            message = consumer.receive(WAIT_MS)
            seen.append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    letter = dead.receive(WAIT_MS)
    assert letter.data() == b"poison"
    dead.acknowledge(letter)
    return seen


@pytest.mark.parametrize("kind", TYPES)
def test_a_dead_letter_policy_is_reached_over_changes_of_brokers(tmp_path: Path, kind: str) -> None:
    """Unload, kill -9 and an orderly restart, one before each time that the client refuses the message. Only what a
    client refuses counts: a message that comes again because its broker went has the same count as before."""
    with running(tmp_path) as server, client_of(server) as client:
        topic = f"persistent://public/default/poisoned-{kind}"
        consumer = consumer_of(client, topic, TYPES[kind])
        dead = subscribe(client, f"{topic}-{SUBSCRIPTION}-DLQ", "d")
        client.create_producer(topic).send(b"poison", partition_key="k")
        seen = refuse_until_dead(consumer, dead, [unload_the_namespace, kill_and_start, stop_and_start], server)
        assert seen == [0, 0, 1, 1, 2, 2, 3]
        consumer.close()
        again = consumer_of(client, topic, TYPES[kind])
        with pytest.raises(pulsar.Timeout):
            again.receive(500)


def test_a_dead_letter_policy_is_reached_over_consumers(tmp_path: Path) -> None:
    """The application ends after each refusal and begins again, as one that dies of a message does."""
    topic = "persistent://public/default/poisoned-starts"
    with running(tmp_path) as server:
        with client_of(server) as client:
            consumer_of(client, topic, pulsar.ConsumerType.Shared).close()
            client.create_producer(topic).send(b"poison")
        for redeliveries in range(REDELIVERIES):
            with client_of(server) as client:
                consumer = consumer_of(client, topic, pulsar.ConsumerType.Shared)
                message = consumer.receive(WAIT_MS)
                assert message.redelivery_count() == redeliveries
                consumer.negative_acknowledge(message)
                assert consumer.receive(WAIT_MS).redelivery_count() == redeliveries + 1
        with client_of(server) as client:
            dead = subscribe(client, f"{topic}-{SUBSCRIPTION}-DLQ", "d")
            consumer = consumer_of(client, topic, pulsar.ConsumerType.Shared)
            message = consumer.receive(WAIT_MS)
            assert message.redelivery_count() == REDELIVERIES
            consumer.negative_acknowledge(message)
            assert dead.receive(WAIT_MS).data() == b"poison"
