"""How garbage is collected. BookKeeper's names are in `UPSTREAM_NAMES`; the defaults are Pulsar's bookkeeper.conf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB


def _require(condition: bool, name: str, value: object) -> None:
    if not condition:
        raise SettingError(f"{name} is out of bounds: {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageCollectionSettings:
    """One ledger directory's collector."""

    wait_seconds: float = 900.0
    """gcWaitTime: between two collections."""
    minor_threshold: float = 0.2
    """minorCompactionThreshold: a log whose live share is below this is compacted; 0 or less: never."""
    minor_interval_seconds: float = 3_600.0
    """minorCompactionInterval; 0 or less: never."""
    minor_time_max_seconds: float = -0.001
    """minorCompactionMaxTimeMillis: no further log is begun after this; 0 or less: no limit."""
    major_threshold: float = 0.5
    """majorCompactionThreshold."""
    major_interval_seconds: float = 86_400.0
    """majorCompactionInterval."""
    major_time_max_seconds: float = -0.001
    """majorCompactionMaxTimeMillis."""
    force_allowed: bool = True
    """forceAllowCompaction: a compaction that somebody asks for is made even where the intervals switch it off."""
    throttle_by_bytes: bool = False
    """isThrottleByBytes: which of the two rates holds."""
    entries_per_second: int = 1_000
    """compactionRateByEntries: entries copied by a compaction."""
    bytes_per_second: int = 1_000_000
    """compactionRateByBytes: bytes copied by a compaction."""
    transactional: bool = True
    """useTransactionalCompaction. Upstream's other way, copying into the log of new entries, is not offered: the
    setting is read and has no effect."""
    use_target_log_size: bool = False
    """useTargetEntryLogSizeForGc: usage is the share of a full log rather than of the log itself, so that small logs
    are put together."""
    force_when_full: bool = False
    """isForceGCAllowWhenNoSpace: on a full disk compact all the more, instead of not at all."""
    disk_almost_full_share: float = 0.90
    """diskUsageWarnThreshold: major compactions pause from here on."""
    disk_full_share: float = 0.95
    """diskUsageThreshold: minor compactions pause too."""
    free_bytes_min: int = 64 * MIB
    """Room that no compaction uses, forced or not; the journal and the checkpoints need it."""
    over_replicated_wait_seconds: float = 86_400.0
    """gcOverreplicatedLedgerWaitTime: how often ledgers are looked for whose metadata does not name this bookie; 0 or
    less: never."""
    over_replicated_requests_max: int = 1_000
    """gcOverreplicatedLedgerMaxConcurrentRequests: reads of the metadata store in flight; at most 64 are used."""
    metadata_reads_per_second: int = 1_000
    """gcMetadataOpRateLimit."""
    verify_metadata: bool = True
    """verifyMetadataOnGC: ask once more for each ledger before it is deleted. Upstream's default is False; it costs
    one read for each deleted ledger, once."""
    location_compaction_interval_seconds: float = -1.0
    """entryLocationCompactionInterval: how often RocksDB gives the space of deleted places back; 0 or less: when it
    likes."""
    ledgers_in_memory_max: int = 1_000_000
    """Pairs of ledger and size, over all entry logs, that stay in memory, 16 bytes each. Others are read again from
    the logs' own maps, so this is gcEntryLogMetadataCacheEnabled without a second database."""

    def __post_init__(self) -> None:
        _require(self.wait_seconds > 0, "gcWaitTime", self.wait_seconds)
        _require(self.minor_threshold <= 1, "minorCompactionThreshold", self.minor_threshold)
        _require(self.major_threshold <= 1, "majorCompactionThreshold", self.major_threshold)
        _require(self.entries_per_second >= 1, "compactionRateByEntries", self.entries_per_second)
        _require(self.bytes_per_second >= 1, "compactionRateByBytes", self.bytes_per_second)
        _require(self.over_replicated_requests_max >= 1, "gcOverreplicatedLedgerMaxConcurrentRequests", 0)
        _require(self.metadata_reads_per_second >= 1, "gcMetadataOpRateLimit", self.metadata_reads_per_second)
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


UPSTREAM_NAMES: Final[dict[str, str]] = {
    "compactionRateByBytes": "bytes_per_second",
    "compactionRateByEntries": "entries_per_second",
    "diskUsageThreshold": "disk_full_share",
    "diskUsageWarnThreshold": "disk_almost_full_share",
    "entryLocationCompactionInterval": "location_compaction_interval_seconds",
    "forceAllowCompaction": "force_allowed",
    "gcMetadataOpRateLimit": "metadata_reads_per_second",
    "gcOverreplicatedLedgerMaxConcurrentRequests": "over_replicated_requests_max",
    "gcOverreplicatedLedgerWaitTime": "over_replicated_wait_seconds",
    "gcWaitTime": "wait_seconds",
    "isForceGCAllowWhenNoSpace": "force_when_full",
    "isThrottleByBytes": "throttle_by_bytes",
    "majorCompactionInterval": "major_interval_seconds",
    "majorCompactionMaxTimeMillis": "major_time_max_seconds",
    "majorCompactionThreshold": "major_threshold",
    "minorCompactionInterval": "minor_interval_seconds",
    "minorCompactionMaxTimeMillis": "minor_time_max_seconds",
    "minorCompactionThreshold": "minor_threshold",
    "useTargetEntryLogSizeForGc": "use_target_log_size",
    "useTransactionalCompaction": "transactional",
    "verifyMetadataOnGC": "verify_metadata",
}
"""BookKeeper's name of each setting; the unit in ours is told by the name's end.

`compactionRate` is an older name of `compactionRateByEntries`; `compactionMaxOutstandingRequests`,
`gcEntryLogMetadataCacheEnabled` and `gcEntryLogMetadataCachePath` have nothing to act on here."""
