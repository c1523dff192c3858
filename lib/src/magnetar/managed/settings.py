"""The policy of one managed ledger. Pulsar's names are in brackets."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.core.limits import MIB


@dataclass(slots=True, kw_only=True)
class ManagedLedgerSettings:
    """May be changed while the managed ledger is open; each check reads the value of the moment."""

    ensemble_size: int = 1
    """Bookies that a ledger is spread over [managedLedgerDefaultEnsembleSize]."""
    write_quorum: int = 1
    """Copies of each entry [managedLedgerDefaultWriteQuorum]."""
    ack_quorum: int = 1
    """Copies that must be on disk before an entry counts [managedLedgerDefaultAckQuorum]."""
    digest_type: str = "CRC32C"
    """[managedLedgerDigestType]"""
    password: bytes = b""
    """[managedLedgerPassword]"""

    max_entries_per_ledger: int = 50_000
    """A ledger with so many entries is full [managedLedgerMaxEntriesPerLedger]. The last batch may go over it."""
    max_size_per_ledger_bytes: int = 2048 * MIB
    """A ledger of this size is full [managedLedgerMaxSizePerLedgerMbytes]."""
    maximum_rollover_ms: int = 240 * 60_000
    """A ledger of this age is full at its next append [managedLedgerMaxLedgerRolloverTimeMinutes]."""
    minimum_rollover_ms: int = 10 * 60_000
    """A ledger younger than this is not full, whatever it holds [managedLedgerMinLedgerRolloverTimeMinutes]."""
    inactive_rollover_ms: int = 0
    """A ledger with entries that had no append for so long is closed; 0 = never
    [managedLedgerInactiveLedgerRolloverTimeSeconds]."""

    retention_time_ms: int = 0
    """How long consumed ledgers are kept; 0 = not at all, -1 = for ever."""
    retention_size_bytes: int = 0
    """How much is kept though consumed; 0 = nothing, -1 = everything."""

    mark_delete_rate: float = 1.0
    """Cursor states written per second and cursor without `persist` [managedLedgerDefaultMarkDeleteRateLimit]."""
    cursor_ledger_entries_max: int = 50_000
    """A cursor ledger rolls here [managedLedgerCursorMaxEntriesPerLedger]."""
    cursor_ledger_age_ms_max: int = 14_400_000
    """A cursor ledger rolls at this age [managedLedgerCursorRolloverTimeInSeconds]."""
    unacked_ranges_max: int = 10_000
    """Individually acknowledged ranges, and batches, that are persisted; the rest is delivered again after a
    restart [managedLedgerMaxUnackedRangesToPersist, managedLedgerMaxBatchDeletedIndexToPersist]."""
    unacked_ranges_in_metadata_max: int = 1_000
    """With more ranges a closing cursor keeps its ledger [managedLedgerMaxUnackedRangesToPersistInMetadataStore]."""
    persist_acks_as_long_array: bool = True
    """Which of the two persisted forms is written [managedLedgerPersistIndividualAckAsLongArray]."""
    skip_lost_data: bool = False
    """Whether reads go on after a ledger that is lost for good [autoSkipNonRecoverableData]."""

    def __post_init__(self) -> None:
        assert self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1
        assert self.max_entries_per_ledger >= 1
        assert self.mark_delete_rate > 0
