"""Bytes that come before the protocol itself: they are taken off, then the connection gets its true handler.

Connections whose preamble is not finished are no clients yet, and count with no address: they come from a load
balancer, as all clients do. Who sends a preamble sends it at once, so when there are too many the oldest go. When all
clients come back together, the event loop accepts thousands and reads none of them before; so only those go that it
could have read meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from magnetar.core.errors import PeerError
from magnetar.net.accepting import ENOUGH
from magnetar.net.connection import Connection, HandlerFactory
from magnetar.net.descriptors import HANDSHAKES_MIN, handshakes_max
from magnetar.net.handlers import Handler
from magnetar.net.refused_connections import ConnectionLimit, LimitKind, RefusedConnections

logger: Final = logging.getLogger(__name__)

PREAMBLE_SECONDS_MAX: Final = 30.0
"""How long a peer may take for its first bytes; the handlers behind have a limit of the same length of their own."""

LOOK_SECONDS: Final = 0.5
"""From one look to the next. A load balancer that is far away sends its preamble a few round trips later."""

LOOKS: Final = 2
"""Who came before so many looks had half a second at least, and the loop has read all that it had sent: also when each
turn takes longer than that, as there is a whole one between two looks."""

CUT_IN_TURN_MAX: Final = 64
"""In one turn of the event loop: each takes some 20 microseconds."""


class Preamble(Protocol):
    """What reads them."""

    @property
    def done(self) -> bool:
        """Whether the preamble is over."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns those behind the preamble. `PeerError` closes the connection."""
        ...


P = TypeVar("P", bound=Preamble)


class Unfinished(Protocol):
    """A connection that may be cut."""

    peer_address: str

    def abort(self) -> None:
        """Close it at once."""
        ...


class PendingPreambles:
    """Those of one server, at all of its ports."""

    def __init__(self, left: Callable[[], int] | None = None) -> None:
        """`left` says how many more connections may come to stand; None: any number."""
        self._places = handshakes_max()  # For the same reason: files, which others need as well.
        self._left = left
        self._came: dict[Unfinished, int] = {}
        """With the number of looks before; the oldest first."""
        self._looks = 0
        self._timer: asyncio.Handle | None = None
        self.refused_connections: RefusedConnections | None = None
        """Where those are counted that have to go; None: nowhere."""

    def __len__(self) -> int:
        return len(self._came)

    def enter(self, connection: Unfinished) -> None:
        """One has begun. The oldest has to go when no more could come to stand than are here already."""
        self._came[connection] = self._looks
        left = ENOUGH if self._left is None else self._left()
        if len(self._came) > max(HANDSHAKES_MIN, left):
            self._cut(next(iter(self._came)))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def leave(self, connection: Unfinished) -> None:
        """It is finished, or the connection is gone. Twice is no error."""
        self._came.pop(connection, None)

    def _look(self) -> None:
        self._looks += 1
        self._cut_some()

    def _cut_some(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(CUT_IN_TURN_MAX):
            oldest = next(iter(self._came), None)
            if oldest is None or len(self._came) <= self._places or self._looks - self._came[oldest] < LOOKS:
                self._timer = loop.call_later(LOOK_SECONDS, self._look) if self._came else None
                return
            self._cut(oldest)
        self._timer = loop.call_soon(self._cut_some)

    def _cut(self, connection: Unfinished) -> None:
        self.leave(connection)
        if self.refused_connections is not None:
            self.refused_connections.refused(connection.peer_address, ConnectionLimit(0, LimitKind.PREAMBLES, ""))
        connection.abort()


def after_preamble(
    make_preamble: Callable[[], P], make_handler: Callable[[Connection, P], Handler], pending: PendingPreambles
) -> HandlerFactory:
    """A handler factory that first reads a preamble, then makes the handler with what the preamble said. `pending`
    bounds the unfinished ones, and is shared by all ports of a server."""
    return lambda connection: _PreambleHandler(connection, make_preamble(), make_handler, pending)


class _PreambleHandler(Generic[P]):
    """Reads the preamble and then hands the connection to the handler that is made for it (a `Handler`)."""

    def __init__(
        self,
        connection: Connection,
        preamble: P,
        make_handler: Callable[[Connection, P], Handler],
        pending: PendingPreambles,
    ) -> None:
        self._connection = connection
        self._preamble = preamble
        self._make_handler = make_handler
        self._pending = pending
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PREAMBLE_SECONDS_MAX, self._connection.abort)
        self._pending.enter(self._connection)

    def data_received(self, data: bytes) -> None:
        try:
            rest = self._preamble.feed(data)
        except PeerError as error:
            logger.warning("closing connection of %s: %s", self._connection.peer_address, error)
            self._connection.abort()
            return
        if not self._preamble.done:
            return
        self._over()
        handler = self._make_handler(self._connection, self._preamble)
        self._connection.replace_handler(handler)
        handler.connection_made()
        if rest:
            handler.data_received(rest)

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._over()

    def _over(self) -> None:
        self._pending.leave(self._connection)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
