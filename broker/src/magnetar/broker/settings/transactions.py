"""What an operator may set about transactions, under Pulsar's names (`ServiceConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.core.limits import MIB
from magnetar.core.setting import check_ranges, setting

REQUESTS_AT_ONCE_MIN: Final = 100
"""Apache's coordinators have at least so many requests under way, whatever is set."""

INTEGER_MAX: Final = (1 << 31) - 1
"""The largest Java int: these settings are ints at Apache's brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Transactions of one broker: whether there are any, bounds of its coordinators, and how records are written."""

    enabled: bool = setting("transactionCoordinatorEnabled", False)
    """Whether clients may use transactions: coordinators run, topics and subscriptions take part."""
    open_per_coordinator_max: int = setting("maxActiveTransactionsPerCoordinator", 0, low=0, high=INTEGER_MAX)
    """Transactions of one coordinator that are not over; 0 is no limit."""
    requests_at_once_max: int = setting("transactionBufferClientMaxConcurrentRequests", 1_000, low=1, high=INTEGER_MAX)
    """Requests by which topics and subscriptions hear of an end that may be without an answer; at least
    `REQUESTS_AT_ONCE_MIN`."""
    log_batched: bool = setting("transactionLogBatchedWriteEnabled", False, dynamic="broker")
    """Whether several records of a coordinator's log become one entry."""
    log_batch_records_max: int = setting("transactionLogBatchedWriteMaxRecords", 512, low=1)
    log_batch_bytes_max: int = setting("transactionLogBatchedWriteMaxSize", 4 * MIB, low=1)
    log_batch_delay_ms: int = setting("transactionLogBatchedWriteMaxDelayInMillis", 1, low=0)
    request_timeout_ms: int = setting("transactionBufferClientOperationTimeoutInMills", 3_000, low=1, high=INTEGER_MAX)
    """Milliseconds until such a request without an answer is sent again."""
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
    pending_ack_batched: bool = setting("transactionPendingAckBatchedWriteEnabled", False, dynamic="broker")
    """Whether several records of that log become one entry."""
    pending_ack_batch_records_max: int = setting("transactionPendingAckBatchedWriteMaxRecords", 512, low=1)
    pending_ack_batch_bytes_max: int = setting("transactionPendingAckBatchedWriteMaxSize", 4 * MIB, low=1)
    pending_ack_batch_delay_ms: int = setting("transactionPendingAckBatchedWriteMaxDelayInMillis", 1, low=0)

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def requests_max(self) -> int:
        """How many requests a coordinator may have under way."""
        return max(REQUESTS_AT_ONCE_MIN, self.requests_at_once_max)
