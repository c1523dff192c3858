"""TLS that begins in the middle of a connection, on both loops that programs run on."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import uvloop
from magnetar.core.errors import Misuse
from magnetar.net.connection import Connection, ConnectionState
from magnetar.net.endpoints import Listener, connect, listen
from magnetar.net.start_tls import start_tls
from magnetar.net.testing import TestAuthority, until
from magnetar.net.tls import ClientTls, ServerTls, TlsSettings

from lib.tests.heard import Heard, HeardByRoom

Work = Callable[["Server"], Coroutine[None, None, None]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server_tls(authority: TestAuthority) -> ServerTls:
    own = authority.issue("localhost", "DNS:localhost", "IP:127.0.0.1")
    return ServerTls(TlsSettings(certificate_file=own.certificate_file, key_file=own.key_file))


@pytest.fixture
def client_tls(authority: TestAuthority) -> ClientTls:
    return ClientTls(TlsSettings(trust_certificates_file=authority.certificate_file))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Work], None]:
    async def serve(work: Work) -> None:
        server = Server()
        await server.start()
        try:
            await work(server)
        finally:
            await server.listener.close()

    def run_on_loop(work: Work) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(serve(work), 60))

    return run_on_loop


class Server:
    """Listens; `heard` has the handlers of who came."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.listener: Listener

    def _make(self, connection: Connection) -> Heard:
        self.heard.append(Heard(connection))
        return self.heard[-1]

    async def start(self) -> None:
        self.listener = await listen("127.0.0.1", 0, self._make)

    async def pair(self) -> tuple[Heard, Heard]:
        """A new connection: the server's side and the client's."""
        clients: list[Heard] = []

        def make(connection: Connection) -> Heard:
            clients.append(Heard(connection))
            return clients[-1]

        before = len(self.heard)
        await connect("127.0.0.1", self.listener.port, make, 10)
        await until(lambda: len(self.heard) > before)
        return self.heard[-1], clients[0]


def test_both_sides_go_on_in_tls(run: Callable[[Work], None], server_tls: ServerTls, client_tls: ClientTls) -> None:
    async def work(server: Server) -> None:
        here, there = await server.pair()
        there.connection.write(b"clear")
        await until(lambda: here.data == b"clear")
        upgrades = asyncio.gather(
            start_tls(here.connection, server_tls.newest, server_side=True),
            start_tls(
                there.connection,
                client_tls.context,
                server_side=False,
                server_name="localhost",
                make_handler=HeardByRoom,
            ),
        )
        await asyncio.sleep(0)
        # What is written meanwhile waits, and is counted.
        here.connection.write(b"x" * 100_000)
        assert here.connection.unsent_bytes == 100_000
        await upgrades
        assert there.data == b""
        there.connection.write(b" and secret")
        await until(lambda: here.data == b"clear and secret")
        received = there.connection._handler
        assert isinstance(received, HeardByRoom)
        await until(lambda: len(received.data) == 100_000)
        for one in (here, there):
            one.connection.close()
        await until(lambda: here.lost == 1 and received.lost == 1)

    run(work)


def test_reading_stays_paused_while_there_is_a_reason(
    run: Callable[[Work], None], server_tls: ServerTls, client_tls: ClientTls
) -> None:
    async def work(server: Server) -> None:
        here, there = await server.pair()
        here.connection.pause_reading("busy")
        await asyncio.gather(
            start_tls(here.connection, server_tls.newest, server_side=True),
            start_tls(there.connection, client_tls.context, server_side=False, server_name="localhost"),
        )
        there.connection.write(b"later")
        await asyncio.sleep(0.05)  # Were it read, this would be more than enough.
        assert here.data == b""
        here.connection.resume_reading("busy")
        await until(lambda: here.data == b"later")
        there.connection.abort()
        await until(lambda: here.lost == 1)

    run(work)


