"""Dates and timestamps as JSON has them: ISO 8601, in UTC.

That is what Jackson reads into Java's LocalDate and Instant, what Spark's from_json reads, and what StreamNative's
connector does (JSONParser; that is for timestamps, of which it takes numbers for seconds: it reads no dates at all).
What it shows as numbers stays the number that Avro would have: local timestamps, nanoseconds, times of day.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from magnetar.spark.values.assembling import floor_divided
from magnetar.spark.values.disassembling import numbers_of
from magnetar.spark.values.shapes import Shape

TEXTS: Final = ("date", "timestamp-millis", "timestamp-micros")
"""The logical types whose values are texts."""

_YEARS_US: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_YEARS_DAYS: Final = (-719_162, 2_932_896)
"""The first and the last of the years 1 to 9999, which have four digits."""


def texts_of(shape: Shape, array: pa.Array) -> list[Any]:
    """`TimesOf` of JSON. Raises a ValueError for times that have no such text."""
    if shape.logical not in TEXTS:
        return numbers_of(shape, array)
    column = array.cast(shape.arrow_type) if not pa.types.is_timestamp(array.type) else array
    if shape.logical == "date":
        _check(column.view(pa.int32()), _YEARS_DAYS)
        days: list[Any] = column.cast(pa.string()).to_pylist()
        return days
    numbers = column.cast(pa.timestamp("us", tz=column.type.tz)).view(pa.int64())
    _check(numbers, _YEARS_US)
    millis = floor_divided(numbers, 1000)
    texts = millis.view(pa.timestamp("ms")).cast(pa.string())
    if shape.logical == "timestamp-micros":
        # Three digits where they are enough: the connector's pattern has them, six take it another attempt.
        whole = pc.equal(pc.multiply(millis, 1000), numbers)
        texts = pc.if_else(whole, texts, numbers.view(pa.timestamp("us")).cast(pa.string()))
    found: list[Any] = pc.binary_join_element_wise(pc.replace_substring(texts, " ", "T"), "Z", "").to_pylist()
    return found


def _check(numbers: pa.Array, within: tuple[int, int]) -> None:
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and not within[0] <= bounds["min"] <= bounds["max"] <= within[1]:
        raise ValueError("a time outside of the years 1 to 9999")
