"""Avro payloads: written with their own version's schema, read as the table's by Avro's schema resolution."""

from __future__ import annotations

import io
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from magnetar.spark.errors import SchemaUnreadable
from magnetar.spark.values.api import DecodedValues
from magnetar.spark.values.assembling import VALUE_ERRORS, columns_of, reason_of, without_rows
from magnetar.spark.values.avro_columns import Compiler, NotInStep
from magnetar.spark.values.avro_cursor import AvroCursor
from magnetar.spark.values.payloads import fields_of, payload_list, types_of
from magnetar.spark.values.shapes import AvroDefinition, ValueShape

IN_STEP_ROWS_MIN: Final = 32
"""Below, a record at a time is as fast."""

AVRO_ERRORS: Final = (
    *VALUE_ERRORS,
    EOFError,
    IndexError,
    KeyError,
    RecursionError,
    MemoryError,
    fastavro.schema.SchemaParseException,
    fastavro.read.SchemaResolutionError,
)
"""What fastavro raises for bytes and schemas that it cannot read; MemoryError for a length out of all reason."""


class AvroPayloads:
    """Decodes payloads of one writer's version. Bytes behind the record are ignored, as Java's client does."""

    def __init__(self, table: AvroDefinition, writer: AvroDefinition) -> None:
        """Raises `SchemaUnreadable` for an unusable schema of the writer; what cannot be resolved shows by row."""
        self._shape = table.shape
        self._fields = fields_of(table.shape)
        self._named = table.shape.has_unions
        if _may_be_endless(writer.shape):
            raise SchemaUnreadable(
                "the elements of a list take no bytes, so that a payload may claim any number of them"
            )
        try:
            reader_schema = dict(table.plain) if isinstance(table.plain, dict) else table.plain
            writer_schema = writer.plain
            if isinstance(writer_schema, dict) and isinstance(reader_schema, dict) and "name" in reader_schema:
                # Java does not compare the names of the outermost records.
                writer_schema = {**writer_schema, "name": reader_schema["name"]}
            self._writer = fastavro.parse_schema(writer_schema)
            self._reader = None if writer_schema == reader_schema else fastavro.parse_schema(reader_schema)
        except AVRO_ERRORS as error:
            raise SchemaUnreadable(f"the schema is no Avro schema: {reason_of(error)}") from error

        try:
            self._in_step: Compiler | None = Compiler(table, writer)
        except NotInStep:
            self._in_step = None

    def fields(self) -> list[tuple[str, pa.DataType]]:
        """The columns of the table's version, whatever the writer's is."""
        return types_of(self._fields)

    def decode(self, values: pa.Array, keys: pa.Array | None) -> DecodedValues:
        """Columns of the `fields`, a row for each payload; what is no Avro of the writer's schema is a bad row."""
        if self._in_step is None or len(values) < IN_STEP_ROWS_MIN:
            return self._decode_records(values)
        try:
            return self._decode_in_step(self._in_step, values)
        except (NotInStep, *VALUE_ERRORS):
            # Some value has no place in its column: a record at a time tells which one.
            return self._decode_records(values)

    def _decode_in_step(self, in_step: Compiler, values: pa.Array) -> DecodedValues:
        lengths = np.asarray(pc.fill_null(pc.binary_length(values), 0))
        present = lengths > 0
        whole = bool(present.all())
        taken = values if whole else values.filter(pa.array(present))
        cursor = AvroCursor(taken)
        columns = in_step.root.columns(cursor, np.arange(len(taken)))
        if not whole:
            places = pa.array(np.cumsum(present) - 1, mask=~present)
            columns = [column.take(places) for column in columns]
        if not cursor.bad.any():
            return DecodedValues(columns, {})
        rows = np.flatnonzero(present)[cursor.bad]
        again = self._decode_records(values.take(pa.array(rows)))
        places = np.arange(len(values))
        places[rows] = len(values) + np.arange(len(rows))
        chosen = pa.array(places)
        pairs = zip(columns, again.columns, strict=True)
        joined = [pa.concat_arrays([column, other]).take(chosen) for column, other in pairs]
        return DecodedValues(joined, {int(rows[row]): reason for row, reason in again.bad.items()})

    def _decode_records(self, values: pa.Array) -> DecodedValues:
        bad: dict[int, str] = {}
        rows: list[Any] = []
        read, reader_of = self._read, io.BytesIO
        for row, payload in enumerate(payload_list(values)):
            decoded = None
            if payload is not None:
                try:
                    decoded = read(reader_of(payload))
                except AVRO_ERRORS as error:
                    bad[row] = reason_of(error)
            rows.append(decoded)
        if self._shape.kind == "record":
            getters = [(shape, getter(self._shape, name)) for name, shape in self._fields]
        else:
            getters = [(self._shape, _itself)]
        columns, unfit = columns_of(getters, rows, getter)
        return without_rows(columns, {**unfit, **bad}, unfit)

    def _read(self, stream: io.BytesIO) -> Any:
        if not self._named:
            return fastavro.schemaless_reader(stream, self._writer, self._reader)
        read: Any = fastavro.schemaless_reader(stream, self._writer, self._reader, return_named_type=True)
        return read[1] if self._shape.kind == "record" and isinstance(read, tuple) else read


def _may_be_endless(shape: ValueShape) -> bool:
    if shape.item is not None:
        return (shape.kind == "array" and _takes_no_bytes(shape.item)) or _may_be_endless(shape.item)
    return any(_may_be_endless(field) for _, field in shape.fields)


def _takes_no_bytes(shape: ValueShape) -> bool:
    if shape.nullable or shape.kind == "union":
        return False  # Which branch it is has to be said.
    if shape.kind == "record":
        return all(_takes_no_bytes(field) for _, field in shape.fields)
    return shape.kind == "null" or (shape.kind == "fixed" and not shape.size_bytes)


def getter(shape: ValueShape, name: str) -> Callable[[Any], Any]:
    """Records are dicts."""
    return itemgetter(name)


def _itself(value: Any) -> Any:
    return value
