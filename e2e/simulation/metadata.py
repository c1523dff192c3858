"""One metadata service and its clients' sessions, with everything that can happen between them.

Requests and answers travel; a request may be lost, and so may an answer to a write that happened. A session whose
host does not get through for long enough expires: its ephemeral nodes vanish, which its owner hears of later.

As with ZooKeeper, each session reads from a follower, which may lag behind: it sees what it has written itself, never
goes back, and may not see yet what others have written.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol, TypeVar

from magnetar.core.clock import Clock
from magnetar.metadata.listeners import Listeners
from magnetar.metadata.memory import MemoryTable
from magnetar.metadata.store import (
    ANY_VERSION,
    Node,
    Notification,
    SessionEvent,
    Stat,
    StoreClosed,
    StoreUnavailable,
)
from magnetar.metadata.tree import Outcome, TreeRules

T = TypeVar("T")

METADATA_HOST: Final = "metadata"
SESSION_SECONDS: Final = 4.0
HEARTBEAT_SECONDS: Final = 0.7
DELAY_SECONDS: Final = 300e-6


class Paths(Protocol):
    """What the service must know of the network."""

    def is_blocked(self, source: str, target: str) -> bool:
        """Whether nothing gets through in this direction now."""
        ...


class Follower:
    """A copy of the tree that is behind by up to `lag_seconds_max`."""

    def __init__(self, service: MetadataService, clock: Clock) -> None:
        self.lag_seconds_max = 0.0
        self.table = MemoryTable()
        self.rules = TreeRules(self.table, clock)
        self.applied = 0
        """Number of the last outcome that is in here."""
        self._service = service
        self._last_moment = 0.0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def take(self, number: int, outcome: Outcome) -> None:
        """The leader has made an outcome so."""
        if not self.lag_seconds_max and self.applied == number - 1:
            self._apply(number, outcome)
            return
        loop = asyncio.get_running_loop()
        moment = max(self._last_moment, loop.time() + self._service.rng.random() * self.lag_seconds_max)
        self._last_moment = moment
        loop.call_at(moment, self._apply, number, outcome, context=self._service.context.copy())

    def when_applied(self, number: int, act: Callable[[], None]) -> None:
        """Act when everything up to this outcome is in here; in the order of the calls."""
        if self.applied >= number and not self._waiting:
            act()
        else:
            self._waiting.append((number, act))

    def _apply(self, number: int, outcome: Outcome) -> None:
        self.table.apply(outcome)
        self.applied = number
        for session in self._service.sessions.values():
            session.told(self, outcome.notifications)
        while self._waiting and self._waiting[0][0] <= number:
            self._waiting.popleft()[1]()


class MetadataService:
    """The tree, and the sessions that are open on it."""

    def __init__(self, clock: Clock, rng: random.Random, paths: Paths | None = None) -> None:
        self.rng = rng
        self.paths = paths
        self.lost_answer_share = 0.0
        """Answers that are lost with their connection."""
        self.table = MemoryTable()
        self.rules = TreeRules(self.table, clock)
        self.context = contextvars.copy_context()
        self.followers = [Follower(self, clock) for _ in range(2)]
        self.outcomes = 0
        """How many there were."""
        self.sessions: dict[int, SimulatedMetadata] = {}
        self.on_applied: Callable[[Outcome, str], None] = lambda _outcome, _host: None
        """Told of each outcome, when it is so, and of the host that asked for it."""
        self._last_session_id = 0

    def open(self, session: SimulatedMetadata) -> int:
        """A new session begins."""
        self._last_session_id += 1
        self.sessions[self._last_session_id] = session
        return self._last_session_id

    def end(self, session_id: int) -> None:
        """A session is over; its ephemeral nodes vanish."""
        if self.sessions.pop(session_id, None) is not None:
            self.apply(self.rules.end_session(session_id))

    def apply(self, outcome: Outcome, host: str = METADATA_HOST) -> None:
        """Make an outcome so; followers have it, and their sessions hear of it, sooner or later."""
        self.table.apply(outcome)
        self.on_applied(outcome, host)
        self.outcomes += 1
        for follower in self.followers:
            follower.take(self.outcomes, outcome)

    def reachable(self, host: str) -> bool:
        """Whether a host and the service hear each other."""
        paths = self.paths
        return paths is None or not (paths.is_blocked(host, METADATA_HOST) or paths.is_blocked(METADATA_HOST, host))

    def delay_seconds(self) -> float:
        """How long the next message takes."""
        return self.rng.expovariate(1 / DELAY_SECONDS)


class SimulatedMetadata:
    """A `MetadataStore` for one process."""

    def __init__(self, service: MetadataService, host: str, is_alive: Callable[[], bool] = lambda: True) -> None:
        """To be made by the process itself."""
        self._service = service
        self._host = host
        self._is_alive = is_alive
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._changes: Listeners[Notification] = Listeners()
        self._events: Listeners[SessionEvent] = Listeners()
        self._follower = service.rng.choice(service.followers)
        self._must_see = 0
        self._session_id = service.open(self)
        self._connected = True
        self._connection = 0
        self._closed = False
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._next_request = 0
        self._last_arrival = 0.0
        self._last_reply = 0.0
        self._heard_at = self._loop.time()
        self._heartbeat = self._later(HEARTBEAT_SECONDS, self._look)

    # --- the verbs

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        """See `MetadataStore.get`; whoever listens hears of this node in any case."""
        return await self._ask(lambda session: self._follower.rules.get(path, session), reads=True)

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Stat:
        """See `MetadataStore.put`."""

        def put(session: int) -> Stat | None:
            outcome = self._service.rules.put(
                path, value, expected_version, session, ephemeral=ephemeral, sequential=sequential
            )
            self._service.apply(outcome, self._host)
            return outcome.stat

        stat = await self._ask(put)
        assert stat is not None
        return stat

    async def put_while_there(self, path: str, value: bytes, expected_version: int, others: Collection[str]) -> int:
        """See `MetadataStore.put_while_there`."""

        def put(session: int) -> Stat | None:
            rules = self._service.rules
            rules.check_there(others)
            outcome = rules.put(path, value, expected_version, session, ephemeral=False, sequential=False)
            self._service.apply(outcome, self._host)
            return outcome.stat

        stat = await self._ask(put)
        assert stat is not None
        return stat.version

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        """See `MetadataStore.delete`."""
        service = self._service
        await self._ask(lambda _: service.apply(service.rules.delete(path, expected_version), self._host))

    async def delete_recursively(self, path: str) -> None:
        """See `MetadataStore.delete_recursively`."""
        service = self._service
        await self._ask(lambda _: service.apply(service.rules.delete_recursively(path), self._host))

    async def exists(self, path: str, *, watch: bool = True) -> bool:
        """See `MetadataStore.exists`."""
        return await self.get(path) is not None

    async def children(self, path: str, *, watch: bool = True) -> list[str]:
        """See `MetadataStore.children`."""
        return await self._ask(lambda _: self._follower.rules.children(path), reads=True)

    def watch(self, listener: Callable[[Notification], None]) -> Callable[[], None]:
        """See `MetadataStore.watch`."""
        return self._changes.add(listener)

    def watch_session(self, listener: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """See `MetadataStore.watch_session`."""
        return self._events.add(listener)

    def limit_waiting(self, seconds: float) -> None:
        """See `MetadataStore.limit_waiting`; the processes that call it are not simulated."""

    async def close(self) -> None:
        """See `MetadataStore.close`; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._changes.clear()
        self._events.clear()
        self._heartbeat.cancel()
        if self._connected and self._service.reachable(self._host):
            self._service.end(self._session_id)
        self._fail_pending(StoreClosed("the metadata store is closed"))
        await asyncio.sleep(0)

    # --- what can happen to a session

    def expire(self) -> None:
        """The service ends the session; its owner hears of it a while later."""
        self._service.end(self._session_id)
        self._later(self._service.rng.random(), self._lose_connection)

    def told(self, follower: Follower, notifications: list[Notification]) -> None:
        """A follower: changes can be read there."""
        if follower is not self._follower or not self._connected or self._closed or not notifications:
            return
        connection = self._connection
        if self._service.reachable(self._host):
            self._reply(lambda: self._tell(connection, notifications))
        else:
            # What a connection does not deliver ends it: nobody goes on unaware of what was said meanwhile.
            self._later(self._service.delay_seconds(), lambda: self._lose(connection))

    def _tell(self, connection: int, notifications: list[Notification]) -> None:
        if connection == self._connection and self._connected:
            self._changes.tell(notifications)

    # --- requests

    async def _ask(self, act: Callable[[int], T], *, reads: bool = False) -> T:
        if self._closed:
            raise StoreClosed("the metadata store is closed")
        if not self._connected:
            raise StoreUnavailable("the metadata store is out of reach")
        future: asyncio.Future[T] = self._loop.create_future()
        self._next_request += 1
        request = self._next_request
        self._pending[request] = future
        arrival = max(self._loop.time() + self._service.delay_seconds(), self._last_arrival)
        self._last_arrival = arrival
        serve = self._read if reads else self._write
        # On behalf of nobody, for a request may outlive its sender.
        self._loop.call_at(arrival, serve, self._connection, request, act, context=self._service.context.copy())
        return await future

    def _arrived(self, connection: int) -> bool:
        service = self._service
        if connection != self._connection or self._closed:
            return False
        if not service.reachable(self._host) or self._session_id not in service.sessions:
            self._later(service.delay_seconds(), self._lose_connection)
            return False
        return True

    def _read(self, connection: int, request: int, act: Callable[[int], Any]) -> None:
        if self._arrived(connection):
            self._follower.when_applied(
                self._must_see, lambda: self._answer(connection, request, *_outcome_of(act, self._session_id))
            )

    def _write(self, connection: int, request: int, act: Callable[[int], Any]) -> None:
        # A write that is refused is a transaction as well: its sender sees what made it fail.
        if self._arrived(connection):
            result = _outcome_of(act, self._session_id)
            self._must_see = self._service.outcomes
            self._follower.when_applied(self._must_see, lambda: self._answer(connection, request, *result))

    def _answer(self, connection: int, request: int, result: Any, error: Exception | None) -> None:
        service = self._service
        if connection != self._connection:
            return
        if service.lost_answer_share and service.rng.random() < service.lost_answer_share:
            self._later(service.delay_seconds(), service.rng.choice((self._lose_connection, self._blink)))
            return
        self._reply(lambda: self._answered(request, result, error))

    def _answered(self, request: int, result: Any, error: Exception | None) -> None:
        future = self._pending.pop(request, None)
        if future is None or future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _reply(self, deliver: Callable[[], None]) -> None:
        arrival = max(self._loop.time() + self._service.delay_seconds(), self._last_reply)
        self._last_reply = arrival
        self._loop.call_at(arrival, deliver, context=self._context)

    def _later(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, act, context=self._context)

    # --- the session's life

    def _look(self) -> None:
        """A heartbeat."""
        if self._service.reachable(self._host):
            self._heard_at = self._loop.time()
            if not self._connected:
                self._connect_again()
            elif self._session_id not in self._service.sessions:
                self._lose_connection()
        else:
            self._lose_connection()
        self._heartbeat = self._later(HEARTBEAT_SECONDS, self._look)

    def check_expiry(self) -> None:
        """The service: end the session if its owner was not heard of for too long."""
        if self._closed or self._session_id not in self._service.sessions:
            return
        if self._is_alive() and self._service.reachable(self._host):
            self._heard_at = self._loop.time()
        elif self._loop.time() - self._heard_at > SESSION_SECONDS:
            self._service.end(self._session_id)

    def _lose(self, connection: int) -> None:
        if connection == self._connection:
            self._lose_connection()

    def _lose_connection(self) -> None:
        if self._closed or not self._connected:
            return
        self._connected = False
        self._connection += 1
        self._events.tell([SessionEvent.CONNECTION_LOST])
        self._fail_pending(StoreUnavailable("the connection to the metadata store is lost"))

    def _blink(self) -> None:
        """The connection is lost and there again before anybody can act on it."""
        self._lose_connection()
        if not self._closed and not self._connected and self._service.reachable(self._host):
            self._connect_again()

    def _connect_again(self) -> None:
        self._connected = True
        self._connection += 1
        if self._session_id in self._service.sessions:
            self._events.tell([SessionEvent.RECONNECTED])
            return
        self._session_id = self._service.open(self)
        self._events.tell([SessionEvent.SESSION_LOST, SessionEvent.SESSION_RESTARTED])

    def _fail_pending(self, error: StoreUnavailable) -> None:
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(error)


def _outcome_of(act: Callable[[int], Any], session_id: int) -> tuple[Any, Exception | None]:
    """(what it returns, what it raises)."""
    try:
        return act(session_id), None
    except Exception as error:  # noqa: BLE001  (it is the caller's)
        return None, error


async def watch_sessions(service: MetadataService) -> None:
    """Let sessions expire; runs until cancelled, on behalf of the service."""
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        for session in list(service.sessions.values()):
            session.check_expiry()
