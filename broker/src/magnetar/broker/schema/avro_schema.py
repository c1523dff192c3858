"""Avro schemas as objects: parsed as strictly, and as loosely, as the Avro 1.11 that Pulsar's brokers carry.

The `avro` package is not used because it refuses what Pulsar takes (a `$` in a namespace, letters outside ASCII) and
takes what Pulsar refuses; a client must not notice which broker it talks to. Defaults are not checked against their
types, as Pulsar does not either.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NoReturn

from magnetar.broker.schema.steps import StepBudget

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})

_RESERVED: Final = frozenset(
    {"type", "name", "namespace", "fields", "items", "size", "symbols", "values", "doc", "aliases"}
)
_ENUM_RESERVED: Final = _RESERVED | {"default"}
_FIELD_RESERVED: Final = frozenset({"type", "name", "default", "doc", "order", "aliases"})
_JSON_CLASSES: Final[dict[str, type | tuple[type, ...]]] = {
    "null": type(None),
    "boolean": bool,
    "int": (int, float),
    "long": (int, float),
    "float": (int, float),
    "double": (int, float),
    "bytes": str,
    "string": str,
    "fixed": str,
}
_FIXED_SIZE_MAX: Final = 0x7FFF_FFFF
_NAME_CHARACTERS_MAX: Final = 4_096
"""Characters of a full name. Names of Java's classes have some hundred at most."""
_NAMES_CHARACTERS_MAX: Final = 4_000_000
"""Of all full names in a schema together, as often as they occur: one namespace of 4 000 letters counts in each of ten
thousand names below it."""
_ORDERS: Final = frozenset({"ascending", "descending", "ignore"})


class AvroError(ValueError):
    """The text is no Avro schema; the message says where."""


class AvroField:
    """A field of a record."""

    __slots__ = ("aliases", "default", "has_default", "name", "order", "properties", "type")

    def __init__(self, name: str, field_type: AvroType, node: dict[str, object]) -> None:
        self.name = name
        self.type = field_type
        self.has_default = "default" in node
        self.default = _default_of(field_type, node)
        self.order = _order_of(node)
        self.aliases = _aliases_of(node)
        self.properties = {key: value for key, value in node.items() if key not in _FIELD_RESERVED}


class AvroType:
    """A schema or a part of one. Which attributes mean something depends on the kind."""

    __slots__ = ("aliases", "branches", "fields", "full_name", "item", "kind", "name", "properties", "size", "symbols")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.name = ""
        """The last part of the name of a record, error, enum or fixed."""
        self.full_name = ""
        self.aliases: list[str] = []
        """Full names that a reader of this type also answers to."""
        self.fields: list[AvroField] = []
        self.symbols: list[str] = []
        self.size = 0
        """How many bytes a `fixed` has."""
        self.item: AvroType | None = None
        """What an array or a map holds."""
        self.branches: list[AvroType] = []
        """The types of a union, in order."""
        self.properties: dict[str, object] = {}
        """What the specification does not know, logicalType among them."""


