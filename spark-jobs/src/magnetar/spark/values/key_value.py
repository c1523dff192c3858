"""KEY_VALUE payloads: two values in one payload (INLINE), or the key beside it as the message's key (SEPARATED).

INLINE is each side after its length, 4 bytes big-endian; length -1 is null. Each side has a schema of its own and is
one column, a struct where that side has fields (Pulsar: KeyValue, KeyValueSchemaInfo).
"""

from __future__ import annotations

import binascii
import json
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from magnetar.spark.errors import SchemaUnreadable
from magnetar.spark.message_keys import decoded_key
from magnetar.spark.values.api import KEY_COLUMN, VALUE_COLUMN, DecodedValues, SchemaDefinition
from magnetar.spark.values.payloads import Payloads
from magnetar.spark.values.shapes import struct_type
from magnetar.wire.pulsar.enums import SchemaType

ENCODING_PROPERTY: Final = "kv.encoding.type"
_LENGTH: Final = struct.Struct(">i")
_LENGTH_BYTES: Final = _LENGTH.size
_NEVER_SIDES: Final = (SchemaType.AUTO, SchemaType.AUTO_PUBLISH)
_TYPES: Final = {one.name: one.wire_number for one in SchemaType if one not in _NEVER_SIDES}

_Ints = npt.NDArray[np.int64]


def is_separated(definition: SchemaDefinition) -> bool:
    """Keys are the messages' keys."""
    return definition.properties.get(ENCODING_PROPERTY) == "SEPARATED"


def sides(definition: SchemaDefinition) -> tuple[SchemaDefinition, SchemaDefinition]:
    """The definitions of key and value. Raises `SchemaUnreadable`."""
    key_data, at = _sized(definition.data, 0)
    value_data, _ = _sized(definition.data, at)
    return _side(definition, "key", key_data), _side(definition, "value", value_data)


def joined(key: SchemaDefinition, value: SchemaDefinition, separated: bool) -> SchemaDefinition:
    """The definition of both together, as Java's client writes it."""
    properties = {ENCODING_PROPERTY: "SEPARATED" if separated else "INLINE"}
    for side, one in (("key", key), ("value", value)):
        properties[f"{side}.schema.name"] = one.name
        properties[f"{side}.schema.type"] = "BYTES" if one.type == SchemaType.NONE else one.type_name
        properties[f"{side}.schema.properties"] = json.dumps(dict(one.properties), separators=(",", ":"))
    data = inline(key.data, value.data)
    return SchemaDefinition(type=SchemaType.KEY_VALUE, name="KeyValue", data=data, properties=properties)


def inline(key: bytes | None, value: bytes | None) -> bytes:
    """Both, each after its length."""
    parts = []
    for side in (key, value):
        parts += [_LENGTH.pack(-1)] if side is None else [_LENGTH.pack(len(side)), side]
    return b"".join(parts)


class KeyValuePayloads:
    """Both sides of one version."""

    def __init__(self, key: Payloads, value: Payloads, separated: bool) -> None:
        self._key = key
        self._value = value
        self._separated = separated

    def fields(self) -> list[tuple[str, pa.DataType]]:
        """The columns `key` and `value`."""
        return [(KEY_COLUMN, _column_type(self._key)), (VALUE_COLUMN, _column_type(self._value))]

    def decode(self, values: pa.Array, keys: pa.Array | None) -> DecodedValues:
        """Columns of the `fields`: the key is in the payload, or in `keys` where the schema separates it."""
        bad: dict[int, str] = {}
        if not self._separated:
            keys, values, bad = split_inline(values)
        elif keys is None:
            keys = pa.nulls(len(values), pa.binary())
        key_column, key_bad = _decoded(self._key, keys)
        value_column, value_bad = _decoded(self._value, values)
        for side, reasons in (("value", value_bad), ("key", key_bad)):
            bad.update({row: f"{side}: {reason}" for row, reason in reasons.items()})
        if bad:
            good = pa.array([row not in bad for row in range(len(values))], pa.bool_())
            key_column, value_column = _only(key_column, good), _only(value_column, good)
        return DecodedValues([key_column, value_column], bad)


def split_inline(values: pa.Array) -> tuple[pa.Array, pa.Array, dict[int, str]]:
    """Keys, values, and rows whose lengths make no sense. Nothing is done per row but for those."""
    if not len(values):
        return values, values, {}
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, count=values.offset + len(values) + 1)[values.offset :]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    present = ends > starts
    key_start, key_end, key_bad = _side_at(data, starts, ends, present)
    value_start, value_end, value_bad = _side_at(data, np.abs(key_end), ends, present & ~key_bad)
    broken = (key_bad | value_bad) & present
    bad = dict.fromkeys(np.flatnonzero(broken).tolist(), "the lengths of key and value are not its own")
    good = present & ~broken
    keys = _cut(values, key_start, key_end, good & (key_end >= 0))
    return keys, _cut(values, value_start, value_end, good & (value_end >= 0)), bad


