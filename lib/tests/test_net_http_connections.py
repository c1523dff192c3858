"""A real HTTP server whose clients are slow on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from aiohttp import web
from magnetar.net.http import connections as http_connections
from magnetar.net.http.connections import HttpConnections, limit_of
from magnetar.net.http.head import HeadBounds
from magnetar.net.http.pace import HttpLimits
from magnetar.net.refused_connections import FILES_SETTING, LimitKind, RefusedConnections
from magnetar.net.testing import TestAuthority
from magnetar.net.tls import ServerTls, TlsSettings

PATIENCE_SECONDS = 30
QUICK = HttpLimits(head_seconds_max=0.3, idle_seconds_max=0.6, window_seconds=0.3, pace_bytes_min=1 << 20)
LARGE = 40 << 20
"""More than the kernels' buffers of both sides hold."""
HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "SWEEP_SECONDS", 0.02)


async def answer(request: web.Request) -> web.StreamResponse:
    if request.method == "POST":
        return web.Response(text=str(len(await request.read())))
    if request.path == "/large":
        return web.Response(body=bytes(LARGE))
    if request.path == "/stream":
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(LARGE >> 16):
            await response.write(bytes(1 << 16))
        return response
    if request.path == "/slow":
        await asyncio.sleep(2)
    return web.Response(text="here")


@asynccontextmanager
async def serving(
    limits: HttpLimits = QUICK,
    tls: ServerTls | None = None,
    refused: RefusedConnections | None = None,
    answer: Handler = answer,
) -> AsyncIterator[tuple[int, HttpConnections]]:
    connections = HttpConnections(limits, refused)

    @web.middleware
    async def paced(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await connections.serve(request, handler)

    application = web.Application(middlewares=[paced], client_max_size=LARGE * 2)
    application.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
    await runner.setup()
    assert runner.server is not None
    port = await connections.listen(runner.server, "127.0.0.1", 0, None if tls is None else tls.context)
    try:
        yield port, connections
    finally:
        connections.stop_listening()
        await connections.close()
        await runner.cleanup()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @staticmethod
    async def open(port: int) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 16))

    async def until_cut(self) -> float:
        """After how many seconds the server has cut the connection, whatever it sent before."""
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except ConnectionError:
                pass
        self.writer.close()
        return time.monotonic() - began

    async def trickle(self, data: bytes) -> None:
        try:
            while True:
                self.writer.write(data)
                await self.writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            return


async def until_gone(connections: HttpConnections) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while connections.open_count:
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_three_hundred_slow_heads_are_gone_and_others_are_served_meanwhile() -> None:
    async with serving() as (port, connections), aiohttp.ClientSession() as session:
        clients = [await Client.open(port) for _ in range(300)]
        for number, client in enumerate(clients):
            client.writer.write((HEAD, b"GET / HT", b"")[number % 3])
        tricklers = [asyncio.create_task(client.trickle(b"X-More: 1\r\n")) for client in clients[:30:3]]
        async with session.get(f"http://127.0.0.1:{port}/") as response:
            assert await response.text() == "here"
        for client in clients:
            await client.until_cut()
        await asyncio.gather(*tricklers)
        await until_gone(connections)


@pytest.mark.slow
async def test_a_body_that_trickles_and_one_that_never_comes() -> None:
    async with serving() as (port, connections):
        trickling, silent = await Client.open(port), await Client.open(port)
        for client in (trickling, silent):
            client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        sending = asyncio.create_task(trickling.trickle(b"x"))
        await trickling.until_cut()
        await silent.until_cut()
        await sending
        await until_gone(connections)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["large", "stream"])
async def test_who_does_not_read_a_large_answer_is_cut(path: str) -> None:
    async with serving() as (port, connections):
        client = await Client.open(port)
        client.writer.write(f"GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await until_gone(connections)
        client.writer.close()


@pytest.mark.slow
class StillClock:
    """A loop whose time a test moves; timers run by the real one's."""

    def __init__(self, connections: HttpConnections) -> None:
        self._loop = asyncio.get_running_loop()
        self.now_seconds = 0.0
        connections._loop = self  # type: ignore[assignment]

    def time(self) -> float:
        return self.now_seconds

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, callback)

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        return self._loop.call_soon(callback)

    async def pass_seconds(self, seconds: float) -> None:
        """So much time passes, and all connections are looked at."""
        self.now_seconds += seconds
        await asyncio.sleep(5 * http_connections.SWEEP_SECONDS)


