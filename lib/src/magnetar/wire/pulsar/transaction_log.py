"""The entries of a transaction coordinator's log: one record in each, or several.

Pulsar `TransactionMetadataEntry`, `BatchedTransactionMetadataEntry` and `TxnLogBufferedWriter`. An entry has no message
metadata and no checksum of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError
from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar.generated import transaction_log_pb2 as pb

Record: TypeAlias = pb.TransactionMetadataEntry

BATCH_MAGIC: Final = 0x0E01
"""How an entry of several records begins; a record never does, as no field has this tag."""

BATCH_VERSION: Final = 1

_BATCH_HEADER: Final = Struct(">HH")


class BadTransactionRecord(MagnetarError):
    """An entry of a coordinator's log that cannot be read."""


def encode(record: Record) -> bytes:
    """The entry of one record."""
    return record.SerializeToString(deterministic=True)


def encode_batch(records: Sequence[Record]) -> bytes:
    """The entry of several records."""
    batch = pb.BatchedTransactionMetadataEntry(transaction_logs=records)
    return _BATCH_HEADER.pack(BATCH_MAGIC, BATCH_VERSION) + batch.SerializeToString(deterministic=True)


def decode(data: bytes) -> list[Record]:
    """The records of an entry, in both forms. `BadTransactionRecord`"""
    try:
        if data[:2] == BATCH_MAGIC.to_bytes(2, "big"):
            records = list(pb.BatchedTransactionMetadataEntry.FromString(data[_BATCH_HEADER.size :]).transaction_logs)
        else:
            records = [Record.FromString(data)]
    except DecodeError as error:
        raise BadTransactionRecord(f"a record of a transaction that cannot be read: {error}") from None
    # What a later version may write would else count as the operation 0, a new transaction.
    if not all(record.HasField("metadata_op") and record.IsInitialized() for record in records):
        raise BadTransactionRecord("a record of a transaction without a known operation")
    if not data.isascii() and not all(isinstance(text, str) for record in records for text in _texts_of(record)):
        # Protobuf gives such a text as bytes, which nobody expects.
        raise BadTransactionRecord("a record of a transaction with a text that is no UTF-8")
    return records


def _texts_of(record: Record) -> Iterator[object]:
    yield record.owner
    yield from record.partitions
    for each in record.subscriptions:
        yield each.topic
        yield each.subscription
