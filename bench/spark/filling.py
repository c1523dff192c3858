"""Topics with many rows, written quickly: batches are put together here, by the protocol, and sent many at a time.

Half of each payload is random and half is text that repeats, so that what is compressed becomes about half as large.
Every message has one of a thousand keys."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from magnetar.wire.pulsar.batch import build_message
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    BaseCommand,
    CommandProducer,
    MessageMetadata,
    SingleMessageMetadata,
)
from magnetar.wire.pulsar.requests import send

from e2e.cluster import admin
from e2e.faults.raw_client import RawClient

KEYS = 1_000
POOL_BYTES = 1 << 20
TEXT = b'{"name":"a field of some record","count":12345,"when":"2026-01-01T00:00:00Z"},'
NUMBER_BYTES = 10
BURST_BYTES = 1 << 18
"""Sent to a partition at a time."""
PENDING_BURSTS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What a topic is filled with."""

    count: int
    size_bytes: int
    per_batch: int
    """1: messages are not batched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a topic is to be."""

    service_url: str
    admin_url: str
    topic: str
    partitions: int


class Payloads:
    """The payload of row n, the same each time within one run."""

    def __init__(self, size_bytes: int) -> None:
        random_bytes = (size_bytes - NUMBER_BYTES) // 2
        self._random = random_bytes
        self._pool = os.urandom(POOL_BYTES + random_bytes)
        repeated = size_bytes - NUMBER_BYTES - random_bytes
        self._text = (TEXT * (repeated // len(TEXT) + 1))[:repeated]

    def of(self, number: int) -> bytes:
        """As many bytes as were asked for."""
        place = number * 1_021 % POOL_BYTES
        return b"%010d" % number + self._pool[place : place + self._random] + self._text


class PartitionWriter:
    """A producer of one partition."""

    def __init__(self, target: Target, partition: int) -> None:
        topic = f"{target.topic}-partition-{partition}"
        # Its broker takes it over when it is asked who has it.
        admin.get_json(f"{target.admin_url}/lookup/v2/topic/{topic.replace('://', '/')}")
        self.name = f"filling-{partition}"
        self._client = RawClient(target.service_url)
        command = CommandProducer(topic=topic, producer_id=0, request_id=1, producer_name=self.name)
        self._client.send(BaseCommand(type=BaseCommand.PRODUCER, producer=command))
        self._client.receive_until(BaseCommand.PRODUCER_SUCCESS)
        self._sequence_id = 0
        self._bursts: list[int] = []

    def write(self, entries: list[tuple[bytes, int]]) -> None:
        """Entries and how many messages each has; waits for receipts of earlier ones when many are missing."""
        frames = []
        for entry, count in entries:
            frames.append(send(0, self._sequence_id, entry, num_messages=count))
            self._sequence_id += 1
        self._client.send_bytes(b"".join(frames))
        self._bursts.append(len(frames))
        self.settle(PENDING_BURSTS_MAX)

    def settle(self, bursts_max: int = 0) -> None:
        """Until so many are without receipts."""
        while len(self._bursts) > bursts_max:
            for _ in range(self._bursts.pop(0)):
                self._client.receive_until(BaseCommand.SEND_RECEIPT)

    def close(self) -> None:
        """After `settle`."""
        self._client.__exit__(None, None, None)


def entries_of(rows: Rows, numbers: range, payloads: Payloads, writer: PartitionWriter) -> Iterator[tuple[bytes, int]]:
    """The rows of these numbers as stored entries."""
    if rows.per_batch == 1:
        for number in numbers:
            metadata = _metadata(writer, number)
            metadata.partition_key = _key(number)
            yield build_message(metadata, payloads.of(number)), 1
        return
    singles = _singles(rows.size_bytes)
    for first in range(numbers.start, numbers.stop, rows.per_batch):
        batch = range(first, min(first + rows.per_batch, numbers.stop))
        metadata = _metadata(writer, first)
        metadata.num_messages_in_batch = len(batch)
        body = b"".join([part for number in batch for part in (singles[number % KEYS], payloads.of(number))])
        yield build_message(metadata, body), len(batch)


def fill(rows: Rows, target: Target, told: Callable[[int], None]) -> None:
    """Make the topic and fill it; `told` hears how many rows more are stored."""
    path = target.topic.replace("://", "/")
    admin.call("PUT", f"{target.admin_url}/admin/v2/{path}/partitions", target.partitions)
    payloads = Payloads(rows.size_bytes)
    per_burst = max(1, BURST_BYTES // (rows.size_bytes * rows.per_batch)) * rows.per_batch
    writers = [PartitionWriter(target, partition) for partition in range(target.partitions)]
    for turn, first in enumerate(range(0, rows.count, per_burst)):
        numbers = range(first, min(first + per_burst, rows.count))
        writer = writers[turn % len(writers)]
        writer.write(list(entries_of(rows, numbers, payloads, writer)))
        told(len(numbers))
    for writer in writers:
        writer.settle()
        writer.close()


def _metadata(writer: PartitionWriter, sequence_id: int) -> MessageMetadata:
    return MessageMetadata(producer_name=writer.name, sequence_id=sequence_id, publish_time=int(time.time() * 1000))


def _key(number: int) -> str:
    return f"key-{number % KEYS:04d}"


@functools.cache
def _singles(size_bytes: int) -> list[bytes]:
    """What stands before the payload of row n, at n % KEYS."""
    encoded = [
        SingleMessageMetadata(partition_key=_key(number), payload_size=size_bytes).SerializeToString()
        for number in range(KEYS)
    ]
    return [len(each).to_bytes(4, "big") + each for each in encoded]
