"""Avro records whose schema and bytes both come from somebody else, read within bounds.

For small records that are not trusted: whatever schema and bytes there are, reading ends, takes memory in proportion
to the bytes, and goes no deeper than `DEPTH_MAX`. Facts: Avro 1.11 specification, "Schema Declaration" and "Binary
Encoding". Logical types are left as the numbers and bytes that they are written as.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from typing import Any, Final

from magnetar.core.errors import PeerError
from magnetar.core.limits import KIB

SCHEMA_BYTES_MAX: Final = 64 * KIB
"""Bytes of a schema's text. That of Pulsar's events has 10 KiB."""

DEPTH_MAX: Final = 32
"""Types within types. Pulsar's events are 11 deep, as each union counts."""

TYPES_MAX: Final = 2_000
"""Types that a schema names or defines. Pulsar's events have 300."""

VALUES_MAX: Final = 100_000
"""Values in one record: a tenth of a second of reading at most. An event of Pulsar has about a hundred, and a few for
each cluster, subscription and shadow topic that it names."""
VALUES_PER_BYTE: Final = 4
"""So that reading takes time in proportion to the bytes: values of no bytes are those of records and nulls."""
VALUES_MIN: Final = 100
"""What a record of few bytes may have for all that."""

VARINT_BYTES_MAX: Final = 10
LONG_MAX: Final = (1 << 63) - 1
FIXED_BYTES_MAX: Final = (1 << 31) - 1

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


class BadAvro(PeerError):
    """A schema that cannot be read by, or bytes that were not written by it."""


class AvroInput:
    """The bytes of one record, and how much of it was read."""

    __slots__ = ("_values", "at", "data", "end")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)
        self._values = min(VALUES_MAX, VALUES_MIN + VALUES_PER_BYTE * self.end)

    def number(self) -> int:
        """An `int` or `long`."""
        at = self.at
        if at < self.end and (byte := self.data[at]) < 0x80:
            self.at = at + 1
            return (byte >> 1) ^ -(byte & 1)
        value = shift = 0
        for byte in self.data[at : at + VARINT_BYTES_MAX]:
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at
                value = (value >> 1) ^ -(value & 1)
                if not -LONG_MAX - 1 <= value <= LONG_MAX:
                    raise BadAvro("a number of more than 64 bits")
                return value
            shift += 7
        raise BadAvro("a number without an end")

    def take(self, size: int) -> bytes:
        """So many bytes."""
        start = self.at
        if not 0 <= size <= self.end - start:
            raise BadAvro(f"{size} bytes wanted of {self.end - start}")
        self.at = start + size
        return self.data[start : self.at]

    def block(self, bytes_min: int) -> int:
        """How many elements follow, of so many bytes each at least; 0: no more."""
        count = self.number()
        if count < 0:
            # Their size in bytes is for those who pass over them.
            self.number()
            count = -count
        if count * bytes_min > self.end - self.at:
            raise BadAvro(f"{count} elements in {self.end - self.at} bytes")
        self.count(count)
        return count

    def count(self, values: int) -> None:
        """So many values more."""
        self._values -= values
        if self._values < 0:
            raise BadAvro(f"more values than {self.end} bytes may have")


class AvroDecoder(ABC):
    """A type, which reads its values."""

    bytes_min: int = 0
    """What a value takes at least."""
    depth: int = 1
    """Types within this one, itself included, those that it only names as well."""

    @abstractmethod
    def read(self, source: AvroInput) -> Any:
        """The next value. Raises `BadAvro`."""


def read_record(schema: AvroDecoder, data: bytes) -> dict[str, Any]:
    """A record; bytes behind it are ignored, as Java's clients do. Raises `BadAvro`.

    Enums are their symbols, records and maps dicts, unions the value alone."""
    record = schema.read(AvroInput(data))
    if not isinstance(record, dict):
        raise BadAvro("no record")
    return record


