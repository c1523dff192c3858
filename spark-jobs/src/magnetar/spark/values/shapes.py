"""Avro schemas as Arrow types: how a definition's values look as columns. No payload is touched here.

As StreamNative's connector and Spark's own Avro reader have it: dates and timestamps by their logical types, decimals,
enums as text, `int|long` as long, `float|double` as double, other unions as a struct `member0, member1, …` of which one
is set. `time-millis` and `time-micros` stay numbers, as not every Spark has a time of day. Records without fields,
and what is always null, have nothing to show and become no column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from magnetar.spark.errors import SchemaUnreadable

DECIMAL_PRECISION_MAX: Final = 38
DEPTH_MAX: Final = 100
"""Levels of nesting; Python's own limit of recursion is some 1000 calls, and a level takes a few."""
TYPES_MAX: Final = 20_000
"""Types in a schema, each counted wherever it stands: records that name others twice each would grow without end."""

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
LOCAL_TIMESTAMP: Final = pa.timestamp("us")

_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "timestamp-nanos"): TIMESTAMP,
    ("long", "local-timestamp-millis"): LOCAL_TIMESTAMP,
    ("long", "local-timestamp-micros"): LOCAL_TIMESTAMP,
    ("long", "local-timestamp-nanos"): LOCAL_TIMESTAMP,
    ("int", "time-millis"): pa.int32(),
    ("long", "time-micros"): pa.int64(),
}


@dataclass(slots=True, eq=False)
class ValueShape:
    """A type, or a part of one. Every value may be null, whatever the schema says: so may a message's."""

    kind: str
    """Avro's name of the type: null, boolean, int, …, array, map, record, enum, fixed, union."""
    arrow_type: pa.DataType
    logical: str = ""
    """The logical type, if it is one that the column's type shows, or `time-millis` and `time-micros`."""
    name: str = ""
    """The name of a record, enum or fixed, without its namespace unless two would be the same."""
    nullable: bool = False
    """The schema has a union with null here: encoders need to know."""
    fields: list[tuple[str, ValueShape]] = field(default_factory=list)
    """The fields of a record; the branches of a union other than null, as member0, …"""
    item: ValueShape | None = None
    """The items of an array or a map."""
    symbols: list[str] = field(default_factory=list)
    size_bytes: int = 0
    """The size of a fixed."""
    types: int = 1
    """How many it is made of, itself included."""

    @property
    def shown(self) -> list[tuple[str, ValueShape]]:
        """The fields that have something to show."""
        return [(name, shape) for name, shape in self.fields if not shape.is_void]

    @property
    def has_unions(self) -> bool:
        """There are values in it whose type the schema alone does not tell."""
        if self.kind == "union":
            return True
        if self.item is not None:
            return self.item.has_unions
        return any(field.has_unions for _, field in self.fields)

    @property
    def is_void(self) -> bool:
        """It can only be null, or a record of nothing."""
        if self.kind in ("array", "map"):
            return self.item is None or self.item.is_void
        return self.kind == "null" or (self.kind in ("record", "union") and not self.shown)


def struct_type(fields: Iterable[tuple[str, pa.DataType]]) -> pa.DataType:
    """The Arrow type that pyspark makes of a nullable StructType."""
    return pa.struct([pa.field(name, arrow_type, nullable=True) for name, arrow_type in fields])


def list_type(item: pa.DataType) -> pa.DataType:
    """The Arrow type that pyspark makes of an ArrayType."""
    return pa.list_(pa.field("element", item, nullable=True))


def map_type(value: pa.DataType, key: pa.DataType | None = None) -> pa.DataType:
    """The Arrow type that pyspark makes of a MapType; keys are strings unless it is said otherwise."""
    return pa.map_(
        pa.field("key", pa.string() if key is None else key, nullable=False), pa.field("value", value, nullable=True)
    )


