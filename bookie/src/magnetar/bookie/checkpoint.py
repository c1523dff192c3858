"""Checkpoints: what is only in journal and memory goes to entry log and index; then the journal may forget it.

Order, each step durable before the next: entries to the log, their places to the index, ledger states to the index,
lastMark, deletion of old journal files. A crash anywhere in between replays journal from the old mark, which
stores the same entries once more and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from magnetar.bookie import journal_files
from magnetar.bookie.directories import BookieDirectories
from magnetar.bookie.journal import Journal, Mark
from magnetar.bookie.ledger_state import LedgerStates
from magnetar.bookie.storage import LedgerStorage
from magnetar.bookie.write_cache import WriteCacheHalf

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""After a failed checkpoint. The entries stay readable and in the journal; adds stop when the other half is full."""

FAILURES_PER_LOG_LINE: Final = 60
"""A full disk fails every attempt: one line a minute says so."""


class Checkpointer:
    """Writes the cache out when a half is full, and every so often."""

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
        self._failed_mark: Mark = (0, 0)
        self._stopping = False
        self._failures_in_a_row = 0
        self.completed = 0

    def request(self) -> None:
        """Have a checkpoint made soon."""
        self._wanted.set()

    async def run(self, journal: Journal, interval_seconds: float) -> None:
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
            if not await self.checkpoint(journal.mark):
                retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wanted.set)
                await self._wanted.wait()
                retry.cancel()

    def stop(self) -> None:
        """Let `run` return once the checkpoint under way is finished."""
        self._stopping = True
        self._wanted.set()

    async def checkpoint(self, mark: Mark) -> bool:
        """Write out all that was added up to now; `mark` is the journal's at this moment. Whether it worked."""
        async with self._lock:
            cache = self._storage.cache
            half = cache.flushing
            if half is None:
                if not cache.active.ledgers and not self._states.anything_dirty():
                    return True
                half = cache.swap()
            else:
                # What failed before is written again; what came since waits for the next time, so the mark must too.
                mark = self._failed_mark
            self._failed_mark = mark
            states = self._states.take_dirty()
            error: OSError | None = None
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._thread, self._write, half, states, mark)
            except OSError as failure:
                error = failure
                if self._failures_in_a_row % FAILURES_PER_LOG_LINE == 0:
                    log.error("a checkpoint failed and is tried again: %s", failure)  # noqa: TRY400  (no stack needed)
                self._failures_in_a_row += 1
            except BaseException:
                self._states.flushed(stored=False)
                raise
            self._states.flushed(stored=error is None)
            if error is None:
                cache.release()
                self.completed += 1
                self._failures_in_a_row = 0
        self._on_done(error)
        if error is None and cache.half_full:
            self._wanted.set()
        return error is None

    def write_now(self, states: Sequence[tuple[int, bytes]], mark: Mark) -> None:
        """A checkpoint in the calling thread; for replay, before anything runs. OSError."""
        half = self._storage.cache.swap()
        self._write(half, states, mark)
        self._storage.cache.release()

    def close(self) -> None:
        """Stop the thread; a checkpoint under way is finished."""
        self._thread.shutdown(wait=True)

    def _write(self, half: WriteCacheHalf, states: Sequence[tuple[int, bytes]], mark: Mark) -> None:
        if half.ledgers:
            self._storage.write_half(half)
        self._storage.index.put_ledgers(states)
        self._directories.write_last_mark(mark)
        deleted = journal_files.trim(self._directories.journal, mark, self._backups_max)
        if deleted:
            log.info("deleted %d journal files up to %x", len(deleted), deleted[-1])
