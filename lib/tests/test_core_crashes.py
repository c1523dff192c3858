"""A crash of the interpreter is kept, told once at the next start, and counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from magnetar.core.crashes import COUNT_FILE, KEPT_MAX, KEPT_NAME, TRACE_FILE, Crashes

CRASH = """
import faulthandler, logging, sys
from pathlib import Path
from magnetar.core.crashes import CRASHES
logging.basicConfig()
CRASHES.record_in(Path(sys.argv[1]))
print(CRASHES.count)
if sys.argv[2] == "crash":
    faulthandler._sigsegv()
"""


def run(directory: Path, how: str) -> tuple[int, int, str]:
    """(Exit code, crashes counted, what was logged)."""
    done = subprocess.run(
        [sys.executable, "-u", "-c", CRASH, str(directory), how], check=False, capture_output=True, text=True
    )
    return done.returncode, int(done.stdout), done.stderr


@pytest.mark.slow
def test_a_crash_is_told_once_at_the_next_start_and_counted(tmp_path: Path) -> None:
    assert run(tmp_path, "crash") == (-11, 0, "")
    code, count, told = run(tmp_path, "crash")
    assert (code, count) == (-11, 1)
    assert "crashed, number 1 here" in told
    assert "Segmentation fault" in told
    code, count, told = run(tmp_path, "end")
    assert (code, count) == (0, 2)
    assert "number 2" in told
    assert run(tmp_path, "end") == (0, 2, "")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    Crashes().record_in(tmp_path / "file")
    assert "crashes are not recorded" in caplog.text


def test_a_count_that_is_none_begins_anew_and_old_traces_go(tmp_path: Path) -> None:
    (tmp_path / COUNT_FILE).write_text("many")
    for number in range(KEPT_MAX):
        (tmp_path / KEPT_NAME.format(number=number - KEPT_MAX + 1)).write_text("old")
    (tmp_path / TRACE_FILE).write_text("Fatal Python error")
    code, count, told = run(tmp_path, "end")
    assert (code, count) == (0, 1)
    assert "Fatal Python error" in told
    assert len(list(tmp_path.glob("crash-*.trace"))) == KEPT_MAX
