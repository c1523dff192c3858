"""Decoded Python values → Arrow arrays, by their shape: a list a column, never a row at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from itertools import accumulate, chain
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from magnetar.spark.values.api import DecodedValues
from magnetar.spark.values.shapes import DECIMAL_PRECISION_MAX, ValueShape

REASON_LENGTH_MAX: Final = 300
"""Characters; libraries put whole schemas into their errors."""

VALUE_ERRORS: Final = (
    pa.ArrowException,
    LookupError,
    ValueError,
    TypeError,
    OverflowError,
    ArithmeticError,
    AttributeError,
)
"""What Arrow and Python raise for a value that is not of its column's type. ArrowInvalid is a ValueError as well."""

GetterOf: TypeAlias = Callable[[ValueShape, str], Callable[[Any], Any]]
"""How the values of a record's field are got at: of a dict, of an object with attributes."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FACTORS: Final = {"timestamp-millis": 1000, "local-timestamp-millis": 1000}
_STREAM: Final = re.compile(r"<_io\.BytesIO object at \w+>")
_DECIMAL_SIZE_BYTES: Final = 16
_EXACT: Final = Context(prec=2 * DECIMAL_PRECISION_MAX)


def columns_of(
    fields: Sequence[tuple[ValueShape, Callable[[Any], Any]]], rows: list[Any], getter_of: GetterOf
) -> tuple[list[pa.Array], dict[int, str]]:
    """A column for each field of the rows, which are records or None; and rows with a value that does not fit."""
    bad: dict[int, str] = {}
    columns = []
    for shape, getter in fields:
        values = [None if row is None else getter(row) for row in rows]
        try:
            columns.append(array_of(shape, values, getter_of))
        except VALUE_ERRORS:
            _take_out_bad(shape, values, getter_of, bad)
            columns.append(array_of(shape, values, getter_of))
    return columns, bad


def without_rows(columns: list[pa.Array], bad: dict[int, str], unfit: dict[int, str]) -> DecodedValues:
    """A row of which one column does not fit is null in all of them."""
    if unfit and columns:
        keep = pa.array([row not in unfit for row in range(len(columns[0]))], pa.bool_())
        columns = [pc.if_else(keep, column, pa.scalar(None, column.type)) for column in columns]
    return DecodedValues(columns, bad)


def array_of(shape: ValueShape, values: list[Any], getter_of: GetterOf) -> pa.Array:
    """The values as an array of the shape's type. Raises one of `VALUE_ERRORS` if one of them does not fit."""
    if shape.kind == "record":
        return _records(shape, values, getter_of)
    if shape.kind == "array":
        return _lists(shape, values, getter_of)
    if shape.kind == "map":
        return _maps(shape, values, getter_of)
    if shape.kind == "union":
        return _unions(shape, values, getter_of)
    if shape.kind in ("bytes", "fixed"):
        return _bytes(shape, values)
    if shape.logical:
        return number_column(shape, _numbers(shape, values))
    if shape.kind == "enum":
        values = [value[1] if value.__class__ is tuple else value for value in values]
    return pa.array(values, shape.arrow_type)


def number_column(shape: ValueShape, numbers: pa.Array) -> pa.Array:
    """Numbers as their logical type means them: `numbers` are int64."""
    if shape.arrow_type.bit_width == 32:
        return numbers.cast(pa.int32()).view(shape.arrow_type)
    if shape.logical in _FACTORS:
        numbers = pc.multiply_checked(numbers, _FACTORS[shape.logical])
    elif shape.logical.endswith("-nanos"):
        numbers = floor_divided(numbers, 1000)
    return numbers.view(shape.arrow_type)


def _numbers(shape: ValueShape, values: list[Any]) -> pa.Array:
    """In the logical type's unit. Dates and datetimes, which texts in JSON are read to, are rounded down to it."""
    try:
        return pa.array(values, pa.int64())
    except pa.ArrowInvalid:
        return pa.array([_number(shape, value) for value in values], pa.int64())


