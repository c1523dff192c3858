"""The parts of a frame that comes in small pieces."""

from __future__ import annotations

from typing import Final

PARTS_MAX: Final = 256
"""Parts that are kept as they came: more are joined, since one of a single byte takes fifty in memory."""

JOINED_BYTES_MIN: Final = 64 * 1024
"""A part of this length stays alone: what is joined again and again stays short, so that no byte is copied often."""


def join_newest(parts: list[bytes]) -> list[bytes]:
    """Join parts so that fewer of them hold these bytes."""
    first = len(parts)
    while first and len(parts[first - 1]) < JOINED_BYTES_MIN:
        first -= 1
    return [*parts[:first], b"".join(parts[first:])]
