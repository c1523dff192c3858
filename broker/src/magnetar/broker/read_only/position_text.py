"""The acknowledged stretches of a subscription, as the admin API's internalStats prints them.

`[(3:1..3:5],(3:7..3:9]]`: lower end excluded, upper end included. Apache's broker separates them by a comma
(`OpenLongPairRangeSet.toString`), or by a comma and a space (Guava's `TreeRangeSet`, where
`managedLedgerUnackedRangesOpenCacheSetEnabled` is off). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from magnetar.core.errors import PeerError
from magnetar.core.ids import Position

MORE: Final = "..."
"""Stands behind the last stretch where a broker of ours left further ones out."""

SHOWN_CHARACTERS_MAX: Final = 80
"""Of a text that makes no sense: as much as tells what it is."""

_STRETCH: Final = re.compile(r"\((\d{1,18}):(-1|\d{1,18})\.\.(\d{1,18}):(\d{1,18})\](?:, ?|\Z)", re.ASCII)


class BadPositionText(PeerError):
    """A text that has no such form."""


def stretches_of(text: str) -> list[tuple[Position, Position]]:
    """The stretches in a text, in its order. `BadPositionText` for any other form: nothing is guessed, as what counts
    as acknowledged by mistake is lost."""
    if not text.startswith("[") or not text.endswith("]"):
        raise _bad(text)
    inside = text[1:-1]
    if inside.endswith(MORE):
        inside = inside.removesuffix(MORE)
        if not inside.endswith(", "):
            raise _bad(text)
        inside = inside.removesuffix(", ")
    found: list[tuple[Position, Position]] = []
    at = 0
    while at < len(inside):
        match = _STRETCH.match(inside, at)
        if match is None:
            raise _bad(text)
        low_ledger, low_entry, high_ledger, high_entry = map(int, match.groups())
        low, high = (low_ledger, low_entry), (high_ledger, high_entry)
        if low >= high:
            raise _bad(text)
        found.append((low, high))
        at = match.end()
    if inside.endswith((",", " ")):
        raise _bad(text)
    return found


def text_of(stretches: Sequence[tuple[Position, Position]]) -> str:
    """The inverse of `stretches_of`."""
    return f"[{', '.join([f'({low[0]}:{low[1]}..{high[0]}:{high[1]}]' for low, high in stretches])}]"


def _bad(text: str) -> BadPositionText:
    return BadPositionText(f"no acknowledged stretches: {text[:SHOWN_CHARACTERS_MAX]!r}")
