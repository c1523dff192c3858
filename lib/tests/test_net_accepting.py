"""Ports with TLS whose clients do not finish their handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import uvloop
from magnetar.net import accepting, endpoints, pending_handshakes, throttled_report
from magnetar.net.accepting import ENOUGH, Acceptor, bound
from magnetar.net.connection import Connection
from magnetar.net.endpoints import listen
from magnetar.net.refused_connections import LimitKind
from magnetar.net.testing import HALF_HANDSHAKE, Certificate, TestAuthority, half_handshakes, until
from magnetar.net.tls import ServerTls, TlsSettings

PATIENCE_SECONDS = 30
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [uvloop.new_event_loop, asyncio.new_event_loop]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return TestAuthority(tmp_path_factory.mktemp("tls")).issue("here", "IP:127.0.0.1")


def trusting_all() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Hello:
    """A handler that says hello."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def connection_made(self) -> None:
        self.connection.write(b"hello")

    def data_received(self, data: bytes) -> None:
        pass

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass


class Half:
    """A client that begins a handshake, and no more. Closed after the test."""

    opened: ClassVar[list[socket.socket]] = []

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self.raw = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS, source_address=(source, 0))
        self.opened.append(self.raw)
        self.raw.sendall(HALF_HANDSHAKE)
        self.raw.setblocking(False)

    @property
    def cut(self) -> bool:
        try:
            return not self.raw.recv(16)
        except BlockingIOError:
            return False
        except OSError:
            return True


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    while Half.opened:
        Half.opened.pop().close()


async def hello(port: int, source: str = "127.0.0.1") -> bytes:
    """What an honest client is told."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=trusting_all(), local_addr=(source, 0), ssl_handshake_timeout=PATIENCE_SECONDS
    )
    try:
        return await reader.readexactly(5)
    finally:
        writer.transport.abort()


def tls_of(certificate: Certificate) -> ServerTls:
    return ServerTls(TlsSettings(certificate_file=certificate.certificate_file, key_file=certificate.key_file))


def run(test: Callable[[], Awaitable[None]], make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(4 * PATIENCE_SECONDS):
            await test()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(bounded())


@pytest.mark.parametrize("make_loop", LOOPS)
def test_half_handshakes_make_room(
    make_loop: Callable[[], asyncio.AbstractEventLoop], certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "handshakes_max", lambda: 8)
    monkeypatch.setattr(pending_handshakes, "PATIENCE_SECONDS", 0.01)

    async def test() -> None:
        listener = await listen("127.0.0.1", 0, Hello, tls=tls_of(certificate))
        patient = Half(listener.port, "127.0.0.3")
        await until(lambda: listener.arriving == 1)
        halves = [Half(listener.port) for _ in range(40)]
        assert await hello(listener.port) == b"hello"
        assert await hello(listener.port, "127.0.0.2") == b"hello"
        await until(lambda: sum(half.cut for half in halves) == 34)
        assert listener.arriving == 7
        assert listener.refused_connections.counts[LimitKind.HANDSHAKES] == 34
        assert not patient.cut, "an address that has one only keeps it"
        for half in (patient, *halves):
            half.raw.close()
        await until(lambda: not listener.arriving)
        await until(lambda: not listener.connections)
        await listener.close()

    run(test, make_loop)


@pytest.mark.parametrize("make_loop", LOOPS)
def test_the_limit_of_an_address_counts_from_accepting_on(
    make_loop: Callable[[], asyncio.AbstractEventLoop], certificate: Certificate
) -> None:
    async def test() -> None:
        left = {"127.0.0.2": 2}
        listener = await listen(
            "127.0.0.1", 0, Hello, tls=tls_of(certificate), left_of=lambda host: left.get(host, ENOUGH)
        )
        others = [Half(listener.port) for _ in range(5)]
        halves = [Half(listener.port, "127.0.0.2") for _ in range(6)]
        await until(lambda: sum(half.cut for half in halves) == 4)
        assert [half.cut for half in halves] == [True] * 4 + [False] * 2
        assert listener.arriving == 7
        assert not any(half.cut for half in others)
        assert await hello(listener.port, "127.0.0.2") == b"hello"
        for half in (*others, *halves):
            half.raw.close()
        await until(lambda: not listener.arriving)
        await listener.close()

    run(test, make_loop)


@pytest.mark.parametrize("make_loop", LOOPS)
def test_who_arrives_while_a_port_closes_is_cut(
    make_loop: Callable[[], asyncio.AbstractEventLoop], certificate: Certificate
) -> None:
    async def test() -> None:
        listener = await listen("127.0.0.1", 0, Hello, tls=tls_of(certificate))
        port = listener.port
        halves = [Half(port) for _ in range(5)]
        await until(lambda: listener.arriving == 5)
        listener.stop_accepting()
        with pytest.raises(ConnectionRefusedError):
            Half(port)
        await asyncio.sleep(0)
        assert not any(half.cut for half in halves)
        await listener.close()
        assert not listener.arriving
        await until(lambda: all(half.cut for half in halves))
        for half in halves:
            half.raw.close()

    run(test, make_loop)


async def test_there_is_no_handshake_where_no_connection_fits(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "clients_max", lambda: 1)
    monkeypatch.setattr(endpoints, "REFUSED_WITH_A_WORD", 0)
    listener = await listen("127.0.0.1", 0, Hello, tls=tls_of(certificate))
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=trusting_all())
    assert await reader.readexactly(5) == b"hello"
    half = Half(listener.port)
    await until(lambda: half.cut)
    assert listener.refused_connections.counts[LimitKind.FILES] == 1
    assert not listener.arriving
    half.raw.close()
    writer.transport.abort()
    await until(lambda: not listener.connections)
    assert await hello(listener.port) == b"hello"
    await listener.close()


class Exhausted(socket.socket):
    """A listening socket of a process that has no file left, so many times."""

    times = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class Plenty:
    def left(self) -> int:
        return ENOUGH

    def left_of(self, host: str) -> int:
        return ENOUGH

    def refused(self, host: str, kind: LimitKind) -> None:
        raise AssertionError(f"{host} {kind}")


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"hello")
        transport.close()


async def test_without_files_there_is_a_pause_and_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(throttled_report, "BURST_SECONDS", 0.05)
    [plain] = await bound("127.0.0.1", 0)
    listening = Exhausted(fileno=plain.detach())
    listening.times = 5
    acceptor = Acceptor([listening], Greeting, Plenty(), backlog=8, tls=None)
    await acceptor.start_serving()
    port = listening.getsockname()[1]
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b"hello"
        assert time.monotonic() - began >= 0.1
        await until(lambda: bool(caplog.messages))
    assert caplog.messages == ["no connection can be accepted: Too many open files; this is tried again every second"]
    writer.close()
    acceptor.close()
    await acceptor.wait_closed()


async def test_a_port_that_pauses_can_be_closed() -> None:
    [plain] = await bound("127.0.0.1", 0)
    listening = Exhausted(fileno=plain.detach())
    listening.times = 1
    acceptor = Acceptor([listening], Greeting, Plenty(), backlog=8, tls=None)
    await acceptor.start_serving()
    _, writer = await asyncio.open_connection(*listening.getsockname())
    await until(lambda: not listening.times)
    acceptor.close()
    acceptor.close()
    await acceptor.wait_closed()
    writer.close()
    assert listening.fileno() == -1


SERVER = """
import asyncio, resource, sys
from pathlib import Path
import uvloop
from aiohttp import web
from magnetar.net.endpoints import listen
from magnetar.net.http.connections import HttpConnections
from magnetar.net.tls import ServerTls, TlsSettings

