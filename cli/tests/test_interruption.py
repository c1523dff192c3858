"""Ctrl-C while a command works."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.core.exit_codes import EXIT_INTERRUPTED

SCRIPT = """
import asyncio, signal, sys, time, typer
from magnetar.cli.commands.running import complete
signal.signal(signal.SIGINT, signal.SIG_DFL)  # As `main` does.

async def work():
    try:
        print("begun", flush=True)
        await asyncio.sleep(3600)
    finally:
        print("taking back", flush=True)
        await asyncio.sleep(float(sys.argv[1]))
        print("taken back", flush=True)

async def stuck():
    print("begun", flush=True)
    while True:
        time.sleep(0.01)

try:
    complete(stuck() if sys.argv[1] == "stuck" else work())
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


@contextmanager
def working(taking_back_seconds: float | str) -> Iterator[subprocess.Popen[str]]:
    """A command that has begun something, and takes so long to take it back; or one that is "stuck"."""
    command = [sys.executable, "-c", SCRIPT, str(taking_back_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


def test_what_was_begun_is_taken_back() -> None:
    with working(0) as process:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (output, errors) == ("taking back\ntaken back\n", "")
    assert process.returncode == EXIT_INTERRUPTED


def test_a_second_time_ends_it_at_once() -> None:
    with working(3600) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "taking back\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT


def test_a_second_time_ends_also_what_never_comes_back_to_its_loop() -> None:
    """Such as a command whose output nobody takes."""
    with working("stuck") as process:
        for _ in range(600):
            process.send_signal(signal.SIGINT)  # Two that come at once are one.
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            break
        assert process.returncode == -signal.SIGINT
