"""PROTOBUF_NATIVE payloads, by the descriptors that are registered for them.

The table's message reads every version's payloads, as Protobuf means it to. Columns as Spark's own Protobuf functions
have them, but that unsigned numbers keep their values: `uint32` is a long, `uint64` a decimal(20, 0). Enums are the
names of their values (the number as a text for one without name); Timestamp and Duration are Spark's own.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from magnetar.spark.errors import SchemaUnreadable
from magnetar.spark.values.api import DecodedValues
from magnetar.spark.values.assembling import columns_of, reason_of, without_rows
from magnetar.spark.values.payloads import types_of
from magnetar.spark.values.shapes import DEPTH_MAX, TIMESTAMP, ValueShape, list_type, map_type, struct_type

_UINT64: Final = pa.decimal128(20, 0)
_DURATION: Final = pa.duration("us")
_KINDS: Final = {
    FieldDescriptor.CPPTYPE_INT32: ("int", pa.int32()),
    FieldDescriptor.CPPTYPE_UINT32: ("long", pa.int64()),
    FieldDescriptor.CPPTYPE_INT64: ("long", pa.int64()),
    FieldDescriptor.CPPTYPE_FLOAT: ("float", pa.float32()),
    FieldDescriptor.CPPTYPE_DOUBLE: ("double", pa.float64()),
    FieldDescriptor.CPPTYPE_BOOL: ("boolean", pa.bool_()),
    FieldDescriptor.CPPTYPE_ENUM: ("enum", pa.string()),
}

_Convert = Callable[[Any], Any]


class ProtobufPayloads:
    """Messages of the table's type."""

    def __init__(self, table_data: bytes) -> None:
        """`table_data`: the schema that the table's columns are of. `SchemaUnreadable`."""
        descriptor = root_descriptor(table_data)
        self._parse = message_factory.GetMessageClass(descriptor).FromString
        self._getters: dict[tuple[int, str], _Convert] = {}
        self._shape = self._record(descriptor, ())

    def fields(self) -> list[tuple[str, pa.DataType]]:
        """The columns of the message's fields."""
        return types_of(self._shape.shown)

    def decode(self, values: pa.Array, keys: pa.Array | None) -> DecodedValues:
        """Columns of the `fields`, a row for each payload; what does not parse is a bad row. A message without any
        field set has no bytes, so nothing is not no value here."""
        parse = self._parse
        bad: dict[int, str] = {}
        rows: list[Any] = []
        for row, payload in enumerate(values.to_pylist()):
            decoded = None
            if payload is not None:
                try:
                    decoded = parse(payload)
                except DecodeError as error:
                    bad[row] = reason_of(error)
            rows.append(decoded)
        getters = [(shape, self._getter(self._shape, name)) for name, shape in self._shape.shown]
        columns, unfit = columns_of(getters, rows, self._getter)
        return without_rows(columns, {**unfit, **bad}, unfit)

    def _getter(self, shape: ValueShape, name: str) -> _Convert:
        return self._getters[id(shape), name]

    def _record(self, descriptor: Descriptor, outer: tuple[str, ...]) -> ValueShape:
        if descriptor.full_name in outer:
            raise SchemaUnreadable(f"{descriptor.full_name} contains itself, which no columns of Spark can show")
        if len(outer) > DEPTH_MAX:
            raise SchemaUnreadable(f"the schema has more than {DEPTH_MAX} levels")
        inner = (*outer, descriptor.full_name)
        made = [(field, *self._field(field, inner)) for field in descriptor.fields]
        shown = struct_type([(field.name, part.arrow_type) for field, part, _ in made if not part.is_void])
        shape = ValueShape("record", shown)
        shape.fields = [(field.name, part) for field, part, _ in made]
        for field, _, convert in made:
            self._getters[id(shape), field.name] = _getter_of(field, convert)
        return shape

    def _field(self, field: FieldDescriptor, outer: tuple[str, ...]) -> tuple[ValueShape, _Convert | None]:
        message_type = field.message_type
        if message_type is not None and message_type.GetOptions().map_entry:
            key, value = message_type.fields_by_name["key"], message_type.fields_by_name["value"]
            item, convert = self._single(value, outer)
            shape = ValueShape("map", map_type(item.arrow_type, self._single(key, outer)[0].arrow_type))
            shape.item = item
            return shape, None if convert is None else _each_value(convert)
        item, convert = self._single(field, outer)
        if not is_repeated(field):
            return item, convert
        shape = ValueShape("array", list_type(item.arrow_type))
        shape.item = item
        return shape, None if convert is None else _each(convert)

    def _single(self, field: FieldDescriptor, outer: tuple[str, ...]) -> tuple[ValueShape, _Convert | None]:
        if field.message_type is not None:
            return self._message(field.message_type, outer)
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            is_bytes = field.type == FieldDescriptor.TYPE_BYTES
            return (ValueShape("bytes", pa.binary()) if is_bytes else ValueShape("string", pa.string())), None
        if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
            return _logical(ValueShape("bytes", _UINT64), "decimal"), None
        kind, arrow_type = _KINDS[field.cpp_type]
        return ValueShape(kind, arrow_type), _names_of(field.enum_type) if field.enum_type is not None else None

    def _message(self, message_type: Descriptor, outer: tuple[str, ...]) -> tuple[ValueShape, _Convert | None]:
        if message_type.full_name == "google.protobuf.Timestamp":
            return _logical(ValueShape("long", TIMESTAMP), "timestamp-micros"), _micros
        if message_type.full_name == "google.protobuf.Duration":
            return _logical(ValueShape("long", _DURATION), "duration"), _micros
        return self._record(message_type, outer), None


