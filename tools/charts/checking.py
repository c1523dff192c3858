"""Checks values against a chart's schema, as far as our schemas go, where there is no Helm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
KNOWN: Final = {
    *("$schema", "title", "description", "default", "type", "enum", "pattern", "minimum", "maximum", "minLength"),
    *("maxLength", "properties", "additionalProperties", "required", "items", "propertyNames"),
}


def faults(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """What is wrong, as `path: what`. A keyword that this does not know is a mistake of the schema's."""
    assert not schema.keys() - KNOWN, schema.keys() - KNOWN
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_is(value, name) for name in types):
        yield f"{path}: {type(value).__name__}, not {' or '.join(types)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: not one of {schema['enum']}"
    if isinstance(value, dict):
        yield from _of_object(schema, value, path)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from faults(schema["items"], item, f"{path}/{number}")
    elif isinstance(value, str):
        yield from _of_text(schema, value, path)
    elif isinstance(value, int | float) and not (schema.get("minimum", value) <= value <= schema.get("maximum", value)):
        yield f"{path}: out of bounds"


def _of_object(schema: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Iterator[str]:
    parts = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}: no {name}"
    for name, part in value.items():
        if "propertyNames" in schema:
            yield from _of_text(schema["propertyNames"], name, f"{path}/{name}")
        further = schema.get("additionalProperties", True)
        if name in parts:
            yield from faults(parts[name], part, f"{path}/{name}")
        elif further is False:
            yield f"{path}: {name} is not known"
        elif further is not True:
            yield from faults(further, part, f"{path}/{name}")


def _of_text(schema: Mapping[str, Any], value: str, path: str) -> Iterator[str]:
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: {value!r} does not match {schema['pattern']}"
    if len(value) < schema.get("minLength", 0) or len(value) > schema.get("maxLength", len(value)):
        yield f"{path}: its length"


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, TYPES[name])


def merged(under: Any, over: Any) -> Any:
    """Values of a file over the chart's, as Helm lays them; null takes the chart's away."""
    if not isinstance(under, dict) or not isinstance(over, dict):
        return over
    found = {**under}
    for name, value in over.items():
        if value is None and name in under:
            del found[name]
        else:
            found[name] = merged(under.get(name), value)
    return found
