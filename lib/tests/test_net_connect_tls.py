"""Connections with TLS from the start that are opened, on both loops that programs run on: what waits for the peer is
counted, errors are told as what they are, and nothing is left of what did not come to stand."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import pytest
import uvloop
from magnetar.core.limits import KIB, MIB
from magnetar.net.connection import OUTBOX_HIGH_WATER_BYTES, Connection
from magnetar.net.endpoints import Listener, connect, listen
from magnetar.net.secured_transport import secured_from_the_start
from magnetar.net.testing import Certificate, TestAuthority, until
from magnetar.net.tls import ClientTls, ServerTls, TlsSettings

from lib.tests.heard import Heard, HeardByRoom

PATIENCE_SECONDS: Final = 120
PIECE: Final = bytes(range(256)) * 1024
LARGE: Final = PIECE * 64
"""16 MiB: more than the kernel's buffers and those of a TLS that is not read hold."""

NOT_OURS_BYTES_MAX: Final = 4 * MIB
"""What the kernel's buffers, which the tests keep small, and a peer's TLS hold of what it does not read."""

CANCELLED_AFTER_TURNS_MAX: Final = 10_000
"""A connection to this process stands long before so many turns of the loop."""

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def own(authority: TestAuthority) -> Certificate:
    return authority.issue("localhost", "DNS:localhost", "IP:127.0.0.1")


@pytest.fixture
def server_tls(own: Certificate) -> ServerTls:
    return ServerTls(TlsSettings(certificate_file=own.certificate_file, key_file=own.key_file))


@pytest.fixture
def client_tls(authority: TestAuthority) -> ClientTls:
    return ClientTls(TlsSettings(trust_certificates_file=authority.certificate_file, verify_host_name=True))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(work, PATIENCE_SECONDS))

    return run_on_loop


class NotReading(Heard):
    """A server's side that reads nothing until it is told to."""

    def connection_made(self) -> None:
        super().connection_made()
        self.connection.pause_reading("test")


class Server:
    """Listens with TLS, with small buffers of the kernel; `heard` has the handlers of who came."""

    listener: Listener

    def __init__(self, tls: ServerTls | None, kind: type[Heard] = Heard) -> None:
        self.heard: list[Heard] = []
        self._tls = tls
        self._kind = kind

    def _make(self, connection: Connection) -> Heard:
        self.heard.append(self._kind(connection))
        return self.heard[-1]

    async def __aenter__(self) -> Server:
        self.listener = await listen("127.0.0.1", 0, self._make, tls=self._tls)
        for one in self.listener._server.sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.close()

    async def pair(self, tls: ClientTls | None) -> tuple[Heard, Heard]:
        """A new connection: the server's side and the client's."""
        clients: list[Heard] = []

        def make(connection: Connection) -> Heard:
            clients.append(Heard(connection))
            return clients[-1]

        before = len(self.heard)
        connection = await connect("127.0.0.1", self.listener.port, make, PATIENCE_SECONDS, tls=tls)
        assert connection is clients[0].connection
        transport = connection._transport
        assert transport is not None
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
        await until(lambda: len(self.heard) > before)
        return self.heard[-1], clients[0]


@pytest.mark.parametrize("parts", [[LARGE], [b"", PIECE[:1000], *[PIECE] * 63, PIECE[1000:]]], ids=["one", "many"])
def test_what_a_peer_has_not_taken_is_counted(
    run: Run, server_tls: ServerTls, client_tls: ClientTls, parts: list[bytes]
) -> None:
    async def work() -> None:
        async with Server(server_tls, NotReading) as server:
            here, there = await server.pair(client_tls)
            there.connection.write_parts(parts)
            for _ in range(20):
                assert len(LARGE) - NOT_OURS_BYTES_MAX < there.connection.unsent_bytes < 1.01 * len(LARGE)
                await asyncio.sleep(0.01)  # The kernels take what they can.
            here.connection.resume_reading("test")
            await until(lambda: len(here.data) == len(LARGE))
            assert here.data == b"".join(parts)
            await until(lambda: there.connection.writable and not there.connection.unsent_bytes)
            there.connection.abort()

    run(work())


