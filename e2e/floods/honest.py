"""A stock client at a modest pace: how long each message takes from being sent to being received."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final

import pulsar

PER_SECOND: Final = 50
PATIENCE_MS: Final = 30_000
"""For one message; a machine that does other things, too, needs some of it."""


class StockClient:
    """One producer and one consumer, connected for as long as this lives. A context manager."""

    def __init__(self, service_url: str, topic: str) -> None:
        self._client = pulsar.Client(
            service_url,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            operation_timeout_seconds=4 * PATIENCE_MS // 1_000,
        )
        self._consumer = self._client.subscribe(topic, "honest")
        self._producer = self._client.create_producer(
            topic, batching_enabled=False, send_timeout_millis=2 * PATIENCE_MS
        )

    def latencies_ms(self, seconds: float) -> list[float]:
        """Of messages published for so long, each acknowledged by the server and received; asserts that all are."""
        count = int(seconds * PER_SECOND)
        taken: list[float] = []

        def receive() -> None:
            for _ in range(count):
                message = self._consumer.receive(2 * PATIENCE_MS)
                taken.append((time.monotonic() - float(message.data())) * 1000)
                self._consumer.acknowledge(message)

        receiving = threading.Thread(target=receive)
        receiving.start()
        begun = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begun + number / PER_SECOND - time.monotonic()))
            self._producer.send(str(time.monotonic()).encode())
        receiving.join()
        assert len(taken) == count, f"{len(taken)} of {count} messages were received"
        return taken

    def __enter__(self) -> StockClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return sorted(values)[int(0.99 * (len(values) - 1))]
