"""The policy of one managed ledger, by Pulsar's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.setting import check_ranges, setting
from magnetar.tiered.policy import NO_OFFLOAD, OffloadPolicy
from magnetar.wire.bookkeeper.entry import DIGEST_BYTES

ENSEMBLE_SIZE_MAX: Final = 1_000
"""Bookies of one ledger: more than any cluster has."""


@dataclass(slots=True, kw_only=True)
class ManagedLedgerSettings:
    """May be changed while the managed ledger is open; each check reads the value of the moment."""

    ensemble_size: int = setting("managedLedgerDefaultEnsembleSize", 1, low=1, high=ENSEMBLE_SIZE_MAX)
    """Bookies that the entries of a ledger are spread over (the ensemble)."""
    write_quorum: int = setting("managedLedgerDefaultWriteQuorum", 1, low=1, high=ENSEMBLE_SIZE_MAX)
    """Bookies that each entry is written to (the write quorum)."""
    ack_quorum: int = setting("managedLedgerDefaultAckQuorum", 1, low=1, high=ENSEMBLE_SIZE_MAX)
    """Bookies that must have an entry on disk before it is confirmed (the ack quorum)."""
    digest_type: str = setting("managedLedgerDigestType", "CRC32C", words={name: name for name in DIGEST_BYTES})
    password: bytes = setting("managedLedgerPassword", b"")

    bookie_groups: tuple[str, str] | None = None
    """Groups of bookies that new ledgers are put on, the first ones and those that help out where these are too few;
    each is names joined by commas. None: as the client's settings say."""

    max_entries_per_ledger: int = setting("managedLedgerMaxEntriesPerLedger", 50_000, below_zero=0)
    """A ledger with so many entries is full. The last batch may go over it. 0, as in Apache: full with its first entry,
    once it is old enough."""
    max_size_per_ledger_bytes: int = setting("managedLedgerMaxSizePerLedgerMbytes", 2048 * MIB)
    """Bytes of a ledger after which it is full."""
    maximum_rollover_ms: int = setting("managedLedgerMaxLedgerRolloverTimeMinutes", 240 * 60_000)
    """A ledger of this age is full, whether anything is appended or not; 0 = none is ever too old."""
    minimum_rollover_ms: int = setting("managedLedgerMinLedgerRolloverTimeMinutes", 10 * 60_000)
    """A ledger younger than this is not full, whatever it holds."""
    inactive_rollover_ms: int = setting(
        "managedLedgerInactiveLedgerRolloverTimeSeconds", 0, below_zero=0, dynamic="broker"
    )
    """A ledger with entries that had no append for so long is full, however young it is; 0 = none is."""

    retention_time_ms: int = 0
    """How long consumed ledgers are kept; 0 = not at all, -1 = for ever."""
    retention_size_bytes: int = 0
    """How much is kept though consumed; 0 = nothing, -1 = everything."""

    mark_delete_rate: float = setting("managedLedgerDefaultMarkDeleteRateLimit", 1.0)
    """Cursor states written per second and cursor without `persist`; 0 is no limit."""
    cursor_ledger_entries_max: int = setting("managedLedgerCursorMaxEntriesPerLedger", 50_000, low=1)
    """Entries of a cursor's ledger after which the cursor goes on in a new one."""
    cursor_ledger_age_ms_max: int = setting("managedLedgerCursorRolloverTimeInSeconds", 14_400_000, low=1_000)
    """Milliseconds of age after which a cursor goes on in a new ledger."""
    unacked_ranges_max: int = setting("managedLedgerMaxUnackedRangesToPersist", 10_000)
    """Individually acknowledged ranges, and batches, that are persisted; the rest is delivered again after a
    restart [managedLedgerMaxUnackedRangesToPersist, managedLedgerMaxBatchDeletedIndexToPersist]."""
    unacked_ranges_in_metadata_max: int = setting("managedLedgerMaxUnackedRangesToPersistInMetadataStore", 1_000)
    """Acknowledged ranges that a closing cursor may keep in its metadata; with more, it keeps its ledger."""
    persist_acks_as_long_array: bool = setting("managedLedgerPersistIndividualAckAsLongArray", True)
    """Whether acknowledged ranges are persisted as arrays of longs (bit sets), not as pairs of positions."""
    skip_lost_data: bool = setting("autoSkipNonRecoverableData", False, dynamic="broker")
    """Whether reads go on after a ledger that is lost for good."""

    cursors_recovered_by_force: bool = setting("managedLedgerForceRecovery", False, dynamic="broker")
    """Whether a cursor whose state bookies cannot give now goes back to the position in its node: what was acknowledged
    since is delivered again, and the topic is not kept waiting."""

    offload: OffloadPolicy = NO_OFFLOAD
    """Which ledgers are copied to tiered storage, where to, and when."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise SettingError(
                f"it must be that managedLedgerDefaultEnsembleSize {self.ensemble_size} >= "
                f"managedLedgerDefaultWriteQuorum {self.write_quorum} >= "
                f"managedLedgerDefaultAckQuorum {self.ack_quorum}"
            )
        assert self.max_entries_per_ledger >= 0 <= self.mark_delete_rate
