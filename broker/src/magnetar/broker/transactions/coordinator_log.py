"""A coordinator's log in its managed ledger: appended to, acknowledged as transactions end, read again at the start.

Pulsar: `MLTransactionLogImpl`, `MLTransactionSequenceIdGenerator`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, cast

from magnetar.broker.slices import TimeSlice
from magnetar.broker.transactions.batched_writes import BatchedWrites, BatchLimits
from magnetar.broker.transactions.coordinator_table import LogPlace
from magnetar.broker.transactions.names import LOG_CURSOR, log_name
from magnetar.broker.transactions.records import MAX_LOCAL_TXN_ID, last_sequence_of, last_sequence_said
from magnetar.core.clock import CallLater
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST
from magnetar.core.limits import MIB
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.entry_bitmap import value_of, words_of
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.stats import ManagedLedgerStats
from magnetar.wire.pulsar.transaction_log import BadTransactionRecord, Record, decode, encode, encode_batch

logger: Final = logging.getLogger(__name__)

READ_ENTRIES: Final = 100
"""Entries asked for at a time, as Apache's does; records are small."""

READ_BYTES: Final = 4 * MIB
"""Of entries asked for at a time: the largest entry of several records."""

Stored = Callable[[MagnetarError | None, LogPlace], None]
"""Told once what became of an append, in the order of the appends. With an error the record may be stored or not."""


class _Appended(NamedTuple):
    """A record on its way to the disk."""

    record: Record
    stored: Stored


class CoordinatorLog:
    """The log of one coordinator, of which this broker is the only writer: whoever opens it fences the former one."""

    def __init__(self, ledger: ManagedLedger, cursor: Cursor, limits: BatchLimits, call_later: CallLater) -> None:
        self._ledger = ledger
        self._cursor = cursor
        self._batches: BatchedWrites[_Appended] = BatchedWrites(limits, call_later, self._push)
        self._look: asyncio.Task[None] | None = None
        """At the owner, under way; also one that is over."""
        self._next_look: asyncio.Task[None] | None = None
        """Begins when that one is over."""

    @staticmethod
    async def open(
        ledgers: ManagedLedgerFactory, coordinator: int, limits: BatchLimits, call_later: CallLater
    ) -> CoordinatorLog:
        """Take the log over, or make it. `BadTransactionRecord`, and what managed ledgers raise."""
        ledger = await ledgers.open(log_name(coordinator), said_by_last=_with_last_sequence)
        try:
            cursor = await ledger.open_cursor(LOG_CURSOR, EARLIEST)
        except BaseException:
            await ledger.abandon()
            raise
        return CoordinatorLog(ledger, cursor, limits, call_later)

    @property
    def last_sequence(self) -> int:
        """The newest id that was given before this broker came; -1 for none."""
        return last_sequence_said(self._ledger.properties)

    def note_last_sequence(self, sequence: int) -> None:
        """An id was given: from now on the list of ledgers says so whenever it is written."""
        self._ledger.note_property(MAX_LOCAL_TXN_ID, str(sequence))

    async def replay(self, take: Callable[[LogPlace, Record], None]) -> None:
        """Hand out every record that is not acknowledged, oldest first, in turns with other work.
        `BadTransactionRecord`, and what managed ledgers raise."""
        self._cursor.rewind()
        turn = TimeSlice()
        while entries := await self._cursor.read(READ_ENTRIES, READ_BYTES):
            for entry in entries:
                if turn.over:
                    await turn.pause()
                try:
                    records = decode(entry.data)
                except BadTransactionRecord as error:
                    raise BadTransactionRecord(
                        f"{self._ledger.name} at {entry.ledger_id}:{entry.entry_id}: {error}"
                    ) from None
                left = _left(self._cursor, entry.position)
                for index, record in enumerate(records):
                    if left is None or left >> index & 1:
                        take(LogPlace(entry.position, index, len(records)), record)

    def append(self, record: Record, stored: Stored) -> None:
        """Store a record, perhaps in one entry with others; `stored` is never called from inside."""
        self._batches.add(_Appended(record, stored), record.ByteSize())

    def _push(self, appended: list[_Appended], batched: bool) -> None:
        data = encode_batch([one.record for one in appended]) if batched else encode(appended[0].record)
        self._ledger.appends.append([data], self._done, appended)

    def _done(self, error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
        appended = cast("list[_Appended]", context)
        for index, one in enumerate(appended):
            one.stored(error, LogPlace((ledger_id, first_entry_id), index, len(appended)))

    def acknowledge(self, places: Iterable[LogPlace]) -> None:
        """These records are needed no more. Stored with the next write of the cursor: one that is lost is found again
        by the next replay, which drops it then."""
        whole = []
        for place in places:
            if place.records == 1:
                whole.append(place.position)
            else:
                self._cursor.acknowledge_batch_indexes(
                    place.position, _all_but(place.record, place.records), place.records
                )
        if whole:
            self._cursor.acknowledge(whole)

    def stats(self) -> ManagedLedgerStats:
        """Statistics of the log for administrators."""
        return self._ledger.internal_stats()

    async def check_owner(self) -> None:
        """`ManagedLedgerFenced` when another broker has taken the log over, and what managed ledgers raise.

        All who ask while the store is being read share the next read: one that began before a question may show what
        was so before it. So however many ask, one read is under way and one waits, also when the store is slow."""
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().create_task(self._look_after(self._look))
            self._next_look.add_done_callback(_looked_at)
        await asyncio.shield(self._next_look)

    async def _look_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._look, self._next_look = self._next_look, None
        await self._ledger.check_owner()

    @property
    def ledger(self) -> ManagedLedger:
        """The managed ledger."""
        return self._ledger

    async def close(self) -> None:
        """Store what waits and what is acknowledged, and let go."""
        self._batches.flush()
        await self._ledger.close()

    async def abandon(self) -> None:
        """Let go at once and write nothing."""
        await self._ledger.abandon()
        # Whoever waits for these hears that they are not stored.
        self._batches.flush()


def _looked_at(look: asyncio.Task[None]) -> None:
    """Nobody may wait any more for its error."""
    if not look.cancelled():
        look.exception()


def _with_last_sequence(entry: bytes, properties: Mapping[str, str]) -> Mapping[str, str]:
    """The properties with the last id that was given: the log's last entry may know one later than they do."""
    stored = last_sequence_said(properties)
    return {**properties, MAX_LOCAL_TXN_ID: str(max(stored, last_sequence_of(entry)))}


def _left(cursor: Cursor, position: tuple[int, int]) -> int | None:
    """Which records of an entry are not acknowledged, as bits; None: all."""
    words = cursor.remaining_ack_set(position)
    return None if words is None else value_of(words)


def _all_but(index: int, count: int) -> list[int]:
    return words_of(((1 << count) - 1) & ~(1 << index))
