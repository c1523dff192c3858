"""How much memory this process has, and may have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CONTAINER_MEMORY_FILES: Final = (
    ("sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.max"),
    ("sys/fs/cgroup/memory/memory.usage_in_bytes", "sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Of control groups, version 2 and 1: where a container reads what it uses and its limit, in bytes; below `/`."""

UNLIMITED_BYTES_MIN: Final = 1 << 60
"""Version 1 writes "no limit" as a number of pages close to 2^63."""


def resident_bytes() -> int:
    """The memory that the process has of the machine's; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


def container_limit_bytes(root: Path = Path("/")) -> int:
    """What all processes of this container may have together; 0 where there is no limit. `root` is for tests."""
    for _, limit_file in CONTAINER_MEMORY_FILES:
        try:
            limit = (root / limit_file).read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            continue
        if limit.isdigit() and int(limit) < UNLIMITED_BYTES_MIN:
            return int(limit)
    return 0
