"""The entries that end a transaction on a topic. Pure.

Facts: transactions-dedup-compaction 1.6; Pulsar `Markers.newTxnCommitMarker`, `newTxnAbortMarker`.
"""

from __future__ import annotations

from typing import Final

from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.wire.pulsar.batch import build_message
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageMetadata

COMMIT_MARKER: Final = 21
ABORT_MARKER: Final = 22

MARKER_PRODUCER: Final = "pulsar.txn.marker"

NO_SEQUENCE_ID: Final = (1 << 64) - 1
"""-1, as an unsigned field has it."""


def end_marker(transaction: TransactionBits, *, commit: bool, publish_time_ms: int) -> bytes:
    """The entry to store."""
    most_bits, least_bits = transaction
    metadata = MessageMetadata(
        producer_name=MARKER_PRODUCER,
        sequence_id=NO_SEQUENCE_ID,
        publish_time=publish_time_ms,
        marker_type=COMMIT_MARKER if commit else ABORT_MARKER,
        txnid_least_bits=least_bits,
        txnid_most_bits=most_bits,
    )
    return build_message(metadata, b"")
