"""A schema for a DataFrame's columns, as Java's client would have registered it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pyarrow as pa
from magnetar.spark.errors import SinkRefused
from magnetar.spark.values.api import VALUE_COLUMN, SchemaDefinition
from magnetar.wire.pulsar.enums import SchemaType

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DefinitionKind: TypeAlias = Literal["auto", "bytes", "string", "json", "avro"]

RECORD_NAME: Final = "Row"
"""The name of each DataFrame's record, so that a job that is changed still writes the same one."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROPERTIES: Final = {"__alwaysAllowNull": "true", "__jsr310ConversionEnabled": "false"}


def is_text(arrow_type: pa.DataType) -> bool:
    """Whether a column has texts. Large ones are the same to Spark (`spark.sql.execution.arrow.useLargeVarTypes`)."""
    return bool(pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type))


def is_bytes(arrow_type: pa.DataType) -> bool:
    """Whether a column has bytes. Large ones are the same to Spark."""
    return bool(pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type))


_VALUE_TYPES: Final = (
    (is_bytes, SchemaType.NONE, "Bytes"),
    (is_text, SchemaType.STRING, "String"),
    (pa.types.is_boolean, SchemaType.BOOLEAN, "Boolean"),
    (pa.types.is_int8, SchemaType.INT8, "INT8"),
    (pa.types.is_int16, SchemaType.INT16, "INT16"),
    (pa.types.is_int32, SchemaType.INT32, "INT32"),
    (pa.types.is_int64, SchemaType.INT64, "INT64"),
    (pa.types.is_float32, SchemaType.FLOAT, "Float"),
    (pa.types.is_float64, SchemaType.DOUBLE, "Double"),
    (pa.types.is_date32, SchemaType.LOCAL_DATE, "LocalDate"),
)
_AVRO_TYPES: Final = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "int"),
    (pa.types.is_int16, "int"),
    (pa.types.is_int32, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (is_text, "string"),
    (is_bytes, "bytes"),
    (pa.types.is_null, "null"),
)


def definition_for(schema: pa.Schema | StructType, kind: DefinitionKind = "auto") -> SchemaDefinition:
    """The schema to register for value columns (no metadata columns among them).

    `auto`: a single column `value` is of a primitive type where there is one, else everything is one AVRO record. Every
    field of a record is nullable, whatever the DataFrame says: that changes with the query, and the topic's schema
    should not. Raises `SinkRefused`, naming the column, for what the kind cannot carry."""
    columns = _arrow(schema)
    if not len(columns):
        raise SinkRefused("there is no value column to write")
    single = columns.field(0).type if columns.names == [VALUE_COLUMN] else None
    if kind == "auto":
        found = _value_definition(single) if single is not None else None
        return found or _record_definition(columns, SchemaType.AVRO)
    if kind in ("json", "avro"):
        return _record_definition(columns, SchemaType.JSON if kind == "json" else SchemaType.AVRO)
    if single is None or not (is_bytes(single) or is_text(single)):
        raise SinkRefused(f"schema {kind} takes one column `value` of binary or string, not {_listed(columns)}")
    return _named(SchemaType.STRING, "String") if kind == "string" else _named(SchemaType.NONE, "Bytes")


def avro_type(name: str, arrow_type: pa.DataType) -> Any:
    """The Avro schema of a type, not nullable itself; `name` is what a record in it is called."""
    for is_type, avro_name in _AVRO_TYPES:
        if is_type(arrow_type):
            return avro_name
    if pa.types.is_date32(arrow_type):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(arrow_type):
        return {"type": "long", "logicalType": "timestamp-micros" if arrow_type.tz else "local-timestamp-micros"}
    if pa.types.is_time64(arrow_type):
        return {"type": "long", "logicalType": "time-micros"}
    if pa.types.is_decimal(arrow_type):
        precision, scale = arrow_type.precision, arrow_type.scale
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if pa.types.is_map(arrow_type):
        if not is_text(arrow_type.key_type):
            raise SinkRefused(f"column {name}: keys of maps have to be strings, not {arrow_type.key_type}")
        return {"type": "map", "values": _nullable(name, arrow_type.item_type)}
    if pa.types.is_list(arrow_type):
        return {"type": "array", "items": _nullable(name, arrow_type.value_type)}
    if pa.types.is_struct(arrow_type):
        return _record(name, list(arrow_type))
    raise SinkRefused(f"column {name}: schemas of topics have no type for {arrow_type}")


def _record(name: str, fields: list[pa.Field]) -> dict[str, Any]:
    made = []
    for field in fields:
        if not _NAME.fullmatch(field.name):
            raise SinkRefused(f"column {field.name!r}: fields of schemas have names of letters, digits and _")
        made.append({"name": field.name, "type": _nullable(f"{name}_{field.name}", field.type), "default": None})
    return {"type": "record", "name": name, "fields": made}


def _nullable(name: str, arrow_type: pa.DataType) -> Any:
    made = avro_type(name, arrow_type)
    return made if made == "null" else ["null", made]


def _record_definition(columns: pa.Schema, schema_type: SchemaType) -> SchemaDefinition:
    text = json.dumps(_record(RECORD_NAME, list(columns)), separators=(",", ":"))
    return SchemaDefinition(type=schema_type, name="", data=text.encode(), properties=_PROPERTIES)


def _value_definition(arrow_type: pa.DataType) -> SchemaDefinition | None:
    for is_type, schema_type, name in _VALUE_TYPES:
        if is_type(arrow_type):
            return _named(schema_type, name)
    if pa.types.is_timestamp(arrow_type):
        zoned = arrow_type.tz is not None
        # TIMESTAMP would cut off microseconds.
        return _named(SchemaType.INSTANT, "Instant") if zoned else _named(SchemaType.LOCAL_DATE_TIME, "LocalDateTime")
    return None


def _named(schema_type: SchemaType, name: str) -> SchemaDefinition:
    return SchemaDefinition(type=schema_type, name=name)


def _arrow(schema: pa.Schema | StructType) -> pa.Schema:
    if isinstance(schema, pa.Schema):
        return schema
    from magnetar.spark.values.spark_schema import arrow_schema_of

    return arrow_schema_of(schema)


def _listed(columns: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in columns)
