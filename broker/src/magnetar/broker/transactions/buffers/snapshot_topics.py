"""The system topics of one name, one in each namespace, and the schemas that their messages were written by."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.broker.transactions.buffers.snapshot_codec import BadSnapshot, is_like, parse_schema, registered_schema
from magnetar.broker.transactions.buffers.snapshot_topic import SnapshotParts, SnapshotTopic
from magnetar.client.message import Message
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.wire.avro import AvroDecoder
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

NAMESPACES_MAX: Final = 1_000
"""Namespaces whose topics are known at once; those that nobody uses hold nothing but their name."""

SCHEMAS_MAX: Final = 100
"""Schema versions kept parsed; each version of Pulsar registers one at most."""


class SnapshotTopics:
    """All of one kind."""

    def __init__(self, local_name: str, kind: str, parts: SnapshotParts) -> None:
        """`kind` is that of the records (`snapshot_codec`)."""
        self._local_name = local_name
        self._kind = kind
        self._parts = parts
        self._topics: dict[NamespaceName, SnapshotTopic] = {}
        self._schemas: dict[tuple[TopicName, bytes], AvroDecoder | None] = {}

    def of(self, namespace: NamespaceName) -> SnapshotTopic:
        """That of a namespace, which need not be there yet."""
        topic = self._topics.get(namespace)
        if topic is None:
            if len(self._topics) >= NAMESPACES_MAX:
                for idle in [name for name, one in self._topics.items() if one.idle]:
                    del self._topics[idle]
            schema = registered_schema(self._kind)
            topic = self._topics[namespace] = SnapshotTopic(self._name_in(namespace), schema, self._parts)
        return topic

    async def exists(self, namespace: NamespaceName) -> bool:
        """Whether a namespace has it."""
        return bool(await self._parts.existing(self._name_in(namespace)))

    async def other_schema(self, namespace: NamespaceName, message: Message) -> AvroDecoder | None:
        """The decoder of the schema that wrote a message; None: that schema has the fields of the known one. Raises
        `BadSnapshot` when there is no such schema, and the client's errors."""
        if not message.schema_version:
            return None
        topic, version = self._name_in(namespace), message.schema_version
        if (topic, version) not in self._schemas:
            schema = await self._schema(topic, version)
            if len(self._schemas) >= SCHEMAS_MAX:
                self._schemas.clear()
            like = is_like(self._kind, schema.schema_data)
            self._schemas[topic, version] = None if like else parse_schema(schema.schema_data)
        return self._schemas[topic, version]

    async def close(self) -> None:
        """Before the client is closed."""
        topics, self._topics = self._topics, {}
        await asyncio.gather(*(topic.close() for topic in topics.values()))

    async def _schema(self, topic: TopicName, version: bytes) -> Schema:
        try:
            return await self._parts.client().schema(topic, version)
        except PulsarError as error:
            if error.code == ServerError.TOPIC_NOT_FOUND:
                raise BadSnapshot(f"a snapshot of schema version {version.hex()}, which is not there") from error
            raise

    def _name_in(self, namespace: NamespaceName) -> TopicName:
        return TopicName("persistent", namespace, self._local_name)
