"""Objects that are to be deleted and may still be there, as properties of the managed ledger. Pure.

They are written with the very change by which nothing names the objects any more, and removed once these are gone, so
that whoever owns the managed ledger then goes on. Apache's brokers keep properties that they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from magnetar.managed.offload.context import OffloadedCopy

OWED_PREFIX: Final = "magnetar.offload-owed."
"""How the names of these properties begin; ledger id and UUID follow."""

OWED_MAX: Final = 500
"""Of one managed ledger, some 200 KB of the 1 MB that a node may have. With more, no offloaded ledger is trimmed until
objects could be deleted again."""


@dataclass(frozen=True, slots=True)
class OwedObjects:
    """The objects of one offload."""

    ledger_id: int
    uid: UUID
    stored: Mapping[str, str]


def owed_property(ledger_id: int, copy: OffloadedCopy) -> tuple[str, str]:
    """The name and the value that remember the objects of a copy."""
    value = json.dumps({"driver": copy.driver, "stored": dict(copy.stored)}, separators=(",", ":"))
    return f"{OWED_PREFIX}{ledger_id}.{copy.uid}", value


def owed_objects(properties: Mapping[str, str]) -> dict[str, OwedObjects]:
    """The owed objects by the names of their properties. One that cannot be read is left out, and stays stored."""
    found: dict[str, OwedObjects] = {}
    for key, value in properties.items():
        if key.startswith(OWED_PREFIX):
            objects = _parsed(key.removeprefix(OWED_PREFIX), value)
            if objects is not None:
                found[key] = objects
    return found


def _parsed(name: str, value: str) -> OwedObjects | None:
    ledger_id, _, uid = name.partition(".")
    try:
        document = json.loads(value)
        stored = document["stored"]
        return OwedObjects(int(ledger_id), UUID(uid), {str(key): str(text) for key, text in stored.items()})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
