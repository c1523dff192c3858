"""What of a topic its transactions hide from consumers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from magnetar.core.ids import LATEST, Position

TransactionBits: TypeAlias = tuple[int, int]
"""A transaction's id: most bits (its coordinator), least bits (its number there), both as the wire has them,
unsigned."""


class Visibility:
    """Looked at once per list of entries; the topic's transaction buffer changes it."""

    __slots__ = ("aborted", "hidden_from")

    def __init__(self, aborted: Collection[TransactionBits]) -> None:
        self.hidden_from: Position = LATEST
        """The first message of the oldest open transaction: nothing is sent from here on."""
        self.aborted = aborted
        """Transactions whose messages are never sent."""
