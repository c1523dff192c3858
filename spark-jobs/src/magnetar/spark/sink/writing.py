"""Writes record batches to topics: what a Spark task does, and what is found out beforehand for all tasks.

Plain Python: it needs no Spark, only somebody who has record batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from magnetar.client.client import PulsarClient
from magnetar.core.topic_name import TopicName
from magnetar.spark.brokers.admin_api import AdminApi
from magnetar.spark.brokers.client_factory import make_client
from magnetar.spark.errors import SinkRefused
from magnetar.spark.runtime import run
from magnetar.spark.sink.options import SinkOptions
from magnetar.spark.sink.rows import (
    PARTITION_COLUMN,
    TOPIC_COLUMN,
    EntryCutter,
    OutgoingEntry,
    RowConverter,
    RowLayout,
    RowNumbers,
    RowRules,
    SinkTopic,
)
from magnetar.spark.sink.sending import SendingTask, TaskSender
from magnetar.spark.sink.targets import DeduplicationCheck, SinkTopicFinder, encoder_of, wire_schema
from magnetar.spark.values.api import ValueEncoder
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

TOPICS_MAX: Final = 1_000
"""Topics and partitions of one task. Each has a producer and an entry that is not full yet, 128 KiB by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """What is the same for all tasks and attempts of one write, or one micro-batch. Pickled."""

    options: SinkOptions
    target: SinkTopic | None
    """The topic of option topic; None: rows name theirs, and each task asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity:
    """Which part of which write a task is; its attempts share this."""

    query: str
    batch_id: int
    spark_partition: int


def prepare(options: SinkOptions, schema: pa.Schema) -> WritePlan:
    """On the driver, before any task: check the columns and the topic. Raises `SparkSourceError`s."""
    layout = RowLayout(schema)
    if options.topic:
        return WritePlan(options=options, target=run(_find_one(options, fields_of(layout, schema))))
    if not layout.has(TOPIC_COLUMN):
        raise SinkRefused(f"nothing says which topic rows go to: set option topic, or add the column {TOPIC_COLUMN}")
    return WritePlan(options=options, target=None)


def fields_of(layout: RowLayout, schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """The value columns of a schema."""
    return [(name, schema.field(name).type) for name in layout.value_columns]


async def _find_one(options: SinkOptions, fields: list[tuple[str, pa.DataType]]) -> SinkTopic:
    connections = Connections(options)
    try:
        target = await connections.finder(fields).find(options.topic)
        encoder_of(target.definition, fields, options.raw_values)
        return target
    finally:
        await connections.close()


class Connections:
    """To brokers and to the admin API. Made, used and closed on the event loop."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self.client: PulsarClient = make_client(options.connection, send_timeout_seconds=options.send_timeout_seconds)
        self._admin = AdminApi(options.connection) if options.connection.admin_url and options.exactly_once else None

    def finder(self, fields: list[tuple[str, pa.DataType]]) -> SinkTopicFinder:
        """A finder of targets for rows with these value columns."""
        check: DeduplicationCheck | None = self._admin.deduplication if self._admin is not None else None
        return SinkTopicFinder(self.client, self._options, fields, check)

    async def close(self) -> None:
        """Let go of everything."""
        try:
            await self.client.close()
        finally:
            if self._admin is not None:
                await self._admin.close()


class KnownTopic:
    """A topic that a task writes to."""

    __slots__ = ("cutters", "encoder", "schema", "target")

    def __init__(self, target: SinkTopic, encoder: ValueEncoder) -> None:
        self.target = target
        self.encoder = encoder
        self.schema: Schema | None = wire_schema(encoder.definition)
        self.cutters: dict[int, EntryCutter] = {}
        """By partition."""

    def partition(self, index: int) -> TopicName:
        """-1: the topic itself."""
        return TopicName.parse(self.target.topic).partition(index)


