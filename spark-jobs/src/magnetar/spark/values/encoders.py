"""Value columns → payloads, for the sink: the inverse of what decoders do."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, Protocol

import fastavro
import msgspec
import pyarrow as pa
from magnetar.spark.errors import SchemaUnreadable, SinkRefused
from magnetar.spark.values.api import KEY_COLUMN, VALUE_COLUMN, SchemaDefinition
from magnetar.spark.values.assembling import VALUE_ERRORS, reason_of
from magnetar.spark.values.avro_columns import NotInStep
from magnetar.spark.values.avro_encoding import StepEncoder
from magnetar.spark.values.disassembling import TimesOf, columns_for, numbers_of, values_of
from magnetar.spark.values.json_times import texts_of
from magnetar.spark.values.key_value import inline, is_separated, sides
from magnetar.spark.values.primitives import PRIMITIVES, encode_primitives
from magnetar.spark.values.protobuf_encoder import ProtobufWriter
from magnetar.spark.values.shapes import AvroDefinition, ValueShape
from magnetar.wire.pulsar.enums import SchemaType

Fields = Sequence[tuple[str, pa.DataType]]

ENCODE_ERRORS: Final = (*VALUE_ERRORS, msgspec.MsgspecError, EOFError)


def encoder_for(definition: SchemaDefinition, fields: Fields) -> SchemaEncoder:
    """The encoder of a topic with this schema, for value columns of these types.

    Raises `SinkRefused` if the schema cannot be written, or wants columns that are not there."""
    return SchemaEncoder(definition, fields)


class SchemaEncoder:
    """Encodes rows by one schema: the `ValueEncoder` of a topic. Pickled with a task."""

    def __init__(self, definition: SchemaDefinition, fields: Fields) -> None:
        self.definition = definition
        self._fields = list(fields)
        self.separates_keys = definition.type == SchemaType.KEY_VALUE and is_separated(definition)
        types = dict(fields)
        try:
            if definition.type == SchemaType.KEY_VALUE:
                key, value = sides(definition)
                self._key: _Writer | None = _side_writer(key, KEY_COLUMN, types)
                self._value = _side_writer(value, VALUE_COLUMN, types)
            else:
                self._key = None
                self._value = _writer(definition, types)
        except (SchemaUnreadable, fastavro.schema.SchemaParseException) as error:
            raise SinkRefused(f"the topic's schema cannot be written: {error}") from error

    def __reduce__(self) -> tuple[type[SchemaEncoder], tuple[SchemaDefinition, Fields]]:
        return SchemaEncoder, (self.definition, self._fields)

    def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """A payload for each row; None: the message has no value. Raises `SinkRefused`, with the row, for what the
        schema does not take."""
        values = _written(self._value, batch)
        if self._key is None or self.separates_keys:
            return values
        keys = _written(self._key, batch)
        return [
            None if key is None and value is None else inline(key, value)
            for key, value in zip(keys, values, strict=True)
        ]

    def encode_keys(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """The key of each row, not yet in base64; None: the message has no key. Empty if not `separates_keys`."""
        return _written(self._key, batch) if self._key is not None and self.separates_keys else []


_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


class _Writer(Protocol):
    def write(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """Payloads; raises one of `ENCODE_ERRORS`."""
        ...


def _written(writer: _Writer, batch: pa.RecordBatch) -> list[bytes | None]:
    try:
        return writer.write(batch)
    except ENCODE_ERRORS as error:
        raise SinkRefused(_first_refusal(writer, batch) or f"rows cannot be written: {reason_of(error)}") from error


def _first_refusal(writer: _Writer, batch: pa.RecordBatch) -> str:
    for row in range(batch.num_rows):
        try:
            writer.write(batch.slice(row, 1))
        except ENCODE_ERRORS as error:
            return f"row {row} of a batch cannot be written by the topic's schema: {reason_of(error)}"
    return ""


def _writer(definition: SchemaDefinition, types: dict[str, pa.DataType]) -> _Writer:
    match definition.type:
        case SchemaType.JSON | SchemaType.AVRO:
            shape_of = AvroDefinition(definition.data)
            if definition.type == SchemaType.AVRO:
                return AvroWriter(_Records(shape_of, types, numbers_of, wants_all=True))
            return _JsonWriter(_Records(shape_of, types, texts_of, wants_all=False))
        case SchemaType.PROTOBUF_NATIVE:
            return ProtobufWriter(definition.data)
        case _:
            return _OneColumnWriter(definition, types)


def _side_writer(side: SchemaDefinition, column: str, types: dict[str, pa.DataType]) -> _Writer:
    """A side of a key-value pair: the fields of a struct, or one value."""
    if column not in types:
        raise SinkRefused(f"the topic's schema is KEY_VALUE: there has to be a column `{column}`")
    arrow_type = types[column]
    if pa.types.is_struct(arrow_type):
        return _StructWriter(_writer(side, {field.name: field.type for field in arrow_type}), column)
    return _StructWriter(_writer(side, {VALUE_COLUMN: arrow_type}), column)


class _StructWriter:
    """Writes a column by a writer of batches: a struct's fields are the columns."""

    def __init__(self, writer: _Writer, column: str) -> None:
        self._writer = writer
        self._column = column

    def write(self, batch: pa.RecordBatch) -> list[bytes | None]:
        column = batch.column(self._column)
        if not pa.types.is_struct(column.type):
            return self._writer.write(pa.RecordBatch.from_arrays([column], [VALUE_COLUMN]))
        payloads: list[bytes | None] = [None] * len(column)
        present = column.drop_null()
        rows = [row for row, valid in enumerate(column.is_valid().to_pylist()) if valid]
        names = [field.name for field in column.type]
        inner = pa.RecordBatch.from_arrays([present.field(name) for name in names], names)
        for row, payload in zip(rows, self._writer.write(inner), strict=True):
            payloads[row] = payload
        return payloads


