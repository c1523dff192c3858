"""Periodic work over all topics, in slices: however many topics there are, the event loop waits only a moment for it.

One timer serves all jobs. What a visit finds to be done and takes longer is put aside as work, of which a bounded
number runs at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from magnetar.core.errors import MagnetarError

if TYPE_CHECKING:
    from magnetar.core.clock import CallLater, Clock, TimerHandle

logger: Final = logging.getLogger(__name__)

Item = TypeVar("Item")

SLICE_SECONDS_MAX: Final = 0.002
"""Work in one go; a few of these are not seen in the latency of a message."""

VISITS_PER_LOOK: Final = 16
"""Visits between two looks at the clock, each of which takes some microseconds at most."""

PAUSE_SECONDS: Final = 0.002
"""Between two slices: half of the time is left to everything else even while a sweep runs."""

TICK_SECONDS: Final = 1.0
"""Seconds by which a topic's periodic work may be late."""

WORK_WAITING_MAX: Final = 10_000
"""More than this is not kept: the next sweep finds it again."""

WORK_AT_ONCE: Final = 16
"""Deletions, and reads of old entries; more would crowd out what clients wait for."""

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Job(Generic[Item]):
    """Something that is done with every item each so many seconds."""

    __slots__ = ("due_seconds", "finished", "interval_seconds", "name", "queued", "visit")

    def __init__(
        self,
        name: str,
        interval_seconds: float,
        visit: Callable[[Item], Work | None],
        finished: Callable[[], None] | None = None,
    ) -> None:
        """`visit` must be quick and may return what is to be done later; `finished` is called after the last item."""
        self.name = name
        self.interval_seconds = interval_seconds
        self.visit = visit
        self.finished = finished
        self.due_seconds = 0.0
        self.queued = False


class Sweeper(Generic[Item]):
    """Runs jobs one after another."""

    def __init__(
        self,
        items: Callable[[], Iterable[Item]],
        clock: Clock,
        call_later: CallLater,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._items = items
        self._clock = clock
        self._call_later = call_later
        self._spawn = spawn
        self.jobs: list[Job[Item]] = []
        self._queue: deque[Job[Item]] = deque()
        self._left: list[Item] = []
        self._running: Job[Item] | None = None
        self._timer: TimerHandle | None = None
        self._work: deque[Work] = deque()
        self._workers = 0
        self._stopped = True

    def add(self, job: Job[Item]) -> None:
        """Run a job each interval, the first time one interval from now."""
        job.due_seconds = self._clock.monotonic_seconds() + job.interval_seconds
        self.jobs.append(job)

    def retime(self, job: Job[Item], interval_seconds: float) -> None:
        """Run a job each such interval from now on, at the latest one from now."""
        job.interval_seconds = interval_seconds
        job.due_seconds = min(job.due_seconds, self._clock.monotonic_seconds() + interval_seconds)

    def start(self) -> None:
        """Begin to run the jobs."""
        self._stopped = False
        self._arm(TICK_SECONDS)

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True
        self._work.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def run_once(self, job: Job[Item]) -> None:
        """Sweep soon, also with a job that was not added."""
        if not job.queued:
            job.queued = True
            self._queue.append(job)
            if not self._stopped and self._running is None:
                self._arm(0.0)

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self._sweep()
        finally:
            if not self._stopped:
                self._arm(PAUSE_SECONDS if self._running is not None or self._queue else TICK_SECONDS)

    def _sweep(self) -> None:
        now = self._clock.monotonic_seconds()
        for job in self.jobs:
            if now >= job.due_seconds and not job.queued:
                job.due_seconds = now + job.interval_seconds
                job.queued = True
                self._queue.append(job)
        if self._running is None and self._queue:
            self._running = self._queue.popleft()
            # Only now: a change that comes while it runs has to be seen by all, so it may be queued again.
            self._running.queued = False
            self._left = list(self._items())
            self._left.reverse()
        if self._running is not None:
            self._slice(self._running)

    def _slice(self, job: Job[Item]) -> None:
        left = self._left
        end = self._clock.monotonic_seconds() + SLICE_SECONDS_MAX
        while left:
            for _ in range(min(VISITS_PER_LOOK, len(left))):
                self._visit(job, left.pop())
            if self._clock.monotonic_seconds() >= end:
                return
        self._running = None
        if job.finished is not None:
            job.finished()

    def _visit(self, job: Job[Item], item: Item) -> None:
        try:
            work = job.visit(item)
        except MagnetarError as error:
            logger.warning("%s of %s failed: %s", job.name, item, error)
            return
        if work is not None and len(self._work) < WORK_WAITING_MAX:
            self._work.append(work)
            if self._workers < WORK_AT_ONCE:
                self._workers += 1
                self._spawn(self._run_work())

    async def _run_work(self) -> None:
        try:
            while self._work:
                work = self._work.popleft()
                try:
                    await work()
                except MagnetarError as error:
                    logger.warning("periodic work failed, it is tried again later: %s", error)
                await asyncio.sleep(0)
        finally:
            self._workers -= 1