async def test_who_is_idle_is_cut_and_who_works_is_not(tmp_path: Path) -> None:
    certificate = TestAuthority(tmp_path).issue("here", "IP:127.0.0.1")
    tls = ServerTls(TlsSettings(certificate_file=certificate.certificate_file, key_file=certificate.key_file))
    limits = HttpLimits(head_seconds_max=30, idle_seconds_max=1, window_seconds=30, pace_bytes_min=1)
    for scheme, context in (("http", None), ("https", tls)):
        async with serving(limits, context) as (port, connections), aiohttp.ClientSession() as session:
            clock = StillClock(connections)
            base = f"{scheme}://127.0.0.1:{port}"
            slow = asyncio.create_task(session.get(base + "/slow", ssl=False))
            while not connections.serving_count:
                await asyncio.sleep(0.001)
            await clock.pass_seconds(5)
            async with await slow as response:
                assert await response.text() == "here"
            async with session.post(base, data=io.BytesIO(bytes(LARGE)), ssl=False) as response:
                assert await response.text() == str(LARGE)
            async with session.get(base + "/large", ssl=False) as response:
                first = await response.content.readexactly(1 << 16)
                await clock.pass_seconds(5)
                assert len(first) + len(await response.read()) == LARGE
            assert connections.open_count == 1
            await clock.pass_seconds(1)
            await until_gone(connections)
            async with session.get(base, ssl=False) as response:
                assert await response.text() == "here"


async def test_when_all_places_are_taken_who_waits_the_longest_goes() -> None:
    limits = HttpLimits(connections_max=3)
    async with serving(limits) as (port, connections):
        first, second, third = [await Client.open(port) for _ in range(3)]
        first.writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        second.writer.write(HEAD)
        while connections.serving_count != 1:
            await asyncio.sleep(0.001)
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as response:
            assert await response.text() == "here"
        await second.until_cut()
        # Whoever asked for something is answered.
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await first.reader.read(15)).startswith(b"HTTP/1.1 200")
        for client in (first, third):
            client.writer.close()


