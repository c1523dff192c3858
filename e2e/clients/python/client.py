"""The stock Python client under a workload: `client.py produce|consume OPTIONS.json`.

Writes what it was told and what it got as JSON lines (the shapes are in `e2e/history.py`). Stands alone on
purpose: it is the user's program, and imports nothing of the project.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pulsar

COMPRESSION = {
    "NONE": pulsar.CompressionType.NONE,
    "LZ4": pulsar.CompressionType.LZ4,
    "ZLIB": pulsar.CompressionType.ZLib,
    "ZSTD": pulsar.CompressionType.ZSTD,
    "SNAPPY": pulsar.CompressionType.SNAPPY,
}
CONSUMER_TYPE = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
# A death of the server must be ridden out by reconnecting, never by an expired send.
SEND_TIMEOUT_MS = 300_000


class History:
    """Appends events to a file; whole lines only, at most a tenth of a second late."""

    def __init__(self, path: str) -> None:
        self.lock = threading.Lock()
        self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115  # lives as long as the program
        self._flushed = 0.0

    def write(self, event: str, **fields: object) -> None:
        now = time.time()
        line = json.dumps({"event": event, **fields, "time_ms": int(now * 1000)}, separators=(",", ":"))
        with self.lock:
            self._file.write(line + "\n")
            if now - self._flushed > 0.1 or event == "note":
                self._file.flush()
                self._flushed = now

    def close(self) -> None:
        with self.lock:
            self._file.close()


def open_client(options: dict[str, Any]) -> pulsar.Client:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
    return pulsar.Client(options["service_url"], logger=logger, operation_timeout_seconds=120)


def position(message_id: Any) -> str:
    return ":".join(
        str(part())
        for part in (message_id.ledger_id, message_id.entry_id, message_id.partition, message_id.batch_index)
    )


def key_of(line: bytes) -> str:
    return line.split()[0][:24].decode()


def open_producer(client: pulsar.Client, options: dict[str, Any], name: str) -> Any:
    by_key = options["batched"] and options["keyed"] and options["subscription_type"] == "Key_Shared"
    return client.create_producer(
        options["topic"],
        producer_name=name,
        batching_enabled=options["batched"],
        batching_type=pulsar.BatchingType.KeyBased if by_key else pulsar.BatchingType.Default,
        compression_type=COMPRESSION[options["compression"]],
        block_if_queue_full=True,
        send_timeout_millis=SEND_TIMEOUT_MS,
    )


def produce(options: dict[str, Any]) -> None:
    """Each producer sends its share: producer i the numbers i, i + n, i + 2 n, …"""
    history = History(options["history"])
    client = open_client(options)
    lines = Path(options["corpus"]).read_bytes().splitlines()
    stop = Path(options["stop_file"])
    names = [f"producer-{index}" for index in range(options["producers"])]
    producers = [open_producer(client, options, name) for name in names]
    history.write("note", text="ready")
    started = time.monotonic()
    sent = 0
    while sent < options["count"] and not (sent % 64 == 0 and stop.exists()):
        which = sent % len(producers)
        line = lines[sent % len(lines)]
        producers[which].send_async(
            line,
            lambda result, message_id, name=names[which], number=sent: told(history, result, message_id, name, number),
            properties={"number": str(sent), "producer": names[which]},
            partition_key=key_of(line) if options["keyed"] else None,
        )
        sent += 1
        ahead_s = sent / options["rate"] - (time.monotonic() - started) if options["rate"] else 0.0
        if ahead_s > 0.001:
            time.sleep(ahead_s)
    for producer in producers:
        producer.flush()
    history.write("note", text=f"sent {sent}")
    client.close()
    history.close()


def told(history: History, result: Any, message_id: Any, name: str, number: int) -> None:
    if result == pulsar.Result.Ok:
        history.write("acked", producer=name, number=number, id=position(message_id))
    else:
        history.write("failed", producer=name, number=number, error=str(result))


class Progress:
    """Which numbers have arrived, over all consumers, and when the last one did."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._seen: set[int] = set()
        self._count = int(options["count"])
        self._stop = Path(options["stop_file"])
        self._linger_s = options["linger_ms"] / 1000
        self._idle_timeout_s = options["idle_timeout_s"]
        self.last = time.monotonic()
        self.timed_out = False

    def arrived(self, number: int) -> None:
        self._seen.add(number)
        self.last = time.monotonic()

    def over(self) -> bool:
        """Everything is here and nothing has come for a while, or nothing has come for far too long."""
        quiet_s = time.monotonic() - self.last
        if quiet_s > self._idle_timeout_s:
            self.timed_out = True
        if quiet_s > self._linger_s and self._stop.exists():
            self._count = int(self._stop.read_text())
        return self.timed_out or (len(self._seen) >= self._count and quiet_s > self._linger_s)


def consume(options: dict[str, Any]) -> None:
    history = History(options["history"])
    client = open_client(options)
    progress = Progress(options)
    order = threading.Lock()
    consumers = [
        client.subscribe(
            options["topic"],
            options["subscription"],
            consumer_type=CONSUMER_TYPE[options["subscription_type"]],
            consumer_name=f"consumer-{index}",
            initial_position=pulsar.InitialPosition.Earliest,
        )
        for index in range(options["consumers"])
    ]
    history.write("note", text="ready")
    threads = [
        threading.Thread(target=receive_all, args=(consumer, index, history, progress, order))
        for index, consumer in enumerate(consumers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history.write("note", text="idle for too long" if progress.timed_out else "done")
    client.close()
    history.close()


def receive_all(consumer: Any, index: int, history: History, progress: Progress, order: threading.Lock) -> None:
    while not progress.over():
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            continue
        properties = message.properties()
        with order:
            progress.arrived(int(properties["number"]))
            history.write(
                "received",
                consumer=index,
                producer=properties["producer"],
                number=int(properties["number"]),
                id=position(message.message_id()),
                key=message.partition_key(),
                digest=hashlib.sha256(message.data()).hexdigest()[:16],
                redelivery=message.redelivery_count(),
            )
        acknowledge(consumer, message)


def acknowledge(consumer: Any, message: Any) -> None:
    """No receipt is noted: this client asks the broker for none. A lost acknowledgement only means redelivery."""
    try:
        consumer.acknowledge(message)
    except pulsar.PulsarException as failure:
        print(f"acknowledge: {failure}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    {"produce": produce, "consume": consume}[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))
