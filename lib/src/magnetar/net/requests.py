"""How many requests of one client are under way, and what they may answer.

A request costs a task and its own bytes until it is answered. What a client asks beyond that waits, then is not read;
nothing is refused, as clients count their outstanding requests in thousands.

Answers that may be large are made by few at a time. That bounds the processor's time and what is in memory. Whoever is
waited for may not answer for half a minute, so the others take their turn meanwhile: `Place`, `Readings`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from magnetar.core.limits import KIB, MIB
from magnetar.net.connection import Connection
from magnetar.net.places import Places

REQUESTS_MAX: Final = 128
"""Requests of one connection, at once. What each waits for takes milliseconds at most, so that is ten thousand a second
and more; some kilobytes each."""

REQUESTS_BYTES_MAX: Final = 1 * MIB
"""Bytes that those requests of one connection have brought, such as schemas. One of any size is taken."""

REQUESTS_IN_ALL_MAX: Final = 20_000
"""Requests of one server: while there are more, a connection may have `REQUESTS_IN_SHORTAGE` at once. Sixty
megabytes."""

REQUESTS_IN_SHORTAGE: Final = 8

LARGE_ANSWERS_AT_ONCE: Final = 2
"""Large answers that one server makes at a time: lists of topics and schemas. They take the processor's time, so more
at once are no sooner there. Who waits for anybody else has no such place meanwhile."""

READINGS_OF_ONE: Final = 2
"""Reads for large answers, at once from one source, such as a namespace: who asks for what does not come waits for the
others who did, and nobody else does."""

READINGS_IN_ALL: Final = 16
"""Reads of one kind, at once from all sources: what was read is in memory until its answer is made. A list of ten
thousand topics takes 2 MB, a schema 512 KiB at most."""

READINGS_LATE_MAX: Final = 32
"""Of one kind: those beside them whose sources have not answered for a while. With them it is 100 MB at most."""

TURN_SECONDS_MAX: Final = 0.00025
"""In one turn of the loop for what connections have left over from their last one, however many have. As much for large
answers; when new requests have had it too, each further read has one of its requests served, and leaves the rest. A
message passes through about four turns from its producer to its consumer; the turn itself, with its reads and writes,
takes a millisecond or two when thousands of clients ask all the time."""

SENT_IN_TURN_BYTES: Final = 64 * KIB
"""An answer of more than this counts for a turn's share: a third of a megabyte takes the system a millisecond. A
newcomer that was sent no more since its turn has no need of another one."""

PAUSED_FOR_REQUESTS: Final = "requests under way"

Read = TypeVar("Read")


class ServerRequests:
    """The requests of all connections of a server."""

    __slots__ = ("_left_over", "_loop", "_now_seconds", "_share_ends_seconds", "count", "large_answers")

    def __init__(self, now_seconds: Callable[[], float] = time.perf_counter) -> None:
        """`now_seconds` is what turns are measured by."""
        self.count = 0
        self._now_seconds = now_seconds
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
            self._share_ends_seconds = self._now_seconds() + TURN_SECONDS_MAX
            asyncio.get_running_loop().call_soon(self._turn_over)
            return False
        return self._now_seconds() >= self._share_ends_seconds

    @property
    def over(self) -> bool:
        """Whether requests have had their share of this turn; not, where none has begun, and none begins by this."""
        ends_seconds = self._share_ends_seconds
        return ends_seconds is not None and self._now_seconds() >= ends_seconds

    def _turn_over(self) -> None:
        self._share_ends_seconds = None

    def in_turn(self, work: Callable[[], None]) -> None:
        """Call this once, after those that wait already; a connection has one such call at a time, and one at
        its end. What it raises goes to the loop, and holds up nobody."""
        self._left_over.append(work)
        if len(self._left_over) == 1:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._serve)

    def now_or_in_turn(self, work: Callable[[], None]) -> None:
        """Call this now, or `in_turn` once this turn of the loop has had its share."""
        if self.spent():
            self.in_turn(work)
        else:
            work()

    def in_turns(self, steps: Iterator[object]) -> None:
        """Go through the steps, now or in turn: in each turn as many as its share lasts for, and one at least."""
        self.now_or_in_turn(partial(self._go_through, steps))

    def _go_through(self, steps: Iterator[object]) -> None:
        ends_seconds = self._now_seconds() + TURN_SECONDS_MAX
        for _ in steps:
            if self._now_seconds() >= ends_seconds:
                self.in_turn(partial(self._go_through, steps))
                break

    def _serve(self) -> None:
        ends_seconds = self._now_seconds() + TURN_SECONDS_MAX
        try:
            # Who has still more to do stands at the end again, and is not served twice in a turn.
            for _ in range(len(self._left_over)):
                work = self._left_over[0]
                try:
                    work()
                finally:
                    self._left_over.popleft()
                if self._now_seconds() >= ends_seconds:
                    break
        finally:
            # Also when a connection's work fails: the others would wait for ever.
            if self._left_over:
                assert self._loop is not None
                self._loop.call_soon(self._serve)


class Readings:
    """What is read for large answers, of one kind: bounded by each source, as any may be slow, and in all."""

    __slots__ = ("_of_sources", "in_all")

    def __init__(self) -> None:
        self.in_all = Places(READINGS_IN_ALL, READINGS_LATE_MAX)
        """What a reading needs beside a place of its source, after that: who waits for the source takes nobody's."""
        self._of_sources: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()
        """The semaphore of each source that somebody reads or waits for."""

    def of_source(self, source: Hashable) -> asyncio.Semaphore:
        """What a reading of a source has to have first."""
        of_source = self._of_sources.get(source)
        if of_source is None:
            of_source = self._of_sources[source] = asyncio.Semaphore(READINGS_OF_ONE)
        return of_source


