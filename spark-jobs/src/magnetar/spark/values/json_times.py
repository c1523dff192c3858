"""Dates and timestamps as JSON has them: ISO 8601, in UTC; local ones without a zone.

Tried with Java's client 4.0.8: Jackson reads these into LocalDate, Instant and LocalDateTime. Of numbers it takes those
of instants for seconds, and refuses those of local times. StreamNative's connector 3.1.1.4, on Spark 3.1, reads
timestamps from texts to the microsecond and takes numbers for seconds too; dates it reads from neither (and the row is
wrong then, without an error), and local timestamps are bigint to it. Spark's from_json reads the texts.

Times of day and timestamps in nanoseconds, which are in no schema of Java's, stay the numbers that Avro would have.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from magnetar.spark.values.assembling import floor_divided
from magnetar.spark.values.disassembling import numbers_of
from magnetar.spark.values.shapes import ValueShape

TEXTS: Final = ("date", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
"""The logical types whose values are texts."""

_YEARS_US: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_YEARS_DAYS: Final = (-719_162, 2_932_896)
"""The first and the last of the years 1 to 9999, which have four digits."""


def texts_of(shape: ValueShape, array: pa.Array) -> list[Any]:
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
    if shape.logical.endswith("-micros"):
        # Three digits where they are enough: the connector's pattern has them, six take it another attempt.
        whole = pc.equal(pc.multiply(millis, 1000), numbers)
        texts = pc.if_else(whole, texts, numbers.view(pa.timestamp("us")).cast(pa.string()))
    zone = "Z" if shape.arrow_type.tz else ""
    found: list[Any] = pc.binary_join_element_wise(pc.replace_substring(texts, " ", "T"), zone, "").to_pylist()
    return found


def _check(numbers: pa.Array, within: tuple[int, int]) -> None:
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and not within[0] <= bounds["min"] <= bounds["max"] <= within[1]:
        raise ValueError("a time outside of the years 1 to 9999")
