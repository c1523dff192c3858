"""One subscription's part in transactions: what they acknowledge is held until a coordinator says how they ended.

An acknowledgement is held at once and stored then. Its client hears when it is durable; when that failed nobody knows
whether it is, so that it stays held until the transaction is ended. An end is stored first and done then: what a crash
leaves half done is done again by the replay (Pulsar: `PendingAckHandleImpl`).

An acknowledgement that comes after the end of its transaction is refused. This owner remembers the ends that it was
told of, and those that the log says. Whether a transaction is open that may have ended before it came, or too long ago,
the coordinator says before the acknowledgement is answered (`pending_doubts`).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.server_errors import server_error_of
from magnetar.broker.slices import TimeSlice
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.subscriptions.held import acknowledge_held, hold_back, send_again, take_back
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.broker.transactions.pending_doubts import AckDone, PendingDoubts, ended
from magnetar.broker.transactions.pending_log import PendingAckLog, settling
from magnetar.broker.transactions.pending_records import (
    AckedEntry,
    PendingAckOperation,
    PendingAckRecord,
)
from magnetar.broker.transactions.pending_state import (
    CumulativeAck,
    HeldAcknowledgements,
    HeldEntry,
    held_entry,
)
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.transitions import Transitions
from magnetar.managed.entry_bitmap import value_of, words_of
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.wire.pulsar.command import Ack
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.transactions.standings import TransactionStandings

logger: Final = logging.getLogger(__name__)


class PendingAckState(enum.Enum):
    """Whether the log was replayed."""

    NEW = enum.auto()
    REPLAYING = enum.auto()
    READY = enum.auto()
    FAILED = enum.auto()
    """It could not be read, or somebody else has it: whoever asks next has it tried again."""
    CLOSED = enum.auto()


PENDING_ACK_TRANSITIONS: Final = Transitions(
    "the pending acknowledgements of a subscription",
    {
        PendingAckState.NEW: {PendingAckState.REPLAYING, PendingAckState.CLOSED},
        PendingAckState.REPLAYING: {PendingAckState.READY, PendingAckState.FAILED, PendingAckState.CLOSED},
        PendingAckState.READY: {PendingAckState.FAILED, PendingAckState.CLOSED},
        PendingAckState.FAILED: {PendingAckState.FAILED, PendingAckState.REPLAYING, PendingAckState.CLOSED},
        # Closed with its topic, which is then abandoned because that took too long.
        PendingAckState.CLOSED: {PendingAckState.CLOSED},
    },
)


class PendingAckHandle:
    """The handle of one subscription. `new_log` gives a log that is not open; None: nothing is stored, as what is
    acknowledged on a non-durable subscription goes with it."""

    __slots__ = (
        "_check_owner",
        "_contains",
        "_doubts",
        "_endings",
        "_new_log",
        "_open_log",
        "_runtime",
        "_starting",
        "_subscription",
        "_sweeping",
        "held",
        "log",
        "recover_ended_ms",
        "recover_started_ms",
        "state",
    )

    def __init__(
        self,
        subscription: Subscription,
        runtime: SubscriptionRuntime,
        contains: Callable[[Position], bool],
        new_log: Callable[[], PendingAckLog] | None,
        open_log: Callable[[PendingAckLog], Awaitable[bool]],
        check_owner: Callable[[], Awaitable[None]],
        standings: TransactionStandings | None,
    ) -> None:
        self.held = HeldAcknowledgements()
        self.state = PendingAckState.NEW
        self.log: PendingAckLog | None = None
        self.recover_started_ms = 0
        self.recover_ended_ms = 0
        self._subscription = subscription
        self._runtime = runtime
        self._contains = contains
        self._doubts = PendingDoubts(self.held, standings, runtime.spawn)
        self._new_log = new_log
        self._open_log = open_log
        self._check_owner = check_owner
        self._starting: asyncio.Future[None] | None = None
        self._endings: dict[TransactionBits, asyncio.Future[None]] = {}
        self._sweeping = False
        if new_log is None:
            self.state = PendingAckState.READY
            subscription.hide(self.held.entries)

    @property
    def subscription(self) -> Subscription:
        """Whose it is."""
        return self._subscription

    # --- the replay

    async def ready(self) -> None:
        """Returns once all that the log says is held, or done. Raises what keeps it from being read."""
        if self.state is PendingAckState.READY:
            return
        if self.state is PendingAckState.CLOSED:
            raise PulsarError(ServerError.SERVICE_NOT_READY, "The pending acknowledgements have been closed")
        starting = self._starting
        if starting is None:
            self._become(PendingAckState.REPLAYING)
            starting = self._starting = self._run(self._start())
            starting.add_done_callback(self._started)
        # A client that gives up must not take the replay away from the others that wait for it.
        await asyncio.shield(starting)

    def _started(self, outcome: asyncio.Future[None]) -> None:
        del outcome
        self._starting = None

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        """Do something on the side, whoever waits for it: the broker's service does when it closes."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(_looked_at)
        self._runtime.spawn(_told(work, outcome))
        return outcome

    async def _start(self) -> None:
        try:
            await self._recover()
            if self.state is not PendingAckState.REPLAYING:
                raise PulsarError(ServerError.SERVICE_NOT_READY, "The pending acknowledgements have been closed")
            self._subscription.hide(self.held.entries)
            self._become(PendingAckState.READY)
        except MagnetarError as error:
            if self.state is PendingAckState.CLOSED:
                raise
            logger.warning(
                "%s / %s: the pending acknowledgements cannot be read: %s",
                self._subscription.topic_name,
                self._subscription.name,
                error,
            )
            raise PulsarError(server_error_of(error), f"Pending acknowledgements are not there: {error}") from error
        finally:
            # Also after a mistake of ours, or when this is cancelled: whoever asks next has it tried again.
            if self.state is PendingAckState.REPLAYING:
                self._become(PendingAckState.FAILED)

    async def _recover(self) -> None:
        former, self.log = self.log, None
        if former is not None:
            await former.abandon()
        self.held.clear()
        assert self._new_log is not None, "without a log it is ready from the start"
        log = self.log = self._new_log()
        if not await self._open_log(log):
            return
        self.recover_started_ms, self.recover_ended_ms = self._runtime.clock.now_ms(), 0
        cursor = self._subscription.cursor
        turn = TimeSlice()
        async for record in log.replay():
            ended = self.held.replay(record, cursor, self._contains)
            if ended is not None:
                await self._finish(ended, commit=record.operation is PendingAckOperation.COMMIT)
            if turn.over:
                await turn.pause()
        self.recover_ended_ms = self._runtime.clock.now_ms()

    # --- acknowledgements

    def acknowledge(self, consumer: Consumer, ack: Ack, done: AckDone) -> None:
        """Take an ACK of a transaction. Never waits; `done` hears, perhaps before this returns."""
        kind = consumer.identity.subscription_type
        transaction = (ack.txnid_most_bits, ack.txnid_least_bits)
        refusal = self._refusal(transaction)
        if refusal is not None:
            done(refusal)
        elif ack.cumulative and kind.acknowledges_individually:
            done(None)  # As without a transaction: it does nothing.
        elif ack.cumulative:
            self._acknowledge_cumulatively(transaction, ack, done)
        else:
            self._acknowledge_individually(consumer, transaction, ack, done)
        consumer.last_acknowledged_ms = self._runtime.clock.now_ms()

    def _refusal(self, transaction: TransactionBits) -> PulsarError | None:
        if self.state is not PendingAckState.READY:
            return PulsarError(ServerError.SERVICE_NOT_READY, "The pending acknowledgements are not replayed")
        if transaction in self._endings or self.held.has_ended(transaction):
            return ended(transaction)
        if self._doubts.full or (self.log is not None and self.log.full):
            return PulsarError(
                ServerError.TOO_MANY_REQUESTS, "Too many acknowledgements of transactions wait to be stored"
            )
        return None

    def _acknowledge_individually(
        self, consumer: Consumer, transaction: TransactionBits, ack: Ack, done: AckDone
    ) -> None:
        acked = [entry for entry in _entries_of(ack) if self._contains(entry.position)]
        if not self.held.fits(acked):
            done(PulsarError(ServerError.TOO_MANY_REQUESTS, self._text(transaction, "its batches are too large")))
            return
        entries = [held for held in map(held_entry, acked) if held.bits]
        why = self.held.conflict(entries, self._subscription.cursor)
        if why:
            done(PulsarError(ServerError.TRANSACTION_CONFLICT, self._text(transaction, why)))
            return
        if not self.held.has_room(entries):
            done(PulsarError(ServerError.TOO_MANY_REQUESTS, self._text(transaction, "too much is held already")))
            return
        if not entries:
            done(None)
            return
        done = self._doubts.until_known(transaction, done, self.abort)
        self.held.hold(transaction, entries)
        bits: dict[Position, int] = {}
        for entry in entries:
            bits[entry.position] = bits.get(entry.position, 0) | entry.bits
        hold_back(self._subscription, consumer, bits)
        self._store(PendingAckRecord(PendingAckOperation.ACK, transaction, cumulative=False, entries=acked), done)

    def _acknowledge_cumulatively(self, transaction: TransactionBits, ack: Ack, done: AckDone) -> None:
        acked = _entries_of(ack)
        if len(acked) != 1:
            why = "invalid cumulative ack received with multiple message ids."
            done(PulsarError(ServerError.NOT_ALLOWED_ERROR, self._text(transaction, why)))
            return
        if not self._contains(acked[0].position):
            done(None)  # As a single one, and one without a transaction: what comes there is not meant.
            return
        held = CumulativeAck(transaction, acked[0].position, value_of(acked[0].remaining))
        why = self.held.cumulative_conflict(held, self._subscription.cursor)
        if why:
            done(PulsarError(ServerError.TRANSACTION_CONFLICT, self._text(transaction, why)))
            return
        done = self._doubts.until_known(transaction, done, self.abort)
        self.held.hold_cumulative(held)
        self._store(PendingAckRecord(PendingAckOperation.ACK, transaction, cumulative=True, entries=acked), done)

    def _text(self, transaction: TransactionBits, why: str) -> str:
        subscription = self._subscription
        return f"[{subscription.topic_name}][{subscription.name}] Transaction {transaction}: {why}"

    def _store(self, record: PendingAckRecord, done: AckDone) -> None:
        if self.log is None:
            done(None)
            return

        def stored(error: MagnetarError | None) -> None:
            self._noted(error)
            done(error)

        self.log.append(record, stored)

    def _noted(self, error: MagnetarError | None) -> None:
        """Somebody else has the log: what is held here means nothing any more."""
        if isinstance(error, ManagedLedgerFenced) and self.state is PendingAckState.READY:
            self._become(PendingAckState.FAILED)
            self._subscription.disconnect_all()

    # --- ends

    async def end(self, transaction: TransactionBits, *, commit: bool, low_water_mark: int) -> None:
        """A coordinator says how a transaction ended. May be repeated. Raises what keeps it from being stored."""
        await self._end_once(transaction, commit=commit)
        self.held.low_water_mark(transaction[0], low_water_mark)
        if not self._sweeping and self.held.left_behind():
            self._sweeping = True
            self._runtime.spawn(self._sweep())

    async def abort(self, transaction: TransactionBits) -> None:
        """No coordinator will end it. Raises as `end` does."""
        await self._end_once(transaction, commit=False)

    async def _end_once(self, transaction: TransactionBits, *, commit: bool) -> None:
        await self.ready()
        self.held.note_ended(transaction)
        ending = self._endings.get(transaction)
        if ending is None and self.held.knows(transaction):
            ending = self._end_in_background(transaction, commit=commit)
        if ending is None:
            # Nothing is written, which would tell: another broker may have the topic, and hold for the transaction.
            await self._check_owner()
        else:
            await asyncio.shield(ending)

    def _end_in_background(self, transaction: TransactionBits, *, commit: bool) -> asyncio.Future[None]:
        ending = self._endings[transaction] = self._run(self._end(transaction, commit=commit))
        ending.add_done_callback(lambda _: self._endings.pop(transaction, None))
        return ending

    async def _end(self, transaction: TransactionBits, *, commit: bool) -> None:
        operation = PendingAckOperation.COMMIT if commit else PendingAckOperation.ABORT
        kinds = [False] if transaction in self.held.transactions else []
        if self.held.cumulative_of(transaction) is not None:
            kinds.append(True)
        for cumulative in kinds:
            stored, settle = settling()
            self._store(PendingAckRecord(operation, transaction, cumulative), settle)
            await stored
        await self._finish(transaction, commit=commit)

    async def _finish(self, transaction: TransactionBits, *, commit: bool) -> None:
        """Acknowledges the messages that a transaction holds, or sends them again; by the record, which is bounded."""
        subscription, held = self._subscription, self.held
        before = subscription.cursor.mark_delete
        acks = held.transactions.get(transaction)
        cumulative = held.cumulative_of(transaction)
        shown: set[Position] = set()
        turn = TimeSlice()
        for entries in list(acks.records) if acks is not None else ():
            positions = [entry.position for entry in entries]
            if commit:
                acknowledge_held(subscription, *_acknowledgement(entries))
            else:
                # Before they are shown again: who had the rest of a batch had fewer messages than that has now.
                take_back(subscription, positions)
                shown.update(positions)
            held.release(entries)
            if turn.over:
                await turn.pause()
        if commit and cumulative is not None:
            words = words_of(cumulative.left) if cumulative.left else None
            subscription.cursor.acknowledge_cumulative(cumulative.position, words)
        held.forget(transaction)
        if commit:
            subscription.acknowledged_in_transaction(before)
        else:
            await send_again(subscription, shown)

    async def _sweep(self) -> None:
        """Take back what transactions hold that nobody will end."""
        try:
            for transaction in self.held.left_behind():
                if self.state is not PendingAckState.READY:
                    return
                if transaction not in self._endings:
                    self._end_in_background(transaction, commit=False)
                    logger.warning(self._text(transaction, "its coordinator has forgotten it, so it is aborted"))
                await asyncio.shield(self._endings[transaction])
        except MagnetarError as error:
            # The next end tries again.
            logger.warning(
                "%s / %s: not all transactions that are over are ended: %s",
                self._subscription.topic_name,
                self._subscription.name,
                error,
            )
        finally:
            self._sweeping = False

    # --- when the subscription goes back

    async def begin_anew(self) -> None:
        """Have no later replay do again what transactions did by now: what they hold stands in the log once more, and
        all before that is given up. Raises what keeps it from being stored."""
        await self.ready()
        log = self.log
        if log is None or log.ledger is None:
            return
        reached = log.ledger.last_confirmed
        written = []
        turn = TimeSlice()
        for record in self.held.records():
            if turn.over:
                await turn.pause()
            # An end that is in the log already, or on its way there, would come before it.
            if self.held.knows(record.transaction) and record.transaction not in self._endings:
                stored, settle = settling()
                self._store(record, settle)
                written.append(stored)
        for outcome in await asyncio.gather(*written, return_exceptions=True):
            if outcome is not None:
                raise outcome
        await self._settled()
        await log.forget_up_to(reached)

    # --- the end

    async def close(self) -> None:
        """Take nothing more, finish what is under way, let go of the log."""
        self._become(PendingAckState.CLOSED)
        await self._settled()
        if self.log is not None:
            await self.log.close()
        await self._settled()

    async def abandon(self) -> None:
        """Take nothing more and write nothing. Waits for nobody: what is under way finds out."""
        self._become(PendingAckState.CLOSED)
        if self.log is not None:
            await self.log.abandon()

    async def _settled(self) -> None:
        waiting = [outcome for outcome in (self._starting, *self._endings.values()) if outcome is not None]
        if waiting:
            await asyncio.wait(waiting)

    def _become(self, state: PendingAckState) -> None:
        self.state = PENDING_ACK_TRANSITIONS.step(self.state, state)


