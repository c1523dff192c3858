"""One transaction coordinator: begins transactions, notes who takes part, and sees to it that all hear of the end.

Everything is in its log before anybody relies on it, in the order END relies on: COMMITTING or ABORTING, then topics
and subscriptions hear, then COMMITTED or ABORTED. What a broker leaves in between, the next one takes up. When an
append fails it is not known what the log says: the coordinator stops, and is read anew. Pulsar:
`MLTransactionMetadataStore`, `TransactionMetadataStoreService`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.slices import TimeSlice, in_slices
from magnetar.broker.states import COORDINATOR_TRANSITIONS, CoordinatorState, TransactionState
from magnetar.broker.transactions.api import Asker, EndedTransaction, Participants, coordinator_not_found
from magnetar.broker.transactions.batched_writes import BatchLimits
from magnetar.broker.transactions.coordinator_counters import CoordinatorCounters
from magnetar.broker.transactions.coordinator_endings import Endings, TransactionEnding, passes_soon
from magnetar.broker.transactions.coordinator_log import CoordinatorLog
from magnetar.broker.transactions.coordinator_table import (
    AppliedRecord,
    LogPlace,
    Transaction,
    TransactionTable,
    transaction_not_found,
)
from magnetar.broker.transactions.coordinator_timeouts import CallLater, Timeouts
from magnetar.broker.transactions.names import TransactionId
from magnetar.broker.transactions.records import (
    Stamp,
    opened,
    partitions_added,
    state_changed,
    subscriptions_added,
)
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.managed.errors import ManagedLedgerClosed, ManagedLedgerFenced
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.transaction_log import Record

NAMES_CHARACTERS_MAX: Final = 1 << 20
"""Of the topics and subscriptions of one transaction, some ten thousand: all are kept in memory, and all have to hear.
Apache's coordinators take any number."""

OPEN_MAX: Final = 50_000
"""Transactions of one coordinator that are not over, whatever the settings allow: to go through all takes 30 ms."""

ALL_NAMES_CHARACTERS_MAX: Final = 64 << 20
"""Of the topics and subscriptions of all transactions of a coordinator."""

END_WAIT_SECONDS_MAX: Final = 60.0
"""How long whoever ends a transaction waits: twice what clients do. Attempts go on without him; without this bound
clients that try again would add up while a topic cannot be told."""

TOLD_AT_ONCE: Final = 100
"""Of one transaction's topics and subscriptions."""

