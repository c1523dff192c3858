"""What a storm has started ends with it, whatever it was waiting for when it was told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import e2e.cluster.storm
import e2e.damage.__main__
import e2e.floods.run
import e2e.local.kill_loop
import e2e.power.__main__
import e2e.run_clients
import e2e.storage.storm
from e2e import processes

ROOT = Path(__file__).parent.parent.parent
SECONDS_MAX = 30.0
PROGRAM = """
import asyncio, pathlib, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import uvloop
from e2e import processes

how, folder = sys.argv[1], pathlib.Path(sys.argv[2])
waits = f"import time; time.sleep(600)  # {folder}"
leaves = f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {waits!r}], start_new_session=True)"

def start(program):
    return processes.spawn([sys.executable, "-c", program], folder / "log")

def start_again_and_again():
    while True:
        start(f"pass  # {folder}").wait()

if how != "careless":
    processes.leave_nothing_behind()
start(waits)
start(leaves + "; child.wait()")
start(leaves)  # Its child is an orphan.
threading.Thread(target=start_again_and_again, daemon=True).start()
if how == "pool":
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 600).result()
elif how == "uvloop":
    uvloop.run(asyncio.sleep(600))
elif how == "unwoken":  # The main thread sleeps on: the signal is another thread's.
    def take_signal():
        while not (folder / "signal").exists():
            time.sleep(0.01)
        signal.pthread_kill(threading.get_ident(), int((folder / "signal").read_text()))
        time.sleep(600)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(take_signal).result()
elif how == "asyncio":
    asyncio.run(asyncio.sleep(600))
else:
    time.sleep(600)
"""
SLEEPS = b"\0import time; time.sleep(600)"
SLEEPERS = 3
"""A child, a child of a child, an orphan; beside them others start all the while."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["pool", "uvloop", "asyncio", "sleep"])
def test_what_was_started_ends_with_the_program(tmp_path: Path, how: str, number: signal.Signals) -> None:
    with _running(tmp_path, how) as program:
        program.send_signal(number)
        assert program.wait(SECONDS_MAX) == -number
        _until(lambda: not _living(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_does_not_wake_the_main_thread_ends_it_too(tmp_path: Path, number: signal.Signals) -> None:
    with _running(tmp_path, "unwoken") as program:
        (tmp_path / "told").write_text(str(number.value))
        (tmp_path / "told").rename(tmp_path / "signal")
        assert program.wait(SECONDS_MAX) == -number
        _until(lambda: not _living(tmp_path))


def test_without_it_they_are_left_behind(tmp_path: Path) -> None:
    """So that the test above proves something."""
    with _running(tmp_path, "careless") as program:
        program.terminate()
        assert program.wait(SECONDS_MAX) == -signal.SIGTERM
        assert len(_living(tmp_path, SLEEPS)) == SLEEPERS


@contextmanager
def _running(folder: Path, how: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", PROGRAM, how, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as program:
        try:
            _until(lambda: len(_living(folder, SLEEPS)) == SLEEPERS)
            yield program
        finally:
            program.kill()
            for pid in _living(folder):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _living(folder: Path, text: bytes = b"") -> list[int]:
    """All processes that are told of the folder, and of the text."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            command = Path(f"/proc/{name}/cmdline").read_bytes()
            if os.fsencode(folder) in command and text in command and processes.alive(int(name)):
                found.append(int(name))
    return found


def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class _Asked(Exception):
    """Instead of what a program would start."""


@pytest.mark.parametrize(
    "main",
    [
        e2e.cluster.storm.main,
        e2e.damage.__main__.main,
        e2e.floods.run.main,
        e2e.local.kill_loop.main,
        e2e.power.__main__.main,
        e2e.run_clients.main,
        e2e.storage.storm.main,
    ],
    ids=lambda main: main.__module__,
)
def test_programs_ask_for_it_before_they_start_anything(
    main: Callable[[], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def asked() -> None:
        raise _Asked

    def started(*_: object) -> None:
        raise AssertionError("something was started before")

    monkeypatch.setattr(processes, "leave_nothing_behind", asked)
    monkeypatch.setattr(processes, "spawn", started)
    monkeypatch.setattr(sys, "argv", ["program"])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(_Asked):
        main()


def test_a_core_that_works_counts_as_busy() -> None:
    """Other tests may have both cores: then they are busy, too."""
    working = subprocess.Popen(["sha1sum", "/dev/zero"], stdout=subprocess.DEVNULL)
    try:
        assert processes.busy_cores(0.5) > 0.8
    finally:
        working.kill()
        working.wait()


def test_what_waits_counts_as_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns of /proc/stat: user, nice, system, idle, waiting for disks, interrupts (two), stolen, of guests."""
    lines = iter(["cpu  100 10 50 1000 500 1 2 3 0 0\ncpu0 1\n", "cpu  150 20 90 9000 900 2 4 6 50 0\ncpu0 1\n"])
    monkeypatch.setattr(Path, "read_text", lambda _: next(lines))
    assert processes.busy_cores(0.01) == pytest.approx((206 + 66 - 166) / 0.01 / processes.CLOCK_TICKS_PER_SECOND)
