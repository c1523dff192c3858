"""Topic policies in `__change_events`: the schema that Apache registers, and what fits its fields. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

POLICIES_TYPE: Final = "org.apache.pulsar.common.policies.data.TopicPolicies"

NUMBER_BITS: Final[Mapping[str, int]] = MappingProxyType({"int": 32, "long": 64})


class FieldTypeMismatch(Exception):
    """A value is of another type than its field; the text says where."""


@cache
def schema_text() -> str:
    """The schema as it is registered."""
    return files("magnetar.broker.policies").joinpath("pulsar_event.avsc").read_text().rstrip("\n")


@cache
def named_types() -> dict[str, Any]:
    """All named types of the schema, by their full names."""
    named: dict[str, Any] = {}
    _collect_named(json.loads(schema_text()), "", named)
    return named


def check_policies(policies: dict[str, Any]) -> None:
    """Whether each policy can stand in the field of its name. Raises `FieldTypeMismatch`.

    What is null fits, and so does a symbol that only newer brokers know: neither counts as set. Fields that only
    newer brokers know fit when they are plain JSON."""
    _check(named_types()[POLICIES_TYPE], policies, "", "")


def check_number(value: object, name: str) -> None:
    """Whether a value can stand in a field of an `int`. Raises `FieldTypeMismatch`."""
    _check("int", value, name, "")


def _check(schema: Any, value: Any, path: str, namespace: str) -> None:
    """`value` is what Avro gave out, so that it is no deeper than the Avro reader goes."""
    if value is None:
        return
    if isinstance(schema, list):
        schema = schema[1]
    if isinstance(schema, str):
        named = named_types().get(schema) or named_types().get(f"{namespace}.{schema}")
        if named is None:
            _require(_is_of(schema, value), path, value)
            return
        schema = named
    namespace = schema.get("namespace", namespace)
    match schema["type"]:
        case "record":
            _require(isinstance(value, dict), path, value)
            fields = {field["name"]: field["type"] for field in schema["fields"]}
            for name, one in value.items():
                if name in fields:
                    _check(fields[name], one, f"{path}{name}.", namespace)
                else:
                    _check_plain(one, f"{path}{name}.")
        case "map":
            _require(isinstance(value, dict), path, value)
            for name, one in value.items():
                _check(schema["values"], one, f"{path}{name}.", namespace)
        case "array":
            _require(isinstance(value, list) and None not in value, path, value)
            for one in value:
                _check(schema["items"], one, path, namespace)
        case _:
            _require(isinstance(value, str), path, value)


def _check_plain(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for name, one in value.items():
            _check_plain(one, f"{path}{name}.")
    elif isinstance(value, list):
        for one in value:
            _check_plain(one, path)
    else:
        _require(value is None or isinstance(value, bool | str | int) or _is_of("double", value), path, value)


def _is_of(kind: str, value: object) -> bool:
    match kind:
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "int" | "long":
            limit = 1 << NUMBER_BITS[kind] - 1
            return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
        case "double" | "float":
            return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        case _:
            return False


def _require(fits: bool, path: str, value: object) -> None:
    if not fits:
        raise FieldTypeMismatch(
            f"{path[:200].removesuffix('.') or 'policies'}: {type(value).__name__} where another type belongs"
        )


def _collect_named(schema: Any, namespace: str, found: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect_named(branch, namespace, found)
    elif isinstance(schema, dict):
        namespace = schema.get("namespace", namespace)
        if "name" in schema:
            found[f"{namespace}.{schema['name']}"] = schema
        for field in schema.get("fields", ()):
            _collect_named(field["type"], namespace, found)
        for inner in ("items", "values"):
            if inner in schema:
                _collect_named(schema[inner], namespace, found)
