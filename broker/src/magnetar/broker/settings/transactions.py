"""What an operator may set about transactions, under Pulsar's own meanings (`ServiceConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.core.errors import SettingError
from magnetar.core.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Whether topics take transactional messages, and how their state is kept."""

    enabled: bool = setting("transactionCoordinatorEnabled", False)
    snapshot_changes_max: int = setting("transactionBufferSnapshotMaxTransactionCount", 1_000)
    """So often may the last readable position of a topic change before a snapshot is due."""
    snapshot_interval_ms: int = setting("transactionBufferSnapshotMinTimeInMillis", 5_000)
    """When a snapshot is due in any case, if anything changed."""
    segmented_snapshots: bool = setting("transactionBufferSegmentedSnapshotEnabled", False)
    """Snapshots list what was aborted lately; the rest is in messages that are written once."""
    segment_bytes: int = setting("transactionBufferSnapshotSegmentSize", 262_144)

    def __post_init__(self) -> None:
        if self.snapshot_changes_max < 1 or self.snapshot_interval_ms < 1:
            raise SettingError("snapshots of transaction buffers are due after a positive number of changes or time")
