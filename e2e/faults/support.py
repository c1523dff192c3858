"""What the fault tests share: producers and consumers that remember what they were told, and what must hold of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar

from e2e import checkers
from e2e.history import Acknowledged, Failed, Received
from e2e.processes import wait_for
from e2e.server import MagnetarStandalone

RECEIVE_MS = 200
CHECK = "check"
DIGEST_BYTES = 32
CLOSE_SECONDS_MAX = 120
"""An honest close takes milliseconds, and a few seconds on a busy machine."""


def payload(producer: str, number: int, size_bytes: int) -> bytes:
    """Says whose message it is, and fills up with bytes that follow from that: any wrong bit shows."""
    head = f"{producer}:{number}:{size_bytes}:".encode()
    digest = hashlib.sha256(head).digest()
    return (head + digest * (size_bytes // DIGEST_BYTES + 1))[: max(size_bytes, len(head))]


def parse(data: bytes) -> tuple[str, int]:
    """Whose message it is; asserts that every byte is what was sent."""
    producer, number, size_bytes, _ = data.split(b":", 3)
    assert data == payload(producer.decode(), int(number), int(size_bytes)), f"wrong bytes in {producer!r}:{number!r}"
    return producer.decode(), int(number)


def position(message_id: Any) -> str:
    parts = (message_id.ledger_id, message_id.entry_id, message_id.partition, message_id.batch_index)
    return ":".join(str(part()) for part in parts)


def now_ms() -> int:
    return int(time.time() * 1000)


class Publisher:
    """Sends numbered messages and remembers which the server confirmed."""

    def __init__(self, producer: Any, name: str, size_bytes: int = 200, keys: int = 0) -> None:
        self.producer = producer
        self.name = name
        self.size_bytes = size_bytes
        self.keys = keys
        self.sent = 0
        self.acknowledged: list[Acknowledged] = []
        self.failed: list[Failed] = []

    def send(self, count: int) -> None:
        """Hand over the next messages; never waits for receipts, but for room in the client's queue."""
        for _ in range(count):
            number, self.sent = self.sent, self.sent + 1
            self.producer.send_async(
                payload(self.name, number, self.size_bytes),
                lambda result, message_id, number=number: self._told(result, message_id, number),
                partition_key=f"key-{number % self.keys}" if self.keys else None,
            )

    def _told(self, result: Any, message_id: Any, number: int) -> None:
        if result == pulsar.Result.Ok:
            self.acknowledged.append(Acknowledged(self.name, number, position(message_id), now_ms()))
        else:
            self.failed.append(Failed(self.name, number, str(result), now_ms()))

    def settle(self, timeout_s: float = 60.0) -> None:
        """Wait until every message has its answer, good or bad."""
        wait_for(lambda: len(self.acknowledged) + len(self.failed) >= self.sent, timeout_s, f"{self.name} is stuck")


def new_publisher(client: Any, topic: str, name: str, size_bytes: int = 200, **options: Any) -> Publisher:
    """A producer that rides out restarts unless its options say otherwise, and the subscription of `read_all`, without
    which the topic would keep nothing."""
    subscribe(client, topic, CHECK).close()
    keys = options.pop("keys", 0)
    settings = {"block_if_queue_full": True, "send_timeout_millis": 120_000, "batching_enabled": False, **options}
    return Publisher(client.create_producer(topic, producer_name=name, **settings), name, size_bytes, keys)


