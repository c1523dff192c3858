"""Takes ledgers that are marked as underreplicated, one lock each, and has them replicated.

(BookKeeper: replication/ReplicationWorker, which works on one ledger at a time.)
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator
from magnetar.bookie.autorecovery.replication.result import OpenDamage, ProblemKind, ReplicationResult, ReplicationScope
from magnetar.bookie.autorecovery.replication.settings import ReplicationSettings
from magnetar.bookie.autorecovery.replication.throttle import RateMeter
from magnetar.bookie.autorecovery.replication_lock import ReplicationLock
from magnetar.bookie.autorecovery.underreplication import (
    ChangeSignal,
    UnderreplicatedLedger,
    UnderreplicatedLedgers,
)
from magnetar.core.backoff import doubled
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import MagnetarError, Unavailable

logger: Final = logging.getLogger(__name__)

FAILED_LEDGERS_MAX: Final = 2_000
"""Ledgers whose failures are counted and whose locks are kept for a while, as in BookKeeper. What is beyond may be
tried again at once, after the worker's back-off."""

LOCK_GROWTH: Final = 32
"""The first failure costs this part of the longest back-off."""

LOOK_SECONDS: Final = 0.5
"""How often what nobody tells of is looked at: whether our own bookie is read-only."""

STORE_LOOK_SECONDS: Final = 60.0
"""How often work is looked for although nobody has told of any."""

SILENT_FAILURES_MAX: Final = 1
"""After so many failed attempts on a ledger, registered bookies that do not answer are taken for lost."""

_SYSTEM_CLOCK: Final = SystemClock()

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProgress:
    """What a worker has done since it was made."""

    ledgers_done: int
    ledgers_failed: int
    """Attempts to replicate a ledger that left something to do."""
    entries_copied: int
    bytes_copied: int
    bytes_per_second: float
    current: tuple[int, ...]
    """Ids of the ledgers that are copied now, ascending."""
    waiting: tuple[int, ...]
    """Ledgers that are kept locked for a later attempt, ascending."""


