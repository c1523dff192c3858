"""What aiohttp does not want, cannot parse, or answers before anybody is asked: none of it takes a connection for
ever, or memory without bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from aiohttp import web
from magnetar.net.http import connections as http_connections
from magnetar.net.http.connections import CHUNKS_IN_TURN, HttpConnections
from magnetar.net.http.pace import DEFAULT, HttpLimits
from magnetar.net.http.watched import Watched

PATIENCE_SECONDS: Final = 30
GET: Final = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED: Final = b"POST /%b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK: Final = b"fa0\r\n" + b"a" * 4_000 + b"\r\n"
AIOHTTP_BYTES: Final = 1 << 20
"""More than aiohttp wants of a body that nobody reads."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site:
    """A server whose handlers read a body when they are let go on."""

    def __init__(self, limits: HttpLimits) -> None:
        self.connections = HttpConnections(limits)
        self.go_on = asyncio.Event()
        self.requests: list[web.Request] = []
        self.ended = 0
        self.port = 0

    @property
    def watched(self) -> Watched:
        """The only connection."""
        (watched,) = self.connections._connections.values()
        return watched

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if request.path == "/later":
            await self.go_on.wait()
            self.ended += 1
        if request.path == "/begun":
            response = web.StreamResponse()
            await response.prepare(request)
            await request.read()
            return response
        if request.path == "/refused":
            return web.Response(status=401)
        return web.Response(text=str(len(await request.read())))


