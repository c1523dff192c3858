"""A kazoo client's session, seen from the event loop.

kazoo lives in one thread of its own. What it has to say (results, watch events, states) crosses to the loop in the
order in which the server said it, many at a time for one wake-up.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
)
from kazoo.protocol.serialization import int_struct, write_string
from kazoo.protocol.states import EventType, KazooState, WatchedEvent
from kazoo.retry import KazooRetry
from magnetar.core.errors import SettingError
from magnetar.metadata.silence_limit import SilenceLimit
from magnetar.metadata.store import NodeChange, Notification, SessionEvent, StoreClosed, StoreUnavailable
from magnetar.metadata.zookeeper_handler import Result, ZookeeperHandler, reconnect_whatever_is_said

logger: Final = logging.getLogger(__name__)

REQUESTS_IN_FLIGHT_MAX: Final = 128
"""kazoo wakes its thread through a socket pair that holds about 280 wake-ups; past that the loop would block."""

WATCHES_MAX: Final = 50_000
"""A watch costs half a kilobyte here and something at the server. The oldest makes room by telling a change that may
be none, so that whoever relied on it looks again."""

LOST_AFTER_SHARE: Final = 1 / 3
"""When, as a share of the session's timeout after kazoo saw the connection fail, the session counts as lost. kazoo
notices at most two thirds after the server last heard of us, so this is before the server can end the session."""

_NOTICED_AFTER_SHARE: Final = 2 / 3
"""The share of the granted session timeout after which a silent server counts as lost: kazoo calls it its read
timeout."""

FIRST_REPLY_SHARE: Final = LOST_AFTER_SHARE / 4
"""How long, as a share of the session's timeout, a server may take to answer first on a connection. The next one has
twice as long: two that say nothing leave time for a third before the session counts as lost."""

FIRST_REPLY_SECONDS_MAX: Final = 5.0
"""The limit of the first reply, of a long session too: operations wait for the connection. A server that is well
answers within milliseconds."""

RECONNECT_DELAY_SECONDS_MAX: Final = 1.0

CLOSE_SECONDS_MAX: Final = 0.5
"""How long the end of a session may take the server; it does it too when nobody waits for the answer."""

LEAVE_SECONDS_MAX: Final = 0.3
"""How long kazoo's thread may take to end once nothing is expected of the server any more. It may hang in a look-up of
a name or in a connection's first packets; it is a daemon, and has nothing to lose."""

_SEND_SECONDS_MAX: Final = 0.1
"""How long kazoo may take to send the end of a session to a server that is not expected to answer."""

_REPEAT_DELAY_SECONDS: Final = 0.02

_THROTTLED_DELAY_SECONDS: Final = 0.2
"""How long a server that has too much to do is left alone."""

_CONNECTION_ERRORS: Final = (
    AuthFailedError,
    ConnectionLoss,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)


class WatchKind(enum.Enum):
    """What a watch is on. The values are those of ZooKeeper's WatcherType."""

    CHILDREN = 1
    DATA = 2


class Watch(NamedTuple):
    """A one-shot watch that a request leaves at the server."""

    kind: WatchKind
    path: str


class ZookeeperSessionState(enum.Enum):
    """How the session stands."""

    NEW = enum.auto()
    CONNECTED = enum.auto()
    DISCONNECTED = enum.auto()
    LOST = enum.auto()


class SessionInput(enum.Enum):
    """What can happen to the session."""

    CONNECTED = enum.auto()
    SUSPENDED = enum.auto()
    ENDED = enum.auto()
    OVERDUE = enum.auto()
    """Disconnected for so long that the server may end the session at any moment."""


TURNS: Final[dict[tuple[ZookeeperSessionState, SessionInput], tuple[ZookeeperSessionState, SessionEvent]]] = {
    (ZookeeperSessionState.CONNECTED, SessionInput.SUSPENDED): (
        ZookeeperSessionState.DISCONNECTED,
        SessionEvent.CONNECTION_LOST,
    ),
    (ZookeeperSessionState.CONNECTED, SessionInput.ENDED): (ZookeeperSessionState.LOST, SessionEvent.SESSION_LOST),
    (ZookeeperSessionState.DISCONNECTED, SessionInput.CONNECTED): (
        ZookeeperSessionState.CONNECTED,
        SessionEvent.RECONNECTED,
    ),
    (ZookeeperSessionState.DISCONNECTED, SessionInput.ENDED): (ZookeeperSessionState.LOST, SessionEvent.SESSION_LOST),
    (ZookeeperSessionState.DISCONNECTED, SessionInput.OVERDUE): (ZookeeperSessionState.LOST, SessionEvent.SESSION_LOST),
    (ZookeeperSessionState.LOST, SessionInput.CONNECTED): (
        ZookeeperSessionState.CONNECTED,
        SessionEvent.SESSION_RESTARTED,
    ),
}
"""What each turn makes of the session and what owners are told; a turn that is not here changes nothing."""

