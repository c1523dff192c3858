"""A relay in front of ZooKeeper that loses answers, holds frames back and cuts them in halves.

Frames are ZooKeeper's: a length of four bytes, then a request (xid, type, …) or an answer (xid, zxid, error, …); the
first of each side is the handshake. Source: ZooKeeper's zookeeper.jute and `ZooDefs.OpCode`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from magnetar.net.free_ports import free_port

WRITES: Final = frozenset({1, 2, 5, 14, 15, 19, 20, 21})
"""create, delete, setData, multi, create2, createContainer, deleteContainer, createTTL."""
SET_DATA: Final = 5
OWNED_PATH: Final = b"/managed-ledgers/"
"""Where the owners of topics keep lists of ledgers and cursors, changed by compare-and-set."""
_LENGTH: Final = struct.Struct(">i")
_REQUEST: Final = struct.Struct(">ii")
_XID: Final = struct.Struct(">i")
FRAME_BYTES_MAX: Final = 64 << 20
START_SECONDS_MAX: Final = 10.0
REFUSED_PAUSE_SECONDS: Final = 0.05


class Way(enum.Enum):
    """Whose frames."""

    REQUESTS = "requests"
    ANSWERS = "answers"


@dataclass(slots=True)
class _Trouble:
    """What the relay is to do; changed by the test's thread, read by the relay's."""

    owned_only: bool = False
    swallow: int = 0
    halve: Counter[Way] = field(default_factory=Counter)
    held_until: dict[Way, float] = field(default_factory=dict)
    closed_until: float = 0.0


class _Cut(Exception):
    """The connection ends here."""


class _Connection:
    """One client's, with one of its own to ZooKeeper."""

    def __init__(self, relay: Relay, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._relay = relay
        self._writers = {Way.REQUESTS: server, Way.ANSWERS: client}
        self._writes: dict[int, bool] = {}
        """Requests to change something that have no answer yet, by their xid: whether they change what has an owner."""

    async def pump(self, way: Way, reader: asyncio.StreamReader) -> None:
        """Pass the frames of one way on until either side ends."""
        shaken_hands = False
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, _Cut):
            while True:
                head = await reader.readexactly(_LENGTH.size)
                (size_bytes,) = _LENGTH.unpack(head)
                if not 0 <= size_bytes <= FRAME_BYTES_MAX:
                    break
                body = await reader.readexactly(size_bytes)
                await self._relay.held(way)
                if shaken_hands:
                    self._look_at(way, head, body)
                shaken_hands = True
                self._writers[way].write(head + body)
                await self._writers[way].drain()
        self.cut()

    def cut(self) -> None:
        """End both sides at once; what was written before is still sent."""
        for writer in self._writers.values():
            writer.close()

    def _look_at(self, way: Way, head: bytes, body: bytes) -> None:
        owned: bool | None = None
        if way is Way.REQUESTS and len(body) >= _REQUEST.size:
            xid, kind = _REQUEST.unpack_from(body)
            if kind in WRITES:
                path = body[_REQUEST.size + _LENGTH.size :]
                owned = self._writes[xid] = kind == SET_DATA and path.startswith(OWNED_PATH)
                self._relay.writes += 1
        elif way is Way.ANSWERS and len(body) >= _XID.size:
            owned = self._writes.pop(_XID.unpack_from(body)[0], None)
            if owned is not None and self._relay.takes_answer(owned=owned):
                raise _Cut
        if owned is not None and self._relay.takes_half(way, owned=owned):
            frame = head + body
            self._writers[way].write(frame[: len(frame) // 2])
            raise _Cut


class Relay:
    """Listens on a port of its own in a thread of its own, and passes on to one of the servers after the other."""

    def __init__(self, servers: Sequence[str]) -> None:
        """`servers` as host:port."""
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.writes = 0
        """Requests to change something."""
        self.swallowed = 0
        """Answers to writes that were applied and never told."""
        self.halved = 0
        self._servers = [server.rpartition(":") for server in servers]
        self._turn = 0
        self._trouble = _Trouble()
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"relay-{self.port}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(START_SECONDS_MAX), "the relay does not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def swallow(self, count: int, *, owned_only: bool = False) -> None:
        """The answers to the next writes, so many, are swallowed, and the connection is cut at each; or only those to
        changes of what the owner of a topic keeps."""
        self._trouble.owned_only = owned_only
        self._trouble.swallow = count

    def halve(self, way: Way, *, owned_only: bool = False) -> None:
        """The next frame of a write that way is cut in half, and the connection with it; see `swallow`."""
        self._trouble.owned_only = owned_only
        self._trouble.halve[way] = 1

    def hold(self, way: Way, seconds: float) -> None:
        """Nothing goes that way for so long; the other way goes on."""
        self._trouble.held_until[way] = time.monotonic() + seconds

    def refuse(self, seconds: float) -> None:
        """All connections are cut, and new ones too, for so long."""
        self._trouble.closed_until = time.monotonic() + seconds
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._cut_all)

    @property
    def waits(self) -> bool:
        """Whether writes are to suffer that have not come yet."""
        return self._trouble.swallow > 0 or any(self._trouble.halve.values())

    def relieve(self) -> None:
        """Nothing of all this any more."""
        self._trouble = _Trouble()

    # --- in the relay's own thread

    def takes_answer(self, *, owned: bool) -> bool:
        """Whether this answer to a write is swallowed."""
        if self._trouble.swallow <= 0 or (self._trouble.owned_only and not owned):
            return False
        self._trouble.swallow -= 1
        self.swallowed += 1
        return True

    def takes_half(self, way: Way, *, owned: bool) -> bool:
        """Whether this frame is cut."""
        if not self._trouble.halve[way] or (self._trouble.owned_only and not owned):
            return False
        self._trouble.halve[way] = 0
        self.halved += 1
        return True

    async def held(self, way: Way) -> None:
        """Wait as long as nothing goes that way."""
        while True:
            left = self._trouble.held_until.get(way, 0.0) - time.monotonic()
            if left <= 0:
                return
            # Not all of it: the test's thread may end it.
            await asyncio.sleep(min(left, REFUSED_PAUSE_SECONDS))

    def _cut_all(self) -> None:
        for connection in list(self._connections):
            connection.cut()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self._started.set()
        await self._stop.wait()
        server.close()
        self.relieve()
        while self._tasks:
            # Again and again: one that is just being made is cut once it stands.
            self._cut_all()
            await asyncio.wait(self._tasks, timeout=REFUSED_PAUSE_SECONDS)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._pass_on(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if time.monotonic() < self._trouble.closed_until:
            await asyncio.sleep(REFUSED_PAUSE_SECONDS)
            return
        host, _, port = self._servers[self._turn % len(self._servers)]
        self._turn += 1
        try:
            from_server, to_server = await asyncio.open_connection(host, int(port))
        except OSError:
            return
        connection = _Connection(self, writer, to_server)
        self._connections.add(connection)
        try:
            await asyncio.gather(connection.pump(Way.REQUESTS, reader), connection.pump(Way.ANSWERS, from_server))
        finally:
            self._connections.discard(connection)
            connection.cut()
