"""How much memory this process has."""

from __future__ import annotations

import os


def resident_bytes() -> int:
    """The memory that the process has of the machine's; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0
