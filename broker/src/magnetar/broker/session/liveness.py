"""Whether a client is still there: the keep-alive, and a look before somebody else gets its place."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from magnetar.broker.session.api import Session
from magnetar.wire.pulsar.command import PING_FRAME

logger: Final = logging.getLogger(__name__)

LOOKS_MAX: Final = 2
"""For the answer to a PING. A second one if the connection is not read at the first, because all share the turns of the
loop: some seconds hold hundreds of these, and in a flood one may be paused at any look."""


class ConnectingSession(Session, Protocol):
    """A session from its first byte on."""

    @property
    def connecting(self) -> bool:
        """Whether the client has not been let in yet."""
        ...


class Liveness:
    """Of one session. A client is gone that never says CONNECT, that does not answer PING, or that takes nothing of
    what it is sent."""

    def __init__(self, session: ConnectingSession) -> None:
        self._session = session
        self._connection = session.connection
        self._settings = session.context.settings
        self._pinged = False
        self._received_since_ping = False
        self._timer: asyncio.TimerHandle | None = None
        self._pauses = 0
        self._paused_before = False
        self._moved_bytes: int | None = None
        """What the client had moved at the last tick, if it was behind then."""
        self._checks: list[asyncio.Future[bool]] = []

    def start(self) -> None:
        """Begin: a client that never says CONNECT is dropped by the first tick. Without a keep-alive there is none."""
        if self._settings.keep_alive_seconds > 0:
            self._timer = asyncio.get_running_loop().call_later(self._settings.keep_alive_seconds, self._tick)

    def stop(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self._answer_checks(alive=False)

    def received(self) -> None:
        """Something came: whatever it is, the client is there."""
        self._received_since_ping = True
        if self._checks:
            self._answer_checks(alive=True)

    async def alive(self) -> bool:
        """Whether the client answers a PING soon; when not, the connection is closed. Where no time is set for the
        answer nobody is asked (Pulsar: `ServerCnx.checkConnectionLiveness`)."""
        if self._settings.connection_liveness_check_seconds <= 0:
            return True
        connection = self._connection
        if self._held_back():
            return True  # Its answer would wait with the rest; the keep-alive sees to the dead.
        check: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._checks.append(check)
        connection.write(PING_FRAME)
        for _ in range(LOOKS_MAX):
            await asyncio.wait([check], timeout=self._settings.connection_liveness_check_seconds)
            if check.done():
                return check.result()
            if self._held_back():
                return True
            if not connection.reading_paused:
                break
        address = self._session.peer_address
        logger.warning("closing connection of %s: no answer to PING while others wait for its place", address)
        connection.abort()
        return await check

    def _held_back(self) -> bool:
        return self._connection.throttled

    def _answer_checks(self, *, alive: bool) -> None:
        checks, self._checks = self._checks, []
        for check in checks:
            if not check.done():
                check.set_result(alive)

    def _tick(self) -> None:
        session, connection = self._session, self._connection
        if session.connecting:
            logger.warning("closing connection of %s: no CONNECT in time", session.peer_address)
            connection.close()
            return
        if self._pinged and not self._received_since_ping and not self._was_paused():
            logger.warning("closing connection of %s: no answer to PING", session.peer_address)
            connection.abort()
            return
        if self._takes_nothing():
            logger.warning("closing connection of %s: it takes nothing of what it is sent", session.peer_address)
            connection.abort()
            return
        self._received_since_ping = False
        if session.protocol_version >= 1:
            self._pinged = True
            connection.write(PING_FRAME)
        self.start()

    def _was_paused(self) -> bool:
        """Whether the connection was not always read since the last look, for it is throttled: then no answer came."""
        connection = self._connection
        throttled = connection.throttled
        paused = self._paused_before or throttled or connection.pauses != self._pauses
        self._paused_before = throttled
        self._pauses = connection.pauses
        return paused

    def _takes_nothing(self) -> bool:
        """Whether the client was behind at the last look and has moved nothing since, either way."""
        before = self._moved_bytes
        self._moved_bytes = None if self._connection.writable else self._connection.moved_bytes
        return before is not None and before == self._moved_bytes
