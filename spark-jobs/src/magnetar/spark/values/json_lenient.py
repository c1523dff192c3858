"""JSON that is not as its schema says, but as Java's clients write it or would read it.

Jackson writes an Instant as seconds with a fraction, a LocalDate as [year, month, day], a LocalTime and LocalDateTime
alike, BigDecimals as numbers where the schema has a string, NaN as a text; and it reads numbers out of texts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
from magnetar.spark.values.assembling import member_index
from magnetar.spark.values.shapes import ValueShape

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NANOS: Final = {"millis": 1_000_000, "micros": 1_000, "nanos": 1}
_BOOLEANS: Final = {"true": True, "false": False, "True": True, "False": False}
_RANGES: Final = {"int": 2**31, "long": 2**63}
_DIGITS_MAX: Final = 400
"""Characters of a number's exponent: a double has 308 digits before its point."""


class LenientReader:
    """Reads a payload to the same objects as the strict reading."""

    def __init__(self, record_class: Callable[[ValueShape], type]) -> None:
        self._record_class = record_class
        self._decoder = msgspec.json.Decoder(float_hook=Decimal)

    def read(self, shape: ValueShape, payload: bytes) -> Any:
        """Raises a ValueError, a TypeError or one of msgspec's errors."""
        try:
            document = self._decoder.decode(payload)
        except msgspec.DecodeError:
            document = json.loads(payload, parse_float=Decimal)  # Knows NaN without quotes.
        return self._converted(shape, document)

    def _converted(self, shape: ValueShape, value: Any) -> Any:
        if value is None or shape.kind == "null":
            return None
        if shape.kind == "record":
            return self._record(shape, value)
        if shape.kind == "array":
            assert shape.item is not None
            _check(isinstance(value, list), value, "an array")
            return [self._converted(shape.item, one) for one in value]
        if shape.kind == "map":
            assert shape.item is not None
            _check(isinstance(value, dict), value, "a map")
            return {key: self._converted(shape.item, one) for key, one in value.items()}
        if shape.kind == "union":
            return self._of_union(shape, value)
        return _leaf(shape, value)

    def _record(self, shape: ValueShape, value: Any) -> Any:
        _check(isinstance(value, dict), value, "a record")
        return self._record_class(shape)(*[self._converted(field, value.get(name)) for name, field in shape.shown])

    def _of_union(self, shape: ValueShape, value: Any) -> Any:
        plain = float(value) if isinstance(value, Decimal) else value
        _, branch = shape.fields[member_index(shape, plain)]
        converted = self._converted(branch, value)
        return (branch.name, converted) if branch.name else converted


def _leaf(shape: ValueShape, value: Any) -> Any:
    if shape.logical == "decimal":
        return Decimal(value) if isinstance(value, str | int | Decimal) else _refuse(value, "a decimal")
    if shape.logical and not isinstance(value, int):
        return _checked(shape, _time(shape, value))
    if shape.kind in ("int", "long"):
        return _checked(shape, _whole(value))
    if shape.kind in ("float", "double"):
        return float(value) if not isinstance(value, bool | list | dict) else _refuse(value, "a number")
    if shape.kind == "boolean":
        return value if isinstance(value, bool) else _BOOLEANS.get(value, value) if value else _refuse(value, "a bool")
    if shape.kind in ("string", "enum"):
        return _text(value)
    return base64.b64decode(value, validate=True)


def _whole(value: Any) -> int:
    if isinstance(value, bool | list | dict):
        _refuse(value, "an int")
    number = Decimal(value)
    if not number.is_finite() or number.adjusted() > _DIGITS_MAX or number != int(number):
        _refuse(value, "an int")
    return int(number)


def _checked(shape: ValueShape, number: int) -> int:
    limit = _RANGES[shape.kind]
    if not -limit <= number < limit:
        raise ValueError(f"{number} is no {shape.kind}")
    return number


def _text(value: Any) -> str:
    """Other JSON than a text as it is spelled."""
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return str(value)
    return msgspec.json.encode(value).decode()


def _time(shape: ValueShape, value: Any) -> int:
    """A time as Java's classes are written, in the logical type's unit."""
    if shape.logical == "date":
        day = date(*value) if isinstance(value, list) else date.fromisoformat(value)
        return day.toordinal() - _EPOCH_DAY
    unit = _NANOS[shape.logical.rpartition("-")[2]]
    if isinstance(value, Decimal):
        return int(value * 1_000_000_000) // unit
    if shape.logical.startswith("time-"):
        return _nanos_of_day(value) // unit
    if isinstance(value, list):
        days = date(*value[:3]).toordinal() - _EPOCH_DAY
        return (days * 86_400_000_000_000 + _nanos_of_day(value[3:])) // unit
    moment = datetime.fromisoformat(value)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND * 1000 // unit


def _nanos_of_day(value: Any) -> int:
    if isinstance(value, str):
        parsed = time.fromisoformat(value)
        parts = [parsed.hour, parsed.minute, parsed.second, parsed.microsecond * 1000]
    else:
        parts = (value + [0, 0, 0, 0])[:4]
    return ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1_000_000_000 + int(parts[3])


def _check(holds: bool, value: Any, wanted: str) -> None:
    if not holds:
        _refuse(value, wanted)


def _refuse(value: Any, wanted: str) -> Any:
    raise ValueError(f"{type(value).__name__} where the schema has {wanted}")
