"""Primitive types as Java's client encodes them, decoded and encoded as whole columns.

Numbers are big-endian. DATE, TIME and TIMESTAMP are milliseconds since 1970 in 8 bytes, INSTANT seconds (8) and
nanoseconds (4), LOCAL_DATE days since 1970 (8), LOCAL_TIME nanoseconds of the day (8), LOCAL_DATE_TIME days and
nanoseconds of the day (8, 8). Bytes behind the last expected one are an error there as here.

TIME and LOCAL_TIME become numbers (milliseconds since 1970, nanoseconds of the day): not every Spark has a time of day.
DATE becomes a date in UTC, as StreamNative's connector has it, and loses its time; nanoseconds are cut to microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from magnetar.spark.values.api import VALUE_COLUMN, DecodedValues
from magnetar.spark.values.shapes import LOCAL_TIMESTAMP, TIMESTAMP
from magnetar.wire.pulsar.enums import SchemaType

DAY_MS: Final = 86_400_000
DAY_US: Final = 86_400_000_000

_Numbers = npt.NDArray[Any]


class Primitive:
    """How one type is laid out."""

    __slots__ = ("arrow_type", "decode", "encode", "parts")

    def __init__(
        self,
        parts: str,
        arrow_type: pa.DataType,
        decode: Callable[[_Numbers], _Numbers],
        encode: Callable[[_Numbers], list[_Numbers]],
    ) -> None:
        self.parts = np.dtype([(f"f{index}", code) for index, code in enumerate(parts.split())])
        """Big-endian fields of fixed size."""
        self.arrow_type = arrow_type
        self.decode = decode
        """Fields → what the Arrow array holds."""
        self.encode = encode
        """The inverse."""


def _same(fields: _Numbers) -> _Numbers:
    return fields["f0"]


def _alone(numbers: _Numbers) -> list[_Numbers]:
    return [numbers]


def _number(code: str, arrow_type: pa.DataType) -> Primitive:
    return Primitive(code, arrow_type, _same, _alone)


PRIMITIVES: Final[dict[SchemaType, Primitive]] = {
    SchemaType.BOOLEAN: Primitive("u1", pa.bool_(), lambda fields: fields["f0"] != 0, _alone),
    SchemaType.INT8: _number(">i1", pa.int8()),
    SchemaType.INT16: _number(">i2", pa.int16()),
    SchemaType.INT32: _number(">i4", pa.int32()),
    SchemaType.INT64: _number(">i8", pa.int64()),
    SchemaType.FLOAT: _number(">f4", pa.float32()),
    SchemaType.DOUBLE: _number(">f8", pa.float64()),
    SchemaType.DATE: Primitive(
        ">i8", pa.date32(), lambda fields: fields["f0"] // DAY_MS, lambda days: [days.astype(np.int64) * DAY_MS]
    ),
    SchemaType.TIME: _number(">i8", pa.int64()),
    SchemaType.TIMESTAMP: Primitive(
        ">i8", TIMESTAMP, lambda fields: fields["f0"].astype(np.int64) * 1000, lambda micros: [micros // 1000]
    ),
    SchemaType.INSTANT: Primitive(
        ">i8 >i4",
        TIMESTAMP,
        lambda fields: fields["f0"].astype(np.int64) * 1_000_000 + fields["f1"] // 1000,
        lambda micros: [micros // 1_000_000, micros % 1_000_000 * 1000],
    ),
    SchemaType.LOCAL_DATE: Primitive(">i8", pa.date32(), _same, lambda days: [days.astype(np.int64)]),
    SchemaType.LOCAL_TIME: _number(">i8", pa.int64()),
    SchemaType.LOCAL_DATE_TIME: Primitive(
        ">i8 >i8",
        LOCAL_TIMESTAMP,
        lambda fields: fields["f0"].astype(np.int64) * DAY_US + fields["f1"] // 1000,
        lambda micros: [micros // DAY_US, micros % DAY_US * 1000],
    ),
}

RANGES: Final = {
    SchemaType.DATE: (-(2**31) * DAY_MS, 2**31 * DAY_MS - 1),
    SchemaType.TIMESTAMP: (-(2**63) // 1000 + 1, 2**63 // 1000 - 1),
    SchemaType.INSTANT: (-(2**63) // 1_000_000 + 1, 2**63 // 1_000_000 - 1),
    SchemaType.LOCAL_DATE: (-(2**31), 2**31 - 1),
    SchemaType.LOCAL_DATE_TIME: (-(2**63) // DAY_US + 1, 2**63 // DAY_US - 1),
}
"""The bounds of the first field: beyond these the Arrow type has no such value."""


class BytesPayloads:
    """The payloads themselves: nothing is copied."""

    def fields(self) -> list[tuple[str, pa.DataType]]:
        """The one column."""
        return [(VALUE_COLUMN, pa.binary())]

    def decode(self, values: pa.Array, keys: pa.Array | None) -> DecodedValues:
        """The payloads as they are; none is bad."""
        return DecodedValues([values], {})


class StringPayloads:
    """UTF-8 texts: checked, as what is none must not reach Spark, and not copied."""

    def fields(self) -> list[tuple[str, pa.DataType]]:
        """The one column."""
        return [(VALUE_COLUMN, pa.string())]

    def decode(self, values: pa.Array, keys: pa.Array | None) -> DecodedValues:
        """The payloads as texts; what is no UTF-8 is a bad row."""
        try:
            return DecodedValues([values.cast(pa.string())], {})
        except pa.ArrowInvalid:
            return _checked_texts(values)


class PrimitivePayloads:
    """Numbers and times. An empty payload is no value."""

    def __init__(self, schema_type: SchemaType) -> None:
        self._type = schema_type
        self._layout = PRIMITIVES[schema_type]

    def fields(self) -> list[tuple[str, pa.DataType]]:
        """The one column."""
        return [(VALUE_COLUMN, self._layout.arrow_type)]

    def decode(self, values: pa.Array, keys: pa.Array | None) -> DecodedValues:
        """The numbers or times; a payload of another length, or out of the type's range, is a bad row."""
        size = self._layout.parts.itemsize
        lengths = np.asarray(pc.fill_null(pc.binary_length(values), 0))
        fitting = lengths == size
        bad: dict[int, str] = {}
        if not fitting.all():
            for row in np.flatnonzero(~fitting & (lengths != 0)).tolist():
                bad[row] = f"{lengths[row]} bytes are no {self._type.name}: that has {size}"
        records = self._records(values, fitting)
        self._take_out_of_range(records, fitting, bad)
        numbers = self._layout.decode(records)
        return DecodedValues([_column(numbers, fitting, self._layout.arrow_type)], bad)

    def _records(self, values: pa.Array, fitting: npt.NDArray[np.bool_]) -> _Numbers:
        """Fields of each row; zeros where the payload does not fit."""
        whole = bool(fitting.all())
        kept = values if whole else values.filter(pa.array(fitting))
        if not len(kept):
            return np.zeros(len(values), self._layout.parts)
        _, offsets, data = kept.buffers()
        # A column of payloads may be a part of larger ones: the first offset is where it begins there.
        first = np.frombuffer(offsets, np.int32, count=kept.offset + 1)[-1]
        dense = np.frombuffer(data, self._layout.parts, count=len(kept), offset=int(first))
        if whole:
            return dense
        records = np.zeros(len(values), self._layout.parts)
        records[fitting] = dense
        return records

    def _take_out_of_range(self, records: _Numbers, fitting: npt.NDArray[np.bool_], bad: dict[int, str]) -> None:
        if self._type not in RANGES:
            return
        low, high = RANGES[self._type]
        outside = ((records["f0"] < low) | (records["f0"] > high)) & fitting
        if outside.any():
            for row in np.flatnonzero(outside).tolist():
                bad[row] = f"{records['f0'][row]} is a {self._type.name} out of Spark's range"
            fitting &= ~outside


