"""The cursor of a reader that wants a compacted view: what compaction left, then the topic from its horizon on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.broker.compacted_topic import Compaction, read_compacted, sized
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import NO_ENTRY, Position
from magnetar.ledger.api import LedgerReader
from magnetar.managed.cursor import Cursor
from magnetar.managed.entry import Entry
from magnetar.managed.managed_ledger import ManagedLedger

CHUNK_ENTRIES: Final = 500
"""Entries read from the compacted ledger at once and kept until they are sent."""


class CompactedCursor:
    """A `SubscriptionCursor` over a non-durable cursor. Nothing before `start` is read.

    The compacted ledger is that of the moment when the reader came; a later compaction removes only what has a newer
    message, which this reader gets from the topic."""

    def __init__(self, ledger: ManagedLedger, cursor: Cursor, compaction: Compaction, start: Position) -> None:
        self.cursor_properties = cursor.cursor_properties
        self._ledger = ledger
        self._cursor = cursor
        self._compaction = compaction
        self._start = start
        self._reader: LedgerReader | None = None
        self._next = 0
        """The compacted ledger's next entry; the topic's positions of those before are in `_positions`."""
        self._positions: list[Position] = []
        self._chunk: list[Entry] = []
        self._chunk_first = 0
        self._acknowledged: Position = (NO_ENTRY, NO_ENTRY)
        self._ended = start > compaction.horizon
        self._go_behind_horizon()

    # --- reading

    @property
    def read_position(self) -> Position:
        """The next entry to read."""
        if self._ended:
            return self._cursor.read_position
        if self._next < len(self._positions):
            return self._positions[self._next]
        return (self._positions[-1][0], self._positions[-1][1] + 1) if self._positions else self._start

    def read_cached(self, count_max: int, size_bytes_max: int) -> list[Entry] | None:
        """Entries at hand; None when the next one has to be read."""
        if self._ended:
            return self._cursor.read_cached(count_max, size_bytes_max)
        at = self._next - self._chunk_first
        if not 0 <= at < len(self._chunk):
            return None
        entries = sized(self._chunk[at:], count_max, size_bytes_max)
        self._next += len(entries)
        return entries

    async def read(self, count_max: int, size_bytes_max: int) -> list[Entry]:
        """Entries from wherever they are."""
        while not self._ended:
            entries = self.read_cached(count_max, size_bytes_max)
            if entries:
                return entries
            await self._read_chunk()
        return await self._cursor.read(count_max, size_bytes_max)

    async def _read_chunk(self) -> None:
        if self._reader is None:
            reader = await self._ledger.open_other(self._compaction.ledger_id)
            if self._ended:
                # Closed, or gone past it, while it was opened.
                await reader.close()
                return
            self._reader = reader
        first, last = self._next, self._reader.last_add_confirmed
        if first > last:
            self._ended = True
            self._chunk = []
            self._go_behind_horizon()
            return
        chunk = await read_compacted(self._reader, first, min(last, first + CHUNK_ENTRIES - 1))
        if self._next != first:
            return  # Moved while we waited.
        self._chunk, self._chunk_first = chunk, first
        self._positions[first:] = [entry.position for entry in chunk]
        # Entries stand in the order of their positions: those before the start are stepped over once.
        self._next = max(first, bisect_left(self._positions, self._start))

    def _go_behind_horizon(self) -> None:
        behind = self._ledger.next_position(self._compaction.horizon)
        if self._cursor.read_position < behind:
            self._cursor.skip_to(behind)

    async def read_positions(self, positions: Sequence[Position]) -> list[Entry]:
        """Those of the entries that the topic still has: readers have nothing sent again one by one."""
        return await self._cursor.read_positions(positions)

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        self._cursor.rewind()
        self._go_behind_horizon()
        self._go_to(bisect_right(self._positions, self._acknowledged))

    def skip_to(self, position: Position) -> None:
        """Read on from here."""
        if position <= self._compaction.horizon:
            self._go_to(bisect_left(self._positions, position))
            return
        self._ended = True
        self._cursor.skip_to(position)

    def _go_to(self, index: int) -> None:
        known = len(self._positions)
        if index < known or not self._ended:
            self._ended = False
            self._next = max(index, bisect_left(self._positions, self._start))

    # --- acknowledging, of which a reader does little

    @property
    def durable(self) -> bool:
        """Whether the cursor is kept in the store."""
        return False

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""
        return self._cursor.mark_delete

    @property
    def backlog_entries(self) -> int:
        """Entries that were not read or not acknowledged; of the compacted ledger as far as it is known."""
        return self._cursor.backlog_entries + max(0, len(self._positions) - self._next)

    def acknowledge(self, positions: Sequence[Position]) -> None:
        """Single entries."""
        self._cursor.acknowledge([position for position in positions if position > self._compaction.horizon])

    def acknowledge_batch_indexes(self, position: Position, remaining: list[int], batch_size: int) -> bool:
        """Messages of a batch; whether the entry became wholly acknowledged."""
        if position <= self._compaction.horizon:
            return False
        return self._cursor.acknowledge_batch_indexes(position, remaining, batch_size)

    def acknowledge_cumulative(self, position: Position, remaining: list[int] | None = None) -> None:
        """Everything up to the position."""
        if position > self._compaction.horizon:
            self._cursor.acknowledge_cumulative(position, remaining)
        elif remaining is None:
            self._acknowledged = max(self._acknowledged, position)

    def is_acknowledged(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        if position <= self._compaction.horizon:
            return position <= self._acknowledged
        return self._cursor.is_acknowledged(position)

    def remaining_ack_set(self, position: Position) -> list[int] | None:
        """What is left of a batch."""
        return None if position <= self._compaction.horizon else self._cursor.remaining_ack_set(position)

    def individually_acknowledged(self) -> list[tuple[Position, Position]]:
        """Stretches beyond the mark."""
        return self._cursor.individually_acknowledged()

    async def reset(self, position: Position) -> None:
        """Seek."""
        await self._cursor.reset(position)
        self._acknowledged = (NO_ENTRY, NO_ENTRY)
        self._start = position
        self._ended = position > self._compaction.horizon
        self._go_to(bisect_left(self._positions, position))
        self._go_behind_horizon()

    async def skip_entries(self, count: int) -> None:
        """Acknowledge the next unacknowledged entries."""
        await self._cursor.skip_entries(count)

    async def clear_backlog(self) -> None:
        """Acknowledge everything."""
        self._ended = True
        await self._cursor.clear_backlog()

    def persist(self, done: Callable[[MagnetarError | None], None]) -> None:
        """There is nothing to be stored."""
        self._cursor.persist(done)

    async def close(self) -> None:
        """Read no more."""
        self._ended = True
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        await self._cursor.close()
