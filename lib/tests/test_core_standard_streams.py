from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OPENED = """
import os
from magnetar.core.standard_streams import fill_standard_streams
fill_standard_streams()
opened = os.open(__file__, os.O_RDONLY)
told = [os.readlink(f"/proc/self/fd/{number}") == os.devnull for number in range(3)]
os.write(int(os.environ["TELL"]), repr((opened > 2, told)).encode())
"""


@pytest.mark.parametrize(
    ("closed", "replaced"),
    [("", []), ("<&-", [0]), (">&-", [1]), ("2>&-", [2]), ("<&- >&-", [0, 1]), ("<&- >&- 2>&-", [0, 1, 2])],
)
def test_what_is_opened_has_no_number_of_a_stream(tmp_path: Path, closed: str, replaced: list[int]) -> None:
    """Libraries would print into it."""
    script = tmp_path / "opens.py"
    script.write_text(OPENED)
    command = f"TELL=9 {sys.executable} {script} 9>&1 </dev/zero >/dev/zero 2>/dev/full {closed}"
    found = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert found.stdout.decode() == repr((True, [number in replaced for number in range(3)]))