_GOING: Final = {True: TransactionState.COMMITTING, False: TransactionState.ABORTING}
_GONE: Final = {True: TransactionState.COMMITTED, False: TransactionState.ABORTED}
_WORDS: Final = {True: "committed", False: "aborted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorParts:
    """The parts that the coordinators of a broker share."""

    settings: TransactionSettings
    log_limits: BatchLimits
    clock: Clock
    participants: Participants
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    call_later: CallLater


class TransactionCoordinator:
    """One coordinator, which this broker runs until `close` or `abandon`."""

    def __init__(
        self,
        coordinator: int,
        log: CoordinatorLog,
        parts: CoordinatorParts,
        failed: Callable[[TransactionCoordinator, MagnetarError], None],
    ) -> None:
        """`failed` hears once when the log cannot be written any more: this object serves nothing then."""
        self.id = coordinator
        self.state = CoordinatorState.INITIALIZING
        self.recovery_started_ms = parts.clock.now_ms()
        self.recovery_ended_ms = 0
        self.log = log
        self.table: TransactionTable = TransactionTable(coordinator, log.last_sequence)
        self.counters = CoordinatorCounters(parts.clock.now_ms())
        self._parts = parts
        self._failed = failed
        self._opening = 0
        """Transactions that are being begun."""
        self._adding_characters = 0
        """Of names whose records are on their way."""
        self._timeouts = Timeouts(parts.clock, parts.call_later, self._expired, self._is_open)
        self._endings = Endings(self._end, parts.spawn, parts.call_later, parts.settings.requests_max)

    # --- life

    async def recover(self) -> None:
        """Read the log, then go on with what it leaves open. `BadTransactionRecord`, and what managed ledgers raise."""
        await self.log.replay(self._replayed)
        self._become(CoordinatorState.READY)
        self.recovery_ended_ms = self._parts.clock.now_ms()
        turn = TimeSlice()
        for transaction in self.table:
            if turn.over:
                await turn.pause()
            if self.state is not CoordinatorState.READY:
                return
            if transaction.state is TransactionState.OPEN:
                # The clock of whoever began it may have been ahead: nothing is held for longer than it asked for.
                latest_ms = self._parts.clock.now_ms() + transaction.timeout_ms
                self._timeouts.add(min(transaction.expires_ms, latest_ms), transaction.id.sequence)
            elif self._endings.get(transaction.id.sequence) is None:
                self._endings.begin(transaction.id.sequence, commit=transaction.state is TransactionState.COMMITTING)

    async def close(self) -> None:
        """Serve nothing more, and store what there is to store."""
        self._stop("it is let go of")
        await self.log.close()

    async def abandon(self) -> None:
        """Serve nothing more, and write nothing."""
        self._stop("it may be elsewhere")
        await self.log.abandon()

    def _stop(self, why: str) -> None:
        self._become(CoordinatorState.CLOSED)
        self._timeouts.stop()
        self._endings.stop(coordinator_not_found(self.id, why))

    def _become(self, state: CoordinatorState) -> None:
        self.state = COORDINATOR_TRANSITIONS.step(self.state, state)

    # --- what clients ask for

    async def new_transaction(self, timeout_ms: int, asker: Asker) -> TransactionId:
        """Begin one, durably."""
        self._require_ready()
        wanted = self._parts.settings.open_per_coordinator_max
        limit = min(wanted, OPEN_MAX) if wanted > 0 else OPEN_MAX
        if len(self.table) + self._opening >= limit:
            text = f"The coordinator {self.id} has {limit} open transactions, which is the most that "
            allowing = "maxActiveTransactionsPerCoordinator allows" if limit == wanted else "there may be"
            raise await self._surely(PulsarError(ServerError.TOO_MANY_REQUESTS, text + allowing))
        transaction = self.table.next_id()
        self.log.note_last_sequence(transaction.sequence)
        self._opening += 1
        try:
            await self._append(opened(transaction, timeout_ms, asker.role, self._stamp()))
        finally:
            self._opening -= 1
        begun = self.table.peek(transaction.sequence)
        if begun is not None and self.state is CoordinatorState.READY:
            self._timeouts.add(begun.expires_ms, transaction.sequence)
        return transaction

    async def add_partitions(self, sequence: int, asker: Asker, partitions: Collection[str]) -> None:
        """Topics that have to hear how it ends, durably."""
        transaction = await self._open_one(sequence, asker)
        new = [partition for partition in dict.fromkeys(partitions) if partition not in transaction.partitions]
        if new:
            record = partitions_added(transaction.id, new, self._stamp())
            await self._add_names(transaction, sum(map(len, new)), record)
        else:
            await self.check_owner()

    async def add_subscriptions(self, sequence: int, asker: Asker, subscriptions: Collection[tuple[str, str]]) -> None:
        """(topic, subscription) that have to hear how it ends, durably."""
        transaction = await self._open_one(sequence, asker)
        new = [one for one in dict.fromkeys(subscriptions) if one not in transaction.subscriptions]
        if new:
            record = subscriptions_added(transaction.id, new, self._stamp())
            await self._add_names(transaction, sum(len(topic) + len(name) for topic, name in new), record)
        else:
            await self.check_owner()

    async def end(self, sequence: int, asker: Asker, *, commit: bool) -> None:
        """Returns when all that take part have heard, and that it is over is durable."""
        transaction = await self._owned(sequence, asker)
        ending = self._endings.get(sequence)
        if transaction.state not in (TransactionState.OPEN, _GOING[commit]) or (
            ending is not None and ending.commit is not commit
        ):
            raise await self._surely(_bad_state(transaction, f"cannot be {_WORDS[commit]}"))
        if ending is None:
            ending = self._endings.begin(sequence, commit=commit)
        else:
            self._endings.hurry(ending)
        try:
            async with asyncio.timeout(END_WAIT_SECONDS_MAX):
                await asyncio.shield(ending.over)
        except TimeoutError:
            text = f"The transaction {transaction.id} is still being {_WORDS[commit]}"
            raise await self._surely(PulsarError(ServerError.SERVICE_NOT_READY, text)) from None

    async def check_owner(self) -> None:
        """Before what memory alone answers: a broker that stood still may have lost the coordinator unawares.

        An append asks bookies, which tell; what is not appended has to ask for itself. `PulsarError` when another
        broker has taken the log over, and `Unavailable`."""
        self._require_ready()
        try:
            await self.log.check_owner()
        except ManagedLedgerFenced as error:
            self._give_up(error)
            raise coordinator_not_found(self.id, f"another broker runs it: {error}") from error
        except ManagedLedgerClosed as error:
            raise coordinator_not_found(self.id, "it is let go of") from error
        self._require_ready()

    async def _owned(self, sequence: int, asker: Asker) -> Transaction:
        self._require_ready()
        transaction = self.table.peek(sequence)
        if transaction is None:
            raise await self._surely(transaction_not_found(TransactionId(self.id, sequence)))
        if transaction.owner and transaction.owner != asker.role and not asker.super_user:
            text = f"Client ({asker.role}) is neither the owner of the transaction {transaction.id} nor a super user"
            raise await self._surely(PulsarError(ServerError.TRANSACTION_NOT_FOUND, text))
        return transaction

    async def _open_one(self, sequence: int, asker: Asker) -> Transaction:
        transaction = await self._owned(sequence, asker)
        if transaction.state is not TransactionState.OPEN:
            raise await self._surely(_bad_state(transaction, "takes nothing more"))
        return transaction

    async def _surely(self, refusal: PulsarError) -> PulsarError:
        """A refusal by what memory says, once it is known to be so."""
        await self.check_owner()
        return refusal

    def _require_ready(self) -> None:
        if self.state is not CoordinatorState.READY:
            raise coordinator_not_found(self.id, f"it is {self.state.value}")

    async def _add_names(self, transaction: Transaction, characters: int, record: Record) -> None:
        refusal = self._too_long(transaction, characters)
        if refusal is not None:
            raise await self._surely(refusal)
        self._adding_characters += characters
        try:
            await self._append(record)
        finally:
            self._adding_characters -= characters

    def _too_long(self, transaction: Transaction, characters: int) -> PulsarError | None:
        if self.table.names_characters + self._adding_characters + characters > ALL_NAMES_CHARACTERS_MAX:
            text = f"The topics and subscriptions of coordinator {self.id} have more than {ALL_NAMES_CHARACTERS_MAX}"
            return PulsarError(ServerError.TOO_MANY_REQUESTS, f"{text} characters")
        if transaction.names_characters + characters > NAMES_CHARACTERS_MAX:
            return PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                f"The names of the topics and subscriptions of {transaction.id} have more than "
                f"{NAMES_CHARACTERS_MAX} characters",
            )
        return None

    # --- ending

    def _expired(self, sequence: int) -> None:
        if self._is_open(sequence) and self._endings.get(sequence) is None:
            self.counters.timed_out += 1
            self._endings.begin(sequence, commit=False)

    def _is_open(self, sequence: int) -> bool:
        transaction = self.table.peek(sequence)
        return transaction is not None and transaction.state is TransactionState.OPEN

    async def _end(self, ending: TransactionEnding) -> None:
        """One attempt."""
        transaction = self.table.peek(ending.sequence)
        if transaction is None:
            return  # The attempt before this one did it, and was not told.
        if transaction.state is TransactionState.OPEN:
            await self._update(transaction, TransactionState.OPEN, _GOING[ending.commit])
        await self._tell(transaction, ending)
        await self._update(transaction, _GOING[ending.commit], _GONE[ending.commit])

    async def _update(self, transaction: Transaction, before: TransactionState, after: TransactionState) -> None:
        self._require_ready()
        await self._append(state_changed(transaction.id, before, after, self._stamp()))

    async def _tell(self, transaction: Transaction, ending: TransactionEnding) -> None:
        """Topics before subscriptions, as Apache's."""
        participants = self._parts.participants

        failures: list[MagnetarError] = []

        async def told(one: object, telling: Callable[[EndedTransaction], Awaitable[None]]) -> None:
            # Those that can be told are, whatever becomes of the others.
            try:
                await telling(self._ended(transaction.id, ending))
                ending.told.add(one)
            except MagnetarError as error:
                failures.append(error)

        async def partition(topic: str) -> None:
            await told(topic, lambda ended: participants.end_on_partition(ended, topic))

        async def subscription(one: tuple[str, str]) -> None:
            await told(one, lambda ended: participants.end_on_subscription(ended, *one))

        def left(some: Collection[Any]) -> list[Any]:
            return [one for one in some if one not in ending.told]

        await asyncio.gather(
            in_slices(partition, left(transaction.partitions), TOLD_AT_ONCE),
            in_slices(subscription, left(transaction.subscriptions), TOLD_AT_ONCE),
        )
        if failures:
            # What passes soon decides when all are tried again.
            raise next((one for one in failures if passes_soon(one)), failures[0])

    def _ended(self, transaction: TransactionId, ending: TransactionEnding) -> EndedTransaction:
        # Another broker may tell them by now.
        self._require_ready()
        return EndedTransaction(transaction, ending.commit, self.table.low_water_mark)

    # --- the log

    def _stamp(self) -> Stamp:
        return Stamp(self._parts.clock.now_ms(), self.table.last_sequence)

    def _append(self, record: Record) -> asyncio.Future[None]:
        """Done when the record is stored and counts."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.log.append(record, partial(self._stored, record, stored))
        return stored

    def _stored(
        self, record: Record, stored: asyncio.Future[None], error: MagnetarError | None, place: LogPlace
    ) -> None:
        outcome: MagnetarError | None = None
        if error is not None:
            self._give_up(error)
            outcome = coordinator_not_found(self.id, f"its log is not written: {error}")
        else:
            applied = self.table.apply(place, record)
            if applied.done:
                self.log.acknowledge(applied.done)
            self._count(record, applied)
            if not applied.accepted:
                outcome = _refusal(TransactionId(self.id, int(record.txnid_least_bits)), applied.transaction)
        if stored.done():
            return  # Nobody waits any more.
        if outcome is None:
            stored.set_result(None)
        else:
            stored.set_exception(outcome)

    def _count(self, record: Record, applied: AppliedRecord) -> None:
        counters, transaction = self.counters, applied.transaction
        counters.appended += 1
        if transaction is None or not applied.accepted:
            return
        if record.metadata_op == Record.NEW:
            counters.created += 1
        elif transaction.state is TransactionState.COMMITTED:
            now_ms = self._parts.clock.now_ms()
            counters.commit(now_ms, now_ms - transaction.started_ms)
        elif transaction.state is TransactionState.ABORTED:
            counters.aborted += 1

    def _give_up(self, error: MagnetarError) -> None:
        if self.state is not CoordinatorState.CLOSED:
            self._stop("its log is not written")
            self._failed(self, error)

    def _replayed(self, place: LogPlace, record: Record) -> None:
        applied = self.table.apply(place, record)
        if applied.done:
            self.log.acknowledge(applied.done)


def _refusal(id_: TransactionId, transaction: Transaction | None) -> PulsarError:
    if transaction is None:
        return transaction_not_found(id_)
    return _bad_state(transaction, "has changed meanwhile")


def _bad_state(transaction: Transaction, what: str) -> PulsarError:
    text = f"The transaction {transaction.id} is {transaction.state.name} and {what}"
    return PulsarError(ServerError.INVALID_TXN_STATUS, text)
