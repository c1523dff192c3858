"""One process under a supervisor: started, watched, and started again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.core.exit_codes import EXIT_FAILED
from magnetar.core.transitions import Transitions
from magnetar.process.supervision.end_with_supervisor import SUPERVISOR_VARIABLE
from magnetar.process.supervision.group_size import group_size_environment
from magnetar.process.supervision.restarts import Restarts
from magnetar.process.supervision.told_settings import settings_environment

logger: Final = logging.getLogger(__name__)

READY: Final = re.compile(r"^\S+ ready: ")
"""How the line begins by which a process says that it serves."""
LINE_BYTES_MAX: Final = 64 * 1024
"""Of what a process says on standard output; a ready line has a few hundred."""


class ChildState(enum.Enum):
    """Where a process stands."""

    DOWN = "down"
    STARTING = "starting"
    SERVING = "serving"
    STOPPED = "stopped"


TRANSITIONS: Final = Transitions(
    "a process under a supervisor",
    {
        ChildState.DOWN: {ChildState.DOWN, ChildState.STARTING, ChildState.STOPPED},
        ChildState.STARTING: {ChildState.SERVING, ChildState.DOWN, ChildState.STOPPED},
        ChildState.SERVING: {ChildState.SERVING, ChildState.DOWN, ChildState.STOPPED},
        ChildState.STOPPED: {ChildState.STOPPED},
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart:
    """How a process is started."""

    command: tuple[str, ...]
    settings: tuple[str, ...] = ()
    """Each as `name=value`; the last of a name counts. They are not on the process's command line."""

    def with_settings(self, more: Mapping[str, str]) -> ProcessStart:
        """A start with further settings, which win over those of this one."""
        return replace(self, settings=(*self.settings, *(f"{name}={value}" for name, value in more.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """One process, and where the supervisor finds it."""

    number: int
    """From 1 on."""
    start: ProcessStart
    control_port: int | None
    """Of this machine's loopback address; None: there is no control port."""
    metrics_url: str
    """Empty: it tells none."""


class ProcessFailed(MagnetarError):
    """A process ended before it served for the first time: what it lacks will hardly come by itself."""

    def __init__(self, number: int, code: int) -> None:
        super().__init__(f"process {number} ended with {code} before it served; its own lines say why")
        self.code = code if code > 0 else EXIT_FAILED


class Child:
    """Keeps one process running until it is told to stop it."""

    def __init__(self, plan: ProcessPlan, *, must_start: bool = True, group_size: int = 1) -> None:
        """With `must_start` one that ends before it served is not started again. `group_size`: how many processes there
        are."""
        self.plan = plan
        self._group_size = group_size
        self._must_start = must_start
        self.restarts = Restarts()
        self.state = ChildState.DOWN
        self.first_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it has served once; `ProcessFailed` when it ended before."""
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start it, and again whenever it has ended."""
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name=f"process-{self.plan.number}")

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal; from now on it is not started again."""
        self._stopping.set()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self) -> None:
        """Returns when it has ended after `tell`."""
        if self._keeping is not None:
            await asyncio.wait((self._keeping,))

    async def _keep(self) -> None:
        try:
            while not self._stopping.is_set():
                served_seconds, code = await self._attempt()
                if self._stopping.is_set():
                    return
                if not self.first_ready.done():
                    self.first_ready.set_exception(ProcessFailed(self.plan.number, code))
                    if self._must_start:
                        return
                pause_seconds = self.restarts.ended(served_seconds)
                logger.error(
                    "process %d ended with %d after %.0f s; it is started again in %.0f s, for the %d. time",
                    *(self.plan.number, code, served_seconds, pause_seconds, self.restarts.count),
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause_seconds)
        except Exception as error:
            logger.exception("process %d is not looked after any more", self.plan.number)
            if not self.first_ready.done():
                self.first_ready.set_exception(error)
        finally:
            self._go(ChildState.STOPPED)

    async def _attempt(self) -> tuple[float, int]:
        """Run it once, and answer as `_run` also where it cannot be started: for want of memory or files, or while its
        program is being replaced."""
        try:
            return await self._run()
        except OSError as error:
            logger.error("process %d cannot be started: %s", self.plan.number, error)  # noqa: TRY400  (no trace needed)
            self._process = None
            self._go(ChildState.DOWN)
            return 0.0, EXIT_FAILED

    async def _run(self) -> tuple[float, int]:
        """From start to end: how long it served, in seconds, and its exit code."""
        self._go(ChildState.STARTING)
        self._process = process = await asyncio.create_subprocess_exec(
            *self.plan.start.command,
            stdin=DEVNULL,
            stdout=PIPE,
            limit=LINE_BYTES_MAX,
            env={
                **os.environ,
                SUPERVISOR_VARIABLE: str(os.getpid()),
                **group_size_environment(self._group_size),
                **settings_environment(self.plan.start.settings),
            },
            # Ctrl-C reaches the supervisor alone: a second signal would end a process at once.
            start_new_session=True,
        )
        if self._stopping.is_set():
            # It was told while this process was being made.
            process.send_signal(signal.SIGTERM)
        loop = asyncio.get_running_loop()
        since: float | None = None

        def serves() -> None:
            nonlocal since
            since = loop.time()
            self._go(ChildState.SERVING)
            if not self.first_ready.done():
                self.first_ready.set_result(None)

        assert process.stdout is not None
        await _read_lines(process.stdout, lambda line: self._said(line, serves))
        code = await process.wait()
        self._process = None
        self._go(ChildState.DOWN)
        return (0.0 if since is None else loop.time() - since), code

    def _said(self, line: str, serves: Callable[[], None]) -> None:
        logger.info("process %d: %s", self.plan.number, line)
        if READY.match(line):
            serves()

    def _go(self, state: ChildState) -> None:
        self.state = TRANSITIONS.step(self.state, state)


async def _read_lines(stream: asyncio.StreamReader, said: Callable[[str], None]) -> None:
    """Each line of a process's standard output, until it closes that; one that is too long is passed over."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            continue
        if not line:
            return
        said(line.decode(errors="replace").rstrip())
