"""What comes out of a chart's types: values.yaml, values.schema.json and tables. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import yaml

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
LINE_WIDTH: Final = 116

_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
_KEPT: Final = (
    "type",
    "description",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "default",
    "propertyNames",
)


class Row(NamedTuple):
    """One value in a table."""

    path: str
    type: str
    default: str
    description: str


def strict_schema(structural: Mapping[str, Any], title: str, resources: Sequence[str] = ()) -> str:
    """A JSON schema as Helm checks values with it: what Kubernetes would drop in silence is refused here.

    `resources` are values that become parts of custom resources: the API server has their defaults, and null says that
    a value from a file before is left out. Other values have their defaults in values.yaml, where null would take them
    away: only maps and lists may be."""
    parts = _parts(structural)
    found = {
        "$schema": DRAFT,
        "title": title,
        **_strict({**structural, "properties": {name: parts[name] for name in parts if name not in resources}}),
    }
    for name in resources:
        found["properties"][name] = _strict(parts[name], optional=True) | {"type": "object"}
    found["required"] = [name for name, part in parts.items() if _parts(part) or name in found["required"]]
    # Charts that have this one as a part may set `global`, whatever it is.
    found["properties"]["global"] = {"type": "object", "description": "Of charts around it."}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _strict(schema: Mapping[str, Any], *, optional: bool = False) -> dict[str, Any]:
    found = {name: schema[name] for name in _KEPT if name in schema}
    if schema.get(_INT_OR_STRING):
        return {**found, "type": ["string", "integer"]}
    if schema.get(_PRESERVE):
        # An object of Kubernetes' own; without a type a setting, which is anything but an object or a list.
        return found if "type" in found else {**found, "type": ["string", "number", "boolean"]}
    if parts := _parts(schema):
        found["properties"] = {name: _strict(part, optional=optional) for name, part in parts.items()}
        found["additionalProperties"] = False
        if optional:
            required = list(schema.get("required", ()))
            for name in parts.keys() - set(required):
                found["properties"][name] = _or_null(found["properties"][name])
        else:
            required = [name for name, part in parts.items() if not _may_be_absent(part)]
        if required:
            found["required"] = required
    elif isinstance(schema.get("additionalProperties"), Mapping):
        found["additionalProperties"] = _strict(schema["additionalProperties"], optional=optional)
    if "items" in schema:
        found["items"] = _strict(schema["items"], optional=optional)
    return found


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    found = {**schema, "type": [*types, "null"]}
    if "enum" in schema:
        found["enum"] = [*schema["enum"], None]
    return found


def _may_be_absent(schema: Mapping[str, Any]) -> bool:
    """Whether templates do without it: maps, lists, and objects of nothing else."""
    if parts := _parts(schema):
        return all(_may_be_absent(part) for part in parts.values())
    return schema.get("type") in ("object", "array")


def values_file(structural: Mapping[str, Any], heading: str, examples: Mapping[str, str]) -> str:
    """values.yaml: each value with its default, and before it what it is for. `examples` are put into values that are
    empty, as comments."""
    lines = [f"# {line}" for line in textwrap.wrap(heading, LINE_WIDTH)]
    for name, part in structural["properties"].items():
        lines += ["", *_value_lines(name, part, part.get("default"), "", examples.get(name, ""))]
    return "\n".join(lines) + "\n"


def _value_lines(name: str, schema: Mapping[str, Any], default: Any, indent: str, example: str = "") -> Iterator[str]:
    for line in textwrap.wrap(str(schema["description"]), LINE_WIDTH - len(indent)):
        yield f"{indent}# {line}"
    parts = _parts(schema)
    if parts and not example:
        yield f"{indent}{name}:"
        for part_name, part in parts.items():
            yield from _value_lines(part_name, part, default_of(part_name, part, default), indent + "  ")
        return
    if isinstance(default, dict | list) and default and not example:
        yield f"{indent}{name}:"
        text = yaml.safe_dump(default, sort_keys=False, width=LINE_WIDTH)
        yield textwrap.indent(text.rstrip("\n"), indent + "  ")
        return
    yield f"{indent}{name}: {_scalar(default)}"
    if example:
        yield f"{indent}  # Such as:"
        yield from (f"{indent}  # {line}" for line in example.splitlines())


def default_of(name: str, schema: Mapping[str, Any], of_whole: Any) -> Any:
    """A part's default: what the whole's says, else its own."""
    if isinstance(of_whole, Mapping) and name in of_whole:
        return of_whole[name]
    return schema.get("default")


def _parts(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema.get("properties", {})
    return found


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def rows(schema: Mapping[str, Any], prefix: str = "", default: Any = None) -> Iterator[Row]:
    """All values below, in the order in which they are declared; objects with parts are their parts."""
    for name, part in _parts(schema).items():
        path = f"{prefix}{name}"
        own = default_of(name, part, default)
        inner, inside = _inner(part)
        if inner is None:
            yield Row(path, type_of(part), "" if own is None else _scalar(own), str(part.get("description", "")))
            continue
        if inside:
            yield Row(path, type_of(part), "" if own is None else _scalar(own), str(part.get("description", "")))
        yield from rows(inner, f"{path}{inside}.", None if inside else own)


def _inner(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
    """What has parts of its own in here, and how that is written after the name."""
    if _parts(schema):
        return schema, ""
    for keyword, inside in (("items", "[]"), ("additionalProperties", ".NAME")):
        part = schema.get(keyword)
        if isinstance(part, Mapping) and _parts(part):
            return part, inside
    return None, ""


def type_of(schema: Mapping[str, Any]) -> str:
    """In a word or two, for people."""
    if "enum" in schema:
        return " or ".join(str(value) for value in schema["enum"])
    if schema.get(_INT_OR_STRING):
        return "quantity"
    if schema.get(_PRESERVE) and "type" not in schema:
        return "any"
    if schema.get("type") == "array":
        return f"list of {_PLURALS.get(type_of(schema['items']), 'objects')}"
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"map of {_PLURALS.get(type_of(schema['additionalProperties']), 'objects')}"
    return {"boolean": "bool", "integer": "int"}.get(str(schema.get("type")), str(schema.get("type")))


_PLURALS: Final = {"string": "strings", "int": "ints", "quantity": "quantities", "any": "scalars"}


def table(found: Sequence[Row]) -> str:
    """As Markdown."""
    lines = ["| value | type | default | what it is |", "| --- | --- | --- | --- |"]
    for row in found:
        default = f"`{row.default}`" if row.default else ""
        lines.append(f"| `{row.path}` | {row.type} | {default} | {row.description} |".replace("\n", " "))
    return "\n".join(lines) + "\n"


def between(text: str, name: str, content: str) -> str:
    """The text with something else between its markers of this name. `ValueError` where they are not."""
    begin, end = f"<!-- begin {name}: generated -->\n", f"<!-- end {name} -->\n"
    head, found_begin, rest = text.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"there are no markers of {name}")
    return f"{head}{begin}{content}{end}{tail}"
