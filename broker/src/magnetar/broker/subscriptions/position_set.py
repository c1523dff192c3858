"""Sets of positions that cost a bit for each entry, where entries of a ledger lie close together.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from magnetar.core.ids import Position

SPAN_ENTRIES_MAX: Final = 1 << 23
"""Entries of one ledger that bits span (1 MiB); those of a ledger that lie further apart are kept as numbers."""


class _LedgerEntries:
    """Entry ids of one ledger."""

    __slots__ = ("bits", "count", "first", "sparse")

    def __init__(self, entry_id: int) -> None:
        self.count = 0
        self.first = entry_id & ~7
        """The entry of the first bit; a multiple of 8."""
        self.bits = bytearray()
        self.sparse: set[int] | None = None
        """The entries, where they lie too far apart for bits."""

    def holds(self, entry_id: int) -> bool:
        if self.sparse is not None:
            return entry_id in self.sparse
        at = entry_id - self.first
        return 0 <= at < len(self.bits) * 8 and bool(self.bits[at >> 3] >> (at & 7) & 1)

    def add(self, entry_id: int) -> None:
        """Put in what is not there."""
        self.count += 1
        if self.sparse is None and self._reach(entry_id):
            at = entry_id - self.first
            self.bits[at >> 3] |= 1 << (at & 7)
            return
        if self.sparse is None:
            bits = self.bits
            self.sparse = {self.first + at for at in range(len(bits) * 8) if bits[at >> 3] >> (at & 7) & 1}
            self.bits = bytearray()
        self.sparse.add(entry_id)

    def discard(self, entry_id: int) -> None:
        """Take out what is there."""
        self.count -= 1
        if self.sparse is not None:
            self.sparse.discard(entry_id)
            return
        at = entry_id - self.first
        self.bits[at >> 3] &= 0xFF ^ (1 << (at & 7))

    def discard_up_to(self, last: int) -> None:
        if self.sparse is not None:
            self.sparse = {entry_id for entry_id in self.sparse if entry_id > last}
            self.count = len(self.sparse)
            return
        gone = min(max(0, last + 1 - self.first), len(self.bits) * 8)
        del self.bits[: gone >> 3]
        self.first += gone & ~7
        if gone & 7 and self.bits:
            self.bits[0] &= 0xFF ^ ((1 << (gone & 7)) - 1)
        self.count = int.from_bytes(self.bits, "little").bit_count()

    def _reach(self, entry_id: int) -> bool:
        """Make room for an entry's bit. False: it lies too far away."""
        end = self.first + len(self.bits) * 8
        low, high = min(self.first, entry_id & ~7), max(end, entry_id + 1)
        if high - low > SPAN_ENTRIES_MAX:
            return False
        if low < self.first:
            self.bits[:0] = bytes((self.first - low) >> 3)
            self.first = low
        missing = ((high - low + 7) >> 3) - len(self.bits)
        if missing > 0:
            # A little more than is needed: most are added in order.
            self.bits += bytes(missing + 8)
        return True


class PositionSet:
    """Positions, each once."""

    __slots__ = ("_ledgers", "count")

    def __init__(self) -> None:
        self.count = 0
        self._ledgers: dict[int, _LedgerEntries] = {}

    def __contains__(self, position: Position) -> bool:
        entries = self._ledgers.get(position[0])
        return entries is not None and entries.holds(position[1])

    def add(self, position: Position) -> bool:
        """Put a position in; False when it is there already."""
        ledger_id, entry_id = position
        entries = self._ledgers.get(ledger_id)
        if entries is None:
            entries = self._ledgers[ledger_id] = _LedgerEntries(entry_id)
        elif entries.holds(entry_id):
            return False
        entries.add(entry_id)
        self.count += 1
        return True

    def discard(self, position: Position) -> bool:
        """Take a position out; False when it is not there."""
        ledger_id, entry_id = position
        entries = self._ledgers.get(ledger_id)
        if entries is None or not entries.holds(entry_id):
            return False
        entries.discard(entry_id)
        self.count -= 1
        if not entries.count:
            del self._ledgers[ledger_id]
        return True

    def discard_up_to(self, last: Position) -> None:
        """Take out all positions up to this one, itself included. It looks at each ledger, and at the bits of one."""
        ledger_id, entry_id = last
        for other_id in [each for each in self._ledgers if each <= ledger_id]:
            entries = self._ledgers[other_id]
            before = entries.count
            if other_id == ledger_id:
                entries.discard_up_to(entry_id)
            else:
                entries.count = 0
            self.count += entries.count - before
            if not entries.count:
                del self._ledgers[other_id]

    def clear(self) -> None:
        """Take everything out."""
        self.count = 0
        self._ledgers = {}
