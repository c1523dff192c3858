"""One connection of an HTTP server: what the server's own protocol is given of it, and when it is too slow.

The protocol is given one request at a time. What comes before its handler has begun, and what comes behind it, waits
here and is counted, and nothing more is read meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from magnetar.core.errors import forget_frames
from magnetar.net.accepting import MakeProtocol
from magnetar.net.http.intake import NO_HTTP_2, Intake
from magnetar.net.http.pace import Pace, Traffic
from magnetar.net.http.served import HttpRequest, has_queued, speaks_another, taken_bytes, task_of, waits_for_a_request
from magnetar.net.http.served_transport import ServedTransport
from magnetar.net.http.work_turns import WorkTurns

logger: Final = logging.getLogger(__name__)

REFUSAL: Final = b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
REASON: Final = b'{"reason":"%b"}'
BAD_REQUEST: Final = b"400 Bad Request"
HEAD_TOO_LARGE: Final = b"431 Request Header Fields Too Large"
ANOTHER_VERSION: Final = b"505 HTTP Version Not Supported"
BAD_BODY: Final = "the body is not encoded as the head tells"

CHUNK_BYTES: Final = 128
"""What aiohttp keeps of a chunk of a body besides its content: two objects, and their places in queues. So a body in
chunks of one byte takes twenty times as much as it has come in."""


class AllConnections(Protocol):
    """All connections of the server, for one of them."""

    @property
    def body_bytes_max(self) -> int:
        """Bytes that the body of one request may have in memory."""
        ...

    @property
    def chunks(self) -> WorkTurns:
        """When bodies in chunks are parsed."""
        ...

    def enter(self, watched: Watched, transport: asyncio.Transport) -> bool:
        """Give a new connection a place; False when there is none."""
        ...

    def leave(self, transport: asyncio.Transport | None) -> None:
        """Note that a connection is gone."""
        ...

    def hold(self, watched: Watched, size_bytes: int, *, gives_way: bool) -> None:
        """It has so much of requests in memory from now on."""
        ...

    def fell_behind(self, watched: Watched) -> None:
        """A client does not take its answer at once."""
        ...

    def caught_up(self, watched: Watched) -> None:
        """It has taken its answer, or is gone."""
        ...

    def new_intake(self) -> Intake:
        """For a connection that begins now."""
        ...

    def new_pace(self) -> Pace:
        """For a connection that begins now."""
        ...

    def now_seconds(self) -> float:
        """The loop's time."""
        ...

    def soon(self, callback: Callable[[], None]) -> None:
        """In the loop's next turn."""
        ...


