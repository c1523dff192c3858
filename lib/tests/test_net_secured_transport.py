"""TLS on accepted connections, by both event loops: what waits for a peer is counted, and no byte of it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import operator
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, cast

import pytest
import uvloop
from magnetar.core.limits import MIB
from magnetar.net.accepting import Acceptor, bound
from magnetar.net.refused_connections import LimitKind
from magnetar.net.testing import TestAuthority
from magnetar.net.tls import ServerTls, TlsSettings

PATIENCE_SECONDS: Final = 300
LARGE: Final = bytes(range(256)) * (160 * 1024)
"""40 MiB: more than the kernels' buffers of both sides hold."""

LOOPS: Final = [asyncio.new_event_loop, uvloop.new_event_loop]
WRITES: Final = [
    pytest.param(lambda transport: transport.write(LARGE), id="write"),
    pytest.param(lambda transport: transport.writelines([LARGE[:MIB], memoryview(LARGE)[MIB:]]), id="writelines"),
]


class Places:
    """There is room for all."""

    def left(self) -> int:
        return 1_000

    def left_of(self, host: str) -> int:
        del host
        return 1_000

    def refused(self, host: str, kind: LimitKind) -> None:
        raise AssertionError(host, kind)


class Served(asyncio.Protocol):
    """Keeps its transport, and what came."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = b""
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.ended = True


def server_tls(folder: Path) -> ServerTls:
    certificate = TestAuthority(folder).issue("here", "IP:127.0.0.1")
    return ServerTls(TlsSettings(certificate_file=certificate.certificate_file, key_file=certificate.key_file))


@contextlib.asynccontextmanager
async def accepting(tls: ServerTls | None) -> AsyncIterator[tuple[int, list[Served]]]:
    """The port, and who is served."""
    served: list[Served] = []

    def made() -> Served:
        served.append(Served())
        return served[-1]

    listening = await bound("127.0.0.1", 0)
    port = listening[0].getsockname()[1]
    acceptor = Acceptor(listening, made, Places(), backlog=10, tls=None if tls is None else tls.context)
    await acceptor.start_serving()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield port, served
    finally:
        acceptor.close()
        await acceptor.wait_closed()


@functools.cache
def trusting() -> ssl.SSLContext:
    """Of clients that take any certificate. Made once: to read the system's authorities takes 35 ms of processor time,
    and a hundred clients connect."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def connected(port: int, *, tls: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = None
    if tls:
        context = trusting()
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=1 << 16)


async def written(tls: ServerTls | None, write: Callable[[asyncio.Transport], None]) -> None:
    async with accepting(tls) as (port, served):
        reader, writer = await connected(port, tls=tls is not None)
        writer.write(b"first")
        while not (served and served[0].received):
            await asyncio.sleep(0.001)
        transport = served[0].transport
        write(transport)
        assert await reader.readexactly(1 << 16) == LARGE[: 1 << 16]
        for _ in range(20):
            await asyncio.sleep(0.01)
            # The kernel has taken some of it.
            assert transport.get_write_buffer_size() > len(LARGE) // 4
        assert await reader.readexactly(len(LARGE) - (1 << 16)) == LARGE[1 << 16 :]
        while transport.get_write_buffer_size():
            await asyncio.sleep(0.001)
        assert served[0].received == b"first"
        writer.transport.abort()
        while not served[0].ended:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("write", WRITES)
