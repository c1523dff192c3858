"""What a running bookie lets others ask and do: the one door of its HTTP API, its gRPC service and its metrics.

`BookieOperations` holds one object for each of the small protocols below, so that each may be implemented by the part
of the bookie that knows; `app` wires them. Everything is plain values: no aiohttp, no gRPC, no protobuf. Methods
without `async` read what is in memory and never wait.

Errors of all methods: `OperationRefused` when the bookie's state does not allow it (the text says what to do),
`LedgerNotFound`, `Unavailable` (metadata store, other bookies), OSError (this bookie's disks).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from magnetar.bookie.counters import BookieCounters, RecoveryCounters
from magnetar.bookie.gc.status import CollectionStatus
from magnetar.core.errors import PeerError
from magnetar.core.histogram import Histogram
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata


class OperationRefused(PeerError):
    """The bookie is not in a state that allows this, or has no part that could do it; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieState:
    """Whether the bookie works, and for whom."""

    running: bool
    """Whether the bookie has started and not begun to stop."""
    shutting_down: bool
    read_only: bool
    high_priority_writes: bool
    """It takes the writes of recoveries: it is writable, or read-only with a reserve on its disks."""
    read_only_reasons: tuple[str, ...] = ()
    """Why the bookie is read-only, in words; empty while it is writable."""
    read_only_manual: bool = False
    """Somebody has asked for it, so that free disk space alone does not end it."""
    read_only_forced: bool = False
    """The settings say so (forceReadOnlyBookie): nobody can end it while the bookie runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimboState:
    """What the bookie had acknowledged and lacks, and how far it is with fetching it from its peers. Counts without
    another word are of now."""

    in_limbo: bool = False
    """Some ledgers may lack entries here: the bookie denies none of theirs."""
    since_ms: int = 0
    """When the damage was found, in milliseconds since 1970; 0 when the bookie is not in limbo, or nobody knows."""
    ledgers: int = 0
    """Ledgers in limbo now."""
    ledgers_total: int = 0
    """Ledgers that were put into limbo when it began; 0 when nobody knows."""
    ledgers_unhealed: int = 0
    """Ledgers in limbo whose missing entries could not be had at the last attempt. They are tried again."""
    entries_lost: int = 0
    """Entries in limbo that every bookie which ought to have them says it has not. At least so many."""
    entries_fetched: int = 0
    """Entries fetched from other bookies since this process started."""
    problems: tuple[tuple[int, str], ...] = ()
    """Why ledgers in limbo are not healed: (ledger id, reason), the first ones by id."""
    damage: tuple[str, ...] = ()
    """What this process has found damaged at its start, and gone on without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryUsage:
    """The file system that one of the bookie's directories stands on."""

    directory: str
    kind: str
    """What the directory is for: `ledgers`, `journal` or `index`."""
    total_bytes: int
    free_bytes: int
    writable: bool
    """Below the threshold at which a disk counts as full."""

    @property
    def used_share(self) -> float:
        """The used share of the file system, from 0 to 1."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalMark:
    """Up to where a journal is in the entry logs."""

    file_id: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFiles:
    """Names of files without their directories, ordered by name."""

    journal: tuple[str, ...]
    entry_logs: tuple[str, ...]
    index: tuple[str, ...]
    """Files of BookKeeper's older index (`*.idx`); a bookie with a RocksDB index has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageTotals:
    """What the bookie holds."""

    ledgers: int
    entries: int
    write_cache_bytes: int
    write_cache_bytes_max: int
    journal_queue_bytes: int
    entry_log_bytes: int
    """The bytes of all entry logs together, as the last collection has seen them; 0 before the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageMeasures:
    """One ledger directory, for metrics. Counters since the start, sizes as they are now."""

    ledger_directory: str
    """The ledger directory with its `current` folder, as metrics name it."""
    index_directory: str
    ledgers: int
    entries: int
    """Entries in the directory's index, as RocksDB estimates their number."""
    write_cache_bytes: int = 0
    write_cache_entries: int = 0
    write_cache_hits: int = 0
    write_cache_misses: int = 0
    read_cache_bytes: int = 0
    read_cache_entries: int = 0
    read_cache_hits: int = 0
    read_cache_misses: int = 0
    read_ahead_batches: Histogram = field(default_factory=Histogram)
    """Entries that one read brought ahead."""
    entry_logs: int = 0
    entry_log_bytes: int = 0
    collected_ledgers: int = 0
    """Ledgers in the entry logs that still live, as the last collection has seen them."""
    deleted_ledgers: int = 0
    compaction_reclaimed_bytes: int = 0
    deletion_reclaimed_bytes: int = 0
    deletions_failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalMeasures:
    """One journal, for metrics."""

    queue_records: int
    """Appends that wait for their group of the journal."""
    queue_bytes: int
    queue_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLedger:
    """One ledger of which this bookie holds entries."""

    ledger_id: int
    fenced: bool
    last_entry_id: int
    """The greatest entry id that this bookie holds; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSpace:
    """Another bookie's disks, as it answers GET_BOOKIE_INFO."""

    bookie_id: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderreplicatedEntry:
    """A ledger that waits for its replicas."""

    ledger_id: int
    missing_replicas: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoveryState:
    """What AutoRecovery does, seen from this bookie."""

    enabled: bool
    """Whether AutoRecovery is switched on in the whole cluster."""
    auditor_bookie_id: str
    """The bookie that is the elected auditor; empty while none is."""
    ledgers_left: int
    running_here: bool = False
    """Whether a replication worker runs in this process; the rest is about it."""
    is_auditor: bool = False
    ledgers_done: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    bytes_per_second: float = 0.0
    current_ledger_ids: tuple[int, ...] = ()


