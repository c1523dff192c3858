"""Which hosts, ports and addresses a client may name as its broker: without this a proxy would open any door behind it.

Pulsar: BrokerProxyValidator. Addresses are checked after the name was resolved, and the connection is made to the
address that was checked.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from magnetar.core.errors import PeerError, SettingError
from magnetar.proxy.settings import TargetSettings

ANY: Final = "*"

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
AddressCheck: TypeAlias = Callable[[Address], bool]

PORT_MAX: Final = 0xFFFF

_PORTS: Final = re.compile(r"([0-9]{1,5})(?:\s*-\s*([0-9]{1,5}))?")
_SEGMENT: Final = re.compile(r"\*|(\d{1,3})(?:-(\d{1,3}))?")


class TargetDenied(PeerError):
    """A client named a broker that it may not be connected with."""


class Targets:
    """The rules. `SettingError` for those that cannot be read."""

    def __init__(self, settings: TargetSettings) -> None:
        self._host_names = None if ANY in settings.host_names else [_host_pattern(name) for name in settings.host_names]
        self._addresses = None if ANY in settings.addresses else [_address_check(text) for text in settings.addresses]
        self._ports = None if ANY in settings.ports else [_ports(text) for text in settings.ports]

    def check_name(self, host_and_port: str) -> tuple[str, int]:
        """Host (without brackets) and port of what a client named. `TargetDenied`."""
        host, port = split_host_and_port(host_and_port)
        if self._ports is not None and not any(port in allowed for allowed in self._ports):
            raise TargetDenied(f"Given port in '{host_and_port}' isn't allowed.")
        if self._host_names is not None and not any(pattern.fullmatch(host) for pattern in self._host_names):
            raise TargetDenied(f"Given host in '{host_and_port}' isn't allowed.")
        return host, port

    def allowed(self, host_and_port: str, addresses: Sequence[str]) -> list[str]:
        """The addresses of a name, in their order, that may be connected with. `TargetDenied` when there is none."""
        checks = self._addresses
        if checks is None:
            return list(addresses)
        found = [address for address in addresses if any(check(ipaddress.ip_address(address)) for check in checks)]
        if not found:
            raise TargetDenied(f"The IP address of the given host and port '{host_and_port}' isn't allowed.")
        return found


def split_host_and_port(text: str) -> tuple[str, int]:
    """`host:port`, with or without brackets around an IPv6 address. `TargetDenied`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if (
        not colon
        or not host
        or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= PORT_MAX)
    ):
        raise TargetDenied(f"'{text}' is no host and port")
    return host, int(port)


def _host_pattern(wildcards: str) -> re.Pattern[str]:
    # Only the star is special: fnmatch would also take brackets and question marks.
    literal = re.sub(r"([\[?])", r"[\1]", wildcards)
    return re.compile(fnmatch.translate(literal), re.IGNORECASE)


def _ports(text: str) -> range:
    match = _PORTS.fullmatch(text)
    if match is None:
        raise SettingError(f"brokerProxyAllowedTargetPorts: {text!r} is no port and no range (6650-6659)")
    low = int(match[1])
    high = int(match[2] or low)
    if not low <= high <= PORT_MAX:
        raise SettingError(f"brokerProxyAllowedTargetPorts: {text!r} has no ports, or such above {PORT_MAX}")
    return range(low, high + 1)


def _address_check(text: str) -> AddressCheck:
    segments = text.split(".")
    if len(segments) == 4 and ("*" in text or "-" in text):
        return _segments_check(text, segments)
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise SettingError(
            f"brokerProxyAllowedIPAddresses: {text!r} is no address, network (10.0.0.0/8) or range (10.0.1-3.*)"
        ) from None
    return lambda address: address in network


def _segments_check(text: str, segments: list[str]) -> AddressCheck:
    bounds: list[tuple[int, int]] = []
    for segment in segments:
        match = _SEGMENT.fullmatch(segment)
        if match is None:
            raise SettingError(f"brokerProxyAllowedIPAddresses: {segment!r} in {text!r} is no range")
        low = int(match[1] or 0)
        high = 255 if segment == "*" else int(match[2] or low)
        bounds.append((low, high))

    def check(address: Address) -> bool:
        packed = address.packed
        return len(packed) == 4 and all(low <= byte <= high for byte, (low, high) in zip(packed, bounds, strict=True))

    return check
