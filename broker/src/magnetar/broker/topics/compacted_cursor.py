"""The cursor of a reader that wants a compacted view: what compaction left, then the topic from its horizon on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.broker.topics.compacted_topic import Compaction, read_compacted, sized
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import NO_ENTRY, Position
from magnetar.ledger.api import LedgerReader
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.entry import Entry
from magnetar.managed.managed_ledger import ManagedLedger

CHUNK_ENTRIES: Final = 500
"""Read from the compacted ledger at once and kept until the next ones are read: all of it that a reader holds."""

CHUNK_BYTES: Final = 4 << 20
"""About how large they may be, as far as the ledger's average tells."""

FIRST: Final[Position] = (0, 0)
"""The position before which no entry can stand."""


class CompactedCursor:
    """A `SubscriptionCursor` over a non-durable cursor. Nothing before `start` is read.

    The compacted ledger is that of the moment when the reader came; a later compaction removes only what has a newer
    message, which this reader gets from the topic. Its entries stand in the order of their positions: where reading
    goes on is searched for among them (Pulsar: `CompactedTopicImpl.findStartPoint`)."""

    def __init__(self, ledger: ManagedLedger, cursor: Cursor, compaction: Compaction, start: Position) -> None:
        self.cursor_properties = cursor.cursor_properties
        self._ledger = ledger
        self._cursor = cursor
        self._compaction = compaction
        self._start = start
        self._reader: LedgerReader | None = None
        self._from = start
        """Nothing before it is read now."""
        self._next: int | None = None
        """The compacted ledger's next entry; None while it is to be searched for."""
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
        at = self._place()
        if at is not None:
            return self._chunk[at].position
        if self._next is None or not self._chunk:
            return self._from
        ledger_id, entry_id = self._chunk[-1].position
        return (ledger_id, entry_id + 1)

    def _place(self) -> int | None:
        """Where the next entry is in the chunk, if it is there."""
        at = -1 if self._next is None else self._next - self._chunk_first
        return at if 0 <= at < len(self._chunk) else None

    def read_cached(self, count_max: int, size_bytes_max: int) -> list[Entry] | None:
        """Entries at hand; None when the next one has to be read."""
        if self._ended:
            return self._cursor.read_cached(count_max, size_bytes_max)
        at = self._place()
        if at is None:
            return None
        entries = sized(self._chunk[at:], count_max, size_bytes_max)
        self._next = self._chunk_first + at + len(entries)
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
        before = (self._next, self._from)
        first = await self._search(self._reader) if self._next is None else self._next
        last = min(self._reader.last_add_confirmed, first + _chunk_entries(self._reader) - 1)
        chunk = await read_compacted(self._reader, first, last) if first <= last else []
        if self._ended or (self._next, self._from) != before:
            return  # Moved while we waited.
        self._chunk, self._chunk_first = chunk, first
        if chunk:
            self._next = first + bisect_left(chunk, self._from, key=_position)
        else:
            self._ended = True
            self._go_behind_horizon()

    async def _search(self, reader: LedgerReader) -> int:
        """Where to read the chunk that has the first entry at or after `_from`, or ends before it."""
        wanted = self._from
        first, end = 0, reader.last_add_confirmed + 1
        while wanted > FIRST and end - first >= _chunk_entries(reader):
            middle = (first + end) // 2
            (entry,) = await read_compacted(reader, middle, middle)
            if entry.position < wanted:
                first = middle + 1
            else:
                end = middle
        return first

    def _go_behind_horizon(self) -> None:
        behind = self._ledger.ledgers.next_position(self._compaction.horizon)
        if self._cursor.read_position < behind:
            self._cursor.skip_to(behind)

    async def read_positions(self, positions: Sequence[Position]) -> list[Entry]:
        """Those of the entries that the topic still has: readers have nothing sent again one by one."""
        return await self._cursor.read_positions(positions)

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        self._cursor.rewind()
        self._go_behind_horizon()
        ledger_id, entry_id = self._acknowledged
        self._go_to((ledger_id, entry_id + 1))

    def skip_to(self, position: Position) -> None:
        """Read on from here."""
        if position <= self._compaction.horizon:
            self._go_to(position)
            return
        self._ended = True
        self._cursor.skip_to(position)

    def _go_to(self, position: Position) -> None:
        self._from = max(position, self._start)
        self._ended = self._from > self._compaction.horizon
        chunk = self._chunk
        if chunk and chunk[0].position <= self._from <= chunk[-1].position:
            self._next = self._chunk_first + bisect_left(chunk, self._from, key=_position)
        else:
            self._next = None

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
        """Entries that were not read or not acknowledged; of the compacted ledger those at hand."""
        at = self._place()
        at_hand = 0 if self._ended or at is None else len(self._chunk) - at
        return self._cursor.backlog_entries + at_hand

    def acknowledge(self, positions: Sequence[Position]) -> None:
        """Acknowledge single entries."""
        self._cursor.acknowledge([position for position in positions if position > self._compaction.horizon])

    def acknowledge_batch_indexes(self, position: Position, remaining: list[int], batch_size: int) -> bool:
        """Messages of a batch; whether the entry became wholly acknowledged."""
        if position <= self._compaction.horizon:
            return False
        return self._cursor.acknowledge_batch_indexes(position, remaining, batch_size)

    def acknowledge_cumulative(self, position: Position, remaining: list[int] | None = None) -> None:
        """Everything up to the position."""
        if position > self._compaction.horizon:
            self._acknowledged = self._compaction.horizon
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

    def unacknowledged_at(self, number: int) -> Position:
        """The `number`-th entry of the backlog, from 1."""
        at = self._place()
        at_hand = 0 if self._ended or at is None else len(self._chunk) - at
        if at is not None and number <= at_hand:
            return self._chunk[at + number - 1].position
        return self._cursor.unacknowledged_at(number - at_hand)

    @property
    def individual_ranges(self) -> int:
        """Stretches beyond the mark that are acknowledged."""
        return self._cursor.individual_ranges

    async def reset(self, position: Position) -> None:
        """Seek: reading goes on at the position."""
        await self._cursor.reset(position)
        self._acknowledged = (NO_ENTRY, NO_ENTRY)
        self._start = position
        self._go_to(position)
        self._go_behind_horizon()

    async def skip_entries(self, count: int) -> None:
        """Acknowledge the next unacknowledged entries."""
        await self._cursor.skip_entries(count)

    async def clear_backlog(self) -> None:
        """Acknowledge the whole backlog."""
        self._ended = True
        self._acknowledged = self._compaction.horizon
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


def _position(entry: Entry) -> Position:
    return entry.position


def _chunk_entries(reader: LedgerReader) -> int:
    """How many entries of a ledger make a chunk."""
    average_bytes = reader.length_bytes // (reader.last_add_confirmed + 1) if reader.last_add_confirmed >= 0 else 0
    return max(1, min(CHUNK_ENTRIES, CHUNK_BYTES // max(1, average_bytes)))
