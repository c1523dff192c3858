"""The cursor of who wants a compacted view: what compaction left, then the topic from its horizon on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.broker.compaction.compacted_topic import Compaction, compaction_of, read_compacted, sized
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, NO_ENTRY, Position
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

NOTHING: Final[Position] = (NO_ENTRY, NO_ENTRY)


class CompactedCursor:
    """A `SubscriptionCursor` over another one, durable or not. Nothing before `start` is read.

    Each read asks where the newest compaction's horizon is: before it the compacted ledger is read, behind it the
    topic. So a reader that is overtaken by a compaction gets from its ledger what trimming has taken from the topic.
    The ledger's entries stand in the order of their positions: where reading goes on is searched for among them
    (Pulsar: `CompactedTopicImpl.findStartPoint`). `compaction` says what there is, for tests."""

    def __init__(
        self,
        ledger: ManagedLedger,
        cursor: Cursor,
        start: Position,
        compaction: Callable[[ManagedLedger], Compaction | None] = compaction_of,
    ) -> None:
        self.cursor_properties = cursor.cursor_properties
        self.inner = cursor
        """The cursor of the topic's own entries."""
        self._ledger = ledger
        self._compaction_of = compaction
        self._start = self._resolved(start)
        self._from = self._start
        """Nothing before it is read now."""
        self._ledger_id = NO_ENTRY
        """The compacted ledger that is read."""
        self._reader: LedgerReader | None = None
        self._next: int | None = None
        """The compacted ledger's next entry; None while it is to be searched for."""
        self._chunk: list[Entry] = []
        self._chunk_first = 0
        self._acknowledged: Position = NOTHING
        """Up to here a client has acknowledged what the topic itself may not have any more."""
        self._closed = False

    def _resolved(self, position: Position) -> Position:
        if position == EARLIEST:
            return FIRST
        return self._ledger.start_of_reading(LATEST) if position >= LATEST else position

    def _before_horizon(self) -> Compaction | None:
        """The compaction whose ledger has what is read next; None when the topic has."""
        compaction = None if self._closed else self._compaction_of(self._ledger)
        return None if compaction is None or self._from > compaction.horizon else compaction

    def _behind_horizon(self) -> Cursor:
        """The cursor of the topic, which reads on where this one is."""
        if self.inner.read_position < self._from:
            self.inner.skip_to(self._from)
        return self.inner

    # --- reading

    @property
    def read_position(self) -> Position:
        """The next entry to read."""
        if self._before_horizon() is None:
            return max(self.inner.read_position, self._from)
        at = self._place()
        return self._from if at is None else self._chunk[at].position

    def _place(self) -> int | None:
        """Where the next entry is in the chunk, if it is there."""
        at = -1 if self._next is None else self._next - self._chunk_first
        return at if 0 <= at < len(self._chunk) else None

    def read_cached(self, count_max: int, size_bytes_max: int) -> list[Entry] | None:
        """Entries at hand; None when the next one has to be read."""
        while (compaction := self._before_horizon()) is not None:
            entries = self._at_hand(compaction, count_max, size_bytes_max)
            if entries is None or entries:
                return entries
        return self._passed(self._behind_horizon().read_cached(count_max, size_bytes_max))

    async def read(self, count_max: int, size_bytes_max: int) -> list[Entry]:
        """Entries from wherever they are."""
        while (compaction := self._before_horizon()) is not None:
            entries = self._at_hand(compaction, count_max, size_bytes_max)
            if entries:
                return entries
            if entries is None:
                await self._read_chunk(compaction)
        return self._passed(await self._behind_horizon().read(count_max, size_bytes_max)) or []

    def _at_hand(self, compaction: Compaction, count_max: int, size_bytes_max: int) -> list[Entry] | None:
        """The next entries of the chunk; none when they are acknowledged, None when they are not in there."""
        if compaction.ledger_id != self._ledger_id:
            self._ledger_id, self._next, self._chunk = compaction.ledger_id, None, []
        at = self._place()
        if at is None:
            return None
        entries = sized(self._chunk[at:], count_max, size_bytes_max)
        self._next = self._chunk_first + at + len(entries)
        self._from = _after(entries[-1].position)
        return [entry for entry in entries if not self.is_acknowledged(entry.position)]

    def _passed(self, entries: list[Entry] | None) -> list[Entry] | None:
        """Entries of the topic itself, behind which reading goes on."""
        if entries:
            self._from = _after(entries[-1].position)
        return entries

    async def _read_chunk(self, compaction: Compaction) -> None:
        reader = await self._open(compaction.ledger_id)
        if reader is None:
            return
        before = (self._ledger_id, self._next, self._from)
        first = await self._search(reader) if self._next is None else self._next
        last = min(reader.last_add_confirmed, first + _chunk_entries(reader) - 1)
        chunk = await read_compacted(reader, first, last) if first <= last else []
        if self._closed or (self._ledger_id, self._next, self._from) != before:
            return  # Moved while we waited.
        self._chunk, self._chunk_first = chunk, first
        if chunk:
            self._next = first + bisect_left(chunk, self._from, key=_position)
        else:
            self._from = self._ledger.ledgers.next_position(compaction.horizon)
            self._next = None

    async def _open(self, ledger_id: int) -> LedgerReader | None:
        """The reader of a compacted ledger; None when nobody wants it any more."""
        reader = self._reader
        if reader is not None and reader.ledger_id == ledger_id:
            return reader
        self._reader = None
        if reader is not None:
            await reader.close()
        opened = await self._ledger.open_other(ledger_id)
        if self._is_unwanted(ledger_id):
            # Closed, or replaced by a later compaction, while it was opened.
            await opened.close()
            return None
        self._reader = opened
        return opened

    def _is_unwanted(self, ledger_id: int) -> bool:
        return self._closed or self._ledger_id != ledger_id

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

    async def read_positions(self, positions: Sequence[Position]) -> list[Entry]:
        """Those of the entries that the topic still has: who reads compacted gets nothing again one by one."""
        return await self.inner.read_positions(positions)

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        self.inner.rewind()
        self._go_to(_after(self._acknowledged))

    def skip_to(self, position: Position) -> None:
        """Read on from here."""
        self._go_to(position)
        if self._before_horizon() is None:
            self.inner.skip_to(self._from)

    def _go_to(self, position: Position) -> None:
        mark = self.inner.mark_delete
        # (Ledger, -1) says nothing of the ledgers before it: they may have been trimmed, and be left by compaction.
        acknowledged = _after(mark) if mark[1] != NO_ENTRY else FIRST
        self._from = max(position, self._start, acknowledged)
        chunk = self._chunk
        if chunk and chunk[0].position <= self._from <= chunk[-1].position:
            self._next = self._chunk_first + bisect_left(chunk, self._from, key=_position)
        else:
            self._next = None

    # --- acknowledging

    @property
    def durable(self) -> bool:
        """Whether the cursor is kept in the store."""
        return self.inner.durable

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""
        return self.inner.mark_delete

    @property
    def backlog_entries(self) -> int:
        """Entries that are not acknowledged, of the topic itself; of what only compaction left, those at hand."""
        return self.inner.backlog_entries + len(self._only_compacted())

    def _only_compacted(self) -> list[Entry]:
        """Entries at hand which the topic itself has no more."""
        at = self._place()
        if at is None or self._closed or not self._chunk[at].position < self._ledger.ledgers.first_position():
            return []
        end = bisect_left(self._chunk, self._ledger.ledgers.first_position(), key=_position)
        return self._chunk[at:end]

    def acknowledge(self, positions: Sequence[Position]) -> None:
        """Acknowledge single entries."""
        self.inner.acknowledge(positions)

    def acknowledge_batch_indexes(self, position: Position, remaining: list[int], batch_size: int) -> bool:
        """Messages of a batch; whether the entry became wholly acknowledged."""
        return self.inner.acknowledge_batch_indexes(position, remaining, batch_size)

    def acknowledge_cumulative(self, position: Position, remaining: list[int] | None = None) -> None:
        """Everything up to the position; with `remaining` the last entry only in part."""
        if position <= self._ledger.last_confirmed:
            whole = position if not any(remaining or ()) else (position[0], position[1] - 1)
            self._acknowledged = max(self._acknowledged, whole)
        self.inner.acknowledge_cumulative(position, remaining)

    def is_acknowledged(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        if position < self._ledger.ledgers.first_position():
            return position <= self._acknowledged
        return self.inner.is_acknowledged(position)

    def remaining_ack_set(self, position: Position) -> list[int] | None:
        """The ack set of a batch that is acknowledged in part."""
        return self.inner.remaining_ack_set(position)

    def redelivered(self, positions: Sequence[Position]) -> None:
        """Clients asked for these entries again."""
        self.inner.redelivered(positions)

    def redelivery_counts(self, entries: list[Entry]) -> list[int] | None:
        """How often each of the entries was asked for again."""
        return self.inner.redelivery_counts(entries)

    def unacknowledged_at(self, number: int) -> Position:
        """The `number`-th entry of the backlog, from 1."""
        at_hand = self._only_compacted()
        return (
            at_hand[number - 1].position
            if number <= len(at_hand)
            else self.inner.unacknowledged_at(number - len(at_hand))
        )

    @property
    def individual_ranges(self) -> int:
        """Stretches beyond the mark that are acknowledged."""
        return self.inner.individual_ranges

    @property
    def state_fits(self) -> bool:
        """Whether all that is acknowledged beyond the mark is stored."""
        return self.inner.state_fits

    async def reset(self, position: Position) -> None:
        """Seek: reading goes on at the position."""
        await self.inner.reset(position)
        self._acknowledged = NOTHING
        # Not where the topic's own entries begin: what was trimmed before may be left by compaction.
        self._start = self._from = self._resolved(position)
        self._next = None

    async def skip_entries(self, count: int) -> None:
        """Acknowledge the next unacknowledged entries."""
        await self.inner.skip_entries(count)

    async def clear_backlog(self) -> None:
        """Acknowledge the whole backlog."""
        self._acknowledged = self._ledger.last_confirmed
        self._go_to(_after(self._acknowledged))
        await self.inner.clear_backlog()

    def persist(self, done: Callable[[MagnetarError | None], None]) -> None:
        """Tell when what is acknowledged now is durable."""
        self.inner.persist(done)

    async def let_go(self) -> Cursor:
        """Read no more; the cursor of the topic's own entries, which goes on."""
        self._closed = True
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        return self.inner

    async def close(self) -> None:
        """Store what is acknowledged, and read no more."""
        await self.let_go()
        await self.inner.close()


def _after(position: Position) -> Position:
    return (position[0], position[1] + 1)


def _position(entry: Entry) -> Position:
    return entry.position


def _chunk_entries(reader: LedgerReader) -> int:
    """How many entries of a ledger make a chunk."""
    average_bytes = reader.length_bytes // (reader.last_add_confirmed + 1) if reader.last_add_confirmed >= 0 else 0
    return max(1, min(CHUNK_ENTRIES, CHUNK_BYTES // max(1, average_bytes)))
