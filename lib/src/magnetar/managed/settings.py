"""The policy of one managed ledger, by Pulsar's names."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.setting import check_ranges, setting
from magnetar.wire.bookkeeper.entry import DIGEST_BYTES


@dataclass(slots=True, kw_only=True)
class ManagedLedgerSettings:
    """May be changed while the managed ledger is open; each check reads the value of the moment."""

    ensemble_size: int = setting("managedLedgerDefaultEnsembleSize", 1, low=1, high=1_000)
    """Bookies that a ledger is spread over."""
    write_quorum: int = setting("managedLedgerDefaultWriteQuorum", 1, low=1, high=1_000)
    """Copies of each entry."""
    ack_quorum: int = setting("managedLedgerDefaultAckQuorum", 1, low=1, high=1_000)
    """Copies that must be on disk before an entry counts."""
    digest_type: str = setting("managedLedgerDigestType", "CRC32C", words={name: name for name in DIGEST_BYTES})
    password: bytes = setting("managedLedgerPassword", b"")

    max_entries_per_ledger: int = setting("managedLedgerMaxEntriesPerLedger", 50_000, below_zero=0)
    """A ledger with so many entries is full. The last batch may go over it. 0, as in Apache: full with its first entry,
    once it is old enough."""
    max_size_per_ledger_bytes: int = setting("managedLedgerMaxSizePerLedgerMbytes", 2048 * MIB)
    """A ledger of this size is full."""
    maximum_rollover_ms: int = setting("managedLedgerMaxLedgerRolloverTimeMinutes", 240 * 60_000)
    """A ledger of this age is full at its next append."""
    minimum_rollover_ms: int = setting("managedLedgerMinLedgerRolloverTimeMinutes", 10 * 60_000)
    """A ledger younger than this is not full, whatever it holds."""
    inactive_rollover_ms: int = setting(
        "managedLedgerInactiveLedgerRolloverTimeSeconds", 0, below_zero=0, dynamic="broker"
    )
    """A ledger with entries that had no append for so long is closed; 0 = never."""

    retention_time_ms: int = 0
    """How long consumed ledgers are kept; 0 = not at all, -1 = for ever."""
    retention_size_bytes: int = 0
    """How much is kept though consumed; 0 = nothing, -1 = everything."""

    mark_delete_rate: float = setting("managedLedgerDefaultMarkDeleteRateLimit", 1.0)
    """Cursor states written per second and cursor without `persist`; 0 is no limit."""
    cursor_ledger_entries_max: int = setting("managedLedgerCursorMaxEntriesPerLedger", 50_000, low=1)
    """A cursor ledger rolls here."""
    cursor_ledger_age_ms_max: int = setting("managedLedgerCursorRolloverTimeInSeconds", 14_400_000, low=1_000)
    """A cursor ledger rolls at this age."""
    unacked_ranges_max: int = setting("managedLedgerMaxUnackedRangesToPersist", 10_000)
    """Individually acknowledged ranges, and batches, that are persisted; the rest is delivered again after a
    restart [managedLedgerMaxUnackedRangesToPersist, managedLedgerMaxBatchDeletedIndexToPersist]."""
    unacked_ranges_in_metadata_max: int = setting("managedLedgerMaxUnackedRangesToPersistInMetadataStore", 1_000)
    """With more ranges a closing cursor keeps its ledger."""
    persist_acks_as_long_array: bool = setting("managedLedgerPersistIndividualAckAsLongArray", True)
    """Which of the two persisted forms is written."""
    skip_lost_data: bool = setting("autoSkipNonRecoverableData", False, dynamic="broker")
    """Whether reads go on after a ledger that is lost for good."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise SettingError(
                f"it must be that managedLedgerDefaultEnsembleSize {self.ensemble_size} >= "
                f"managedLedgerDefaultWriteQuorum {self.write_quorum} >= "
                f"managedLedgerDefaultAckQuorum {self.ack_quorum}"
            )
        assert self.max_entries_per_ledger >= 0 <= self.mark_delete_rate
