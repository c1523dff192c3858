"""The log of one subscription's acknowledgements in transactions: a managed ledger that no topic has.

It is made by the first record. Records that come while it is opened wait; each is told of when it is durable. What the
log is trimmed by are the marks of the subscription's cursor, as far as these are durable.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.subscriptions.cursor import SubscriptionCursor
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.transactions.pending_index import TrimPoints
from magnetar.broker.transactions.pending_records import (
    PendingAckRecord,
    decode_records,
    encode_batch,
    encode_record,
)
from magnetar.core.clock import TimerHandle
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
"""What these have in bytes: as much as one connection may have in publishes that are not stored."""

RECORD_BYTES: Final = 64
ENTRY_BYTES: Final = 32
WORD_BYTES: Final = 11
"""What records, the ids in them and the words of their ack sets are taken for: at least what protobuf makes of them."""

RecordDone = Callable[[MagnetarError | None], None]


def log_name(topic: TopicName, subscription: str) -> str:
    """The managed ledger of a subscription's log, as Apache's broker calls it.

    It takes `<topic>-<subscription>__transaction_pending_ack` for the name of a topic: a slash in the subscription's
    name makes that one of Pulsar 1, with a cluster (MLPendingAckStore.getTransactionPendingAckStoreSuffix)."""
    parts = f"{topic.namespace_name}/{topic.local_name}-{subscription}{SUFFIX}".split("/", 3)
    return "/".join([*parts[:-1], topic.domain, java_url_encode(parts[-1])])


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAckLogs:
    """What the logs of a broker share."""

    ledgers: ManagedLedgerFactory
    settings: TransactionSettings
    runtime: SubscriptionRuntime


class LogEntry:
    """Records that become one entry, and who hears of it."""

    __slots__ = ("batched", "done", "records", "size_bytes")

    def __init__(self, *, batched: bool) -> None:
        self.batched = batched
        """Whether it has the form of several records, perhaps around a single one."""
        self.records: list[PendingAckRecord] = []
        self.size_bytes = 0
        self.done: list[RecordDone] = []

    def add(self, record: PendingAckRecord, size_bytes: int, done: RecordDone) -> None:
        """One more record."""
        self.records.append(record)
        self.size_bytes += size_bytes
        self.done.append(done)


class PendingAckLog:
    """One log. `open` comes before everything else."""

    __slots__ = (
        "_batch",
        "_batch_timer",
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
        self._batch: LogEntry | None = None
        self._batch_timer: TimerHandle | None = None
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
        self._cursor = await ledger.open_cursor(CURSOR_NAME, EARLIEST)
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
        settings = self._logs.settings
        size_bytes = RECORD_BYTES + sum([ENTRY_BYTES + WORD_BYTES * len(entry.remaining) for entry in record.entries])
        self._waiting_records += 1
        self._waiting_bytes += size_bytes
        if not settings.pending_ack_batched or size_bytes >= settings.pending_ack_batch_bytes_max:
            self._flush()
            alone = LogEntry(batched=False)
            alone.add(record, size_bytes, done)
            self._push(alone)
            return
        batch = self._batch
        if batch is None:
            batch = self._batch = LogEntry(batched=True)
            delay_seconds = settings.pending_ack_batch_delay_ms / 1_000
            self._batch_timer = self._logs.runtime.call_later(delay_seconds, self._flush)
        batch.add(record, size_bytes, done)
        records_max, bytes_max = settings.pending_ack_batch_records_max, settings.pending_ack_batch_bytes_max
        if len(batch.records) >= records_max or batch.size_bytes >= bytes_max:
            self._flush()

    def _flush(self) -> None:
        batch, self._batch = self._batch, None
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        if batch is not None:
            self._push(batch)

    def _push(self, waiting: LogEntry) -> None:
        if self.ledger is not None:
            self._send(self.ledger, waiting)
            return
        self._queue.append(waiting)
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
        for waiting in queue:
            if error is not None or self.ledger is None:
                self._finished(waiting, error if error is not None else ManagedLedgerClosed(self.name))
            else:
                self._send(self.ledger, waiting)

    def _send(self, ledger: ManagedLedger, waiting: LogEntry) -> None:
        data = encode_batch(waiting.records) if waiting.batched else encode_record(waiting.records[0])
        ledger.appends.append([data], self._appended, waiting)

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

    def _finished(self, waiting: LogEntry, error: MagnetarError | None) -> None:
        self._waiting_records -= len(waiting.records)
        self._waiting_bytes -= waiting.size_bytes
        for done in waiting.done:
            done(error)

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

    # --- the end

    async def close(self) -> None:
        """Store nothing more; what waits for a ledger is told so."""
        self.closed = True
        self._flush()
        ledger, self.ledger = self.ledger, None
        if ledger is not None:
            await ledger.close()

    async def abandon(self) -> None:
        """Write nothing: somebody else may have it."""
        self.closed = True
        ledger, self.ledger = self.ledger, None
        self._flush()
        if ledger is not None:
            await ledger.abandon()
