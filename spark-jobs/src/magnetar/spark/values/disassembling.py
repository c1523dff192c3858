"""Arrow arrays → Python values as Avro's and JSON's writers take them, by a definition's shape."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from magnetar.spark.values.assembling import floor_divided
from magnetar.spark.values.shapes import ValueShape

TimesOf: TypeAlias = Callable[[ValueShape, pa.Array], list[Any]]
"""What times, dates and the like become, whose shape has a logical type."""


def numbers_of(shape: ValueShape, array: pa.Array) -> list[Any]:
    """Times in the logical type's unit, as Avro has them; what is finer is rounded down."""
    if pa.types.is_timestamp(shape.arrow_type) and pa.types.is_timestamp(array.type):
        numbers = array.cast(pa.timestamp("us", tz=array.type.tz)).view(pa.int64())
        if shape.logical.endswith("-millis"):
            numbers = floor_divided(numbers, 1000)
        elif shape.logical.endswith("-nanos"):
            numbers = pc.multiply_checked(numbers, 1000)
    elif pa.types.is_time64(array.type):
        numbers = floor_divided(array.view(pa.int64()), 1_000 if shape.logical == "time-micros" else 1_000_000)
    else:
        column = array.cast(shape.arrow_type)
        numbers = column.view(pa.int32()) if column.type.bit_width == 32 else column
    values: list[Any] = numbers.to_pylist()
    return values


def values_of(shape: ValueShape, array: pa.Array, times_of: TimesOf = numbers_of) -> list[Any]:
    """A value for each element: dicts, lists, numbers for times, Decimals. Raises Arrow's errors and ValueErrors.

    A value of a union with several types is a (name, value) tuple if its type has a name. Times within unions are
    numbers whatever `times_of` is: what they are there is told by the value alone."""
    if shape.kind == "null":
        return [None] * len(array)
    if shape.kind == "record":
        return _records(shape, array, times_of)
    if shape.kind in ("array", "map"):
        return _collections(shape, array, times_of)
    if shape.kind == "union":
        return _unions(shape, array)
    if shape.logical == "decimal":
        values: list[Any] = array.cast(shape.arrow_type).to_pylist()
        return values
    if shape.logical:
        return times_of(shape, array)
    plain: list[Any] = array.cast(shape.arrow_type).to_pylist()
    return plain


def columns_for(
    shape: ValueShape, names: list[str], columns: list[pa.Array], length: int, times_of: TimesOf = numbers_of
) -> list[dict[str, Any]]:
    """Records of the shape, of columns that have its fields' names; a field without a column is left out."""
    by_name = dict(zip(names, columns, strict=True))
    found = [(name, field) for name, field in shape.fields if name in by_name]
    if not found:
        return [{} for _ in range(length)]
    keys = [name for name, _ in found]
    made = [values_of(field, by_name[name], times_of) for name, field in found]
    return [dict(zip(keys, row, strict=True)) for row in zip(*made, strict=True)]


def _records(shape: ValueShape, array: pa.Array, times_of: TimesOf) -> list[Any]:
    names = [field.name for field in array.type]
    rows = columns_for(shape, names, [array.field(name) for name in names], len(array), times_of)
    if not array.null_count:
        return rows
    return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _collections(shape: ValueShape, array: pa.Array, times_of: TimesOf) -> list[Any]:
    assert shape.item is not None
    offsets = array.offsets.to_pylist()
    first, count = offsets[0], offsets[-1] - offsets[0]
    spans = [(start - first, end - first) for start, end in pairwise(offsets)]
    valid = array.is_valid().to_pylist()
    if shape.kind == "array":
        items = values_of(shape.item, array.values.slice(first, count), times_of)
        return [items[start:end] if real else None for (start, end), real in zip(spans, valid, strict=True)]
    keys = array.keys.slice(first, count).cast(pa.string()).to_pylist()
    items = values_of(shape.item, array.items.slice(first, count), times_of)
    return [
        dict(zip(keys[start:end], items[start:end], strict=True)) if real else None
        for (start, end), real in zip(spans, valid, strict=True)
    ]


def _unions(shape: ValueShape, array: pa.Array) -> list[Any]:
    rows: list[Any] = [None] * len(array)
    # What stands below a null means nothing.
    valid = array.is_valid().to_pylist()
    for name, branch in shape.shown:
        for row, value in enumerate(values_of(branch, array.field(name))):
            if value is not None and valid[row]:
                if rows[row] is not None:
                    raise ValueError(f"more than one member of a union is set, {name} among them")
                rows[row] = (branch.name, value) if branch.name else value
    return rows