def root_descriptor(data: bytes) -> Descriptor:
    """The message that the schema's data is about. Raises `SchemaUnreadable`."""
    try:
        document = json.loads(data)
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(document["fileDescriptorSet"]))
        pool = descriptor_pool.DescriptorPool()
        by_name = {file.name: file for file in files.file}
        added: set[str] = set()
        for file in files.file:
            _add(file, by_name, pool, added)
        return pool.FindMessageTypeByName(document["rootMessageTypeName"])
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error, DecodeError) as error:
        raise SchemaUnreadable(f"the schema has no usable Protobuf descriptors: {reason_of(error)}") from error


def is_repeated(field: FieldDescriptor) -> bool:
    """Many values; maps are such too."""
    return bool(field.is_repeated)


def _add(
    file: descriptor_pb2.FileDescriptorProto,
    by_name: dict[str, descriptor_pb2.FileDescriptorProto],
    pool: descriptor_pool.DescriptorPool,
    added: set[str],
) -> None:
    """A file after those that it imports."""
    if file.name in added:
        return
    added.add(file.name)
    for name in file.dependency:
        if name in by_name:
            _add(by_name[name], by_name, pool, added)
    pool.Add(file)


def _logical(shape: ValueShape, logical: str) -> ValueShape:
    shape.logical = logical
    return shape


def _getter_of(field: FieldDescriptor, convert: _Convert | None) -> _Convert:
    """Gets a field of a message: None where it is not set and the message tells that from being empty."""
    name = field.name
    if not field.has_presence:
        if convert is None:
            return lambda message: getattr(message, name)
        return lambda message: convert(getattr(message, name))

    def present(message: Message) -> Any:
        if not message.HasField(name):
            return None
        value = getattr(message, name)
        return value if convert is None else convert(value)

    return present


def _names_of(enum: EnumDescriptor) -> _Convert:
    names = {number: value.name for number, value in enum.values_by_number.items()}
    return lambda number: names.get(number) or str(number)


def _micros(message: Any) -> int:
    return int(message.seconds * 1_000_000 + message.nanos // 1000)


def _each(convert: _Convert) -> _Convert:
    return lambda values: [convert(value) for value in values]


def _each_value(convert: _Convert) -> _Convert:
    return lambda values: {key: convert(value) for key, value in values.items()}