_TURN_OF_STATE: Final = {
    KazooState.CONNECTED: SessionInput.CONNECTED,
    KazooState.SUSPENDED: SessionInput.SUSPENDED,
    KazooState.LOST: SessionInput.ENDED,
}


class _StopWatching(NamedTuple):
    """ZooKeeper's request RemoveWatches, which kazoo does not have."""

    path: str
    kind: int
    type: int = 18

    def serialize(self) -> bytearray:
        """Path and WatcherType."""
        return bytearray(write_string(self.path) + int_struct.pack(self.kind))

    def deserialize(self, _reply: bytes, _offset: int) -> None:
        """The reply is empty."""


class ZookeeperSession:
    """One session after the other with one ensemble; paths are the server's. All methods belong to the loop."""

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: int,
        operation_timeout_ms: int,
        on_notification: Callable[[Notification], None],
        on_session_event: Callable[[SessionEvent], None],
    ) -> None:
        self.session_id = 0
        self._hosts = hosts
        self._session_timeout_seconds = session_timeout_ms / 1000
        self._granted_seconds = self._session_timeout_seconds
        """What the server made of the session's timeout: less, where its `maxSessionTimeout` is less."""
        self._operation_timeout_seconds = operation_timeout_ms / 1000
        self._on_notification = on_notification
        self._on_session_event = on_session_event
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake_up_is_due = False
        self._fate = ZookeeperSessionState.NEW
        self._closed = False
        self._connected = asyncio.Event()
        self._overdue: asyncio.TimerHandle | None = None
        self._slots = asyncio.Semaphore(REQUESTS_IN_FLIGHT_MAX)
        self._pending: dict[Result, tuple[asyncio.Future[Any], Watch | None]] = {}
        self._armed: dict[Watch, None] = {}
        self._watchers = {WatchKind.DATA: self._post_data_event, WatchKind.CHILDREN: self._post_children_event}
        self._patience = SilenceLimit(self._give_up)
        first_reply_seconds = min(FIRST_REPLY_SECONDS_MAX, self._session_timeout_seconds * FIRST_REPLY_SHARE)
        kept_seconds = self._session_timeout_seconds * LOST_AFTER_SHARE
        self._handler = ZookeeperHandler(self._post_result, first_reply_seconds, kept_seconds)
        self._client = self._new_client(hosts)

    async def open(self) -> None:
        """Start, and wait for the first connection. `StoreUnavailable` if none stands within the operation timeout."""
        self._client.add_listener(self._post_state)
        self._client.start_async()
        try:
            async with asyncio.timeout(self._operation_timeout_seconds):
                await self._connected.wait()
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(f"no ZooKeeper answers at {self._hosts}") from error
            raise

    async def call(
        self, request: Callable[[KazooClient], Any], *, watch: Watch | None = None, repeatable: bool = False
    ) -> Any:
        """Send one request and return its result; kazoo's exceptions about nodes come through.

        Waits for a connection for as long as the operation timeout. A repeatable request is sent again when the
        connection fails under it, and any request that the server has no time for and did not look at (its
        `throttledOpWaitTime`); else, and when time is up, `StoreUnavailable`."""
        deadline = self._loop.time() + self._operation_timeout_seconds
        self._patience.requests += 1
        try:
            while True:
                await self._until_connected(deadline)
                try:
                    async with self._slots:
                        return await self._send(request, watch)
                except ThrottledOpError as error:
                    self._check_open()
                    if self._loop.time() >= deadline:
                        raise StoreUnavailable(f"ZooKeeper at {self._hosts} has too much to do") from error
                    await asyncio.sleep(_THROTTLED_DELAY_SECONDS)
                except _CONNECTION_ERRORS as error:
                    self._check_open()
                    if not repeatable:
                        raise StoreUnavailable(f"ZooKeeper at {self._hosts} went away under a write") from error
                    if self._loop.time() >= deadline:
                        # It may be connected all the while: a server may refuse this request alone, each time.
                        raise StoreUnavailable(f"ZooKeeper at {self._hosts} fails each attempt: {error!r}") from error
                    # The news that the connection is gone may still be on its way here: do not spin until it comes.
                    await asyncio.sleep(_REPEAT_DELAY_SECONDS)
        finally:
            self._patience.requests -= 1

    def limit_waiting(self, seconds: float) -> None:
        """Once a server that is asked has said nothing for so many seconds, fail all requests with `StoreClosed`. For a
        process that stops: it waits once, and not in each step."""
        self._patience.limit(seconds)

    def watcher(self, kind: WatchKind) -> Callable[[WatchedEvent], None]:
        """What a request with a watch of this kind gives kazoo; the same object each time, so that kazoo keeps one."""
        return self._watchers[kind]

    async def close(self) -> None:
        """End the session. Whatever is under way fails with `StoreClosed`. Without a server that answers it takes
        `CLOSE_SECONDS_MAX` and `LEAVE_SECONDS_MAX` at most, and the session ends by its timeout."""
        answers = self._connected.is_set() and not self._patience.ended
        self._closed = True
        self._patience.close()
        self._cancel_overdue()
        self._fail_pending(ConnectionClosedError("closed"))
        self._connected.set()
        stopped = asyncio.Event()
        # Not in the loop's own threads: the process would wait for those at its end.
        threading.Thread(target=self._stop_client, args=(stopped,), name="zookeeper-close", daemon=True).start()
        if await _happens(stopped, CLOSE_SECONDS_MAX if answers else _SEND_SECONDS_MAX):
            return
        self._handler.hang_up()
        if await _happens(stopped, LEAVE_SECONDS_MAX):
            logger.info("ZooKeeper at %s did not answer; it ends the session in time", self._hosts)
        else:
            logger.info("ZooKeeper at %s did not answer, and its client hangs; both are left alone", self._hosts)

    def _new_client(self, hosts: str) -> KazooClient:
        handler, longest = self._handler, RECONNECT_DELAY_SECONDS_MAX
        retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=longest, sleep_func=handler.sleep_func)
        asked_seconds = self._session_timeout_seconds
        try:
            client = KazooClient(hosts, timeout=asked_seconds, handler=handler, connection_retry=retry)
        except ValueError as error:
            raise SettingError(f"{hosts!r} is no list of ZooKeeper hosts: {error}") from error
        connection = client._connection  # noqa: SLF001  (it tells nobody what was granted)
        connect = connection._connect  # noqa: SLF001

        def connect_noting(*server: Any) -> tuple[float, float]:
            read_timeout_ms, connect_timeout_ms = connect(*server)
            self._granted_seconds = min(asked_seconds, read_timeout_ms / 1000 / _NOTICED_AFTER_SHARE)
            handler.session_kept_seconds = self._granted_seconds * LOST_AFTER_SHARE
            return read_timeout_ms, connect_timeout_ms

        connection._connect = connect_noting  # noqa: SLF001
        reconnect_whatever_is_said(client)
        return client

    def _stop_client(self, stopped: asyncio.Event) -> None:
        try:
            self._client.stop()
            self._client.close()
        except (KazooException, OSError) as error:
            logger.warning("the ZooKeeper session at %s was not ended: %s", self._hosts, error)
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            self._loop.call_soon_threadsafe(stopped.set)

    def _give_up(self) -> None:
        logger.warning("ZooKeeper at %s says nothing; the stop goes on without", self._hosts)
        self._fail_pending(ConnectionLoss())
        self._connected.set()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the metadata store is closed")
        if self._patience.ended:
            raise StoreClosed(f"ZooKeeper at {self._hosts} says nothing, and this process stops")

    async def _until_connected(self, deadline: float) -> None:
        self._check_open()
        if not self._connected.is_set():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._connected.wait()
            except TimeoutError:
                raise StoreUnavailable(f"no connection to ZooKeeper at {self._hosts}") from None
            self._check_open()

    async def _send(self, request: Callable[[KazooClient], Any], watch: Watch | None) -> Any:
        result = request(self._client)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending[result] = (future, watch)
        return await future

    # --- called in kazoo's thread (and in the loop's, for requests that fail at once)

    def _post(self, news: Callable[[], None]) -> None:
        self._inbox.append(news)
        if not self._wake_up_is_due:
            self._wake_up_is_due = True
            with contextlib.suppress(RuntimeError):  # The loop is closed: there is nobody to tell.
                self._loop.call_soon_threadsafe(self._take_inbox)

    def _post_result(self, result: Result) -> None:
        self._post(partial(self._take_result, result))

    def _post_state(self, state: str) -> None:
        client_id = self._client.client_id
        self._post(partial(self._take_turn, _TURN_OF_STATE[state], client_id[0] if client_id else 0))

    def _post_data_event(self, event: WatchedEvent) -> None:
        self._post(partial(self._take_event, WatchKind.DATA, event))

    def _post_children_event(self, event: WatchedEvent) -> None:
        self._post(partial(self._take_event, WatchKind.CHILDREN, event))

    # --- called in the loop

    def _take_inbox(self) -> None:
        self._wake_up_is_due = False
        while self._inbox:
            self._inbox.popleft()()

    def _take_result(self, result: Result) -> None:
        future, watch = self._pending.pop(result, (None, None))
        if not isinstance(result.exception, _CONNECTION_ERRORS):
            self._patience.answered()
        if result.successful():
            if watch is not None:
                self._arm(watch)
            if future is not None and not future.done():
                future.set_result(result.value)
            return
        error = result.exception
        if not isinstance(error, KazooException):
            error = StoreUnavailable(f"an answer of ZooKeeper at {self._hosts} cannot be read: {error!r}")
        if future is not None and not future.done():
            future.set_exception(error)

    def _take_turn(self, turn: SessionInput, session_id: int) -> None:
        if self._closed:
            return
        if turn is SessionInput.CONNECTED:
            self.session_id = session_id
            self._patience.answered()
            self._connected.set()
            self._cancel_overdue()
            self._tell_missed_changes()
        else:
            self._connected.clear()
        if turn is SessionInput.OVERDUE:
            self._fail_pending(ConnectionLoss())
        if turn is SessionInput.CONNECTED and self._fate is ZookeeperSessionState.NEW:
            self._fate = ZookeeperSessionState.CONNECTED
            return
        after = TURNS.get((self._fate, turn))
        if after is None:
            return
        self._fate, event = after
        if self._fate is ZookeeperSessionState.DISCONNECTED:
            seconds = self._granted_seconds * LOST_AFTER_SHARE
            self._overdue = self._loop.call_later(seconds, self._take_turn, SessionInput.OVERDUE, 0)
        self._on_session_event(event)

    def _take_event(self, kind: WatchKind, event: WatchedEvent) -> None:
        watch = Watch(kind, event.path)
        if event.type == EventType.NONE or watch not in self._armed:
            return
        del self._armed[watch]
        match event.type:
            case EventType.CREATED:
                change = NodeChange.CREATED
            case EventType.CHANGED:
                change = NodeChange.MODIFIED
            case EventType.CHILD:
                change = NodeChange.CHILDREN_CHANGED
            case _:
                # Both kinds of watches end with the node; one notification is enough.
                self._armed.pop(Watch(WatchKind.DATA, event.path), None)
                self._armed.pop(Watch(WatchKind.CHILDREN, event.path), None)
                change = NodeChange.DELETED
        self._on_notification(Notification(change, event.path))

    def _arm(self, watch: Watch) -> None:
        self._armed.pop(watch, None)
        self._armed[watch] = None
        if len(self._armed) > WATCHES_MAX:
            oldest = next(iter(self._armed))
            del self._armed[oldest]
            self._stop_watching(oldest)
            self._on_notification(_possible_change(oldest))

    def _stop_watching(self, watch: Watch) -> None:
        # kazoo has no way to give up a watch: take it from its table and tell the server.
        client = self._client
        table = client._data_watchers if watch.kind is WatchKind.DATA else client._child_watchers  # noqa: SLF001
        table.pop(watch.path, None)
        client._call(_StopWatching(watch.path, watch.kind.value), client.handler.async_result())  # noqa: SLF001

    def _tell_missed_changes(self) -> None:
        watches, self._armed = self._armed, {}
        for watch in watches:
            self._on_notification(_possible_change(watch))

    def _fail_pending(self, error: KazooException) -> None:
        pending, self._pending = self._pending, {}
        for future, _ in pending.values():
            if not future.done():
                future.set_exception(error)

    def _cancel_overdue(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


def _possible_change(watch: Watch) -> Notification:
    change = NodeChange.MODIFIED if watch.kind is WatchKind.DATA else NodeChange.CHILDREN_CHANGED
    return Notification(change, watch.path)


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