class _OneColumnWriter:
    """Bytes, texts, numbers and times."""

    def __init__(self, definition: SchemaDefinition, types: dict[str, pa.DataType]) -> None:
        if VALUE_COLUMN not in types:
            raise SinkRefused(f"the topic's schema is {definition.type_name}: there has to be a column `value`")
        self._primitive = SchemaType(definition.type) if definition.type in PRIMITIVES else None
        self._binary = pa.string() if definition.type == SchemaType.STRING else pa.binary()
        arrow_type = types[VALUE_COLUMN]
        wanted = self._binary if self._primitive is None else PRIMITIVES[self._primitive].arrow_type
        try:
            pa.nulls(0, arrow_type).cast(wanted)
        except pa.ArrowException as error:
            raise SinkRefused(
                f"the topic's schema is {definition.type_name}: column `value` is {arrow_type}, not {wanted}"
            ) from error

    def write(self, batch: pa.RecordBatch) -> list[bytes | None]:
        column = batch.column(VALUE_COLUMN)
        if self._primitive is not None:
            return encode_primitives(self._primitive, column)
        payloads: list[bytes | None] = column.cast(self._binary).cast(pa.binary()).to_pylist()
        return payloads


class _Records:
    """Rows as the values of a definition."""

    def __init__(
        self, definition: AvroDefinition, types: dict[str, pa.DataType], times_of: TimesOf, *, wants_all: bool
    ) -> None:
        self.definition = definition
        self._times_of = times_of
        self.shape = definition.shape
        self._is_record = self.shape.kind == "record"
        wanted = dict(self.shape.fields) if self._is_record else {VALUE_COLUMN: self.shape}
        unknown = [name for name in types if name not in wanted]
        if unknown:
            raise SinkRefused(f"the topic's schema has no fields {', '.join(unknown)}; it has {', '.join(wanted)}")
        if self._is_record and wants_all:
            self._check_missing(types)
        elif not self._is_record and VALUE_COLUMN not in types:
            raise SinkRefused("the topic's schema is no record: there has to be a column `value`")
        for name, arrow_type in types.items():
            _check_within(wanted[name], arrow_type, name)

    def of(self, batch: pa.RecordBatch) -> list[Any]:
        """Records as dicts, or single values."""
        if self._is_record:
            names, columns = batch.schema.names, batch.columns
            return list(columns_for(self.shape, names, columns, batch.num_rows, self._times_of))
        return values_of(self.shape, batch.column(VALUE_COLUMN), self._times_of)

    def _check_missing(self, types: dict[str, pa.DataType]) -> None:
        with_default = {field["name"] for field in self.definition.plain["fields"] if "default" in field}
        missing = [
            name
            for name, field in self.shape.fields
            if name not in types and name not in with_default and not field.nullable and field.kind != "null"
        ]
        if missing:
            raise SinkRefused(f"the topic's schema needs columns that are not there: {', '.join(missing)}")


