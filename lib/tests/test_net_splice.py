"""Two connections joined, and what may come before a protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from magnetar.core.errors import Misuse
from magnetar.net.connection import Connection
from magnetar.net.endpoints import Listener, connect, listen
from magnetar.net.preamble import PendingPreambles, after_preamble
from magnetar.net.splice import UNSENT_HIGH_WATER_BYTES, Splice
from magnetar.wire.haproxy import ProxiedConnection, ProxyHeaderDecoder, encode_v2

MIB = 1024 * 1024
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamWriter]


class Quiet:
    """A handler that keeps what came."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.data = b""
        self.lost = False

    def connection_made(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        self.data += data

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True


class Joining(Quiet):
    """The near end: joins itself to the far server with the first byte, which it keeps."""

    def __init__(self, connection: Connection, bridge: Bridge) -> None:
        super().__init__(connection)
        self._bridge = bridge
        self._task: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        self.connection.pause_reading("joining")
        self._task = asyncio.get_running_loop().create_task(self._join(data[1:]))

    async def _join(self, rest: bytes) -> None:
        far = await connect("127.0.0.1", self._bridge.far_port, Quiet, 5)
        far.write(rest)
        self._bridge.splices.append(Splice(self.connection, far, self._bridge.ended.append))


class Bridge:
    """A server of one's own behind a splice."""

    def __init__(self) -> None:
        self.splices: list[Splice] = []
        self.ended: list[Splice] = []
        self.far_port = 0
        self.far: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.listener: Listener | None = None
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        async def arrived(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            await self.far.put((reader, writer))

        self._server = await asyncio.start_server(arrived, "127.0.0.1", 0, limit=64 * 1024)
        self.far_port = self._server.sockets[0].getsockname()[1]
        self.listener = await listen("127.0.0.1", 0, lambda connection: Joining(connection, self))

    async def pair(
        self,
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamWriter]:
        """(near reader, near writer, far reader, far writer) of a new splice."""
        assert self.listener is not None
        near_reader, near_writer = await asyncio.open_connection("127.0.0.1", self.listener.port, limit=64 * 1024)
        near_writer.write(b"!first")
        far_reader, far_writer = await asyncio.wait_for(self.far.get(), 30)
        assert await far_reader.readexactly(5) == b"first"
        return near_reader, near_writer, far_reader, far_writer

    async def close(self) -> None:
        for splice in self.splices:
            splice.abort()
        assert self.listener is not None
        assert self._server is not None
        await self.listener.close()
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)


@pytest.fixture
async def bridge() -> AsyncIterator[Bridge]:
    made = Bridge()
    await made.start()
    yield made
    await made.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.005)


async def test_bytes_go_both_ways_and_are_counted(bridge: Bridge) -> None:
    near_reader, near_writer, far_reader, far_writer = await bridge.pair()
    payload = bytes(range(256)) * 4096
    near_writer.write(payload)
    far_writer.write(b"back")
    assert await far_reader.readexactly(len(payload)) == payload
    assert await near_reader.readexactly(4) == b"back"
    splice = bridge.splices[0]
    assert (splice.near.received_bytes, splice.far.received_bytes) == (len(payload), 4)
    assert splice.far.reads == 1
    assert bridge.listener is not None
    assert not bridge.listener.connections
    near_writer.close()
    far_writer.close()
    await until(lambda: bool(bridge.ended))


async def test_what_was_said_before_the_end_arrives(bridge: Bridge) -> None:
    near_reader, near_writer, far_reader, far_writer = await bridge.pair()
    far_writer.write(b"x" * (3 * MIB))
    reading = asyncio.get_running_loop().create_task(near_reader.read(-1))
    await far_writer.drain()
    far_writer.close()
    assert len(await reading) == 3 * MIB
    await until(lambda: bridge.ended == bridge.splices)
    assert bridge.splices[0].closing
    near_writer.close()
    assert await far_reader.read() == b""


