"""Payloads of one schema version → the table's columns: what each type implements, and what they share."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
from magnetar.spark.values.api import VALUE_COLUMN, DecodedValues
from magnetar.spark.values.shapes import ValueShape


class Payloads(Protocol):
    """Payloads that were written with one schema version. No IO, so not asynchronous."""

    def fields(self) -> list[tuple[str, pa.DataType]]:
        """The columns, which are the table's whatever the version."""
        ...

    def decode(self, values: pa.Array, keys: pa.Array | None) -> DecodedValues:
        """Columns of the `fields`, as long as `values` (binary, null: no value); `keys` is null or binary, and only
        used by those that need keys. Raises nothing for what the payloads are."""
        ...


def fields_of(shape: ValueShape) -> list[tuple[str, ValueShape]]:
    """A record's fields are columns; anything else is one column."""
    return shape.shown if shape.kind == "record" else [(VALUE_COLUMN, shape)]


def types_of(fields: list[tuple[str, ValueShape]]) -> list[tuple[str, pa.DataType]]:
    """Fields as decoders tell them."""
    return [(name, shape.arrow_type) for name, shape in fields]


def null_columns(fields: list[tuple[str, pa.DataType]], length: int) -> list[pa.Array]:
    """Columns of nothing."""
    return [pa.nulls(length, arrow_type) for _, arrow_type in fields]


def payload_list(values: pa.Array) -> list[bytes | None]:
    """The payloads one by one. An empty one is no value: that is how clients without null_value delete a key."""
    payloads: list[bytes | None] = values.to_pylist()
    if b"" in payloads:
        return [payload or None for payload in payloads]
    return payloads
