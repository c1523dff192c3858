"""TLS that begins in the middle of a connection, once both sides have said so in clear.

The connection's handler hears of nothing meanwhile, and nothing that it writes leaves in clear. It hears the first byte
only after TLS stands for it: a peer's first words may come in with the end of its handshake.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from magnetar.net.connection import AnyHandlerFactory, Connection
from magnetar.net.tls import HANDSHAKE_SECONDS_MAX

ENDED: Final = "the other side closed the connection during its TLS handshake"


async def start_tls(
    connection: Connection,
    context: ssl.SSLContext,
    *,
    server_side: bool,
    server_name: str | None = None,
    make_handler: AnyHandlerFactory | None = None,
    timeout_seconds: float = HANDSHAKE_SECONDS_MAX,
) -> None:
    """Put TLS over a connection that is open; what was written before leaves in clear. With `make_handler` another
    handler takes over; its `connection_made` is not called.

    OSError (a bad certificate is one) after a handshake that failed or took too long; then the connection is closed,
    and its handler was told. `Misuse` when the connection is not open."""
    loop = asyncio.get_running_loop()
    bare = connection.begin_upgrade()
    early = _Early()
    try:
        secured = early.checked(
            bare,
            await loop.start_tls(
                bare,
                early,
                context,
                server_side=server_side,
                server_hostname=server_name,
                ssl_handshake_timeout=timeout_seconds,
            ),
        )
    except BaseException as error:
        bare.abort()
        if isinstance(error, OSError) and not str(error):
            error = ConnectionResetError(ENDED)  # The loops say nothing of a peer that hangs up.
        connection.connection_lost(error if isinstance(error, Exception) else None)
        raise error from None
    connection.upgraded(secured, make_handler)
    protocol = secured.get_protocol()
    for data in early.data:
        if not connection.closed:
            _deliver(protocol, data)


def _deliver(protocol: asyncio.BaseProtocol, data: bytes) -> None:
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


class _Early(asyncio.Protocol):
    """Keeps what comes between the end of the handshake and the turn in which whoever waits for it hears of it: what
    one turn of the loop reads, at most."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.lost = False

    def checked(self, bare: asyncio.Transport, secured: asyncio.Transport | None) -> asyncio.Transport:
        """The transport; ConnectionResetError when the connection is over. uvloop calls a handshake finished whose
        connection was aborted on this side, and tells nobody of the end."""
        if secured is None or self.lost or bare.is_closing():
            raise ConnectionResetError(ENDED)
        return secured

    def data_received(self, data: bytes) -> None:
        self.data.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.lost = True
