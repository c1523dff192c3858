"""The connections of an HTTP server, which is somebody else's: how many there are, and that none takes for ever.

Stands between the event loop and the server's own protocol (`magnetar.net.http.watched`), and among its middlewares,
so that it sees bytes come and go and requests begin and end. Slow clients are cut off; where there are too many
connections, the one goes that has been waiting for the longest without asking for anything.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from socket import socket
from typing import Any, Final, TypeVar

from magnetar.core.errors import forget_frames
from magnetar.net.accepting import ENOUGH, Acceptor, MakeProtocol, bound
from magnetar.net.descriptors import open_files_max
from magnetar.net.http.held_bodies import HeldBodies
from magnetar.net.http.intake import Intake
from magnetar.net.http.pace import DEFAULT, HttpLimits, Pace
from magnetar.net.http.served import HttpRequest
from magnetar.net.http.watched import Watched
from magnetar.net.http.work_turns import WorkTurns
from magnetar.net.one_per_turn import OnePerTurn
from magnetar.net.refused_connections import FILES_SETTING, ConnectionLimit, LimitKind, RefusedConnections

logger: Final = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 1.0
"""How often connections are looked at: two thousand take a millisecond or two."""

LISTEN_BACKLOG: Final = 1_024

SHARE_OF_FILES: Final = 4
"""HTTP takes no more than this part of the files that the process may open: clients have the rest."""

SHARE_OF_ARRIVALS: Final = 4
"""When all connections stand that may, this part of their number may be at the TLS handshake beside them."""

CHUNKS_IN_TURN: Final = 500
"""Of bodies, in one turn of the loop, and those of one piece more: with a microsecond or two each, a few
milliseconds."""

Answer = TypeVar("Answer")


AnyRequest = TypeVar("AnyRequest", bound=HttpRequest)


class HttpConnections:
    """All connections of one server."""

    def __init__(self, limits: HttpLimits = DEFAULT, refused: RefusedConnections | None = None) -> None:
        """In a running event loop. `refused` counts the connections that there is no place for."""
        self._limits = limits
        self._refused = refused if refused is not None else RefusedConnections((LimitKind.HTTP,))
        self._loop = asyncio.get_running_loop()
        self._connections: dict[asyncio.Transport, Watched] = {}
        self._waiting: dict[Watched, float] = {}
        """Who goes when there is no place, the last one first, and since when each waits. Sorted anew when all of them
        have gone: to look through two thousand for each newcomer takes a second where a thousand come together."""
        self._acceptors: list[Acceptor] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._limit = limit_of(limits)
        self._bodies: HeldBodies[Watched] = HeldBodies(limits.bodies_bytes_max, self._limit.connections_max)
        self._behind: dict[Watched, int] = {}
        """Clients that do not take their answers at once, with the bytes that waited when that was looked at."""
        self._behind_bytes = 0
        """Their sum. They may wait for less by now."""
        self.chunks = WorkTurns(self._loop, CHUNKS_IN_TURN)
        """When bodies in chunks are parsed."""
        self._turns = OnePerTurn(self._loop)
        """A list of topics takes milliseconds, and a client asks for it with a hundred bytes."""

    async def listen(self, make_protocol: MakeProtocol, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open a port (0: any free one); returns which. OSError when it is taken.

        `make_protocol` gives the server's own, for one connection."""
        listening = await bound(host, port)
        found: int = listening[0].getsockname()[1]
        for one in listening:
            await self.listen_at(make_protocol, one, tls)
        return found

    async def listen_at(
        self, make_protocol: MakeProtocol, listening: socket, tls: ssl.SSLContext | None = None
    ) -> None:
        """Answer at a socket that is bound, or listens already; it is closed with the others."""
        acceptor = Acceptor([listening], lambda: Watched(make_protocol, self), self, backlog=LISTEN_BACKLOG, tls=tls)
        self._acceptors.append(acceptor)
        await acceptor.start_serving()

    async def serve(self, request: AnyRequest, handler: Callable[[AnyRequest], Awaitable[Answer]]) -> Answer:
        """A middleware, the outermost. `handler` returns aiohttp's errors as responses: the request refers to them, and
        raised, they would refer to it by their traceback, until the collector of cycles comes by."""
        watched = None if request.transport is None else self._connections.get(request.transport)
        if watched is None:
            return await handler(request)
        watched.began(request)
        try:
            await self._turns.begin()
            watched.has_its_turn()
            return await handler(request)
        finally:
            watched.answered(request)

    def stop_listening(self) -> None:
        """Connections go on. Twice is no error."""
        for acceptor in self._acceptors:
            acceptor.close()

    async def close(self) -> None:
        """Stop listening and cut what is left."""
        self.stop_listening()
        for acceptor in self._acceptors:
            await acceptor.wait_closed()
        for watched in list(self._connections.values()):
            watched.cut()
        if self._sweeping is not None:
            self._sweeping.cancel()

    @property
    def open_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    @property
    def serving_count(self) -> int:
        """Connections with a request under way."""
        return sum(watched.pace.serving for watched in self._connections.values())

    @property
    def arriving(self) -> int:
        """Connections at their TLS handshake."""
        return sum(acceptor.arriving for acceptor in self._acceptors)

    # --- magnetar.net.accepting.ConnectionBudget

    def left(self) -> int:
        """How many more there may be. Where there are no more, some may arrive all the same: one that waits makes room
        for one that stands."""
        places = self._limit.connections_max
        return max(places // SHARE_OF_ARRIVALS, places - len(self._connections), 1)

    def left_of(self, host: str) -> int:
        """From one address: addresses have no limit of their own."""
        del host
        return ENOUGH

    def refused(self, host: str, kind: LimitKind) -> None:
        """Note that a connection cannot stay."""
        self._refused.refused(host, self._limit if kind is LimitKind.FILES else ConnectionLimit(0, kind, ""))

    # --- for the connections

    def enter(self, watched: Watched, transport: asyncio.Transport) -> bool:
        """Give a new connection a place; False when there is none."""
        if len(self._connections) >= self._limit.connections_max and not self._make_room():
            self._refused.refused(watched.peer, self._limit)
            return False
        self._connections[transport] = watched
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        return True

    def hold(self, watched: Watched, size_bytes: int, *, gives_way: bool) -> None:
        """It has so much of requests in memory from now on. When all have too much, the oldest that may be given up
        goes."""
        self._bodies.hold(watched, size_bytes, gives_way=gives_way)
        while (oldest := self._bodies.next_to_go()) is not None:
            logger.warning("giving up the request of %s: bodies take too much memory", oldest.peer)
            self._bodies.hold(oldest, 0, gives_way=False)
            oldest.give_up()

    def fell_behind(self, watched: Watched) -> None:
        """A client does not take its answer at once. Where all of them have too much, the largest are cut."""
        self.caught_up(watched)
        size_bytes = self._behind[watched] = watched.unsent_bytes
        self._behind_bytes += size_bytes
        if self._behind_bytes > self._limits.answers_bytes_max:
            # Behind the write that brought this about.
            self._loop.call_soon(self._cut_the_largest, list(self._behind))

    def caught_up(self, watched: Watched) -> None:
        """It has taken its answer, or is gone."""
        self._behind_bytes -= self._behind.pop(watched, 0)

    def new_intake(self) -> Intake:
        """For a connection that begins now."""
        return Intake(self._limits)

    @property
    def body_bytes_max(self) -> int:
        """Bytes that the body of one request may have in memory."""
        return self._limits.body_bytes_max

    def leave(self, transport: asyncio.Transport | None) -> None:
        """Note that a connection is gone."""
        watched = None if transport is None else self._connections.pop(transport, None)
        if watched is not None:
            self._waiting.pop(watched, None)

    def new_pace(self) -> Pace:
        """For a connection that begins now."""
        return Pace(self._limits, self._loop.time())

    def now_seconds(self) -> float:
        """The loop's time."""
        return self._loop.time()

    def soon(self, callback: Callable[[], None]) -> None:
        """In the loop's next turn."""
        self._loop.call_soon(callback)

    def _cut_the_largest(self, among: Iterable[Watched]) -> None:
        """Where answers that are not taken have too much memory. A client asks for megabytes with a hundred bytes."""
        self._behind = {watched: size_bytes for watched in among if (size_bytes := watched.unsent_bytes)}
        self._behind_bytes = sum(self._behind.values())
        if self._behind_bytes <= self._limits.answers_bytes_max:
            return
        for watched in sorted(self._behind, key=self._behind.__getitem__, reverse=True):
            logger.warning("cutting the HTTP connection of %s: answers take too much memory", watched.peer)
            watched.cut()
            self.caught_up(watched)
            if self._behind_bytes <= self._limits.answers_bytes_max:
                return

    def _make_room(self) -> bool:
        longest = self._next_to_go() or self._next_to_go()
        if longest is None:
            return False
        self._refused.refused(longest.peer, self._limit)
        # Now, not when it is lost: others that come in this turn of the loop would have the same one go.
        self.leave(longest.transport)
        longest.cut()
        return True

    def _next_to_go(self) -> Watched | None:
        """The connection that has waited longest. None: the list was used up and is sorted anew, so ask again."""
        while self._waiting:
            watched, since_seconds = self._waiting.popitem()
            if not watched.pace.serving and watched.pace.waiting_since_seconds == since_seconds:
                return watched
        waiting = [watched for watched in self._connections.values() if not watched.pace.serving]
        waiting.sort(key=lambda watched: watched.pace.waiting_since_seconds, reverse=True)
        self._waiting = {watched: watched.pace.waiting_since_seconds for watched in waiting}
        return None

    def _sweep(self) -> None:
        self._sweeping = None
        now_seconds = self._loop.time()
        for watched in list(self._connections.values()):
            watched.sweep(now_seconds)
        self._cut_the_largest(self._connections.values())
        if self._connections:
            self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp tells of errors, at any level: then it is done with them. Their tracebacks refer to what was read,
    and that to the errors."""

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        super().log(level, msg, *args, **kwargs)
        error = kwargs.get("exc_info")
        if isinstance(error, BaseException):
            forget_frames(error)


SERVER_LOG: Final = _ServerLog(logging.getLogger("aiohttp.server"))
"""The logger that aiohttp's runners are given: it lets go of what the errors' frames refer to."""


def _not_a_clients_mistake(record: logging.LogRecord) -> bool:
    """Whether something is worth a line, and a traceback: requests that are no HTTP are answered 400, and are not."""
    kind = None if not record.exc_info else record.exc_info[0]
    return kind is None or not kind.__module__.startswith("aiohttp.http_exceptions")


logging.getLogger("aiohttp.server").addFilter(_not_a_clients_mistake)


def limit_of(limits: HttpLimits) -> ConnectionLimit:
    """How many connections there may be, as few files as this process may open."""
    files_max = max(1, open_files_max() // SHARE_OF_FILES)
    if limits.connections_max <= files_max:
        return ConnectionLimit(limits.connections_max, LimitKind.HTTP, limits.connections_setting)
    return ConnectionLimit(files_max, LimitKind.HTTP, FILES_SETTING)
