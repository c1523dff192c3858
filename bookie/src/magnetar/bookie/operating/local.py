"""What one bookie tells and does about itself: `StateOperations`, `StorageOperations`, `CollectionOperations` and
`MeasureOperations` over its parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from magnetar.bookie.counters import BookieCounters, RecoveryCounters
from magnetar.bookie.disk_watch import REASON_MANUAL, DiskState, WriteMode
from magnetar.bookie.gc.collector import GarbageCollector
from magnetar.bookie.gc.status import CollectionStatus
from magnetar.bookie.integrity.limbo import Limbo
from magnetar.bookie.journal import files as journal_files
from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journals import Journals
from magnetar.bookie.ledger_state import LedgerStates, decode_state
from magnetar.bookie.operations import (
    BookieState,
    DirectoryUsage,
    DiskFiles,
    JournalMark,
    JournalMeasures,
    LimboState,
    OperationRefused,
    StorageMeasures,
    StorageTotals,
    StoredLedger,
)
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.directories import BookieDirectories
from magnetar.bookie.storage.directory_storage import DirectoryStorage
from magnetar.bookie.storage.entry_log_note import list_logs
from magnetar.bookie.storage.ledger_storage import LedgerStorage

logger: Final = logging.getLogger(__name__)

LOCATIONS: str = "locations"
"""The database below an index directory that holds places of entries (BookKeeper's name)."""


class ReadOnlySwitch(Protocol):
    """What turns the bookie, and stores that: `RunningBookie`."""

    async def set_read_only(self, reason: str, *, manual: bool) -> None:
        """OSError: it is read-only, but that is not stored."""
        ...

    async def set_writable(self, reason: str | None = None) -> None:
        """Take manual reasons back. OSError: it is not stored."""
        ...


@dataclass(slots=True, kw_only=True)
class LocalParts:
    """A running bookie's parts."""

    bookie_id: str
    address: str
    """The address, `host:port`, where clients reach the bookie."""
    settings: BookieSettings
    mode: WriteMode
    switch: ReadOnlySwitch
    directories: BookieDirectories
    storage: LedgerStorage
    states: LedgerStates
    journals: Journals
    counters: BookieCounters
    limbo: Limbo
    collectors: Sequence[GarbageCollector] = ()
    """In the order of the ledger directories; none while nothing is collected."""
    recovery_counters: RecoveryCounters | None = None
    shown_settings: Mapping[str, str] = field(default_factory=dict)
    """Settings that the HTTP API shows, by BookKeeper's names and without secrets."""
    sanity_test: Callable[[], Awaitable[bool]] | None = None
    """Writes, reads and deletes a ledger on this bookie alone."""
    expand: Callable[[], Awaitable[None]] | None = None
    """Notes directories that were added in the bookie's cookie."""


class LocalOperations:
    """The operations of a bookie that has started; `stopping` is set when it begins to stop. On the event loop."""

    def __init__(self, parts: LocalParts) -> None:
        self._parts = parts
        self._shown_settings = dict(parts.shown_settings)
        self._compactions: set[asyncio.Task[None]] = set()
        """At most one of each ledger directory."""
        self.stopping = False

    async def close(self) -> None:
        """Wait for compactions of the index that were begun here: RocksDB cannot be closed under them."""
        await asyncio.gather(*self._compactions, return_exceptions=True)

    # --- StateOperations

    @property
    def bookie_id(self) -> str:
        """The id under which the bookie is registered."""
        return self._parts.bookie_id

    @property
    def address(self) -> str:
        """`host:port` where clients reach this bookie."""
        return self._parts.address

    def state(self) -> BookieState:
        """Whether it serves, and takes writes."""
        mode = self._parts.mode
        return BookieState(
            running=not self.stopping,
            shutting_down=self.stopping,
            read_only=mode.read_only,
            high_priority_writes=not mode.read_only or mode.recovery_writes,
            read_only_reasons=mode.reasons,
            read_only_manual=mode.manual,
            read_only_forced=mode.forced,
        )

    def limbo(self) -> LimboState:
        """What it has lost and gets back."""
        return self._parts.limbo.state()

    async def set_read_only(self, *, read_only: bool) -> None:
        """Switch, and keep that over a restart. Refused when a full disk, a drain or a setting wants otherwise."""
        switch, mode = self._parts.switch, self._parts.mode
        if read_only:
            await switch.set_read_only(REASON_MANUAL, manual=True)
            return
        await switch.set_writable()
        if mode.read_only:
            raise OperationRefused(
                f"the bookie stays read-only because of this: {'; '.join(mode.reasons)}. It takes writes by itself "
                "once that has ended"
            )

    async def sanity_test(self) -> bool:
        """Write a ledger to this bookie alone, read it back, delete it. Whether that worked."""
        if self._parts.sanity_test is None:
            raise OperationRefused("this bookie has no client to test itself with: run `magnetar bookie sanity-test`")
        return await self._parts.sanity_test()

    def settings(self) -> Mapping[str, str]:
        """The settings in force under BookKeeper's names, without secrets."""
        return self._shown_settings

    def change_settings(self, changes: Mapping[str, str]) -> None:
        """Keep new settings (BookKeeper's names) so that they are shown. None of them has an effect before a restart,
        as little as any that BookKeeper's own HTTP server is given."""
        self._shown_settings.update(changes)
        logger.warning("settings were changed over HTTP, without effect: %s", ", ".join(sorted(changes)))

    # --- StorageOperations

    def directories(self) -> Sequence[DirectoryUsage]:
        """Each directory and its file system now. OSError."""
        directories = self._parts.directories
        kinds = (("ledgers", directories.ledgers), ("journal", directories.journals), ("index", directories.indexes))
        found: dict[Path, str] = {}
        for kind, paths in kinds:
            for path in paths:
                found.setdefault(path, kind)
        return [self._usage(path, kind) for path, kind in found.items()]

    def _usage(self, path: Path, kind: str) -> DirectoryUsage:
        total, free = self._parts.directories.disk.usage_bytes(path)
        writable = self._parts.mode.disk_state(path) is not DiskState.FULL
        return DirectoryUsage(directory=str(path), kind=kind, total_bytes=total, free_bytes=free, writable=writable)

    def totals(self) -> StorageTotals:
        """What the bookie holds. Ledgers and entries are RocksDB's estimates and lack what only memory has."""
        measures = self.storage_measures()
        return StorageTotals(
            ledgers=sum(measure.ledgers for measure in measures),
            entries=sum(measure.entries for measure in measures),
            write_cache_bytes=sum(measure.write_cache_bytes for measure in measures),
            write_cache_bytes_max=self._parts.settings.storage.write_cache_bytes_max,
            journal_queue_bytes=sum(journal.queued_bytes for journal in self._parts.journals.all),
            entry_log_bytes=sum(collector.status().logs_bytes for collector in self._parts.collectors),
        )

    def last_marks(self) -> Sequence[JournalMark]:
        """The mark of each journal, as it was last stored."""
        marks = self._parts.directories.read_last_marks()
        return [JournalMark(file_id=file_id, offset=offset) for file_id, offset in marks]

    async def disk_files(self) -> DiskFiles:
        """What stands in the directories."""
        return await asyncio.get_running_loop().run_in_executor(None, self._list_files)

    def _list_files(self) -> DiskFiles:
        directories = self._parts.directories
        journals = [
            journal_format.file_name(file_id)
            for directory in directories.journals
            for file_id in journal_files.list_files(directories.disk, directory)
        ]
        logs = [
            entry_log_format.file_name(log_id)
            for directory in directories.ledgers
            for log_id in list_logs(directories.disk, directory)
        ]
        return DiskFiles(journal=tuple(sorted(journals)), entry_logs=tuple(sorted(logs)), index=())

    async def expand_storage(self) -> None:
        """Take newly set, empty ledger directories into the cookie."""
        if self._parts.expand is None:
            raise OperationRefused(
                "the number of directories cannot change, as a ledger's directory follows from it: start another "
                "bookie on the new disk, and drain this one if it is to go"
            )
        await self._parts.expand()

    async def stored_ledgers(self, after_ledger_id: int, count_max: int) -> AsyncIterator[StoredLedger]:
        """Ledgers of which this bookie holds entries, ascending, from the one after `after_ledger_id` (-1: all)."""
        loop = asyncio.get_running_loop()
        found: set[int] = set()
        for directory in self._parts.storage.directories:
            stored = directory.index.stored_ledger_ids
            found.update(await loop.run_in_executor(directory.read_threads, stored, after_ledger_id + 1, count_max))
            for half in (directory.cache.active, directory.cache.flushing):
                if half is not None:
                    found.update(ledger_id for ledger_id in half.ledgers if ledger_id > after_ledger_id)
        chosen = sorted(found)[:count_max]
        indexed: dict[int, tuple[int, bytes | None]] = {}
        for at, directory in enumerate(self._parts.storage.directories):
            wanted = self._ledgers_of(at, chosen)
            indexed.update(await loop.run_in_executor(directory.read_threads, _look_up, directory, wanted))
        for ledger_id in chosen:
            yield self._stored_ledger(ledger_id, *indexed[ledger_id])

    def _ledgers_of(self, directory: int, ledger_ids: Sequence[int]) -> list[int]:
        storage = self._parts.storage
        return [ledger_id for ledger_id in ledger_ids if storage.of(ledger_id) is storage.directories[directory]]

    def _stored_ledger(self, ledger_id: int, last_indexed: int, value: bytes | None) -> StoredLedger:
        known = self._parts.states.known(ledger_id)
        if known is None and value is not None:
            known = decode_state(ledger_id, value)
        last_entry_id = max(last_indexed, self._parts.storage.of(ledger_id).cache.last_entry_id(ledger_id))
        return StoredLedger(ledger_id=ledger_id, fenced=known is not None and known.fenced, last_entry_id=last_entry_id)

    def location_databases(self) -> Mapping[str, bool]:
        """Path of each locations database → whether RocksDB compacts it right now at our request."""
        compacting = [collector.status().locations_compacting for collector in self._parts.collectors]
        paths = [str(directory / LOCATIONS) for directory in self._parts.directories.indexes]
        return dict(zip(paths, compacting or [False] * len(paths), strict=True))

    async def compact_locations(self, paths: Sequence[str]) -> None:
        """Have RocksDB compact these locations databases; returns once it has begun."""
        collectors = dict(zip(self.location_databases(), self._parts.collectors, strict=False))
        for path in paths:
            collector = collectors.get(path)
            if collector is None:
                raise OperationRefused(
                    f"{path} is not collected by this bookie; its databases: {', '.join(collectors)}"
                )
            task = asyncio.get_running_loop().create_task(collector.compact_locations(), name="compact locations")
            self._compactions.add(task)
            task.add_done_callback(self._compacted)
        await asyncio.sleep(0)

    def _compacted(self, task: asyncio.Task[None]) -> None:
        self._compactions.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the index could not be compacted: %s", error)

    # --- CollectionOperations

    def collections(self) -> Sequence[CollectionStatus]:
        """The state of the garbage collector of each ledger directory."""
        return [collector.status() for collector in self._parts.collectors]

    def trigger_collection(self, *, force_major: bool | None = None, force_minor: bool | None = None) -> None:
        """Have every directory collected soon; None: compact unless that is suspended."""
        for collector in self._collectors():
            collector.trigger(force_major=force_major, force_minor=force_minor)

    def suspend_compaction(self, *, major: bool = False, minor: bool = False) -> None:
        """No more compactions of the kinds named, until resumed."""
        for collector in self._collectors():
            collector.suspend_compaction(major=major, minor=minor)

    def resume_compaction(self, *, major: bool = False, minor: bool = False) -> None:
        """Have compactions made again that `suspend_compaction` has stopped."""
        for collector in self._collectors():
            collector.resume_compaction(major=major, minor=minor)

    def _collectors(self) -> Sequence[GarbageCollector]:
        if not self._parts.collectors:
            raise OperationRefused("this bookie collects no garbage: it was started without a collector")
        return self._parts.collectors

    # --- MeasureOperations

    @property
    def counters(self) -> BookieCounters:
        """What this bookie counts."""
        return self._parts.counters

    @property
    def recovery_counters(self) -> RecoveryCounters | None:
        """What AutoRecovery counts; None when it does not run in this process."""
        return self._parts.recovery_counters

    def storage_measures(self) -> Sequence[StorageMeasures]:
        """The measures of each ledger directory."""
        collectors: Sequence[GarbageCollector | None] = self._parts.collectors or (
            [None] * len(self._parts.storage.directories)
        )
        places = zip(self._parts.storage.directories, self._parts.directories.indexes, collectors, strict=True)
        return [_measure(storage, index_path, collector) for storage, index_path, collector in places]

    def journal_measures(self) -> Sequence[JournalMeasures]:
        """The measures of each journal, in the order of `counters.journals`."""
        bytes_max = self._parts.settings.journal.queue_bytes_max
        return [
            JournalMeasures(
                queue_records=journal.queued_records, queue_bytes=journal.queued_bytes, queue_bytes_max=bytes_max
            )
            for journal in self._parts.journals.all
        ]


def _look_up(directory: DirectoryStorage, ledger_ids: Sequence[int]) -> dict[int, tuple[int, bytes | None]]:
    # In a read thread.
    index = directory.index
    return {ledger_id: (index.last_entry_id(ledger_id), index.ledger(ledger_id)) for ledger_id in ledger_ids}


def _measure(storage: DirectoryStorage, index_path: Path, collector: GarbageCollector | None) -> StorageMeasures:
    ledgers, entries = storage.index.estimated_counts()
    halves = [half for half in (storage.cache.active, storage.cache.flushing) if half is not None]
    status = collector.status() if collector is not None else None
    done = status.counters if status is not None else None
    return StorageMeasures(
        ledger_directory=str(storage.directory),
        index_directory=str(index_path),
        ledgers=ledgers,
        entries=entries,
        write_cache_bytes=sum(half.size_bytes for half in halves),
        write_cache_entries=sum(len(ledger) for half in halves for ledger in half.ledgers.values()),
        write_cache_hits=storage.write_cache_hits,
        write_cache_misses=storage.write_cache_misses,
        read_cache_bytes=storage.read_ahead.size_bytes,
        read_cache_entries=storage.read_ahead.entries,
        read_cache_hits=storage.read_ahead.hits,
        read_cache_misses=storage.read_ahead.misses,
        read_ahead_batches=storage.read_ahead.batches,
        entry_logs=status.logs if status is not None else 0,
        entry_log_bytes=status.live_bytes if status is not None else 0,
        collected_ledgers=status.ledgers if status is not None else 0,
        deleted_ledgers=done.ledgers_deleted if done is not None else 0,
        compaction_reclaimed_bytes=done.reclaimed_by_compaction_bytes if done is not None else 0,
        deletion_reclaimed_bytes=done.reclaimed_by_deletion_bytes if done is not None else 0,
        deletions_failed=done.delete_failures if done is not None else 0,
    )