async def _told(work: Coroutine[Any, Any, None], outcome: asyncio.Future[None]) -> None:
    """Do the work, and tell how it went."""
    try:
        await work
    except MagnetarError as error:
        outcome.set_exception(error)
    except BaseException as error:
        # Whoever waits would take a cancellation for one of its own, and answer nobody.
        text = "was cut off" if isinstance(error, asyncio.CancelledError) else "failed: the broker's log says why"
        outcome.set_exception(PulsarError(ServerError.UNKNOWN_ERROR, f"What is done for a transaction {text}"))
        raise
    else:
        outcome.set_result(None)


def _looked_at(outcome: asyncio.Future[None]) -> None:
    """Nobody may be left to wait for it."""
    if not outcome.cancelled():
        outcome.exception()


def _entries_of(ack: Ack) -> list[AckedEntry]:
    ack_sets, sizes = ack.ack_sets, ack.batch_sizes
    return [
        AckedEntry(
            position,
            ack_sets[index] if ack_sets is not None else (),
            sizes[index] if sizes is not None else 0,
        )
        for index, position in enumerate(ack.positions)
    ]


def _acknowledgement(entries: list[HeldEntry]) -> tuple[list[Position], list[tuple[Position, list[int], int]]]:
    """Whole entries, and parts of batches (position, what remains, batch size)."""
    whole = [entry.position for entry in entries if not entry.left]
    parts = [(entry.position, words_of(entry.left), entry.batch_size) for entry in entries if entry.left]
    return whole, parts
