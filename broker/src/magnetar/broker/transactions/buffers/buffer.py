"""One topic's transaction buffer: which of its messages count, and the snapshots by which the next owner knows it.

The messages of a transaction are stored at once, as all others are. Until it ends nothing from its first message on is
sent to anybody; how it ended is a marker in the topic. A snapshot says that there may be such messages, where to begin
to read for markers, and which transactions were aborted before. So the first snapshot comes before the first message:
a broker that finds none takes everything in the topic for committed.

A message that comes after the end of its transaction is refused. This owner remembers the ends that it was told of, and
what the markers say that it has read. About a transaction that may have ended before it came, or too long ago, it asks
the coordinator before it takes the first message (`standings`): to abort it then would hide what was committed.

Facts: transactions-dedup-compaction 1.6; Pulsar `TopicTransactionBuffer`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.slices import TimeSlice, in_slices
from magnetar.broker.states import BUFFER_TRANSITIONS, BufferState
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.subscriptions.visibility import TransactionBits, Visibility
from magnetar.broker.transactions.buffers.buffer_table import BufferTable
from magnetar.broker.transactions.buffers.markers import end_marker
from magnetar.broker.transactions.buffers.snapshot_codec import Snapshot
from magnetar.broker.transactions.buffers.snapshot_store import SnapshotStore, TopicSegments
from magnetar.broker.transactions.standings import TransactionStandings
from magnetar.core.clock import TimerHandle
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.limits import MIB
from magnetar.core.topic_name import TopicName
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.metadata import MessageMetadataView

logger: Final = logging.getLogger(__name__)

RECOVERY_CURSOR: Final = "transaction-buffer-sub"
"""Reads what came after the snapshot; never stored."""

REPLAY_ENTRIES: Final = 500
REPLAY_BYTES: Final = 5 * MIB

SETTLING_SECONDS: Final = 0.002
"""Between two looks whether what was published before the first transactional message is stored."""

FORGOTTEN_AT_ONCE: Final = 1_000
"""Aborted transactions whose messages are gone: many may go with one ledger."""

OPEN_MAX: Final = 100_000
"""Open transactions of one topic. Each takes some hundred bytes, and nobody but the coordinator, who is not asked,
knows whether there is such a transaction at all."""

ASKED_AT_ONCE: Final = 4
"""About the transactions of one producer, so that its questions leave room for those of others."""


class _Marker:
    """A marker on its way to the disk."""

    __slots__ = ("commit", "stored", "transaction")

    def __init__(self, transaction: TransactionBits, *, commit: bool) -> None:
        self.transaction = transaction
        self.commit = commit
        self.stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class VisibleEntries:
    """The view of a topic that compaction has: without open transactions, and without aborted ones."""

    __slots__ = ("_buffer",)

    def __init__(self, buffer: TransactionBuffer) -> None:
        self._buffer = buffer

    def end(self) -> Position:
        """The last entry before the oldest open transaction."""
        return self._buffer.max_read_position

    def hides(self, metadata: MessageMetadataView) -> bool:
        """Whether it is a marker, or of an aborted transaction."""
        return metadata.marker_type >= 0 or self._buffer.hides((metadata.txnid_most_bits, metadata.txnid_least_bits))


class TransactionBuffer:
    """Owned by its topic, which tells it what is stored."""

    __slots__ = (
        "_call_later",
        "_changes",
        "_clock",
        "_ending",
        "_first_snapshot_over",
        "_ledger",
        "_reached",
        "_settings",
        "_since",
        "_snapshots",
        "_spawn",
        "_standings",
        "_sweeping",
        "_terminating",
        "_timer",
        "_writing",
        "has_snapshot",
        "last_snapshot_ms",
        "on_failure",
        "recovery_ended_ms",
        "recovery_started_ms",
        "state",
        "table",
        "topic",
        "unstored",
        "visibility",
    )

    def __init__(
        self,
        topic: TopicName,
        ledger: ManagedLedger,
        snapshots: SnapshotStore,
        runtime: SubscriptionRuntime,
        settings: TransactionSettings,
        standings: TransactionStandings | None,
    ) -> None:
        """`standings`: by whom coordinators are asked; None: by nobody."""
        self.state = BufferState.NONE
        self.table = BufferTable()
        self.visibility = Visibility(self.table.aborted)
        self.has_snapshot = False
        """Whether there is one of this topic."""
        self.last_snapshot_ms = 0
        self.recovery_started_ms = 0
        self.recovery_ended_ms = 0
        self.on_failure: Callable[[MagnetarError], None] | None = None
        """Told when a marker could not be stored."""
        self.topic = topic
        self._ledger = ledger
        self._snapshots = snapshots
        self._clock = runtime.clock
        self._spawn = runtime.spawn
        self._call_later = runtime.call_later
        self._settings = settings
        self._standings = standings
        self._since = 0 if standings is None else standings.moment()
        self._first_snapshot_over: asyncio.Event | None = None
        """While the first snapshot is written: set when that is over."""
        self._ending: dict[TransactionBits, _Marker] = {}
        """Markers on their way. Coordinators ask again every few seconds for as long as one is not stored."""
        self._reached: Position = EARLIEST
        """The furthest that could be read so far."""
        self._changes = 0
        """How often that has moved since the last snapshot."""
        self._writing = False
        self._sweeping = False
        self._timer: TimerHandle | None = None
        self.unstored = 0
        """Batches with messages of transactions that are on their way to the disk."""
        self._terminating: asyncio.Event | None = None
        """While the topic is to be terminated: set when nothing is on its way."""

    @property
    def entries(self) -> VisibleEntries:
        """The view of the topic for compaction."""
        return VisibleEntries(self)

    @property
    def max_read_position(self) -> Position:
        """Everything up to here may be sent."""
        first = self.table.first_open
        return self._ledger.last_confirmed if first is None else self._ledger.ledgers.previous_position(first)

    @property
    def snapshot_kind(self) -> str:
        """How its snapshots are kept."""
        return self._snapshots.kind

    @property
    def segments(self) -> TopicSegments | None:
        """The segments of its snapshots; None where these are of one message."""
        return self._snapshots.segments(self.topic)

    def hides(self, transaction: TransactionBits) -> bool:
        """Whether messages of this transaction never count."""
        return transaction in self.table.aborted

    # --- taking over

    async def recover(self) -> None:
        """Learn what the former owner knew. Raises `PulsarError` when there is no way to its snapshot now, or what the
        ledger raises."""
        self._become(BufferState.INITIALIZING)
        self.recovery_started_ms = self._clock.now_ms()
        try:
            found = await self._snapshots.read(self.topic, self._ledger.ledgers.ids[0])
        except MagnetarError as error:
            # Coordinators and clients come back after this code.
            text = f"The transactions of topic {self.topic} are not known yet: {error}"
            raise PulsarError(ServerError.SERVICE_NOT_READY, text) from error
        self.has_snapshot = found is not None
        if found is not None:
            snapshot, aborted = found
            self.table.restore(aborted)
            await self._replay(snapshot.max_read_position)
        self.recovery_ended_ms = self._clock.now_ms()
        if self._is(BufferState.CLOSE):
            return
        self._become(BufferState.READY if found is not None else BufferState.NO_SNAPSHOT)
        self._reached = self.max_read_position
        self._show()

    async def _replay(self, reached: Position) -> None:
        ledger = self._ledger
        if reached >= ledger.last_confirmed:
            return
        start = EARLIEST if reached[0] < 0 else ledger.ledgers.next_position(reached)
        cursor = ledger.new_non_durable_cursor(RECOVERY_CURSOR, start)
        turn = TimeSlice()
        try:
            while entries := await cursor.read(REPLAY_ENTRIES, REPLAY_BYTES):
                for entry in entries:
                    self.table.take(entry)
                if turn.over:
                    await turn.pause()
        finally:
            await cursor.close()

    # --- messages

    def refusal(self, transaction: TransactionBits) -> str:
        """Why no message of this transaction may be stored; empty: it may."""
        if self.table.has_ended(transaction) or transaction in self._ending:
            most_bits, least_bits = transaction
            name = f"({most_bits},{least_bits})"
            return f"Transaction [{name}] has been ended. Please use a new transaction to send message."
        if self._terminating is not None:
            return f"Topic {self.topic} is being terminated"
        if len(self.table.open) >= OPEN_MAX and transaction not in self.table.open:
            return f"The topic has {OPEN_MAX} open transactions"
        return ""

    def doubts(self, transactions: Iterable[TransactionBits | None]) -> list[TransactionBits]:
        """Those of which nobody here knows whether they have ended: `settle` comes before their messages."""
        if self._standings is None:
            return []
        table = self.table
        named = [one for one in dict.fromkeys(transactions) if one is not None]
        return [one for one in named if table.in_doubt(one) and one not in self._ending]

    async def settle(self, doubts: Sequence[TransactionBits]) -> None:
        """Learn from their coordinators whether these are open. Raises a `MagnetarError` or `TimeoutError` when nobody
        can tell now."""
        standings, table = self._standings, self.table
        assert standings is not None, "without anybody to ask nothing is in doubt"

        async def ask(one: TransactionBits) -> None:
            if await standings.is_open(one, self._since, table.earlier):
                table.vouch(one)
            else:
                table.end_unmarked(one)

        await in_slices(ask, doubts, ASKED_AT_ONCE)

    @property
    def lacks_snapshot(self) -> bool:
        """Whether `first_snapshot` comes before any transactional message."""
        return self.state is BufferState.NO_SNAPSHOT

    @property
    def in_use(self) -> bool:
        """Whether a transaction has written to the topic, or is about to: markers mean something from then on."""
        return self.state is not BufferState.NO_SNAPSHOT

    async def first_snapshot(self) -> None:
        """Say that there may be transactional messages from here on. Raises what the snapshots raise."""
        self._become(BufferState.FIRST_SNAPSHOTTING)
        over = self._first_snapshot_over = asyncio.Event()
        try:
            # Behind the snapshot the next owner believes every marker, and nobody has looked at these messages.
            while self._is(BufferState.FIRST_SNAPSHOTTING):
                if not self._ledger.appends.pending_entries:
                    break
                await asyncio.sleep(SETTLING_SECONDS)
            await self._snapshots.write(self._snapshot(), ())
            self.has_snapshot = True
            self.last_snapshot_ms = self._clock.now_ms()
            self._after_first_snapshot(BufferState.READY)
        finally:
            self._after_first_snapshot(BufferState.NO_SNAPSHOT)
            over.set()

    def _after_first_snapshot(self, state: BufferState) -> None:
        if self.state is BufferState.FIRST_SNAPSHOTTING:
            self._become(state)

    def stored(
        self, transactions: Sequence[TransactionBits | None] | None, ledger_id: int, first_entry_id: int
    ) -> None:
        """Messages are stored one after the other, some of them in transactions; None: none of them."""
        if transactions is None:
            if self.state is BufferState.READY and not self.table.open:
                self._changed()
            return
        before: TransactionBits | None = None
        for entry_id, transaction in enumerate(transactions, first_entry_id):
            if transaction is not None and transaction != before:
                self.table.stored(transaction, (ledger_id, entry_id))
            before = transaction
        self._show()
        self._moved()
        self.not_stored()

    def not_stored(self) -> None:
        """Of the batches on their way one is no more."""
        self.unstored -= 1
        if self._terminating is not None and not self.unstored:
            self._terminating.set()

    # --- the end of a transaction

    async def end(self, transaction: TransactionBits, *, commit: bool, low_water_mark: int) -> None:
        """Its messages count, or never will; durable on return. A transaction that has ended may end again.

        The coordinator knows none of its own any more up to `low_water_mark`. Raises `PulsarError` for a topic that is
        being closed, or what the ledger raises."""
        while self._is(BufferState.FIRST_SNAPSHOTTING):
            # Messages of it may wait for this.
            assert self._first_snapshot_over is not None
            await self._first_snapshot_over.wait()
        if self._is(BufferState.CLOSE):
            raise PulsarError(ServerError.SERVICE_NOT_READY, f"Topic {self.topic} is being unloaded")
        if self._ledger.terminated and transaction not in self.table.open:
            return  # It has nothing here, and there can be no marker.
        if commit or self.state is BufferState.READY:
            await self._store_marker(transaction, commit=commit)
        else:
            self.table.end_unmarked(transaction)
        self.table.raise_low_water_mark(transaction[0], low_water_mark)
        if self.table.lost is not None and not self._sweeping:
            self._sweeping = True
            self._spawn(self._abort_lost())

    async def terminate(self) -> Position:
        """Have the topic take no entries any more; its last position. `PulsarError` while transactions are open: their
        ends could not be stored, and what comes after their beginning would never be sent."""
        stored = self._terminating = asyncio.Event()
        try:
            if self.unstored:
                await stored.wait()
            if self.table.open:
                text = f"Topic {self.topic} has {len(self.table.open)} open transactions"
                raise PulsarError(ServerError.SERVICE_NOT_READY, text)
            return await self._ledger.terminate()
        finally:
            self._terminating = None

    async def _store_marker(self, transaction: TransactionBits, *, commit: bool) -> None:
        marker = self._ending.get(transaction)
        if marker is None or marker.commit is not commit:
            marker = self._ending[transaction] = _Marker(transaction, commit=commit)
            marker.stored.add_done_callback(_looked_at)
            payload = end_marker(transaction, commit=commit, publish_time_ms=self._clock.now_ms())
            self._ledger.appends.append([payload], self._marker_stored, marker)
        await asyncio.shield(marker.stored)

    def _marker_stored(self, error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
        assert isinstance(context, _Marker)
        marker, table = context, self.table
        if self._ending.get(marker.transaction) is marker:
            del self._ending[marker.transaction]
        if error is not None:
            marker.stored.set_exception(error)
            if self.on_failure is not None:
                self.on_failure(error)
            return
        if marker.commit:
            table.commit(marker.transaction)
            table.committed_count += 1
        else:
            table.abort(marker.transaction, (ledger_id, first_entry_id))
            table.aborted_count += 1
        table.forget_before(self._ledger.ledgers.first_position()[0], FORGOTTEN_AT_ONCE)
        self._show()
        self._moved()
        if self._changes >= self._settings.snapshot_changes_max:
            self._take_snapshot()
        marker.stored.set_result(None)

    async def abort(self, transaction: TransactionBits) -> None:
        """No coordinator will end it. Raises as `end` does."""
        if self.state is BufferState.READY and transaction in self.table.open and transaction not in self._ending:
            await self._store_marker(transaction, commit=False)

    async def _abort_lost(self) -> None:
        """End those of which their coordinators know nothing any more."""
        try:
            while self.state is BufferState.READY and (lost := self.table.lost) is not None:
                logger.warning("%s: transaction %d:%d is unknown to its coordinator: aborted", self.topic, *lost)
                await self._store_marker(lost, commit=False)
        except MagnetarError as error:
            # The end of the next transaction tries again.
            logger.warning("%s: transactions without a coordinator are not aborted now: %s", self.topic, error)
        finally:
            self._sweeping = False

    # --- what is shown, and kept

    def _show(self) -> None:
        first = self.table.first_open
        self.visibility.hidden_from = LATEST if first is None else first

    def _moved(self) -> None:
        reached = self.max_read_position
        if reached > self._reached:
            self._reached = reached
            self._changed()

    def _changed(self) -> None:
        if self.state is not BufferState.READY:
            return
        self._changes += 1
        if self._timer is None:
            self._timer = self._call_later(self._settings.snapshot_interval_ms / 1000, self._snapshot_due)

    def _snapshot_due(self) -> None:
        self._timer = None
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        if self._changes and not self._writing and self.state is BufferState.READY:
            self._writing = True
            self._spawn(self._write_snapshot())

    async def _write_snapshot(self) -> None:
        changes, self._changes = self._changes, 0
        try:
            await self._snapshots.write(self._snapshot(), list(self.table.aborted.items()))
            self.last_snapshot_ms = self._clock.now_ms()
        except MagnetarError as error:
            # What there is says less, and is not wrong: the next owner reads more of the topic.
            logger.warning("%s: no snapshot of its transactions now, the next one may be: %s", self.topic, error)
            self._changes += changes
        finally:
            self._writing = False
        if self._changes and self._timer is None and self.state is BufferState.READY:
            self._timer = self._call_later(self._settings.snapshot_interval_ms / 1000, self._snapshot_due)

    def _snapshot(self) -> Snapshot:
        return Snapshot(str(self.topic), self.max_read_position)

    # --- with the topic

    def close(self) -> None:
        """The topic is let go of; twice is no error."""
        self._become(BufferState.CLOSE)
        self._snapshots.release(self.topic)
        self.on_failure = None  # The topic's, which would wait for the collector of cycles.
        if self._first_snapshot_over is not None:
            self._first_snapshot_over.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def forget(self) -> None:
        """The topic is deleted, and with it what is kept of its transactions."""
        if not self.has_snapshot:
            return
        try:
            await self._snapshots.delete(self.topic)
        except MagnetarError as error:
            # It does no harm: a topic of this name begins with ledgers of which the snapshot says nothing.
            logger.warning("%s is deleted, a snapshot of its transactions stays: %s", self.topic, error)

    def _is(self, state: BufferState) -> bool:
        """The state of this moment; it may have changed during any wait."""
        return self.state is state

    def _become(self, state: BufferState) -> None:
        self.state = BUFFER_TRANSITIONS.step(self.state, state)


def _looked_at(stored: asyncio.Future[None]) -> None:
    """Nobody may be left to wait for it."""
    if not stored.cancelled():
        stored.exception()
