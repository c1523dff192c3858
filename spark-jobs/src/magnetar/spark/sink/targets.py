"""What has to be known of a topic before rows go there: partitions, schema, whether brokers tell repetitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import pyarrow as pa
from magnetar.client.client import PulsarClient
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.spark.brokers.errors import retried
from magnetar.spark.errors import SchemaUnreadable, SinkRefused
from magnetar.spark.sink.errors import deduplication_off, explained
from magnetar.spark.sink.options import SinkOptions
from magnetar.spark.sink.rows import SinkTopic
from magnetar.spark.values.api import VALUE_COLUMN, SchemaDefinition, ValueEncoder
from magnetar.spark.values.definitions import definition_for, is_bytes
from magnetar.spark.values.encoders import encoder_for
from magnetar.spark.values.registry import decoder_for
from magnetar.wire.pulsar.enums import SchemaType
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import KeyValue, Schema

DeduplicationCheck: TypeAlias = Callable[[TopicName], Awaitable[bool | None]]
"""Whether brokers drop what producers of a topic send twice; None: that cannot be known."""

Fields: TypeAlias = Sequence[tuple[str, pa.DataType]]


class SinkTopicFinder:
    """Asks brokers about topics, each once."""

    def __init__(
        self, client: PulsarClient, options: SinkOptions, fields: Fields, deduplicates: DeduplicationCheck | None
    ) -> None:
        """`deduplicates` None: nobody can be asked; the first rows will show it."""
        self._client = client
        self._options = options
        self._fields = fields
        self._deduplicates = deduplicates

    async def find(self, topic: str) -> SinkTopic:
        """Raises `SinkRefused`, `TopicMissing`, `ClusterUnreachable` and the like."""
        try:
            return await retried(lambda: self._found(topic), self._options.connection.operation_timeout_seconds)
        except MagnetarError as error:
            raise explained(error, topic, "rows", self._options) from error

    async def _found(self, topic: str) -> SinkTopic:
        name = TopicName.parse(topic)
        # A partition that is named is one topic; otherwise brokers may create what is not there.
        partitions = 0 if name.partition_index >= 0 else await self._client.lookup.partitions_of(name, create=True)
        definition = await self._definition(name)
        deduplicates = await self._checked_deduplication(name)
        return SinkTopic(topic=topic, partitions=partitions, definition=definition, deduplicates=deduplicates)

    async def _definition(self, name: TopicName) -> SchemaDefinition:
        choice, columns = self._options.schema_choice, pa.schema(list(self._fields))
        if choice != "auto":
            return definition_for(columns, choice)
        try:
            schema = await self._client.schema(name)
        except PulsarError as error:
            if error.code != ServerError.TOPIC_NOT_FOUND:
                raise
            return definition_for(columns)
        return SchemaDefinition.registered(schema)

    async def _checked_deduplication(self, name: TopicName) -> bool:
        if not self._options.exactly_once or self._deduplicates is None:
            return False
        answer = await self._deduplicates(name)
        if answer is False:
            raise SinkRefused(deduplication_off(name))
        return bool(answer)


class EncodedAlready:
    """Bytes that are what the topic's schema says, as replays have them: sent as they are."""

    separates_keys = False

    def __init__(self, definition: SchemaDefinition) -> None:
        self.definition = definition

    def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """The column's values."""
        values: list[bytes | None] = batch.column(0).to_pylist()
        return values

    def encode_keys(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """None: keys are columns of their own."""
        del batch
        return []


def encoder_of(definition: SchemaDefinition, fields: Fields, raw_values: bool | None) -> ValueEncoder:
    """`raw_values`: whether the values are payloads already; None: unless the schema itself has bytes called `value`.

    Raises `SinkRefused` for columns that do not go with the schema."""
    is_payload = [name for name, _ in fields] == [VALUE_COLUMN] and is_bytes(fields[0][1])
    if raw_values and not is_payload:
        found = ", ".join(f"{name} {kind}" for name, kind in fields)
        raise SinkRefused(f"option rawValues takes one column `{VALUE_COLUMN}` of binary, not {found}")
    if raw_values is None:
        raw_values = is_payload and definition.type != SchemaType.NONE and not _has_bytes(definition)
    return EncodedAlready(definition) if raw_values else encoder_for(definition, fields)


def _has_bytes(definition: SchemaDefinition) -> bool:
    """Reading gives a column `value` of bytes that are but a part of the payload."""
    if definition.type not in (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF_NATIVE):
        return False
    try:
        return (VALUE_COLUMN, pa.binary()) in decoder_for(definition).fields()
    except SchemaUnreadable:
        return False


def wire_schema(definition: SchemaDefinition) -> Schema | None:
    """The schema in the form of the command PRODUCER; None: the producer has none."""
    if definition.type == SchemaType.NONE:
        return None
    schema = Schema(name=definition.name, schema_data=definition.data)
    schema.type = definition.type  # type: ignore[assignment] # The stub wants the enum's own class.
    schema.properties.extend(KeyValue(key=key, value=value) for key, value in definition.properties.items())
    return schema