async def test_an_end_that_breaks_takes_the_other_with_it(bridge: Bridge) -> None:
    near_reader, near_writer, _, far_writer = await bridge.pair()
    far_writer.transport.abort()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await near_reader.readexactly(1)
    near_writer.close()
    await until(lambda: bool(bridge.ended))


@pytest.mark.slow
async def test_a_slow_reader_holds_the_writer_back(bridge: Bridge) -> None:
    _, near_writer, far_reader, far_writer = await bridge.pair()
    total = 64 * MIB
    near_writer.write(b"y" * total)
    splice = bridge.splices[0]
    near, transport = splice.near.transport, splice.far.transport
    assert near is not None
    assert transport is not None
    # Until nothing moves any more: sockets and buffers are full.
    taken = -1
    while taken != splice.near.received_bytes or near.is_reading():
        taken = splice.near.received_bytes
        await asyncio.sleep(0.1)
    assert 0 < transport.get_write_buffer_size() <= 2 * UNSENT_HIGH_WATER_BYTES
    assert taken < total / 2
    left = total
    while left:
        left -= len(await far_reader.read(min(left, MIB)))
    assert splice.near.received_bytes == total
    near_writer.close()
    far_writer.close()


async def test_abort_and_close_of_the_pair(bridge: Bridge) -> None:
    for end in (Splice.abort, Splice.close):
        near_reader, near_writer, far_reader, far_writer = await bridge.pair()
        end(bridge.splices[-1])
        assert await near_reader.read() == b""
        assert await far_reader.read() == b""
        near_writer.close()
        far_writer.close()
    await until(lambda: len(bridge.ended) == 2)


async def test_what_is_closed_cannot_be_handed_over(bridge: Bridge) -> None:
    one, other = [await connect("127.0.0.1", bridge.far_port, Quiet, 5) for _ in range(2)]
    one.abort()
    await until(lambda: one.closed)
    with pytest.raises(Misuse):
        Splice(one, other, bridge.ended.append)
    other.abort()
    await until(lambda: other.closed)


async def test_a_preamble_is_taken_off() -> None:
    made: list[tuple[Quiet, ProxyHeaderDecoder]] = []

    def make(connection: Connection, header: ProxyHeaderDecoder) -> Quiet:
        made.append((Quiet(connection), header))
        return made[-1][0]

    listener = await listen("127.0.0.1", 0, after_preamble(ProxyHeaderDecoder, make, PendingPreambles()))
    proxied = ProxiedConnection("10.0.0.1", 7, "10.0.0.2", 8)
    for preamble in (encode_v2(proxied), b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        for byte in preamble:
            writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        writer.write(b"\0after")
        await until(lambda: bool(made) and made[-1][0].data == b"\0after")
        writer.close()
        await until(lambda: made[-1][0].lost)
        assert made.pop()[1].proxied == (proxied if preamble else None)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"PROXY nonsense\r\n")
    assert await reader.read() == b""
    writer.close()
    assert not made
    await listener.close()


async def test_what_cannot_be_joined_stays_apart() -> None:
    handlers: list[Quiet] = []

    def make(connection: Connection) -> Quiet:
        handlers.append(Quiet(connection))
        return handlers[-1]

    server = await listen("127.0.0.1", 0, make)
    one, other = [await connect("127.0.0.1", server.port, Quiet, 5) for _ in range(2)]
    other.abort()
    while not other.closed:
        await asyncio.sleep(0.001)
    with pytest.raises(Misuse):
        Splice(one, other, lambda _: None)
    begun = await connect("127.0.0.1", server.port, Quiet, 5)
    begun.close()
    assert not begun.closed
    with pytest.raises(Misuse, match="closing"):
        Splice(one, begun, lambda _: None)
    one.write(b"still here")
    while not any(handler.data for handler in handlers):
        await asyncio.sleep(0.001)
    one.close()
    await server.close()
