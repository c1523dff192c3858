"""kazoo's threads, made to do less for each request; `magnetar.metadata.zookeeper_session` uses it.

kazoo asks an epoll object that it makes anew before each of the four reads and writes of a request and its reply, and
reads the length and the body of each reply by themselves: more than a third of the CPU of a store under load.

It also waits for the first reply on a connection as long as the session lives. A ZooKeeper that starts accepts some
connections that it never answers (seen with 3.9.5), so here the next one is tried much sooner.

And its thread ends, for good, when a server says what it does not expect: here that ends the connection.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.connection import AUTH_XID, ConnectionDropped
from kazoo.protocol.states import KeeperState
from magnetar.core.limits import MIB

logger: Final = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 64 * 1024
"""Read at a time: hundreds of usual replies. A larger one takes several reads."""

REPLY_BYTES_MAX: Final = 256 * MIB
"""A list of several million children. Java's client takes 1 MiB, unless `jute.maxbuffer` says more."""


class Result(AsyncResult):  # type: ignore[misc]  # kazoo has no types.
    """A result that is handed over at the moment when it is there, and so in the server's order."""

    def __init__(self, handler: ZookeeperHandler) -> None:
        super().__init__(handler)
        self._hand_over = handler.hand_over

    def set(self, value: Any = None) -> None:
        super().set(value)
        self._hand_over(self)

    def set_exception(self, exception: BaseException) -> None:
        super().set_exception(exception)
        self._hand_over(self)


class BufferedSocket:
    """A socket that does not block, and that is read in large pieces; what kazoo needs of one."""

    def __init__(
        self, connected: socket.socket, now: Callable[[], float] = time.monotonic, began_seconds: float = 0.0
    ) -> None:
        """`began_seconds`: when the connection was asked for, by the clock `now`."""
        self._socket = connected
        self._now = now
        self._began_seconds = began_seconds
        self._received = b""
        self._start = 0
        self.greeting_seconds = 0.0
        """How long it took the other side to accept the connection and to say something, once it has."""
        self.heard = False
        """Whether the other side has ever sent anything. One that only closed said nothing: it is not serving yet."""

    def pending(self) -> int:
        """Bytes that `recv` has without asking the system; kazoo does not wait for the socket then."""
        return len(self._received) - self._start

    def recv(self, count: int) -> bytes:
        """At most so many bytes; none when the other side has closed. BlockingIOError when there are none yet."""
        if self._start == len(self._received):
            self._received, self._start = self._socket.recv(RECEIVE_BYTES), 0
            if self._received and not self.heard:
                self.heard = True
                self.greeting_seconds = self._now() - self._began_seconds
        piece = self._received[self._start : self._start + count]
        self._start += len(piece)
        return piece

    def send(self, data: bytes) -> int:
        """Send bytes; how many were taken. OSError."""
        return self._socket.send(data)

    def fileno(self) -> int:
        """The socket's file descriptor."""
        return self._socket.fileno()

    def setblocking(self, blocking: bool) -> None:
        """Have the socket block, or not."""
        self._socket.setblocking(blocking)

    def hang_up(self) -> None:
        """End the connection under whoever waits for it, in any thread; what was sent still arrives."""
        with contextlib.suppress(OSError):  # It has ended, or is closed.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; what was received and not read is gone."""
        self._received, self._start = b"", 0
        self._socket.close()


Pollable = socket.socket | BufferedSocket


class ZookeeperHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types.
    """kazoo's threads without its two callback threads, which would lose the order between results and watches."""

    def __init__(
        self,
        hand_over: Callable[[Result], None],
        first_reply_seconds: float,
        session_kept_seconds: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`first_reply_seconds`: how long a server may take to accept a connection, and to say anything on it. Twice as
        long after each that did not, up to what kazoo allows: a slow server is not given up for ever. After one that
        took long twice what that took: else several attempts would be given up, and the session with them."""
        super().__init__()
        self.hand_over = hand_over
        self.session_kept_seconds = session_kept_seconds
        """How long a session without a connection counts as ours: more patience is of no use to it."""
        self._now = now
        self._first_reply_seconds = first_reply_seconds
        self._patience_seconds = first_reply_seconds
        self._hung_up = threading.Event()
        self._connection: BufferedSocket | None = None

    def start(self) -> None:
        """No callback threads."""

    def stop(self) -> None:
        """Nothing was started."""

    def async_result(self) -> Result:
        """A result that this handler hands over."""
        return Result(self)

    def dispatch_callback(self, callback: Any) -> None:
        """Call at once, in kazoo's thread: all our callbacks only post."""
        callback.func(*callback.args)

    def create_connection(self, *arguments: Any, timeout: float, **named: Any) -> BufferedSocket:
        """Connect to a server."""
        if self._connection is not None and self._connection.heard:
            # Once: it is still the last one after attempts that led to none, and those count.
            slow_seconds = min(2 * self._connection.greeting_seconds, self.session_kept_seconds)
            self._connection = None
            self._patience_seconds = max(self._first_reply_seconds, slow_seconds)
        timeout = min(timeout, self._patience_seconds)
        began_seconds = self._now()
        try:
            connected = super().create_connection(*arguments, timeout=timeout, **named)
        except TimeoutError:
            self._patience_seconds = 2 * timeout
            raise
        connection = self._connection = BufferedSocket(connected, self._now, began_seconds)
        if self._hung_up.is_set():
            connection.hang_up()
        return connection

    def sleep_func(self, seconds: float) -> None:
        """What kazoo does between attempts to connect."""
        self._hung_up.wait(seconds)

    def hang_up(self) -> None:
        """End the connection there is and those to come, and wait no longer between them. From any thread."""
        self._hung_up.set()
        connection = self._connection  # kazoo's thread may make the next one meanwhile.
        if connection is not None:
            connection.hang_up()

    def select(
        self,
        readers: Sequence[Pollable],
        writers: Sequence[Pollable],
        _exceptional: Sequence[Pollable],
        timeout: float | None = None,
    ) -> tuple[list[Pollable], list[Pollable], list[Pollable]]:
        """Wait until files are ready, as `select.select` does, but for any number of files. What failed or was closed
        counts as ready, to be found so."""
        buffered = [reader for reader in readers if isinstance(reader, BufferedSocket) and reader.pending()]
        silent = any(isinstance(reader, BufferedSocket) and not reader.heard for reader in readers)
        if silent:
            timeout = self._patience_seconds if timeout is None else min(timeout, self._patience_seconds)
        poll = select.poll()
        for reader in readers:
            poll.register(reader, select.POLLIN)
        for writer in writers:
            poll.register(writer, select.POLLOUT)
        if buffered:
            # Not the others' turn only: requests must not wait until all replies are read.
            timeout = 0
        ready = dict(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))
        if silent and not ready and timeout is not None:
            self._patience_seconds = 2 * timeout  # kazoo tries the next server, or this one again.
        readable = [reader for reader in readers if reader in buffered or reader.fileno() in ready]
        return readable, [writer for writer in writers if writer.fileno() in ready], []


def reconnect_whatever_is_said(client: KazooClient) -> None:
    """Have a client leave a connection on which the server says what it should not, and connect again, as Java's client
    does. A server that leaves an answer out was seen with 3.9.5, on a follower whose leader was killed; kazoo's thread
    ended at the next answer (python-zk/kazoo#254), and the process had no metadata store until it was restarted."""
    connection = client._connection  # noqa: SLF001
    connect, read_response = connection._connect_attempt, connection._read_response  # noqa: SLF001

    def read_expected(header: Any, data: bytes, offset: int) -> Any:
        if not client._pending:  # noqa: SLF001
            raise ConnectionDropped(f"the server answers request {header.xid}, which was never sent")
        _, result, xid = client._pending[0]  # noqa: SLF001
        if xid != header.xid:
            # While it still waits in the queue: it ends as all others that are under way on this connection.
            raise ConnectionDropped(f"the server answers request {header.xid} before {xid}")
        try:
            return read_response(header, data, offset)
        except Exception:
            if result is not None and not result.ready():
                result.set_exception(ConnectionLoss())
            raise

    def connect_and_stay(*server: Any) -> Any:
        try:
            return connect(*server)
        except Exception as error:  # noqa: BLE001  (whatever it is, another connection may be better)
            logger.warning("the connection with ZooKeeper is given up: %r", error)
            client._session_callback(KeeperState.CONNECTING)  # noqa: SLF001
            return None

    connection._read_response = read_expected  # noqa: SLF001
    connection._connect_attempt = connect_and_stay  # noqa: SLF001
    _refuse_what_nobody_asked_for(connection)
    _look_up_hosts_again(connection)


def _refuse_what_nobody_asked_for(connection: Any) -> None:
    """kazoo takes an answer to credentials for that of whatever request is the next one: a deletion would count as
    done. And it waits for an answer of any size, and sends nothing meanwhile."""
    read, read_header = connection._read, connection._read_header  # noqa: SLF001

    def read_bounded(size_bytes: int, timeout: float) -> Any:
        if size_bytes > REPLY_BYTES_MAX:
            raise ConnectionDropped(f"the server announces {size_bytes} bytes")
        return read(size_bytes, timeout)

    def read_header_asked_for(timeout: float) -> Any:
        header, data, offset = read_header(timeout)
        if header.xid == AUTH_XID:
            raise ConnectionDropped("the server answers credentials, and was shown none")
        return header, data, offset

    connection._read = read_bounded  # noqa: SLF001
    connection._read_header = read_header_asked_for  # noqa: SLF001


def _look_up_hosts_again(connection: Any) -> None:
    """Looking up the hosts' names fails without being an answer where the process has no file left to open, or for what
    no host can be called. For kazoo's thread that is the end."""
    look_up = connection._expand_client_hosts  # noqa: SLF001

    def look_up_or_wait() -> Any:
        try:
            return look_up()
        except (OSError, UnicodeError) as error:
            logger.warning("the hosts of ZooKeeper cannot be looked up now: %s", error)
            return []

    connection._expand_client_hosts = look_up_or_wait  # noqa: SLF001