class TaskWriter:
    """Writes the rows of one Spark partition, once. Called from a plain thread."""

    def __init__(self, plan: WritePlan, identity: TaskIdentity) -> None:
        options = plan.options
        self._plan = plan
        self._numbers = RowNumbers(identity.batch_id)
        self._task = SendingTask(
            options=options, query=identity.query, spark_partition=identity.spark_partition, numbers=self._numbers
        )
        self._rules = RowRules(
            spark_partition=identity.spark_partition,
            hashing_scheme=options.hashing_scheme,
            numbers=self._numbers,
            numbered=options.exactly_once,
        )
        self._topics: dict[str, KnownTopic] = {}
        self._named: dict[str, str] = {}
        """What is written to, each partition by itself → as rows name it."""
        self._connections: Connections | None = None
        self._sender: TaskSender | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """All rows; returns how many once they are stored. Without rows nothing is connected to.

        Raises `SparkSourceError`s."""
        try:
            for batch in batches:
                if batch.num_rows:
                    self._write(batch)
            if self._sender is not None:
                run(self._finish(self._sender))
            return self._numbers.rows
        finally:
            run(self._close())

    def _write(self, batch: pa.RecordBatch) -> None:
        layout = RowLayout(batch.schema)
        converter = RowConverter(layout, self._rules)
        first_row = self._numbers.take(batch.num_rows)
        ready: list[tuple[KnownTopic, int, OutgoingEntry]] = []
        for topic, rows, row_numbers in converter.by_topic(batch, first_row, self._plan.options.topic):
            known = self._topics.get(topic) or self._know(topic, layout, batch.schema)
            for partition, message in converter.messages(rows, row_numbers, known.target, known.encoder):
                cutter = known.cutters.get(partition) or self._cutter(known, partition)
                ready += [(known, partition, entry) for entry in cutter.add(message)]
        run(self._send(ready))

    def _know(self, topic: str, layout: RowLayout, schema: pa.Schema) -> KnownTopic:
        fields = fields_of(layout, schema)
        target = self._plan.target
        if target is None:
            target = run(self._find(topic, fields))
        known = KnownTopic(target, encoder_of(target.definition, fields, self._plan.options.raw_values))
        self._topics[topic] = known
        return known

    def _cutter(self, known: KnownTopic, partition: int) -> EntryCutter:
        where, named = str(known.partition(partition)), known.target.topic
        if self._named.setdefault(where, named) != named:
            # Their rows would come in two rows of entries, out of order.
            raise SinkRefused(
                f"rows name both {self._named[where]} and {named}, which are the same: name the topic, and its "
                f"partition in the column {PARTITION_COLUMN}"
            )
        if len(self._named) > TOPICS_MAX:
            raise SinkRefused(
                f"Spark partition {self._task.spark_partition} has rows for more than {TOPICS_MAX} topics and "
                "partitions: repartition the data frame by __topic, so that each task has fewer"
            )
        options = self._plan.options
        proves = options.exactly_once and not known.target.deduplicates
        cutter = EntryCutter(
            options.batch_messages_max,
            options.batch_bytes_max,
            first_alone=proves,
            partitions=known.target.partitions,
        )
        known.cutters[partition] = cutter
        return cutter

    # --- on the event loop

    async def _opened(self) -> Connections:
        if self._connections is None:
            self._connections = Connections(self._plan.options)
            self._sender = TaskSender(self._connections.client, self._task)
        return self._connections

    async def _find(self, topic: str, fields: list[tuple[str, pa.DataType]]) -> SinkTopic:
        return await (await self._opened()).finder(fields).find(topic)

    async def _send(self, entries: list[tuple[KnownTopic, int, OutgoingEntry]]) -> None:
        await self._opened()
        assert self._sender is not None
        for known, partition, entry in entries:
            await self._sender.send(
                known.partition(partition), entry, known.schema, deduplicates=known.target.deduplicates
            )

    async def _finish(self, sender: TaskSender) -> None:
        rest = [
            (known, partition, entry)
            for known in self._topics.values()
            for partition, cutter in known.cutters.items()
            for entry in cutter.rest()
        ]
        await self._send(rest)
        await sender.finish()

    async def _close(self) -> None:
        if self._sender is not None:
            await self._sender.close()
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()
