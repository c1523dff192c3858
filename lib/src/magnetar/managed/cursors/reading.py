"""The waits of a cursor: for entries from bookies, and for its own state to be stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from magnetar.core.ids import Position
from magnetar.ledger.api import EntryNotFound, LedgerNotFound
from magnetar.managed.ack_state import AckState
from magnetar.managed.append_path import AppendPath
from magnetar.managed.cursors.store import CursorStore
from magnetar.managed.entry import Entry
from magnetar.managed.entry_cache import EntryCache
from magnetar.managed.ledger_list import LedgerList
from magnetar.managed.ledger_readers import LedgerReaders

READ_AHEAD_ENTRIES: Final = 500
READ_AHEAD_BYTES: Final = 1024 * 1024
"""The least that one read from bookies asks for: a backlog is read in large pieces and then served from
the cache, so that a slow reader costs few round trips."""


class ReadingCursor(Protocol):
    """The cursor, as its reads need it."""

    read_position: Position

    def read_cached(self, count_max: int, size_bytes_max: int) -> list[Entry] | None:
        """Read the next entries that are not acknowledged, and move past them, without waiting. Empty: caught up. None:
        the next entry is not in the cache, so call `read`."""
        ...

    def unacknowledged(self, entries: list[Entry]) -> list[Entry]:
        """The entries among these that are still to be delivered."""
        ...

    def skip_lost(self, position: Position) -> bool:
        """After a read failed for good: whether reading may go on elsewhere."""
        ...


class CursorLedger(Protocol):
    """The managed ledger, as its cursors know it."""

    appends: AppendPath
    cache: EntryCache
    ledgers: LedgerList
    readers: LedgerReaders

    def start_of_reading(self, position: Position) -> Position:
        """The position where a cursor that is to begin here reads first."""
        ...

    def trim_later(self) -> None:
        """A cursor has left a ledger behind."""
        ...

    def cursor_closed(self, cursor: Any) -> None:
        """Forget a cursor that is closed or deleted."""
        ...


async def read_next(cursor: ReadingCursor, ledger: CursorLedger, count_max: int, size_bytes_max: int) -> list[Entry]:
    """The next entries for a cursor, from bookies if the cache has not got them. Empty: caught up."""
    while True:
        found = cursor.read_cached(count_max, size_bytes_max)
        if found is not None:
            return found
        position = cursor.read_position
        try:
            entries = await _read_ahead(ledger, position, count_max, size_bytes_max)
        except (LedgerNotFound, EntryNotFound):
            if not cursor.skip_lost(position):
                raise
            continue
        if cursor.read_position != position:
            continue  # Moved by a seek while we waited: what was read is not what is wanted.
        entries = _within(entries, count_max, size_bytes_max)
        cursor.read_position = (position[0], position[1] + len(entries))
        entries = cursor.unacknowledged(entries)
        if entries:
            return entries


async def read_positions(acks: AckState, ledger: CursorLedger, positions: Sequence[Position]) -> list[Entry]:
    """The entries at these positions, from the cache or from bookies."""
    found: list[Entry] = []
    missing: list[Position] = []
    cache = ledger.cache
    for position in positions:
        if not acks.is_acknowledged(position) and ledger.ledgers.contains(position):
            entry = cache.get(position[0], position[1])
            if entry is None:
                missing.append(position)
            else:
                found.append(entry)
    cache.served(found)
    for ledger_id, first, last in _runs(sorted(missing)):
        try:
            while first <= last:
                some = await ledger.readers.read(ledger_id, first, last, replayed=True)
                found += some
                first += len(some)
        except LedgerNotFound:
            if ledger.ledgers.contains((ledger_id, last)) and not ledger.appends.settings.skip_lost_data:
                raise
    if missing:
        found = [entry for entry in found if not acks.is_acknowledged(entry.position)]
        found.sort(key=_position_of)
    return found


async def durable(storage: CursorStore | None, then: Callable[[], None] | None) -> None:
    """Until what changed is stored, if anything of the cursor is; `then` follows."""
    if storage is not None:
        await storage.flush()
    if then is not None:
        then()


async def closed(storage: CursorStore | None, then: Callable[[], None]) -> None:
    """Until the state is written and let go of; `then` follows."""
    if storage is not None:
        await storage.close()
    then()


async def nothing() -> None:
    """For a cursor that has nothing to wait for."""


async def _read_ahead(ledger: CursorLedger, position: Position, count_max: int, size_bytes_max: int) -> list[Entry]:
    ledger_id, entry_id = position
    average = max(1, ledger.ledgers.average_entry_bytes(ledger_id))
    count = min(max(count_max, READ_AHEAD_ENTRIES), max(READ_AHEAD_BYTES, size_bytes_max) // average)
    last = min(ledger.ledgers.entries_in(ledger_id) - 1, entry_id + max(1, count) - 1)
    return await ledger.readers.read(ledger_id, entry_id, last)


def _position_of(entry: Entry) -> Position:
    return (entry.ledger_id, entry.entry_id)


def _within(entries: list[Entry], count_max: int, size_bytes_max: int) -> list[Entry]:
    """The first entries that fit, at least one."""
    size = 0
    for index, entry in enumerate(entries):
        size += len(entry.data)
        if index == count_max or (size > size_bytes_max and index):
            return entries[:index]
    return entries


def _runs(positions: Iterable[Position]) -> list[tuple[int, int, int]]:
    """Ascending positions as (ledger id, first, last) of consecutive ones."""
    runs: list[tuple[int, int, int]] = []
    for ledger_id, entry_id in positions:
        if runs and runs[-1][0] == ledger_id and entry_id - runs[-1][2] <= 1:
            runs[-1] = (ledger_id, runs[-1][1], entry_id)
        else:
            runs.append((ledger_id, entry_id, entry_id))
    return runs