def decoded_keys(keys: pa.Array, base64_flags: pa.Array | None) -> tuple[pa.Array, dict[int, str]]:
    """Messages' keys as the bytes that the key's schema reads."""
    keys = keys.cast(pa.binary())
    if base64_flags is None or not (base64_flags.true_count if len(base64_flags) else 0):
        return keys, {}
    bad: dict[int, str] = {}
    plain = keys.to_pylist()
    for row, flag in enumerate(base64_flags.to_pylist()):
        if flag and plain[row] is not None:
            try:
                plain[row] = decoded_key(plain[row])
            except binascii.Error:
                plain[row] = None
                bad[row] = "key: no base64"
    return pa.array(plain, pa.binary()), bad


def _side_at(
    data: npt.NDArray[np.uint8], starts: _Ints, ends: _Ints, present: npt.NDArray[np.bool_]
) -> tuple[_Ints, _Ints, npt.NDArray[np.bool_]]:
    """Beginning and end of what stands after a length; a null's end is negative: minus where its length ends."""
    bad = present & (starts + _LENGTH_BYTES > ends)
    at = np.where(present & ~bad, starts, 0)
    length = np.zeros(len(starts), np.int64)
    if len(data) >= _LENGTH_BYTES:
        for index in range(_LENGTH_BYTES):
            length = (length << 8) | data[at + index]
    length = np.where(length >= 2**31, length - 2**32, length)
    begins = starts + _LENGTH_BYTES
    stops = begins + length
    bad |= present & ((length < -1) | (stops > ends))
    return begins, np.where(length == -1, -begins, stops), bad


def _cut(values: pa.Array, starts: _Ints, ends: _Ints, valid: npt.NDArray[np.bool_]) -> pa.Array:
    """Parts of the payloads, copied once by Arrow: even elements are the parts, odd ones what is between them."""
    count = len(starts)
    bounds = np.empty(2 * count, np.int64)
    bounds[0::2] = np.where(valid, starts, 0)
    bounds[1::2] = np.where(valid, ends, 0)
    np.maximum.accumulate(bounds, out=bounds)
    parts = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds.astype(np.int32)), values.buffers()[2]]
    )
    return parts.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int64), mask=~valid))


def _column_type(side: Payloads) -> pa.DataType:
    fields = side.fields()
    return fields[0][1] if _is_plain(fields) else struct_type(fields)


def _is_plain(fields: list[tuple[str, Any]]) -> bool:
    return len(fields) == 1 and fields[0][0] == VALUE_COLUMN


def _decoded(side: Payloads, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    decoded = side.decode(values, None)
    fields = side.fields()
    if _is_plain(fields):
        return decoded.columns[0], decoded.bad
    mask = values.is_null() if values.null_count else None
    if not fields:
        return pa.nulls(len(values), struct_type([])), decoded.bad
    return pa.StructArray.from_arrays(decoded.columns, fields=list(struct_type(fields)), mask=mask), decoded.bad


def _only(column: pa.Array, good: pa.Array) -> pa.Array:
    return pc.if_else(good, column, pa.scalar(None, column.type))


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    start = at + _LENGTH_BYTES
    if start > len(data):
        raise SchemaUnreadable("the KEY_VALUE schema is cut short")
    (length,) = _LENGTH.unpack_from(data, at)
    end = start + max(length, 0)
    if length < -1 or end > len(data):
        raise SchemaUnreadable("the KEY_VALUE schema is cut short")
    return data[start:end], end


def _side(definition: SchemaDefinition, side: str, data: bytes) -> SchemaDefinition:
    properties: Mapping[str, str] = definition.properties
    type_name = properties.get(f"{side}.schema.type", "BYTES")
    if type_name not in _TYPES:
        raise SchemaUnreadable(f"the KEY_VALUE schema's {side} is of an unknown type {type_name!r}")
    try:
        text = properties.get(f"{side}.schema.properties") or "{}"
        own = {str(name): str(value) for name, value in json.loads(text).items()}
    except (ValueError, AttributeError) as error:
        raise SchemaUnreadable(f"the KEY_VALUE schema's property {side}.schema.properties is no JSON object") from error
    return SchemaDefinition(
        type=_TYPES[type_name], name=properties.get(f"{side}.schema.name", ""), data=data, properties=own
    )
