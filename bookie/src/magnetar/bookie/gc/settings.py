"""How garbage is collected. By BookKeeper's names; the defaults are Pulsar's bookkeeper.conf.

`compactionMaxOutstandingRequests`, `gcEntryLogMetadataCacheEnabled` and `gcEntryLogMetadataCachePath` have nothing to
act on here.
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.setting import check_ranges, setting


def _require(condition: bool, name: str, value: object) -> None:
    if not condition:
        raise SettingError(f"{name} is out of bounds: {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageCollectionSettings:
    """One ledger directory's collector."""

    wait_seconds: float = setting("gcWaitTime", 900.0, unit="ms", low=0.001)
    """Seconds between two garbage collections."""
    minor_threshold: float = setting("minorCompactionThreshold", 0.2, high=1, below_zero=0)
    """A log whose live share is below this is compacted; 0 or less: never."""
    minor_interval_seconds: float = setting("minorCompactionInterval", 3_600.0, unit="seconds", below_zero=0)
    """Seconds between two minor compactions; 0 or less: none are made."""
    minor_time_max_seconds: float = setting("minorCompactionMaxTimeMillis", -0.001, below_zero=0)
    """No further log is begun after this; 0 or less: no limit."""
    major_threshold: float = setting("majorCompactionThreshold", 0.5, high=1, below_zero=0)
    major_interval_seconds: float = setting("majorCompactionInterval", 86_400.0, unit="seconds", below_zero=0)
    major_time_max_seconds: float = setting("majorCompactionMaxTimeMillis", -0.001, below_zero=0)
    force_allowed: bool = setting("forceAllowCompaction", True)
    """A compaction that somebody asks for is made even where the intervals switch it off."""
    throttle_by_bytes: bool = setting("isThrottleByBytes", False)
    """Whether `bytes_per_second` bounds compactions, not `entries_per_second`."""
    entries_per_second: int = setting("compactionRateByEntries", 1_000, older="compactionRate", low=1)
    """Entries that a compaction copies in a second, at most."""
    bytes_per_second: int = setting("compactionRateByBytes", 1_000_000, low=1)
    """Bytes that a compaction copies in a second, at most."""
    transactional: bool = setting("useTransactionalCompaction", True)
    """Upstream's other way, copying into the log of new entries, is not offered: the
    setting is read and has no effect."""
    use_target_log_size: bool = setting("useTargetEntryLogSizeForGc", False)
    """Usage is the share of a full log rather than of the log itself, so that small logs
    are put together."""
    force_when_full: bool = setting("isForceGCAllowWhenNoSpace", False)
    """On a full disk compact all the more, instead of not at all."""
    disk_almost_full_share: float = setting("diskUsageWarnThreshold", 0.90, low=0.01, high=1)
    """From this used share of the disk on, major compactions pause."""
    disk_full_share: float = setting("diskUsageThreshold", 0.95, low=0.01, high=1)
    """From this used share of the disk on, minor compactions pause too."""
    free_bytes_min: int = 64 * MIB
    """Room that no compaction uses, forced or not; the journal and the checkpoints need it."""
    over_replicated_wait_seconds: float = setting("gcOverreplicatedLedgerWaitTime", 86_400.0, unit="ms", below_zero=0)
    """How often ledgers are looked for whose metadata does not name this bookie; 0 or
    less: never."""
    over_replicated_requests_max: int = setting("gcOverreplicatedLedgerMaxConcurrentRequests", 1_000, low=1)
    """Reads of the metadata store in flight; at most 64 are used."""
    metadata_reads_per_second: int = setting("gcMetadataOpRateLimit", 1_000, low=1)
    verify_metadata: bool = setting("verifyMetadataOnGC", True)
    """Ask once more for each ledger before it is deleted. Upstream's default is False; it costs
    one read for each deleted ledger, once."""
    location_compaction_interval_seconds: float = setting(
        "entryLocationCompactionInterval", -1.0, unit="seconds", below_zero=0
    )
    """How often RocksDB gives the space of deleted places back; 0 or less: when it
    likes."""
    ledgers_in_memory_max: int = 1_000_000
    """Pairs of ledger and size, over all entry logs, that stay in memory, 16 bytes each. Others are read again from
    the logs' own maps, so this is gcEntryLogMetadataCacheEnabled without a second database."""

    def __post_init__(self) -> None:
        _require(self.wait_seconds > 0, "gcWaitTime", self.wait_seconds)
        check_ranges(self, accepted=False)
        _require(self.over_replicated_requests_max >= 1, "gcOverreplicatedLedgerMaxConcurrentRequests", 0)
        _require(
            0 < self.disk_almost_full_share <= self.disk_full_share <= 1, "diskUsageThreshold", self.disk_full_share
        )
        _require(self.free_bytes_min >= 0, "minUsableSizeForEntryLogCreation", self.free_bytes_min)
        _require(self.ledgers_in_memory_max >= 0, "ledgers_in_memory_max", self.ledgers_in_memory_max)
        for name, interval in (
            ("minorCompactionInterval", self.minor_interval_seconds),
            ("majorCompactionInterval", self.major_interval_seconds),
            ("entryLocationCompactionInterval", self.location_compaction_interval_seconds),
        ):
            _require(interval <= 0 or interval >= self.wait_seconds, f"{name} (gcWaitTime is its least)", interval)
        if self.minor_enabled and self.major_enabled:
            _require(
                self.minor_interval_seconds < self.major_interval_seconds,
                "minorCompactionInterval (majorCompactionInterval must be more)",
                self.minor_interval_seconds,
            )
            _require(
                self.minor_threshold < self.major_threshold,
                "minorCompactionThreshold (majorCompactionThreshold must be more)",
                self.minor_threshold,
            )

    @property
    def minor_enabled(self) -> bool:
        """Whether minor compactions are made without anybody asking."""
        return self.minor_threshold > 0 and self.minor_interval_seconds > 0

    @property
    def major_enabled(self) -> bool:
        """Whether major compactions are made without anybody asking."""
        return self.major_threshold > 0 and self.major_interval_seconds > 0