def parse(data: bytes) -> AvroType:
    """The schema that this text means. `AvroError` when it means none."""
    try:
        node = json.loads(data.decode("utf-8", "replace"), parse_constant=_refuse_constant)
        return _SchemaParser().parse(node, "")
    except RecursionError:
        raise AvroError("nested too deeply") from None
    except AvroError:
        raise
    except ValueError as error:
        raise AvroError(f"not JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise AvroError(f"{name} is no JSON value")


class _SchemaParser:
    """Turns JSON nodes into types; remembers the names defined so far."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._characters_left = _NAMES_CHARACTERS_MAX

    def parse(self, node: object, namespace: str) -> AvroType:
        if isinstance(node, str):
            return self._by_name(node, namespace)
        if isinstance(node, list):
            return self._union(node, namespace)
        if not isinstance(node, dict):
            raise AvroError(f"{node!r} is no schema")
        kind = node.get("type")
        if not isinstance(kind, str):
            raise AvroError(f"no type: {_short(node)}")
        if kind in PRIMITIVES:
            parsed = AvroType(kind)
        elif kind in NAMED:
            return self._definition(kind, node, namespace)
        elif kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            if node.get(key) is None:
                raise AvroError(f"no {key} type: {_short(node)}")
            parsed = AvroType(kind)
            parsed.item = self.parse(node[key], namespace)
        else:
            return self._by_name(kind, namespace)
        parsed.properties = _other(node, _RESERVED)
        return parsed

    def _by_name(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        found = self._named.get(self._qualified(name, namespace)) or self._named.get(name)
        if found is None:
            raise AvroError(f"undefined name: {name!r}")
        return found

    def _union(self, nodes: list[object], namespace: str) -> AvroType:
        union = AvroType("union")
        seen: set[str] = set()
        for node in nodes:
            branch = self.parse(node, namespace)
            if branch.kind == "union":
                raise AvroError("a union directly within a union")
            key = branch.full_name or branch.kind
            if key in seen:
                raise AvroError(f"{key} twice in a union")
            seen.add(key)
            union.branches.append(branch)
        return union

    def _definition(self, kind: str, node: dict[str, object], namespace: str) -> AvroType:
        name = node.get("name")
        if not isinstance(name, str):
            raise AvroError(f"no name: {_short(node)}")
        own_namespace = node.get("namespace")
        full_name = self._qualified(name, own_namespace if isinstance(own_namespace, str) else namespace)
        space, _, last = full_name.rpartition(".")
        _check_name(last)
        if full_name in PRIMITIVES or full_name in self._named:
            raise AvroError(f"{full_name} is defined already")
        defined = AvroType(kind)
        defined.name = last
        defined.full_name = full_name
        defined.aliases = [self._qualified(alias, space) for alias in _aliases_of(node)]
        defined.properties = _other(node, _ENUM_RESERVED if kind == "enum" else _RESERVED)
        if kind == "enum":
            defined.symbols = _symbols_of(node)
        elif kind == "fixed":
            defined.size = _size_of(node)
        self._named[full_name] = defined
        if kind in ("record", "error"):
            defined.fields = self._fields(node, space)
        return defined

    def _qualified(self, name: str, namespace: str) -> str:
        """The full name; `AvroError` when it is too long, or all together are."""
        full_name = _qualified(name, namespace)
        self._characters_left -= len(full_name)
        if len(full_name) > _NAME_CHARACTERS_MAX or self._characters_left < 0:
            raise AvroError(f"names are too long: {_short(full_name)}")
        return full_name

    def _fields(self, node: dict[str, object], namespace: str) -> list[AvroField]:
        field_nodes = node.get("fields")
        if not isinstance(field_nodes, list):
            raise AvroError(f"a record without fields: {_short(node)}")
        fields: list[AvroField] = []
        seen: set[str] = set()
        for field_node in field_nodes:
            if not isinstance(field_node, dict) or not isinstance(field_node.get("name"), str):
                raise AvroError(f"a field without a name: {_short(field_node)}")
            name = field_node["name"]
            _check_name(name)
            if name in seen:
                raise AvroError(f"field {name} twice in a record")
            seen.add(name)
            if field_node.get("type") is None:
                raise AvroError(f"field {name} has no type")
            fields.append(AvroField(name, self.parse(field_node["type"], namespace), field_node))
        return fields


def identity(root: AvroType) -> str:
    """A text that is the same for schemas which Pulsar takes for the same: documentation and aliases do not count."""
    return json.dumps(_described(root, set()), sort_keys=True)


def _described(part: AvroType, defined: set[str]) -> object:
    if part.full_name:
        if part.full_name in defined:
            return part.full_name
        defined.add(part.full_name)
    fields = [
        [field.name, _described(field.type, defined), field.has_default, field.default, field.order, field.properties]
        for field in part.fields
    ]
    return [
        part.kind,
        part.full_name,
        fields,
        part.symbols,
        part.size,
        None if part.item is None else _described(part.item, defined),
        [_described(branch, defined) for branch in part.branches],
        part.properties,
    ]


def default_fits(part: AvroType, value: object, steps: StepBudget) -> bool:
    """Whether a field of this type can have this JSON value as its default. As loosely as Avro, which takes every
    scalar for an empty array, map or record; a union's default is one of its first branch. `StepBudgetExceeded`."""
    steps.take(1 + len(part.fields) + len(part.symbols))
    kind = "record" if part.kind == "error" else part.kind
    if kind == "union":
        return bool(part.branches) and default_fits(part.branches[0], value, steps)
    if kind == "enum":
        return value in part.symbols
    if part.item is not None:
        entries = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        return all(default_fits(part.item, entry, steps) for entry in entries)
    if kind == "record":
        given = value if isinstance(value, dict) else {}
        return all(
            default_fits(field.type, given[field.name], steps) if field.name in given else field.has_default
            for field in part.fields
        )
    return isinstance(value, _JSON_CLASSES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _qualified(name: str, namespace: str) -> str:
    """The full name; one with a dot is full already (and with only a leading dot has no namespace)."""
    if "." in name:
        return name.removeprefix(".") if name.rindex(".") == 0 else name
    return f"{namespace}.{name}" if namespace else name


def _check_name(name: str) -> None:
    if not name or not (name[0].isalpha() or name[0] == "_"):
        raise AvroError(f"{name!r} is no name")
    if len(name) > _NAME_CHARACTERS_MAX:
        raise AvroError(f"names are too long: {_short(name)}")
    for character in name:
        if not (character.isalnum() or character == "_"):
            raise AvroError(f"{name!r} is no name")


def _aliases_of(node: dict[str, object]) -> list[str]:
    aliases = node.get("aliases", [])
    if not isinstance(aliases, list):
        raise AvroError("aliases are no array")
    texts = [alias for alias in aliases if isinstance(alias, str)]
    if len(texts) != len(aliases):
        raise AvroError("an alias is no text")
    return texts


def _order_of(node: dict[str, object]) -> str:
    order = node.get("order", "ascending")
    if not isinstance(order, str) or order.lower() not in _ORDERS:
        raise AvroError(f"{order!r} is no order of a field")
    return order.lower()


def _default_of(field_type: AvroType, node: dict[str, object]) -> object:
    """A text is a number where one is asked for."""
    default = node.get("default")
    if field_type.kind in ("float", "double") and isinstance(default, str):
        try:
            return float(default)
        except ValueError:
            raise AvroError(f"the default {_short(default)} is no number") from None
    return default


def _symbols_of(node: dict[str, object]) -> list[str]:
    symbols = node.get("symbols")
    if not isinstance(symbols, list):
        raise AvroError("an enum without symbols")
    texts = [symbol for symbol in symbols if isinstance(symbol, str)]
    if len(texts) != len(symbols) or len(set(texts)) != len(texts):
        raise AvroError("symbols of an enum must be different texts")
    for symbol in texts:
        _check_name(symbol)
    default = node.get("default")
    if isinstance(default, str) and default not in texts:
        raise AvroError(f"the default {default!r} of an enum is none of its symbols")
    return texts


def _size_of(node: dict[str, object]) -> int:
    size = node.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _FIXED_SIZE_MAX:
        raise AvroError(f"{size!r} is no size of a fixed")
    return size


def _other(node: dict[str, object], reserved: Iterable[str]) -> dict[str, object]:
    return {key: value for key, value in node.items() if key not in reserved}


def _short(node: object) -> str:
    """A node for a message: enough to find it."""
    text = repr(node)
    return text if len(text) <= 80 else text[:77] + "..."