class Subscriber:
    """Receives and acknowledges on a thread of its own, and remembers everything."""

    def __init__(self, consumer: Any, index: int = 0, *, acknowledge: bool = True) -> None:
        self.consumer = consumer
        self.index = index
        self.received: list[Received] = []
        self.error: BaseException | None = None
        self._acknowledge = acknowledge
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"subscriber-{index}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with contextlib.suppress(pulsar.Timeout):
                    self._take(self.consumer.receive(RECEIVE_MS))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self.error = error

    def _take(self, message: Any) -> None:
        producer, number = parse(message.data())
        place, key = position(message.message_id()), message.partition_key()
        digest, times = hashlib.sha256(message.data()).hexdigest()[:16], message.redelivery_count()
        self.received.append(Received(self.index, producer, number, place, key, digest, times, now_ms()))
        if self._acknowledge:
            with contextlib.suppress(pulsar.PulsarException):  # The server may be down; then it comes again.
                self.consumer.acknowledge(message)

    def stop(self) -> list[Received]:
        """End the thread; what was received. Raises what went wrong in it."""
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        return self.received


def subscribe(client: Any, topic: str, name: str, **options: Any) -> Any:
    return client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest, **options)


def read_all(client: Any, topic: str, expected: list[Acknowledged], timeout_s: float = 60.0) -> list[Received]:
    """Read what the topic holds, by the subscription that `new_publisher` made, until all expected messages came or the
    time is up: what is missing then is for `assert_kept` to say."""
    consumer = subscribe(client, topic, CHECK)
    subscriber = Subscriber(consumer)
    wanted = {(event.producer, event.number) for event in expected}
    deadline = time.monotonic() + timeout_s
    while not (wanted <= seen(subscriber) or subscriber.error is not None or time.monotonic() > deadline):
        time.sleep(0.05)
    received = subscriber.stop()
    consumer.close()
    return received


def seen(*subscribers: Subscriber) -> set[tuple[str, int]]:
    return {(event.producer, event.number) for subscriber in subscribers for event in list(subscriber.received)}


def assert_kept(publishers: list[Publisher], received: list[Received], *, ordered: bool = True) -> None:
    """Nothing acknowledged is lost, and each producer's messages, those of one key, come in order when first seen."""
    acknowledged = [event for publisher in publishers for event in publisher.acknowledged]
    assert acknowledged, "nothing was acknowledged, so nothing is proved"
    problems = checkers.lost(acknowledged, received)
    if ordered:
        problems += checkers.out_of_order(received, lambda event: (event.producer, event.key))
        problems += checkers.positions_step_back(received)
    assert not problems, "\n".join(problems)


class FaultyServer(MagnetarStandalone):
    """The standalone as a user runs it; what it logs is checked when it is done with."""

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def assert_log_is_calm(self, lines_max: int = 500) -> None:
        """No traceback, and no flood."""
        text = self.log_text()
        assert "Traceback" not in text, text[max(0, text.find("Traceback") - 2000) :][:6000]
        lines = text.count("\n")
        assert lines <= lines_max, f"{lines} lines are logged, such as\n{text[:3000]}"

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.pids[0]}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


@contextlib.contextmanager
def running(folder: Path, server: FaultyServer | None = None) -> Iterator[FaultyServer]:
    """A started server on a folder below this one; stopped in good order in the end, its log checked."""
    server = server or FaultyServer(folder / "data")
    server.start()
    try:
        yield server
    finally:
        server.stop()
    server.assert_log_is_calm()


@contextlib.contextmanager
def client_of(server: Any, **options: Any) -> Iterator[Any]:
    """A client of the server that says nothing itself."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(server.service_url, logger=logger, operation_timeout_seconds=30, **options)
    try:
        yield client
    finally:
        closing = threading.Thread(target=close_quietly, args=(client,), name="closes a client", daemon=True)
        closing.start()
        # Pulsar's C++ client may wait for itself for ever when its connection was cut (`ClientConnection::close` for a
        # timer's lock): seen once, on a machine with a load of 40. It must not keep the tests from their end.
        closing.join(CLOSE_SECONDS_MAX)


def close_quietly(client: Any) -> None:
    """Also when its test has killed the server, and it has noticed by now."""
    with contextlib.suppress(pulsar.NotConnected):
        client.close()


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: int(path.stem, 16))


def flip_bit(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
        file.flush()
        os.fsync(file.fileno())