def _number(shape: ValueShape, value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        microseconds = (moment - _EPOCH) // _MICROSECOND
        return microseconds // 1000 if shape.logical in _FACTORS else microseconds
    return value.toordinal() - _EPOCH.toordinal() if isinstance(value, date) else value


def floor_divided(numbers: pa.Array, divisor: int) -> pa.Array:
    """int64 by a positive number, rounded down, so that times before 1970 are right too."""
    quotients = pc.divide(numbers, divisor)
    behind = pc.less(pc.subtract(numbers, pc.multiply(quotients, divisor)), 0)
    return pc.subtract(quotients, behind.cast(pa.int64()))


def reason_of(error: BaseException) -> str:
    """An error as a row's reason: one line, not too long."""
    text = _STREAM.sub("the payload", " ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= REASON_LENGTH_MAX else text[:REASON_LENGTH_MAX] + "…"


def nulls(values: Sequence[Any]) -> pa.Array | None:
    """A mask of those that are None; None if there are none, which is faster for Arrow."""
    return pa.array([value is None for value in values], pa.bool_()) if None in values else None


def member_index(shape: ValueShape, value: Any) -> int:
    """Which branch of a union a value is of. Named types come as (name, value) tuples."""
    if isinstance(value, tuple):
        for index, (_, branch) in enumerate(shape.fields):
            if branch.name == value[0]:
                return index
    wanted = _KINDS_OF_CLASSES.get(type(value), ())
    for kind in wanted:
        for index, (_, branch) in enumerate(shape.fields):
            if branch.kind == kind and (kind != "int" or -(2**31) <= value < 2**31):
                return index
    raise ValueError(f"a {type(value).__name__} is in none of the union's types")


_KINDS_OF_CLASSES: Final[dict[type, tuple[str, ...]]] = {
    bool: ("boolean",),
    int: ("int", "long", "float", "double"),
    float: ("double", "float"),
    str: ("string", "enum", "bytes", "fixed"),
    bytes: ("bytes", "fixed"),
    Decimal: ("bytes", "fixed"),
    list: ("array",),
    dict: ("map", "record"),
}


def _take_out_bad(shape: ValueShape, values: list[Any], getter_of: GetterOf, bad: dict[int, str]) -> None:
    for row, value in enumerate(values):
        if value is None:
            continue
        try:
            array_of(shape, [value], getter_of)
        except VALUE_ERRORS as error:
            bad.setdefault(row, reason_of(error))
            values[row] = None


def _records(shape: ValueShape, values: list[Any], getter_of: GetterOf) -> pa.Array:
    # Named types of a union come as tuples (see `member_index`), also where null is the only other branch.
    rows = [value[1] if value.__class__ is tuple else value for value in values]
    mask = nulls(rows)
    arrays = []
    for name, field in shape.shown:
        getter = getter_of(shape, name)
        children = list(map(getter, rows)) if mask is None else [None if row is None else getter(row) for row in rows]
        arrays.append(array_of(field, children, getter_of))
    return pa.StructArray.from_arrays(arrays, fields=list(shape.arrow_type), mask=mask)


def _lists(shape: ValueShape, values: list[Any], getter_of: GetterOf) -> pa.Array:
    assert shape.item is not None
    children = list(chain.from_iterable(value for value in values if value))
    items = array_of(shape.item, children, getter_of)
    return pa.ListArray.from_arrays(_offsets(values), items, type=shape.arrow_type, mask=nulls(values))


def _maps(shape: ValueShape, values: list[Any], getter_of: GetterOf) -> pa.Array:
    assert shape.item is not None
    keys = pa.array(list(chain.from_iterable(value for value in values if value)), shape.arrow_type.key_type)
    children = list(chain.from_iterable(value.values() for value in values if value))
    items = array_of(shape.item, children, getter_of)
    return pa.MapArray.from_arrays(_offsets(values), keys, items, type=shape.arrow_type, mask=nulls(values))


def _offsets(values: list[Any]) -> pa.Array:
    return pa.array(list(accumulate([len(value) if value else 0 for value in values], initial=0)), pa.int32())


def _unions(shape: ValueShape, values: list[Any], getter_of: GetterOf) -> pa.Array:
    indexes = [-1 if value is None else member_index(shape, value) for value in values]
    arrays = []
    for member, (_, branch) in enumerate(shape.fields):
        if not branch.is_void:
            own = [value if index == member else None for value, index in zip(values, indexes, strict=True)]
            arrays.append(array_of(branch, own, getter_of))
    return pa.StructArray.from_arrays(arrays, fields=list(shape.arrow_type), mask=nulls(values))


def _bytes(shape: ValueShape, values: list[Any]) -> pa.Array:
    plain = [value[1] if value.__class__ is tuple else value for value in values]
    # Defaults of bytes are texts in Avro's JSON, a character a byte.
    plain = [value.encode("latin-1") if value.__class__ is str else value for value in plain]
    return decimals(plain, shape.arrow_type) if shape.logical else pa.array(plain, pa.binary())


def decimals(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """Unscaled numbers, big-endian (Avro), or Decimals, as decimal128."""
    unscaled = [None if value is None else _unscaled(value, arrow_type) for value in values]
    zero = bytes(_DECIMAL_SIZE_BYTES)
    data = b"".join(
        [zero if one is None else one.to_bytes(_DECIMAL_SIZE_BYTES, "little", signed=True) for one in unscaled]
    )
    valid = pa.array([one is not None for one in unscaled], pa.bool_())
    return pa.Array.from_buffers(arrow_type, len(values), [valid.buffers()[1], pa.py_buffer(data)])


def _unscaled(value: Any, arrow_type: pa.DataType) -> int:
    if isinstance(value, bytes):
        unscaled = int.from_bytes(value, "big", signed=True)
    else:
        value = Decimal(value)
        if not value.is_finite() or value.adjusted() + arrow_type.scale > _EXACT.prec:
            raise ValueError(f"{value} is no decimal of {arrow_type.precision} digits")
        scaled = _EXACT.scaleb(value, arrow_type.scale)
        unscaled = int(scaled)
        if unscaled != scaled:
            raise ValueError(f"{value} has more than {arrow_type.scale} digits behind the point")
    if abs(unscaled) >= 10**arrow_type.precision:
        raise ValueError(f"a decimal has more than {arrow_type.precision} digits")
    return unscaled