class ClientGone(Exception):
    """Nobody takes the answer: `ConnectionRequests.answer_large` ends its work so, and says nothing."""


class Place:
    """What one large answer takes of what its server has for all of them.

    Work on an answer begins without any: it may wait for its client, for rights, for whom a proxy asks. Then it takes
    its place, and waits for nobody while it has that."""

    __slots__ = ("_held", "_in_all", "_making", "_requests")

    def __init__(self, requests: ConnectionRequests, in_all: ServerRequests) -> None:
        self._requests = requests
        self._in_all = in_all
        self._making = False
        self._held: list[Callable[[], None]] = []
        """How what was taken for what was read is given back."""

    async def take(self) -> None:
        """From now on the answer is made. `ClientGone`."""
        assert not self._making
        await self._in_all.large_answers.acquire()
        self._making = True
        self.require_client()
        self._in_all.spent()  # Its turn begins.

    async def read(self, readings: Readings, source: Hashable, work: Callable[[], Awaitable[Read]]) -> Read:
        """What `work` reads from a source, which may take its time: others are answered meanwhile. Then the answer is
        made, as after `take`. Once for each answer. `ClientGone`."""
        assert not self._held
        self._leave_off()
        of_source = readings.of_source(source)
        await of_source.acquire()
        self._held.append(of_source.release)
        of_all = await readings.in_all.take()
        self._held.append(of_all.leave)
        self.require_client()
        with of_all:
            read = await work()
        await self.take()
        return read

    def require_client(self) -> None:
        """Raise `ClientGone` when the client went while it was others' turn: hundreds may have gone together."""
        if self._requests.gone:
            raise ClientGone

    async def end_turn(self) -> None:
        """The answer is written. Who waits for the place has it in the next turn, if this one has had its share: an
        answer from memory waits for nothing, and hundreds of clients that catch up together would be answered in it.
        A large one has had it in any case: what it costs to send comes at the turn's end."""
        if self._making and (self._in_all.spent() or self._requests.unsent_bytes > SENT_IN_TURN_BYTES):
            await asyncio.sleep(0)

    def leave(self) -> None:
        """The answer is written, or there is none."""
        self._leave_off()
        while self._held:
            self._held.pop()()

    def _leave_off(self) -> None:
        if self._making:
            self._making = False
            self._in_all.large_answers.release()