class BookieDrainStep(Enum):
    """Where a drain stands; each step is reached from what is, so that a restart goes on with it."""

    NONE = "NONE"
    READ_ONLY = "READ_ONLY"
    REPLICATE = "REPLICATE"
    VERIFY = "VERIFY"
    REMOVE_COOKIE = "REMOVE_COOKIE"
    DONE = "DONE"


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieDrainState:
    """How far the drain of a bookie has come."""

    bookie_id: str
    step: BookieDrainStep = BookieDrainStep.NONE
    ledgers_total: int = 0
    ledgers_left: int = 0
    bytes_copied: int = 0
    bytes_per_second: float = 0.0
    blockers: tuple[tuple[int, str], ...] = field(default=())
    """Ledgers that cannot be moved now: (ledger id, why)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBookie:
    """Another bookie that may be gone for good."""

    bookie_id: str
    registered: bool
    """It is up, or was until a moment ago: a bookie that was killed stays registered until its session ends."""
    has_cookie: bool
    """The cluster knows it: it cannot come back with empty directories."""
    ledgers_left: int
    """Ledgers whose metadata names it, or cannot be read."""
    waits_for: str = ""
    """Why it is not retired yet; empty when it is, or when nobody has asked for that."""


class StateOperations(Protocol):
    """Operations on the state of the bookie itself."""

    @property
    def bookie_id(self) -> str:
        """The id under which the bookie is registered."""
        ...

    @property
    def address(self) -> str:
        """`host:port` where clients reach this bookie."""
        ...

    def state(self) -> BookieState:
        """Whether it serves, and takes writes."""
        ...

    def limbo(self) -> LimboState:
        """What it has lost and gets back."""
        ...

    async def set_read_only(self, *, read_only: bool) -> None:
        """Switch, and keep that over a restart. Refused when a full disk, a drain or a setting wants otherwise."""
        ...

    async def sanity_test(self) -> bool:
        """Write a ledger to this bookie alone, read it back, delete it. Whether that worked."""
        ...

    def settings(self) -> Mapping[str, str]:
        """The settings in force under BookKeeper's names, without secrets."""
        ...

    def change_settings(self, changes: Mapping[str, str]) -> None:
        """Take over settings (BookKeeper's names) that can change while running; others are kept only to be shown."""
        ...


class StorageOperations(Protocol):
    """Disks, journals, entry logs, index."""

    def directories(self) -> Sequence[DirectoryUsage]:
        """Each directory and its file system now. OSError."""
        ...

    def totals(self) -> StorageTotals:
        """What the bookie holds."""
        ...

    def last_marks(self) -> Sequence[JournalMark]:
        """The mark of each journal, as it was last stored."""
        ...

    async def disk_files(self) -> DiskFiles:
        """What stands in the directories."""
        ...

    async def expand_storage(self) -> None:
        """Take newly set, empty ledger directories into the cookie."""
        ...

    def stored_ledgers(self, after_ledger_id: int, count_max: int) -> AsyncIterator[StoredLedger]:
        """Ledgers of which this bookie holds entries, ascending, from the one after `after_ledger_id` (-1: all)."""
        ...

    def location_databases(self) -> Mapping[str, bool]:
        """Path of each locations database → whether RocksDB compacts it right now at our request."""
        ...

    async def compact_locations(self, paths: Sequence[str]) -> None:
        """Have RocksDB compact these locations databases; returns once it has begun."""
        ...


class CollectionOperations(Protocol):
    """Operations on garbage collection."""

    def collections(self) -> Sequence[CollectionStatus]:
        """The state of the garbage collector of each ledger directory."""
        ...

    def trigger_collection(self, *, force_major: bool | None = None, force_minor: bool | None = None) -> None:
        """Have every directory collected soon; None: compact unless that is suspended."""
        ...

    def suspend_compaction(self, *, major: bool = False, minor: bool = False) -> None:
        """No more compactions of the kinds named, until resumed."""
        ...

    def resume_compaction(self, *, major: bool = False, minor: bool = False) -> None:
        """Have compactions made again that `suspend_compaction` has stopped."""
        ...


