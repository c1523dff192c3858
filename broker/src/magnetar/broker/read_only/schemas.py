"""Schemas at a broker that only reads: those that are stored are looked at, none is registered."""

from __future__ import annotations

from magnetar.broker.schema.schema_info import SchemaInfo
from magnetar.broker.schema.wire import from_wire
from magnetar.broker.topics.schemas import AUTO_CONSUME_TYPES, TopicSchemas
from magnetar.broker.topics.topic import Topic
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema


class ReadOnlyTopicSchemas(TopicSchemas):
    """A consumer's schema must be compatible with what is stored. Where nothing is, the consumer is let in."""

    async def add(self, topic: Topic, schema: SchemaInfo) -> bytes:
        """Refused: `NOT_ALLOWED_ERROR`."""
        raise PulsarError(
            ServerError.NOT_ALLOWED_ERROR,
            f"This broker is read-only and registers no schema: use a broker that writes {topic.name}",
        )

    async def check_for_consumer(self, topic: Topic, schema: Schema) -> None:
        """`PulsarError` for a schema that is not compatible with what is stored."""
        info = from_wire(schema)
        schema_id = topic.name.schema_name
        if info.type in AUTO_CONSUME_TYPES or await self.registry.get(schema_id, None) is None:
            return
        await self.registry.check_consumer(schema_id, info, topic.policies.schema_compatibility)