def test_who_stops_when_the_peer_is_behind_has_written_little_more(
    run: Run, server_tls: ServerTls, client_tls: ClientTls
) -> None:
    async def work() -> None:
        async with Server(server_tls, NotReading) as server:
            here, there = await server.pair(client_tls)
            written = 0
            while there.connection.writable:
                there.connection.write(PIECE)
                written += len(PIECE)
                await asyncio.sleep(0)
                assert there.connection.unsent_bytes > written - NOT_OURS_BYTES_MAX
            assert written < OUTBOX_HIGH_WATER_BYTES + NOT_OURS_BYTES_MAX
            assert there.writable == [False]
            here.connection.resume_reading("test")
            await until(lambda: there.connection.writable)
            await until(lambda: len(here.data) == written)
            there.connection.abort()

    run(work())


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
def test_what_is_written_after_the_close_is_dropped_and_what_came_before_arrives(
    run: Run, server_tls: ServerTls, client_tls: ClientTls, tls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer is sent messages until its slow connection is gone: no loop is to log each of them."""

    unsent_bytes, received = 0, b""

    async def work() -> None:
        nonlocal unsent_bytes, received
        async with Server(server_tls if tls else None) as server:
            here, there = await server.pair(client_tls if tls else None)
            there.connection.pause_reading("test")
            here.connection.write(LARGE)
            here.connection.close()
            for _ in range(20):
                here.connection.write_parts([PIECE, b"late"])
                here.connection.write(b"late")
                await asyncio.sleep(0)
            unsent_bytes = here.connection.unsent_bytes
            there.connection.resume_reading("test")
            await until(lambda: there.lost and here.lost)
            received = bytes(there.data)

    run(work())
    assert unsent_bytes < 1.01 * len(LARGE)
    assert received == LARGE
    assert not [record for record in caplog.records if record.name == "asyncio"]


@contextlib.contextmanager
def peer(speak: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that takes one connection, in a thread of its own, and closes it after `speak`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            accepted, _ = listening.accept()
            accepted.settimeout(PATIENCE_SECONDS)
            with accepted, contextlib.suppress(ConnectionError):
                speak(accepted)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def until_the_end(accepted: socket.socket) -> None:
    """Say nothing."""
    while accepted.recv(1 << 16):
        pass


def hang_up(accepted: socket.socket) -> None:
    """After the first message."""
    accepted.recv(1 << 16)


def speak_in_clear(accepted: socket.socket) -> None:
    """As soon as somebody comes."""
    accepted.sendall(b"220 here speaks somebody else\r\n")
    until_the_end(accepted)


def open_files() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("speak", "timeout_seconds", "error", "words"),
    [
        (until_the_end, 0.2, TimeoutError, None),
        (hang_up, PATIENCE_SECONDS, ConnectionResetError, "closed the connection during its TLS handshake"),
        (speak_in_clear, PATIENCE_SECONDS, ssl.SSLError, "WRONG_VERSION_NUMBER"),
        (lambda accepted: accepted.close(), PATIENCE_SECONDS, ConnectionError, None),
    ],
    ids=["says nothing", "hangs up", "speaks in clear", "is gone"],
)
def test_a_peer_that_does_not_come_to_tls(
    run: Run,
    client_tls: ClientTls,
    speak: Callable[[socket.socket], None],
    timeout_seconds: float,
    error: type[Exception],
    words: str | None,
) -> None:
    async def work(port: int) -> None:
        with pytest.raises(ConnectionRefusedError):
            await connect("127.0.0.1", 1, Heard, PATIENCE_SECONDS)  # What loops open once is open.
        files, tasks = open_files(), asyncio.all_tasks()
        with pytest.raises(error, match=words):
            await connect("127.0.0.1", port, Heard, timeout_seconds, tls=client_tls)
        await until(lambda: len(open_files()) <= len(files))
        assert asyncio.all_tasks() == tasks

    with peer(speak) as port:
        run(work(port))


def test_a_certificate_that_is_not_trusted_or_for_somebody_else(
    run: Run, server_tls: ServerTls, client_tls: ClientTls
) -> None:
    async def work() -> None:
        async with Server(server_tls) as server:
            port = server.listener.port
            files = open_files()
            with pytest.raises(ssl.SSLCertVerificationError, match="'elsewhere'"):
                await connect("127.0.0.1", port, Heard, 300, tls=client_tls, server_name="elsewhere")
            with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
                await connect("127.0.0.1", port, Heard, 300, tls=ClientTls(TlsSettings()))
            for name in ("." * 5, "x" * 64 + ".example"):
                with pytest.raises(OSError, match="no server can be called"):
                    await connect("127.0.0.1", port, Heard, 300, tls=client_tls, server_name=name)
            await until(lambda: len(open_files()) <= len(files))
            assert server.heard == []

    run(work())


@pytest.mark.parametrize("name", ["nowhere.invalid", "x" * 64, "a..b", "a\0b"])
def test_a_host_without_an_address(run: Run, client_tls: ClientTls, name: str) -> None:
    async def work() -> None:
        for tls in (None, client_tls):
            with pytest.raises(OSError, match=r"."):
                await connect(name, 1, Heard, 300, tls=tls)

    run(work())


def test_nobody_listens(run: Run, client_tls: ClientTls) -> None:
    async def work() -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            with pytest.raises(ConnectionRefusedError):
                await connect("127.0.0.1", bound.getsockname()[1], Heard, 300, tls=client_tls)

    run(work())


def test_whoever_is_cancelled_at_any_turn_leaves_nothing_behind(
    run: Run, server_tls: ServerTls, client_tls: ClientTls
) -> None:
    async def work() -> None:
        async with Server(server_tls) as server:
            _, first = await server.pair(client_tls)  # What is made once is there.
            first.connection.abort()
            await until(lambda: not (server.listener.connections or server.listener.arriving))
            files = open_files()
            tasks = asyncio.all_tasks()
            for turns in itertools.count():
                assert turns < CANCELLED_AFTER_TURNS_MAX
                connecting = asyncio.create_task(connect("127.0.0.1", server.listener.port, Heard, 300, tls=client_tls))
                for _ in range(turns):
                    await asyncio.sleep(0)
                connecting.cancel()
                [outcome] = await asyncio.gather(connecting, return_exceptions=True)
                if isinstance(outcome, Connection):
                    outcome.abort()
                else:
                    assert isinstance(outcome, asyncio.CancelledError)
                await until(lambda: not (server.listener.connections or server.listener.arriving))
                await until(lambda: len(open_files()) <= len(files))
                assert asyncio.all_tasks() == tasks
                if isinstance(outcome, Connection):
                    assert turns > 2
                    return

    run(work())


def first_words_with_the_handshake(context: ssl.SSLContext, words: bytes) -> Callable[[socket.socket], None]:
    """A server that says something in the packet that ends its handshake, and then waits for the end."""

    def speak(raw: socket.socket) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secured = context.wrap_bio(incoming, outgoing, server_side=True)
        while True:
            try:
                secured.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(outgoing.read())
                incoming.write(raw.recv(1 << 16))
        secured.write(words)
        raw.sendall(outgoing.read())
        until_the_end(raw)

    return speak


def server_that_ends_the_handshake(own: Certificate) -> ssl.SSLContext:
    """With version 1.3 the client would."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate_file, own.key_file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


class Leaving(Heard):
    """Has enough of its peer as soon as it is connected."""

    def connection_made(self) -> None:
        super().connection_made()
        self.connection.abort()


@pytest.mark.parametrize("kind", [Heard, HeardByRoom, Leaving])
def test_words_that_come_with_the_end_of_the_handshake_are_heard(
    run: Run, own: Certificate, client_tls: ClientTls, kind: type[Heard]
) -> None:
    async def work(port: int) -> None:
        made: list[Heard] = []

        def make(connection: Connection) -> Heard:
            assert connection.peer_certificate["subjectAltName"][0] == ("DNS", "localhost")
            made.append(kind(connection))
            return made[0]

        connection = await connect("127.0.0.1", port, make, 300, tls=client_tls)
        assert made[0].made == 1
        await until(lambda: kind is Leaving or made[0].data == b"welcome")
        connection.abort()
        await until(lambda: made[0].lost)
        assert (made[0].lost, bytes(made[0].data)) == (1, b"" if kind is Leaving else b"welcome")

    with peer(first_words_with_the_handshake(server_that_ends_the_handshake(own), b"welcome")) as port:
        run(work(port))


class Ended(asyncio.Transport):
    """Its end was told, and its socket is gone, before TLS could begin."""

    aborted = False

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        self.aborted = True


async def test_what_has_ended_before_tls_begins_is_told_at_once(client_tls: ClientTls) -> None:
    bare = Ended()
    with pytest.raises(ConnectionResetError, match="during its TLS handshake"):
        await secured_from_the_start(bare, asyncio.Protocol, client_tls.context, server_side=False)
    assert bare.aborted


class Failing(Heard):
    """Cannot be."""

    def connection_made(self) -> None:
        raise ValueError("no such handler")


def test_a_handler_that_fails_is_told_as_it_is(run: Run, server_tls: ServerTls, client_tls: ClientTls) -> None:
    async def work() -> None:
        async with Server(server_tls) as server:
            files = open_files()
            with pytest.raises(ValueError, match=r"^no such handler$"):
                await connect("127.0.0.1", server.listener.port, Failing, 300, tls=client_tls)
            await until(lambda: len(open_files()) <= len(files))

    run(work())
