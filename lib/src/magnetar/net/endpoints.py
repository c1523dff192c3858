"""Listening and connecting: the two ways a `Connection` comes to be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from magnetar.net.accepting import ENOUGH, Acceptor, bound, known_host, sharing
from magnetar.net.connection import AnyHandlerFactory, Connection, HandlerFactory
from magnetar.net.descriptors import clients_max
from magnetar.net.handlers import Handler
from magnetar.net.held_bytes import HeldBytes
from magnetar.net.outboxes import Outboxes
from magnetar.net.refused_connections import FILES_SETTING, ConnectionLimit, LimitKind, RefusedConnections
from magnetar.net.secured_transport import Unread, secured_from_the_start
from magnetar.net.tls import HANDSHAKE_SECONDS_MAX, ClientTls, ServerTls

LISTEN_BACKLOG: Final = 4096
"""Connections the kernel may queue while we are busy; a whole fleet of clients reconnects at once after a restart.
Fewer where few files may be open, at a port without TLS: the loop accepts them all at once, before any can be
refused."""

REFUSED_WITH_A_WORD: Final = 64
"""Connections beyond the bound that still get to their handler, which may tell the client why it refuses them."""

LeftOf: TypeAlias = Callable[[str], int]
"""How many more connections an address may have."""


P = TypeVar("P", bound=asyncio.Protocol)


class Listener:
    """A listening socket and the connections that came in through it."""

    def __init__(
        self,
        make_handler: HandlerFactory,
        held: HeldBytes | None,
        left_of: LeftOf | None,
        outboxes: Outboxes | None = None,
    ) -> None:
        """Makes a listener that has no socket yet; `listen` makes it and opens it."""
        self._loop = asyncio.get_running_loop()
        self.held = held if held is not None else HeldBytes(self._loop)
        """The bytes that this listener's connections hold."""
        self.outboxes = outboxes if outboxes is not None else Outboxes()
        """Of this listener's connections."""
        self._make_handler = make_handler
        self._left_of = left_of
        self._connections: dict[Connection, None] = {}
        self._closed = False
        self._limit = ConnectionLimit(clients_max() + REFUSED_WITH_A_WORD, LimitKind.FILES, FILES_SETTING)
        self.refused_connections = RefusedConnections((LimitKind.FILES,), self._loop.call_later)
        """Those that were cut, as there were too many for the files that the process may have, or held too much."""
        self._server: asyncio.Server | Acceptor

    async def open(self, host: str, port: int, tls: ServerTls | None, *, accepting: bool, shared: bool = False) -> None:
        """Bind the socket; with `accepting`, take connections at once. OSError."""
        if tls is None:
            backlog = max(16, min(LISTEN_BACKLOG, clients_max() // 2))
            with known_host(host):
                self._server = await self._loop.create_server(
                    self._make_connection,
                    host,
                    port,
                    backlog=backlog,
                    reuse_address=True,
                    start_serving=accepting,
                    **sharing(shared=shared),
                )
            return
        listening = await bound(host, port, shared=shared)
        self._server = Acceptor(listening, self._make_connection, self, backlog=LISTEN_BACKLOG, tls=tls.context)
        if accepting:
            await self._server.start_serving()

    @property
    def port(self) -> int:
        """The port in use; tells what port 0 became."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> frozenset[Connection]:
        """A snapshot of the open connections; those that are still at their TLS handshake are not among them."""
        return frozenset(self._connections)

    @property
    def arriving(self) -> int:
        """How many connections are at their TLS handshake."""
        return self._server.arriving if isinstance(self._server, Acceptor) else 0

    async def start_accepting(self) -> None:
        """Take connections, where `listen` was told to wait with that. Twice is no error."""
        await self._server.start_serving()

    def stop_accepting(self) -> None:
        """Stop listening; connections go on. Twice is no error."""
        self._server.close()

    async def close(self) -> None:
        """Stop listening and close every connection, sending what is in the outboxes; those, too, that the loop has
        accepted and nobody was told of yet."""
        self._closed = True
        self._server.close()
        # In the order in which they came, so that a simulator sees the same in every run.
        for connection in list(self._connections):
            connection.close()
        await self._server.wait_closed()

    def count_refused_in(self, refused: RefusedConnections) -> None:
        """For whoever counts what other limits refuse: count there what this listener refuses and cuts, too."""
        self.refused_connections = self.held.refused_connections = refused

    # --- magnetar.net.accepting.ConnectionBudget

    def left(self) -> int:
        """For the acceptor: how many more connections there may be."""
        return self._limit.connections_max - len(self._connections)

    def left_of(self, host: str) -> int:
        """For the acceptor: the same, from one address."""
        return ENOUGH if self._left_of is None else self._left_of(host)

    def refused(self, host: str, kind: LimitKind) -> None:
        """For the acceptor: a connection cannot stay."""
        limit = self._limit if kind is LimitKind.FILES else ConnectionLimit(0, kind, "")
        self.refused_connections.refused(host, limit)

    def _make_connection(self) -> Connection:
        return Connection(self._loop, self._stands, self._lost, self.held, self.outboxes)

    def _stands(self, connection: Connection) -> Handler:
        if self._closed:
            return _Unwanted(connection)
        if self.left() <= 0:
            self.refused("", LimitKind.FILES)
            return _Unwanted(connection)
        self._connections[connection] = None
        return self._make_handler(connection)

    def _lost(self, connection: Connection) -> None:
        self._connections.pop(connection, None)


class _Unwanted:
    """The handler of a connection that came while the listener closed, or is one too many."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_made(self) -> None:
        self._connection.abort()

    def data_received(self, data: bytes) -> None:
        pass

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass


async def listen(
    host: str,
    port: int,
    make_handler: HandlerFactory,
    *,
    tls: ServerTls | None = None,
    accepting: bool = True,
    held: HeldBytes | None = None,
    left_of: LeftOf | None = None,
    shared: bool = False,
    outboxes: Outboxes | None = None,
) -> Listener:
    """Listen on a TCP address, with TLS if given. Raises OSError when the address is taken or not ours.

    Without `accepting` the address is taken, and connections are refused until `Listener.start_accepting`. What its
    connections hold in memory is bounded by `held`, which several listeners of a server share.
    TLS handshakes that are not finished are bounded for each port, and for each address by what is `left_of` it.
    With `shared` other processes of the same user may listen at the address too. `outboxes` are those of its
    connections, which several listeners of a server share."""
    listener = Listener(make_handler, held, left_of, outboxes)
    await listener.open(host, port, tls, accepting=accepting, shared=shared)
    return listener


async def connect(
    host: str,
    port: int,
    make_handler: AnyHandlerFactory,
    timeout_seconds: float | None,
    *,
    tls: ClientTls | None = None,
    server_name: str | None = None,
) -> Connection:
    """Open a TCP connection, with TLS if given; then `server_name` is who the certificate must be for, unless it is
    `host`. Raises OSError (bad certificates are such, too) or TimeoutError."""
    loop = asyncio.get_running_loop()

    def made() -> Connection:
        return Connection(loop, make_handler)

    async with asyncio.timeout(timeout_seconds):
        if tls is None:
            _, connection = await _opened(made, host, port)
            return connection
        context = tls.context  # It may read files, for which no server should wait.
        bare, _ = await _opened(Unread, host, port)
        return await secured_from_the_start(
            bare,
            made,
            context,
            server_side=False,
            server_name=server_name or host,
            # The caller's began earlier, and is the one that is told.
            timeout_seconds=HANDSHAKE_SECONDS_MAX if timeout_seconds is None else timeout_seconds,
        )


async def _opened(make_protocol: Callable[[], P], host: str, port: int) -> tuple[asyncio.Transport, P]:
    try:
        return await asyncio.get_running_loop().create_connection(make_protocol, host, port)
    except OSError:
        raise
    except ValueError as error:
        # Labels that are empty or too long, zero bytes: no resolver is asked for them.
        raise OSError(f"no host can be called {host!r}: {error}") from error
