"""TLS over a connection that stands.

Not the event loops' own. They encrypt what is written and give it to the transport below, whose buffer they do not
count: forty megabytes of one answer that nobody reads look like none. And they have a buffer of 256 KiB for each
connection, which stays after one large read. So a connection that begins with TLS is made without it first, as one is
that begins TLS later, and the layer in between is ours.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from magnetar.core.limits import KIB
from magnetar.net.tls import HANDSHAKE_SECONDS_MAX
from magnetar.net.tls_layer.engine import TlsEngine
from magnetar.net.tls_layer.transport import SecuredTransport

ENDED: Final = "the other side closed the connection during its TLS handshake"

UNREAD_BYTES: Final = 64 * KIB
"""A connection that begins with TLS is readable from so many bytes on, until TLS reads it: a first message of a
handshake has some hundred, at most 16 KiB. Whoever sends more before the answer has no handshake."""

P = TypeVar("P", bound=asyncio.Protocol)


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

    def data_received(self, data: bytes) -> None:
        self.data.append(data)


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
        engine = TlsEngine(context, server_side=server_side, server_name=server_name)
    except ValueError as error:
        raise OSError(f"no server can be called {server_name!r}: {error}") from error
    secured = SecuredTransport(bare, early, engine)
    try:
        await secured.begin_handshake(timeout_seconds)
    except OSError as error:
        if str(error):
            raise
        raise ConnectionResetError(ENDED) from None  # Nothing is said of a peer that hangs up.
    if not secured.stands:
        raise ConnectionResetError(ENDED)  # Since then.
    return secured


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
