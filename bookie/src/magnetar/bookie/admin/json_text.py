"""JSON as BookKeeper's HTTP API writes and reads it.

Written: two spaces, a blank on both sides of the colon, arrays in one line, `{ }` and `[ ]` for empty ones
(BookKeeper: common/util/JsonUtil, Jackson's default pretty printer). Scripts that cut this text with `grep` and `awk`
keep working.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_ESCAPES: Final[dict[int, str]] = {
    **{code: f"\\u{code:04X}" for code in range(0x20)},
    ord('"'): '\\"',
    ord("\\"): "\\\\",
    ord("\b"): "\\b",
    ord("\f"): "\\f",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}


class BadJson(Exception):
    """A body that is not the JSON that was expected. The text is BookKeeper's."""

    def __init__(self) -> None:
        super().__init__("Failed to deserialize Object from Json string")


def write(document: object, indent: int = 0) -> str:
    """Mappings, lists, tuples, strings, whole numbers, booleans and None as text."""
    match document:
        case str():
            return f'"{document.translate(_ESCAPES)}"'
        case Mapping():
            if not document:
                return "{ }"
            inner = ",\n".join(field(str(key), value, indent + 2) for key, value in document.items())
            return "{\n" + inner + "\n" + " " * indent + "}"
        case list() | tuple():
            return "[ " + ", ".join(write(item, indent) for item in document) + " ]" if document else "[ ]"
        case _:
            return json.dumps(document)


def field(key: str, value: object, indent: int = 2) -> str:
    """One field of an object, in a line of its own."""
    return f"{' ' * indent}{write(key)} : {write(value, indent)}"


def read(body: str) -> Any:
    """Any JSON. `BadJson`."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadJson from None


def read_object(body: str) -> dict[str, Any]:
    """A JSON object. `BadJson` for anything else."""
    document = read(body)
    if not isinstance(document, dict):
        raise BadJson
    return document


def truth(value: object) -> bool:
    """A JSON value as a field of a Java class that is true or false. `BadJson` if it cannot be one.

    Jackson takes the words as strings, any whole number but 0 as true, and nothing at all as false."""
    match value:
        case bool():
            return value
        case None | "":
            return False
        case int():
            return value != 0
        case str() if value.strip() in ("true", "True", "TRUE"):
            return True
        case str() if value.strip() in ("false", "False", "FALSE"):
            return False
        case _:
            raise BadJson


def as_setting(value: object) -> str:
    """A JSON value as the text of a setting, as Java writes it."""
    match value:
        case str():
            return value
        case list():
            return "[" + ", ".join(as_setting(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{key}={as_setting(item)}" for key, item in value.items()) + "}"
        case _:
            return json.dumps(value)


def is_true(word: str) -> bool:
    """Java's `Boolean.parseBoolean`: everything but the word itself is false."""
    return word.lower() == "true"
