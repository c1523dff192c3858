"""TLS that begins in the middle of a connection, once both sides have said so in clear.

The connection's handler hears of nothing meanwhile, and nothing that it writes leaves in clear. It hears the first byte
only after TLS stands for it: a peer's first words may come in with the end of its handshake.
"""

from __future__ import annotations

import ssl

from magnetar.net.connection import AnyHandlerFactory, Connection
from magnetar.net.secured_transport import Early, deliver, secure
from magnetar.net.tls import HANDSHAKE_SECONDS_MAX


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
    bare = connection.begin_upgrade()
    early = Early()
    try:
        secured = await secure(
            bare, early, context, server_side=server_side, server_name=server_name, timeout_seconds=timeout_seconds
        )
    except BaseException as error:
        bare.abort()
        connection.connection_lost(error if isinstance(error, Exception) else None)
        raise error from None
    connection.upgraded(secured, make_handler)
    protocol = secured.get_protocol()
    try:
        for data in early.data:
            if connection.closing:
                break  # It hears nothing more but the end.
            deliver(protocol, data)
    except BaseException:
        connection.abort()  # As a loop does after a handler's own failure.
        raise
