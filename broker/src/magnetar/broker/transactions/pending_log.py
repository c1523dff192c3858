"""The log of one subscription's acknowledgements in transactions: a managed ledger that no topic has.

It is made by the first record. Records that come while it is opened wait; each is told of when it is durable. What the
log is trimmed by are the marks of the subscription's cursor, as far as these are durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.subscriptions.cursor import SubscriptionCursor
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.transactions.batched_writes import BatchedWrites, BatchLimits
from magnetar.broker.transactions.pending_index import TrimPoints
from magnetar.broker.transactions.pending_records import (
    PendingAckRecord,
    decode_records,
    encode_batch,
    encode_record,
)
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.limits import MIB
from magnetar.core.topic_name import TopicName, java_url_encode
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.entry_bitmap import value_of
from magnetar.managed.errors import ManagedLedgerClosed, ManagedLedgerNotFound
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings

logger: Final = logging.getLogger(__name__)

SUFFIX: Final = "__transaction_pending_ack"
CURSOR_NAME: Final = "__pending_ack_state"

REPLAY_ENTRIES: Final = 100
REPLAY_BYTES: Final = 5 * MIB

WAITING_RECORDS_MAX: Final = 10_000
"""Records that are not durable yet; further ones are refused. Bookies that take them take so many in a second."""

WAITING_BYTES_MAX: Final = 16 * MIB
"""Bytes of these: as much as one connection may have in publishes that are not stored."""

RECORD_BYTES: Final = 64
ENTRY_BYTES: Final = 32
WORD_BYTES: Final = 11
"""Bytes reckoned for a record, an id in it and a word of an ack set: at least as many as protobuf makes of them."""

RecordDone = Callable[[MagnetarError | None], None]


def log_name(topic: TopicName, subscription: str) -> str:
    """The managed ledger of a subscription's log, as Apache's broker calls it.

    It takes `<topic>-<subscription>__transaction_pending_ack` for the name of a topic: a slash in the subscription's
    name makes that one of Pulsar 1, with a cluster (MLPendingAckStore.getTransactionPendingAckStoreSuffix)."""
    parts = f"{topic.namespace_name}/{topic.local_name}-{subscription}{SUFFIX}".split("/", 3)
    return "/".join([*parts[:-1], topic.domain, java_url_encode(parts[-1])])


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAckLogs:
    """The parts that the pending-ack logs of a broker share."""

    ledgers: ManagedLedgerFactory
    settings: TransactionSettings
    runtime: SubscriptionRuntime
    limits: BatchLimits


class Waiting(NamedTuple):
    """A record that is not durable yet, and who hears of it."""

    record: PendingAckRecord
    size_bytes: int
    done: RecordDone


class LogEntry(NamedTuple):
    """Records that become one entry."""

    waiting: list[Waiting]
    batched: bool
    """Whether it has the form of several records, perhaps around a single one."""

    @property
    def records(self) -> list[PendingAckRecord]:
        """In order."""
        return [one.record for one in self.waiting]


class PendingAckLog:
    """One log. `open` comes before everything else."""

    __slots__ = (
        "_batches",
        "_cursor",
        "_logs",
        "_opened_with",
        "_persisting",
        "_points",
        "_queue",
        "_subscription_cursor",
        "_waiting_bytes",
        "_waiting_records",
        "closed",
        "ledger",
        "making",
        "name",
    )

    def __init__(self, logs: PendingAckLogs, name: str, subscription_cursor: SubscriptionCursor) -> None:
        self.name = name
        self.ledger: ManagedLedger | None = None
        self.making = False
        """Its ledger is being made: what is appended waits for it."""
        self.closed = False
        self._logs = logs
        self._subscription_cursor = subscription_cursor
        self._opened_with: ManagedLedgerSettings | None = None
        self._cursor: Cursor | None = None
        self._points = TrimPoints(logs.settings.pending_ack_index_lag_min)
        self._queue: list[LogEntry] = []
        self._batches: BatchedWrites[Waiting] = BatchedWrites(logs.limits, logs.runtime.call_later, self._push)
        self._waiting_records = 0
        self._waiting_bytes = 0
        self._persisting = False

    async def open(self, settings: ManagedLedgerSettings, *, create: bool) -> bool:
        """Open the ledger if there is one; whether there is now. Raises what the managed ledger raises."""
        self._opened_with = settings
        if self.ledger is not None:
            return True
        try:
            ledger = await self._logs.ledgers.open(self.name, settings, create=create)
        except ManagedLedgerNotFound:
            return False
        try:
            self._cursor = await ledger.open_cursor(CURSOR_NAME, EARLIEST)
        except BaseException:
            await asyncio.shield(ledger.abandon())
            raise
        self.ledger = ledger
        if self.closed:
            await ledger.close()
            raise ManagedLedgerClosed(self.name)
        return True

    async def replay(self) -> AsyncIterator[PendingAckRecord]:
        """The records that may still be needed, in order."""
        cursor = self._cursor
        if cursor is None:
            return
        cursor.rewind()
        while entries := await cursor.read(REPLAY_ENTRIES, REPLAY_BYTES):
            for entry in entries:
                records = decode_records(entry.data)
                self._points.appended(records, entry.position)
                needed = cursor.remaining_ack_set(entry.position)
                if needed is not None:
                    bits = value_of(needed)
                    records = [record for index, record in enumerate(records) if bits >> index & 1]
                for record in records:
                    yield record
        self._trim()

    @property
    def full(self) -> bool:
        """Whether so much waits to be stored that nothing more is taken."""
        return self._waiting_records >= WAITING_RECORDS_MAX or self._waiting_bytes >= WAITING_BYTES_MAX

    # --- appending

    def append(self, record: PendingAckRecord, done: RecordDone) -> None:
        """Store a record. Never waits; `done` hears later, in the order of the calls."""
        size_bytes = RECORD_BYTES + sum([ENTRY_BYTES + WORD_BYTES * len(entry.remaining) for entry in record.entries])
        self._waiting_records += 1
        self._waiting_bytes += size_bytes
        self._batches.add(Waiting(record, size_bytes, done), size_bytes)

    def _push(self, waiting: list[Waiting], batched: bool) -> None:
        entry = LogEntry(waiting, batched)
        if self.ledger is not None:
            self._send(self.ledger, entry)
            return
        self._queue.append(entry)
        if not self.making:
            self.making = True
            self._logs.runtime.spawn(self._make())

    async def _make(self) -> None:
        """Make the ledger, then send what has come meanwhile."""
        error: MagnetarError | None = None
        try:
            assert self._opened_with is not None, "opened before anything is appended"
            if self.closed:
                raise ManagedLedgerClosed(self.name)
            await self.open(self._opened_with, create=True)
        except MagnetarError as problem:
            error = problem
            logger.warning("%s cannot be made: %s", self.name, problem)
        finally:
            self.making = False
        queue, self._queue = self._queue, []
        for entry in queue:
            if error is not None or self.ledger is None:
                self._finished(entry, error if error is not None else ManagedLedgerClosed(self.name))
            else:
                self._send(self.ledger, entry)

    def _send(self, ledger: ManagedLedger, entry: LogEntry) -> None:
        data = encode_batch(entry.records) if entry.batched else encode_record(entry.records[0])
        ledger.appends.append([data], self._appended, entry)

    def _appended(self, error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
        assert isinstance(context, LogEntry)
        if error is None:
            self._points.appended(context.records, (ledger_id, first_entry_id))
        elif self.ledger is not None:
            logger.warning("%s does not take a record: %s", self.name, error)
            self.ledger.appends.ready_to_create_ledger()
        self._finished(context, error)
        if error is None:
            self._trim()

    def _finished(self, entry: LogEntry, error: MagnetarError | None) -> None:
        for one in entry.waiting:
            self._waiting_records -= 1
            self._waiting_bytes -= one.size_bytes
            one.done(error)

    # --- trimming

    def _trim(self) -> None:
        cursor = self._subscription_cursor
        mark = cursor.mark_delete
        if self._persisting or not self._points.due(mark):
            return
        self._persisting = True
        cursor.persist(lambda error: self._persisted(error, mark))

    def _persisted(self, error: MagnetarError | None, mark: Position) -> None:
        self._persisting = False
        if error is not None or self._cursor is None or self._cursor.closed:
            return  # The next record tries again.
        position = self._points.trimmed_up_to(mark)
        if position is not None:
            self._cursor.acknowledge_cumulative(position)

    async def forget_up_to(self, position: Position) -> None:
        """Nobody needs the log up to here once what the subscription has acknowledged is durable. Durable on return."""
        cursor = self._cursor
        if cursor is None:
            return
        for one in (self._subscription_cursor, cursor):
            if one is cursor:
                cursor.acknowledge_cumulative(position)
            stored, settle = settling()
            one.persist(settle)
            await stored

    # --- the end

    async def close(self) -> None:
        """Store nothing more; what waits for a ledger is told so."""
        self.closed = True
        self._batches.flush()
        ledger, self.ledger = self.ledger, None
        if ledger is not None:
            await ledger.close()

    async def abandon(self) -> None:
        """Write nothing: somebody else may have it."""
        self.closed = True
        ledger, self.ledger = self.ledger, None
        self._batches.flush()
        if ledger is not None:
            await ledger.abandon()


def settling() -> tuple[asyncio.Future[None], RecordDone]:
    """A future to await, and the callback that settles it. An error that nobody awaits is not logged."""
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(error: MagnetarError | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)
            outcome.exception()

    return outcome, settle
