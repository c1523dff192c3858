"""A bookie that only exists in memory, for tests of what acts on `BookieOperations`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from magnetar.bookie.counters import BookieCounters, RecoveryCounters
from magnetar.bookie.gc.status import CollectionStatus
from magnetar.bookie.operations import (
    AutoRecoveryState,
    BookieDrainState,
    BookieDrainStep,
    BookieOperations,
    BookieSpace,
    BookieState,
    DirectoryUsage,
    DiskFiles,
    JournalMark,
    JournalMeasures,
    LimboState,
    LostBookie,
    OperationRefused,
    StorageMeasures,
    StorageTotals,
    StoredLedger,
    UnderreplicatedEntry,
)
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerNotFound
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

LEDGERS: str = "/data/ledgers/current"
DAMAGED: LimboState = LimboState(
    in_limbo=True,
    since_ms=1_700_000_000_000,
    ledgers=3,
    ledgers_total=12,
    ledgers_unhealed=1,
    entries_lost=40,
    entries_fetched=700,
    problems=((7, "no other bookie ever had them"),),
    damage=("/data/journal/1.txn: its head is zeros",),
)
"""A bookie that is being healed."""


class FakeOperations:
    """Does what it is asked to its own attributes, which tests set and look at."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.bookie_id = "127.0.0.1:3181"
        self.address = "127.0.0.1:3181"
        self.now = BookieState(running=True, shutting_down=False, read_only=False, high_priority_writes=True)
        self.lacks = LimboState()
        self.passes_sanity = True
        self.known_settings: dict[str, str] = {"bookiePort": "3181", "journalSyncData": "true"}
        self.usages = [
            DirectoryUsage(directory=LEDGERS, kind="ledgers", total_bytes=1000, free_bytes=250, writable=True),
            DirectoryUsage(directory="/data/journal", kind="journal", total_bytes=1000, free_bytes=900, writable=True),
        ]
        self.marks = [JournalMark(file_id=0x1A1FC77FFA0, offset=4202496)]
        self.files = DiskFiles(journal=("1a1fc77ffa0.txn",), entry_logs=("0.log", "1.log"), index=())
        self.stored = [StoredLedger(ledger_id=at, fenced=at == 3, last_entry_id=at) for at in range(2, 7)]
        self.databases = {"/data/ledgers/current/locations": False}
        self.collection = CollectionStatus(directory=LEDGERS)
        self.collected: list[tuple[bool | None, bool | None]] = []
        self.ledgers: dict[int, LedgerMetadata] = {}
        self.entries: dict[int, list[bytes]] = {}
        self.writable = ["127.0.0.1:3181"]
        self.read_only = list[str]()
        self.everyone = ["127.0.0.1:3181"]
        self.spaces = [BookieSpace(bookie_id="127.0.0.1:3181", total_bytes=270553174016, free_bytes=67791282176)]
        self.recovery = AutoRecoveryState(enabled=True, auditor_bookie_id="127.0.0.1:3181", ledgers_left=0)
        self.marked: list[UnderreplicatedEntry] = []
        self.audits = 0
        self.delay_seconds: int | None = 0
        self.leaving: list[tuple[str, str]] = []
        self.lost: dict[str, LostBookie] = {}
        """Other bookies that may be gone; a step of one's retirement takes a ledger, then the cookie."""
        self.drain_state = BookieDrainState(bookie_id=self.bookie_id)
        self.failure: MagnetarError | None = None
        """Raised by whatever asks the cluster."""
        self.counters = BookieCounters(clock or SystemClock())
        self.recovery_counters: RecoveryCounters | None = RecoveryCounters()

    def all(self) -> BookieOperations:
        """What acts on a bookie takes this."""
        return BookieOperations(
            bookie=self,
            storage=self,
            collection=self,
            cluster=self,
            recovery=self,
            drains=self,
            measures=self,
        )

    # --- the bookie

    def state(self) -> BookieState:
        return self.now

    def limbo(self) -> LimboState:
        return self.lacks

    async def set_read_only(self, *, read_only: bool) -> None:
        if not read_only and self.drain_state.step is not BookieDrainStep.NONE:
            raise OperationRefused("the bookie is being drained: cancel the drain first")
        self.now = replace(self.now, read_only=read_only, read_only_manual=read_only)
        self.writable, self.read_only = ([], [self.bookie_id]) if read_only else ([self.bookie_id], [])

    async def sanity_test(self) -> bool:
        return self.passes_sanity and not self.now.read_only

    def settings(self) -> Mapping[str, str]:
        return self.known_settings

    def change_settings(self, changes: Mapping[str, str]) -> None:
        self.known_settings.update(changes)

    # --- storage

    def directories(self) -> Sequence[DirectoryUsage]:
        return self.usages

    def totals(self) -> StorageTotals:
        return StorageTotals(
            ledgers=len(self.stored),
            entries=17,
            write_cache_bytes=100,
            write_cache_bytes_max=1000,
            journal_queue_bytes=10,
            entry_log_bytes=5000,
        )

    def last_marks(self) -> Sequence[JournalMark]:
        return self.marks

    async def disk_files(self) -> DiskFiles:
        return self.files

    async def expand_storage(self) -> None:
        self._fail()

    async def stored_ledgers(self, after_ledger_id: int, count_max: int) -> AsyncIterator[StoredLedger]:
        for ledger in [ledger for ledger in self.stored if ledger.ledger_id > after_ledger_id][:count_max]:
            yield ledger

    def location_databases(self) -> Mapping[str, bool]:
        return self.databases

    async def compact_locations(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.databases[path] = True

    # --- garbage collection

    def collections(self) -> Sequence[CollectionStatus]:
        return [self.collection]

    def trigger_collection(self, *, force_major: bool | None = None, force_minor: bool | None = None) -> None:
        self.collected.append((force_major, force_minor))

    def suspend_compaction(self, *, major: bool = False, minor: bool = False) -> None:
        state = self.collection
        self.collection = replace(
            state, major_suspended=state.major_suspended or major, minor_suspended=state.minor_suspended or minor
        )

    def resume_compaction(self, *, major: bool = False, minor: bool = False) -> None:
        state = self.collection
        self.collection = replace(
            state,
            major_suspended=state.major_suspended and not major,
            minor_suspended=state.minor_suspended and not minor,
        )

    # --- the cluster

    async def ledger_ids(self) -> AsyncIterator[int]:
        self._fail()
        for ledger_id in sorted(self.ledgers):
            yield ledger_id

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        self._fail()
        if ledger_id not in self.ledgers:
            raise LedgerNotFound(f"there is no ledger {ledger_id}")
        return self.ledgers[ledger_id]

    async def delete_ledger(self, ledger_id: int) -> None:
        await self.ledger_metadata(ledger_id)
        del self.ledgers[ledger_id]

    async def read_entries(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int
    ) -> AsyncIterator[tuple[int, bytes]]:
        await self.ledger_metadata(ledger_id)
        payloads = self.entries.get(ledger_id, [])
        end = len(payloads) if last_entry_id < 0 else min(len(payloads), last_entry_id + 1)
        for entry_id in range(first_entry_id, end):
            yield entry_id, payloads[entry_id]

    async def bookie_ids(self) -> tuple[Sequence[str], Sequence[str]]:
        self._fail()
        return self.writable, self.read_only

    async def all_bookie_ids(self) -> Sequence[str]:
        return self.everyone

    async def bookie_host(self, bookie_id: str) -> str:
        return bookie_id.partition(":")[0]

    async def bookie_spaces(self) -> Sequence[BookieSpace]:
        return self.spaces

    # --- AutoRecovery

    async def auto_recovery(self) -> AutoRecoveryState:
        self._fail()
        return replace(self.recovery, ledgers_left=len(self.marked))

    async def auto_recovery_enabled(self) -> bool:
        self._fail()
        return self.recovery.enabled

    async def auditor_bookie_id(self) -> str:
        self._fail()
        return self.recovery.auditor_bookie_id

    async def enable_auto_recovery(self, *, enabled: bool) -> None:
        self.recovery = replace(self.recovery, enabled=enabled)

    async def underreplicated_ledgers(self) -> AsyncIterator[UnderreplicatedEntry]:
        self._fail()
        for entry in self.marked:
            yield entry

    async def trigger_audit(self) -> None:
        self._fail()
        self.audits += 1

    async def lost_bookie_recovery_delay_seconds(self) -> int | None:
        return self.delay_seconds

    async def set_lost_bookie_recovery_delay_seconds(self, seconds: int) -> None:
        self.delay_seconds = seconds

    def recover_bookie(self, bookie_id: str, *, delete_cookie: bool) -> None:
        self.leaving.append(("recover and forget" if delete_cookie else "recover", bookie_id))

    def decommission_bookie(self, bookie_id: str) -> None:
        self.leaving.append(("decommission", bookie_id))

    async def lost_bookie(self, bookie_id: str) -> LostBookie:
        self._fail()
        unknown = LostBookie(bookie_id=bookie_id, registered=False, has_cookie=False, ledgers_left=0)
        return self.lost.get(bookie_id, unknown)

    async def retire_lost_bookie(self, bookie_id: str) -> LostBookie:
        state = await self.lost_bookie(bookie_id)
        if state.registered:
            raise OperationRefused(f"bookie {bookie_id} is registered")
        if state.ledgers_left:
            left = state.ledgers_left - 1
            state = replace(state, ledgers_left=left, waits_for=f"AutoRecovery copies {left} ledgers that name it")
        else:
            state = replace(state, has_cookie=False, waits_for="")
        self.lost[bookie_id] = state
        return state

    # --- drain

    async def start_drain(self) -> BookieDrainState:
        self._fail()
        if self.drain_state.step is BookieDrainStep.NONE:
            self.drain_state = replace(
                self.drain_state, step=BookieDrainStep.READ_ONLY, ledgers_total=5, ledgers_left=5
            )
        return self.drain_state

    def drain(self) -> BookieDrainState:
        return self.drain_state

    async def cancel_drain(self) -> BookieDrainState:
        if self.drain_state.step in (BookieDrainStep.REMOVE_COOKIE, BookieDrainStep.DONE):
            raise OperationRefused("the cookie is removed: stop the bookie and give it empty directories")
        self.drain_state = BookieDrainState(bookie_id=self.bookie_id)
        return self.drain_state

    # --- metrics

    def storage_measures(self) -> Sequence[StorageMeasures]:
        return [
            StorageMeasures(
                ledger_directory=LEDGERS, index_directory=LEDGERS, ledgers=5, entries=17, write_cache_bytes=100
            )
        ]

    def journal_measures(self) -> Sequence[JournalMeasures]:
        return [JournalMeasures(queue_records=1, queue_bytes=10, queue_bytes_max=100)]

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure
