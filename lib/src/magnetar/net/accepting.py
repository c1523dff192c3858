"""Accepting connections: a few in each turn of the event loop, of which a bounded number is at its TLS handshake.

An event loop's own server accepts all that come, and tells of a connection only once its handshake is finished: what
counts connections would not see thousands of half handshakes, each of which has a file. With a listening socket of our
own each connection counts from the moment that it is accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

from magnetar.net.descriptors import handshakes_max
from magnetar.net.pending_handshakes import PendingHandshakes
from magnetar.net.refused_connections import LimitKind
from magnetar.net.secured_transport import Unread, secured_from_the_start
from magnetar.net.throttled_report import ThrottledReport

logger: Final = logging.getLogger(__name__)

TURNS_MIN: Final = 16
"""In so many turns of the loop, at least, the room for arrivals is filled: an honest client's handshake takes a few."""

ACCEPTED_IN_TURN_MAX: Final = 32
"""Connections accepted in one turn of the event loop: others have the loop in between."""

ENDING_MAX: Final = 32
"""Connections that were cut and still have their file, for a turn or two, beside those that arrive."""

PAUSE_SECONDS: Final = 1.0
"""Before another attempt where none could be accepted, such as without a file to be had."""

MakeProtocol: TypeAlias = Callable[[], asyncio.Protocol]


class ConnectionBudget(Protocol):
    """How many connections may still come to stand."""

    def left(self) -> int:
        """Altogether; 0 or less: whoever arrives is refused."""
        ...

    def left_of(self, host: str) -> int:
        """How many more connections may come to stand from one address."""
        ...

    def refused(self, host: str, kind: LimitKind) -> None:
        """Be told of one that has to go."""
        ...


ENOUGH: Final = sys.maxsize
"""Places where nothing limits them."""


class Acceptor:
    """Accepts connections on listening sockets, and has protocols made for them. Has what is used of
    `asyncio.Server`."""

    def __init__(
        self,
        listening: Sequence[socket.socket],
        make_protocol: MakeProtocol,
        places: ConnectionBudget,
        *,
        backlog: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        """The sockets are bound, and closed with this. `make_protocol` is called for each connection that arrives;
        its `connection_made` when it stands."""
        self._loop = asyncio.get_running_loop()
        self.sockets = list(listening)
        self._make_protocol = make_protocol
        self._places = places
        self._backlog = backlog
        self._tls = tls
        self._arrivals: PendingHandshakes[_Arrival] = PendingHandshakes(handshakes_max())
        self._tasks: set[asyncio.Task[None]] = set()
        self._resuming: dict[socket.socket, asyncio.TimerHandle] = {}
        self._serving = False
        self._failed = ThrottledReport(self._tell_failed, self._loop.call_later)
        self._failure = ""

    @property
    def arriving(self) -> int:
        """Connections that were accepted and do not stand yet."""
        return len(self._arrivals)

    async def start_serving(self) -> None:
        """Accept from now on. Twice is no error."""
        if self._serving:
            return
        self._serving = True
        for listening in self.sockets:
            listening.setblocking(False)
            listening.listen(self._backlog)
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Stop listening; who has arrived goes on. Twice is no error."""
        listening, self.sockets = self.sockets, []
        for timer in self._resuming.values():
            timer.cancel()
        self._resuming.clear()
        for one in listening:
            if self._serving:
                self._loop.remove_reader(one)
            one.close()

    async def wait_closed(self) -> None:
        """Cut who has arrived and does not stand; returns when they are gone."""
        for arrival in self._arrivals.all():
            self._arrivals.leave(arrival)
            arrival.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self, listening: socket.socket) -> None:
        left = self._places.left()
        for _ in range(max(1, min(ACCEPTED_IN_TURN_MAX, self._arrivals.room(left) // TURNS_MIN))):
            if len(self._tasks) >= self._arrivals.places + ENDING_MAX:
                return  # Those that were cut have the next turn.
            wait_seconds = self._arrivals.wait_seconds(self._loop.time(), left)
            if wait_seconds > 0:
                self._pause(listening, wait_seconds)
                return
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._failure = error.strerror or str(error)
                self._failed.happened()
                self._pause(listening, PAUSE_SECONDS)
                return
            self._arrived(accepted, str(address[0]), left)

    def _arrived(self, accepted: socket.socket, host: str, left: int) -> None:
        if left <= 0:
            accepted.close()
            self._places.refused(host, LimitKind.FILES)
            return
        accepted.setblocking(False)
        arrival = _Arrival(accepted, host)
        made_room = self._arrivals.enter(arrival, host, self._loop.time(), left, self._places.left_of(host))
        if made_room is not None:
            gone, kind = made_room
            gone.cut()
            self._places.refused(gone.host, kind)
        task = self._loop.create_task(self._arrive(arrival))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _arrive(self, arrival: _Arrival) -> None:
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(self._make_protocol, arrival.accepted)
            else:
                await self._secure(arrival.accepted, self._tls)
        except OSError as error:
            logger.debug("the TLS handshake of %s failed: %s", arrival.host, error)
        else:
            self._arrivals.stands(arrival)
        finally:
            self._arrivals.leave(arrival)
            for listening in list(self._resuming):
                self._resume(listening)  # There is room, or a file.

    async def _secure(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        bare, _ = await self._loop.connect_accepted_socket(Unread, accepted)
        await secured_from_the_start(bare, self._make_protocol, tls, server_side=True)

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        # The socket stays ready: without a pause, the loop would come back here in each of its turns.
        self._loop.remove_reader(listening)
        self._resuming[listening] = self._loop.call_later(seconds, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        self._resuming.pop(listening).cancel()
        self._loop.add_reader(listening, self._accept, listening)

    def _tell_failed(self, _: int) -> None:
        logger.error("no connection can be accepted: %s; this is tried again every second", self._failure)


class _Arrival:
    """A connection that was accepted."""

    __slots__ = ("accepted", "host")

    def __init__(self, accepted: socket.socket, host: str) -> None:
        self.accepted = accepted
        self.host = host

    def cut(self) -> None:
        """Its transport, which may not be there yet, reads an end and closes."""
        try:
            self.accepted.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            logger.debug("the connection of %s has ended already: %s", self.host, error)


def sharing(*, shared: bool) -> dict[str, Any]:
    """What makes an event loop's server one of several at its address; the simulator's knows no such."""
    return {"reuse_port": True} if shared else {}


@contextlib.contextmanager
def known_host(host: str) -> Iterator[None]:
    """`socket.gaierror`, which is an OSError, says which host has no address."""
    try:
        yield
    except socket.gaierror as error:
        raise socket.gaierror(error.errno, f"{host!r} is no host that is known here: {error.strerror}") from None
    except ValueError as error:
        # Labels that are empty or too long: no resolver is asked for them.
        raise socket.gaierror(socket.EAI_NONAME, f"no host can be called {host!r}: {error}") from None


async def bound(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Sockets of our own for an address, which do not listen yet. OSError when it is taken or not ours. With `shared`
    other processes of the same user may listen there too, and the kernel spreads connections over them."""
    # The loop knows what a host stands for, and this is to be the same for all ports.
    with known_host(host):
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, host, port, reuse_address=True, start_serving=False, **sharing(shared=shared)
        )
    try:
        return [socket.socket(fileno=os.dup(one.fileno())) for one in server.sockets]
    finally:
        server.close()
