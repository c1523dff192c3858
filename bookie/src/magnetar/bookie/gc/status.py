"""What a collector tells of itself. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.bookie.gc.entry_log_usage import USAGE_BUCKETS
from magnetar.bookie.gc.plan import CompactionKind


@dataclass(slots=True, kw_only=True)
class CollectionReport:
    """What one garbage collection has done."""

    ledgers_deleted: int = 0
    over_replicated_deleted: int = 0
    """Ledgers deleted here because their metadata does not name this bookie; `ledgers_deleted` counts them too."""
    logs_deleted: int = 0
    """Entry logs deleted because none of their entries was wanted any more."""
    compaction: CompactionKind | None = None
    """The kind of compaction that this collection made; None for none."""
    logs_compacted: int = 0
    entries_copied: int = 0
    reclaimed_by_deletion_bytes: int = 0
    reclaimed_by_compaction_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """What could not be done, in words; it is tried again next time."""


@dataclass(slots=True, kw_only=True)
class CollectionCounters:
    """Since the start of the process. The comments are BookKeeper's names."""

    collections: int = 0
    ledgers_deleted: int = 0
    """Ledgers whose entries were dropped (BookKeeper: DELETED_LEDGER_TOTAL)."""
    major_compactions: int = 0
    """Major compactions made (BookKeeper: MAJOR_COMPACTION_TOTAL)."""
    minor_compactions: int = 0
    """Minor compactions made (BookKeeper: MINOR_COMPACTION_TOTAL)."""
    location_compactions: int = 0
    """Compactions of the index of entry locations (BookKeeper: ENTRY_LOCATION_COMPACTION_TOTAL)."""
    reclaimed_by_compaction_bytes: int = 0
    """Bytes of entry logs freed by compaction (BookKeeper: RECLAIMED_COMPACTION_SPACE_BYTES)."""
    reclaimed_by_deletion_bytes: int = 0
    """Bytes of entry logs freed by deletion without compaction (BookKeeper: RECLAIMED_DELETION_SPACE_BYTES)."""
    delete_failures: int = 0
    """Entry logs that could not be deleted (BookKeeper: RECLAIM_FAILED_TO_DELETE)."""
    logs_compacted: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    compactions_failed: int = 0
    """Logs whose compaction was given up: unreadable, damaged, or no room."""
    failures: int = 0
    """Collections that met any problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionStatus:
    """Now. Times are milliseconds since 1970, 0 for never."""

    directory: str
    running: bool = False
    force_compacting: bool = False
    """The collection that runs or is about to was asked for."""
    compaction: CompactionKind | None = None
    """The kind of compaction that runs now; None while none does."""
    locations_compacting: bool = False
    last_collection_ms: int = 0
    last_collection_seconds: float = 0.0
    """How many seconds the last finished collection took."""
    last_major_compaction_ms: int = 0
    last_minor_compaction_ms: int = 0
    last_location_compaction_ms: int = 0
    major_suspended: bool = False
    minor_suspended: bool = False
    ledgers: int = 0
    """Ledgers with entries here that exist, as the last collection found (BookKeeper: ACTIVE_LEDGER_TOTAL)."""
    logs: int = 0
    """Closed entry logs on the disk (BookKeeper: ACTIVE_ENTRY_LOG_TOTAL)."""
    live_bytes: int = 0
    """Bytes in closed entry logs of ledgers that exist (BookKeeper: ACTIVE_ENTRY_LOG_SPACE_BYTES)."""
    logs_bytes: int = 0
    """Bytes of all closed entry logs, wanted or not (BookKeeper: ENTRY_LOG_SPACE_BYTES)."""
    damaged_logs: int = 0
    """Logs that can be neither deleted nor compacted because nobody can tell what stands in them, or whose last
    compaction met damage."""
    usage_buckets: tuple[int, ...] = (0,) * USAGE_BUCKETS
    """Closed entry logs by usage: below 10 %, below 20 %, … (BookKeeper: entry_log_usage_buckets_le_10 … 100)."""
    compact_ratio: float = 0.0
    """ENTRY_LOG_COMPACT_RATIO: logs compacted by the last compaction, of all."""
    counters: CollectionCounters = field(default_factory=CollectionCounters)
    """The live object; read it, do not keep it."""

    @property
    def major_compacting(self) -> bool:
        """Whether a major compaction runs."""
        return self.compaction is CompactionKind.MAJOR

    @property
    def minor_compacting(self) -> bool:
        """Whether a minor compaction runs."""
        return self.compaction is CompactionKind.MINOR
