"""Columns → Avro payloads in step: each column is encoded as a whole, then each row's parts are joined by Arrow.

For records without lists, maps and unions of several types; the others are left to fastavro, and so is what does not
fit, as it tells why."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from magnetar.spark.values.avro_columns import NotInStep, named_in
from magnetar.spark.values.disassembling import values_of
from magnetar.spark.values.shapes import AvroDefinition, ValueShape

_NOTHING: Final = pa.scalar(b"", pa.binary())
_VARINT_BYTES_MAX: Final = 10
_DTYPES: Final = {"boolean": "u1", "float": "<f4", "double": "<f8"}


class StepEncoder:
    """Encodes batches for one definition, which is a record's."""

    def __init__(self, definition: AvroDefinition) -> None:
        self._shape = definition.shape
        self._plain = definition.plain
        self._named = named_in(definition.plain)

    def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """Payloads. `NotInStep` for a schema that is not for this; Arrow's errors and ValueErrors for values."""
        if self._shape.kind != "record" or self._shape.nullable:
            raise NotInStep("no record")
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        payloads: list[bytes | None] = self._record(self._shape, columns, batch.num_rows).to_pylist()
        return payloads

    def _record(self, shape: ValueShape, columns: dict[str, pa.Array], length: int) -> pa.Array:
        parts = []
        for (name, field), plain in zip(shape.fields, self._named[shape.name]["fields"], strict=True):
            if name in columns:
                parts.append(self._column(field, plain["type"], columns[name]))
            elif field.nullable and plain.get("default", ...) is None:
                parts.append(_null_branch(plain["type"]))
            else:
                raise NotInStep("a default")
        if not any(isinstance(part, pa.Array) for part in parts):
            parts.append(pa.repeat(_NOTHING, length))
        return pc.binary_join_element_wise(*parts, _NOTHING)

    def _column(self, shape: ValueShape, plain: Any, array: pa.Array) -> pa.Array:
        if isinstance(plain, list):
            return self._optional(shape, plain, array)
        if array.null_count:
            raise ValueError("null where the schema has none")
        if shape.kind == "record":
            return self._record(shape, {field.name: array.field(field.name) for field in array.type}, len(array))
        return _leaf(shape, array)

    def _optional(self, shape: ValueShape, plain: list[Any], array: pa.Array) -> pa.Array:
        branches = [index for index, branch in enumerate(plain) if branch != "null"]
        if len(branches) != 1 or len(plain) != 2 or shape.kind == "union":
            raise NotInStep("a union")
        present = array.drop_null() if array.null_count else array
        prefix = pa.scalar(bytes([2 * branches[0]]), pa.binary())
        encoded = pc.binary_join_element_wise(prefix, self._column(shape, plain[branches[0]], present), _NOTHING)
        if len(present) == len(array):
            return encoded
        valid = np.asarray(array.is_valid())
        if not len(present):
            return pa.repeat(_null_branch(plain), len(array))
        places = pa.array(np.cumsum(valid) - 1, mask=~valid)
        return encoded.take(places).fill_null(_null_branch(plain))


def varints(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Each number in Avro's variable length, as binary."""
    raw = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
    lengths = np.ones(len(raw), np.int64)
    for index in range(1, _VARINT_BYTES_MAX):
        longer = raw >= np.uint64(1 << (7 * index))
        if not longer.any():
            break
        lengths += longer
    width = int(lengths.max(initial=1))
    digits = np.empty((len(raw), width), np.uint8)
    for index in range(width):
        digits[:, index] = (raw >> np.uint64(7 * index)) & np.uint64(0x7F)
        digits[:, index] |= (lengths > index + 1).astype(np.uint8) << 7
    data = digits[np.arange(width) < lengths[:, None]]
    return _binary(data, np.concatenate([[0], np.cumsum(lengths)]))


def _leaf(shape: ValueShape, array: pa.Array) -> pa.Array:
    if shape.logical == "decimal" or shape.kind in ("array", "map", "union", "null"):
        raise NotInStep(f"a {shape.logical or shape.kind}")
    if shape.logical:
        return varints(np.array(values_of(shape, array), np.int64))
    if shape.kind in ("int", "long"):
        return varints(np.asarray(array.cast(shape.arrow_type)).astype(np.int64))
    if shape.kind in _DTYPES:
        numbers = np.asarray(array.cast(shape.arrow_type)).astype(_DTYPES[shape.kind])
        return _binary(numbers.view(np.uint8), np.arange(len(array) + 1) * numbers.dtype.itemsize)
    if shape.kind == "enum":
        indexes = pc.index_in(array.cast(pa.string()), pa.array(shape.symbols, pa.string()))
        if indexes.null_count:
            raise ValueError("no symbol of the schema's")
        return varints(np.asarray(indexes).astype(np.int64))
    data = array.cast(shape.arrow_type).cast(pa.binary())
    lengths = np.asarray(pc.binary_length(data)).astype(np.int64)
    if shape.kind == "fixed":
        if (lengths != shape.size_bytes).any():
            raise ValueError("no fixed of the schema's size")
        return data
    return pc.binary_join_element_wise(varints(lengths), data, _NOTHING)


def _null_branch(plain: list[Any]) -> pa.Scalar:
    return pa.scalar(bytes([2 * plain.index("null")]), pa.binary())


def _binary(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