def parse_record_schema(text: bytes) -> AvroDecoder:
    """The schema of a record. Raises `BadAvro`, also for what is right but cannot be read within bounds: types that
    contain themselves, or lists of elements that take no bytes."""
    if len(text) > SCHEMA_BYTES_MAX:
        raise BadAvro(f"a schema of {len(text)} bytes")
    try:
        node = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadAvro(f"a schema that is no JSON: {error}") from error
    schema = _Parser().parse(node, "", 0)
    if not isinstance(schema, _Record):
        raise BadAvro("a schema that is no record's")
    return schema


class _Null(AvroDecoder):
    def read(self, source: AvroInput) -> None:
        return None


class _Boolean(AvroDecoder):
    bytes_min = 1

    def read(self, source: AvroInput) -> bool:
        byte = source.take(1)[0]
        if byte > 1:
            raise BadAvro(f"{byte} is neither true nor false")
        return byte == 1


class _Number(AvroDecoder):
    bytes_min = 1

    def __init__(self, bits: int) -> None:
        self._max = (1 << bits - 1) - 1

    def read(self, source: AvroInput) -> int:
        value = source.number()
        if not ~self._max <= value <= self._max:
            raise BadAvro(f"{value} is too large for its type")
        return value


class _Floating(AvroDecoder):
    def __init__(self, layout: struct.Struct) -> None:
        self._layout = layout
        self.bytes_min = layout.size

    def read(self, source: AvroInput) -> float:
        value: float = self._layout.unpack(source.take(self.bytes_min))[0]
        return value


class _Bytes(AvroDecoder):
    bytes_min = 1

    def read(self, source: AvroInput) -> bytes:
        return source.take(source.number())


class _String(AvroDecoder):
    bytes_min = 1

    def read(self, source: AvroInput) -> str:
        try:
            return source.take(source.number()).decode()
        except UnicodeDecodeError as error:
            raise BadAvro(f"a text that is none: {error}") from error


class _Fixed(AvroDecoder):
    def __init__(self, size: int) -> None:
        self.bytes_min = size

    def read(self, source: AvroInput) -> bytes:
        return source.take(self.bytes_min)


class _Enum(AvroDecoder):
    bytes_min = 1

    def __init__(self, symbols: list[str]) -> None:
        self._symbols = symbols

    def read(self, source: AvroInput) -> str:
        index = source.number()
        if not 0 <= index < len(self._symbols):
            raise BadAvro(f"symbol {index} of {len(self._symbols)}")
        return self._symbols[index]


class _Union(AvroDecoder):
    bytes_min = 1

    def __init__(self, branches: list[AvroDecoder]) -> None:
        self._branches = branches
        self.depth = _depth_over(branches)

    def read(self, source: AvroInput) -> Any:
        index = source.number()
        if not 0 <= index < len(self._branches):
            raise BadAvro(f"branch {index} of {len(self._branches)}")
        return self._branches[index].read(source)


class _Record(AvroDecoder):
    def __init__(self, fields: list[tuple[str, AvroDecoder]]) -> None:
        self._fields = fields
        self.bytes_min = sum(kind.bytes_min for _, kind in fields)
        self.depth = _depth_over([kind for _, kind in fields])

    def read(self, source: AvroInput) -> dict[str, Any]:
        source.count(len(self._fields))
        return {name: kind.read(source) for name, kind in self._fields}


class _Array(AvroDecoder):
    bytes_min = 1

    def __init__(self, item: AvroDecoder) -> None:
        if not item.bytes_min:
            raise BadAvro("the elements of a list take no bytes, so that it may claim any number of them")
        self._item = item
        self.depth = _depth_over([item])

    def read(self, source: AvroInput) -> list[Any]:
        found: list[Any] = []
        while count := source.block(self._item.bytes_min):
            found += [self._item.read(source) for _ in range(count)]
        return found


class _Map(AvroDecoder):
    bytes_min = 1

    def __init__(self, value: AvroDecoder) -> None:
        self._key = _String()
        self._value = value
        self.depth = _depth_over([value])

    def read(self, source: AvroInput) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while count := source.block(1 + self._value.bytes_min):
            for _ in range(count):
                key = self._key.read(source)
                found[key] = self._value.read(source)
        return found


