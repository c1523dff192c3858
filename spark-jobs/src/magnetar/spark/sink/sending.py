"""Sends the rows of one Spark task, so that each is stored once however often the task is tried.

Brokers with deduplication keep the highest sequence id of each producer name and drop what is not above it. From that
follows what is done here:

- Each attempt has the same producer names, makes the same entries and sends all of them from the first on: what an
  attempt before has had stored is dropped. So what is stored is always a beginning of the task's entries.
- After a failure nothing more is sent under the name (`ends_at_failure`): what came later would hide what is missing.
- A broker's answer to PRODUCER has the highest number that it took, not one that it has stored: if storing failed then,
  it goes back. So entries up to there are sent too, each alone, before any new one: a broker that is still at storing
  one of them refuses the repetition until it knows.
- Two attempts at a time (an executor that is believed dead) cannot both hold the name; the second waits, bounded. One
  that lost its connection meanwhile, and with it the name, ends if the other has got further than it knows.
- All of that rests on the same rows coming in the same order. The number that a broker remembers has a fingerprint of
  the rows up to it in its lowest bits; rows that do not match it are refused instead of taken for what is stored.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from magnetar.client.client import PulsarClient
from magnetar.client.message import MessageId
from magnetar.client.producer import ClientProducer, ProducerOptions
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.spark.errors import SinkRefused, SparkSourceError
from magnetar.spark.sink.errors import deduplication_off, explained
from magnetar.spark.sink.options import SinkOptions
from magnetar.spark.sink.rows import BATCH_SHIFT, FINGERPRINT_BITS, OutgoingEntry, RowNumbers, split_entry
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

BUSY_PAUSE_SECONDS: Final = 0.5
"""Between attempts to get a name that somebody else still has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingTask:
    """Whose rows a task sends."""

    options: SinkOptions
    query: str
    """A stream's query id, or what a batch write goes by; the same in each attempt, and nobody else's."""
    spark_partition: int
    numbers: RowNumbers

    @property
    def producer_name(self) -> str | None:
        """None: the broker makes one."""
        return f"spark-{self.query}-{self.spark_partition}" if self.options.exactly_once else None

    def rows_of(self, entry: OutgoingEntry) -> str:
        """Which rows of the task an entry holds, for texts of errors."""
        where = f"of Spark partition {self.spark_partition}"
        first, last = entry.messages[0].sequence_id, entry.messages[-1].sequence_id
        if first is None or last is None:
            return f"{len(entry.messages)} rows {where}"
        row, last_row = self.row_of(first), self.row_of(last)
        return f"row {row} {where}" if row == last_row else f"rows {row} to {last_row} {where}"

    def row_of(self, sequence_id: int) -> int:
        """The number of the row in the Spark partition."""
        return (sequence_id - self.numbers.first_sequence_id) >> FINGERPRINT_BITS


