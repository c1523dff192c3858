"""Mistakes in transactions: coordinators, buffers of topics, acknowledgements of subscriptions."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.transactions.buffers.buffer import TransactionBuffer
from magnetar.broker.transactions.coordinator import TransactionCoordinator
from magnetar.broker.transactions.coordinator_endings import Endings, TransactionEnding
from magnetar.broker.transactions.coordinator_table import Transaction, TransactionTable
from magnetar.broker.transactions.earlier import EarlierTransactions
from magnetar.broker.transactions.pending_handle import PendingAckHandle
from magnetar.broker.transactions.pending_log import PendingAckLog
from magnetar.broker.transactions.pending_state import HeldAcknowledgements
from magnetar.broker.transactions.standings import CoordinatorStandings
from magnetar.core.ids import LATEST

from e2e.simulation.planting import Mistake, Patch, original

LATE_SECONDS: Final = 0.05


def marker_before_the_last_message() -> list[Patch]:
    """A transactional message has its receipt as it comes, and is stored a while later: behind its marker."""
    right = original(PersistentTopic, "_append_now")

    def append_now(self: PersistentTopic, batch: Any) -> None:
        if batch.transactions is None or self.ledger.last_confirmed[1] < 0:
            right(self, batch)
            return
        ledger_id, entry_id = self.ledger.last_confirmed
        batch.producer.stored(batch, ledger_id, entry_id + 1)
        assert self.buffer is not None
        self.buffer.not_stored()

        def stored(error: Any, ledger_id: int, first_entry_id: int, context: Any) -> None:
            if error is None and self.buffer is not None:
                self.buffer.unstored += 1
                self.buffer.stored(context.transactions, ledger_id, first_entry_id)

        import asyncio

        asyncio.get_running_loop().call_later(LATE_SECONDS, self.ledger.appends.append, batch.payloads, stored, batch)

    return [(PersistentTopic, "_append_now", append_now)]


def acks_of_aborted_are_kept() -> list[Patch]:
    """What an aborted transaction has acknowledged is acknowledged."""
    right = original(PendingAckHandle, "_finish")

    async def finish(self: PendingAckHandle, transaction: Any, *, commit: bool) -> None:
        del commit
        await right(self, transaction, commit=True)

    return [(PendingAckHandle, "_finish", finish)]


def abort_without_a_marker() -> list[Patch]:
    """A topic answers an abort before it is stored, and never stores it."""
    right = original(TransactionBuffer, "_store_marker")

    async def store_marker(self: TransactionBuffer, transaction: Any, *, commit: bool) -> None:
        if commit:
            await right(self, transaction, commit=True)
            return
        self.table.abort(transaction, self._ledger.last_confirmed)
        self._show()
        self._moved()

    return [(TransactionBuffer, "_store_marker", store_marker)]


def commit_before_its_record() -> list[Patch]:
    """A commit is answered before the log has it."""
    right = original(TransactionCoordinator, "end")

    async def end(self: TransactionCoordinator, sequence: int, asker: Any, *, commit: bool) -> None:
        if not commit:
            await right(self, sequence, asker, commit=False)
            return
        await self._owned(sequence, asker)
        self._parts.spawn(_regardless(right(self, sequence, asker, commit=True)))

    return [(TransactionCoordinator, "end", end)]


async def _regardless(work: Any) -> None:
    from magnetar.core.errors import MagnetarError

    try:
        await work
    except MagnetarError:
        return


def the_next_owner_forgets_what_is_open() -> list[Patch]:
    """A topic that is taken over knows of no message of an open transaction."""
    right = original(TransactionBuffer, "recover")

    async def recover(self: TransactionBuffer) -> None:
        await right(self)
        self.table.open.clear()
        self._show()

    return [(TransactionBuffer, "recover", recover)]


def what_is_open_is_shown() -> list[Patch]:
    """A buffer gives out what is beyond the max read position."""

    def show(self: TransactionBuffer) -> None:
        self.visibility.hidden_from = LATEST

    return [(TransactionBuffer, "_show", show)]


def snapshots_without_aborted() -> list[Patch]:
    """A snapshot says how far a topic can be read, and nothing of what was aborted before."""
    right = original(TransactionBuffer, "recover")

    async def recover(self: TransactionBuffer) -> None:
        read = self._snapshots.read

        class Forgetful:
            def __getattr__(self, name: str) -> Any:
                return getattr(snapshots, name)

            async def read(self, *arguments: Any) -> Any:
                found = await read(*arguments)
                return None if found is None else (found[0], [])

        snapshots = self._snapshots
        self._snapshots = Forgetful()
        try:
            await right(self)
        finally:
            self._snapshots = snapshots

    return [(TransactionBuffer, "recover", recover)]


def two_may_take_the_same() -> list[Patch]:
    """Nobody looks whether another transaction has acknowledged a message."""
    return [(HeldAcknowledgements, "conflict", lambda self, entries, cursor: "")]


def held_acks_are_sent_again() -> list[Patch]:
    """A log of pending acknowledgements is not read by the next owner."""

    async def replay(self: PendingAckLog) -> Any:
        del self
        nothing: tuple[Any, ...] = ()
        for record in nothing:
            yield record

    return [(PendingAckLog, "replay", replay)]


def time_never_ends() -> list[Patch]:
    """A transaction whose time is over stays open."""
    return [(TransactionCoordinator, "_expired", lambda self, sequence: None)]


def what_is_decided_is_left() -> list[Patch]:
    """Whoever takes a coordinator over does not go on with what is being ended."""
    right = original(TransactionTable, "__iter__")

    def of_table(self: TransactionTable) -> Any:
        from magnetar.broker.states import TransactionState

        some: list[Transaction] = list(right(self))
        return iter([one for one in some if one.state is TransactionState.OPEN])

    return [(TransactionTable, "__iter__", of_table)]


def one_that_hears_is_enough() -> list[Patch]:
    """A transaction is over when the first of its topics has heard."""

    async def tell(self: TransactionCoordinator, transaction: Transaction, ending: TransactionEnding) -> None:
        ended = self._ended(transaction.id, ending)
        for topic in list(transaction.partitions)[:1]:
            await self._parts.participants.end_on_partition(ended, topic)
        for one in list(transaction.subscriptions)[:1]:
            await self._parts.participants.end_on_subscription(ended, *one)

    return [(TransactionCoordinator, "_tell", tell)]


def ends_are_tried_once() -> list[Patch]:
    """A topic that cannot be told now is never told."""
    return [(Endings, "_due", lambda self, ending: self._timers.pop(ending.sequence, None))]


def nobody_is_asked() -> list[Patch]:
    """A message of a transaction that is older than the topic's owner counts as one of an open transaction."""
    return [(TransactionBuffer, "doubts", lambda self, transactions: [])]