class AvroDefinition:
    """A definition's shape, and the same schema in plain form: no logical types, no namespaces, nothing for people.

    Plain, because payloads are decoded to numbers and bytes first; and since Java's readers of other packages than the
    writers' find their records all the same, namespaces only count where they tell two types apart."""

    def __init__(self, data: bytes) -> None:
        """Raises `SchemaUnreadable` for what is no Avro schema, and for types that contain themselves."""
        try:
            node = json.loads(data)
            self._names = _short_names(_full_names(node, ""))
            self._shapes: dict[str, ValueShape] = {}
            self._open: set[str] = set()
            self.shape, self.plain = self._read(node, "", 0)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SchemaUnreadable(f"the schema is no Avro schema: {_reason(error)}") from error

    def _read(self, node: Any, namespace: str, depth: int) -> tuple[ValueShape, Any]:
        if depth > DEPTH_MAX:
            raise SchemaUnreadable(f"the schema has more than {DEPTH_MAX} levels")
        if isinstance(node, list):
            return self._union(node, namespace, depth)
        if isinstance(node, str):
            return self._by_name(node, namespace)
        kind = node["type"]
        if not isinstance(kind, str):
            return self._read(kind, namespace, depth + 1)
        if kind in ("array", "map"):
            return self._collection(kind, node, namespace, depth)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named(kind, node, namespace, depth)
        if kind in _PRIMITIVES:
            return _with_logical(kind, node), kind
        return self._by_name(kind, namespace)

    def _by_name(self, name: str, namespace: str) -> tuple[ValueShape, Any]:
        if name == "null":
            return ValueShape("null", pa.null()), "null"
        if name in _PRIMITIVES:
            return ValueShape(name, _PRIMITIVES[name]), name
        full_name = _full_name(name, namespace)
        if full_name not in self._names and name in self._names:
            full_name = name
        if full_name in self._open:
            raise SchemaUnreadable(f"the record {full_name} contains itself, which no columns of Spark can show")
        if full_name not in self._shapes:
            raise SchemaUnreadable(f"the schema names a type {name!r} that it does not define")
        return self._shapes[full_name], self._names[full_name]

    def _collection(self, kind: str, node: dict[str, Any], namespace: str, depth: int) -> tuple[ValueShape, Any]:
        key = "items" if kind == "array" else "values"
        item, plain = self._read(node[key], namespace, depth + 1)
        shown = list_type(item.arrow_type) if kind == "array" else map_type(item.arrow_type)
        return ValueShape(kind, shown, item=item, types=_types_of([item])), {"type": kind, key: plain}

    def _named(self, kind: str, node: dict[str, Any], namespace: str, depth: int) -> tuple[ValueShape, Any]:
        full_name = _full_name(node["name"], node.get("namespace", namespace))
        plain: dict[str, Any] = {"type": kind, "name": self._names[full_name]}
        if aliases := node.get("aliases"):
            plain["aliases"] = [alias.rpartition(".")[2] for alias in aliases]
        if kind == "enum":
            shape = ValueShape(kind, pa.string())
            shape.symbols = list(node["symbols"])
            plain["symbols"] = shape.symbols
            if "default" in node:
                plain["default"] = node["default"]
        elif kind == "fixed":
            shape = _with_logical(kind, node)
            shape.size_bytes = int(node["size"])
            plain["size"] = shape.size_bytes
        else:
            self._open.add(full_name)
            shape, plain["fields"] = self._fields(node["fields"], full_name.rpartition(".")[0], depth)
            plain["type"] = "record"
            self._open.discard(full_name)
        shape.name = self._names[full_name]
        self._shapes[full_name] = shape
        return shape, plain

    def _fields(
        self, nodes: list[dict[str, Any]], namespace: str, depth: int
    ) -> tuple[ValueShape, list[dict[str, Any]]]:
        fields: list[tuple[str, ValueShape]] = []
        plain_fields = []
        for node in nodes:
            field, plain = self._read(node["type"], namespace, depth + 1)
            fields.append((node["name"], field))
            plain_field = {"name": node["name"], "type": plain}
            plain_field.update({key: node[key] for key in ("default", "aliases") if key in node})
            plain_fields.append(plain_field)
        types = _types_of([field for _, field in fields])
        shown = struct_type([(name, field.arrow_type) for name, field in fields if not field.is_void])
        return ValueShape("record", shown, fields=fields, types=types), plain_fields

    def _union(self, nodes: list[Any], namespace: str, depth: int) -> tuple[ValueShape, Any]:
        read = [self._read(node, namespace, depth + 1) for node in nodes]
        plain = [one for _, one in read]
        branches = [shape for shape, _ in read if shape.kind != "null"]
        types = _types_of(branches)
        if not branches:
            return ValueShape("null", pa.null()), plain
        shape = _same_numbers(branches) or (copy(branches[0]) if len(branches) == 1 else _union_of(branches))
        shape.nullable = len(branches) < len(read)
        shape.types = types
        return shape, plain


def _types_of(inner: list[ValueShape]) -> int:
    types = 1 + sum(shape.types for shape in inner)
    if types > TYPES_MAX:
        raise SchemaUnreadable(f"the schema has more than {TYPES_MAX} types, each counted wherever it stands")
    return types


def _with_logical(kind: str, node: dict[str, Any]) -> ValueShape:
    logical = str(node.get("logicalType"))
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = int(node.get("precision", 0)), int(node.get("scale", 0))
        if 0 < precision <= DECIMAL_PRECISION_MAX and 0 <= scale <= precision:
            return ValueShape(kind, pa.decimal128(precision, scale), logical)
    elif (kind, logical) in _LOGICAL:
        return ValueShape(kind, _LOGICAL[kind, logical], logical)
    return ValueShape(kind, pa.binary() if kind == "fixed" else _PRIMITIVES[kind])


def _same_numbers(branches: list[ValueShape]) -> ValueShape | None:
    if any(branch.logical for branch in branches):
        return None
    kinds = {branch.kind for branch in branches}
    for narrow, wide in (("int", "long"), ("float", "double")):
        if kinds == {narrow, wide}:
            return ValueShape(wide, _PRIMITIVES[wide])
    return None


def _union_of(branches: list[ValueShape]) -> ValueShape:
    members = [(f"member{index}", branch) for index, branch in enumerate(branches)]
    shown = struct_type([(name, branch.arrow_type) for name, branch in members if not branch.is_void])
    return ValueShape("union", shown, fields=members)


def _full_name(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _full_names(node: Any, namespace: str, depth: int = 0) -> list[str]:
    """Names that the schema defines, in order."""
    if depth > 2 * DEPTH_MAX:
        raise SchemaUnreadable(f"the schema has more than {DEPTH_MAX} levels")
    if isinstance(node, list):
        return [name for one in node for name in _full_names(one, namespace, depth + 1)]
    if not isinstance(node, dict):
        return []
    names = []
    if "name" in node and node.get("type") in ("record", "error", "enum", "fixed"):
        full_name = _full_name(node["name"], node.get("namespace", namespace))
        namespace = full_name.rpartition(".")[0]
        names.append(full_name)
    parts = [node.get("type"), node.get("items"), node.get("values")]
    parts += [field.get("type") for field in node.get("fields", ())]
    return names + [name for part in parts for name in _full_names(part, namespace, depth + 1)]


def _short_names(full_names: list[str]) -> dict[str, str]:
    """Full name → name without namespace; where two would then be the same, the namespace is a part of the name."""
    last_parts = [name.rpartition(".")[2] for name in full_names]
    return {
        full: last if last_parts.count(last) == 1 else full.replace(".", "_")
        for full, last in zip(full_names, last_parts, strict=True)
    }


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
