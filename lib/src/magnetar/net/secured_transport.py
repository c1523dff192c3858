"""TLS over a connection that stands, and a transport over it that tells how much the peer has not taken yet.

Event loops encrypt what is written and give it to the transport below, whose buffer they do not count: forty megabytes
of one answer that nobody reads look like none. So a connection that begins with TLS is made without it first, as one
is that begins TLS later: then both transports are known.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from magnetar.core.limits import KIB
from magnetar.net.tls import HANDSHAKE_SECONDS_MAX

ENDED: Final = "the other side closed the connection during its TLS handshake"

UNREAD_BYTES: Final = 64 * KIB
"""A connection that begins with TLS is readable from so many bytes on, until TLS reads it: a first message of a
handshake has some hundred, at most 16 KiB. Whoever sends more before the answer has no handshake."""

P = TypeVar("P", bound=asyncio.Protocol)


class SecuredTransport(asyncio.Transport):
    """The transport over TLS, which also counts what waits in the one below."""

    def __init__(self, over_tls: asyncio.Transport, bare: asyncio.Transport) -> None:
        super().__init__()
        self._over_tls = over_tls
        self._bare = bare

    def get_write_buffer_size(self) -> int:
        """Bytes that wait; those that are encrypted already with what TLS adds."""
        return self._over_tls.get_write_buffer_size() + self._bare.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it."""
        self._over_tls.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send them."""
        self._over_tls.writelines(list_of_data)

    def write_eof(self) -> None:
        """TLS cannot."""
        self._over_tls.write_eof()

    def can_write_eof(self) -> bool:
        """Whether one direction alone may end: not over TLS."""
        return self._over_tls.can_write_eof()

    def abort(self) -> None:
        """Close at once."""
        self._over_tls.abort()

    def close(self) -> None:
        """Send what waits, then close."""
        self._over_tls.close()

    def is_closing(self) -> bool:
        """Whether it is closing, or closed."""
        return self._over_tls.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the loop knows of the connection."""
        return self._over_tls.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Whoever is told of what comes."""
        return self._over_tls.get_protocol()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Tell this one from now on."""
        self._over_tls.set_protocol(protocol)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Low and high, in bytes."""
        return self._over_tls.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When the protocol is told that its peer is behind, and has caught up. Loops look at what waits above the
        transport below: what that one was given, up to as much again or one write, waits beside it."""
        self._over_tls.set_write_buffer_limits(high, low)

    def is_reading(self) -> bool:
        """Whether the protocol is given what comes."""
        return self._over_tls.is_reading()

    def pause_reading(self) -> None:
        """Give the protocol nothing."""
        self._over_tls.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        self._over_tls.resume_reading()


class Unread(asyncio.Protocol):
    """The first protocol of a connection that begins with TLS. Loops begin to read at once, and the handshake's first
    bytes are not for it: they stay in the kernel until `secured_from_the_start`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        _readable_from(transport, UNREAD_BYTES)


def _readable_from(transport: asyncio.BaseTransport, size_bytes: int) -> None:
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)


class Early(asyncio.Protocol):
    """Keeps what comes between the end of the handshake and the turn in which whoever waits for it hears of it: what
    one turn of the loop reads, at most."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.data.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.lost = True


async def secure(
    bare: asyncio.Transport,
    early: Early,
    context: ssl.SSLContext,
    *,
    server_side: bool,
    server_name: str | None = None,
    timeout_seconds: float = HANDSHAKE_SECONDS_MAX,
) -> SecuredTransport:
    """Put TLS over a connection; its protocol is `early` from then on. OSError when that fails: whoever calls aborts
    the connection then."""
    if bare.is_closing():
        raise ConnectionResetError(ENDED)  # Its end may have been told already: a handshake would wait in vain.
    try:
        secured = await asyncio.get_running_loop().start_tls(
            bare,
            early,
            context,
            server_side=server_side,
            server_hostname=server_name,
            ssl_handshake_timeout=timeout_seconds,
        )
    except OSError as error:
        if str(error):
            raise
        raise ConnectionResetError(ENDED) from None  # The loops say nothing of a peer that hangs up.
    except ValueError as error:
        raise OSError(f"no server can be called {server_name!r}: {error}") from error
    # uvloop calls a handshake finished whose connection was aborted on this side, and tells nobody of the end.
    if secured is None or early.lost or bare.is_closing():
        raise ConnectionResetError(ENDED)
    return SecuredTransport(secured, bare)


async def secured_from_the_start(
    bare: asyncio.Transport,
    make_protocol: Callable[[], P],
    context: ssl.SSLContext,
    *,
    server_side: bool,
    server_name: str | None = None,
    timeout_seconds: float = HANDSHAKE_SECONDS_MAX,
) -> P:
    """Put TLS over a connection whose protocol is `Unread`, then make the protocol that goes on with it: its
    `connection_made` is called, and it hears what came meanwhile. OSError when that fails; whatever is raised, the
    connection is aborted."""
    early = Early()
    try:
        if not bare.is_closing():  # Its socket may be gone.
            _readable_from(bare, 1)
        secured = await secure(
            bare, early, context, server_side=server_side, server_name=server_name, timeout_seconds=timeout_seconds
        )
        protocol = make_protocol()
        secured.set_protocol(protocol)
        ended = secured.is_closing()  # By the peer, whose last words still count.
        protocol.connection_made(secured)
        for data in early.data:
            if secured.is_closing() and not ended:
                break  # By the protocol itself: it hears nothing more but the end.
            deliver(secured.get_protocol(), data)
    except BaseException:
        bare.abort()  # Also after a protocol's own failure, as a loop does.
        raise
    return protocol


def deliver(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Give a protocol what came before it was there."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        assert isinstance(protocol, asyncio.Protocol)
        protocol.data_received(data)
        return
    rest = memoryview(data)
    while rest:
        room = memoryview(protocol.get_buffer(len(rest)))
        size_bytes = min(len(room), len(rest))
        room[:size_bytes] = rest[:size_bytes]
        protocol.buffer_updated(size_bytes)
        rest = rest[size_bytes:]
