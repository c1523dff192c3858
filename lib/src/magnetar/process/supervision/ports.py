"""Ports of processes that stand on one machine. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.core.errors import SettingError
from magnetar.core.limits import PORT_MAX

STEP: Final = 100
"""Between the ports of two processes: Pulsar's usual ports and their neighbours with TLS do not meet."""

PROCESSES_MAX: Final = 64
"""More cores than one machine gives a broker; their ports stay below those that Linux gives to connections."""


def own_port(port: int, number: int, free_port: Callable[[], int]) -> int:
    """The port of a process (from 1 on) for one that all have, or that the supervisor has; 0 stays any free one.
    `SettingError` for what is no port any more."""
    if port == 0:
        return free_port()
    found = port + STEP * number
    if found > PORT_MAX:
        raise SettingError(f"process {number} would have port {found}: set a port below {port}, or fewer processes")
    return found
