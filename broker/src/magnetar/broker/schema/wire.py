"""Schemas in PulsarApi's commands, and versions as bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, cast

from magnetar.broker.schema.errors import SchemaRefused
from magnetar.broker.schema.limits import check_data_size, check_properties_number, check_properties_size
from magnetar.broker.schema.schema_info import SchemaInfo, known_type
from magnetar.wire.pulsar.enums import SchemaType
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pulsar_api

_VERSION_SIZE_BYTES: Final = 8


class _Pair(Protocol):
    """PulsarApi's KeyValue. Its generated stub is unusable: the type number KeyValue stands in the way of its name."""

    key: str
    value: str


def from_wire(message: pulsar_api.Schema) -> SchemaInfo:
    """The schema that a command carries. `InvalidSchemaData` for a type that we do not know, or one that is too large
    (see `limits`)."""
    check_data_size(len(message.schema_data))
    check_properties_number(len(message.properties))
    pairs = cast("Iterable[_Pair]", message.properties)
    properties = {pair.key: pair.value for pair in pairs}
    check_properties_size(len(message.name) + sum(len(key) + len(value) for key, value in properties.items()))
    schema_type = known_type(SchemaType.from_wire_number(message.type), message.type)
    return SchemaInfo(schema_type, message.schema_data, properties, message.name)


def to_wire(schema: SchemaInfo, name: str) -> pulsar_api.Schema:
    """The message of a GET_SCHEMA answer; Pulsar gives the schema id as the name."""
    wire_type = cast("pulsar_api.Schema.Type", schema.type.wire_number)
    message = pulsar_api.Schema(name=name, schema_data=schema.data, type=wire_type)
    for key, value in schema.properties.items():
        message.properties.add(key=key, value=value)
    return message


def version_bytes(version: int) -> bytes:
    """A version as it travels: 8 bytes, big-endian."""
    return version.to_bytes(_VERSION_SIZE_BYTES, "big", signed=True)


def version_from_bytes(version: bytes) -> int:
    """The inverse of `version_bytes`. Clients older than 2.4 send 64 bytes, of which the first 8 count."""
    if not version:
        raise SchemaRefused("Empty schema version")
    if len(version) < _VERSION_SIZE_BYTES:
        raise SchemaRefused(f"A schema version has {_VERSION_SIZE_BYTES} bytes, not {len(version)}")
    return int.from_bytes(version[:_VERSION_SIZE_BYTES], "big", signed=True)
