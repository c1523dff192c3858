"""The log of a transaction coordinator as entries: one record in each, or several. Pure.

Pulsar `TransactionMetadataEntry`, `BatchedTransactionMetadataEntry` and `TxnLogBufferedWriter`. An entry has no message
metadata and no checksum of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, cast

from google.protobuf.message import DecodeError
from magnetar.broker.states import TransactionState
from magnetar.broker.transactions.names import TransactionId
from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar.generated import transaction_log_pb2 as pb

Record: TypeAlias = pb.TransactionMetadataEntry

MAX_LOCAL_TXN_ID: Final = "max_local_txn_id"
"""The property of the managed ledger that says which id was given last, in decimal."""

BATCH_MAGIC: Final = 0x0E01
"""How an entry of several records begins; a record never does, as no field has this tag."""

BATCH_VERSION: Final = 1

_BATCH_HEADER: Final = Struct(">HH")

_LARGEST_SIGNED: Final = (1 << 63) - 1
"""Times are a Java long where Apache's brokers read them."""


class BadRecord(MagnetarError):
    """An entry of a coordinator's log that cannot be read."""


class Stamp(NamedTuple):
    """What every record says of the moment in which it was made."""

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


def encode(record: Record) -> bytes:
    """The entry of one record."""
    return record.SerializeToString(deterministic=True)


def encode_batch(records: Sequence[Record]) -> bytes:
    """The entry of several records."""
    batch = pb.BatchedTransactionMetadataEntry(transaction_logs=records)
    return _BATCH_HEADER.pack(BATCH_MAGIC, BATCH_VERSION) + batch.SerializeToString(deterministic=True)


def decode(data: bytes) -> list[Record]:
    """The records of an entry, in both forms. `BadRecord`"""
    try:
        if data[:2] == BATCH_MAGIC.to_bytes(2, "big"):
            records = list(pb.BatchedTransactionMetadataEntry.FromString(data[_BATCH_HEADER.size :]).transaction_logs)
        else:
            records = [Record.FromString(data)]
    except DecodeError as error:
        raise BadRecord(f"a record of a transaction that cannot be read: {error}") from None
    # What a later version may write would else count as the operation 0, a new transaction.
    if not all(record.HasField("metadata_op") and record.IsInitialized() for record in records):
        raise BadRecord("a record of a transaction without a known operation")
    return records


def last_sequence_of(data: bytes) -> int:
    """The newest id that a coordinator had given when it wrote an entry. `BadRecord`"""
    return max((int(record.max_local_txn_id) for record in decode(data)), default=-1)


def _record(operation: pb.TransactionMetadataEntry.TransactionMetadataOp, of: TransactionId, stamp: Stamp) -> Record:
    return Record(
        metadata_op=operation,
        txnid_least_bits=of.sequence,
        txnid_most_bits=of.coordinator,
        last_modification_time=stamp.now_ms,
        max_local_txn_id=stamp.last_sequence,
    )