class Hello:
    def __init__(self, connection):
        self.connection = connection
    def connection_made(self):
        pass
    def data_received(self, data):
        self.connection.write(b"HTTP/1.1 200 hello")
    def writable_changed(self, writable):
        pass
    def connection_lost(self, error):
        pass

async def answer(request):
    return web.Response(text="hello")

async def main(kind, certificate, key, files):
    tls = ServerTls(TlsSettings(certificate_file=Path(certificate), key_file=Path(key)))
    if kind == "binary":
        port = (await listen("127.0.0.1", 0, Hello, tls=tls)).port
    else:
        application = web.Application()
        application.router.add_get("/", answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        port = await HttpConnections().listen(runner.server, "127.0.0.1", 0, tls.context)
    print(port, flush=True)
    await asyncio.sleep(600)

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[4]),) * 2)
uvloop.run(main(*sys.argv[1:5]))
"""


@contextlib.contextmanager
def serving(kind: str, certificate: Certificate, files: int) -> Iterator[tuple[int, Callable[[], int]]]:
    """A server as a process of its own; its port, and what tells how many files it has open."""
    arguments = (kind, certificate.certificate_file, certificate.key_file, files)
    process = subprocess.Popen([sys.executable, "-c", SERVER, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield port, lambda: len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
    finally:
        process.kill()
        process.communicate()


def honest(port: int) -> bytes:
    """Comes again, as stock clients do: on a loaded machine the flood may outrun it once."""
    limit = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask_once(port)
        except OSError:
            if time.monotonic() > limit:
                raise


def ask_once(port: int) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as raw,
        trusting_all().wrap_socket(raw) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        # The client's side of a handshake ends first: it may be cut before the server's has.
        if not (answer := client.recv(12)):
            raise ConnectionResetError
        return answer


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "https"])
def test_a_flood_of_half_handshakes_takes_neither_the_files_nor_the_port(kind: str, certificate: Certificate) -> None:
    files = 160
    with serving(kind, certificate, files) as (port, open_files):
        assert honest(port) == b"HTTP/1.1 200"
        before = open_files()
        most = 0
        with half_handshakes([port], held=300) as count:
            limit = time.monotonic() + PATIENCE_SECONDS
            while count() < 400 and time.monotonic() < limit:
                time.sleep(0.01)
            assert count() >= 400
            for _ in range(20):
                assert honest(port) == b"HTTP/1.1 200"
                most = max(most, open_files())
        assert most <= before + accepting.ENDING_MAX + 32 + 8, "of 160"
        limit = time.monotonic() + PATIENCE_SECONDS
        while open_files() > before and time.monotonic() < limit:
            time.sleep(0.01)
        assert open_files() <= before
        assert honest(port) == b"HTTP/1.1 200"
