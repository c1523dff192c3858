"""Ports and addresses of processes that stand on one machine. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.core.errors import SettingError
from magnetar.core.limits import PORT_MAX
from magnetar.core.text import host_of_url

STEP: Final = 100
"""Between the ports of two processes: Pulsar's usual ports and their neighbours with TLS do not meet."""

LOOPBACK: Final = "127.0.0.1"
EVERY_ADDRESS: Final = ("0.0.0.0", "::", "")  # noqa: S104  (compared with)

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


def own_control(
    control_port: int | None, number: int, free_port: Callable[[], int]
) -> tuple[int | None, dict[str, str]]:
    """The control port of a process, and the settings that say so, by their names; nothing where there is none.

    The supervisor's port is the one that others ask; it asks the processes' own, at this machine's loopback address.
    `SettingError`."""
    if control_port is None:
        return None, {}
    port = own_port(control_port, number, free_port)
    told = {"controlPort": str(port), "controlHost": LOOPBACK}
    return port, told | dict.fromkeys(
        ("controlTlsCertificateFile", "controlTlsKeyFile", "controlTlsClientAuthorityFile"), ""
    )


def reached(bind_address: str) -> str:
    """Where this machine reaches what listens at an address."""
    if bind_address in EVERY_ADDRESS:
        return LOOPBACK
    return host_of_url(bind_address)
