"""One connection of an HTTP server: what the server's own protocol is given of it, and when it is too slow.

The protocol is given one request at a time. What comes before its handler has begun, and what comes behind it, waits
here and is counted, and nothing more is read meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, cast

from magnetar.core.errors import forget_frames
from magnetar.net.accepting import MakeProtocol
from magnetar.net.http.intake import Intake
from magnetar.net.http.pace import Pace, Traffic
from magnetar.net.http.work_turns import WorkTurns

logger: Final = logging.getLogger(__name__)

HEAD_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)
REASON: Final = b'{"reason":"%b"}'

CHUNK_BYTES: Final = 128
"""What aiohttp keeps of a chunk of a body besides its content: two objects, and their places in queues. So a body in
chunks of one byte takes twenty times as much as it has come in."""


class _Content(Protocol):
    def is_eof(self) -> bool: ...

    def exception(self) -> BaseException | None: ...

    def read_nowait(self, n: int = -1) -> bytes: ...


class _AnswerWriter(Protocol):
    @property
    def output_size(self) -> int: ...


class _Match(Protocol):
    @property
    def http_exception(self) -> BaseException | None: ...


class HttpRequest(Protocol):
    """What is used of aiohttp's."""

    _read_bytes: bytes | None

    @property
    def match_info(self) -> _Match:
        """Its route, or why it has none."""
        ...

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport of its connection; None when that is gone."""
        ...

    @property
    def content(self) -> _Content:
        """The body, as a stream."""
        ...

    @property
    def content_length(self) -> int | None:
        """Bytes of the body, as its head tells; None where it does not."""
        ...

    @property
    def writer(self) -> _AnswerWriter:
        """Where its answer is written."""
        ...


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
        self._transport: asyncio.Transport | None = None
        self._request: HttpRequest | None = None
        """The one under way, from its beginning until it is answered and its body has come."""
        self._in_turn = False
        """The request's handler has begun."""
        self._received_bytes = 0
        self._intake = owner.new_intake()
        self._refused = False
        """Nothing more of it is wanted."""
        self._stopped_reading = False
        """Reading was stopped here, as the server's protocol is to be given no more now. It also stops it by itself."""
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
        self._transport = cast(asyncio.Transport, transport)
        if not self._owner.enter(self, self._transport):
            self._transport.abort()
            return
        self._inner = self._make_protocol()
        self._inner.connection_made(transport)

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
            if self._request is None or self._answering:
                self._let_body_go()
                self._hold()

    def connection_lost(self, error: Exception | None) -> None:
        if self._inner is None:
            return
        self._owner.leave(self._transport)
        self._owner.caught_up(self)
        self._drop()
        self._hold()
        self._request = None
        self._inner.connection_lost(error)

    # --- for the owner

    @property
    def transport(self) -> asyncio.Transport | None:
        """None before it stands."""
        return self._transport

    @property
    def unsent_bytes(self) -> int:
        """What waits for the client to read."""
        transport = self._transport
        return 0 if transport is None or transport.is_closing() else transport.get_write_buffer_size()

    def began(self, request: HttpRequest) -> None:
        """A request's head is complete."""
        self._request = request
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
        written_bytes = 0 if self._request is None else self._request.writer.output_size
        traffic = Traffic(
            received_bytes=self._received_bytes,
            sent_bytes=written_bytes - unsent_bytes,
            unsent_bytes=unsent_bytes,
            # A transport that is closing has stopped to read, and is not waited for longer for it.
            receiving=transport.is_closing() or transport.is_reading(),
            body_complete=not self._body_coming,
        )
        problem = self.pace.too_slow(now_seconds, traffic)
        if problem is not None:
            logger.info("cutting the HTTP connection of %s: %s", self.peer, problem)
            self.cut()

    # --- what the server's protocol is given

    def _give(self) -> None:
        """What the request under way, or the next one's head, has of what came. The rest waits, unread what follows."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._refused:
            self._drop()
            self._hold()
            return
        if self._stopped_reading:
            # Before it is given anything: then it stops for itself where that is too much for it.
            self._stopped_reading = False
            transport.resume_reading()
        self._give_head(transport)
        self._give_body()
        self._hold()
        if self._intake.kept_bytes and not transport.is_closing():
            self._stopped_reading = True
            transport.pause_reading()

    def _give_head(self, transport: asyncio.Transport) -> None:
        assert self._inner is not None
        while True:
            piece, problem = self._intake.next_of_head()
            if problem:
                self._refuse(transport, problem)
                return
            if not piece:
                return
            self._inner.data_received(piece)

    def _give_body(self) -> None:
        request = self._request
        if request is None or not self._in_turn or self._refused or not self._intake.kept_bytes:
            return
        assert self._inner is not None
        # aiohttp has no public word for it; without this attribute no WebSocket would be given anything.
        if getattr(self._inner, "_payload_parser", None) is not None:
            self._inner.data_received(self._intake.rest())
        elif request.content.is_eof():
            return
        elif self._intake.body_left_bytes:
            piece = self._intake.next_of_body()
            self._count_body(len(piece), 0)
            # Before it makes the body complete: then others would have to give way.
            self._hold()
            if not self._refused:
                self._inner.data_received(piece)
                self._settle_soon()
        elif not self._in_line:
            self._in_line = True
            self._owner.chunks.call(self._give_chunks)

    def _give_chunks(self) -> None:
        """Some of a body whose length is not known, as much as may be parsed in one turn."""
        self._in_line = False
        while self._owner.chunks.left and self._body_coming and not self._refused:
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

    def _refuse(self, transport: asyncio.Transport, problem: str) -> None:
        """A head is longer than it may be: tell the client."""
        self._drop()
        logger.info("closing the HTTP connection of %s: %s", self.peer, problem)
        body = REASON % problem.encode()
        transport.write(HEAD_TOO_LARGE % (len(body), body))
        transport.close()

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
        self._answering = False
        self._request = None
        self._intake.ended()
        now_seconds = self._owner.now_seconds()
        self.pace.ended(now_seconds)
        if self._intake.kept_bytes:
            self.pace.received(now_seconds)
        self._give()
