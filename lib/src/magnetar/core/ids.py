"""Identifiers of the storage layer and their order.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Final, TypeAlias

Position: TypeAlias = tuple[int, int]
"""(ledger id, entry id). A plain tuple: it is built once per message, and tuples compare in the right order."""

NO_ENTRY: Final = -1
"""The entry id before the first one; also "nothing confirmed yet"."""

EARLIEST: Final[Position] = (-1, -1)
LATEST: Final[Position] = (0x7FFF_FFFF_FFFF_FFFF, 0x7FFF_FFFF_FFFF_FFFF)


def unsigned64(value: int) -> int:
    """The value as the wire's uint64 fields carry it: -1 travels as 2**64 - 1."""
    return value & 0xFFFF_FFFF_FFFF_FFFF


def signed64(value: int) -> int:
    """The inverse of `unsigned64`."""
    return value - 0x1_0000_0000_0000_0000 if value >= 0x8000_0000_0000_0000 else value
