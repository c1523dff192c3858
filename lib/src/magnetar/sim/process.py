"""Processes: everything that runs on behalf of one simulated program, so that all of it can end at one moment.

A process is found through a context variable, which tasks and callbacks inherit. The loop runs nothing of a process
that is dead: no task goes on, no `finally` is reached, as after a SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, Final

_current: Final[contextvars.ContextVar[Process | None]] = contextvars.ContextVar("simulated_process", default=None)

TASKS_BEFORE_A_LOOK: Final = 256
"""Finished tasks are let go of when there are so many more than at the last look."""


class SimulatedCrash(BaseException):
    """The process has died inside a call, such as a disk operation. Not to be caught by what runs in it."""


class Process:
    """One run of one program on one host."""

    def __init__(self, name: str, host: str) -> None:
        """`name` tells this run from others, `host` is where it is reached."""
        self.name = name
        self.host = host
        self.alive = True
        self.paused = False
        """Stopped as by SIGSTOP: what should run piles up until the loop lets it go on."""
        self.spent_seconds = 0.0
        """Time that blocking calls have cost since it was last taken; who runs such calls takes it."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._look_at = TASKS_BEFORE_A_LOOK
        self.context = contextvars.copy_context()
        """Runs on behalf of this process."""
        self.context.run(_current.set, self)

    def start(self, work: Coroutine[Any, Any, Any], name: str = "main") -> asyncio.Task[Any]:
        """Run a coroutine as part of this process."""
        loop = asyncio.get_running_loop()
        return loop.create_task(work, name=f"{self.name} {name}", context=self.context.copy())

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keep a task that runs in this process: while it lives nobody else may be holding it, and once it is dead
        nothing of its tasks must be torn down before the run is over."""
        self._tasks.append(task)
        if self.alive and len(self._tasks) >= self._look_at:
            self._tasks = [kept for kept in self._tasks if not kept.done()]
            self._look_at = len(self._tasks) + TASKS_BEFORE_A_LOOK

    def unfinished(self) -> list[asyncio.Task[Any]]:
        """Tasks that have not ended, and never will if the process is dead."""
        return [task for task in self._tasks if not task.done()]

    def take_spent_seconds(self) -> float:
        """The time that blocking calls have cost, counted from zero again."""
        spent, self.spent_seconds = self.spent_seconds, 0.0
        return spent


def current_process() -> Process | None:
    """The process on whose behalf the caller runs; None for the scenario itself."""
    return _current.get()


def process_of(context: contextvars.Context) -> Process | None:
    """The process that a context belongs to."""
    return context.get(_current)
