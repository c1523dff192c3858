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

    It holds at most the header: 107 bytes of version 1, 64 KiB (the length is a u16) of version 2."""

    def __init__(self) -> None:
        self._buffer: bytes = b""
        self.done: bool = False
        """Whether everything is known: `proxied` is final, and what `feed` returns belongs to the next protocol."""
        self.proxied: ProxiedConnection | None = None
        """None without a header, for the sender's own connections (health checks) and for unknown families."""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns those after the header, nothing until `done`. `BadProxyHeader`."""
        if self.done:
            return data
        buffer = self._buffer = self._buffer + data
        if buffer.startswith(_V1_START):
            return self._feed_v1(buffer)
        if buffer.startswith(_V2_SIGNATURE):
            return self._feed_v2(buffer)
        if _V1_START.startswith(buffer) or _V2_SIGNATURE.startswith(buffer):
            return b""
        return self._finish(None, buffer)

    def _finish(self, proxied: ProxiedConnection | None, rest: bytes) -> bytes:
        self.done = True
        self.proxied = proxied
        self._buffer = b""
        return rest

    def _feed_v1(self, buffer: bytes) -> bytes:
        end = buffer.find(_V1_END, 0, _V1_BYTES_MAX)
        if end < 0:
            if len(buffer) >= _V1_BYTES_MAX:
                raise BadProxyHeader(f"a PROXY line of more than {_V1_BYTES_MAX} bytes")
            return b""
        return self._finish(_parse_v1(buffer[:end]), buffer[end + len(_V1_END) :])

    def _feed_v2(self, buffer: bytes) -> bytes:
        if len(buffer) < _V2_HEAD.size:
            return b""
        _, command, family, length = _V2_HEAD.unpack_from(buffer)
        end = _V2_HEAD.size + length
        if len(buffer) < end:
            return b""
        return self._finish(_parse_v2(command, family, buffer[_V2_HEAD.size : end]), buffer[end:])


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


def _parse_v2(command: int, family: int, body: bytes) -> ProxiedConnection | None:
    if command == _COMMAND_LOCAL:
        return None
    if command != _COMMAND_PROXY:
        raise BadProxyHeader(f"a PROXY header of version and command {command:#04x}")
    if family not in (_FAMILY_TCP4, _FAMILY_TCP6):
        return None
    layout = _V2_TCP4 if family == _FAMILY_TCP4 else _V2_TCP6
    if len(body) < layout.size:
        raise BadProxyHeader(f"a PROXY header with {len(body)} bytes of addresses; they take {layout.size}")
    # What follows the addresses (TLVs: certificates, names of cloud endpoints) is not needed.
    source, destination, source_port, destination_port = layout.unpack_from(body)
    return ProxiedConnection(
        str(ipaddress.ip_address(source)), source_port, str(ipaddress.ip_address(destination)), destination_port
    )


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
