"""Whether a schema's data has the form that its type asks for.

Facts: Pulsar 4.0 SchemaDataValidator and the validators that it calls.
"""

from __future__ import annotations

from typing import Final

from magnetar.broker.schema.avro_schema import AvroError, parse
from magnetar.broker.schema.errors import InvalidSchemaData
from magnetar.broker.schema.json_checks import is_jackson
from magnetar.broker.schema.protobuf_checks import root_message_name
from magnetar.broker.schema.schema_info import AVRO_TYPES, PRIMITIVE_TYPES, SchemaInfo, split_key_value
from magnetar.wire.pulsar.enums import SchemaType

_CLIENT_SIDE_TYPES: Final = frozenset({SchemaType.AUTO, SchemaType.AUTO_CONSUME, SchemaType.AUTO_PUBLISH})
_PYTHON_NONE: Final = b"null"
"""What old Python clients send as the data of a STRING schema."""


def validate(schema: SchemaInfo) -> None:
    """Raises `InvalidSchemaData` when the schema cannot be what it says it is."""
    if schema.type in AVRO_TYPES:
        _validate_avro(schema)
    elif schema.type is SchemaType.PROTOBUF_NATIVE:
        root_message_name(schema.data)
    elif schema.type is SchemaType.STRING:
        if schema.data not in (b"", _PYTHON_NONE):
            text = schema.data.decode(errors="replace")
            raise InvalidSchemaData(f"Invalid schema definition data for string schema : '{text}'")
    elif schema.type in PRIMITIVE_TYPES:
        if schema.data:
            raise InvalidSchemaData(
                "Invalid schema definition data for primitive schemas :"
                f"length of schema data should be zero, but {len(schema.data)} bytes is found"
            )
    elif schema.type in _CLIENT_SIDE_TYPES:
        raise InvalidSchemaData(f"Schema {schema.type.name} is a client-side schema type")
    elif schema.type is SchemaType.KEY_VALUE:
        key, value = split_key_value(schema)
        validate(key)
        validate(value)


def _validate_avro(schema: SchemaInfo) -> None:
    try:
        parsed = parse(schema.data)
    except AvroError as error:
        if schema.type is SchemaType.JSON and is_jackson(schema.data):
            return
        raise InvalidSchemaData(f"Invalid schema definition data for {schema.type.name} schema: {error}") from error
    if schema.type is SchemaType.AVRO and parsed.kind == "union":
        raise InvalidSchemaData("Avro schema typed [UNION] is not supported")
