"""A stock client at a modest pace: how long each message takes from being sent to being received."""

from __future__ import annotations

import threading
import time
from typing import Final

import pulsar

PER_SECOND: Final = 50
PATIENCE_MS: Final = 30_000
"""For one message; a machine that does other things, too, needs some of it."""


def latencies_ms(service_url: str, topic: str, seconds: float) -> list[float]:
    """Of messages published for so long, each acknowledged by the server and received. Raises when one is not."""
    client = pulsar.Client(
        service_url,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        connection_timeout_ms=2 * PATIENCE_MS,
        operation_timeout_seconds=4 * PATIENCE_MS // 1_000,
    )
    try:
        consumer = client.subscribe(topic, "honest")
        producer = client.create_producer(topic, batching_enabled=False)
        count = int(seconds * PER_SECOND)
        taken: list[float] = []

        def receive() -> None:
            for _ in range(count):
                message = consumer.receive(PATIENCE_MS)
                taken.append((time.monotonic() - float(message.data())) * 1000)
                consumer.acknowledge(message)

        receiving = threading.Thread(target=receive)
        receiving.start()
        begun = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begun + number / PER_SECOND - time.monotonic()))
            producer.send(str(time.monotonic()).encode())
        receiving.join()
        assert len(taken) == count, f"{len(taken)} of {count} messages were received"
        return taken
    finally:
        client.close()


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return sorted(values)[int(0.99 * (len(values) - 1))]
