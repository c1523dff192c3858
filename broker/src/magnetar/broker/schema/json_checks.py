"""JSON schemas: today their data is an Avro schema, up to Pulsar 2.0 it was a Jackson JSON schema.

Facts: Pulsar 4.0 JsonSchemaCompatibilityCheck, StructSchemaDataValidator.
"""

from __future__ import annotations

import json
from typing import Final

from magnetar.broker.schema import avro_checks
from magnetar.broker.schema.avro_schema import AvroError, parse
from magnetar.broker.schema.errors import IncompatibleSchema
from magnetar.broker.schema.schema_info import SchemaInfo
from magnetar.broker.schema.strategy import Strategy

_JACKSON_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", "null", "any"})


def check_newest(old: SchemaInfo, new: SchemaInfo, strategy: Strategy) -> None:
    """Hold a new schema against the newest old one; either may have either form. `IncompatibleSchema`.

    Against several, Pulsar takes both as Avro schemas."""
    old_is_avro = is_avro(old.data)
    if not old_is_avro and not is_jackson(old.data):
        return  # What the store has is unusable; anything may take its place.
    new_is_avro = is_avro(new.data)
    if not new_is_avro and not is_jackson(new.data):
        raise IncompatibleSchema("Unknown schema format")
    if old_is_avro and new_is_avro:
        avro_checks.check([old], new, strategy)
    elif not old_is_avro and not new_is_avro:
        _check_identifiers(old.data, new.data)


def is_avro(data: bytes) -> bool:
    """Whether the data is an Avro schema."""
    try:
        parse(data)
    except AvroError:
        return False
    return True


def is_jackson(data: bytes) -> bool:
    """Whether the data is a JSON schema of the old form."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    if document is None:
        return True
    if not isinstance(document, dict):
        return False
    declared = document.get("type")
    return isinstance(declared, str) and declared.lower() in _JACKSON_TYPES


def _check_identifiers(old: bytes, new: bytes) -> None:
    """Two of the old form go together when their ids are the same."""
    identifiers = [document.get("id") if document else None for document in (json.loads(old), json.loads(new))]
    if identifiers[0] is None or identifiers[0] != identifiers[1]:
        raise IncompatibleSchema(
            f"Incompatible Schema from {old.decode(errors='replace')} to {new.decode(errors='replace')}"
        )
