"""What an operator may set of transactions, under Pulsar's own meanings (`ServiceConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.core.limits import MIB
from magnetar.core.setting import check_ranges, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Whether there are transactions, and how their records and the state of topics are written."""

    enabled: bool = setting("transactionCoordinatorEnabled", False)
    """Whether clients may use transactions."""
    snapshot_changes_max: int = setting("transactionBufferSnapshotMaxTransactionCount", 1_000, low=1)
    """So often may the last readable position of a topic change before a snapshot of its transactions is due."""
    snapshot_interval_ms: int = setting("transactionBufferSnapshotMinTimeInMillis", 5_000, low=1)
    """When such a snapshot is due in any case, if anything changed."""
    segmented_snapshots: bool = setting("transactionBufferSegmentedSnapshotEnabled", False)
    """Whether snapshots list what was aborted lately alone; the rest is in messages that are written once."""
    segment_bytes: int = setting("transactionBufferSnapshotSegmentSize", 262_144)
    """The size that Apache's brokers reckon a segment's transactions by."""
    pending_ack_index_lag_min: int = setting("transactionPendingAckLogIndexMinLag", 500, low=1)
    """Records of a log of pending acknowledgements from one point where it may be trimmed to the next."""
    pending_ack_batched: bool = setting("transactionPendingAckBatchedWriteEnabled", False)
    """Whether several records of that log become one entry."""
    pending_ack_batch_records_max: int = setting("transactionPendingAckBatchedWriteMaxRecords", 512, low=1)
    pending_ack_batch_bytes_max: int = setting("transactionPendingAckBatchedWriteMaxSize", 4 * MIB, low=1)
    pending_ack_batch_delay_ms: int = setting("transactionPendingAckBatchedWriteMaxDelayInMillis", 1, low=0)

    def __post_init__(self) -> None:
        check_ranges(self)
