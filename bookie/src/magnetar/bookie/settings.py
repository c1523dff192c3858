"""How a bookie is set up, by BookKeeper's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from magnetar.bookie.loss import OnLoss
from magnetar.core.errors import SettingError
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX, GIB, MIB, PORT_MAX
from magnetar.core.setting import check_ranges, named, setting
from magnetar.ledger.bookie_client.tls_settings import BookieTlsSettings

ENTRY_LOG_BYTES_HARD_MAX: Final = 2**31 - 1
"""An entry's place in its log is a signed 32-bit number."""

WRITE_CACHE_BYTES_MIN: Final = 2 * BOOKKEEPER_FRAME_BYTES_MAX
"""Bytes of the smallest write cache: each of its halves must hold the largest entry."""


def _require(condition: bool, name: str, value: object) -> None:
    if not condition:
        raise SettingError(f"{name} is out of bounds: {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """The journal's own part."""

    sync_data: bool = setting("journalSyncData", True)
    """An add is acknowledged only once the disk has it. False: a power failure may lose it."""
    size_bytes_max: int = setting("journalMaxSizeMB", 2 * GIB, low=MIB)
    """Bytes of a journal file beyond which a new one is begun."""
    backups_max: int = setting("journalMaxBackups", 5, low=0, high=10_000)
    """How many files that are no longer needed stay for inspection. Standalone keeps none."""
    preallocate_bytes: int = setting("journalPreAllocSizeMB", 16 * MIB, low=MIB, high=GIB)
    """Bytes by which a journal file grows ahead of what is written."""
    alignment_bytes: int = setting("journalAlignmentSize", 4096, low=512, high=4096)
    """Every group ends at a multiple. 4096 as in Pulsar's configuration: a page that is
    durable is never written again."""
    format_version: int = setting("journalFormatVersionToWrite", 6, low=5, high=6)
    """6, or 5 as in Pulsar's configuration. Version 5 has no record for an explicit LAC
    (BookKeeper refuses a file of version 5 that has one): such a LAC then is durable with the next checkpoint."""
    queue_bytes_max: int = 32 * MIB
    """Bytes that wait for the journal thread; beyond, adds are held back."""
    group_bytes_max: int = 4 * MIB
    """Larger groups gain nothing (the disk's bandwidth is the limit then) and make their first entry wait."""

    def __post_init__(self) -> None:
        _require(self.size_bytes_max >= self.preallocate_bytes, "journalMaxSizeMB", self.size_bytes_max)
        _require(self.alignment_bytes in (512, 1024, 2048, 4096), "journalAlignmentSize", self.alignment_bytes)
        _require(self.format_version in (5, 6), "journalFormatVersionToWrite", self.format_version)
        check_ranges(self, accepted=False)
        _require(self.queue_bytes_max >= BOOKKEEPER_FRAME_BYTES_MAX, "journalQueueSize", self.queue_bytes_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Write cache, entry logs, index, checkpoints."""

    write_cache_bytes_max: int = setting("dbStorage_writeCacheMaxSizeMb", 64 * MIB, low=WRITE_CACHE_BYTES_MIN)
    """Both halves of all ledger directories together; a directory gets at least
    `WRITE_CACHE_BYTES_MIN`."""
    block_cache_bytes: int = setting("dbStorage_rocksDB_blockCacheSize", 8 * MIB)
    """Bytes of RocksDB's block cache, which both index databases share."""
    flush_interval_seconds: float = setting("flushInterval", 60.0, unit="ms", low=0.001)
    """How much journal there is to replay after a crash, at most."""
    entry_log_bytes_max: int = setting(
        "logSizeLimit", 1 * GIB, low=MIB, high=ENTRY_LOG_BYTES_HARD_MAX - BOOKKEEPER_FRAME_BYTES_MAX
    )
    read_ahead_bytes_max: int = setting("dbStorage_readAheadCacheMaxSizeMb", 32 * MIB, low=0)
    """Entries read ahead for readers that catch up; 0 switches it off."""
    read_ahead_batch_entries: int = setting("dbStorage_readAheadCacheBatchSize", 1_000, low=1, high=100_000)
    """Entries that one read-ahead brings, at most."""
    read_ahead_batch_bytes: int = setting("dbStorage_readAheadCacheBatchBytesSize", 512 * 1024, below_zero=-1)
    """Bytes that one read-ahead brings, at most; -1: half the cache."""
    read_threads: int = setting("numReadWorkerThreads", 2, low=1, high=64)
    """Threads for reads that the write cache cannot answer."""

    def __post_init__(self) -> None:
        _require(self.flush_interval_seconds > 0, "flushInterval", self.flush_interval_seconds)
        check_ranges(self, accepted=False)

    def write_cache_share_bytes(self, directories_count: int) -> int:
        """What one of so many ledger directories gets of the write cache."""
        return max(WRITE_CACHE_BYTES_MIN, self.write_cache_bytes_max // directories_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSettings:
    """When a disk counts as full."""

    usage_threshold: float = setting("diskUsageThreshold", 0.95, low=0.01, high=1)
    """At this share of any disk the bookie turns read-only."""
    usage_warn_threshold: float = setting("diskUsageWarnThreshold", 0.90, low=0.01, high=1)
    """From here on the log says so, and compactions that need room wait."""
    usage_low_water: float = setting("diskUsageLwmThreshold", 0.90, low=0.01, high=1)
    """Below this used share of the disk, a bookie that is read-only takes writes again."""
    check_interval_seconds: float = setting("diskCheckInterval", 10.0, unit="ms", low=0.001)
    free_bytes_min: int = 64 * MIB
    """Less than this, beside what caches and journal still want to write, is full whatever the share: the reserve from
    which checkpoints, compaction and index deletes live."""
    persist_status: bool = setting("persistBookieStatusEnabled", True)
    """A read-only mode that somebody has asked for outlasts a restart."""

    def __post_init__(self) -> None:
        _require(0 < self.usage_low_water <= self.usage_threshold <= 1, "diskUsageThreshold", self.usage_threshold)
        _require(0 < self.usage_warn_threshold <= 1, "diskUsageWarnThreshold", self.usage_warn_threshold)
        _require(self.check_interval_seconds > 0, "diskCheckInterval", self.check_interval_seconds)
        _require(self.free_bytes_min >= 0, "minUsableSizeForEntryLogCreation", self.free_bytes_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSettings:
    """The settings of one bookie's storage and of how others reach it."""

    journal_directories: tuple[Path, ...] = field(metadata=named("journalDirectories", older="journalDirectory"))
    """A ledger belongs to one of them by its id, so they and their order never change."""
    ledger_directories: tuple[Path, ...] = field(metadata=named("ledgerDirectories"))
    """A ledger belongs to one of them by its id, so they and their order never change."""
    index_directories: tuple[Path, ...] = setting("indexDirectories", ())
    """Where the index of each ledger directory stands; empty: in the ledger directory itself."""
    advertised_host: str = setting("advertisedAddress", "127.0.0.1")
    """The host name or address by which others reach this bookie."""
    bookie_id: str = setting("bookieId", "")
    """The id that metadata names this bookie by; empty: `<advertised host>:<port>`."""
    machine: str = setting("magnetarMachine", "", ours=True)
    """The machine that other bookies which say the same stand on, too: copies of one entry are kept off it but for one.
    Empty: the bookie stands alone. `magnetar bookie run --processes` sets it where nobody has."""
    port: int = setting("bookiePort", 3181, low=0, high=PORT_MAX)
    """0: any free one (then give a bookie id, or it changes with every start)."""
    listen_host: str = "0.0.0.0"  # noqa: S104  (a server's default; the standalone narrows it)
    """The address that the server listens on."""
    serve_tcp: bool = True
    """Whether the bookie is served over TCP; else only `LocalBookieConnection` reaches it."""
    read_only: bool = setting("forceReadOnlyBookie", False)
    """Whether the bookie starts in read-only mode and stays there."""
    tls: BookieTlsSettings = field(default_factory=BookieTlsSettings)
    """TLS at the bookie's port, and of the clients in its process."""
    auth_provider: str = setting("bookieAuthProviderFactoryClass", "")
    """The class name of what says who is served; empty: everybody is."""
    authorized_roles: tuple[str, ...] = setting("authorizedRoles", ())
    """The roles whose certificates are served, where the provider goes by these."""
    heal_from_peers: bool = setting("dataIntegrityChecking", False)
    """A start that finds acknowledged entries damaged or gone goes on in limbo, and fetches them
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
