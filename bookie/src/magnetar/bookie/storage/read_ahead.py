"""Entries that stand in the entry log behind one that was asked for, kept for whoever walks the ledger.

A reader that asks for one entry after the other gets most of them from here: a checkpoint writes a ledger's entries in
a row, so one larger read brings many. How far is read ahead grows while a reader goes on, and starts anew with a
reader that jumps. BookKeeper: storage/ldb/SingleDirectoryDbLedgerStorage and ReadCache. On the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from magnetar.core.histogram import Histogram

ENTRY_OVERHEAD_BYTES: Final = 200
"""What an entry costs here beside its bytes: two dict slots, its id, the bytes object's head."""

SCANS_MAX: Final = 10_000
"""Places where readers may go on; some 150 bytes each."""

GAP_MAX: Final = 4
"""How many entry ids a reader may leave out: this bookie has not every entry when an ensemble is larger than the
write quorum."""

FIRST_BYTES: Final = 64 * 1024
"""Read ahead when a reader asks for a second entry; each further time four times as much."""


class _Run:
    """Entries that one read brought."""

    __slots__ = ("entries", "ledger_id", "size_bytes")

    def __init__(self, ledger_id: int, entries: dict[int, bytes]) -> None:
        self.ledger_id = ledger_id
        self.entries = entries
        self.size_bytes = sum(map(len, entries.values())) + ENTRY_OVERHEAD_BYTES * len(entries)


class ReadAheadCache:
    """Bounded by bytes; what was not read for the longest time goes first, run by run."""

    def __init__(self, size_bytes_max: int, batch_bytes_max: int) -> None:
        """A run is read with at most `batch_bytes_max`; not positive: half the cache."""
        self._size_bytes_max = size_bytes_max
        half = size_bytes_max // 2
        self._batch_bytes_max = min(half, batch_bytes_max) if batch_bytes_max > 0 else half
        self._ledgers: dict[int, dict[int, _Run]] = {}
        self._runs: OrderedDict[_Run, None] = OrderedDict()
        self._newest: _Run | None = None
        self._scans: OrderedDict[tuple[int, int], int] = OrderedDict()
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self.batches = Histogram(unit=1e3)
        """Entries that one read brought beside those that were asked for."""
        self.forgotten = 0
        """How often a ledger was; what was read before the last time may be of that ledger."""

    @property
    def entries(self) -> int:
        """How many are here."""
        return sum(map(len, self._ledgers.values()))

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry, or None if it is not here."""
        runs = self._ledgers.get(ledger_id)
        run = runs.get(entry_id) if runs is not None else None
        if run is None:
            return None
        self.hits += 1
        if run is not self._newest:
            self._newest = run
            self._runs.move_to_end(run)
        return run.entries[entry_id]

    def plan(self, ledger_id: int, entry_id: int) -> int:
        """An entry was asked for that is not here: how many bytes to read for it and what follows; 0: it alone."""
        self.misses += 1
        if not self._batch_bytes_max:
            return 0
        read_bytes = 0
        for expected in range(entry_id, entry_id - GAP_MAX, -1):
            last_bytes = self._scans.pop((ledger_id, expected), None)
            if last_bytes is not None:
                read_bytes = min(max(FIRST_BYTES, 4 * last_bytes), self._batch_bytes_max)
                break
        self._expect(ledger_id, entry_id + 1, read_bytes)
        return read_bytes

    def put(self, ledger_id: int, entry_id: int, entries: dict[int, bytes]) -> None:
        """Keep what was read behind an entry."""
        if not entries:
            return
        self.batches.record(len(entries))
        read_bytes = self._scans.pop((ledger_id, entry_id + 1), FIRST_BYTES)
        self._expect(ledger_id, next(reversed(entries)) + 1, read_bytes)
        run = _Run(ledger_id, entries)
        self._ledgers.setdefault(ledger_id, {}).update(dict.fromkeys(entries, run))
        self._runs[run] = None
        self._newest = run
        self.size_bytes += run.size_bytes
        while self.size_bytes > self._size_bytes_max:
            self._drop(next(iter(self._runs)))

    def forget(self, ledger_id: int) -> None:
        """Drop what is here of a ledger that was deleted."""
        self.forgotten += 1
        # A run that later ones have replaced wholly is not found here; nobody is given it, and it leaves in time.
        for run in set(self._ledgers.get(ledger_id, {}).values()):
            self._drop(run)

    def _expect(self, ledger_id: int, entry_id: int, read_bytes: int) -> None:
        self._scans[ledger_id, entry_id] = read_bytes
        if len(self._scans) > SCANS_MAX:
            self._scans.popitem(last=False)

    def _drop(self, run: _Run) -> None:
        del self._runs[run]
        self.size_bytes -= run.size_bytes
        runs = self._ledgers.get(run.ledger_id, {})
        for entry_id in run.entries:
            # A later run may have brought the same entry once more.
            if runs.get(entry_id) is run:
                del runs[entry_id]
        if not runs:
            self._ledgers.pop(run.ledger_id, None)
        if run is self._newest:
            self._newest = None
