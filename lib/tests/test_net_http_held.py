"""What clients send in the first write, or behind a request, counts like any body, and aiohttp is given one request at
a time."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web
from magnetar.net.http.connections import CHUNKS_IN_TURN, HttpConnections
from magnetar.net.http.held_bodies import HeldBodies
from magnetar.net.http.intake import PIECE_BYTES, Intake
from magnetar.net.http.pace import DEFAULT, HttpLimits

PATIENCE_SECONDS: Final = 30
BODY_BYTES: Final = 200_000
FEW: Final = HttpLimits(bodies_bytes_max=5 * BODY_BYTES + BODY_BYTES // 2, connections_max=20)
CLIENTS: Final = 20
GET: Final = b"GET /quick HTTP/1.1\r\nHost: x\r\n\r\n"
POST: Final = b"POST /%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Given(asyncio.Protocol):
    """Between the connections and aiohttp: what aiohttp is given, and in which turn of the loop."""

    def __init__(self, inner: Any, pieces: list[tuple[int, bytes]], turn: Callable[[], int]) -> None:
        self._inner = inner
        self._pieces = pieces
        self._turn = turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._pieces.append((self._turn(), data))
        self._inner.data_received(data)


class Site:
    """A server whose `/slow` waits until it is let go on."""

    def __init__(self, limits: HttpLimits) -> None:
        self.connections = HttpConnections(limits)
        self.go_on = asyncio.Event()
        self.begun = 0
        self.requests: list[web.Request] = []
        self.pieces: list[tuple[int, bytes]] = []
        self.port = 0
        self._turn = 0

    def given(self) -> list[bytes]:
        return [data for _, data in self.pieces]

    def turn(self) -> int:
        return self._turn

    def next_turn(self) -> None:
        self._turn += 1
        if self.port >= 0:
            asyncio.get_running_loop().call_soon(self.next_turn)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.begun += 1
        self.requests.append(request)
        if request.path == "/slow":
            await self.go_on.wait()
        if request.path == "/ws":
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            async for message in socket:
                await socket.send_str(f"{message.data}!")
            return socket
        if request.method == "POST" and request.path != "/unread":
            return web.Response(text=str(len(await request.read())))
        return web.Response(text="here")


@asynccontextmanager
async def site(limits: HttpLimits = DEFAULT) -> AsyncIterator[Site]:
    serving = Site(limits)

    @web.middleware
    async def paced(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await serving.connections.serve(request, handler)

    application = web.Application(middlewares=[paced], client_max_size=1 << 24)
    application.router.add_route("*", "/{rest:.*}", serving.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
    await runner.setup()
    make = runner.server
    assert make is not None
    serving.port = await serving.connections.listen(lambda: Given(make(), serving.pieces, serving.turn), "127.0.0.1", 0)
    serving.next_turn()
    try:
        yield serving
    finally:
        serving.port = -1
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

    def close(self) -> None:
        self.writer.close()


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not happened():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(POST % (b"slow", 3 * BODY_BYTES) + bytes(BODY_BYTES), id="upload"),
        pytest.param(POST % (b"slow", BODY_BYTES) + bytes(BODY_BYTES), id="whole body"),
        pytest.param(
            b"POST /slow HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (BODY_BYTES // 6),
            id="chunks",
        ),
    ],
)
async def test_what_comes_with_the_head_counts(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Two thousand clients had 800 MiB of a server, and a handler that begins late had them stay."""
    async with site(FEW) as serving:
        clients = [await Client.open(serving.port) for _ in range(CLIENTS)]
        for client in clients:
            client.writer.write(sent)
        await until(lambda: serving.connections.open_count <= 5)
        assert serving.connections._bodies.held_bytes <= FEW.bodies_bytes_max
        assert "giving up the request of 127.0.0.1:" in caplog.text
        assert "bodies take too much memory" in caplog.text
        honest = await Client.open(serving.port)
        honest.writer.write(GET)
        assert await honest.answer() == (200, b"here")
        for client in (honest, *clients):
            client.close()
        await until(lambda: serving.connections.open_count == 0)
        assert serving.connections._bodies.held_bytes == 0


