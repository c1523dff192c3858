"""Start, watch and end the processes a server is made of; read what they cost from /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
TOLD_TO_STOP = (signal.SIGINT, signal.SIGTERM)
PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): what loses its parent becomes our child."""
TELL_AGAIN_SECONDS = 0.1
END_SECONDS_MAX = 10.0
"""For descendants to be gone after SIGKILL; a disk that hangs may hold one for longer."""

_starting = threading.RLock()
"""Held while a process starts, and for good by whoever ends this one: what is started then would be left behind."""


class NotReady(Exception):
    """The server died while starting, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a process tree. PSS counts a shared page once; RSS counts it for everyone who maps it."""

    pss_bytes: int
    rss_bytes: int


def spawn(command: list[str], log: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own, its output appended to `log`.

    Ctrl-C does not reach it there: a program that starts some calls `leave_nothing_behind` first."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with _starting, log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )


def tree(pid: int) -> list[int]:
    """The process and every living descendant of it."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                with contextlib.suppress(OSError):
                    children = Path(f"/proc/{parent}/task/{task}/children").read_text()
                    found.extend(int(child) for child in children.split())
    return found


def leave_nothing_behind(signals: Iterable[signal.Signals] = TOLD_TO_STOP, *, adopting: bool = True) -> None:
    """From here on these signals end this process with all that it has started, whatever its threads wait for.

    Descendants get SIGKILL; with `adopting` those too whose parents have gone, which become children of this process.
    Files stay, as after a failure. The exit code is that of the signal. To be called by the main thread of a program;
    a child made by a bare fork ends alone. Without `adopting` a program may have other handlers for a while, as tests
    have, and nobody is told twice."""
    own_pid = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() == own_pid:
            # Never released: the process ends here. The thread that holds it, if any, is about to leave it.
            _starting.acquire(timeout=END_SECONDS_MAX)
            _kill_descendants()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    told = tuple(signals)
    for number in told:
        signal.signal(number, stop)
    if adopting:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _tell_main_thread_again(told)


def _tell_main_thread_again(told: tuple[signal.Signals, ...]) -> None:
    """Of the first of these signals that comes, until this process has ended.

    Python only notes a signal; its handler waits until the main thread runs Python code. One that comes just before
    that thread sleeps, for a lock or in epoll, does not wake it. An event loop with handlers of its own sees to it
    itself."""
    notes, noted = os.pipe()
    os.set_blocking(noted, False)
    signal.set_wakeup_fd(noted, warn_on_full_buffer=False)

    def tell_again() -> None:
        while (number := os.read(notes, 1)[0]) not in told:
            continue
        while True:
            time.sleep(TELL_AGAIN_SECONDS)
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    threading.Thread(target=tell_again, name="signals", daemon=True).start()


def _kill_descendants() -> None:
    """Until none lives: one that is killed may have started another in between."""
    deadline = time.monotonic() + END_SECONDS_MAX
    while time.monotonic() < deadline:
        living = [pid for pid in tree(os.getpid())[1:] if alive(pid)]
        if not living:
            return
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether there is such a process that has not ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def cpu_seconds(pids: list[int]) -> float:
    """User and system time the processes have used so far (their ended, waited-for children included)."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / CLOCK_TICKS_PER_SECOND


QUIET_SECONDS: Final = 3.0
"""How long a machine is looked at before something is measured on it."""


def busy_cores(seconds: float) -> float:
    """How many of the machine's cores did something in the next so many seconds, whoever's work it was."""

    def ticks() -> int:
        # The first line is of all cores: user, nice, system, idle, waiting for disks, interrupts (two), stolen.
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields) - fields[3] - fields[4]

    before = ticks()
    time.sleep(seconds)
    return (ticks() - before) / CLOCK_TICKS_PER_SECOND / seconds


def memory(pids: list[int]) -> Memory:
    """Sums smaps_rollup over the processes."""
    totals = {"Pss": 0, "Rss": 0}
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in totals:
                    totals[name] += int(rest.split()[0]) * 1024
    return Memory(totals["Pss"], totals["Rss"])


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the process and its descendants, and reaps it."""
    for pid in reversed(tree(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def end(process: subprocess.Popen[bytes], grace_s: float = 20.0) -> None:
    """SIGTERM, then SIGKILL after the grace period."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        kill_tree(process)


def wait_until_ready(process: subprocess.Popen[bytes], port: int, http_url: str, timeout_s: float) -> None:
    """Returns once the binary port accepts a connection and the URL answers 200.

    Raises NotReady when the process ends first or the time is up.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotReady(f"pid {process.pid} ended with {process.returncode} while starting")
        if accepts(port) and answers(http_url):
            return
        time.sleep(0.05)
    raise NotReady(f"port {port} and {http_url} not ready in {timeout_s:.0f} s")


def accepts(port: int) -> bool:
    """Whether something listens there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def answers(url: str) -> bool:
    """Whether the URL answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            ready: bool = response.status == 200
            return ready
    except (urllib.error.URLError, OSError, ValueError):
        return False


def wait_for(condition: Any, timeout_s: float, problem: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{problem} after {timeout_s:.0f} s"
        time.sleep(0.02)