def nobody_is_asked_about_acks() -> list[Patch]:
    """So does an acknowledgement."""
    return [(HeldAcknowledgements, "in_doubt", lambda self, transaction: False)]


def answers_are_ignored() -> list[Patch]:
    """A coordinator is asked, and whatever it says the transaction is taken for open."""
    right = original(CoordinatorStandings, "is_open")

    async def is_open(self: CoordinatorStandings, transaction: Any, since: int, earlier: Any) -> bool:
        await right(self, transaction, since, earlier)
        return True

    return [(CoordinatorStandings, "is_open", is_open)]


def answers_are_of_another() -> list[Patch]:
    """What a coordinator said first counts for all of its transactions."""
    right = original(CoordinatorStandings, "is_open")
    said: WeakKeyDictionary[CoordinatorStandings, dict[int, bool]] = WeakKeyDictionary()

    async def is_open(self: CoordinatorStandings, transaction: Any, since: int, earlier: Any) -> bool:
        known = said.setdefault(self, {})
        if transaction[0] not in known:
            known[transaction[0]] = await right(self, transaction, since, earlier)
        return known[transaction[0]]

    return [(CoordinatorStandings, "is_open", is_open)]


def all_began_since() -> list[Patch]:
    """All transactions count as such that began when the topic was here."""
    right = original(EarlierTransactions, "began_since")
    return [(EarlierTransactions, "began_since", lambda self, coordinator, newest: right(self, coordinator, -1))]


TRANSACTION_MISTAKES: Final[dict[str, Mistake]] = {
    "abort-without-a-marker": abort_without_a_marker,
    "acks-of-aborted-are-kept": acks_of_aborted_are_kept,
    "all-began-since": all_began_since,
    "answers-are-ignored": answers_are_ignored,
    "answers-are-of-another": answers_are_of_another,
    "commit-before-its-record": commit_before_its_record,
    "ends-are-tried-once": ends_are_tried_once,
    "held-acks-are-sent-again": held_acks_are_sent_again,
    "marker-before-the-last-message": marker_before_the_last_message,
    "nobody-is-asked": nobody_is_asked,
    "nobody-is-asked-about-acks": nobody_is_asked_about_acks,
    "one-that-hears-is-enough": one_that_hears_is_enough,
    "snapshots-without-aborted": snapshots_without_aborted,
    "the-next-owner-forgets-what-is-open": the_next_owner_forgets_what_is_open,
    "time-never-ends": time_never_ends,
    "two-may-take-the-same": two_may_take_the_same,
    "what-is-decided-is-left": what_is_decided_is_left,
    "what-is-open-is-shown": what_is_open_is_shown,
}
