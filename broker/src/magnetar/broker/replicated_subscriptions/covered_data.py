"""Whether a topic has messages that no snapshot covers yet. Pure.

Each snapshot writes markers, which other clusters store as well. If these counted as messages, two idle clusters would
ask each other for snapshots for ever.
"""

from __future__ import annotations

from typing import Final

from magnetar.core.ids import EARLIEST, Position

MARKERS_MAX: Final = 1_000
"""Markers that are remembered behind a message that no snapshot covers. What is forgotten counts as a message, which
costs one snapshot too many."""


class CoveredData:
    """`covered_until`: up to here every entry is a marker, or stands before the question of a finished snapshot."""

    __slots__ = ("_markers", "covered_until")

    def __init__(self) -> None:
        self.covered_until = EARLIEST
        self._markers: set[Position] = set()

    def marker(self, position: Position) -> None:
        """This entry is a marker, of this cluster or of another. Any order."""
        if position <= self.covered_until:
            return
        if len(self._markers) >= MARKERS_MAX:
            self._markers.clear()
        self._markers.add(position)
        self._advance()

    def completed(self, position: Position) -> None:
        """A snapshot covers everything up to here."""
        if position <= self.covered_until:
            return
        self.covered_until = position
        self._markers = {each for each in self._markers if each > position}
        self._advance()

    def has_messages(self, last_position: Position) -> bool:
        """Whether any message stands behind what is covered; `last_position` is the topic's last entry."""
        return last_position > self.covered_until and last_position[1] >= 0

    def _advance(self) -> None:
        ledger_id, entry_id = self.covered_until
        while (ledger_id, entry_id + 1) in self._markers:
            entry_id += 1
            self._markers.discard((ledger_id, entry_id))
        self.covered_until = (ledger_id, entry_id)