def encode_primitives(schema_type: SchemaType, column: pa.Array) -> list[bytes | None]:
    """The column, of the type's own Arrow type, as payloads; null → None. Raises Arrow's errors for what does not
    fit."""
    layout = PRIMITIVES[schema_type]
    column = column.cast(layout.arrow_type)
    if pa.types.is_timestamp(layout.arrow_type):
        plain = column.view(pa.int64())
    elif pa.types.is_date(layout.arrow_type):
        plain = column.view(pa.int32())
    else:
        plain = column.cast(pa.uint8()) if pa.types.is_boolean(layout.arrow_type) else column
    numbers = np.asarray(plain.fill_null(0))
    records = np.zeros(len(column), layout.parts)
    for index, part in enumerate(layout.encode(numbers)):
        records[f"f{index}"] = part
    size = layout.parts.itemsize
    data = records.tobytes()
    payloads: list[bytes | None] = [data[at : at + size] for at in range(0, len(data), size)]
    if column.null_count:
        for row in np.flatnonzero(np.asarray(column.is_null())).tolist():
            payloads[row] = None
    return payloads


def _column(numbers: _Numbers, valid: npt.NDArray[np.bool_], arrow_type: pa.DataType) -> pa.Array:
    mask = None if valid.all() else ~valid
    if pa.types.is_timestamp(arrow_type):
        return pa.array(numbers.astype(np.int64), pa.int64(), mask=mask).view(arrow_type)
    if pa.types.is_date(arrow_type):
        return pa.array(numbers.astype(np.int32), pa.int32(), mask=mask).view(arrow_type)
    return pa.array(numbers.astype(numbers.dtype.newbyteorder("=")), arrow_type, mask=mask)


def _checked_texts(values: pa.Array) -> DecodedValues:
    bad: dict[int, str] = {}
    texts: list[str | None] = []
    for row, value in enumerate(values.to_pylist()):
        text = None
        if value is not None:
            try:
                text = value.decode()
            except UnicodeDecodeError as error:
                bad[row] = f"no UTF-8 text: {error}"
        texts.append(text)
    return DecodedValues([pa.array(texts, pa.string())], bad)
