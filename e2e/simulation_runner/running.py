"""One seed: a scenario on a simulated loop, with a mistake in the code or none, and what came of it."""

from __future__ import annotations

import contextlib
import enum
import logging
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from magnetar.core.errors import MagnetarError, Misuse
from magnetar.core.transitions import Transitions
from magnetar.sim.loop import Deadlock, EndlessRun, SimulatedLoop
from magnetar.sim.trace import Trace

from e2e.collector import collector_off


class Stuck(Exception):
    """Something does not happen although nothing is wrong any more: the run is over."""


@dataclass(slots=True)
class Verdict:
    """What came of one seed."""

    seed: int
    violations: list[str]
    trace_digest: str
    trace_lines: list[str] = field(repr=False)
    """Empty unless the trace was to be kept."""
    counts: dict[str, int] = field(default_factory=dict)
    """How much happened, in words that follow a number."""
    steps: int = 0
    virtual_seconds: float = 0.0
    real_seconds: float = 0.0


class Run(Protocol):
    """A simulator's run of one seed."""

    async def scenario(self) -> None:
        """From the beginning to the last look. `Stuck`."""
        ...

    def violations(self) -> list[str]:
        """The promises that were broken."""
        ...

    def counts(self) -> dict[str, int]:
        """See `Verdict.counts`."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a run; beyond them it does not end."""

    steps_max: int
    virtual_seconds_max: float
    log_level: int = logging.INFO
    """What of the log is kept with a trace."""


def run_seed(
    seed: int,
    make: Callable[[SimulatedLoop], Run],
    bounds: Bounds,
    *,
    planted: AbstractContextManager[None],
    keep_trace: bool = False,
) -> Verdict:
    """The same verdict and the same trace, whenever and wherever it runs. `planted` has a mistake in the code."""
    with collector_off():
        return _run_seed(seed, make, bounds, planted, keep_trace)


def _run_seed(
    seed: int,
    make: Callable[[SimulatedLoop], Run],
    bounds: Bounds,
    planted: AbstractContextManager[None],
    keep_trace: bool,
) -> Verdict:
    trace = Trace(keep=keep_trace)
    loop = SimulatedLoop(
        random.Random(f"{seed} loop"), trace, steps_max=bounds.steps_max, seconds_max=bounds.virtual_seconds_max
    )
    run = make(loop)
    began = time.perf_counter()
    ends: list[str] = []
    with planted, LogToTrace(trace, loop.problems, bounds.log_level), illegal_changes(loop.problems):
        try:
            loop.run(run.scenario())
        except (Deadlock, EndlessRun, Stuck) as error:
            ends.append(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001  (of the scenario itself: the seed must be named)
            ends.append(f"the scenario failed with {error!r}")
            trace.remark("scenario", traceback.format_exc())
        finally:
            # Also when the run is broken off from outside: what has not begun yet is to be forgotten, not missed.
            violations = [*run.violations(), *ends, *(f"unexpected: {problem}" for problem in loop.problems)]
            digest = trace.digest
            loop.bury()
    return Verdict(
        seed=seed,
        violations=violations,
        trace_digest=digest,
        trace_lines=trace.lines,
        counts=run.counts(),
        steps=loop.steps,
        virtual_seconds=loop.time(),
        real_seconds=time.perf_counter() - began,
    )


@contextlib.contextmanager
def illegal_changes(problems: list[str]) -> Iterator[None]:
    """A state that changes as its table forbids is a problem, also where the error is taken for the world's and
    answered or tried again."""
    step = Transitions.step

    def watched(self: Transitions[Any], before: enum.Enum, after: enum.Enum) -> Any:
        try:
            return step(self, before, after)
        except Misuse as error:
            problems.append(str(error))
            raise

    Transitions.step = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        Transitions.step = step  # type: ignore[method-assign]


class LogToTrace(logging.Handler):
    """Log lines become remarks; an exception that production code has caught and could only log is a problem. So is a
    mistake of our own, whoever it is told to."""

    def __init__(self, trace: Trace, problems: list[str], level: int = logging.INFO) -> None:
        super().__init__(level if trace.kept else logging.ERROR)
        self._trace = trace
        self._problems = problems
        self._root = logging.getLogger("magnetar")
        self._before = (self._root.level, self._root.propagate)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        self._trace.remark(record.name, record.getMessage())
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Misuse) or not isinstance(error, (MagnetarError, OSError, type(None))):
            self._problems.append(f"{record.getMessage()}: {error!r}")
            for line in traceback.format_exception(error):
                self._trace.remark(record.name, line.rstrip())

    def __enter__(self) -> None:
        self._root.addHandler(self)
        self._root.setLevel(self.level)
        self._root.propagate = False

    def __exit__(self, *_: object) -> None:
        self._root.removeHandler(self)
        self._root.setLevel(self._before[0])
        self._root.propagate = self._before[1]
