"""The address under which others reach this machine, when no setting says it."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from typing import Final

from magnetar.core.errors import SettingError

SIOCGIFADDR: Final = 0x8915
"""Linux: the IPv4 address of an interface; see netdevice(7)."""


def interface_address(interface: str) -> str:
    """The IPv4 address of a network interface. `SettingError` when it has none."""
    request = struct.pack("16s240x", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer: bytes = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError as error:
            raise SettingError(f"listeningInterface {interface!r} has no address: {error.strerror}") from None
    return socket.inet_ntoa(answer[20:24])


def host_address() -> str:
    """The address that this machine's own name stands for. `SettingError` when it stands for none."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise SettingError(
            f"this machine's name {socket.gethostname()!r} has no address ({error}); set advertisedAddress"
        ) from None


def host_name() -> str:
    """This machine's full name."""
    return socket.getfqdn()


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the address; a name that is no address counts as reachable."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
