"""How many requests of one client are under way, and what they may answer.

A request costs a task and its own bytes until it is answered. What a client asks beyond that waits, then is not read;
nothing is refused, as clients count their outstanding requests in thousands.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from magnetar.core.limits import MIB
from magnetar.net.connection import Connection

REQUESTS_MAX: Final = 128
"""Of one connection, at once. What each waits for takes milliseconds at most, so that is ten thousand a second and
more; some kilobytes each."""

REQUESTS_BYTES_MAX: Final = 1 * MIB
"""Of one connection: what those requests have brought, such as schemas. One of any size is taken."""

REQUESTS_IN_ALL_MAX: Final = 20_000
"""Of one server: while there are more, a connection may have `REQUESTS_IN_SHORTAGE` at once. Sixty megabytes."""

REQUESTS_IN_SHORTAGE: Final = 8

LARGE_ANSWERS_AT_ONCE: Final = 2
"""Of one server: lists of topics and schemas that are being made. They take the processor's time, so more at once are
no sooner there; one may wait for the metadata store."""

TURN_SECONDS_MAX: Final = 0.001
"""In one turn of the loop for what connections have left over from their last one, however many have. As much for large
answers; when new requests have had it too, each further read has one of its requests served, and leaves the rest. A
message passes through about four turns from its producer to its consumer."""

PAUSED_FOR_REQUESTS: Final = "requests under way"


class RequestsInAll:
    """Those of all connections of a server."""

    __slots__ = ("_left_over", "_loop", "_share_ends_seconds", "count", "large_answers")

    def __init__(self) -> None:
        self.count = 0
        self.large_answers = asyncio.Semaphore(LARGE_ANSWERS_AT_ONCE)
        self._left_over: deque[Callable[[], None]] = deque()
        self._share_ends_seconds: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def crowded(self) -> bool:
        """Whether other connections wait for a turn."""
        return bool(self._left_over)

    def spent(self) -> bool:
        """Whether requests have had their share of this turn of the loop, which begins when this is asked first."""
        if self._share_ends_seconds is None:
            self._share_ends_seconds = time.perf_counter() + TURN_SECONDS_MAX
            asyncio.get_running_loop().call_soon(self._turn_over)
            return False
        return time.perf_counter() >= self._share_ends_seconds

    def _turn_over(self) -> None:
        self._share_ends_seconds = None

    def in_turn(self, work: Callable[[], None]) -> None:
        """Call this once, after those that wait already; a connection has one such call at a time. What it raises goes
        to the loop, and holds up nobody."""
        self._left_over.append(work)
        if len(self._left_over) == 1:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        ends_seconds = time.perf_counter() + TURN_SECONDS_MAX
        try:
            # Who has still more to do stands at the end again, and is not served twice in a turn.
            for _ in range(len(self._left_over)):
                work = self._left_over[0]
                try:
                    work()
                finally:
                    self._left_over.popleft()
                if time.perf_counter() >= ends_seconds:
                    break
        finally:
            # Also when a connection's work fails: the others would wait for ever.
            if self._left_over:
                assert self._loop is not None
                self._loop.call_soon(self._serve)


class ConnectionRequests:
    """Those of one connection."""

    __slots__ = ("_answering_large", "_bytes", "_caught_up", "_connection", "_count", "_in_all", "_large", "ended")

    def __init__(self, connection: Connection, in_all: RequestsInAll) -> None:
        self._connection = connection
        self._in_all = in_all
        self._count = 0
        self._bytes = 0
        self._answering_large = False
        self._large: deque[tuple[int, Callable[[], None]]] = deque()
        """Those that wait for it: the bytes that each brought, and what runs it. No tasks: a client that reads nothing
        has a hundred of them, and a thousand such clients would have a hundred thousand tasks."""
        self._caught_up: asyncio.Future[None] | None = None
        self.ended = False

    @property
    def held_bytes(self) -> int:
        """What they brought."""
        return self._bytes

    @property
    def full(self) -> bool:
        """Whether no further request may begin."""
        count = self._count
        return (
            count >= REQUESTS_MAX
            or self._bytes > REQUESTS_BYTES_MAX
            or (count >= REQUESTS_IN_SHORTAGE and self._in_all.count >= REQUESTS_IN_ALL_MAX)
        )

    def begin(self, size_bytes: int) -> None:
        """One begins, which brought so much."""
        self._count += 1
        self._bytes += size_bytes
        self._in_all.count += 1

    def end(self, size_bytes: int) -> None:
        """One of that size is answered."""
        self._count -= 1
        self._bytes -= size_bytes
        self._in_all.count -= 1

    def begin_large(self, size_bytes: int, run: Callable[[], None]) -> None:
        """One begins whose answer may be large. `run` is called at once, or when those before it are answered; not at
        all when the connection has ended by then. It starts a task that awaits `answer_large`, and that ends it."""
        self.begin(size_bytes)
        if self._answering_large:
            self._large.append((size_bytes, run))
        else:
            self._answering_large = True
            run()

    async def answer_large(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the work of a request that was begun by `begin_large`, once the client has taken the answers before. Not
        at all when the connection has ended by then."""
        try:
            await self._answer_in_turn(work)
        finally:
            if self._large:
                _, run = self._large.popleft()
                run()
            else:
                self._answering_large = False

    async def _answer_in_turn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while not self._gone() and self._connection.narrow():
            self._caught_up = asyncio.get_running_loop().create_future()
            await self._caught_up
        if self._gone():
            return
        async with self._in_all.large_answers:
            if self._gone():
                return  # Since it waits here: hundreds may have gone, and nobody takes these answers.
            self._in_all.spent()  # Its turn begins.
            await work()
            if self._in_all.spent():
                # An answer from memory waits for nothing: hundreds of clients that catch up together would be
                # answered in this turn.
                await asyncio.sleep(0)

    def _gone(self) -> bool:
        # One that is closing takes what was sent before, or nothing: narrow, it would be sent all that it asked for.
        return self.ended or self._connection.closing

    def caught_up(self) -> None:
        """The client has taken what was unsent."""
        if self._caught_up is not None and not self._caught_up.done():
            self._caught_up.set_result(None)

    def close(self) -> None:
        """The connection is gone."""
        self.ended = True
        for size_bytes, _ in self._large:
            self.end(size_bytes)
        self._large.clear()
        self.caught_up()
