"""Checkpoints: what is only in journals and memory goes to entry logs and indexes; then the journals may forget it.

Order, each step durable before the next: ledger states to the indexes, entries to the logs, their places to the
indexes (every ledger directory in a thread of its own), the marks of all journals, deletion of old journal files. A
crash anywhere in between replays the journals from the old marks, which stores the same entries once more and changes
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from magnetar.bookie.counters import BookieCounters
from magnetar.bookie.freed_memory import FreedMemory
from magnetar.bookie.ledger_state import LedgerStates
from magnetar.bookie.storage.directories import BookieDirectories, Marks
from magnetar.bookie.storage.ledger_storage import LedgerStorage

logger: Final = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""After a failed checkpoint. The entries stay readable and in the journal; adds stop when the other half is full."""

FAILURES_PER_LOG_LINE: Final = 60
"""A full disk fails every attempt: one line a minute says so."""


class Checkpointer:
    """Writes the caches out when a half is full, and every so often."""

    def __init__(
        self,
        storage: LedgerStorage,
        states: LedgerStates,
        directories: BookieDirectories,
        backups_max: int,
        on_done: Callable[[OSError | None], None],
    ) -> None:
        """`on_done` is called on the loop after every checkpoint, with its error if it failed."""
        self._storage = storage
        self._states = states
        self._directories = directories
        self._backups_max = backups_max
        self._on_done = on_done
        self._wanted = asyncio.Event()
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bookie-checkpoint")
        self._freed_memory = FreedMemory()
        self._failed_marks: Marks | None = None
        self._stopping = False
        self._failures_in_a_row = 0
        self.completed = 0
        self.counters: BookieCounters | None = None
        """Where checkpoints are counted, once it is set."""

    def request(self) -> None:
        """Have a checkpoint made soon."""
        self._wanted.set()

    async def run(self, marks: Callable[[], Marks], interval_seconds: float) -> None:
        """Make checkpoints until `stop`. Not to be cancelled: a thread that writes cannot be."""
        while True:
            try:
                async with asyncio.timeout(interval_seconds):
                    await self._wanted.wait()
            except TimeoutError:
                pass  # The interval is over: a checkpoint is due without anybody asking.
            self._wanted.clear()
            if self._stopping:
                return
            if not await self.checkpoint(marks):
                retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wanted.set)
                await self._wanted.wait()
                retry.cancel()

    def stop(self) -> None:
        """Let `run` return once the checkpoint under way is finished."""
        self._stopping = True
        self._wanted.set()

    async def checkpoint(self, marks: Callable[[], Marks], *, also_idle: bool = False) -> bool:
        """Write out all that was added up to now; `marks` gives the journals' of this moment. Whether it worked.
        Without anything to write the marks stay where they are, unless `also_idle`.

        After a failure, what failed is written again; then the marks are those of the failed attempt, since what came
        after it may still be in memory."""
        async with self._lock:
            error: OSError | None = None
            taken = self._failed_marks
            idle = not self._storage.anything_cached() and not self._states.anything_dirty()
            if taken is None and idle and not also_idle:
                return True
            if taken is None:
                taken = self._failed_marks = marks()
            try:
                flush = self.flush(taken)
                await (flush if self.counters is None else self._counted(flush, self.counters))
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._thread, self._trim, taken)
            except OSError as failure:
                error = failure
                if self._failures_in_a_row % FAILURES_PER_LOG_LINE == 0:
                    logger.error("a checkpoint failed and is tried again: %s", failure)  # noqa: TRY400  (no stack needed)
                self._failures_in_a_row += 1
            else:
                self._failed_marks = None
                self.completed += 1
                self._failures_in_a_row = 0
        self._on_done(error)
        if error is None and self._storage.half_full:
            self._wanted.set()
        return error is None

    async def flush(self, marks: Marks) -> None:
        """Write every cache and all states out, then the marks; durable on return. OSError."""
        states = self._states.take_dirty()
        stored = False
        try:
            await self._storage.flush(states)
            stored = True
        finally:
            self._states.flushed(stored=stored)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._directories.write_last_marks, marks)

    async def _counted(self, flush: Coroutine[Any, Any, None], counters: BookieCounters) -> None:
        halves = [cache.flushing or cache.active for cache in self._storage.caches]
        counters.flush_bytes.record(sum(half.size_bytes for half in halves))
        await counters.timed(counters.flush, flush)

    def close(self) -> None:
        """Stop the thread; a checkpoint under way is finished."""
        self._thread.shutdown(wait=True)

    def _trim(self, marks: Marks) -> None:
        self._directories.trim_journals(marks, self._backups_max)
        self._freed_memory.give_back()
