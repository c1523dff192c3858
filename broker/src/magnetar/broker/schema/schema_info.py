"""Schemas as values, and their three other forms: in the schema store, in the admin REST API, inside a KeyValue schema.

Facts: Pulsar 4.0 SchemaType, SchemaRegistryFormat, KeyValueSchemaInfo, SchemaUtils.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.schema.errors import InvalidSchemaData
from magnetar.broker.schema.limits import check_data_size, check_properties_number, check_properties_size
from magnetar.wire.protobuf import parse
from magnetar.wire.pulsar.enums import SchemaType
from magnetar.wire.pulsar.generated import schema_storage_pb2 as storage_format

_LENGTH: Final = struct.Struct(">i")


PRIMITIVE_TYPES: Final = frozenset(
    {
        SchemaType.BOOLEAN,
        SchemaType.INT8,
        SchemaType.INT16,
        SchemaType.INT32,
        SchemaType.INT64,
        SchemaType.FLOAT,
        SchemaType.DOUBLE,
        SchemaType.DATE,
        SchemaType.TIME,
        SchemaType.TIMESTAMP,
        SchemaType.INSTANT,
        SchemaType.LOCAL_DATE,
        SchemaType.LOCAL_TIME,
        SchemaType.LOCAL_DATE_TIME,
    }
)
"""Types whose data is empty. STRING is apart: old Python clients send the text null with it."""

AVRO_TYPES: Final = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})
"""Types whose data is the text of an Avro schema."""

_WITHOUT_DATA: Final = PRIMITIVE_TYPES | {SchemaType.NONE, SchemaType.STRING, SchemaType.BYTES}


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A schema as a client gives it. Name and properties take no part in any comparison that the registry makes."""

    type: SchemaType
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    def hash(self) -> bytes:
        """SHA-256 of the data, as the locator keeps it."""
        return hashlib.sha256(self.data).digest()

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory: its data, and its properties in letters of one byte."""
        return len(self.data) + sum(len(key) + len(value) for key, value in self.properties.items())

    def same_as(self, other: SchemaInfo) -> bool:
        """Same type and same bytes."""
        return self.type is other.type and self.data == other.data


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema as the store has it."""

    schema_id: str
    version: int
    schema: SchemaInfo
    user: str
    """The role that put it; empty when there was none."""
    timestamp_ms: int
    deleted: bool
    """A tombstone: this and all versions before it count as gone."""


def known_type(found: SchemaType | None, told: object) -> SchemaType:
    """The type that was found for what a client told; `InvalidSchemaData` for None."""
    if found is None:
        raise InvalidSchemaData(f"Unknown schema type : {told}")
    return found


def to_storage(stored: StoredSchema) -> bytes:
    """The SchemaInfo message of the schema store. The version is not part of it."""
    message = storage_format.SchemaInfo(
        schema_id=stored.schema_id,
        user=stored.user,
        type=storage_format.SchemaInfo.SchemaType.Name(stored.schema.type.storage_number),
        schema=stored.schema.data,
        timestamp=stored.timestamp_ms,
        deleted=stored.deleted,
    )
    for key, value in stored.schema.properties.items():
        message.props.add(key=key, value=value)
    return message.SerializeToString()


def from_storage(version: int, data: bytes) -> StoredSchema:
    """The inverse of `to_storage`. Raises `BadProtobuf` on bytes that are no SchemaInfo."""
    message = parse(storage_format.SchemaInfo, data)
    schema = SchemaInfo(
        SchemaType.from_storage_number(message.type),
        message.schema,
        {pair.key: pair.value for pair in message.props},
    )
    return StoredSchema(message.schema_id, version, schema, message.user, message.timestamp, message.deleted)


def rest_text(schema: SchemaInfo) -> str:
    """The `data` text of a REST answer: the schema's data, for KEY_VALUE as JSON {"key":…,"value":…}."""
    if schema.type is not SchemaType.KEY_VALUE:
        return schema.data.decode(errors="replace")
    key, value = split_key_value(schema)
    return _compact_json({"key": _rest_side(key), "value": _rest_side(value)})


def from_rest(type_name: str, text: str, properties: Mapping[str, str]) -> SchemaInfo:
    """The schema of a REST body {type, schema, properties}. `InvalidSchemaData` when it makes no sense, or is too large
    (see `limits`)."""
    check_data_size(len(text))
    check_properties_number(len(properties))
    check_properties_size(sum(len(key) + len(value) for key, value in properties.items()))
    schema_type = known_type(SchemaType.__members__.get(type_name), type_name)
    try:
        if schema_type is not SchemaType.KEY_VALUE:
            data = text.encode()
        else:
            document = json.loads(text)
            data = key_value_data(_rest_side_data(document["key"]), _rest_side_data(document["value"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidSchemaData(f"Invalid schema definition data for {schema_type.name} schema") from error
    check_data_size(len(data))
    return SchemaInfo(schema_type, data, dict(properties))


def key_value_data(key: bytes, value: bytes) -> bytes:
    """The data of a KEY_VALUE schema: both sides' data, each after its length."""
    return b"".join((_LENGTH.pack(len(key)), key, _LENGTH.pack(len(value)), value))


def split_key_value(schema: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo]:
    """The schemas of key and value; `InvalidSchemaData` when the data is cut short or a property is unusable."""
    key_data, at = _sized(schema.data, 0)
    value_data, _ = _sized(schema.data, at)
    return _side(schema.properties, "key", key_data), _side(schema.properties, "value", value_data)


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    """The bytes after a length, and where they end. Length -1 stands for none (Pulsar: KeyValue.decode)."""
    start = at + _LENGTH.size
    if start > len(data):
        raise InvalidSchemaData("Invalid schema definition data for KEY_VALUE schema")
    (length,) = _LENGTH.unpack_from(data, at)
    if length == -1:
        return b"", start
    if length < 0 or start + length > len(data):
        raise InvalidSchemaData("Invalid schema definition data for KEY_VALUE schema")
    return data[start : start + length], start + length


def _side(properties: Mapping[str, str], side: str, data: bytes) -> SchemaInfo:
    type_name = properties.get(f"{side}.schema.type", SchemaType.BYTES.name)
    schema_type = known_type(SchemaType.__members__.get(type_name), type_name)
    text = properties.get(f"{side}.schema.properties")
    own: dict[str, str] = {}
    if text:
        try:
            own = {str(key): str(value) for key, value in json.loads(text).items()}
        except (ValueError, AttributeError, RecursionError) as error:
            raise InvalidSchemaData(f"The property {side}.schema.properties is no JSON object") from error
    return SchemaInfo(schema_type, data, own, properties.get(f"{side}.schema.name", ""))


def _rest_side(side: SchemaInfo) -> object:
    if side.type in _WITHOUT_DATA:
        return ""
    try:
        parsed: object = json.loads(side.data)
    except (ValueError, RecursionError):
        return side.data.decode(errors="replace")
    return parsed


def _rest_side_data(side: object) -> bytes:
    """A text is taken as it is, everything else as compact JSON."""
    return side.encode() if isinstance(side, str) else _compact_json(side).encode()


def _compact_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