class ClusterOperations(Protocol):
    """What this bookie does for the whole cluster: metadata and reads through a client of its own."""

    def ledger_ids(self) -> AsyncIterator[int]:
        """All ledgers of the cluster, ascending."""
        ...

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """The metadata of a ledger, as the store has it. `LedgerNotFound`."""
        ...

    async def delete_ledger(self, ledger_id: int) -> None:
        """Remove a ledger for good. `LedgerNotFound`."""
        ...

    def read_entries(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> AsyncIterator[tuple[int, bytes]]:
        """(entry id, payload) of a ledger, ascending, opened without recovery; last -1: to its last one.
        `LedgerNotFound`; ends at what can be read."""
        ...

    async def bookie_ids(self) -> tuple[Sequence[str], Sequence[str]]:
        """(writable, read-only) bookies that are up."""
        ...

    async def all_bookie_ids(self) -> Sequence[str]:
        """Every bookie that has a cookie, up or not."""
        ...

    async def bookie_host(self, bookie_id: str) -> str:
        """The host at which a bookie serves. `Unavailable` when it is not registered."""
        ...

    async def bookie_spaces(self) -> Sequence[BookieSpace]:
        """Disks of the bookies that are up and answer."""
        ...


class RecoveryOperations(Protocol):
    """AutoRecovery of the cluster, and bookies that leave it."""

    async def auto_recovery(self) -> AutoRecoveryState:
        """What it does now; walks the marked ledgers to count them."""
        ...

    async def auto_recovery_enabled(self) -> bool:
        """Whether AutoRecovery is enabled in the whole cluster."""
        ...

    async def auditor_bookie_id(self) -> str:
        """Who holds the auditor's lock; empty while none is elected."""
        ...

    async def enable_auto_recovery(self, *, enabled: bool) -> None:
        """Switch it for the whole cluster; no error when it is so already."""
        ...

    def underreplicated_ledgers(self) -> AsyncIterator[UnderreplicatedEntry]:
        """All ledgers that are marked."""
        ...

    async def trigger_audit(self) -> None:
        """Have the elected auditor check now."""
        ...

    async def lost_bookie_recovery_delay_seconds(self) -> int | None:
        """How long the auditor waits before it gives a bookie up; None when nobody has set it."""
        ...

    async def set_lost_bookie_recovery_delay_seconds(self, seconds: int) -> None:
        """Set it in the cluster's metadata."""
        ...

    def recover_bookie(self, bookie_id: str, *, delete_cookie: bool) -> None:
        """Begin to copy all that a dead bookie had to others; goes on in the background. Refused when one runs."""
        ...

    def decommission_bookie(self, bookie_id: str) -> None:
        """Begin to copy all that a stopped bookie had to others, then remove its cookie; in the background."""
        ...

    async def lost_bookie(self, bookie_id: str) -> LostBookie:
        """What the cluster has of another bookie; looks at all ledgers' metadata."""
        ...

    async def retire_lost_bookie(self, bookie_id: str) -> LostBookie:
        """Take the next step to have a bookie forgotten whose disks are lost: see `magnetar.bookie.drain.lost`. To be
        asked until it has no cookie and no ledgers. Refused while it is registered."""
        ...


class DrainOperations(Protocol):
    """This bookie's own way out of the cluster."""

    async def start_drain(self) -> BookieDrainState:
        """Begin, or go on with, the drain of this bookie; one that runs is no error."""
        ...

    def drain(self) -> BookieDrainState:
        """How far the drain of this bookie has come."""
        ...

    async def cancel_drain(self) -> BookieDrainState:
        """Stop it and take writes again. Refused once the cookie is removed."""
        ...


class MeasureOperations(Protocol):
    """What metrics read, besides `state`, `directories` and `collections`."""

    @property
    def counters(self) -> BookieCounters:
        """What this bookie counts."""
        ...

    @property
    def recovery_counters(self) -> RecoveryCounters | None:
        """What AutoRecovery counts; None when it does not run in this process."""
        ...

    def storage_measures(self) -> Sequence[StorageMeasures]:
        """The measures of each ledger directory."""
        ...

    def journal_measures(self) -> Sequence[JournalMeasures]:
        """The measures of each journal, in the order of `counters.journals`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieOperations:
    """All operations of a running bookie."""

    bookie: StateOperations
    storage: StorageOperations
    collection: CollectionOperations
    cluster: ClusterOperations
    recovery: RecoveryOperations
    drains: DrainOperations
    measures: MeasureOperations
