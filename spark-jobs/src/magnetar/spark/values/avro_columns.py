"""Avro payloads → columns in step (see `avro_cursor`): some ten times as fast as a record at a time.

For schemas without unions of several types. Whoever is marked bad here is read again by fastavro, which tells why."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from magnetar.spark.values.assembling import array_of, decimals, number_column
from magnetar.spark.values.avro_cursor import AvroCursor, Rows
from magnetar.spark.values.shapes import AvroDefinition, ValueShape

STEPS_FREE: Final = 64
ITEMS_FOR_A_STEP: Final = 10
"""Items of lists are read in step as well, the first of all rows, then the second: that pays while rows have about as
many. A list that is very much longer than the others is left to the reading by records."""


class NotInStep(Exception):
    """Schemas, or payloads, that are not read in step."""


class ColumnReader(Protocol):
    """Reads one part of the schema."""

    def read(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        """A value of each row, in the reader's Arrow type."""
        ...


class Numbers:
    """int and long, and the types of times upon them."""

    def __init__(self, shape: ValueShape, narrow: bool) -> None:
        self._shape = shape
        self._narrow = narrow

    def read(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        numbers = cursor.longs(rows)
        if self._narrow:
            outside = numbers != numbers.astype(np.int32)
            if outside.any():
                cursor.mark(rows[outside])
                numbers = np.where(outside, 0, numbers)
        if self._shape.logical:
            return number_column(self._shape, pa.array(numbers))
        return pa.array(numbers.astype(self._shape.arrow_type.to_pandas_dtype()), self._shape.arrow_type)


class Plain:
    """float, double and boolean."""

    def __init__(self, shape: ValueShape, writer_kind: str) -> None:
        self._type = shape.arrow_type
        self._kind = writer_kind

    def read(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        if self._kind == "float":
            return pa.array(cursor.floats(rows)).cast(self._type)
        return pa.array(cursor.doubles(rows) if self._kind == "double" else cursor.booleans(rows))


class Bytes:
    """bytes, fixed and string: checked to be a text where the reader has one."""

    def __init__(self, shape: ValueShape, size_bytes: int) -> None:
        self._shape = shape
        self._size_bytes = size_bytes

    def read(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        lengths = np.full(len(rows), self._size_bytes) if self._size_bytes else cursor.longs(rows)
        parts = cursor.sized(rows, lengths)
        if self._shape.logical:
            return decimals(parts.to_pylist(), self._shape.arrow_type)
        return parts.cast(self._shape.arrow_type)


class Symbols:
    """enum; a symbol that the reader does not have is its default, or bad."""

    def __init__(self, symbols: list[str | None]) -> None:
        self._symbols = pa.array(symbols, pa.string())
        self._known = np.array([symbol is not None for symbol in symbols] + [False])

    def read(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        indexes = cursor.longs(rows)
        count = len(self._symbols)
        indexes = np.where((indexes < 0) | (indexes >= count), count, indexes)
        unknown = ~self._known[indexes]
        cursor.mark(rows[unknown])
        return self._symbols.take(pa.array(indexes, mask=unknown))


class Optional:
    """A union of null and one other type."""

    def __init__(self, node: ColumnReader, index: int, count: int, arrow_type: pa.DataType) -> None:
        self._node = node
        self._index = index
        self._count = count
        self._type = arrow_type

    def read(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        branches = cursor.longs(rows)
        valid = branches == self._index
        if valid.all():
            return self._node.read(cursor, rows)
        outside = (branches < 0) | (branches >= self._count)
        cursor.mark(rows[outside])
        if not valid.any():
            return pa.nulls(len(rows), self._type)
        present = self._node.read(cursor, rows[valid])
        return present.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


class Nothing:
    """Avro's type null: a column of nulls, for which no bytes are read."""

    def __init__(self, arrow_type: pa.DataType) -> None:
        self._type = arrow_type

    def read(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        return pa.nulls(len(rows), self._type)


class Record:
    """A record: the writer's fields in their order, of which the reader may lack some, and have others."""

    def __init__(self, shape: ValueShape, nodes: list[tuple[str, ColumnReader]], defaults: dict[str, pa.Array]) -> None:
        self.shape = shape
        self._nodes = nodes
        """Reader's name ("" to pass over it) and how to read it."""
        self._defaults = defaults

    def columns(self, cursor: AvroCursor, rows: Rows) -> list[pa.Array]:
        """The shown fields."""
        made = {name: node.read(cursor, rows) for name, node in self._nodes}
        zeros = pa.array(np.zeros(len(rows), np.int64))
        return [made[name] if name in made else self._defaults[name].take(zeros) for name, _ in self.shape.shown]

    def read(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        columns = self.columns(cursor, rows)
        if not columns:
            return pa.nulls(len(rows), self.shape.arrow_type)
        return pa.StructArray.from_arrays(columns, fields=list(self.shape.arrow_type))


class Collection:
    """An array or a map: blocks of items, each after its count."""

    def __init__(self, arrow_type: pa.DataType, item: ColumnReader) -> None:
        self._type = arrow_type
        self._key = Bytes(ValueShape("string", pa.string()), 0) if pa.types.is_map(arrow_type) else None
        self._item = item

    def read(self, cursor: AvroCursor, rows: Rows) -> pa.Array:
        totals = np.zeros(len(rows), np.int64)
        active = np.arange(len(rows))
        parts: list[tuple[pa.Array | None, pa.Array]] = []
        owners: list[Rows] = []
        steps = 0
        while len(active):
            counts = self._counts(cursor, rows[active])
            active, counts = active[counts > 0], counts[counts > 0]
            steps += int(counts.max(initial=0))
            if steps > STEPS_FREE + (int(totals.sum()) + int(counts.sum())) // ITEMS_FOR_A_STEP:
                raise NotInStep("lists of very different lengths")
            for index in range(int(counts.max(initial=0))):
                owner = active[counts > index]
                at = rows[owner]
                parts.append((None if self._key is None else self._key.read(cursor, at), self._item.read(cursor, at)))
                owners.append(owner)
            totals[active] += counts
        return self._joined(totals, parts, owners)

    def _counts(self, cursor: AvroCursor, rows: Rows) -> Rows:
        counts = cursor.longs(rows)
        negative = counts < 0
        if negative.any():
            # A block that tells its size too, for those who pass over it.
            cursor.longs(rows[negative])
            counts = np.abs(counts)
        # An item has a byte at least.
        outside = (counts > cursor.remaining(rows)) | (counts < 0)
        cursor.mark(rows[outside])
        return np.where(outside | cursor.bad[rows], 0, counts)

    def _joined(self, totals: Rows, parts: list[tuple[pa.Array | None, pa.Array]], owners: list[Rows]) -> pa.Array:
        offsets = pa.array(np.concatenate([[0], np.cumsum(totals)]).astype(np.int32))
        item_type = self._type.value_type if self._key is None else self._type.item_type
        if not parts:
            items, keys = pa.nulls(0, item_type), pa.nulls(0, pa.string())
        else:
            # Rows' items lie in steps; a stable sort by row keeps each row's own order.
            order = pa.array(np.argsort(np.concatenate(owners), kind="stable"))
            items = pa.concat_arrays([item for _, item in parts]).take(order)
            keys = pa.concat_arrays([key for key, _ in parts]).take(order) if self._key is not None else None
        if self._key is None:
            return pa.ListArray.from_arrays(offsets, items, type=self._type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=self._type)


class Compiler:
    """Makes nodes of a writer's and a reader's schema. `NotInStep` for what is better left to fastavro."""

    def __init__(self, table: AvroDefinition, writer: AvroDefinition) -> None:
        self._reader_names = named_in(table.plain)
        self._writer_names = named_in(writer.plain)
        if table.shape.has_unions or writer.shape.has_unions or table.shape.kind != "record":
            raise NotInStep("unions, or no record")
        root = self._record(writer.shape, writer.plain, table.shape, table.plain)
        if writer.shape.nullable or table.shape.nullable:
            raise NotInStep("a record that may be null")
        self.root = root

    def _node(self, writer: ValueShape, writer_plain: Any, reader: ValueShape, reader_plain: Any) -> ColumnReader:
        if isinstance(writer_plain, list):
            branches = [index for index, branch in enumerate(writer_plain) if branch != "null"]
            if not branches:
                raise NotInStep("a union of nothing")
            if len(branches) > 1 or (not reader.nullable and len(writer_plain) > 1):
                raise NotInStep("a union")
            inner = self._node(writer, writer_plain[branches[0]], reader, reader_plain)
            return Optional(inner, branches[0], len(writer_plain), reader.arrow_type)
        if isinstance(reader_plain, list):
            others = [branch for branch in reader_plain if branch != "null"]
            if len(others) != 1:
                raise NotInStep("a union")
            reader_plain = others[0]
        if writer.kind == "null":
            if reader.kind != "null" and not reader.nullable:
                raise NotInStep("null that is none for the reader")
            return Nothing(reader.arrow_type)
        if writer.kind == "record":
            if writer.name != reader.name:
                raise NotInStep("a record of another name")
            return self._record(writer, writer_plain, reader, reader_plain)
        if writer.kind in ("array", "map"):
            return self._collection(writer, writer_plain, reader, reader_plain)
        if writer.kind == "enum":
            return self._symbols(writer, writer_plain, reader, reader_plain)
        return _leaf(writer, reader)

    def _record(self, writer: ValueShape, writer_plain: Any, reader: ValueShape, reader_plain: Any) -> Record:
        if reader.kind != "record":
            raise NotInStep("a record that is none for the reader")
        theirs, ours = self._writer_names[writer.name]["fields"], self._reader_names[reader.name]["fields"]
        plain_of = {field["name"]: field for field in ours}
        shape_of = dict(reader.fields)
        name_of = {alias: field["name"] for field in ours for alias in field.get("aliases", ())}
        name_of.update({name: name for name in plain_of})
        nodes: list[tuple[str, ColumnReader]] = []
        for (name, field), plain in zip(writer.fields, theirs, strict=True):
            own = name_of.get(name)
            if own is None:
                nodes.append((f"\0{name}", self._passed(field, plain["type"])))
            else:
                nodes.append((own, self._node(field, plain["type"], shape_of[own], plain_of[own]["type"])))
        read = {name for name, _ in nodes}
        defaults = {}
        for name, field in reader.shown:
            if name not in read:
                if "default" not in plain_of[name]:
                    raise NotInStep("a field without default")
                defaults[name] = array_of(field, [plain_of[name]["default"]], _item_getter)
        return Record(reader, nodes, defaults)

    def _passed(self, writer: ValueShape, plain: Any) -> ColumnReader:
        """Read as it was written, and dropped."""
        readers, self._reader_names = self._reader_names, self._writer_names
        try:
            return self._node(writer, plain, writer, plain)
        finally:
            self._reader_names = readers

    def _collection(self, writer: ValueShape, writer_plain: Any, reader: ValueShape, reader_plain: Any) -> ColumnReader:
        if writer.kind != reader.kind or writer.item is None or reader.item is None:
            raise NotInStep("a collection that is none for the reader")
        if writer.item.is_void or reader.item.is_void or _may_be_empty(writer.item):
            raise NotInStep("items without bytes")
        key = "items" if writer.kind == "array" else "values"
        item = self._node(writer.item, writer_plain[key], reader.item, reader_plain[key])
        return Collection(reader.arrow_type, item)

    def _symbols(self, writer: ValueShape, writer_plain: Any, reader: ValueShape, reader_plain: Any) -> ColumnReader:
        if reader.kind != "enum" or writer.name != reader.name:
            raise NotInStep("an enum that is none for the reader")
        default = self._reader_names[reader.name].get("default")
        return Symbols([symbol if symbol in reader.symbols else default for symbol in writer.symbols])


_PROMOTIONS: Final = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"), ("float", "double"),
    ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip


def _leaf(writer: ValueShape, reader: ValueShape) -> ColumnReader:
    if writer.kind != reader.kind and (writer.kind, reader.kind) not in _PROMOTIONS:
        raise NotInStep("types that do not resolve")
    if writer.kind in ("int", "long"):
        return Numbers(reader, writer.kind == "int")
    if writer.kind in ("float", "double", "boolean"):
        return Plain(reader, writer.kind)
    if writer.kind == "fixed" and (not 0 < writer.size_bytes == reader.size_bytes or writer.name != reader.name):
        raise NotInStep("types that do not resolve")
    return Bytes(reader, writer.size_bytes)


def _may_be_empty(shape: ValueShape) -> bool:
    return (shape.kind == "fixed" and not shape.size_bytes) or shape.kind == "null"


def named_in(plain: Any) -> dict[str, Any]:
    """The definitions of named types, by their names, which are plain ones here."""
    if isinstance(plain, list):
        return {name: one for branch in plain for name, one in named_in(branch).items()}
    if not isinstance(plain, dict):
        return {}
    found = {plain["name"]: plain} if "name" in plain else {}
    for key in ("items", "values"):
        found.update(named_in(plain.get(key)))
    for field in plain.get("fields", ()):
        found.update(named_in(field["type"]))
    return found


def _item_getter(shape: ValueShape, name: str) -> Any:
    return lambda record: record[name]
