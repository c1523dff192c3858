"""Where snapshots of transaction buffers are kept: one message for each topic, in a system topic of its namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from magnetar.broker.slices import TimeSlice
from magnetar.broker.transactions.snapshot_codec import (
    SINGLE,
    Aborted,
    BadSnapshot,
    Snapshot,
    SnapshotReading,
    aborted_block,
    decode_other,
    encode_snapshot,
    parse_schema,
    registered_schema,
    schema_text,
)
from magnetar.broker.transactions.snapshot_topic import SnapshotParts, SnapshotTopic
from magnetar.client.message import Message
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.wire.avro import AvroDecoder
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

SNAPSHOT_TOPIC: Final = "__transaction_buffer_snapshot"

AT_ONCE: Final = 500
"""Transactions of a snapshot that are written or read in one go: a millisecond."""

NAMESPACES_MAX: Final = 1_000
"""Namespaces whose snapshot topics are known at once; those that nobody uses hold nothing but their name."""

SCHEMAS_MAX: Final = 100
"""Schema versions kept parsed; each version of Pulsar registers one at most."""


class SingleSnapshots:
    """A `SnapshotStore` that has all of a topic in one message (Pulsar: `SingleSnapshotAbortedTxnProcessorImpl`)."""

    def __init__(self, parts: SnapshotParts) -> None:
        self._parts = parts
        self._topics: dict[NamespaceName, SnapshotTopic] = {}
        self._schemas: dict[tuple[TopicName, bytes], AvroDecoder | None] = {}

    async def read(self, topic: TopicName) -> tuple[Snapshot, list[Aborted]] | None:
        """See `SnapshotStore`."""
        message = await self._topic(topic.namespace_name).latest(str(topic))
        if message is None:
            return None
        decoder = await self._decoder(topic.namespace_name, message)
        if decoder is not None:
            return decode_other(decoder, message.payload)
        reading = SnapshotReading(message.payload)
        aborted: list[Aborted] = []
        turn = TimeSlice()
        while some := reading.some(AT_ONCE):
            aborted += some
            if turn.over:
                await turn.pause()
        return reading.rest(), aborted

    async def write(self, snapshot: Snapshot, aborted: Sequence[Aborted]) -> None:
        """See `SnapshotStore`."""
        blocks: list[bytes] = []
        turn = TimeSlice()
        for first in range(0, len(aborted), AT_ONCE):
            blocks.append(aborted_block(aborted[first : first + AT_ONCE]))
            if turn.over:
                await turn.pause()
        topic = self._topic(TopicName.parse(snapshot.topic).namespace_name)
        await topic.write(snapshot.topic, encode_snapshot(snapshot, blocks))

    async def delete(self, topic: TopicName) -> None:
        """See `SnapshotStore`."""
        if await self._parts.existing(_of(topic.namespace_name)):
            await self._topic(topic.namespace_name).write(str(topic), None)

    async def close(self) -> None:
        """Before the client is closed."""
        topics, self._topics = self._topics, {}
        await asyncio.gather(*(topic.close() for topic in topics.values()))

    def _topic(self, namespace: NamespaceName) -> SnapshotTopic:
        topic = self._topics.get(namespace)
        if topic is None:
            if len(self._topics) >= NAMESPACES_MAX:
                for idle in [name for name, one in self._topics.items() if one.idle]:
                    del self._topics[idle]
            topic = self._topics[namespace] = SnapshotTopic(_of(namespace), registered_schema(SINGLE), self._parts)
        return topic

    async def _decoder(self, namespace: NamespaceName, message: Message) -> AvroDecoder | None:
        """The schema that a snapshot was written by; None: the known one."""
        if not message.schema_version:
            return None
        topic, version = _of(namespace), message.schema_version
        if (topic, version) not in self._schemas:
            if len(self._schemas) >= SCHEMAS_MAX:
                self._schemas.clear()
            self._schemas[topic, version] = _other_than_known(await self._schema(topic, version))
        return self._schemas[topic, version]

    async def _schema(self, topic: TopicName, version: bytes) -> Schema:
        try:
            return await self._parts.client().schema(topic, version)
        except PulsarError as error:
            if error.code == ServerError.TOPIC_NOT_FOUND:
                raise BadSnapshot(f"a snapshot of schema version {version.hex()}, which is not there") from error
            raise


def _other_than_known(schema: Schema) -> AvroDecoder | None:
    return None if schema.schema_data == schema_text(SINGLE) else parse_schema(schema.schema_data)


def _of(namespace: NamespaceName) -> TopicName:
    return TopicName("persistent", namespace, SNAPSHOT_TOPIC)
