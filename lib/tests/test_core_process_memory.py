"""What a process and its container may have."""

from __future__ import annotations

from pathlib import Path

import pytest
from magnetar.core.process_memory import container_limit_bytes, resident_bytes

VERSION_TWO = "sys/fs/cgroup/memory.max"
VERSION_ONE = "sys/fs/cgroup/memory/memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("file", "text", "limit_bytes"),
    [
        (VERSION_TWO, "1073741824\n", 1 << 30),
        (VERSION_TWO, "max\n", 0),
        (VERSION_ONE, "536870912\n", 1 << 29),
        (VERSION_ONE, "9223372036854771712\n", 0),
        (VERSION_ONE, "", 0),
        ("elsewhere", "5", 0),
    ],
)
def test_the_limit_of_a_container(tmp_path: Path, file: str, text: str, limit_bytes: int) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert container_limit_bytes(tmp_path) == limit_bytes


def test_this_process_has_some_memory() -> None:
    assert resident_bytes() > 1 << 20
