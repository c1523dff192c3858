"""What of a topic its transactions hide from consumers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from magnetar.core.ids import LATEST, Position
from magnetar.managed.entry import Entry

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

    def hides(self, position: Position) -> bool:
        """Whether the entry there is not to be sent yet."""
        return position >= self.hidden_from

    def is_aborted(self, transaction: TransactionBits) -> bool:
        """Whether messages of this transaction are never sent."""
        return transaction in self.aborted

    def cut(self, entries: list[Entry]) -> list[Entry]:
        """Those of the entries that may be sent, as far as it is known by now how transactions end."""
        return [entry for entry in entries if not self.hides(entry.position)]