class Watched(asyncio.Protocol):
    """One connection: everything goes on to the server's protocol, in its time."""

    def __init__(self, make_protocol: MakeProtocol, owner: AllConnections) -> None:
        self._make_protocol = make_protocol
        self._inner: asyncio.Protocol | None = None
        """None: there was no place for it."""
        self._owner = owner
        self._transport: ServedTransport | None = None
        self._request: HttpRequest | None = None
        """The one under way, from its beginning until it is answered and its body has come."""
        self._steps = 0
        """Requests that have begun, and that have ended."""
        self._in_turn = False
        """The request's handler has begun."""
        self._received_bytes = 0
        self._intake = owner.new_intake()
        self._refused = False
        """Nothing more of it is wanted."""
        self._going_on = False
        """In the loop's next turn, as the server's protocol wants more again."""
        self._write_paused = False
        self.pace = owner.new_pace()
        self._body_bytes = 0
        """Bytes of its request's body that were given and may still be in memory."""
        self._chunks_bytes = 0
        """What is kept beside them."""
        self._in_line = False
        """For a turn to give some of a body whose length is not known."""
        self._held_bytes = 0
        """Bytes that the owner was told of last."""
        self._passes = False
        """The body is longer than those that are held: it is passed on as it comes, or refused."""
        self._answering = False
        """The request's handler is done; its answer may still be on its way."""

    @property
    def peer(self) -> str:
        """The peer's address, for logs."""
        address = None if self._transport is None else self._transport.get_extra_info("peername")
        return "somebody" if not address else f"{address[0]}:{address[1]}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        served = ServedTransport(cast(asyncio.Transport, transport), self._server_goes_on, self._server_wrote)
        self._transport = served
        if not self._owner.enter(self, served):
            served.abort()
            return
        self._inner = self._make_protocol()
        self._inner.connection_made(served)

    def data_received(self, data: bytes) -> None:
        if self._inner is None or self._refused:
            return
        self._received_bytes += len(data)
        self.pace.received(self._owner.now_seconds())
        self._intake.came(data)
        self._give()

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._inner is not None:
            self._inner.pause_writing()
            self._owner.fell_behind(self)

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._inner is not None:
            self._inner.resume_writing()
            self._owner.caught_up(self)
            self._server_wrote()
            if self._request is None or self._answering:
                self._let_body_go()
                self._hold()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._transport.let_go()
        if self._inner is None:
            return
        self._owner.leave(self._transport)
        self._owner.caught_up(self)
        self._drop()
        self._hold()
        request, self._request = self._request, None
        task = task_of(self._inner)
        self._inner.connection_lost(error)
        # aiohttp would wait 10 s for the rest of a body whose request is answered, and nothing counts it by now.
        if request is None:
            # It has answered before it asked any middleware, and the body is not known here; or there is no body.
            if task is not None:
                task.cancel()
        elif self._answering:
            request.content.feed_eof()

    # --- for the owner

    @property
    def transport(self) -> asyncio.Transport | None:
        """The one that the server's protocol has; None before it stands."""
        return self._transport

    @property
    def unsent_bytes(self) -> int:
        """What waits for the client to read."""
        transport = self._transport
        return 0 if transport is None or transport.is_closing() else transport.get_write_buffer_size()

    def began(self, request: HttpRequest) -> None:
        """A request's head is complete."""
        self._request = request
        self._steps += 1
        self._intake.began(request.content_length)
        self._passes = False
        self._body_bytes = self._chunks_bytes = 0
        self._answering = False
        self._in_turn = False
        self.pace.began()

    def has_its_turn(self) -> None:
        """Its handler begins: now the body is given, which an earlier end would leave in memory until then."""
        self._in_turn = True
        self._give()

    def answered(self, request: HttpRequest) -> None:
        """Its handler is done."""
        forget_frames(request.match_info.http_exception)
        problem = request.content.exception()
        forget_frames(problem)
        if request.content.is_eof() and problem is None:
            # aiohttp refers to the last request of a connection while it waits for the next one.
            request.content.read_nowait()
            request._read_bytes = None  # noqa: SLF001  (it has no public word for it)
        self._answering = True
        # The answer is written after this.
        self._owner.soon(self._settle)

    def cut(self) -> None:
        """At once: who is too slow would be too slow to be told."""
        if self._transport is not None:
            self._transport.abort()

    def give_up(self) -> None:
        """Nothing of it is in memory any more, and it is cut."""
        self._drop()
        self._held_bytes = 0
        self.cut()

    def sweep(self, now_seconds: float) -> None:
        """Look at it."""
        transport = self._transport
        if transport is None:
            return
        self._settle()
        if self._intake.kept_bytes:
            # A client may send a WebSocket's frames before it is told that it may: nothing tells of that.
            self._give()
        unsent_bytes = transport.get_write_buffer_size()
        request = self._request
        written_bytes = 0 if request is None else request.writer.output_size
        # All of it may have come while the server's protocol waits for the handler to take the first of it.
        all_came = transport.stopped_by_server and self._intake.body_given
        traffic = Traffic(
            received_bytes=self._received_bytes,
            sent_bytes=written_bytes - unsent_bytes,
            unsent_bytes=unsent_bytes,
            # A transport that is closing has stopped to read, and is not waited for longer for it.
            receiving=transport.is_closing() or transport.is_reading(),
            held_back=not self._in_turn or self._in_line,
            taken_bytes=0 if request is None else taken_bytes(request.content),
            body_complete=all_came or not self._body_coming,
        )
        problem = self.pace.too_slow(now_seconds, traffic)
        if problem is not None:
            logger.info("cutting the HTTP connection of %s: %s", self.peer, problem)
            self.cut()

    # --- what the server's protocol is given

    def _give(self) -> None:
        """What the request under way, or the next one's head, has of what came. The rest waits, unread what follows."""
        transport = self._transport
        if transport is None:
            return
        if transport.is_closing() or self._refused:
            self._drop()
        else:
            self._give_head(transport)
            self._give_body(transport)
        self._hold()
        transport.wait(self._intake.kept_bytes > 0)

    def _give_head(self, transport: ServedTransport) -> None:
        assert self._inner is not None
        while not transport.stopped_by_server:
            piece, problem = self._intake.next_of_head()
            if problem:
                self._refuse(transport, ANOTHER_VERSION if problem == NO_HTTP_2 else HEAD_TOO_LARGE, problem)
                return
            if not piece:
                return
            self._inner.data_received(piece)

    def _give_body(self, transport: ServedTransport) -> None:
        """Nothing while the server's protocol wants nothing: what it is given nevertheless it copies, again and again,
        and does not count."""
        self._end_what_is_broken(transport)
        request, intake = self._request, self._intake
        if request is None or not self._in_turn or self._refused or not intake.kept_bytes:
            return
        if transport.stopped_by_server:
            return
        assert self._inner is not None
        # Without this no WebSocket would be given anything.
        if speaks_another(self._inner):
            self._inner.data_received(intake.rest())
        elif request.content.is_eof() or intake.body_given:
            return
        elif intake.body_left_bytes:
            piece = intake.next_of_body()
            self._count_body(len(piece), 0)
            # Before it makes the body complete: then others would have to give way.
            self._hold()
            if not self._refused:
                self._inner.data_received(piece)
                self._end_what_is_broken(transport)
                self._settle_soon()
        elif not self._in_line:
            self._in_line = True
            self._owner.chunks.call(self._give_chunks)

    def _give_chunks(self) -> None:
        """Some of a body whose length is not known, as much as may be parsed in one turn."""
        self._in_line = False
        transport = self._transport
        while self._owner.chunks.left and self._body_coming and not self._refused:
            if transport is None or transport.stopped_by_server or self._is_broken:
                break
            piece = self._intake.next_of_body()
            if not piece:
                break
            assert self._inner is not None
            # Each has the end of two lines. What looks like one in its content counts too: it is little, or text.
            chunks = 1 + piece.count(b"\n") // 2
            self._owner.chunks.worked(chunks)
            self._count_body(len(piece), chunks * CHUNK_BYTES)
            self._inner.data_received(piece)
        self._settle_soon()
        self._give()

    def _refuse(self, transport: ServedTransport, status: bytes, problem: str) -> None:
        """Tell the client what is wrong with what it has sent, and close."""
        self._drop()
        logger.info("closing the HTTP connection of %s: %s", self.peer, problem)
        body = REASON % problem.encode()
        transport.write(REFUSAL % (status, len(body), body))
        transport.close()

    # --- what the server's protocol does

    def _server_goes_on(self) -> None:
        """It wants more. In a turn of its own: it may be in the middle of what it was given before."""
        if not self._going_on:
            self._going_on = True
            self._owner.soon(self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        self._settle_soon()
        self._give()

    def _server_wrote(self) -> None:
        """aiohttp answers some requests before it asks any middleware, such as one that expects what it cannot do. What
        it writes while something is queued belongs to the request before."""
        if self._request is None and self._intake.head_given and not has_queued(self._inner):
            # Where it asks the client to go on, the request begins in this turn. Else its answer ends in the next one.
            end = partial(self._end_what_never_began, self._steps)
            self._owner.soon(lambda: self._owner.soon(end))

    def _end_what_never_began(self, steps: int) -> None:
        transport = self._transport
        if self._steps != steps or self._write_paused:
            return
        if waits_for_a_request(self._inner):
            self.pace.began()
            self._ended()
        elif transport is not None:
            # It has an end, or a body, whose length nobody has told.
            transport.close()

    @property
    def _is_broken(self) -> bool:
        """Whether the server's protocol cannot parse the body that it was given. Its handler may wait for that for
        ever: what is wrong is told where the next request is expected, and nothing else is queued before the end."""
        request = self._request
        if request is None or request.content.is_eof():
            return False
        return request.content.exception() is not None or has_queued(self._inner)

    def _end_what_is_broken(self, transport: ServedTransport) -> None:
        if self._refused or not self._is_broken:
            return
        assert self._request is not None
        if self._answering:
            # The server's protocol closes behind its answer.
            self._drop()
        elif self._request.writer.output_size:
            self._drop()
            logger.info("cutting the HTTP connection of %s: %s", self.peer, BAD_BODY)
            self.cut()
        else:
            self._refuse(transport, BAD_REQUEST, BAD_BODY)

    # --- what it holds

    @property
    def _body_coming(self) -> bool:
        """Whether some of its request's body is still to come."""
        return self._request is not None and not self._request.content.is_eof()

    def _count_body(self, size_bytes: int, chunks_bytes: int) -> None:
        if self._passes:
            return
        self._body_bytes += size_bytes
        self._chunks_bytes += chunks_bytes
        if self._body_bytes > self._owner.body_bytes_max:
            self._let_body_go()

    def _let_body_go(self) -> None:
        """What came of the body is in memory no more, nor will be what comes."""
        self._passes = True
        self._body_bytes = self._chunks_bytes = 0

    def _drop(self) -> None:
        self._refused = True
        self._intake.drop()
        self._body_bytes = self._chunks_bytes = 0

    def _hold(self) -> None:
        size_bytes = self._intake.kept_bytes + self._body_bytes + self._chunks_bytes
        if not size_bytes and not self._held_bytes:
            return
        self._held_bytes = size_bytes
        # Others do not give way once a handler has all of the request.
        complete = self._request is not None and not self._answering and self._request.content.is_eof()
        self._owner.hold(self, size_bytes, gives_way=self._intake.kept_bytes > 0 or not complete)

    def _settle_soon(self) -> None:
        if self._answering and not self._body_coming:
            self._owner.soon(self._settle)

    def _settle(self) -> None:
        """The handler is done: whether the answer has been written, too, and the body read to its end."""
        if not self._answering:
            return
        if not self._write_paused:
            # The server reads what is left of the body, and throws it away.
            self._let_body_go()
        if self._body_coming:
            self._hold()
            return
        self._ended()

    def _ended(self) -> None:
        """The next one may come."""
        self._answering = False
        self._request = None
        self._steps += 1
        self._intake.ended()
        now_seconds = self._owner.now_seconds()
        self.pace.ended(now_seconds)
        if self._intake.kept_bytes:
            self.pace.received(now_seconds)
        self._give()
