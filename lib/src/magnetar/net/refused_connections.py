"""Connections that a limit refuses or ends: counted by the limit's kind, and told in the log with what lets more in."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from magnetar.net.throttled_report import CallLater, ThrottledReport, connections

logger: Final = logging.getLogger(__name__)

FILES_SETTING: Final = "limit of open files (ulimit -Hn, LimitNOFILE=)"

METRIC_TEXT: Final = (
    "Connections refused by a limit: of all, of one address, of open files, of HTTP, of TLS handshakes, of PROXY "
    "preambles; or cut: memory."
)


class LimitKind(StrEnum):
    """Which limit refused a connection; the values are labels of metrics."""

    ALL = "all"
    ADDRESS = "address"
    FILES = "files"
    HTTP = "http"
    HANDSHAKES = "handshakes"
    """TLS handshakes that are not finished, at one port."""
    HANDSHAKES_OF_ADDRESS = "handshakes_of_address"
    """Unfinished TLS handshakes of one address."""
    PREAMBLES = "preambles"
    """PROXY headers that are not finished, at all ports of a server (`preamble.py`)."""
    MEMORY = "memory"
    """What all connections of a server hold for their peers: those that move least are cut (`held_bytes.py`)."""


_UNFINISHED: Final = {
    LimitKind.HANDSHAKES: "too many TLS handshakes are not finished",
    LimitKind.HANDSHAKES_OF_ADDRESS: "with its TLS handshakes, its address has as many connections as it may have",
    LimitKind.PREAMBLES: "too many connections have sent neither a whole PROXY header nor anything else",
}


@dataclass(frozen=True, slots=True)
class ConnectionLimit:
    """How many connections there may be, and whom an operator turns to for more."""

    connections_max: int
    kind: LimitKind
    setting: str
    """The setting that an operator raises for more connections; empty: there is none."""

    def __str__(self) -> str:
        if self.kind in _UNFINISHED:
            return _UNFINISHED[self.kind]
        what = {LimitKind.ADDRESS: "of its address ", LimitKind.HTTP: "of HTTP "}.get(self.kind, "")
        more = f"a higher {self.setting} allows more" if self.setting else "which no setting changes"
        return f"{connections(self.connections_max)} {what}may be open, {more}"


def limit_of_all(connections_max: int, setting: str, files_max: int) -> ConnectionLimit:
    """The limit of all connections: what the setting says (0 or less: any number), and no more than there are files
    for."""
    if 0 < connections_max <= files_max:
        return ConnectionLimit(connections_max, LimitKind.ALL, setting)
    return ConnectionLimit(files_max, LimitKind.FILES, FILES_SETTING)


def host_of(peer_address: str) -> str:
    """The host in `/host:port`."""
    return peer_address.rpartition(":")[0]


IPV6_NETWORK_BYTES: Final = 8
"""Of an address: a /64, the least that one machine is given."""


def network_of(peer_address: str) -> str:
    """The host in `/host:port`, or the /64 network of an IPv6 address, all of which one machine may have."""
    return network_of_host(host_of(peer_address))


def network_of_host(host: str) -> str:
    """The network of a host, as `network_of` gives it, with or without the slash."""
    try:
        address = ipaddress.IPv6Address(host.removeprefix("/"))
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return f"/{address.ipv4_mapped}"
    return address.packed[:IPV6_NETWORK_BYTES].hex()


class RefusedConnections:
    """The refused connections of one server, at all of its ports."""

    __slots__ = ("_last", "_seldom", "counts")

    def __init__(self, kinds: tuple[LimitKind, ...] = tuple(LimitKind), call_later: CallLater | None = None) -> None:
        """`kinds` are those that the server has. `call_later` None: the loop's that runs when one is refused."""
        self._seldom = ThrottledReport(self._tell, call_later)
        self._last = ""
        self.counts: dict[LimitKind, int] = dict.fromkeys(kinds, 0)
        """Connections refused since the start, by what limited them."""

    def refused(self, peer: str, limit: ConnectionLimit) -> None:
        """One was; the log has a few lines a minute about all. `peer` is empty where nobody knows it yet."""
        self.counts[limit.kind] = self.counts.get(limit.kind, 0) + 1
        self._last = f", the last one of {peer}: {limit}" if peer else f": {limit}"
        self._seldom.happened()

    def cut(self, count: int) -> None:
        """So many that stood were cut for what they held; whoever cuts tells the log."""
        self.counts[LimitKind.MEMORY] = self.counts.get(LimitKind.MEMORY, 0) + count

    @property
    def total(self) -> int:
        """The number of refused connections of all kinds, without those that were cut for what they held."""
        return sum(count for kind, count in self.counts.items() if kind is not LimitKind.MEMORY)

    def _tell(self, count: int) -> None:
        logger.warning("refused %s%s", connections(count), self._last)
