"""Entries that the journal has (or will have in a moment) and the entry logs do not have yet.

Two halves: adds go into the active one while the other is being written out. Adding is dict work only; order and
places are found when a half is written. All methods run on the event loop, except that the checkpoint thread reads
a half that was taken out with `swap` and changes no more.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

ENTRY_OVERHEAD_BYTES: Final = 150
"""What an entry costs beside its bytes: the bytes object's head, the id, the dict's slot. Counted, so that many small
entries fill a half as well."""


class WriteCacheHalf:
    """Entries by ledger and id."""

    def __init__(self) -> None:
        self.ledgers: dict[int, dict[int, bytes]] = {}
        self.size_bytes = 0

    def add(self, ledger_id: int, entry_ids: Sequence[int], entries: Sequence[bytes], size_bytes: int) -> None:
        """Take a batch of one ledger; `size_bytes` is the sum of the entries' lengths. An id that is there already
        is replaced: a recovery writes the same entry again."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = {}
        ledger.update(zip(entry_ids, entries, strict=True))
        self.size_bytes += size_bytes + ENTRY_OVERHEAD_BYTES * len(entry_ids)

    def clear(self) -> None:
        """Give the memory back. For a half that `release` has let go of; in any thread.

        Entry by entry: a large half freed in one go would hold the interpreter lock for 75 ms (450 000 entries)."""
        while self.ledgers:
            ledger = self.ledgers.popitem()[1]
            while ledger:
                ledger.popitem()


class WriteCache:
    """Both halves, as readers see them: one cache."""

    def __init__(self, size_bytes_max: int) -> None:
        self._half_bytes_max = size_bytes_max // 2
        self.active = WriteCacheHalf()
        self.flushing: WriteCacheHalf | None = None

    @property
    def half_full(self) -> bool:
        """Whether the active half should be written out now."""
        return self.active.size_bytes >= self._half_bytes_max

    @property
    def full(self) -> bool:
        """Whether adds must wait: the active half is full and the other still being written."""
        return self.flushing is not None and self.active.size_bytes >= self._half_bytes_max

    def swap(self) -> WriteCacheHalf:
        """Start a new active half; the old one is to be written out. Only when none is being written."""
        assert self.flushing is None
        half = self.flushing = self.active
        self.active = WriteCacheHalf()
        return half

    def release(self) -> None:
        """The half that `swap` gave out is durable in the entry logs and the index."""
        assert self.flushing is not None
        self.flushing = None

    def forget(self, ledger_id: int) -> None:
        """Drop what is not yet being written out of a ledger that was deleted."""
        ledger = self.active.ledgers.pop(ledger_id, None)
        if ledger is not None:
            self.active.size_bytes -= sum(map(len, ledger.values())) + ENTRY_OVERHEAD_BYTES * len(ledger)

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry, or None if it is not here."""
        ledger = self.active.ledgers.get(ledger_id)
        if ledger is not None:
            entry = ledger.get(entry_id)
            if entry is not None:
                return entry
        if self.flushing is not None:
            ledger = self.flushing.ledgers.get(ledger_id)
            if ledger is not None:
                return ledger.get(entry_id)
        return None

    def last_entry_id(self, ledger_id: int) -> int:
        """The greatest entry id of a ledger in here, or -1."""
        last = -1
        for half in (self.active, self.flushing):
            ledger = half.ledgers.get(ledger_id) if half is not None else None
            if ledger:
                # Writers add in order, so the newest is nearly always the greatest; recoveries may be the exception.
                last = max(last, *ledger)
        return last

    def entry_ids(self, ledger_id: int) -> set[int]:
        """All ids of a ledger in here."""
        found: set[int] = set()
        for half in (self.active, self.flushing):
            if half is not None:
                found.update(half.ledgers.get(ledger_id, ()))
        return found
