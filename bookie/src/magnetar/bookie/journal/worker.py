"""Who runs the journal's writing: a thread of its own in production, virtual time in a simulator."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, Protocol

JOIN_SECONDS: Final = 1.0
"""How long one look at an ending thread may take; bounds how long a pool thread is taken from others."""


class JournalWorker(Protocol):
    """Calls the journal's `run_group` again and again, one call at a time."""

    needs_waking: bool
    """Whether `wake` has to be called for every append; not so when a thread blocks inside `run_group`."""

    def start(self, run_group: Callable[[bool], bool]) -> None:
        """Begin. `run_group(True)` blocks until something was appended and writes one group; `run_group(False)` writes
        all that is there and never waits for more. They answer False once the journal is closed and all is written."""
        ...

    def wake(self) -> None:
        """Something was appended, or the journal was closed: `run_group` has work. On the event loop, never waits."""
        ...

    async def join(self) -> None:
        """Wait until `run_group` has answered False."""
        ...


class ThreadJournalWorker:
    """A thread that blocks inside `run_group`, so that an append wakes it in one step."""

    def __init__(self) -> None:
        self.needs_waking = False
        self._thread: threading.Thread | None = None

    def start(self, run_group: Callable[[bool], bool]) -> None:
        """Begin. `run_group(True)` blocks until something was appended and writes one group; `run_group(False)` writes
        all that is there and never waits for more. They answer False once the journal is closed and all is written."""

        def run() -> None:
            while run_group(True):
                pass

        self._thread = threading.Thread(target=run, name="journal", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something was appended, or the journal was closed: `run_group` has work. On the event loop, never waits."""

    async def join(self) -> None:
        """Wait until `run_group` has answered False."""
        loop = asyncio.get_running_loop()
        thread = self._thread
        while thread is not None and thread.is_alive():
            await loop.run_in_executor(None, thread.join, JOIN_SECONDS)


async def ended(worker: JournalWorker) -> None:
    """Wait until a closed journal's worker has written all, and has told of it."""
    await worker.join()
    # The last group's completion is in the loop's queue behind us or before us; one turn settles it.
    await asyncio.sleep(0)
