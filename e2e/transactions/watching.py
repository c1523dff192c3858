"""Input messages, and consumers of what transactions publish: the stock Python client, which has no transactions."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from typing import Any, Final

import pulsar

RECEIVE_MS: Final = 300
SEND_TIMEOUT_MS: Final = 300_000
QUIET_SECONDS: Final = 5.0
"""A reader that is told that there is more and gets nothing asks again so long."""
_SILENT: Final = logging.getLogger("e2e.transactions.client")
_SILENT.setLevel(logging.CRITICAL)


def connect(service_url: str) -> Any:
    """A client that waits as long as a broker may be gone."""
    return pulsar.Client(service_url, logger=_SILENT, operation_timeout_seconds=60)


class Feeder:
    """Publishes numbered input messages at a steady rate until it is stopped."""

    def __init__(self, service_url: str, topic: str, per_second: int) -> None:
        self.confirmed: set[int] = set()
        self._over = threading.Event()
        self._topic = topic
        self._per_second = per_second
        self._client = connect(service_url)
        self._failures: list[Any] = []
        self._thread = threading.Thread(target=self._feed, name="feeder", daemon=True)

    def start(self) -> None:
        """From now on."""
        self._thread.start()

    def stop(self) -> None:
        """No further ones; all that were sent are confirmed when this returns."""
        self._over.set()
        self._thread.join()
        assert not self._failures, f"input messages were refused: {self._failures[:3]}"

    def abandon(self) -> None:
        """Whatever was not confirmed stays so."""
        self._over.set()
        self._client.close()

    def _feed(self) -> None:
        producer = self._client.create_producer(
            self._topic, send_timeout_millis=SEND_TIMEOUT_MS, block_if_queue_full=True
        )
        number = 0
        while not self._over.wait(1 / self._per_second):
            producer.send_async(str(number).encode(), self._done(number))
            number += 1
        producer.flush()

    def _done(self, number: int) -> Any:
        def done(result: Any, _id: Any) -> None:
            if result == pulsar.Result.Ok:
                self.confirmed.add(number)
            else:
                self._failures.append(result)

        return done


class Watchers:
    """A subscriber of each topic, there all the while."""

    def __init__(self, service_url: str, topics: list[str], subscription: str) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        self._over = threading.Event()
        self._client = connect(service_url)
        self._threads = []
        for topic in topics:
            consumer = self._client.subscribe(
                topic, subscription, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=100
            )
            self._threads.append(threading.Thread(target=self._watch, args=(topic, consumer), daemon=True))

    def start(self) -> None:
        """From now on."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """What comes from now on is not noted. May be called again."""
        if self._over.is_set():
            return
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._client.close()

    def _watch(self, topic: str, consumer: Any) -> None:
        while not self._over.is_set():
            try:
                message = consumer.receive(RECEIVE_MS)
            except pulsar.Timeout:
                continue
            self.seen[topic].append(int(message.data()))
            consumer.acknowledge(message)


def read_all(service_url: str, topics: list[str]) -> dict[str, list[int]]:
    """What a reader from the first message on is given, once nothing is published any more."""
    client = connect(service_url)
    found: dict[str, list[int]] = {}
    for topic in topics:
        found[topic] = []
        for partition in client.get_topic_partitions(topic):
            reader = client.create_reader(partition, pulsar.MessageId.earliest)
            found[topic] += _rest(reader)
            reader.close()
    client.close()
    return found


def _rest(reader: Any) -> list[int]:
    numbers = []
    deadline = time.monotonic() + QUIET_SECONDS
    while reader.has_message_available():
        try:
            numbers.append(int(reader.read_next(RECEIVE_MS).data()))
        except pulsar.Timeout:
            if time.monotonic() > deadline:
                raise
            continue
        deadline = time.monotonic() + QUIET_SECONDS
    return numbers
