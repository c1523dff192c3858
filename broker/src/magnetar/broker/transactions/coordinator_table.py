"""The transactions of one coordinator, as the records of its log make them. Pure.

What is read again after a restart and what is written now go through the same `apply`, so that both come to the same.
Pulsar: `MLTransactionMetadataStore`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple

from magnetar.broker.states import TRANSACTION_TRANSITIONS, TransactionState
from magnetar.broker.transactions.names import TransactionId
from magnetar.core.ids import Position
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.transaction_log import Record

PURGED_FROM: Final = 1_024
"""Ids that are kept before those that are over are looked for."""

OVER: Final = frozenset({TransactionState.COMMITTED, TransactionState.ABORTED})


class LogPlace(NamedTuple):
    """Where a record stands."""

    position: Position
    record: int = 0
    """Which one of the entry's records."""
    records: int = 1
    """How many records the entry has."""


class Transaction:
    """One that is not over."""

    __slots__ = (
        "id",
        "names_characters",
        "owner",
        "partitions",
        "places",
        "started_ms",
        "state",
        "subscriptions",
        "timeout_ms",
    )

    def __init__(self, id_: TransactionId, started_ms: int, timeout_ms: int, owner: str, place: LogPlace) -> None:
        self.id = id_
        self.started_ms = started_ms
        self.timeout_ms = timeout_ms
        self.owner = owner
        """The role that may change it; empty: anybody."""
        self.state = TransactionState.OPEN
        self.partitions: dict[str, None] = {}
        self.subscriptions: dict[tuple[str, str], None] = {}
        self.names_characters = 0
        """Of all topics and subscriptions."""
        self.places: list[LogPlace] = [place]
        """Its records; what they take in the log goes when the transaction is over."""

    @property
    def expires_ms(self) -> int:
        """When it is aborted unless it is over or decided."""
        return self.started_ms + self.timeout_ms


def transaction_not_found(id_: TransactionId) -> PulsarError:
    """The answer about one that is not there. Who asks for its end again learns that the outcome is unknown."""
    text = (
        f"The transaction {id_} was not found: it was committed or aborted, which is not known any more, or never began"
    )
    return PulsarError(ServerError.TRANSACTION_NOT_FOUND, text)


class AppliedRecord(NamedTuple):
    """The outcome of a record."""

    transaction: Transaction | None
    """As it is afterwards; None: there is none of this id."""
    accepted: bool
    """False: the record says what was not possible, and counts for nothing."""
    done: list[LogPlace]
    """Records that nobody needs any more."""


class TransactionTable:
    """Those that are not over, in the order of their ids."""

    def __init__(self, coordinator: int, last_sequence: int) -> None:
        """`last_sequence`: the newest id that was ever given, -1 for none."""
        self.coordinator = coordinator
        self.last_sequence = last_sequence
        self._transactions: dict[int, Transaction] = {}
        self._ids: list[int] = []
        """A heap of their ids, with some that are over: at most as many as there are, and `PURGED_FROM`."""
        self._purge_at = PURGED_FROM
        self.names_characters = 0
        """Of the topics and subscriptions of all."""

    def __len__(self) -> int:
        return len(self._transactions)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(list(self._transactions.values()))

    def next_id(self) -> TransactionId:
        """One that was never given before."""
        self.last_sequence += 1
        return TransactionId(self.coordinator, self.last_sequence)

    def peek(self, sequence: int) -> Transaction | None:
        """The transaction, if it is not over."""
        return self._transactions.get(sequence)

    def get(self, sequence: int) -> Transaction:
        """The transaction. `PulsarError` when it is over, or never was."""
        transaction = self._transactions.get(sequence)
        if transaction is None:
            raise transaction_not_found(TransactionId(self.coordinator, sequence))
        return transaction

    @property
    def low_water_mark(self) -> int:
        """The last id before the oldest transaction that is not over; 0 when there is none, as Apache's says."""
        ids, transactions = self._ids, self._transactions
        while ids and ids[0] not in transactions:
            heapq.heappop(ids)
        return ids[0] - 1 if ids else 0

    def apply(self, place: LogPlace, record: Record) -> AppliedRecord:
        """Take in a record that is stored."""
        sequence = int(record.txnid_least_bits)
        self.last_sequence = max(self.last_sequence, int(record.max_local_txn_id))
        transaction = self._transactions.get(sequence)
        if record.metadata_op == Record.NEW:
            return self._open(place, record, transaction)
        if transaction is None:
            return AppliedRecord(None, accepted=False, done=[place])
        if record.metadata_op == Record.UPDATE:
            return self._change(transaction, place, record)
        if transaction.state is not TransactionState.OPEN:
            return AppliedRecord(transaction, accepted=False, done=[place])
        self._add(transaction, record)
        transaction.places.append(place)
        return AppliedRecord(transaction, accepted=True, done=[])

    def _open(self, place: LogPlace, record: Record, known: Transaction | None) -> AppliedRecord:
        sequence = int(record.txnid_least_bits)
        self.last_sequence = max(self.last_sequence, sequence)
        if known is not None:
            known.places.append(place)
            return AppliedRecord(known, accepted=True, done=[])
        id_ = TransactionId(self.coordinator, sequence)
        transaction = Transaction(id_, int(record.start_time), int(record.timeout_ms), record.owner, place)
        self._transactions[sequence] = transaction
        if len(self._ids) >= self._purge_at:
            # One may be open for a day, and millions begin and end meanwhile.
            self._ids = sorted(self._transactions)
            self._purge_at = max(PURGED_FROM, 2 * len(self._ids))
        else:
            heapq.heappush(self._ids, sequence)
        return AppliedRecord(transaction, accepted=True, done=[])

    def _add(self, transaction: Transaction, record: Record) -> None:
        before = transaction.names_characters
        for partition in record.partitions:
            if partition not in transaction.partitions:
                transaction.partitions[partition] = None
                transaction.names_characters += len(partition)
        for subscription in record.subscriptions:
            key = subscription.topic, subscription.subscription
            if key not in transaction.subscriptions:
                transaction.subscriptions[key] = None
                transaction.names_characters += len(key[0]) + len(key[1])
        self.names_characters += transaction.names_characters - before

    def _change(self, transaction: Transaction, place: LogPlace, record: Record) -> AppliedRecord:
        before, after = TransactionState(record.expected_status), TransactionState(record.new_status)
        if transaction.state is not before or not TRANSACTION_TRANSITIONS.allows(before, after):
            return AppliedRecord(transaction, accepted=False, done=[place])
        transaction.state = TRANSACTION_TRANSITIONS.step(before, after)
        transaction.places.append(place)
        if after not in OVER:
            return AppliedRecord(transaction, accepted=True, done=[])
        del self._transactions[transaction.id.sequence]
        self.names_characters -= transaction.names_characters
        if not self._transactions:
            self._ids.clear()
        return AppliedRecord(transaction, accepted=True, done=transaction.places)
