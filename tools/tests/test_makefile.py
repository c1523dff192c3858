"""`make help`: what people read first, and what scripts may cut to pieces."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
COLUMNS_MAX: Final = 120
ESCAPE: Final = "\x1b"

LONG: Final = (
    *("setup", "compile", "lint", "test", "test-compiled", "sim", "sim-shadows", "histories"),
    *("sim-operator", "mutants"),
    *("interchange", "storm", "damage", "power", "faults", "floods", "admin-cli", "e2e", "e2e-clients", "e2e-spark"),
    *("bench", "bench-bookies", "bench-cluster", "bench-spark", "scale", "images", "kube-up", "e2e-kubernetes"),
)
"""Targets that take more than a minute."""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def printed() -> str:
    """What goes into a pipe."""
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    command = ["make", "--no-print-directory", "help"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def shown(**environment: str) -> str:
    """What a terminal gets."""
    ours, theirs = pty.openpty()
    given = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(["make", "help"], cwd=ROOT, env={**given, "TERM": "xterm", **environment}, stdout=theirs):
        os.close(theirs)
        text = b""
        while True:
            try:
                read = os.read(ours, 65_536)
            except OSError:  # So Linux says that nobody holds the other side any more.
                break
            if not read:
                break
            text += read
    os.close(ours)
    return text.decode()


def test_only_a_terminal_gets_colours() -> None:
    assert ESCAPE not in printed()
    assert f"{ESCAPE}[36mrun" in shown()
    assert ESCAPE not in shown(NO_COLOR="1")
    assert ESCAPE not in shown(TERM="dumb")


def test_lines_fit_and_say_how_long_it_takes() -> None:
    lines = dict(line.split(maxsplit=1) for line in printed().splitlines())
    assert {"run", "test", *LONG} <= lines.keys()
    assert all(len(line) <= COLUMNS_MAX for line in printed().splitlines())
    assert [name for name in LONG if not re.search(r"\b(minutes?|hours?)\b", lines[name])] == []


@pytest.mark.parametrize("target", ["test", "sim", "interchange", "faults", "floods", "histories"])
def test_what_runs_the_sources_removes_compiled_modules_of_older_ones_first(target: str) -> None:
    command = ["make", "--no-print-directory", "-n", target]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    commands = [line for line in lines if " python " in line or " pytest " in line]
    assert "tools/compile.py --remove-stale" in commands[0]
    assert len(commands) > 1