class PartitionSender:
    """One producer. Used by one coroutine at a time."""

    def __init__(
        self, client: PulsarClient, topic: TopicName, task: SendingTask, schema: Schema | None, *, proves: bool
    ) -> None:
        """`proves`: that brokers tell repetitions is not known yet; the first entry shows it."""
        self.topic = topic
        self._client = client
        self._task = task
        self._schema = schema
        self._proves = proves
        self._producer: ClientProducer | None = None
        self._taken_before = -1
        """The highest sequence id that the broker took from attempts before this one."""
        self._same_rows = True
        """Not known to be others than those of the attempts before."""

    async def put(self, entry: OutgoingEntry) -> list[asyncio.Future[MessageId]]:
        """Hand over an entry, opening the producer if it is the first. Receipts that are still to come.

        Raises `SparkSourceError`s."""
        try:
            producer = self._producer if self._producer is not None else await self._open()
            if not self._task.options.exactly_once:
                return [await _put(producer, entry)]
            waits: list[asyncio.Future[MessageId]] = []
            self._compare(entry)
            for part in split_entry(entry, self._taken_before):
                if not self._same_rows and not _is_before(part, self._taken_before):
                    raise self._other_rows()
                waits += await self._put_numbered(producer, part)
            return waits
        except MagnetarError as error:
            raise explained(error, str(self.topic), self._task.rows_of(entry), self._task.options) from error

    async def _put_numbered(self, producer: ClientProducer, entry: OutgoingEntry) -> list[asyncio.Future[MessageId]]:
        last = entry.messages[-1].sequence_id
        assert last is not None
        receipt = await _put(producer, entry)
        if last <= self._taken_before:
            await receipt
            return []
        if self._proves:
            await receipt
            await self._prove(producer, last)
            return []
        return [receipt]

    async def _open(self) -> ClientProducer:
        producer = await self._opened()
        if self._task.options.exactly_once:
            self._taken_before = producer.last_sequence_id
            self._proves = self._proves and self._taken_before < 0
            self._check_batch()
            # What was taken of this batch has to be met again among the rows.
            self._same_rows = self._taken_before < self._task.numbers.first_sequence_id
            # Our numbers begin below what the broker knows.
            producer.last_sequence_id = -1
        self._producer = producer
        return producer

    async def _opened(self) -> ClientProducer:
        task = self._task
        options = ProducerOptions(
            name=task.producer_name,
            compression=task.options.compression,
            schema=self._schema,
            ends_at_failure=True,
        )
        give_up_at = time.monotonic() + task.options.attempt_timeout_seconds
        while True:
            try:
                return await self._client.producer(self.topic, options)
            except PulsarError as error:
                if error.code != ServerError.PRODUCER_BUSY or time.monotonic() >= give_up_at:
                    raise
            await asyncio.sleep(BUSY_PAUSE_SECONDS)

    def _check_batch(self) -> None:
        taken, current = self._taken_before >> BATCH_SHIFT, self._task.numbers.first_sequence_id >> BATCH_SHIFT
        if self._taken_before >= 0 and taken > current:
            raise SinkRefused(
                f"{self.topic} has rows of batch {taken} of this query already, and this is batch {current}: its "
                "checkpoint is older than what is in the topic. Go on from the newest checkpoint, or begin a new one"
            )

    async def _prove(self, producer: ClientProducer, sent: int) -> None:
        """That brokers remember what was sent, which a new producer of the name is told if they do."""
        await producer.close()
        self._producer = again = await self._opened()
        remembered = again.last_sequence_id
        again.last_sequence_id = sent
        if remembered < sent:
            raise SinkRefused(
                f"{deduplication_off(self.topic)} (The first row of Spark partition {self._task.spark_partition} is "
                "stored by now, as this was tried out with it; with option admin.url it is known beforehand.)"
            )
        if remembered > sent:
            # Somebody had the name meanwhile, who should have sent the same rows.
            self._taken_before = remembered
            self._same_rows = False
        self._proves = False

    def _compare(self, entry: OutgoingEntry) -> None:
        """Look for the row that the broker took last; its number has the fingerprint of all up to it."""
        if self._same_rows:
            return
        row = self._taken_before >> FINGERPRINT_BITS
        for message in entry.messages:
            number = message.sequence_id
            if number is not None and number >> FINGERPRINT_BITS == row:
                if number != self._taken_before:
                    raise self._other_rows()
                self._same_rows = True

    def check_complete(self) -> None:
        """At the end: that the rows of the attempts before were among those of this one. Raises `SinkRefused`."""
        if not self._same_rows:
            raise self._other_rows()

    def _other_rows(self) -> SinkRefused:
        task = self._task
        write_id = task.options.write_id
        hint = f"; writeId {write_id} may be of another write: each needs its own" if write_id else ""
        return SinkRefused(
            f"{self.topic}: an attempt before this one stored other rows for it, up to row "
            f"{task.row_of(self._taken_before)} of Spark partition {task.spark_partition}: the rows are not the same, "
            "in the same order and partition, each time that Spark computes them (after a shuffle, by rand() or the "
            "current time, or as options, the number of cores, the topic's partitions or its schema changed), so they "
            "cannot be stored exactly once. Sort or checkpoint them before writing, or set "
            f"deliveryGuarantee=at-least-once{hint}"
        )

    async def close(self) -> None:
        """Let go of the name."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()


class TaskSender:
    """All producers of one task."""

    def __init__(self, client: PulsarClient, task: SendingTask) -> None:
        self.task = task
        self._client = client
        self._senders: dict[TopicName, PartitionSender] = {}
        self._waiting: deque[tuple[asyncio.Future[MessageId], PartitionSender, OutgoingEntry]] = deque()
        """Bounded by their bytes."""
        self._waiting_bytes = 0

    async def send(self, topic: TopicName, entry: OutgoingEntry, schema: Schema | None, *, deduplicates: bool) -> None:
        """Hand over an entry of one topic (one partition); waits for room only. Raises `SparkSourceError`s."""
        sender = self._senders.get(topic)
        if sender is None:
            proves = self.task.options.exactly_once and not deduplicates
            sender = PartitionSender(self._client, topic, self.task, schema, proves=proves)
            self._senders[topic] = sender
        await self._settle(self.task.options.pending_bytes_max)
        for receipt in await self._put(sender, entry):
            self._waiting.append((receipt, sender, entry))
            self._waiting_bytes += entry.size_bytes

    async def _put(self, sender: PartitionSender, entry: OutgoingEntry) -> list[asyncio.Future[MessageId]]:
        try:
            return await sender.put(entry)
        except SparkSourceError:
            # An entry before this one may be the reason.
            await self._settle(sys.maxsize)
            raise

    async def _settle(self, bytes_max: int) -> None:
        """Look at receipts, and wait for them until no more than so many bytes are without."""
        while self._waiting and (self._waiting[0][0].done() or self._waiting_bytes >= bytes_max):
            receipt, sender, entry = self._waiting[0]
            try:
                await receipt
            except MagnetarError as error:
                raise explained(error, str(sender.topic), self.task.rows_of(entry), self.task.options) from error
            self._waiting.popleft()
            self._waiting_bytes -= entry.size_bytes

    async def finish(self) -> None:
        """Wait until all is stored. Raises `SparkSourceError`s."""
        while self._waiting:
            await self._settle(0)
        for sender in self._senders.values():
            sender.check_complete()

    async def close(self) -> None:
        """Let go of all names; what is not stored by now is given up."""
        await asyncio.gather(*(sender.close() for sender in self._senders.values()), return_exceptions=True)
        for receipt, _, _ in self._waiting:
            if receipt.done() and not receipt.cancelled():
                receipt.exception()  # Looked at: the first one was told.
        self._waiting.clear()


def _is_before(entry: OutgoingEntry, sequence_id: int) -> bool:
    last = entry.messages[-1].sequence_id
    return last is not None and last <= sequence_id


async def _put(producer: ClientProducer, entry: OutgoingEntry) -> asyncio.Future[MessageId]:
    if entry.alone:
        return await producer.put(entry.messages[0])
    return await producer.put_batch(entry.messages)
