"""Runs work in forked processes, some at a time, each within its limit of time."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from tools.mutants.child import Answer, Work, end_descendants, read_answer, run

POLL_SECONDS: Final = 0.05
NO_ANSWER: Final = "crash"
TOO_LONG: Final = "time limit"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job(Generic[T]):
    """Work for one process."""

    subject: T
    """Whatever the caller wants to know it by."""
    work: Work
    seconds_max: float


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """What came of a job."""

    subject: T
    work: Work
    answer: Answer
    seconds: float
    output: str
    """The end of what the process printed."""


@dataclass(slots=True)
class _Running(Generic[T]):
    job: Job[T]
    pid: int
    folder: Path
    began: float


def run_jobs(
    first: Iterable[Job[T]], at_once: int, then: Callable[[Done[T]], Job[T] | None], idle: Callable[[], None]
) -> Iterator[Done[T]]:
    """Run jobs, and those that follow from them; gives what comes of each as soon as it is known.

    `then` names the job that follows from what came of one. `idle` is called many times a second."""
    waiting = deque(first)
    running: list[_Running[T]] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start(waiting.popleft()))
            time.sleep(POLL_SECONDS)
            idle()
            for one in list(running):
                done = _look(one)
                if done is not None:
                    running.remove(one)
                    following = then(done)
                    if following is not None:
                        waiting.appendleft(following)
                    yield done
    finally:
        for one in running:
            _kill(one)


def _start(job: Job[T]) -> _Running[T]:
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        run(job.work, folder)
    return _Running(job, pid, folder, began)


def _look(one: _Running[T]) -> Done[T] | None:
    """What came of it, if it has ended or its time is over."""
    seconds = time.monotonic() - one.began
    ended, status = os.waitpid(one.pid, os.WNOHANG)
    if not ended and seconds < one.job.seconds_max:
        return None
    if not ended:
        _kill(one, keep_folder=True)
        answer = Answer(TOO_LONG)
    else:
        # What its tests have started must not outlive it.
        _kill_group(one.pid)
        answer = read_answer(one.folder) or Answer(f"{NO_ANSWER} ({os.waitstatus_to_exitcode(status)})")
    output = (one.folder / "output.txt").read_text(errors="replace") if (one.folder / "output.txt").exists() else ""
    shutil.rmtree(one.folder, ignore_errors=True)
    return Done(one.job.subject, one.job.work, answer, seconds, output[-4_000:])


def _kill(one: _Running[T], *, keep_folder: bool = False) -> None:
    end_descendants(one.pid)
    _kill_group(one.pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(one.pid, signal.SIGKILL)
    os.waitpid(one.pid, 0)
    if not keep_folder:
        shutil.rmtree(one.folder, ignore_errors=True)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
