"""How many processes a supervisor runs: each may have a share of what their container may have."""

from __future__ import annotations

import os
from typing import Final

from magnetar.core.errors import Misuse
from magnetar.core.process_memory import container_limit_bytes

GROUP_SIZE_VARIABLE: Final = "MAGNETAR_PROCESSES"
"""The environment variable in which a supervisor tells its processes how many they are."""


def group_size_environment(processes: int) -> dict[str, str]:
    """What a process has in its environment to be told this."""
    return {GROUP_SIZE_VARIABLE: str(processes)}


def memory_share_bytes() -> int:
    """What this process may have of its container's memory; 0 where there is no limit."""
    told = os.environ.get(GROUP_SIZE_VARIABLE, "1")
    if not told.isdigit() or not int(told):
        raise Misuse(f"{GROUP_SIZE_VARIABLE} is {told!r}: it is set by a supervisor for its own processes alone")
    return container_limit_bytes() // int(told)