def _depth_over(inner: list[AvroDecoder]) -> int:
    depth = 1 + max((kind.depth for kind in inner), default=0)
    if depth > DEPTH_MAX:
        raise BadAvro(f"a schema deeper than {DEPTH_MAX} types")
    return depth


_PRIMITIVES: Final[dict[str, AvroDecoder]] = {
    "null": _Null(),
    "boolean": _Boolean(),
    "int": _Number(32),
    "long": _Number(64),
    "float": _Floating(_FLOAT),
    "double": _Floating(_DOUBLE),
    "bytes": _Bytes(),
    "string": _String(),
}


class _Parser:
    """Makes types of one schema's JSON."""

    def __init__(self) -> None:
        self._named: dict[str, AvroDecoder | None] = {}
        """By full names; None: not at its end yet."""
        self._types = 0

    def parse(self, node: object, namespace: str, depth: int) -> AvroDecoder:
        self._types += 1
        if self._types > TYPES_MAX:
            raise BadAvro(f"a schema of more than {TYPES_MAX} types")
        if depth > DEPTH_MAX:
            raise BadAvro(f"a schema deeper than {DEPTH_MAX} types")
        if isinstance(node, str):
            return _PRIMITIVES.get(node) or self._find(node, namespace)
        if isinstance(node, list):
            return _Union([self.parse(branch, namespace, depth + 1) for branch in node])
        if not isinstance(node, dict):
            raise BadAvro(f"a schema that is none: {str(node)[:50]}")
        match node.get("type"):
            case "record" | "error" | "enum" | "fixed":
                return self._define(node, namespace, depth)
            case "array":
                return _Array(self.parse(node.get("items"), namespace, depth + 1))
            case "map":
                return _Map(self.parse(node.get("values"), namespace, depth + 1))
            case kind:
                return self.parse(kind, namespace, depth + 1)

    def _find(self, name: str, namespace: str) -> AvroDecoder:
        full_name = name if "." in name or not namespace else f"{namespace}.{name}"
        if full_name not in self._named:
            full_name = name
        found = self._named.get(full_name)
        if found is None:
            known = "contains itself" if full_name in self._named else "is not defined"
            raise BadAvro(f"a schema whose type {name[:100]!r} {known}")
        return found

    def _define(self, node: dict[str, object], namespace: str, depth: int) -> AvroDecoder:
        name, given = node.get("name"), node.get("namespace")
        if not isinstance(name, str) or not name:
            raise BadAvro("a schema with a type that has no name")
        if "." in name:
            full_name, namespace = name, name.rpartition(".")[0]
        else:
            namespace = given if isinstance(given, str) else namespace
            full_name = f"{namespace}.{name}" if namespace else name
        if full_name in self._named:
            raise BadAvro(f"a schema that defines {full_name[:100]!r} twice")
        self._named[full_name] = None
        self._named[full_name] = found = self._make(node, namespace, depth)
        return found

    def _make(self, node: dict[str, object], namespace: str, depth: int) -> AvroDecoder:
        if node["type"] == "enum":
            symbols = _list(node, "symbols")
            return _Enum([str(symbol) for symbol in symbols])
        if node["type"] == "fixed":
            size = node.get("size")
            if type(size) is not int or not 0 <= size <= FIXED_BYTES_MAX:
                raise BadAvro("a schema with a fixed type of no size")
            return _Fixed(size)
        fields: dict[str, AvroDecoder] = {}
        for field in _list(node, "fields"):
            name = field.get("name") if isinstance(field, dict) else None
            if not isinstance(name, str) or name in fields:
                raise BadAvro("a schema with a field that has no name of its own")
            fields[name] = self.parse(field.get("type"), namespace, depth + 1)
        return _Record(list(fields.items()))


def _list(node: dict[str, object], key: str) -> list[Any]:
    found = node.get(key)
    if not isinstance(found, list):
        raise BadAvro(f"a schema with a type that has no {key}")
    return found