@asynccontextmanager
async def site(limits: HttpLimits = DEFAULT) -> AsyncIterator[Site]:
    serving = Site(limits)

    @web.middleware
    async def paced(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await serving.connections.serve(request, handler)

    application = web.Application(middlewares=[paced], client_max_size=1 << 24)
    application.router.add_route("*", "/{rest:.*}", serving.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1, auto_decompress=False)
    await runner.setup()
    assert runner.server is not None
    serving.port = await serving.connections.listen(runner.server, "127.0.0.1", 0)
    try:
        yield serving
    finally:
        serving.go_on.set()
        serving.connections.stop_listening()
        await serving.connections.close()
        await runner.cleanup()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @staticmethod
    async def open(port: int) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", port))

    async def answer(self) -> tuple[int, bytes]:
        """The next answer's status, and its body."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            return int(head.split()[1]), await self.reader.readexactly(length)

    async def until_closed(self) -> bytes:
        """What came before."""
        text = b""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                while data := await self.reader.read(1 << 16):
                    text += data
            except ConnectionError:
                pass
        self.writer.close()
        return text


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not happened():
            await asyncio.sleep(0.001)


def wants_nothing(watched: Watched) -> bool:
    """Whether aiohttp has stopped reading."""
    inner: Any = watched._inner
    stopped: bool = inner._reading_paused
    return stopped


async def pass_turns(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_a_body_in_chunks_waits_while_nobody_reads_it() -> None:
    """Where it had waited for its turn it was read on; aiohttp copied all that it had with each piece more."""
    rounds = 20
    async with site() as serving:
        client = await Client.open(serving.port)
        client.writer.write(CHUNKED % b"later")
        await until(lambda: len(serving.requests) == 1)
        watched = serving.watched
        transport = watched.transport
        assert transport is not None
        for _ in range(rounds):
            # Others have used this turn up.
            serving.connections.chunks.worked(CHUNKS_IN_TURN)
            watched.data_received(CHUNK * 50)
            await pass_turns(20)
            watched.sweep(asyncio.get_running_loop().time())
            await pass_turns(20)
            assert transport.is_reading() is not wants_nothing(watched)
        assert not transport.is_reading()
        assert serving.requests[0].content.total_bytes < AIOHTTP_BYTES
        serving.go_on.set()
        watched.data_received(b"0\r\n\r\n" + GET)
        assert await client.answer() == (200, b"%d" % (rounds * 50 * 4_000))
        assert await client.answer() == (200, b"0")
        client.writer.close()


BAD_BODIES: Final = [b"zz\r\n", b"3\r\nabcX0\r\n\r\n", b"zz\r\nabc\r\n0\r\n\r\n" + GET]


@pytest.mark.parametrize("bad", BAD_BODIES)
@pytest.mark.parametrize("path", [b"read", b"later"])
@pytest.mark.parametrize("together", [True, False])
async def test_a_body_that_cannot_be_parsed_is_answered_and_ends_the_connection(
    bad: bytes, path: bytes, together: bool
) -> None:
    """aiohttp's handler waits for the rest of it for ever, and who ended the connection was not heard of."""
    async with site() as serving:
        client = await Client.open(serving.port)
        client.writer.write(CHUNKED % path + (bad if together else b""))
        await until(lambda: len(serving.requests) == 1)
        if not together:
            client.writer.write(bad)
        text = await client.until_closed()
        assert text.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert text.endswith(b'{"reason":"the body is not encoded as the head tells"}')
        await until(lambda: serving.connections.open_count == 0)


async def test_a_body_that_cannot_be_parsed_ends_an_answer_that_has_begun() -> None:
    async with site() as serving:
        client = await Client.open(serving.port)
        client.writer.write(CHUNKED % b"begun")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await client.reader.readuntil(b"\r\n\r\n")
        client.writer.write(b"zz\r\n")
        assert b"400" not in await client.until_closed()
        await until(lambda: serving.connections.open_count == 0)


async def test_a_body_that_nobody_takes_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's end of the connection is never read then."""
    monkeypatch.setattr(http_connections, "SWEEP_SECONDS", 3_600.0)
    async with site() as serving:
        client = await Client.open(serving.port)
        client.writer.write(CHUNKED % b"later" + CHUNK * 500)
        await until(lambda: len(serving.requests) == 1)
        watched = serving.watched
        transport = watched.transport
        assert transport is not None
        await until(lambda: wants_nothing(watched))
        now = asyncio.get_running_loop().time()
        watched.sweep(now)
        watched.sweep(now + DEFAULT.window_seconds - 1)
        assert not transport.is_closing()
        watched.sweep(now + DEFAULT.window_seconds)
        assert transport.is_closing()
        client.writer.close()


async def test_a_body_of_known_length_that_has_come_may_wait_for_its_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "SWEEP_SECONDS", 3_600.0)
    async with site() as serving:
        client = await Client.open(serving.port)
        client.writer.write(b"POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % AIOHTTP_BYTES)
        await until(lambda: len(serving.requests) == 1)
        watched = serving.watched
        transport = watched.transport
        assert transport is not None
        watched.data_received(bytes(AIOHTTP_BYTES))
        assert wants_nothing(watched)
        # What comes behind it waits, too, and is not taken for some of it.
        watched.data_received(GET * 1_000)
        assert watched._intake.kept_bytes == len(GET) * 1_000
        now = asyncio.get_running_loop().time()
        for seconds in range(0, 1_000, 10):
            watched.sweep(now + seconds)
        assert not transport.is_closing()
        assert watched._intake.kept_bytes == len(GET) * 1_000
        serving.go_on.set()
        assert await client.answer() == (200, b"%d" % AIOHTTP_BYTES)
        for _ in range(1_000):
            assert await client.answer() == (200, b"0")
        client.writer.close()


async def test_a_request_behind_one_that_expects_too_much_is_answered() -> None:
    async with site() as serving:
        client = await Client.open(serving.port)
        expecting = GET[:-2] + b"Expect: wonders\r\n\r\n"
        client.writer.write(expecting + GET + expecting)
        assert (await client.answer())[0] == 417
        assert await client.answer() == (200, b"0")
        assert (await client.answer())[0] == 417
        client.writer.write(GET)
        assert await client.answer() == (200, b"0")
        client.writer.close()


async def test_requests_that_ask_whether_to_go_on_are_answered_with_those_behind_them() -> None:
    async with site() as serving:
        client = await Client.open(serving.port)
        asking = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"
        client.writer.write((asking + GET) * 5)
        for _ in range(5):
            assert (await client.answer())[0] == 100
            assert await client.answer() == (200, b"3")
            assert await client.answer() == (200, b"0")
        client.writer.close()


@pytest.mark.parametrize("body", [b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"])
async def test_a_body_behind_a_head_that_expects_too_much_ends_the_connection(body: bytes) -> None:
    async with site() as serving:
        client = await Client.open(serving.port)
        client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: wonders\r\n" + body + GET)
        text = await client.until_closed()
        assert text.startswith(b"HTTP/1.1 417 ")
        assert text.count(b"HTTP/1.1 ") == 1
        await until(lambda: serving.connections.open_count == 0)


@pytest.mark.parametrize("pieces", [[b"\r", b"\nP", b"R", b"I", b" "], [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]])
async def test_http_2_is_refused_at_once(pieces: list[bytes]) -> None:
    async with site() as serving:
        client = await Client.open(serving.port)
        for piece in pieces:
            client.writer.write(piece)
            await pass_turns(5)
        text = await client.until_closed()
        assert text.startswith(b"HTTP/1.1 505 HTTP Version Not Supported\r\n")
        assert text.endswith(b'{"reason":"HTTP/2 is not spoken here"}')


@pytest.mark.parametrize("head", [b"POST /refused HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nExpect: wonders\r\n"])
async def test_of_who_hangs_up_after_the_answer_nothing_stays(head: bytes) -> None:
    """aiohttp waited 10 s for the rest of its body: 2 000 connections a second held 1.3 GB, and counted as none."""
    async with site() as serving:
        others = asyncio.all_tasks()
        client = await Client.open(serving.port)
        client.writer.write(head + b"Host: x\r\nContent-Length: 1000\r\n\r\n")
        await client.answer()
        client.writer.close()
        await until(lambda: serving.connections.open_count == 0)
        await pass_turns(10)
        assert asyncio.all_tasks() == others


async def test_a_handler_ends_though_its_client_has_hung_up() -> None:
    async with site() as serving:
        client = await Client.open(serving.port)
        client.writer.write(b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: len(serving.requests) == 1)
        client.writer.close()
        await until(lambda: serving.connections.open_count == 0)
        await pass_turns(10)
        serving.go_on.set()
        await until(lambda: serving.ended == 1)