def test_what_a_peer_has_not_taken_is_counted(
    write: Callable[[asyncio.Transport], None], new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(written(server_tls(tmp_path), write))
        runner.run(written(None, write))


async def many(tls: ServerTls) -> None:
    async with accepting(tls) as (port, served):

        async def one(number: int) -> None:
            _, writer = await connected(port, tls=True)
            writer.write(b"%d" % number)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        await asyncio.gather(*map(one, range(100)))
        while not (len(served) == 100 and all(each.ended for each in served)):
            await asyncio.sleep(0.001)
        assert sorted(int(each.received) for each in served) == list(range(100))


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_hundred_at_once_lose_no_byte(new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path) -> None:
    """A handshake's first bytes are there before the transport is, and a peer's first words with its last ones."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(many(server_tls(tmp_path)))


class Leaving(Served):
    """Has enough of its peer as soon as it is connected."""

    def __init__(self, leave: Callable[[asyncio.Transport], None]) -> None:
        super().__init__()
        self._leave = leave

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._leave(self.transport)


def speak_early(port: int) -> None:
    """The last of the handshake and the first words in one piece; then until the other side ends."""
    context = trusting()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as raw:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(outgoing.read())
                incoming.write(raw.recv(1 << 16))
        client.write(b"first")
        raw.sendall(outgoing.read())
        with contextlib.suppress(ConnectionError):
            while incoming.write(raw.recv(1 << 16)):
                with contextlib.suppress(ssl.SSLWantReadError):
                    if not client.read(1 << 16):
                        return


async def left(tls: ServerTls, leave: Callable[[asyncio.Transport], None]) -> None:
    served: list[Leaving] = []

    def made() -> Leaving:
        served.append(Leaving(leave))
        return served[-1]

    listening = await bound("127.0.0.1", 0)
    acceptor = Acceptor(listening, made, Places(), backlog=10, tls=tls.context)
    await acceptor.start_serving()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.to_thread(speak_early, listening[0].getsockname()[1])
        while not (served and served[0].ended):
            await asyncio.sleep(0.001)
    assert served[0].received == b""
    acceptor.close()
    await acceptor.wait_closed()


@pytest.mark.parametrize("leave", ["abort", "close"])
@pytest.mark.parametrize("new_loop", LOOPS)
def test_who_leaves_when_connected_hears_nothing_of_what_came_with_the_handshake(
    leave: str, new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(left(server_tls(tmp_path), operator.methodcaller(leave)))


async def strange(tls: ServerTls, said: bytes) -> None:
    async with accepting(tls) as (port, served):
        reader, writer = await connected(port, tls=False)
        writer.write(said)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        assert served == []


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(MIB)], ids=["nothing", "http", "a mebibyte"])
@pytest.mark.parametrize("new_loop", LOOPS)
def test_whoever_speaks_no_tls_is_cut(
    said: bytes, new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(strange(server_tls(tmp_path), said))


READ: Final = 200_000
"""Bytes that each connection says at once."""

STAYS_BYTES_MAX: Final = 24 * 1024
"""What may stay of a connection's two sides: a small part of what one read was."""


def speak_once(port: int) -> ssl.SSLSocket:
    raw = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
    secured = trusting().wrap_socket(raw)
    secured.sendall(bytes(READ))
    return secured


async def spoken(tls: ServerTls) -> int:
    """What stays in memory of a connection, in bytes, after it has said a lot."""
    count, received_bytes = 10, 0

    class Counts(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            nonlocal received_bytes
            received_bytes += len(data)

    async def all_have_spoken(connections: int) -> list[ssl.SSLSocket]:
        expected_bytes = received_bytes + connections * READ
        spoken = [await asyncio.to_thread(speak_once, port) for _ in range(connections)]
        while received_bytes < expected_bytes:
            await asyncio.sleep(0.001)
        return spoken

    listening = await bound("127.0.0.1", 0)
    port = listening[0].getsockname()[1]
    acceptor = Acceptor(listening, Counts, Places(), backlog=10, tls=tls.context)
    await acceptor.start_serving()
    async with asyncio.timeout(PATIENCE_SECONDS):
        connections = await all_have_spoken(1)  # What is made once is there.
        tracemalloc.start()
        try:
            connections += await all_have_spoken(count)
            gc.collect()
            stays_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    for one in connections:
        one.close()
    acceptor.close()
    await acceptor.wait_closed()
    return stays_bytes // count


@pytest.mark.parametrize("new_loop", LOOPS)
def test_no_memory_for_a_large_read_stays_with_a_connection(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(spoken(server_tls(tmp_path))) < STAYS_BYTES_MAX