@pytest.mark.parametrize("fields", [b"", b"Connection: upgrade\r\nUpgrade: websocket\r\n"])
async def test_what_comes_behind_a_request_counts(fields: bytes) -> None:
    """aiohttp had all that was read, parsed or not."""
    head = b"GET /slow HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n"
    limits = HttpLimits(bodies_bytes_max=50_000, connections_max=CLIENTS)
    async with site(limits) as serving:
        clients = [await Client.open(serving.port) for _ in range(CLIENTS)]
        for client in clients:
            client.writer.write(head + GET * (BODY_BYTES // len(GET)))
        await until(lambda: serving.connections.open_count < CLIENTS)
        await until(lambda: len(serving.pieces) == CLIENTS)
        assert set(serving.given()) == {head}
        assert serving.connections._bodies.held_bytes <= limits.bodies_bytes_max
        for client in clients:
            client.close()


async def test_a_body_that_nobody_reads_counts_until_it_is_thrown_away() -> None:
    async with site(FEW) as serving:
        clients = [await Client.open(serving.port) for _ in range(5)]
        for client in clients:
            client.writer.write(POST % (b"slow", BODY_BYTES + 1) + bytes(BODY_BYTES))
        await until(lambda: serving.connections._bodies.held_bytes >= 5 * BODY_BYTES)
        serving.go_on.set()
        for client in clients:
            client.writer.write(b"x")
            assert await client.answer() == (200, b"%d" % (BODY_BYTES + 1))
        for client in clients * 3:
            client.writer.write(POST % (b"unread", BODY_BYTES) + bytes(BODY_BYTES))
            assert await client.answer() == (200, b"here")
        await until(lambda: serving.connections._bodies.held_bytes == 0)
        assert serving.connections.open_count == 5
        for client in clients:
            client.close()


@pytest.mark.parametrize("path", [b"read", b"unread"])
async def test_a_connection_that_is_kept_keeps_no_body(path: bytes) -> None:
    async with site() as serving:
        client = await Client.open(serving.port)
        client.writer.write(POST % (path, BODY_BYTES) + bytes(BODY_BYTES))
        assert (await client.answer())[0] == 200
        (request,) = serving.requests
        assert request.content._size == 0
        assert request._read_bytes is None
        assert serving.connections.open_count == 1
        client.close()


async def test_a_read_of_thousands_of_requests_is_given_one_at_a_time() -> None:
    async with site() as serving:
        client = await Client.open(serving.port)
        client.writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n" + GET * 2_000)
        await until(lambda: serving.begun == 1)
        (watched,) = serving.connections._connections.values()
        await until(lambda: watched._intake.kept_bytes > 0)
        assert len(serving.pieces) == 1
        transport = watched.transport
        assert transport is not None
        assert not transport.is_reading()
        serving.go_on.set()
        for _ in range(2_001):
            assert await client.answer() == (200, b"here")
        assert set(serving.given()[1:]) == {GET}
        turns = [turn for turn, _ in serving.pieces]
        assert len(set(turns)) == len(turns)
        assert transport.is_reading()
        client.close()


async def test_nothing_is_read_behind_a_request_that_is_served() -> None:
    async with site() as serving:
        client = await Client.open(serving.port)
        client.writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n" + GET * 200_000)
        await until(lambda: serving.begun == 1)
        (watched,) = serving.connections._connections.values()
        await until(lambda: watched._intake.kept_bytes > 0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert watched._received_bytes <= 2 << 18  # Two reads of the loop.
        client.writer.transport.abort()


async def test_bodies_in_chunks_are_given_piece_by_piece_and_one_in_a_turn() -> None:
    body = b"1\r\nx\r\n" * 20_000 + b"4\r\n\r\n\r\n\r\n" * 3 + b"0\r\nX-Trailer: y\r\n\r\n"
    head = b"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with site() as serving:
        clients = [await Client.open(serving.port) for _ in range(3)]
        for client in clients:
            client.writer.write(head + body + GET * 3 + head + b"3\r\nabc\r\n0\r\n\r\n" + GET)
        for client in clients:
            assert await client.answer() == (200, b"20012")
            for _ in range(3):
                assert await client.answer() == (200, b"here")
            assert await client.answer() == (200, b"3")
            assert await client.answer() == (200, b"here")
            client.close()
    in_turn: dict[int, int] = {}
    for turn, piece in serving.pieces:
        if piece not in (GET, head):
            in_turn[turn] = in_turn.get(turn, 0) + piece.count(b"\r\n") // 2
    assert max(in_turn.values()) <= CHUNKS_IN_TURN + PIECE_BYTES // len(b"1\r\nx\r\n")
    assert sum(piece == GET for piece in serving.given()) == 3 * 4


async def test_an_upload_goes_on_in_whole_reads() -> None:
    async with site() as serving, aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.post(
                f"http://127.0.0.1:{serving.port}/read", data=io.BytesIO(bytes(1 << 23))
            ) as response:
                assert await response.text() == str(1 << 23)
    assert max(map(len, serving.given())) > PIECE_BYTES


async def test_a_body_and_a_request_behind_it_come_in_one_write() -> None:
    async with site() as serving:
        client = await Client.open(serving.port)
        # Some clients send an empty line behind a body.
        client.writer.write(POST % (b"read", 5) + b"hello\r\n" + GET + b"\r\n\r\n" + GET[:20])
        assert await client.answer() == (200, b"5")
        assert await client.answer() == (200, b"here")
        client.writer.write(GET[20:])
        assert await client.answer() == (200, b"here")
        client.close()


async def test_a_client_that_waits_to_be_asked_for_its_body() -> None:
    async with site() as serving, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{serving.port}/read"
        async with session.post(url, data=bytes(BODY_BYTES), expect100=True) as response:
            assert await response.text() == str(BODY_BYTES)


async def test_a_websocket_is_given_all_that_comes_once_it_is_one() -> None:
    async with site() as serving, aiohttp.ClientSession() as session:
        async with session.ws_connect(f"http://127.0.0.1:{serving.port}/ws") as socket:
            for size in (1, 100_000):
                await socket.send_str("x" * size)
                assert (await socket.receive_str(timeout=PATIENCE_SECONDS)) == "x" * size + "!"
        hasty = await Client.open(serving.port)
        # A frame of text, masked with zeros, before anybody said that it may come.
        frame = b"\x81\x85" + bytes(4) + b"hello"
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        hasty.writer.write(b"GET /ws HTTP/1.1\r\nHost: x\r\n" + upgrade + key + b"\r\n" + frame)
        assert (await hasty.answer())[0] == 101
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await hasty.reader.readexactly(8) == b"\x81\x06hello!"
        hasty.close()


async def test_requests_behind_an_upgrade_that_is_declined_are_answered() -> None:
    async with site() as serving:
        client = await Client.open(serving.port)
        client.writer.write(GET[:-2] + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n" + GET * 40)
        for _ in range(41):
            assert await client.answer() == (200, b"here")
        client.close()


@pytest.mark.parametrize("read_bytes", [1, 3, 50, 100_000])
def test_an_intake_gives_what_came_request_by_request(read_bytes: int) -> None:
    heads = [
        b"\r\n" + POST % (b"a", 300),
        b"PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        GET,
        b"\r\n\r\n" + GET,
    ]
    bodies = [b"\r\n\r\n" * 75, b"6\r\nab\r\n\r\n\r\n" + b"0\r\n\r\n", b"", b""]
    lengths = [300, None, None, None]
    sent = b"".join(head + body for head, body in zip(heads, bodies, strict=True))
    intake = Intake(HttpLimits())
    reads = [sent[first : first + read_bytes] for first in range(0, len(sent), read_bytes)]

    def more() -> None:
        if not intake.kept_bytes and reads:
            intake.came(reads.pop(0))

    for head, body, length in zip(heads, bodies, lengths, strict=True):
        given = b""
        while given != head:
            more()
            piece, problem = intake.next_of_head()
            assert piece
            assert not problem
            given += piece
        assert intake.next_of_head() == (b"", "")
        intake.began(length)
        given = b""
        while given != body:
            more()
            piece = intake.next_of_body()
            assert piece
            given += piece
        intake.ended()
    assert not reads
    assert not intake.kept_bytes


def test_of_those_with_more_than_their_share_the_oldest_goes() -> None:
    bodies: HeldBodies[str] = HeldBodies(1_000, 10)
    bodies.hold("served", 300, gives_way=False)
    for holder, size_bytes in (("little", 100), ("first", 101), ("second", 499)):
        bodies.hold(holder, size_bytes, gives_way=True)
    assert bodies.held_bytes == 1_000
    assert bodies.next_to_go() is None
    bodies.hold("second", 500, gives_way=True)
    assert bodies.next_to_go() == "first"
    bodies.hold("first", 0, gives_way=False)
    assert bodies.held_bytes == 900
    bodies.hold("second", 900, gives_way=False)
    assert bodies.next_to_go() == "little"
    bodies.hold("little", 0, gives_way=True)
    assert bodies.next_to_go() is None
