"""What protects a bookie's port: TLS that clients ask for by START_TLS, and who is served then.

A client asks in clear for TLS, is answered in clear, and only then says hello. That makes a herd of them easy to hold:
who has to wait is not answered.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol

from magnetar.bookie.counters import BookieCounters
from magnetar.bookie.server.protection import Protection
from magnetar.bookie.server.roles import role_problem
from magnetar.net.accepting import ENOUGH
from magnetar.net.connection import Connection
from magnetar.net.descriptors import handshakes_max
from magnetar.net.handlers import Handler
from magnetar.net.pending_handshakes import PendingHandshakes
from magnetar.net.refused_connections import ConnectionLimit, host_of
from magnetar.net.start_tls import start_tls
from magnetar.net.throttled_report import ThrottledReport

logger: Final = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 10.0
"""How long a client may take for its handshake, as at BookKeeper's bookies (netty's SslHandler)."""

PAUSE_TLS: Final = "TLS begins"


class SecurableSession(Handler, Protocol):
    """The handler of a connection that may go on in TLS."""

    def tls_agreed(self) -> None:
        """Answer the client that TLS begins."""
        ...

    def secured(self, refusal: str) -> None:
        """TLS stands. `refusal` says why the client is not served all the same; empty: it is."""
        ...


class BookieSecurity:
    """One per server."""

    def __init__(self, counters: BookieCounters, protection: Protection) -> None:
        self._tls = protection.tls
        self._roles = protection.roles
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._pending: PendingHandshakes[Connection] = PendingHandshakes(handshakes_max())
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed = ThrottledReport(self._tell_failed, self._loop.call_later)
        self._unserved = ThrottledReport(self._tell_unserved, self._loop.call_later)
        self._last_failure = ""
        self._last_refusal = ""
        self.serves_plain = protection.serves_plain
        """Whether clients without TLS are served."""

    @property
    def has_tls(self) -> bool:
        """Whether clients may ask for TLS."""
        return self._tls is not None

    @property
    def handshakes(self) -> int:
        """How many are under way."""
        return len(self._pending)

    def refusal(self, certificate: dict[str, Any]) -> str:
        """Why a client whose TLS stands is not served; empty: it is."""
        return "" if self._roles is None else role_problem(certificate, self._roles)

    def begin(self, connection: Connection, session: SecurableSession) -> None:
        """Put TLS over a connection whose client has asked for it. It is not read until then."""
        connection.pause_reading(PAUSE_TLS)
        task = self._loop.create_task(self._begin(connection, session), name="bookie-start-tls")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def not_served(self, peer: str, why: str) -> None:
        """A client is refused, once for each connection: the log has a few lines a minute about all."""
        self._counters.unauthorized_clients += 1
        self._last_refusal = f"{peer}: {why}"
        self._unserved.happened()

    async def close(self) -> None:
        """Cut all handshakes."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self, connection: Connection, session: SecurableSession) -> None:
        assert self._tls is not None
        while not connection.closing:
            seconds = self._pending.wait_seconds(self._loop.time(), ENOUGH)
            if seconds <= 0:
                break
            await asyncio.sleep(seconds)
        if connection.closing:
            return
        self._enter(connection)
        session.tls_agreed()

        def stands(made: Connection) -> Handler:
            # Before the client's first words, which may have come already.
            refusal = self.refusal(made.peer_certificate)
            if refusal:
                self.not_served(made.peer_address, refusal)
            session.secured(refusal)
            return session

        try:
            await start_tls(
                connection,
                self._tls.newest,
                server_side=True,
                make_handler=stands,
                timeout_seconds=HANDSHAKE_SECONDS,
            )
        except OSError as error:
            self._counters.tls_handshakes_failed += 1
            self._last_failure = f"{connection.peer_address}: {error}"
            self._failed.happened()
        else:
            self._counters.tls_handshakes += 1
            self._pending.stands(connection)
            connection.resume_reading(PAUSE_TLS)
        finally:
            self._pending.leave(connection)

    def _enter(self, connection: Connection) -> None:
        host = host_of(connection.peer_address)
        made_room = self._pending.enter(connection, host, self._loop.time(), ENOUGH, ENOUGH)
        if made_room is not None:
            gone, kind = made_room
            gone.abort()
            self._counters.refused_connections.refused(gone.peer_address, ConnectionLimit(0, kind, ""))

    def _tell_failed(self, count: int) -> None:
        logger.warning("%d TLS handshakes failed, the last one of %s", count, self._last_failure)

    def _tell_unserved(self, count: int) -> None:
        logger.warning("%d clients are not authorized, the last one of %s", count, self._last_refusal)
