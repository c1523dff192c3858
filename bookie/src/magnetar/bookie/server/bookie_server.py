"""The bookie's TCP server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.server.protection import Protection, tell_protection
from magnetar.bookie.server.requests_v3 import LongPolls, V3Answerer
from magnetar.bookie.server.security import BookieSecurity
from magnetar.bookie.server.session import BookieSession
from magnetar.core.clock import Clock
from magnetar.net.connection import Connection
from magnetar.net.endpoints import Listener, listen
from magnetar.net.outboxes import Outboxes

_NO_PROTECTION: Final = Protection()


class BookieServer:
    """Serves versions 2 and 3 on one port."""

    def __init__(
        self,
        bookie: Bookie,
        disk_usage: Callable[[], tuple[int, int]],
        clock: Clock,
        protection: Protection = _NO_PROTECTION,
    ) -> None:
        self._bookie = bookie
        self._protection = protection
        self._security = BookieSecurity(bookie.counters, protection)
        self._answerer = V3Answerer(bookie, disk_usage)
        self._long_polls = LongPolls(bookie, clock.now_ms)
        self._listener: Listener | None = None
        self.outboxes = Outboxes()
        """Of the connections with clients."""

    @property
    def port(self) -> int:
        """The port in use; 0 before `start`."""
        return self._listener.port if self._listener is not None else 0

    async def start(self, host: str, port: int) -> None:
        """Listen. OSError when the address is taken."""
        tell_protection(self._protection)
        self._listener = await listen(host, port, self._make_session, outboxes=self.outboxes)
        self._listener.count_refused_in(self._bookie.counters.refused_connections)

    async def close(self) -> None:
        """Stop listening and close every connection."""
        await self._long_polls.close()
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        await self._security.close()

    def _make_session(self, connection: Connection) -> BookieSession:
        return BookieSession(connection, self._bookie, self._answerer, self._long_polls, self._security)
