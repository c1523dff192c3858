"""How often the entries of one cursor were asked for again: what a dead-letter policy of a client goes by.

Pure. Entries that never were are not in it, so that a subscription without redeliveries pays nothing. The cursor keeps
it with its acknowledgements, in memory and in the store (docs/adr/0029).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Final

from magnetar.core.ids import Position
from magnetar.managed.entry import Entry

COUNTED_ENTRIES_MAX: Final = 100_000
"""Entries of one cursor that are counted, some 20 MB: half of what consumers of a subscription may hold unacknowledged
by default. With more, those that were asked for least often are forgotten, and begin again at 0."""

COUNTED_ENTRIES_SPARE: Final = COUNTED_ENTRIES_MAX // 4
"""So many more before that: to look at all takes some 20 ms, and must not happen with each further one."""

STORED_COUNTS_MAX: Final = 10_000
"""Counts in one record of a cursor, as many as ranges of acknowledgements (`managedLedgerMaxUnackedRangesToPersist`):
the highest ones. It is 140 KB at most, and 440 KB if each is of another ledger; a node of ZooKeeper has 1 MB."""

REDELIVERIES_MAX: Final = 0x7FFF_FFFF
"""Clients read a count with 32 bits."""


class RedeliveryCounts:
    """Positions and how often each was asked for again; bounded by `COUNTED_ENTRIES_MAX`."""

    __slots__ = ("_counts", "_mark_moves", "stored_form")

    def __init__(self) -> None:
        self._counts: dict[Position, int] = {}
        self._mark_moves = 0
        """Since the counts were last looked through for what the mark has passed."""
        self.stored_form: bytes | None = None
        """The counts as the codec has encoded them; None when they have changed since."""

    def __len__(self) -> int:
        return len(self._counts)

    def increment(self, positions: list[Position]) -> None:
        """A client asked for these entries again. As it may hold any number, the bound is looked at behind the last."""
        counts = self._counts
        for position in positions:
            former = counts.get(position, 0)
            if former < REDELIVERIES_MAX:
                counts[position] = former + 1
        self.stored_form = None
        if len(counts) > COUNTED_ENTRIES_MAX + COUNTED_ENTRIES_SPARE:
            self._counts = dict(self.highest(COUNTED_ENTRIES_MAX))

    def restore(self, position: Position, count: int) -> None:
        """Take a count over from storage."""
        self._counts[position] = count
        self.stored_form = None

    def of(self, entries: list[Entry]) -> list[int] | None:
        """The count of each entry; None when there are no counts at all."""
        counts = self._counts
        if not counts:
            return None
        return [counts.get((entry.ledger_id, entry.entry_id), 0) for entry in entries]

    def forget(self, position: Position) -> None:
        """The entry is acknowledged."""
        if self._counts.pop(position, 0):
            self.stored_form = None

    def mark_moved(self, mark_delete: Position) -> None:
        """Everything up to here is acknowledged. The counts of that go now or later: looking through all of them is
        done after as many moves as there are counts."""
        self._mark_moves += 1
        if self._mark_moves >= len(self._counts):
            self.forget_up_to(mark_delete)

    def forget_up_to(self, mark_delete: Position) -> None:
        """Forget the counts of what the mark has passed since this was last done."""
        if not self._mark_moves:
            return
        self._mark_moves = 0
        left = {position: count for position, count in self._counts.items() if position > mark_delete}
        if len(left) != len(self._counts):
            self._counts = left
            self.stored_form = None

    def highest(self, entries_max: int) -> list[tuple[Position, int]]:
        """So many counts at most, with their positions: the highest, and of equal ones those that are counted longest.
        In two looks at all of them, without sorting."""
        counts = self._counts
        if len(counts) <= entries_max:
            return list(counts.items())
        how_many: dict[int, int] = {}
        for count in counts.values():
            how_many[count] = how_many.get(count, 0) + 1
        room, least = entries_max, 0
        for count in sorted(how_many, reverse=True):
            least = count
            if how_many[count] >= room:
                break
            room -= how_many[count]
        found: list[tuple[Position, int]] = []
        for position, count in counts.items():
            if count > least:
                found.append((position, count))
            elif count == least and room:
                found.append((position, count))
                room -= 1
        return found
