"""Topics full of numbered messages, put together many at a time: what is in them can be said exactly, by Spark too.

The value of message n is n in eight bytes, the highest first, and a piece of some fixed bytes: 100 bytes in all."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field

import numpy as np
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

NUMBER_BYTES = 8
PADDING_BYTES = 92
VALUE_BYTES = NUMBER_BYTES + PADDING_BYTES
PLACES = 900
"""In how many places of the text a piece may begin."""
STEP = 17
TEXT = b"".join(hashlib.sha256(b"%d" % part).digest() for part in range(31))[:992]

NUMBER = "CAST(conv(hex(substring(value, 1, 8)), 16, 10) AS BIGINT)"
"""The number of a message, as Spark computes it."""
VALUE_OF_ID = (
    f"concat(unhex(lpad(hex(id), 16, '0')), substring(unhex('{TEXT.hex()}'), "
    f"CAST(1 + pmod(id * {STEP}, {PLACES}) AS INT), {PADDING_BYTES}))"
)
"""The value of message number `id`, as Spark computes it."""

BURST_ENTRIES = 4
PENDING_ENTRIES_MAX = 32


@dataclass(slots=True)
class Numbers:
    """A topic with partitions that grows: batch b of it is in partition b modulo their number."""

    admin_url: str
    topic: str
    partitions: int
    per_batch: int
    produced: int = 0
    """Messages so far: the numbers below it."""
    _writers: list[_Writer] = field(default_factory=list)

    def make(self) -> None:
        """The topic."""
        path = self.topic.replace("://", "/")
        admin.call("PUT", f"{self.admin_url}/admin/v2/{path}/partitions", self.partitions)

    def produce(self, count: int) -> None:
        """So many messages more: whole batches. Returns when all are stored."""
        assert count % self.per_batch == 0
        self._writers = [_Writer(self.admin_url, f"{self.topic}-partition-{one}") for one in range(self.partitions)]
        for first in range(self.produced, self.produced + count, self.per_batch):
            self._writers[first // self.per_batch % self.partitions].write(first, self.per_batch)
        for writer in self._writers:
            writer.close()
        self.produced += count


class _Writer:
    """A producer of one partition."""

    def __init__(self, admin_url: str, topic: str) -> None:
        # Its broker takes it over when it is asked who has it.
        found = admin.get_json(f"{admin_url}/lookup/v2/topic/{topic.replace('://', '/')}")
        self._client = RawClient(found["brokerUrl"])
        command = CommandProducer(topic=topic, producer_id=0, request_id=1)
        self._client.send(BaseCommand(type=BaseCommand.PRODUCER, producer=command))
        self._name = self._client.receive_until(BaseCommand.PRODUCER_SUCCESS).producer_success.producer_name
        self._sequence_id = 0
        self._waiting = 0
        self._frames: list[bytes] = []

    def write(self, first: int, count: int) -> None:
        """A batch of messages with these numbers, waiting for receipts of earlier ones when many are missing."""
        metadata = MessageMetadata(
            producer_name=self._name,
            sequence_id=self._sequence_id,
            publish_time=int(time.time() * 1000),
            num_messages_in_batch=count,
        )
        entry = build_message(metadata, batch_body(first, count))
        self._frames.append(send(0, self._sequence_id, entry, num_messages=count))
        self._sequence_id += 1
        if len(self._frames) == BURST_ENTRIES:
            self._send()
        while self._waiting >= PENDING_ENTRIES_MAX:
            self._receive()

    def close(self) -> None:
        """When everything is stored."""
        self._send()
        while self._waiting:
            self._receive()
        self._client.__exit__(None, None, None)

    def _send(self) -> None:
        self._client.send_bytes(b"".join(self._frames))
        self._waiting += len(self._frames)
        self._frames.clear()

    def _receive(self) -> None:
        self._client.receive_until(BaseCommand.SEND_RECEIPT)
        self._waiting -= 1


def batch_body(first: int, count: int) -> bytes:
    """Each message of the batch: the size of its metadata, its metadata, its value."""
    single = SingleMessageMetadata(payload_size=VALUE_BYTES).SerializeToString()
    prefix = np.frombuffer(len(single).to_bytes(4, "big") + single, np.uint8)
    numbers = np.arange(first, first + count, dtype=np.int64)
    rows = np.empty((count, len(prefix) + VALUE_BYTES), np.uint8)
    rows[:, : len(prefix)] = prefix
    rows[:, len(prefix) : len(prefix) + NUMBER_BYTES] = (
        numbers.astype(">i8").view(np.uint8).reshape(count, NUMBER_BYTES)
    )
    places = (numbers * STEP % PLACES)[:, None] + np.arange(PADDING_BYTES)
    rows[:, len(prefix) + NUMBER_BYTES :] = np.frombuffer(TEXT, np.uint8)[places]
    return rows.tobytes()