class ReplicationWorker:
    """Works for as long as `run` does."""

    def __init__(
        self,
        underreplicated: UnderreplicatedLedgers,
        replicator: LedgerReplicator,
        clock: Clock = _SYSTEM_CLOCK,
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """`paused` tells whether no new ledger shall be taken now: while our own bookie is read-only. The settings are
        the replicator's."""
        self._underreplicated = underreplicated
        self._replicator = replicator
        self._settings: ReplicationSettings = replicator.settings
        self._clock = clock
        self._paused = paused
        self._meter = RateMeter(clock)
        self._ledgers_done = 0
        self._ledgers_failed = 0
        self._entries_copied = 0
        # By a number of their own: a job may still back off when its ledger's next one begins.
        self._jobs: dict[int, _Held] = {}
        self._jobs_begun = 0
        self._deferred: dict[int, _Held] = {}
        self._failures: OrderedDict[int, int] = OrderedDict()
        self._wake_up = asyncio.Event()
        self._held_back = False

    def progress(self) -> WorkerProgress:
        """What the worker does now."""
        return WorkerProgress(
            ledgers_done=self._ledgers_done,
            ledgers_failed=self._ledgers_failed,
            entries_copied=self._entries_copied,
            bytes_copied=self._meter.total_bytes,
            bytes_per_second=self._meter.bytes_per_second(),
            current=tuple(sorted(job.ledger_id for job in self._jobs.values() if job.lock is not None)),
            waiting=tuple(sorted(self._deferred)),
        )

    async def run(self) -> None:
        """Work until cancelled; locks are given back then. An error that nobody foresaw ends it."""
        signal = self._underreplicated.watch_changes()
        listener = asyncio.get_running_loop().create_task(self._listen(signal), name="news for replication")
        try:
            await self._look_around()
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
            signal.close()
            await self._stop(self._jobs)
            await self._stop(self._deferred)

    async def _listen(self, signal: ChangeSignal) -> None:
        while True:
            await signal.wait()
            self._wake_up.set()

    async def _look_around(self) -> None:
        """Take what there is, on news and now and then without."""
        look = True
        looked_seconds = 0.0
        while True:
            now = self._clock.monotonic_seconds()
            if look or now - looked_seconds >= STORE_LOOK_SECONDS or (self._held_back and not self._paused()):
                looked_seconds = now
                look = not await self._look()
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake_up.wait()
            except TimeoutError:
                continue
            self._wake_up.clear()
            look = True

    async def _look(self) -> bool:
        """Take ledgers; False when the store failed."""
        for number, job in list(self._jobs.items()):
            if job.task.done():
                del self._jobs[number]
                job.task.result()
        try:
            if not await self._underreplicated.enabled():
                await self._stop(self._jobs)
                return True
            while len(self._jobs) < self._settings.ledgers_at_a_time:
                self._held_back = self._paused()
                if self._held_back:
                    return True
                found = await self._underreplicated.lock_any()
                if found is None:
                    return True
                self._begin(*found)
        except Unavailable as error:
            logger.warning("work for replication cannot be looked for: %s", error)
            return False
        return True

    def _begin(self, task: UnderreplicatedLedger, lock: ReplicationLock) -> None:
        self._jobs_begun += 1
        held = self._jobs[self._jobs_begun] = _Held(lock, self._work(task, lock), f"replicate {task.ledger_id}")
        held.task.add_done_callback(lambda _: self._wake_up.set())

    async def _work(self, task: UnderreplicatedLedger, lock: ReplicationLock) -> None:
        ledger_id = task.ledger_id
        well = False
        try:
            well = await self._replicate(task, lock)
        except Unavailable as error:
            logger.warning("ledger %d could not be replicated now: %s", ledger_id, error)
        except MagnetarError as error:
            # Its metadata cannot be read, for example: others may be repaired all the same.
            logger.warning("ledger %d could not be replicated: %s", ledger_id, error)
            await self._underreplicated.tell_problem(ledger_id, str(error))
            self._defer_failed(ledger_id, lock)
        finally:
            if ledger_id not in self._deferred:
                await lock.release()
        if not well:
            await asyncio.sleep(self._settings.failure_backoff_seconds)

    async def _replicate(self, task: UnderreplicatedLedger, lock: ReplicationLock) -> bool:
        """Whether the worker may go on with another ledger at once. When the lock is kept, it is deferred."""
        ledger_id = task.ledger_id
        started = self._clock.monotonic_seconds()
        replication = self._replicator.replicate(
            ledger_id,
            on_progress=self._copied,
            # A mark that names no bookie asks for another placement.
            scope=ReplicationScope.WHOLE if task.missing_replicas else ReplicationScope.PLACEMENT,
            replace_silent=self._failures.get(ledger_id, 0) >= SILENT_FAILURES_MAX,
        )
        result = await unless_lost(lock, replication)
        if result is None:
            logger.warning("ledger %d is left to others: its lock was lost", ledger_id)
            return True
        self._count(result, started)
        if result.complete:
            self._failures.pop(ledger_id, None)
            await self._underreplicated.replicated(task, lock)
            self._ledgers_done += 1
            logger.info("ledger %d is whole: %s", ledger_id, _summary(result))
            return True
        self._ledgers_failed += 1
        logger.warning("ledger %d is not whole: %s (%s)", ledger_id, result.reason, _summary(result))
        await self._underreplicated.tell_problem(ledger_id, result.reason)
        if result.has(ProblemKind.OPEN):
            self._defer(ledger_id, lock, self._close_later(ledger_id, lock, result.open_damage))
            return True
        if result.has(ProblemKind.NOT_ENOUGH_BOOKIES):
            # It may go on as soon as a bookie comes: no long back-off.
            self._count_failure(ledger_id)
            self._defer(ledger_id, lock, _release_later(lock, self._settings.failure_backoff_seconds))
        else:
            self._defer_failed(ledger_id, lock)
        return False

    def _count(self, result: ReplicationResult, started_seconds: float) -> None:
        counters = self._replicator.counters
        counters.replication.record(self._clock.monotonic_seconds() - started_seconds, 1, success=result.complete)
        counters.ledgers_replicated += bool(result.moves)
        counters.ledgers_misplaced_replicated += result.misplaced_moved
        counters.ledgers_deferred += not result.complete

    def _copied(self, entries: int, size_bytes: int) -> None:
        self._entries_copied += entries
        self._meter.add(size_bytes)

    def _count_failure(self, ledger_id: int) -> int:
        count = self._failures.pop(ledger_id, 0) + 1
        self._failures[ledger_id] = count
        if len(self._failures) > FAILED_LEDGERS_MAX:
            self._failures.popitem(last=False)
        return count

    def _defer_failed(self, ledger_id: int, lock: ReplicationLock) -> None:
        """Keep the lock for a time that grows with each failure, so that nobody else runs into the same."""
        longest_seconds = self._settings.failed_lock_seconds_max
        seconds = doubled(longest_seconds / LOCK_GROWTH, longest_seconds, self._count_failure(ledger_id) - 1)
        self._defer(ledger_id, lock, _release_later(lock, seconds))

    def _defer(self, ledger_id: int, lock: ReplicationLock, later: Coroutine[Any, Any, None]) -> None:
        """Have something done that ends with the release; nothing when too much waits already."""
        if len(self._deferred) >= FAILED_LEDGERS_MAX:
            later.close()
            return
        held = self._deferred[ledger_id] = _Held(lock, later, f"replicate {ledger_id} later")
        for job in self._jobs.values():
            if job.lock is lock:
                job.lock = None
        held.task.add_done_callback(lambda _: self._deferral_ended(ledger_id, held))

    def _deferral_ended(self, ledger_id: int, held: _Held) -> None:
        if self._deferred.get(ledger_id) is held:
            del self._deferred[ledger_id]
        task = held.task
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a later attempt on ledger %d failed", ledger_id, exc_info=error)

    async def _close_later(self, ledger_id: int, lock: ReplicationLock, damage: OpenDamage | None) -> None:
        """Give the writer time to replace its lost bookie, then close the ledger; the next attempt copies the rest."""
        try:
            await unless_lost(lock, asyncio.sleep(self._settings.open_ledger_grace_seconds, result=True))
            if lock.lost or not await self._underreplicated.enabled():
                return
            await unless_lost(lock, self._close(ledger_id, damage))
        except MagnetarError as error:
            logger.warning("ledger %d could not be closed for its replication: %s", ledger_id, error)
            await unless_lost(lock, asyncio.sleep(self._settings.failure_backoff_seconds, result=True))
        finally:
            await lock.release()

    async def _close(self, ledger_id: int, damage: OpenDamage | None) -> bool:
        await self._replicator.close_open_ledger(ledger_id, damage=damage)
        return True

    async def _stop(self, tasks: dict[int, _Held]) -> None:
        stopping = list(tasks.values())
        tasks.clear()
        for held in stopping:
            held.task.cancel()
        for held in stopping:
            await held.ended()


class _Held:
    """A task that works under a lock."""

    def __init__(self, lock: ReplicationLock, work: Coroutine[Any, Any, None], name: str) -> None:
        self.lock: ReplicationLock | None = lock
        """None once another task has taken it over."""
        self.ledger_id = lock.ledger_id
        self.task = asyncio.get_running_loop().create_task(work, name=name)

    async def ended(self) -> None:
        """Wait until the cancelled task is over. One that had not begun yet has not given its lock back."""
        await asyncio.gather(self.task, return_exceptions=True)
        if self.lock is not None:
            await self.lock.release()


async def _release_later(lock: ReplicationLock, seconds: float) -> None:
    try:
        await unless_lost(lock, asyncio.sleep(seconds, result=True))
    finally:
        await lock.release()


def _summary(result: ReplicationResult) -> str:
    if result.deleted:
        return "it was deleted"
    return f"{result.fragments_moved} fragments moved, {result.entries_copied} entries, {result.bytes_copied} bytes"


async def unless_lost(lock: ReplicationLock, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work returns, or None when the lock was lost before it ended; it is cancelled then."""
    task = asyncio.ensure_future(work)
    lost = asyncio.ensure_future(lock.wait_until_lost())
    try:
        await asyncio.wait([task, lost], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for waiting in (task, lost):
            waiting.cancel()
        await asyncio.gather(task, lost, return_exceptions=True)
