"""The records of a subscription's log of acknowledgements in transactions, plain and batched.

An entry of the log is one protobuf record without any header, or, when a broker writes several at once, a magic, a
version and a list of them. Readers tell the two apart by the first bytes (Pulsar: `MLPendingAckStore.deserializeEntry`,
`TxnLogBufferedWriter`; broker-internals section 10).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.core.errors import PeerError
from magnetar.core.ids import Position, signed64, unsigned64
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.protobuf import parse
from magnetar.wire.pulsar.generated import transaction_pending_ack_pb2 as pb

BATCH_MAGIC: Final = b"\x0e\x01"
"""How an entry of several records begins; no plain one does, as 0x0e is no tag of its fields."""

BATCH_HEADER: Final = BATCH_MAGIC + b"\x00\x01"
"""The magic and the only version there is."""


class PendingAckOperation(enum.Enum):
    """The operation that a record stores for its transaction."""

    ACK = pb.ACK
    COMMIT = pb.COMMIT
    ABORT = pb.ABORT


class AckedEntry(NamedTuple):
    """One id of an acknowledgement, as its client sent it."""

    position: Position
    remaining: Sequence[int]
    """Unacknowledged messages of the batch, as words of an ack set; empty: the whole entry is acknowledged."""
    batch_size: int
    """Messages of the batch; 0 when the client did not say."""


class PendingAckRecord(NamedTuple):
    """One record. Commits and aborts have no entries."""

    operation: PendingAckOperation
    transaction: TransactionBits
    cumulative: bool
    entries: Sequence[AckedEntry] = ()


class BadPendingAckRecord(PeerError):
    """An entry of the log is no record."""


def encode_record(record: PendingAckRecord) -> bytes:
    """One record as an entry of its own: the bytes that Pulsar's broker writes."""
    return _message_of(record).SerializeToString()


def encode_batch(records: Iterable[PendingAckRecord]) -> bytes:
    """Several records as one entry."""
    batch = pb.BatchedPendingAckMetadataEntry(pending_ack_log=[_message_of(record) for record in records])
    return BATCH_HEADER + batch.SerializeToString()


def decode_records(data: bytes) -> list[PendingAckRecord]:
    """The records of an entry. Raises `BadPendingAckRecord`."""
    try:
        if data.startswith(BATCH_MAGIC):
            batch = parse(pb.BatchedPendingAckMetadataEntry, data[len(BATCH_HEADER) :])
            return [_record_of(each) for each in batch.pending_ack_log]
        return [_record_of(parse(pb.PendingAckMetadataEntry, data))]
    except BadProtobuf as error:
        raise BadPendingAckRecord(f"an entry of pending acknowledgements cannot be read: {error}") from None


def _message_of(record: PendingAckRecord) -> pb.PendingAckMetadataEntry:
    coordinator, number = record.transaction
    message = pb.PendingAckMetadataEntry(
        pending_ack_op=record.operation.value,
        ack_type=pb.CUMULATIVE if record.cumulative else pb.INDIVIDUAL,
        txnid_least_bits=unsigned64(number),
        txnid_most_bits=unsigned64(coordinator),
    )
    for entry in record.entries:
        metadata = message.pending_ack_metadata.add(
            ledgerId=unsigned64(entry.position[0]),
            entryId=unsigned64(entry.position[1]),
            ack_set=[signed64(unsigned64(word)) for word in entry.remaining],
        )
        if not record.cumulative:
            metadata.batch_size = entry.batch_size
    return message


def _record_of(message: pb.PendingAckMetadataEntry) -> PendingAckRecord:
    # Parsing does not look at required fields.
    if not message.HasField("pending_ack_op") or not message.IsInitialized():
        raise BadPendingAckRecord("a record of pending acknowledgements lacks a field")
    return PendingAckRecord(
        PendingAckOperation(message.pending_ack_op),
        (signed64(message.txnid_most_bits), signed64(message.txnid_least_bits)),
        message.ack_type == pb.CUMULATIVE,
        [
            AckedEntry((signed64(each.ledgerId), signed64(each.entryId)), tuple(each.ack_set), each.batch_size)
            for each in message.pending_ack_metadata
        ],
    )