async def test_of_many_that_come_at_once_no_more_stay_than_may(caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedConnections((LimitKind.HTTP,))
    limits = HttpLimits(connections_max=10, connections_setting="maxHttpServerConnections")
    async with serving(limits, refused=refused) as (port, connections):
        first = [await Client.open(port) for _ in range(10)]
        # All of these are accepted in one turn of the loop.
        raw = [socket.create_connection(("127.0.0.1", port)) for _ in range(25)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while refused.counts[LimitKind.HTTP] < 25:
                await asyncio.sleep(0.001)
        for client in first:
            await client.until_cut()
        assert connections.open_count == 10
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as sockets:
            for one in raw:
                sockets.callback(one.close)
                one.setblocking(False)
            async with asyncio.timeout(PATIENCE_SECONDS):
                for one in raw[:15]:
                    with contextlib.suppress(ConnectionError):
                        assert await loop.sock_recv(one, 1) == b""
            for one in raw[15:]:  # Those that came last stay.
                with pytest.raises(BlockingIOError):
                    one.recv(1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not caplog.messages:
                await asyncio.sleep(0.01)
    assert "10 connections of HTTP may be open, a higher maxHttpServerConnections allows more" in caplog.text


async def test_when_all_places_are_taken_by_requests_a_connection_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedConnections((LimitKind.HTTP,))
    limits = HttpLimits(connections_max=1, connections_setting="maxHttpServerConnections")
    async with serving(limits, refused=refused) as (port, connections):
        first = await Client.open(port)
        first.writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        while connections.serving_count != 1:
            await asyncio.sleep(0.001)
        second = await Client.open(port)
        await second.until_cut()
        assert refused.counts == {LimitKind.HTTP: 1}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not caplog.messages:
                await asyncio.sleep(0.01)
        (line,) = caplog.messages
        assert line.startswith("refused 1 connection, the last one of 127.0.0.1:")
        assert line.endswith("1 connection of HTTP may be open, a higher maxHttpServerConnections allows more")
        first.writer.close()


async def test_bodies_in_memory_have_a_limit_together() -> None:
    limits = HttpLimits(body_bytes_max=1 << 20, bodies_bytes_max=3 << 20, window_seconds=600)
    async with serving(limits) as (port, connections):
        clients = [await Client.open(port) for _ in range(4)]
        for client in clients:
            client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n" + bytes(1 << 20))
            await client.writer.drain()
            await asyncio.sleep(0.05)
        await clients[0].until_cut()
        clients[1].writer.write(b"x")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await clients[1].reader.readuntil(b"1048577")).startswith(b"HTTP/1.1 200")
        async with aiohttp.ClientSession() as session:
            # What was answered, and what was cut, takes no room any more.
            for _ in range(10):
                async with session.post(f"http://127.0.0.1:{port}/", data=io.BytesIO(bytes(1 << 20))) as response:
                    assert await response.text() == str(1 << 20)
        for client in clients:
            client.writer.close()
        await until_gone(connections)
        assert connections._bodies.held_bytes == 0


async def test_answers_that_nobody_takes_have_a_limit_together() -> None:
    limits = HttpLimits(answers_bytes_max=2 * LARGE + LARGE // 2)
    async with serving(limits) as (port, connections):
        clients = [await Client.open(port) for _ in range(5)]
        for client in clients:
            client.writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while connections.open_count > 2:
                await asyncio.sleep(0.01)
        honest = await Client.open(port)
        honest.writer.write(HEAD + b"\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert b" 200 " in await honest.reader.readline()
        for client in [*clients, honest]:
            client.writer.close()


async def test_answers_are_counted_when_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of megabytes may be asked for between two looks at all connections."""
    monkeypatch.setattr(http_connections, "SWEEP_SECONDS", 3600.0)
    limits = HttpLimits(answers_bytes_max=2 * LARGE + LARGE // 2)
    most_bytes = 0

    async def measured(request: web.Request) -> web.StreamResponse:
        nonlocal most_bytes
        most_bytes = max(most_bytes, sum(one.unsent_bytes for one in connections._connections.values()))
        return await answer(request)

    async with serving(limits, answer=measured) as (port, connections):
        clients = [await Client.open(port) for _ in range(12)]
        for client in clients:
            client.writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while connections.open_count > 2:
                await asyncio.sleep(0.01)
        assert most_bytes <= limits.answers_bytes_max + LARGE
        assert set(connections._behind) == set(connections._connections.values())
        for client in clients:
            client.writer.close()
        await until_gone(connections)
        assert connections._behind == {}
        assert connections._behind_bytes == 0


async def test_bodies_that_pass_take_no_room_of_those_that_are_held() -> None:
    limits = HttpLimits(body_bytes_max=1 << 20, bodies_bytes_max=2 << 20)
    async with serving(limits) as (port, connections):
        clients = [await Client.open(port) for _ in range(4)]
        for client in clients:
            client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3145729\r\n\r\n" + bytes(3 << 20))
            await client.writer.drain()
            await asyncio.sleep(0.05)
        for client in clients:
            client.writer.write(b"x")
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert (await client.reader.readuntil(b"3145729")).startswith(b"HTTP/1.1 200")
            client.writer.close()
        await until_gone(connections)


async def test_requests_that_come_together_begin_in_turns() -> None:
    """Each may be a list of thousands of topics, made from memory."""
    loop, begun_in_turns = asyncio.get_running_loop(), [0]

    def next_turn() -> None:
        if begun_in_turns[-1]:
            begun_in_turns.append(0)
        loop.call_soon(next_turn)

    async def count(_: web.Request) -> web.StreamResponse:
        begun_in_turns[-1] += 1
        return web.Response(text="here")

    loop.call_soon(next_turn)
    async with serving(HttpLimits(), answer=count) as (port, _):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
        for _, writer in opened:
            writer.write(HEAD + b"\r\n")
        for reader, writer in opened:
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
    assert sum(begun_in_turns) == 30
    assert max(begun_in_turns) == 1


async def test_requests_in_one_write_are_answered_in_turn() -> None:
    async with serving() as (port, _):
        client = await Client.open(port)
        client.writer.write((HEAD + b"\r\n") * 200)
        async with asyncio.timeout(PATIENCE_SECONDS):
            text = b""
            while text.count(b"HTTP/1.1 200") < 200 or not text.endswith(b"here"):
                text += await client.reader.read(1 << 16)
        client.writer.close()


@pytest.mark.parametrize("piece_bytes", [1, 7, 4096])
async def test_heads_without_an_end_are_refused(piece_bytes: int) -> None:
    head = HEAD + b"".join(b"x-%d: %s\r\n" % (number, b"y" * 8) for number in range(60))
    limits = HttpLimits(head_bytes_max=len(head) + 2)
    async with serving(limits) as (port, connections):
        client = await Client.open(port)
        for _ in range(2):
            # As long as it may be, whatever the pieces; and again on the same connection.
            whole = head + b"\r\n"
            for first in range(0, len(whole), piece_bytes):
                client.writer.write(whole[first : first + piece_bytes])
                await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert b" 200 " in await client.reader.readline()
                while await client.reader.readline() != b"\r\n":
                    pass
                assert await client.reader.readexactly(4) == b"here"
        client.writer.write(head + b"z" * 100)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert b" 431 " in await client.reader.readline()
        await client.until_cut()
        await until_gone(connections)


BOUNDED_LINES: Final = HttpLimits(line_bytes_max=100, head_bytes_max=1_000, head_setting="httpMaxRequestHeaderSize")


@pytest.mark.parametrize("piece_bytes", [1, 7, 4096])
@pytest.mark.parametrize("lines_before", [0, 3])
def test_a_line_of_a_head_may_be_so_long(piece_bytes: int, lines_before: int) -> None:
    for length, fits in ((100, True), (101, False)):
        bounds = HeadBounds(BOUNDED_LINES)
        for _ in range(2):  # As often as requests come through one connection.
            head = b"GET / HTTP/1.1\r\n" * lines_before + b"x" * length + b"\r\nHost: x\r\n\r\n"
            problems = []
            for first in range(0, len(head), piece_bytes):
                size_bytes, problem = bounds.received(head[first : first + piece_bytes])
                problems.append(problem)
                if problem:
                    break
            assert any(problems) is not fits
            assert (size_bytes is not None) is fits
            if not fits:
                told = "a header, or the first line, has more than 100 bytes, which httpMaxRequestHeaderSize sets"
                assert problems[-1] == told
                break


async def test_a_long_header_is_told_the_setting() -> None:
    async with serving(BOUNDED_LINES) as (port, connections):
        for head in (HEAD + b"Cookie: " + b"c" * 100 + b"\r\n\r\n", HEAD + b"X: y\r\n" * 200 + b"\r\n"):
            client = await Client.open(port)
            client.writer.write(head)
            async with asyncio.timeout(PATIENCE_SECONDS):
                answer = await client.reader.read()
            status, _, rest = answer.partition(b"\r\n")
            fields, _, body = rest.partition(b"\r\n\r\n")
            assert b" 431 " in status
            assert f"Content-Length: {len(body)}".encode() in fields
            assert "httpMaxRequestHeaderSize" in json.loads(body)["reason"]
            client.writer.close()
        await until_gone(connections)


async def test_a_long_body_is_no_head() -> None:
    async with serving(HttpLimits(head_bytes_max=200)) as (port, _):
        client = await Client.open(port)
        client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + bytes(300_000))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert b" 200 " in await client.reader.readline()
        client.writer.close()


async def test_what_is_no_http_is_answered_and_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (port, _):
        client = await Client.open(port)
        client.writer.write(b"GET * HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert b" 400 " in await client.reader.readline()
        client.writer.close()
    assert not caplog.records


def test_http_leaves_files_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, expected in ((1_024, 256), (100_000, 2_048), (resource.RLIM_INFINITY, 2_048), (2, 1)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        limit = limit_of(HttpLimits(connections_setting="maxHttpServerConnections"))
        assert limit.connections_max == expected
        assert limit.setting == ("maxHttpServerConnections" if expected == 2_048 else FILES_SETTING)
