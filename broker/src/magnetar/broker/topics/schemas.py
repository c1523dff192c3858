"""Schemas as topics use them: which strategy holds, and what happens when producers and consumers bring one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.policies.system_topics import belongs_to_brokers
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.schema.schema_info import SchemaInfo
from magnetar.broker.schema.strategy import Strategy
from magnetar.broker.schema.wire import from_wire, version_bytes
from magnetar.wire.pulsar.enums import SchemaType
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import CommandProducer, Schema

if TYPE_CHECKING:
    from magnetar.broker.topics.topic import Topic
    from magnetar.core.topic_name import TopicName

NO_SCHEMA_TYPE = 0
"""`Schema.Type.None` of the wire: bytes without a schema."""

SCHEMAS_LEFT_MAX: Final = 1_000
"""Deletions of topics that may be asked for again; beyond, the schema stays for the next topic of that name."""

AUTO_CONSUME_TYPES = (SchemaType.AUTO_CONSUME, SchemaType.NONE)
"""Types with which a consumer says that it takes whatever there is."""


class TopicSchemas:
    """The registry under the policies of each topic."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self.registry = registry
        self._left: dict[str, None] = {}
        """Topics that are deleted, and whose schemas could not be."""

    async def add_for_producer(self, topic: Topic, request: CommandProducer) -> bytes:
        """Register a producer's schema; returns its version as the wire carries it (empty: no schema)."""
        if topic.source is not None:
            return b""  # Nothing of what it sends is stored.
        schema_id = topic.schema_name
        if not request.HasField("schema") or request.schema.type == NO_SCHEMA_TYPE:
            if topic.policies.schema_validation_enforced and await self.registry.get(schema_id, None) is not None:
                raise PulsarError(
                    ServerError.INCOMPATIBLE_SCHEMA,
                    "Producers cannot connect or send message without a schema to topics with a schema",
                )
            return b""
        return await self.add(topic, from_wire(request.schema))

    async def add(self, topic: Topic, schema: SchemaInfo) -> bytes:
        """Register a schema under the strategy in force; returns its version as the wire carries it."""
        if topic.source is not None:
            text = f"{topic.name} has the schemas of {topic.source}: register them there"
            raise PulsarError(ServerError.NOT_ALLOWED_ERROR, text)
        # Brokers of several versions write to one system topic (Pulsar: `systemTopicSchemaCompatibilityStrategy`).
        of_brokers = belongs_to_brokers(topic.name)
        version = await self.registry.put_if_absent(
            topic.name.schema_name,
            schema,
            Strategy.ALWAYS_COMPATIBLE if of_brokers else topic.policies.schema_compatibility,
            allow_auto_update=of_brokers or topic.policies.schema_auto_update_allowed,
        )
        return version_bytes(version)

    async def check_for_consumer(self, topic: Topic, schema: Schema) -> None:
        """A consumer's schema: the first one of an idle topic is registered, any other must be compatible."""
        info = from_wire(schema)
        if info.type in AUTO_CONSUME_TYPES:
            return
        schema_id = topic.schema_name
        if await self.registry.get(schema_id, None) is None and (topic.source is not None or self._idle(topic)):
            if topic.source is None:
                await self.add(topic, info)
            return
        await self.registry.check_consumer(schema_id, info, topic.policies.schema_compatibility)

    async def delete_for(self, name: TopicName) -> None:
        """Of a topic that is gone. When it fails, whoever asks for the deletion again goes on here."""
        self._left[str(name)] = None
        if len(self._left) > SCHEMAS_LEFT_MAX:
            del self._left[next(iter(self._left))]
        await self.registry.delete(name.schema_name, force=True)
        self._left.pop(str(name), None)

    def left_of(self, name: TopicName) -> bool:
        """Whether the schemas of a topic that is gone are still there."""
        return str(name) in self._left

    @staticmethod
    def _idle(topic: Topic) -> bool:
        """Nobody publishes, nobody consumes, nothing is stored (`PersistentTopic.addSchemaIfIdleOrCheckCompatible`)."""
        if topic.producers.by_name or topic.number_of_entries:
            return False
        return not any(subscription.consumers for subscription in topic.subscriptions.values())