def last_flight_with_words(context: ssl.SSLContext, raw: socket.socket, words: bytes) -> None:
    """A client whose first words travel with the end of its handshake, in one packet."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    secured = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            secured.do_handshake()
            break
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
            incoming.write(raw.recv(65536))
    secured.write(words)
    raw.sendall(outgoing.read())


def test_words_that_come_with_the_end_of_the_handshake_are_heard_once_it_is_told(
    run: Callable[[Work], None], server_tls: ServerTls, client_tls: ClientTls
) -> None:
    async def work(server: Server) -> None:
        raw = socket.create_connection(("127.0.0.1", server.listener.port))
        await until(lambda: server.heard)
        here = server.heard[0]
        order: list[str] = []

        class Told(Heard):
            def data_received(self, data: bytes) -> None:
                order.append(data.decode())

        def stands(connection: Connection) -> Told:
            order.append("stands")
            assert connection.peer_certificate == {}
            return Told(connection)

        client = asyncio.create_task(asyncio.to_thread(last_flight_with_words, client_tls.context, raw, b"hello"))
        await start_tls(here.connection, server_tls.newest, server_side=True, make_handler=stands)
        await client
        await until(lambda: len(order) == 2)
        assert order == ["stands", "hello"]
        raw.close()
        await until(lambda: here.connection.closed)

    run(work)


@pytest.mark.parametrize("how", ["garbage", "hangs up", "says nothing"])
def test_a_handshake_that_fails_closes_the_connection_and_is_told_once(
    run: Callable[[Work], None], server_tls: ServerTls, how: str
) -> None:
    async def work(server: Server) -> None:
        here, there = await server.pair()
        upgrade = asyncio.create_task(
            start_tls(here.connection, server_tls.newest, server_side=True, timeout_seconds=0.2)
        )
        await asyncio.sleep(0)
        here.connection.write(b"secret")
        if how == "garbage":
            there.connection.write(b"no hello at all")
        elif how == "hangs up":
            there.connection.abort()
        with pytest.raises(OSError, match=r"."):
            await upgrade
        assert (here.lost, here.connection.closed) == (1, True)
        assert isinstance(here.error, OSError)
        await until(lambda: there.lost == 1)
        assert b"secret" not in there.data

    run(work)


@pytest.mark.parametrize("end", ["close", "abort", "cancel"])
def test_whoever_ends_it_meanwhile_sends_nothing_in_clear(
    run: Callable[[Work], None], server_tls: ServerTls, end: str
) -> None:
    async def work(server: Server) -> None:
        here, there = await server.pair()
        upgrade = asyncio.create_task(start_tls(here.connection, server_tls.newest, server_side=True))
        await asyncio.sleep(0)
        here.connection.write(b"secret")
        if end == "cancel":
            upgrade.cancel()
        else:
            getattr(here.connection, end)()
        outcome = (await asyncio.gather(upgrade, return_exceptions=True))[0]
        assert isinstance(outcome, asyncio.CancelledError if end == "cancel" else OSError)
        assert (here.lost, here.connection.closed) == (1, True)
        await until(lambda: there.lost == 1)
        assert there.data == b""

    run(work)


def test_a_connection_is_upgraded_only_while_it_is_open(run: Callable[[Work], None], server_tls: ServerTls) -> None:
    async def work(server: Server) -> None:
        here, there = await server.pair()
        upgrade = asyncio.create_task(start_tls(here.connection, server_tls.newest, server_side=True))
        await asyncio.sleep(0)
        assert here.connection._state is ConnectionState.UPGRADING
        with pytest.raises(Misuse):
            await start_tls(here.connection, server_tls.newest, server_side=True)
        assert not here.connection.closed
        there.connection.abort()
        with pytest.raises(OSError, match=r"."):
            await upgrade
        with pytest.raises(Misuse):
            await start_tls(here.connection, server_tls.newest, server_side=True)

    run(work)


def test_a_bookies_key_store_of_java_is_refused_with_a_way_out(tmp_path: Path) -> None:
    from magnetar.core.errors import SettingError
    from magnetar.net.key_stores import StoreType, check_type

    with pytest.raises(SettingError, match="keytool -importkeystore"):
        check_type(StoreType.JKS, "tlsKeyStoreType")