def _check_within(shape: ValueShape, arrow_type: pa.DataType, path: str) -> None:
    """That fields within a column have a place in the schema: they would be dropped without a word."""
    is_kind = {
        "record": pa.types.is_struct,
        "union": pa.types.is_struct,
        "array": pa.types.is_list,
        "map": pa.types.is_map,
    }.get(shape.kind)
    if is_kind is None:
        return
    if not is_kind(arrow_type):
        article = "an" if shape.kind == "array" else "a"
        raise SinkRefused(f"column {path} is {arrow_type}, where the topic's schema has {article} {shape.kind}")
    if shape.item is not None:
        _check_within(shape.item, arrow_type.item_type if shape.kind == "map" else arrow_type.value_type, path)
        return
    known = dict(shape.fields)
    for field in arrow_type:
        if field.name not in known:
            raise SinkRefused(f"the topic's schema has no field {path}.{field.name}; there it has {', '.join(known)}")
        _check_within(known[field.name], field.type, f"{path}.{field.name}")


class AvroWriter:
    """Records in Avro, without anything around them."""

    def __init__(self, records: _Records) -> None:
        self._records = records
        self._schema = fastavro.parse_schema(records.definition.plain)
        self._unscale = _unscaler(records.shape)
        self._in_step = StepEncoder(records.definition)

    def write(self, batch: pa.RecordBatch) -> list[bytes | None]:
        try:
            return self._in_step.encode(batch)
        except (NotInStep, *VALUE_ERRORS):
            # A record at a time takes every schema, and tells what does not fit.
            return self.write_records(batch)

    def write_records(self, batch: pa.RecordBatch) -> list[bytes | None]:
        payloads: list[bytes | None] = []
        stream = io.BytesIO()
        for record in self._records.of(batch):
            stream.seek(0)
            stream.truncate()
            fastavro.schemaless_writer(stream, self._schema, record if self._unscale is None else self._unscale(record))
            payloads.append(stream.getvalue())
        return payloads


class _JsonWriter:
    """bytes are base64, decimals numbers, times as in `json_times`."""

    def __init__(self, records: _Records) -> None:
        self._records = records
        self._encode = msgspec.json.Encoder(decimal_format="number").encode
        self._all_plain = _is_plain(records.shape)

    def write(self, batch: pa.RecordBatch) -> list[bytes | None]:
        values = self._records.of(batch)
        return [self._encode(value if self._all_plain else _plain(value)) for value in values]


def _is_plain(shape: ValueShape) -> bool:
    """Nothing in it that JSON has to be told about: floats may be NaN, unions give tuples."""
    if shape.kind in ("float", "double", "union"):
        return False
    if shape.item is not None:
        return _is_plain(shape.item)
    return all(_is_plain(field) for _, field in shape.fields)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return _plain(value[1]) if isinstance(value, tuple) else value


def _unscaler(shape: ValueShape) -> Any:
    """Replaces Decimals by their unscaled bytes; None if the shape has no decimals."""
    if shape.logical == "decimal":
        scale, size = shape.arrow_type.scale, shape.size_bytes
        return lambda value: None if value is None else _unscaled(value, scale, size)
    if shape.item is not None:
        item = _unscaler(shape.item)
        if item is None:
            return None
        if shape.kind == "array":
            return lambda value: None if value is None else [item(one) for one in value]
        return lambda value: None if value is None else {key: item(one) for key, one in value.items()}
    if shape.kind == "union":
        return _member_unscaler(shape)
    if shape.kind == "record":
        parts = [(name, part) for name, field in shape.fields if (part := _unscaler(field)) is not None]
        if not parts:
            return None
        return lambda value: None if value is None else _replaced(value, parts)
    return None


_KINDS: Final = {Decimal: "bytes", list: "array", dict: "map"}
"""How a union's values without a name look; of each kind it has one at the most."""


def _member_unscaler(shape: ValueShape) -> Any:
    named: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for _, branch in shape.fields:
        part = _unscaler(branch)
        if part is not None:
            (named if branch.name else others)[branch.name or branch.kind] = part

    def replaced(value: Any) -> Any:
        if isinstance(value, tuple):
            name, inner = value
            return (name, named[name](inner)) if name in named else value
        part = others.get(_KINDS.get(type(value), ""))
        return value if part is None else part(value)

    return replaced if named or others else None


def _replaced(record: dict[str, Any], parts: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, part in parts:
        if name in record:
            record[name] = part(record[name])
    return record


def _unscaled(value: Decimal, scale: int, size_bytes: int) -> bytes:
    digits = value.as_tuple()
    unscaled: int = int("".join(map(str, digits.digits))) * 10 ** (scale + int(digits.exponent))
    unscaled = -unscaled if digits.sign else unscaled
    length = size_bytes or (unscaled.bit_length() + 8) // 8
    return unscaled.to_bytes(length, "big", signed=True)
