"""Deletes entry logs that have nothing left, and compacts those that have little left."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from magnetar.bookie.gc.background import step
from magnetar.bookie.gc.compaction import LogCopy, SwitchOver, unfinished_compactions
from magnetar.bookie.gc.entry_log_usage import EntryLogUsages, LogReading, LogUsage
from magnetar.bookie.gc.plan import CompactionThrottle, compaction_order, time_is_up
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.gc.status import CollectionCounters, CollectionReport
from magnetar.bookie.storage.directory_storage import DirectoryStorage
from magnetar.bookie.storage.entry_log_format import EMPTIED_LOG, HEADER_BYTES, EntryDamaged
from magnetar.core.clock import Clock
from magnetar.core.disk import write_all
from magnetar.core.text import human_bytes

logger: Final = logging.getLogger(__name__)

ENTRIES_PER_LOOK: Final = 512
"""Places of the index looked at in one step, when it is asked what it needs of a damaged log."""


class LogCollection:
    """Steps of a collection; on the event loop. Errors of single logs go into the report."""

    def __init__(
        self,
        storage: DirectoryStorage,
        settings: GarbageCollectionSettings,
        clock: Clock,
        counters: CollectionCounters,
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self._counters = counters
        self._throttle = CompactionThrottle(settings)
        self._alive: frozenset[int] = frozenset()
        self.usages = EntryLogUsages(storage.disk, storage.directory, settings.ledgers_in_memory_max)
        self.not_compactable: set[int] = set()
        """Logs whose compaction met damage; tried again by the next major one."""
        self.compact_ratio = 0.0
        self._look_again = False
        self._doubted: set[int] = set()
        """Logs of which ledgers were dropped that the index may name still: to be learnt again."""

    @property
    def full_bytes(self) -> int:
        """What usage is a share of, at least."""
        return self._storage.logs.size_bytes_max if self._settings.use_target_log_size else 0

    async def finish_compactions(self, report: CollectionReport) -> set[int]:
        """Go on with compactions that were broken off; the logs of those that still are not finished. OSError."""
        storage = self._storage
        unfinished = await step(storage, partial(unfinished_compactions, storage.disk, storage.directory))
        pending: set[int] = set()
        for logs in unfinished:
            try:
                await self._switch(logs)
            except (OSError, EntryDamaged) as error:
                pending.update(logs)
                self._problem(report, f"the compaction of {logs[1]:x}.log into {logs[0]:x}.log is not finished", error)
        return pending

    async def update(
        self,
        closed: Collection[int],
        alive: frozenset[int],
        report: CollectionReport,
        *,
        deletions_unsure: bool = False,
    ) -> None:
        """Learn what stands in logs that were closed since, drop the ledgers that are not `alive`, and
        delete the logs that have nothing left. While deletions from the index are unsure, such logs are emptied but
        stay: after a power cut the index may name them again, and a start would miss them."""
        again, self._look_again = self._look_again, False
        for known in list(self.usages):
            if known.log_id not in closed or (again and known.damage) or known.log_id in self._doubted:
                self.usages.remove(known.log_id)
        gone = not await step(self._storage, partial(alive.issuperset, self._alive))
        for log_id in sorted(closed):
            try:
                new = log_id not in self.usages
                if new:
                    await self._learn(log_id)
                if new or gone:
                    await step(self._storage, partial(self.usages.evaluate, log_id, alive))
            except (OSError, EntryDamaged) as error:
                # The next collection learns it anew.
                self.usages.remove(log_id)
                if not isinstance(error, FileNotFoundError):
                    self._problem(report, f"{log_id:x}.log cannot be collected", error)
        self._alive = alive
        await self._remove([usage for usage in self.usages if usage.empty], report, deletions_unsure=deletions_unsure)
        self._doubted = {
            usage.log_id for usage in self.usages if deletions_unsure and usage.remaining_bytes < usage.total_bytes
        }

    async def compact(
        self,
        threshold: float,
        time_max_seconds: float,
        may_go_on: Callable[[], bool],
        left_out: Collection[int],
        report: CollectionReport,
    ) -> None:
        """Compact logs with a usage below the threshold, those with the least first, while `may_go_on`."""
        begun = self._clock.monotonic_seconds()
        shares = [
            (usage.log_id, usage.share(self.full_bytes))
            for usage in self.usages
            if usage.total_bytes
            and not usage.damage
            and usage.log_id not in left_out
            and usage.log_id not in self.not_compactable
        ]
        count = len(self.usages)
        for log_id in compaction_order(shares, threshold):
            if time_is_up(begun, self._clock.monotonic_seconds(), time_max_seconds) or not may_go_on():
                break
            await self._compact_reporting(log_id, report)
        self.compact_ratio = report.logs_compacted / count if count else 0.0

    def forgive(self) -> None:
        """Try logs once more that were found damaged: a disk may read again what it could not, and ledgers that
        stood behind the damage may be gone."""
        self.not_compactable.clear()
        self._look_again = True

    async def _learn(self, log_id: int) -> None:
        if await step(self._storage, partial(self.usages.read_map, log_id)):
            return
        disk, path = self._storage.disk, self.usages.path(log_id)
        reading = await step(self._storage, partial(LogReading, disk, path, log_id))
        try:
            while await step(self._storage, reading.step):
                pass
            usage = reading.usage()
        finally:
            reading.close()
        if usage.damage:
            wanted = await self._wanted_behind(log_id, reading.position)
            if wanted is None:
                usage.damage = ""
            else:
                where = f"{path} from {reading.position} on"
                logger.error("%s cannot be read, but entry %d:%d is there: %s", where, *wanted, usage.damage)
        self.usages.keep(usage)

    async def _wanted_behind(self, log_id: int, position: int) -> tuple[int, int] | None:
        """The first entry that the index looks for in a log at a position or behind. Looks at the whole index."""
        after: tuple[int, int] | None = (0, -1)
        index = self._storage.index
        while after is not None:
            found, after = await step(self._storage, partial(index.locations_in_log, log_id, after, ENTRIES_PER_LOOK))
            for ledger_id, entry_id, location in found:
                if location & 0xFFFF_FFFF >= position:
                    return ledger_id, entry_id
        return None

    async def _remove(self, usages: Sequence[LogUsage], report: CollectionReport, *, deletions_unsure: bool) -> None:
        named = emptied = {usage.log_id for usage in usages if usage.emptied}
        try:
            named = await self._named(emptied)
            if usages and not deletions_unsure:
                # What the index has said of logs holds after a power cut, too.
                await step(self._storage, self._storage.index.sync)
        except OSError as error:
            deletions_unsure = True
            self._problem(report, "the index is not durable: logs are emptied, not deleted", error)
        for usage in usages:
            if usage.log_id in named:
                continue
            try:
                await (self._empty if deletions_unsure else self._delete)(usage, report)
            except FileNotFoundError:
                self.usages.remove(usage.log_id)
            except OSError as error:
                self._problem(report, f"{usage.log_id:x}.log cannot be collected", error)

    async def _named(self, log_ids: Collection[int]) -> set[int]:
        """Those of some logs in which the index looks for anything. Looks at the whole index, once for all."""
        named: set[int] = set()
        after: tuple[int, int] | None = (0, -1) if log_ids else None
        while after is not None and len(named) < len(log_ids):
            found, after = await step(self._storage, partial(self._storage.index.places, after, ENTRIES_PER_LOOK))
            named.update(log_id for _, _, location in found if (log_id := location >> 32) in log_ids)
        return named

    async def _delete(self, usage: LogUsage, report: CollectionReport) -> None:
        try:
            await step(self._storage, partial(self._delete_file, usage.log_id))
        except OSError:
            self._counters.delete_failures += 1
            raise
        logger.info("deleted entry log %x, of which nothing was wanted", usage.log_id)
        self.usages.remove(usage.log_id)
        report.logs_deleted += 1
        report.reclaimed_by_deletion_bytes += usage.total_bytes

    async def _empty(self, usage: LogUsage, report: CollectionReport) -> None:
        if not await step(self._storage, partial(self._empty_file, usage.log_id)):
            return
        logger.info("emptied entry log %x, of which nothing is wanted; the index may name it still", usage.log_id)
        report.reclaimed_by_deletion_bytes += usage.total_bytes
        emptied = LogUsage(usage.log_id)
        emptied.set_ledgers({})
        emptied.scanned = emptied.emptied = True
        self.usages.keep(emptied)

    def _empty_file(self, log_id: int) -> bool:
        # As `_delete_file`. To write over a header and to cut a file takes no room on a disk that is full.
        file = self._storage.disk.open(self.usages.path(log_id), writable=True)
        try:
            if file.size_bytes() <= HEADER_BYTES:
                return False
            try:
                write_all(file, EMPTIED_LOG, 0)
                file.sync()
            except OSError as error:
                # Where files are copied on each write it does. The room is worth more than what a start is told.
                logger.warning(
                    "%s is emptied without its mark, so a start that heals takes it for damage: %s",
                    self.usages.path(log_id),
                    error,
                )
            file.truncate(HEADER_BYTES)
            return True
        finally:
            file.close()

    def _delete_file(self, log_id: int) -> None:
        # In the background thread. Reading threads that have it open go on; nobody opens it again.
        self._storage.disk.delete(self.usages.path(log_id))
        self._storage.disk.sync_directory(self._storage.directory)
        self._storage.logs.forget(log_id)

    async def _compact_reporting(self, log_id: int, report: CollectionReport) -> None:
        before = self.usages.get(log_id)
        if before is None:
            return
        total_bytes, remaining_bytes = before.total_bytes, before.remaining_bytes
        try:
            await self._require_room(remaining_bytes)
            copied_bytes = await self._compact(log_id, report)
        except EntryDamaged as error:
            self.not_compactable.add(log_id)
            self._counters.compactions_failed += 1
            self._problem(report, f"{log_id:x}.log stays as it is: it cannot be compacted", error)
        except OSError as error:
            self._counters.compactions_failed += 1
            self._problem(report, f"{log_id:x}.log could not be compacted now", error)
        else:
            report.logs_compacted += 1
            report.reclaimed_by_compaction_bytes += max(0, total_bytes - copied_bytes)

    async def _require_room(self, size_bytes: int) -> None:
        storage = self._storage
        _, free_bytes = await step(storage, partial(storage.disk.usage_bytes, storage.directory))
        if free_bytes - size_bytes < self._settings.free_bytes_min:
            free, size = human_bytes(free_bytes), human_bytes(size_bytes)
            raise OSError(errno.ENOSPC, f"{free} are free, {size} would be copied")

    async def _compact(self, log_id: int, report: CollectionReport) -> int:
        """Bytes that were copied. OSError, `EntryDamaged`: then the old log stays, whole or beside its copy."""
        storage = self._storage
        usage = await step(storage, partial(self.usages.evaluate, log_id, self._alive, keep=True))
        assert usage.ledger_ids is not None
        new_log_id = await step(storage, storage.logs.allocate_log_id)
        logger.info("compacting entry log %x, %.0f %% of it live, into %x", log_id, 100 * usage.share(), new_log_id)
        sizes_bytes = dict(zip(usage.ledger_ids, usage.sizes_bytes, strict=True))
        copy = await step(
            storage, partial(LogCopy, storage.disk, storage.directory, storage.index, log_id, sizes_bytes, new_log_id)
        )
        complete = False
        try:
            await self._copy_all(copy)
            complete = await step(storage, copy.finish)
        finally:
            if not complete:
                copy.give_up()
        if complete:
            await self._switch((new_log_id, log_id))
        else:
            # Everything stands elsewhere, as the index says; it has to say so after a power cut as well.
            await step(storage, storage.index.sync)
            await step(storage, partial(self._delete_file, log_id))
        self.usages.remove(log_id)
        report.entries_copied += copy.copied_entries
        if complete:
            await step(storage, partial(self.usages.read_map, new_log_id))
        return copy.copied_bytes

    async def _copy_all(self, copy: LogCopy) -> None:
        entries = size_bytes = 0
        while await step(self._storage, copy.step):
            new_entries, new_bytes = copy.copied_entries - entries, copy.copied_bytes - size_bytes
            entries, size_bytes = copy.copied_entries, copy.copied_bytes
            self._counters.entries_copied += new_entries
            self._counters.bytes_copied += new_bytes
            delay = self._throttle.delay_seconds(self._clock.monotonic_seconds(), new_entries, new_bytes)
            if delay:
                await asyncio.sleep(delay)
        self._counters.entries_copied += copy.copied_entries - entries
        self._counters.bytes_copied += copy.copied_bytes - size_bytes

    async def _switch(self, logs: tuple[int, int]) -> None:
        storage = self._storage
        forget = partial(storage.logs.forget, copy_id=logs[0])
        switch = await step(storage, partial(SwitchOver, storage.disk, storage.directory, storage.index, logs, forget))
        try:
            while await step(storage, switch.step):
                pass
            await step(storage, switch.finish)
        except EntryDamaged:
            if not await step(storage, switch.give_up):
                raise
        finally:
            switch.close()

    def _problem(self, report: CollectionReport, what: str, error: Exception) -> None:
        logger.error("%s: %s: %s", self._storage.directory, what, error)
        report.problems.append(f"{what}: {error}")
