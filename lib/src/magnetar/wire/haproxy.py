"""The PROXY protocol, versions 1 and 2: a header before the first byte of a connection that names its true ends.

Load balancers and proxies send it. A connection may come without one; that is told by its first bytes, as no Pulsar
frame begins like either header. (haproxy.org: doc/proxy-protocol.txt; Pulsar: OptionalProxyProtocolDecoder.)
"""

from __future__ import annotations

import ipaddress
from struct import Struct
from typing import Final, NamedTuple

from magnetar.core.errors import PeerError

_V1_START: Final = b"PROXY "
_V1_END: Final = b"\r\n"
_V1_BYTES_MAX: Final = 107
"""The longest line of version 1, its end included."""

_HEAD_BYTES_MAX: Final = _V1_BYTES_MAX
"""Of a header of either version all that is read is in so many bytes."""

_V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_HEAD: Final = Struct(">12sBBH")
_V2_TCP4: Final = Struct(">4s4sHH")
_V2_TCP6: Final = Struct(">16s16sHH")
_COMMAND_LOCAL: Final = 0x20
_COMMAND_PROXY: Final = 0x21
_FAMILY_TCP4: Final = 0x11
_FAMILY_TCP6: Final = 0x21


class BadProxyHeader(PeerError):
    """It begins like a PROXY header and is none."""


class ProxiedConnection(NamedTuple):
    """The two ends of the connection that the sender of the header took: addresses without brackets."""

    source_host: str
    source_port: int
    destination_host: str
    destination_port: int


class ProxyHeaderDecoder:
    """Takes the header off the front of one connection.

    It holds 107 bytes at most. What follows the addresses of version 2 (TLVs: certificates, names of cloud endpoints)
    may be 64 KiB, of which nothing is needed: it is passed over as it comes."""

    def __init__(self) -> None:
        self._buffer: bytes = b""
        self._unneeded_bytes = 0
        """Of the header, still to come."""
        self.done: bool = False
        """Whether everything is known: `proxied` is final, and what `feed` returns belongs to the next protocol."""
        self.proxied: ProxiedConnection | None = None
        """None without a header, for the sender's own connections (health checks) and for unknown families."""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns those after the header, nothing until `done`. `BadProxyHeader`."""
        if self.done:
            return data
        if self._unneeded_bytes:
            return self._pass_over(data)
        before = self._buffer
        head = self._buffer = before + data[: _HEAD_BYTES_MAX - len(before)]
        if head.startswith(_V1_START):
            end = self._read_v1(head)
        elif head.startswith(_V2_SIGNATURE):
            end = self._read_v2(head)
        elif _V1_START.startswith(head) or _V2_SIGNATURE.startswith(head):
            return b""
        else:
            self.done, self._buffer = True, b""
            return before + data if before else data
        if not end:
            return b""
        self._buffer = b""
        return self._pass_over(data[end - len(before) :])

    def _pass_over(self, data: bytes) -> bytes:
        rest = data[self._unneeded_bytes :]
        self._unneeded_bytes = max(0, self._unneeded_bytes - len(data))
        self.done = not self._unneeded_bytes
        return rest

    def _read_v1(self, head: bytes) -> int:
        """Where the line ends; 0: not yet."""
        end = head.find(_V1_END)
        if end < 0:
            if len(head) >= _V1_BYTES_MAX:
                raise BadProxyHeader(f"a PROXY line of more than {_V1_BYTES_MAX} bytes")
            return 0
        self.proxied = _parse_v1(head[:end])
        return end + len(_V1_END)

    def _read_v2(self, head: bytes) -> int:
        """Where the addresses end; 0: not yet."""
        if len(head) < _V2_HEAD.size:
            return 0
        _, command, family, length = _V2_HEAD.unpack_from(head)
        layout = _layout_v2(command, family)
        if layout is None:
            end = _V2_HEAD.size
        elif length < layout.size:
            raise BadProxyHeader(f"a PROXY header with {length} bytes of addresses; they take {layout.size}")
        else:
            end = _V2_HEAD.size + layout.size
            if len(head) < end:
                return 0
            source, destination, source_port, destination_port = layout.unpack_from(head, _V2_HEAD.size)
            self.proxied = ProxiedConnection(
                str(ipaddress.ip_address(source)), source_port, str(ipaddress.ip_address(destination)), destination_port
            )
        self._unneeded_bytes = _V2_HEAD.size + length - end
        return end


def _parse_v1(line: bytes) -> ProxiedConnection | None:
    try:
        words = line.decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise BadProxyHeader("a PROXY line that is not ASCII") from None
    if words[1] == "UNKNOWN":
        return None
    if words[1] not in ("TCP4", "TCP6") or len(words) != 6:
        raise BadProxyHeader(f"a PROXY line that is none: {line!r}")
    version = 4 if words[1] == "TCP4" else 6
    source, destination = _address(words[2], version), _address(words[3], version)
    return ProxiedConnection(source, _port(words[4]), destination, _port(words[5]))


def _address(text: str, version: int) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise BadProxyHeader(f"{text!r} in a PROXY line is no address") from None
    if "%" in text:
        # A zone, which may be any text, means nothing on another host.
        raise BadProxyHeader(f"{text!r} in a PROXY line has a zone")
    if address.version != version:
        raise BadProxyHeader(f"{text!r} in a PROXY line is of the other family")
    return str(address)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 0xFFFF):
        raise BadProxyHeader(f"{text!r} in a PROXY line is no port")
    return int(text)


def _layout_v2(command: int, family: int) -> Struct | None:
    """How the addresses stand there; None: there are none that we know."""
    if command == _COMMAND_LOCAL:
        return None
    if command != _COMMAND_PROXY:
        raise BadProxyHeader(f"a PROXY header of version and command {command:#04x}")
    return {_FAMILY_TCP4: _V2_TCP4, _FAMILY_TCP6: _V2_TCP6}.get(family)


def encode_v1(proxied: ProxiedConnection) -> bytes:
    """The line of version 1; `UNKNOWN` when the two addresses are of different families, which it cannot tell."""
    source, destination = ipaddress.ip_address(proxied.source_host), ipaddress.ip_address(proxied.destination_host)
    if source.version != destination.version:
        return b"PROXY UNKNOWN\r\n"
    ports = f"{proxied.source_port} {proxied.destination_port}"
    return f"PROXY TCP{source.version} {source} {destination} {ports}\r\n".encode()


def encode_v2(proxied: ProxiedConnection) -> bytes:
    """The header of version 2, without TLVs; an IPv4 address beside an IPv6 one is written as a mapped one."""
    source, destination = ipaddress.ip_address(proxied.source_host), ipaddress.ip_address(proxied.destination_host)
    if source.version == destination.version == 4:
        family, layout = _FAMILY_TCP4, _V2_TCP4
    else:
        family, layout = _FAMILY_TCP6, _V2_TCP6
    addresses = [
        address.packed if len(address.packed) == layout.size // 2 - 2 else bytes(10) + b"\xff\xff" + address.packed
        for address in (source, destination)
    ]
    body = layout.pack(*addresses, proxied.source_port, proxied.destination_port)
    return _V2_HEAD.pack(_V2_SIGNATURE, _COMMAND_PROXY, family, len(body)) + body
