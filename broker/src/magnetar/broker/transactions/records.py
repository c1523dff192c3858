"""The records of a transaction coordinator's log, made. Pure. Their entries: `wire.pulsar.transaction_log`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, cast

from magnetar.broker.states import TransactionState
from magnetar.broker.transactions.names import TransactionId
from magnetar.wire.pulsar.generated import transaction_log_pb2 as pb
from magnetar.wire.pulsar.transaction_log import BadTransactionRecord, Record, decode

MAX_LOCAL_TXN_ID: Final = "max_local_txn_id"
"""The property of the managed ledger that says which id was given last, in decimal."""

_LARGEST_SIGNED: Final = (1 << 63) - 1
"""Times are a Java long where Apache's brokers read them."""


class Stamp(NamedTuple):
    """The time and the last sequence that every record carries from the moment in which it was made."""

    now_ms: int
    last_sequence: int
    """The newest id that the coordinator has given."""


def opened(transaction: TransactionId, timeout_ms: int, owner: str, stamp: Stamp) -> Record:
    """A new transaction; `owner` is the role of who asked for it, empty where nobody has to say who he is."""
    record = _record(Record.NEW, transaction, stamp)
    record.timeout_ms = min(timeout_ms, _LARGEST_SIGNED - stamp.now_ms)
    record.start_time = stamp.now_ms
    if owner:
        record.owner = owner
    return record


def partitions_added(transaction: TransactionId, partitions: Iterable[str], stamp: Stamp) -> Record:
    """Topics in which the transaction publishes, by the names that the client gave."""
    record = _record(Record.ADD_PARTITION, transaction, stamp)
    record.partitions.extend(partitions)
    return record


def subscriptions_added(transaction: TransactionId, subscriptions: Iterable[tuple[str, str]], stamp: Stamp) -> Record:
    """(topic, subscription) in which the transaction acknowledges."""
    record = _record(Record.ADD_SUBSCRIPTION, transaction, stamp)
    record.subscriptions.extend(
        pb.LoggedSubscription(topic=topic, subscription=subscription) for topic, subscription in subscriptions
    )
    return record


def state_changed(
    transaction: TransactionId, before: TransactionState, after: TransactionState, stamp: Stamp
) -> Record:
    """The transaction's state, if it is still the one before."""
    record = _record(Record.UPDATE, transaction, stamp)
    record.expected_status = cast("pb.TxnStatus", before.value)
    record.new_status = cast("pb.TxnStatus", after.value)
    return record


def last_sequence_of(data: bytes) -> int:
    """The newest id that a coordinator had given when it wrote an entry. `BadTransactionRecord`"""
    return max((int(record.max_local_txn_id) for record in decode(data)), default=-1)


def last_sequence_said(properties: Mapping[str, str]) -> int:
    """The newest id that was given, as the properties of the managed ledger say it; -1: none. `BadTransactionRecord`"""
    text = properties.get(MAX_LOCAL_TXN_ID, "-1")
    try:
        said = int(text)
    except ValueError:
        said = -2
    if not -1 <= said < _LARGEST_SIGNED:
        # Ids that were given once must not be given again.
        raise BadTransactionRecord(f"the property {MAX_LOCAL_TXN_ID} is {text!r}, which is no id")
    return said


def _record(operation: pb.TransactionMetadataEntry.TransactionMetadataOp, of: TransactionId, stamp: Stamp) -> Record:
    return Record(
        metadata_op=operation,
        txnid_least_bits=of.sequence,
        txnid_most_bits=of.coordinator,
        last_modification_time=stamp.now_ms,
        max_local_txn_id=stamp.last_sequence,
    )
