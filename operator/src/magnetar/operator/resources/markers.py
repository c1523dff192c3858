"""What a field or a type of a custom resource carries into the CRD beyond its Python type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

RULES: Final = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that the API server checks (CEL), and what it says when it does not hold."""

    expression: str
    """A CEL expression over `self`; with `oldSelf`, it holds for changes only."""
    message: str
    """What to do, in a sentence."""
    field_path: str = ""
    """Which field is at fault, from the type's own root, such as `.replicas`."""
    message_expression: str = ""
    """CEL that makes a message with the values in it; `message` stands in where it fails."""

    def as_json(self) -> dict[str, str]:
        """The rule in the form of a CRD."""
        found = {"rule": self.expression, "message": self.message}
        if self.message_expression:
            found["messageExpression"] = self.message_expression
        if self.field_path:
            found["fieldPath"] = self.field_path
        return found


def says(description: str, *rules: Rule, **schema: Any) -> msgspec.Meta:
    """A field's description in `kubectl explain`, its rules, and further keywords of its schema."""
    if rules:
        schema[RULES] = [rule.as_json() for rule in rules]
    return msgspec.Meta(description=description, extra_json_schema=schema or None)


def keyed_by(name: str) -> msgspec.Meta:
    """Of a list: which field tells its objects apart."""
    return msgspec.Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [name]})


def unchangeable(what: str, instead: str) -> Rule:
    """A value that stays what it was when the resource was made."""
    return Rule("self == oldSelf", f"{what} cannot be changed: {instead}")
