"""Properties of cursors that are the brokers' own: clients neither see them nor set them, for what stands there is
believed. A compaction notes there which ledgers are to be deleted. (Pulsar: `ManagedCursorImpl`, by the same prefix)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

INTERNAL_PREFIX: Final = "#pulsar.internal."


def without_internal(properties: Mapping[str, str]) -> dict[str, str]:
    """Those that clients may see, and set."""
    return {name: value for name, value in properties.items() if not name.startswith(INTERNAL_PREFIX)}


def internal_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Those that stay whatever clients set."""
    return {name: value for name, value in properties.items() if name.startswith(INTERNAL_PREFIX)}
