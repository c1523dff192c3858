"""The garbage collector of one ledger directory: when it runs, what it does in which order, what it tells.

One collection: finish broken compactions; delete ledgers that are gone from the metadata store; delete entry logs that
have nothing left; compact logs that have little left, when that is due. BookKeeper: bookie/GarbageCollectorThread.

It touches only logs that nobody writes and whose entries are all in the index (`EntryLogs.closed_logs`, asked before
anything else), so it needs no lock against adds and checkpoints.
"""

from __future__ import annotations

import asyncio
import logging
import random
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from magnetar.bookie.gc.background import step
from magnetar.bookie.gc.ledger_collection import LedgerCollection, without
from magnetar.bookie.gc.live_ledgers import LedgerLocks, LiveLedgers
from magnetar.bookie.gc.log_collection import LogCollection
from magnetar.bookie.gc.plan import CollectionRequest, CompactionClock, CompactionKind, DiskLevel, disk_level
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.gc.status import CollectionCounters, CollectionReport, CollectionStatus
from magnetar.bookie.storage.directory_storage import DirectoryStorage
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.core.text import human_bytes

logger: Final = logging.getLogger(__name__)


class GarbageCollector:
    """Collects one directory. On the event loop; the work is done in the directory's background thread."""

    def __init__(
        self,
        storage: DirectoryStorage,
        live_ledgers: LiveLedgers,
        settings: GarbageCollectionSettings,
        clock: Clock,
        states_removed: Callable[[Sequence[int]], None],
        *,
        bookie_id: str = "",
        locks: LedgerLocks | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`states_removed` is told of deleted ledgers. Over-replicated ledgers are looked for only with `bookie_id`
        and `locks`. `rng` spreads the bookies' RocksDB compactions over time."""
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self._bookie_id = bookie_id
        self._locks = locks
        self._rng = rng or random.SystemRandom()
        self.counters = CollectionCounters()
        self._ledgers = LedgerCollection(storage, live_ledgers, settings, clock, states_removed)
        self._logs = LogCollection(storage, settings, clock, self.counters)
        now = clock.monotonic_seconds()
        self._compactions = CompactionClock(now, settings)
        self._locations_due = now + self._location_delay()
        self._one_run = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._request: CollectionRequest | None = None
        self._compaction: CompactionKind | None = None
        self._location_work: asyncio.Future[None] | None = None
        self._local_count = 0
        self._last_ms = self._last_major_ms = self._last_minor_ms = self._last_location_ms = 0
        self._last_seconds = 0.0

    async def run(self, start_delay_seconds: float = 0.0) -> None:
        """Collect every so often, and when asked to. To be cancelled; what is under way then is finished by the next
        start. Give each directory another start delay, so that they do not all collect at once."""
        delay = self._settings.wait_seconds + start_delay_seconds
        while True:
            try:
                async with asyncio.timeout(delay):
                    await self._wanted.wait()
            except TimeoutError:
                pass  # A collection is due without anybody asking.
            delay = self._settings.wait_seconds
            self._wanted.clear()
            request = self._request
            try:
                await self._collect(request)
            except Exception:  # Whatever it was, space must be collected again tomorrow.
                self.counters.failures += 1
                logger.exception("garbage collection of %s failed", self._storage.directory)
            if self._request is request:
                self._request = None

    def trigger(self, *, force_major: bool | None = None, force_minor: bool | None = None) -> None:
        """Have `run` collect soon; `collect` tells what the flags mean. While one that was asked for has not ended,
        nothing further is asked for (as with BookKeeper)."""
        if self._request is None:
            self._request = CollectionRequest(force_major, force_minor)
            self._wanted.set()

    async def collect(
        self, *, force_major: bool | None = None, force_minor: bool | None = None, forced: bool = False
    ) -> CollectionReport:
        """One collection now, after any that runs. It never raises but for programming errors: see `problems`.

        Without arguments the clocks decide about compaction, as in `run`. `forced`: compact whatever the clocks say.
        A flag that is True compacts in spite of suspension and full disks, one that is False does not compact."""
        asked = forced or force_major is not None or force_minor is not None
        return await self._collect(CollectionRequest(force_major, force_minor) if asked else None)

    def suspend_compaction(self, *, major: bool = False, minor: bool = False) -> None:
        """No more compactions of the kinds named; one under way stops behind the log that it is at."""
        self._compactions.major_suspended |= major
        self._compactions.minor_suspended |= minor

    def resume_compaction(self, *, major: bool = False, minor: bool = False) -> None:
        """Have compactions made again that `suspend_compaction` has stopped."""
        self._compactions.major_suspended &= not major
        self._compactions.minor_suspended &= not minor

    async def compact_locations(self) -> None:
        """Have RocksDB give back the space of deleted places; returns when it has. None is begun while one runs.
        OSError."""
        if self._location_work is not None:
            return
        # Not in the background thread: it may take minutes, and a collection would have to wait.
        work = asyncio.get_running_loop().run_in_executor(None, self._storage.index.compact_locations)
        self._location_work = work
        work.add_done_callback(self._locations_compacted)
        await asyncio.shield(work)

    def _locations_compacted(self, work: asyncio.Future[None]) -> None:
        self._location_work = None
        if not work.cancelled() and work.exception() is None:
            self.counters.location_compactions += 1
            self._last_location_ms = self._clock.now_ms()

    async def close(self) -> None:
        """After `run` was cancelled, before the storage is closed: wait for RocksDB, which cannot be closed while it
        compacts."""
        if self._location_work is not None:
            await asyncio.wait([self._location_work])

    def status(self) -> CollectionStatus:
        """Everything, for metrics and for those who ask by HTTP and gRPC."""
        usages = list(self._logs.usages)
        return CollectionStatus(
            directory=str(self._storage.directory),
            running=self._one_run.locked(),
            force_compacting=self._request is not None,
            compaction=self._compaction,
            locations_compacting=self._location_work is not None,
            last_collection_ms=self._last_ms,
            last_collection_seconds=self._last_seconds,
            last_major_compaction_ms=self._last_major_ms,
            last_minor_compaction_ms=self._last_minor_ms,
            last_location_compaction_ms=self._last_location_ms,
            major_suspended=self._compactions.major_suspended,
            minor_suspended=self._compactions.minor_suspended,
            ledgers=self._local_count,
            logs=len(usages),
            live_bytes=sum(usage.remaining_bytes for usage in usages),
            logs_bytes=sum(usage.total_bytes for usage in usages),
            damaged_logs=sum(bool(usage.damage) for usage in usages) + len(self._logs.not_compactable),
            usage_buckets=self._logs.usages.buckets(self._logs.full_bytes),
            compact_ratio=self._logs.compact_ratio,
            counters=self.counters,
        )

    async def _collect(self, request: CollectionRequest | None) -> CollectionReport:
        async with self._one_run:
            begun = self._clock.monotonic_seconds()
            report = CollectionReport()
            try:
                await self._collect_into(report, request)
            except (OSError, MagnetarError) as error:
                logger.error("garbage collection of %s: %s", self._storage.directory, error)  # noqa: TRY400
                report.problems.append(str(error))
            self._last_ms = self._clock.now_ms()
            self._last_seconds = self._clock.monotonic_seconds() - begun
            self._count(report)
            return report

    async def _collect_into(self, report: CollectionReport, request: CollectionRequest | None) -> None:
        left_out = await self._logs.finish_compactions(report)
        try:
            await self._ledgers.settle_deletions()
        except OSError as error:
            # Those that are gone since are looked for all the same: without room for the index, their logs give some.
            report.problems.append(f"deleted ledgers may come back: the index is not durable: {error}")
        # Before the index is asked: what is closed now has all its entries there.
        closed = set(await step(self._storage, self._storage.logs.closed_logs))
        local = await self._ledgers.local_ledgers()
        alive = await self._collect_ledgers(local, report)
        self._local_count = len(alive)
        unsure = self._ledgers.deletions_unsure
        await self._logs.update(
            closed, await step(self._storage, partial(frozenset[int], alive)), report, deletions_unsure=unsure
        )
        kind = self._compactions.choose(self._clock.monotonic_seconds(), request, await self._disk_level())
        if kind is not None and not unsure:  # A log that is compacted would be deleted, as well.
            await self._compact(kind, request, left_out, report)
        if self._clock.monotonic_seconds() >= self._locations_due:
            self._locations_due = self._clock.monotonic_seconds() + self._location_delay()
            await self.compact_locations()

    async def _collect_ledgers(self, local: array[int], report: CollectionReport) -> array[int]:
        """The ledgers that remain. When the metadata store cannot say, that is all of them."""
        alive = local
        try:
            alive = without(alive, await self._ledgers.delete_missing(alive, report))
            if self._locks is not None and self._bookie_id:
                gone = await self._ledgers.delete_over_replicated(alive, self._bookie_id, self._locks, report)
                alive = without(alive, gone)
        except (MagnetarError, OSError) as error:
            logger.warning("no ledgers of %s are deleted now: %s", self._storage.directory, error)
            report.problems.append(f"no ledgers are deleted: {error}")
        return alive

    async def _compact(
        self, kind: CompactionKind, request: CollectionRequest | None, left_out: set[int], report: CollectionReport
    ) -> None:
        settings = self._settings
        major = kind is CompactionKind.MAJOR
        asked = request is not None and bool(request.major if major else request.minor)
        self._compaction = report.compaction = kind
        if major:
            self._logs.forgive()
        try:
            await self._logs.compact(
                settings.major_threshold if major else settings.minor_threshold,
                settings.major_time_max_seconds if major else settings.minor_time_max_seconds,
                partial(self._may_go_on, kind, asked),
                left_out,
                report,
            )
        finally:
            self._compaction = None
            self._compactions.done(kind, self._clock.monotonic_seconds())
            now_ms = self._last_minor_ms = self._clock.now_ms()
            if major:
                self._last_major_ms = now_ms
                self.counters.major_compactions += 1
            else:
                self.counters.minor_compactions += 1

    def _may_go_on(self, kind: CompactionKind, asked: bool) -> bool:
        if asked:
            return True
        clock = self._compactions
        return not (clock.major_suspended if kind is CompactionKind.MAJOR else clock.minor_suspended)

    async def _disk_level(self) -> DiskLevel:
        storage = self._storage
        total_bytes, free_bytes = await step(storage, partial(storage.disk.usage_bytes, storage.directory))
        level = disk_level(total_bytes, free_bytes, self._settings)
        if level is not DiskLevel.ROOM:
            free = human_bytes(free_bytes)
            logger.info("%s has %s free; compaction pauses unless it is forced", storage.directory, free)
        return level

    def _location_delay(self) -> float:
        interval = self._settings.location_compaction_interval_seconds
        return interval + self._rng.random() * interval if interval > 0 else float("inf")

    def _count(self, report: CollectionReport) -> None:
        counters = self.counters
        counters.collections += 1
        counters.failures += bool(report.problems)
        counters.ledgers_deleted += report.ledgers_deleted
        counters.logs_compacted += report.logs_compacted
        counters.reclaimed_by_deletion_bytes += report.reclaimed_by_deletion_bytes
        counters.reclaimed_by_compaction_bytes += report.reclaimed_by_compaction_bytes
        if report.ledgers_deleted or report.logs_deleted or report.logs_compacted:
            logger.info(
                "collected %s: %d ledgers, %d entry logs deleted, %d compacted",
                self._storage.directory,
                report.ledgers_deleted,
                report.logs_deleted,
                report.logs_compacted,
            )
