"""JSON payloads, by the Avro schema that is registered for them.

Fields are found by their names; what a payload lacks is null, what the schema lacks is ignored. bytes are base64, as
Java writes them; dates and timestamps are ISO texts (rounded to the microsecond), or the numbers that Avro would have.
Payloads are first read strictly into typed objects, which is fast; one that is not as the schema says is read again by
what Java's Jackson writes and accepts (see `json_lenient`) before it counts as bad.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from magnetar.spark.values.api import DecodedValues
from magnetar.spark.values.assembling import VALUE_ERRORS, columns_of, reason_of, without_rows
from magnetar.spark.values.json_lenient import LenientReader
from magnetar.spark.values.payloads import fields_of, payload_list, types_of
from magnetar.spark.values.shapes import AvroDefinition, ValueShape

_INT: Final = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_LONG: Final = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_PYTHON_TYPES: Final[dict[str, Any]] = {
    "boolean": bool,
    "int": _INT,
    "long": _LONG,
    "float": float,
    "double": float,
    "bytes": bytes,
    "fixed": bytes,
    "string": str,
    "enum": str,
}

_TIMES: Final[dict[str, Any]] = {
    "date": _INT | date,
    "timestamp-millis": _LONG | datetime,
    "timestamp-micros": _LONG | datetime,
    "local-timestamp-millis": _LONG | datetime,
    "local-timestamp-micros": _LONG | datetime,
}
"""Texts, as is written here, or the numbers that Avro would have."""

JSON_ERRORS: Final = (msgspec.MsgspecError, RecursionError, *VALUE_ERRORS)


class JsonPayloads:
    """Whatever version wrote them: JSON carries its names."""

    def __init__(self, definition: AvroDefinition) -> None:
        self._classes = RecordClasses()
        self._shape = definition.shape
        self._fields = fields_of(definition.shape)
        self._decode = msgspec.json.Decoder(self._classes.type_of(definition.shape)).decode
        self._lenient = LenientReader(self._classes.record_class)
        self._lenient_only = definition.shape.has_unions
        """Which branch a value is of takes more than a type check."""
        self._mostly_lenient = False

    def fields(self) -> list[tuple[str, pa.DataType]]:
        """The columns of the schema's record, or one column."""
        return types_of(self._fields)

    def decode(self, values: pa.Array, keys: pa.Array | None) -> DecodedValues:
        """Columns of the `fields`, a row for each payload; what is no JSON of the schema is a bad row."""
        rows, bad = self._rows(payload_list(values))
        if self._shape.kind == "record":
            getters = [(shape, self._classes.getter(self._shape, name)) for name, shape in self._fields]
        else:
            getters = [(self._shape, _itself)]
        columns, unfit = columns_of(getters, rows, self._classes.getter)
        return without_rows(columns, {**unfit, **bad}, unfit)

    def _rows(self, payloads: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
        decode = self._decode
        if self._lenient_only:
            bad: dict[int, str] = {}
            read = self._read_leniently
            return [None if one is None else read(one, row, "", bad) for row, one in enumerate(payloads)], bad
        if not self._mostly_lenient:
            try:
                return [None if payload is None else decode(payload) for payload in payloads], {}
            except JSON_ERRORS:
                pass  # Now one by one: which row it was is not told.
        return self._rows_one_by_one(payloads)

    def _rows_one_by_one(self, payloads: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
        bad: dict[int, str] = {}
        rows: list[Any] = []
        lenient = 0
        for row, payload in enumerate(payloads):
            decoded = None
            if payload is not None:
                try:
                    decoded = self._decode(payload)
                except JSON_ERRORS as strict_error:
                    lenient += 1
                    decoded = self._read_leniently(payload, row, reason_of(strict_error), bad)
            rows.append(decoded)
        # A topic of which most payloads need it is not read twice over.
        self._mostly_lenient = lenient * 2 > len(payloads)
        return rows, bad

    def _read_leniently(self, payload: bytes, row: int, reason: str, bad: dict[int, str]) -> Any:
        try:
            return self._lenient.read(self._shape, payload)
        except JSON_ERRORS as error:
            bad[row] = reason or reason_of(error)
            return None


class RecordClasses:
    """Classes of decoded records: made for each record type of a schema, so never pickled."""

    def __init__(self) -> None:
        self._classes: dict[int, type] = {}
        self._shapes: list[ValueShape] = []
        """Holds them, as classes are kept by identity."""

    def record_class(self, shape: ValueShape) -> type:
        """With an attribute for each shown field: names of fields are not always such of attributes."""
        fields = id(shape.fields)
        if fields not in self._classes:
            self._shapes.append(shape)
            own = [(f"f{index}", self.type_of(field) | None, None) for index, (_, field) in enumerate(shape.shown)]
            names = {f"f{index}": name for index, (name, _) in enumerate(shape.shown)}
            self._classes[fields] = msgspec.defstruct("Record", own, rename=names, gc=False)
        return self._classes[fields]

    def type_of(self, shape: ValueShape) -> Any:
        """The Python type that msgspec is to check for."""
        if shape.kind == "record":
            return self.record_class(shape)
        if shape.kind == "array":
            assert shape.item is not None
            return list[self.type_of(shape.item) | None]  # type: ignore[misc]  # A type made at run time.
        if shape.kind == "map":
            assert shape.item is not None
            return dict[str, self.type_of(shape.item) | None]  # type: ignore[misc]
        if shape.kind in ("union", "null"):
            return Any
        if shape.logical == "decimal":
            return Decimal
        return _TIMES.get(shape.logical) or _PYTHON_TYPES[shape.kind]

    def getter(self, shape: ValueShape, name: str) -> Callable[[Any], Any]:
        """Gets a shown field of a record."""
        if shape.kind == "union":
            return _itself
        names = [shown for shown, _ in shape.shown]
        return attrgetter(f"f{names.index(name)}")


def _itself(value: Any) -> Any:
    return value