class ConnectionRequests:
    """The requests of one connection."""

    __slots__ = (
        "_answering_large",
        "_bytes",
        "_caught_up",
        "_connection",
        "_count",
        "_had_turn",
        "_in_all",
        "_large",
        "_turn_from_bytes",
        "ended",
    )

    def __init__(self, connection: Connection, in_all: ServerRequests) -> None:
        self._connection = connection
        self._in_all = in_all
        self._count = 0
        self._bytes = 0
        self._answering_large = False
        self._large: deque[tuple[int, Callable[[], None]]] = deque()
        """Those that wait for it: the bytes that each brought, and what runs it. No tasks: a client that reads nothing
        has a hundred of them, and a thousand such clients would have a hundred thousand tasks."""
        self._caught_up: asyncio.Future[None] | None = None
        self._had_turn = False
        """Whether the newcomer that waits in line may go on."""
        self._turn_from_bytes: int | None = None
        """What the client had been sent when it had its turn among newcomers, if it has."""
        self.ended = False

    @property
    def held_bytes(self) -> int:
        """Bytes that the requests under way have brought."""
        return self._bytes

    @property
    def unsent_bytes(self) -> int:
        """What the client has not taken."""
        return self._connection.unsent_bytes

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
        """Note that a request of this size is answered."""
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

    async def answer_large(self, work: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
        """Run the work of a request that was begun by `begin_large`, once the client has taken the answers before. Not
        at all when the connection has ended by then. The work takes its place before it makes the answer."""
        try:
            await self._answer_in_turn(work)
        finally:
            if self._large:
                _, run = self._large.popleft()
                run()
            else:
                self._answering_large = False

    async def _answer_in_turn(self, work: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
        await self._have_it_catch_up()
        if not self.gone and not self._in_turn and self._connection.paces_answer(self._have_turn):
            await self._wait_in_line()
            self._turn_from_bytes = self._connection.handed_bytes
            await self._have_it_catch_up()  # Its consumers may have been sent much meanwhile.
        if self.gone:
            return
        place = Place(self, self._in_all)
        try:
            await work(place)
            await place.end_turn()
        except ClientGone:
            pass
        finally:
            place.leave()

    async def _have_it_catch_up(self) -> None:
        while not self.gone and self._connection.narrow():
            await self._wait()

    @property
    def _in_turn(self) -> bool:
        """Whether it was sent little since its turn among newcomers. Small answers cost next to nothing, and a client
        asks for the schemas of a thousand topics."""
        from_bytes = self._turn_from_bytes
        return from_bytes is not None and self._connection.handed_bytes - from_bytes <= SENT_IN_TURN_BYTES

    async def _wait_in_line(self) -> None:
        self._had_turn = False
        while not (self._had_turn or self.gone):
            await self._wait()  # It may catch up meanwhile, which is no turn.

    async def _wait(self) -> None:
        """Until `caught_up` is called."""
        self._caught_up = asyncio.get_running_loop().create_future()
        await self._caught_up

    @property
    def gone(self) -> bool:
        """Whether nobody takes answers any more."""
        # One that is closing takes what was sent before, or nothing: narrow, it would be sent all that it asked for.
        return self.ended or self._connection.closing

    def _have_turn(self) -> None:
        self._had_turn = True
        self.caught_up()

    def caught_up(self) -> None:
        """The client has taken what was unsent, or it is its turn."""
        if self._caught_up is not None and not self._caught_up.done():
            self._caught_up.set_result(None)

    def close(self) -> None:
        """The connection is gone."""
        self.ended = True
        for size_bytes, _ in self._large:
            self.end(size_bytes)
        self._large.clear()
        self.caught_up()
