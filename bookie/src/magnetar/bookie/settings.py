"""How a bookie is set up. BookKeeper's names are in `UPSTREAM_NAMES`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookie.loss import OnLoss
from magnetar.core.errors import SettingError
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX, GIB, MIB

ENTRY_LOG_BYTES_HARD_MAX: Final = 2**31 - 1
"""An entry's place in its log is a signed 32-bit number."""

WRITE_CACHE_BYTES_MIN: Final = 2 * BOOKKEEPER_FRAME_BYTES_MAX
"""Each half must hold the largest entry."""


def _require(condition: bool, name: str, value: object) -> None:
    if not condition:
        raise SettingError(f"{name} is out of bounds: {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """The journal's own part."""

    sync_data: bool = True
    """journalSyncData: an add is acknowledged only once the disk has it. False: a power failure may lose it."""
    size_bytes_max: int = 2 * GIB
    """journalMaxSizeMB: a new file is begun beyond this."""
    backups_max: int = 5
    """journalMaxBackups: how many files that are no longer needed stay for inspection. Standalone keeps none."""
    preallocate_bytes: int = 16 * MIB
    """journalPreAllocSizeMB: the file grows in these steps."""
    alignment_bytes: int = 4096
    """journalAlignmentSize: every group ends at a multiple. 4096 as in Pulsar's configuration: a page that is
    durable is never written again."""
    format_version: int = 6
    """journalFormatVersionToWrite: 6, or 5 as in Pulsar's configuration. Version 5 has no record for an explicit LAC
    (BookKeeper refuses a file of version 5 that has one): such a LAC then is durable with the next checkpoint."""
    queue_bytes_max: int = 32 * MIB
    """Bytes that wait for the journal thread; beyond, adds are held back."""
    group_bytes_max: int = 4 * MIB
    """Larger groups gain nothing (the disk's bandwidth is the limit then) and make their first entry wait."""

    def __post_init__(self) -> None:
        _require(self.size_bytes_max >= self.preallocate_bytes, "journalMaxSizeMB", self.size_bytes_max)
        _require(0 <= self.backups_max <= 10_000, "journalMaxBackups", self.backups_max)
        _require(self.alignment_bytes in (512, 1024, 2048, 4096), "journalAlignmentSize", self.alignment_bytes)
        _require(self.format_version in (5, 6), "journalFormatVersionToWrite", self.format_version)
        _require(self.preallocate_bytes >= MIB, "journalPreAllocSizeMB", self.preallocate_bytes)
        _require(self.queue_bytes_max >= BOOKKEEPER_FRAME_BYTES_MAX, "journalQueueSize", self.queue_bytes_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Write cache, entry logs, index, checkpoints."""

    write_cache_bytes_max: int = 64 * MIB
    """dbStorage_writeCacheMaxSizeMb: both halves of all ledger directories together; a directory gets at least
    `WRITE_CACHE_BYTES_MIN`."""
    block_cache_bytes: int = 8 * MIB
    """dbStorage_rocksDB_blockCacheSize: shared by both index databases."""
    flush_interval_seconds: float = 60.0
    """flushInterval: how much journal there is to replay after a crash, at most."""
    entry_log_bytes_max: int = 1 * GIB
    """logSizeLimit."""
    read_ahead_bytes_max: int = 32 * MIB
    """dbStorage_readAheadCacheMaxSizeMb: entries read ahead for readers that catch up; 0 switches it off."""
    read_ahead_batch_entries: int = 1_000
    """dbStorage_readAheadCacheBatchSize: how many at once, at most."""
    read_ahead_batch_bytes: int = 512 * 1024
    """dbStorage_readAheadCacheBatchBytesSize: how much at once, at most; -1: half the cache."""
    read_threads: int = 2
    """numReadWorkerThreads: for reads that the write cache cannot answer."""

    def __post_init__(self) -> None:
        _require(
            self.write_cache_bytes_max >= WRITE_CACHE_BYTES_MIN,
            "dbStorage_writeCacheMaxSizeMb",
            self.write_cache_bytes_max,
        )
        _require(self.flush_interval_seconds > 0, "flushInterval", self.flush_interval_seconds)
        _require(
            MIB <= self.entry_log_bytes_max <= ENTRY_LOG_BYTES_HARD_MAX - BOOKKEEPER_FRAME_BYTES_MAX,
            "logSizeLimit",
            self.entry_log_bytes_max,
        )
        _require(self.read_ahead_bytes_max >= 0, "dbStorage_readAheadCacheMaxSizeMb", self.read_ahead_bytes_max)
        _require(
            1 <= self.read_ahead_batch_entries <= 100_000,
            "dbStorage_readAheadCacheBatchSize",
            self.read_ahead_batch_entries,
        )
        _require(1 <= self.read_threads <= 64, "numReadWorkerThreads", self.read_threads)

    def write_cache_share_bytes(self, directories_count: int) -> int:
        """What one of so many ledger directories gets of the write cache."""
        return max(WRITE_CACHE_BYTES_MIN, self.write_cache_bytes_max // directories_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSettings:
    """When a disk counts as full."""

    usage_threshold: float = 0.95
    """diskUsageThreshold: at this share of any disk the bookie turns read-only."""
    usage_warn_threshold: float = 0.90
    """diskUsageWarnThreshold: from here on the log says so, and compactions that need room wait."""
    usage_low_water: float = 0.90
    """diskUsageLwmThreshold: below this share it takes writes again."""
    check_interval_seconds: float = 10.0
    """diskCheckInterval."""
    free_bytes_min: int = 64 * MIB
    """Less than this, beside what caches and journal still want to write, is full whatever the share: the reserve from
    which checkpoints, compaction and index deletes live."""
    persist_status: bool = True
    """persistBookieStatusEnabled: a read-only mode that somebody has asked for outlasts a restart."""

    def __post_init__(self) -> None:
        _require(0 < self.usage_low_water <= self.usage_threshold <= 1, "diskUsageThreshold", self.usage_threshold)
        _require(0 < self.usage_warn_threshold <= 1, "diskUsageWarnThreshold", self.usage_warn_threshold)
        _require(self.check_interval_seconds > 0, "diskCheckInterval", self.check_interval_seconds)
        _require(self.free_bytes_min >= 0, "minUsableSizeForEntryLogCreation", self.free_bytes_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSettings:
    """One bookie."""

    journal_directories: tuple[Path, ...]
    """journalDirectories: a ledger belongs to one of them by its id, so they and their order never change."""
    ledger_directories: tuple[Path, ...]
    """ledgerDirectories: a ledger belongs to one of them by its id, so they and their order never change."""
    index_directories: tuple[Path, ...] = ()
    """indexDirectories: where the index of each ledger directory stands; empty: in the ledger directory itself."""
    advertised_host: str = "127.0.0.1"
    """advertisedAddress: how others reach this bookie."""
    bookie_id: str = ""
    """bookieId; empty: `<advertised host>:<port>`."""
    port: int = 3181
    """bookiePort; 0: any free one (then give a bookie id, or it changes with every start)."""
    listen_host: str = "0.0.0.0"  # noqa: S104  (a server's default; the standalone narrows it)
    """Which address the server listens on."""
    serve_tcp: bool = True
    """False: only `LocalBookieConnection` reaches this bookie."""
    read_only: bool = False
    """Start in read-only mode and stay there."""
    heal_from_peers: bool = False
    """dataIntegrityChecking: a start that finds acknowledged entries damaged or gone goes on in limbo, and fetches them
    from the other bookies. False: it is refused. Ledgers with one replica have no other, and a person may have a copy
    of what is damaged, so nobody goes on without being told to. Such a start reads all of the index."""
    accept_loss: bool = False
    """Such a start goes on, and what is missing is denied from then on. For one start: it is in no settings file."""
    movable_folder: Path | None = None
    """The folder that all directories stand in, where it may be moved or copied as a whole: a cookie that was written
    at another place counts, and is written anew. None: a path that changed is a directory that was exchanged."""
    metadata_url: str = ""
    """What tools reach the metadata by, for messages; empty: whoever reads them knows."""
    journal: JournalSettings = JournalSettings()
    storage: StorageSettings = StorageSettings()
    disk: DiskSettings = DiskSettings()

    @property
    def registered_id(self) -> str:
        """What the cluster calls this bookie."""
        return self.bookie_id or f"{self.advertised_host}:{self.port}"

    @property
    def on_loss(self) -> OnLoss:
        """What a start does about damage; the option for one start counts before the setting."""
        if self.accept_loss:
            return OnLoss.ACCEPT
        return OnLoss.HEAL if self.heal_from_peers else OnLoss.REFUSE

    def __post_init__(self) -> None:
        for name, directories in (
            ("journalDirectories", self.journal_directories),
            ("ledgerDirectories", self.ledger_directories),
            ("indexDirectories", self.index_directories),
        ):
            _require(len(set(directories)) == len(directories), name, directories)
            _require(bool(directories) or name == "indexDirectories", name, directories)
        if self.index_directories and len(self.index_directories) != len(self.ledger_directories):
            raise SettingError("indexDirectories must name as many directories as ledgerDirectories, or none")


UPSTREAM_NAMES: Final[dict[str, str]] = {
    "advertisedAddress": "advertised_host",
    "bookieId": "bookie_id",
    "bookiePort": "port",
    "dataIntegrityChecking": "heal_from_peers",
    "dbStorage_readAheadCacheBatchBytesSize": "storage.read_ahead_batch_bytes",
    "dbStorage_readAheadCacheBatchSize": "storage.read_ahead_batch_entries",
    "dbStorage_readAheadCacheMaxSizeMb": "storage.read_ahead_bytes_max",
    "dbStorage_rocksDB_blockCacheSize": "storage.block_cache_bytes",
    "dbStorage_writeCacheMaxSizeMb": "storage.write_cache_bytes_max",
    "diskCheckInterval": "disk.check_interval_seconds",
    "diskUsageLwmThreshold": "disk.usage_low_water",
    "diskUsageThreshold": "disk.usage_threshold",
    "diskUsageWarnThreshold": "disk.usage_warn_threshold",
    "indexDirectories": "index_directories",
    "flushInterval": "storage.flush_interval_seconds",
    "forceReadOnlyBookie": "read_only",
    "journalAlignmentSize": "journal.alignment_bytes",
    "journalDirectories": "journal_directories",
    "journalFormatVersionToWrite": "journal.format_version",
    "journalMaxBackups": "journal.backups_max",
    "journalMaxSizeMB": "journal.size_bytes_max",
    "journalPreAllocSizeMB": "journal.preallocate_bytes",
    "journalSyncData": "journal.sync_data",
    "ledgerDirectories": "ledger_directories",
    "logSizeLimit": "storage.entry_log_bytes_max",
    "numReadWorkerThreads": "storage.read_threads",
    "persistBookieStatusEnabled": "disk.persist_status",
}
"""BookKeeper's name of each setting that has one; the unit in ours is told by the name's end."""

STANDALONE_STORAGE: Final = StorageSettings(
    write_cache_bytes_max=32 * MIB, block_cache_bytes=4 * MIB, read_ahead_bytes_max=8 * MIB
)
STANDALONE_JOURNAL: Final = JournalSettings(size_bytes_max=512 * MIB, backups_max=0)


def standalone_settings(directory: Path) -> BookieSettings:
    """A small bookie inside one process: everything below one directory, no TCP."""
    return BookieSettings(
        journal_directories=(directory / "journal",),
        ledger_directories=(directory / "ledgers",),
        listen_host="127.0.0.1",
        bookie_id="127.0.0.1:3181",
        serve_tcp=False,
        journal=STANDALONE_JOURNAL,
        storage=STANDALONE_STORAGE,
    )
