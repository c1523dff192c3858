"""Very many delayed messages of one topic that fall due at once: what they cost, and what others notice.

They are taken by ten consumers of Python in one process, whose pace bounds what is delivered: so the server's share is
its CPU for each.

Every subscription waits for each of them. Another topic is published to meanwhile, twenty messages a second, to see how
long it has to wait.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import threading
import time
import urllib.request
from multiprocessing.synchronize import Event
from typing import Any, Final

import pulsar

from bench.generators import Broken
from e2e import processes
from e2e.server import StandaloneProcess

_SILENT: Final = logging.getLogger("bench.delays")
_SILENT.setLevel(logging.CRITICAL + 1)

TOPIC: Final = "persistent://public/default/delayed"
OTHER: Final = "persistent://public/default/beside-the-delayed"
SUBSCRIPTIONS: Final = 10
BODY: Final = b"x" * 100
MB: Final = 1_000_000
PAUSE_S: Final = 0.05
"""Between two messages of the other topic."""
PUBLISHED_PER_S: Final = 4_000
"""By this client, at least: the time when the messages are due follows from it."""
SETTLING_S: Final = 30.0
"""For subscriptions to have seen all, before they are due."""
CONNECTED_SECONDS_MAX: Final = 60.0
STANDSTILL_S: Final = 5.0
FEWEST: Final = 20
"""Messages of the other topic, for a percentile."""


def consume(service_url: str, connected: Event) -> None:
    """Takes and acknowledges what comes of all subscriptions, until the process is killed."""

    def take(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)

    client = pulsar.Client(service_url, logger=_SILENT, message_listener_threads=2)
    for number in range(SUBSCRIPTIONS):
        client.subscribe(
            TOPIC, f"s{number}", pulsar.ConsumerType.Shared, receiver_queue_size=1000, message_listener=take
        )
    connected.set()
    threading.Event().wait()


class Neighbour(threading.Thread):
    """Publishes to another topic and notes how long each message is under way, in seconds."""

    def __init__(self, service_url: str) -> None:
        super().__init__(daemon=True)
        self._client = pulsar.Client(service_url, logger=_SILENT)
        self._consumer = self._client.subscribe(OTHER, "s")
        self._producer = self._client.create_producer(OTHER, batching_enabled=False)
        self._over = threading.Event()
        self.latencies: list[tuple[float, float]] = []
        """When each was published, by `time.monotonic`, and how long it took."""

    def run(self) -> None:
        """Until it is closed."""
        while not self._over.wait(PAUSE_S):
            began = time.monotonic()
            try:
                self._producer.send(BODY)
                self._consumer.acknowledge(self._consumer.receive(60_000))
            except pulsar.PulsarException:
                return
            self.latencies.append((began, time.monotonic() - began))

    def close(self) -> None:
        """Publish no more."""
        self._over.set()
        if self.is_alive():
            self.join()
        self._client.close()


def delays(server: StandaloneProcess, count: int, window_s: float) -> dict[str, float]:
    """So many messages, which are due together. Raises Broken."""
    context = multiprocessing.get_context("spawn")
    connected = context.Event()
    # A process of its own: it must not keep the neighbour from its messages.
    consumers = context.Process(target=consume, args=(server.service_url, connected), daemon=True)
    consumers.start()
    neighbour = Neighbour(server.service_url)
    try:
        if not connected.wait(CONNECTED_SECONDS_MAX):
            raise Broken("the consumers do not connect")
        before = processes.memory(server.pids).rss_bytes
        due_s = time.time() + count / PUBLISHED_PER_S + SETTLING_S
        published_per_s = publish(server.service_url, count, int(due_s * 1000))
        wait_until_known(server, count, due_s)
        held = processes.memory(server.pids).rss_bytes - before
        neighbour.start()
        time.sleep(max(0.0, due_s - time.time()))
        taken, cpu_s = total(server, "msgOutCounter"), processes.cpu_seconds(server.pids)
        began = time.monotonic()
        time.sleep(window_s)
        seconds = time.monotonic() - began
        taken, cpu_s = total(server, "msgOutCounter") - taken, processes.cpu_seconds(server.pids) - cpu_s
    finally:
        neighbour.close()
        consumers.kill()
        consumers.join()
    waited = sorted(latency for at, latency in neighbour.latencies if at >= began)
    if taken == 0 or len(waited) < FEWEST:
        raise Broken(f"{taken} delayed messages and {len(waited)} others came within {seconds:.0f} s")
    return {
        "published_per_s": published_per_s,
        "mb_held": held / MB,
        "delivered_per_s": taken / seconds,
        "cpu_us_each": cpu_s * MB / taken,
        "other_p99_ms": waited[int(len(waited) * 0.99)] * 1000,
    }


def publish(service_url: str, count: int, due_ms: int) -> float:
    """Messages a second. Raises Broken when one is refused."""
    client = pulsar.Client(service_url, logger=_SILENT)
    failures: list[Any] = []

    def told(result: Any, _id: Any) -> None:
        if result != pulsar.Result.Ok:
            failures.append(result)

    began = time.monotonic()
    try:
        producer = client.create_producer(
            TOPIC, batching_enabled=False, block_if_queue_full=True, max_pending_messages=5_000
        )
        for _ in range(count):
            producer.send_async(BODY, told, deliver_at=due_ms)
        producer.flush()
    finally:
        client.close()
    if failures:
        raise Broken(f"{len(failures)} delayed messages were not published: {failures[0]}")
    return count / (time.monotonic() - began)


def wait_until_known(server: StandaloneProcess, count: int, due_s: float) -> None:
    """Every subscription has seen every message, or no more come to be known: Apache's subscriptions stop reading when
    50 000 have the same delay (`delayedDeliveryFixedDelayDetectionLookahead`). Raises Broken when they are due
    before."""
    before, since_s = -1, time.time()
    while (known := total(server, "msgDelayed")) < count * SUBSCRIPTIONS:
        if known != before:
            before, since_s = known, time.time()
        if time.time() - since_s > STANDSTILL_S:
            return
        if time.time() > due_s:
            raise Broken(f"{known} of {count * SUBSCRIPTIONS} delayed messages are known when they are due")
        time.sleep(0.5)


def total(server: StandaloneProcess, member: str) -> int:
    """The sum over the topic's subscriptions of a number in its statistics."""
    path = f"{server.admin_url}/admin/v2/{TOPIC.replace('://', '/')}/stats"
    with urllib.request.urlopen(path, timeout=60) as answer:
        return sum(each[member] for each in json.load(answer)["subscriptions"].values())
