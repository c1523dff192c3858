"""TLS in the middle of a connection: the whole contract over it, and clients that mean no good."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from magnetar.bookie.app import RunningBookie
from magnetar.bookie.server import security
from magnetar.bookie.server.protection import ROLES_PROVIDER
from magnetar.core.errors import SettingError
from magnetar.ledger.bookie_client.bookie_connection import BookieConnection
from magnetar.ledger.bookie_client.contract import KEY, LEDGER, BookieConnectionContract, add, entries_of
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.bookie_client.tls_settings import TLS_FACTORY, BookieTlsSettings
from magnetar.ledger.bookie_client.v3_query import V3Queries
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.net.key_stores import StoreType
from magnetar.net.testing import Certificate, TestAuthority, until
from magnetar.net.tls import ClientTls, TlsSettings
from magnetar.wire.bookkeeper import v2, v3
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError

from lib.tests import v3_client

new_event_loop = uvloop.new_event_loop
"""What servers run on; `net`'s own tests put TLS over connections of asyncio's loop, too."""

StartBookie = Callable[..., Awaitable[RunningBookie]]
LOCAL = ("DNS:localhost", "IP:127.0.0.1")
ROLE = "0:broker,backup;1:cluster"
ENTRIES = entries_of(LEDGER, 0, [b"first", b"second"])


@dataclasses.dataclass(frozen=True)
class Files:
    """What both sides of a cluster have."""

    authority: TestAuthority
    bookie: Certificate
    broker: Certificate
    stranger: Certificate
    """Of the same authority, with another role."""
    expired: Certificate
    elsewhere: Certificate
    """Of an authority that nobody trusts."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    authority, other = TestAuthority(folder), TestAuthority(folder / "other")
    return Files(
        authority,
        authority.issue("bookie", *LOCAL),
        authority.issue("broker", unit=ROLE),
        authority.issue("stranger", unit="0:reporter,broker"),
        authority.issue("expired", unit=ROLE, expired=True),
        other.issue("elsewhere", *LOCAL, unit=ROLE),
    )


def server_tls(files: Files, own: Certificate | None = None, **changes: object) -> BookieTlsSettings:
    """As an operator's `bookkeeper.conf` has it."""
    own = own or files.bookie
    base = BookieTlsSettings(
        provider=TLS_FACTORY,
        client_authentication=True,
        key_type=StoreType.PEM,
        key_store=own.key_file,
        certificate=own.certificate_file,
        trust_type=StoreType.PEM,
        trust_store=files.authority.certificate_file,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]  # The test's own words.


def client_tls(files: Files, own: Certificate | None, *, verify_host_name: bool = True) -> ClientTls:
    return ClientTls(
        TlsSettings(
            certificate_file=own.certificate_file if own else None,
            key_file=own.key_file if own else None,
            trust_certificates_file=files.authority.certificate_file,
            verify_host_name=verify_host_name,
        )
    )


@contextlib.asynccontextmanager
async def bookies(store: MemoryMetadataStore, tls: ClientTls | None) -> AsyncIterator[TcpBookieConnections]:
    connections = TcpBookieConnections(store, tls=tls)
    await connections.start()
    try:
        yield connections
    finally:
        await connections.close()


class TestOverTls(BookieConnectionContract):
    """With client certificates, and roles in them."""

    @pytest.fixture
    async def bookie(
        self, start: StartBookie, store: MemoryMetadataStore, files: Files
    ) -> AsyncIterator[BookieConnection]:
        running = await start(
            serve_tcp=True,
            bookie_id="",
            advertised_host="localhost",
            port=free_port(),
            tls=server_tls(files),
            auth_provider=ROLES_PROVIDER,
            authorized_roles=("auditor", "broker"),
        )
        async with bookies(store, client_tls(files, files.broker)) as connections:
            yield connections.connection(running.bookie_id)


def free_port() -> int:
    from magnetar.net.free_ports import free_port as find

    return find()


# --- clients of ours


async def test_questions_of_version_3_go_over_tls(start: StartBookie, store: MemoryMetadataStore, files: Files) -> None:
    running = await start(serve_tcp=True, tls=server_tls(files, required=True))
    async with bookies(store, client_tls(files, files.broker)) as connections:
        await add(connections.connection(running.bookie_id), 0, ENTRIES)
        queries = V3Queries(connections.address, tls=connections.tls)
        assert await queries.list_entries(running.bookie_id, LEDGER)
        with pytest.raises(BookieError) as raised:
            await V3Queries(connections.address).list_entries(running.bookie_id, LEDGER)
        assert raised.value.code is BookieCode.EUA


async def outcome(store: MemoryMetadataStore, running: RunningBookie, tls: ClientTls | None) -> set[int]:
    """The codes of two adds."""
    async with bookies(store, tls) as connections:
        return await add(connections.connection(running.bookie_id), 0, ENTRIES)


async def stored(running: RunningBookie) -> bool:
    try:
        await running.bookie.read_entry(LEDGER, 0)
    except BookieError:
        return False
    return True


async def test_a_bookie_without_tls_says_so(
    start: StartBookie, store: MemoryMetadataStore, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(serve_tcp=True)
    assert await outcome(store, running, client_tls(files, files.broker)) == {BookieCode.UNREACHABLE}
    assert "the bookie offers no TLS (it answered START_TLS with EBADREQ)" in caplog.text
    assert not await stored(running)


async def test_a_bookie_of_another_authority_is_not_trusted(
    start: StartBookie, store: MemoryMetadataStore, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(serve_tcp=True, tls=server_tls(files, files.elsewhere))
    assert await outcome(store, running, client_tls(files, files.broker)) == {BookieCode.UNREACHABLE}
    assert "its certificate is not trusted: unable to get local issuer certificate" in caplog.text
    assert not await stored(running)


async def test_the_host_name_is_verified_where_that_is_asked_for(
    start: StartBookie, store: MemoryMetadataStore, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(serve_tcp=True, tls=server_tls(files, files.broker))  # For a name that nobody dials.
    assert await outcome(store, running, client_tls(files, files.broker)) == {BookieCode.UNREACHABLE}
    assert "its certificate is not trusted: IP address mismatch" in caplog.text
    assert not await stored(running)
    assert await outcome(store, running, client_tls(files, files.broker, verify_host_name=False)) == {BookieCode.EOK}


@pytest.mark.parametrize("who", ["nobody", "expired", "elsewhere"])
async def test_a_client_without_a_good_certificate_gets_no_connection(
    start: StartBookie, store: MemoryMetadataStore, files: Files, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(serve_tcp=True, tls=server_tls(files))
    own = None if who == "nobody" else getattr(files, who)
    assert await outcome(store, running, client_tls(files, own)) == {BookieCode.UNREACHABLE}
    assert not await stored(running)
    counters = running.bookie.counters
    await until(lambda: counters.tls_handshakes_failed == 1)
    assert counters.tls_handshakes == 0
    assert "may not trust the certificate that was shown" in caplog.text


async def test_a_client_with_another_role_is_answered_eua(
    start: StartBookie, store: MemoryMetadataStore, files: Files
) -> None:
    running = await start(
        serve_tcp=True, tls=server_tls(files), auth_provider=ROLES_PROVIDER, authorized_roles=("broker",)
    )
    async with bookies(store, client_tls(files, files.stranger)) as connections:
        bookie = connections.connection(running.bookie_id)
        assert await add(bookie, 0, ENTRIES) == {BookieCode.EUA}
        for read in (bookie.read_entry(LEDGER, 0), bookie.read_entries(LEDGER, 0, 5, 1000)):
            with pytest.raises(BookieError) as raised:
                await read
            assert raised.value.code is BookieCode.EUA
    assert not await stored(running)
    assert running.bookie.counters.unauthorized_clients == 1


# --- byte by byte


class Raw:
    """A client that says what it likes, in clear and in TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">I", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def ask(self, operation: v3.Operation, body: v3.RequestBody) -> v3.Response:
        self.writer.write(request(operation, body))
        return v3_client.decode_response(await self.frame())

    async def ended(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


def request(operation: v3.Operation, body: v3.RequestBody) -> bytes:
    return v3_client.encode_request(v3.Request(operation=operation, transaction_id=7, body=body))


START_TLS = request(v3.Operation.START_TLS, v3.StartTlsRequest())


def add_request() -> bytes:
    body = v3.AddRequest(ledger_id=LEDGER, entry_id=0, master_key=KEY, entry=ENTRIES[0])
    return request(v3.Operation.ADD_ENTRY, body)


@contextlib.asynccontextmanager
async def raw(running: RunningBookie) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def start_required(start: StartBookie, files: Files) -> RunningBookie:
    return await start(serve_tcp=True, tls=server_tls(files, required=True))


async def test_plain_requests_are_refused_where_tls_is_a_must(start: StartBookie, files: Files) -> None:
    running = await start_required(start, files)
    async with raw(running) as client:
        body = v3.AddRequest(ledger_id=LEDGER, entry_id=0, master_key=KEY, entry=ENTRIES[0])
        answer = await client.ask(v3.Operation.ADD_ENTRY, body)
        assert (answer.code, answer.transaction_id) == (BookieCode.EUA, 7)
        for operation, other in (
            (v3.Operation.READ_ENTRY, v3.ReadRequest(ledger_id=LEDGER, entry_id=0)),
            (v3.Operation.AUTH, v3.AuthRequest(plugin_name="sasl", payload=b"")),
            (v3.Operation.GET_BOOKIE_INFO, v3.GetBookieInfoRequest(requested=1)),
            (v3.Operation.READ_LAC, v3.ReadLacRequest(ledger_id=LEDGER)),
        ):
            assert (await client.ask(operation, other)).code is BookieCode.EUA
    async with raw(running) as client:
        client.writer.writelines(v2.encode_add_requests(KEY, ENTRIES, 0))
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 1 << 16, BookieCode.EUA, LEDGER, 0)
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 1 << 16, BookieCode.EUA, LEDGER, 1)
        client.writer.write(v2.encode_read_request(LEDGER, 0))
        assert await client.frame() == struct.pack(">Iiqq", 2 << 24 | 2 << 16, BookieCode.EUA, LEDGER, 0)
        client.writer.write(v2.encode_auth("sasl", b""))
        assert await client.ended()
    assert not await stored(running)
    assert running.bookie.counters.unauthorized_clients == 2


async def test_plain_clients_are_served_where_tls_is_only_offered(
    start: StartBookie, store: MemoryMetadataStore, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(serve_tcp=True, tls=server_tls(files))
    assert "those without are served as well" in caplog.text
    assert await outcome(store, running, None) == {BookieCode.EOK}
    assert await stored(running)


async def test_bytes_behind_start_tls_end_the_connection(start: StartBookie, files: Files) -> None:
    running = await start_required(start, files)
    for behind in (add_request(), START_TLS, add_request()[:3], b"\x16\x03\x01"):
        async with raw(running) as client:
            client.writer.write(START_TLS + behind)
            assert await client.ended()
    assert not await stored(running)
    assert running.bookie.counters.tls_handshakes == 0


async def test_what_was_asked_in_clear_does_not_go_on_in_tls(start: StartBookie, files: Files) -> None:
    running = await start(serve_tcp=True, tls=server_tls(files))
    async with raw(running) as client:
        wanted = v3.GetBookieInfoRequest(requested=1)
        assert (await client.ask(v3.Operation.GET_BOOKIE_INFO, wanted)).code is BookieCode.EOK
        assert (await client.ask(v3.Operation.START_TLS, v3.StartTlsRequest())).code is BookieCode.EBADREQ


async def test_authentication_may_come_before_tls(start: StartBookie, files: Files) -> None:
    running = await start(serve_tcp=True, tls=server_tls(files))
    async with raw(running) as client:
        asked = await client.ask(v3.Operation.AUTH, v3.AuthRequest(plugin_name="x", payload=b""))
        assert (asked.code, asked.plugin_name) == (BookieCode.EOK, "AuthDisabledPlugin")
        assert (await client.ask(v3.Operation.START_TLS, v3.StartTlsRequest())).code is BookieCode.EOK


async def test_start_tls_a_second_time_is_a_bad_request(start: StartBookie, files: Files) -> None:
    running = await start_required(start, files)
    async with raw(running) as client:
        assert (await client.ask(v3.Operation.START_TLS, v3.StartTlsRequest())).code is BookieCode.EOK
        await client.writer.start_tls(client_tls(files, files.broker).context, server_hostname="localhost")
        assert (await client.ask(v3.Operation.START_TLS, v3.StartTlsRequest())).code is BookieCode.EBADREQ
        client.writer.write(add_request())
        assert v3_client.decode_response(await client.frame()).code is BookieCode.EOK
    assert await stored(running)


async def test_garbage_after_start_tls_harms_nobody(
    start: StartBookie, store: MemoryMetadataStore, files: Files
) -> None:
    running = await start_required(start, files)
    for garbage in (
        b"\x00" * 1000,
        add_request() * 50,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + bytes(70000),
    ):
        async with raw(running) as client:
            assert (await client.ask(v3.Operation.START_TLS, v3.StartTlsRequest())).code is BookieCode.EOK
            client.writer.write(garbage)
            # OpenSSL may answer with an alert first.
            with contextlib.suppress(ConnectionError):
                while await client.reader.read(1000):
                    pass
    await until(lambda: running.bookie.counters.tls_handshakes_failed == 4)
    assert not await stored(running)
    assert await outcome(store, running, client_tls(files, files.broker)) == {BookieCode.EOK}


async def test_a_handshake_that_never_ends_is_cut(
    start: StartBookie, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "HANDSHAKE_SECONDS", 0.2)
    running = await start_required(start, files)
    async with raw(running) as client:
        assert (await client.ask(v3.Operation.START_TLS, v3.StartTlsRequest())).code is BookieCode.EOK
        client.writer.write(b"\x16\x03\x01\x02\x00\x01")  # The beginning of a hello.
        assert await client.ended()
    await until(lambda: running.bookie.counters.tls_handshakes_failed == 1)


async def test_handshakes_are_bounded_and_a_new_one_gets_its_place(
    start: StartBookie, store: MemoryMetadataStore, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "handshakes_max", lambda: 3)
    running = await start_required(start, files)
    async with contextlib.AsyncExitStack() as opened:
        for _ in range(3):
            client = await opened.enter_async_context(raw(running))
            assert (await client.ask(v3.Operation.START_TLS, v3.StartTlsRequest())).code is BookieCode.EOK
        assert await outcome(store, running, client_tls(files, files.broker)) == {BookieCode.EOK}
    assert running.bookie.counters.refused_connections.total == 1


async def test_handshakes_that_are_over_take_no_place(
    start: StartBookie, store: MemoryMetadataStore, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they ended: nobody has to go for them."""
    monkeypatch.setattr(security, "handshakes_max", lambda: 2)
    running = await start_required(start, files)
    for number in range(3):
        async with raw(running) as client:
            assert (await client.ask(v3.Operation.START_TLS, v3.StartTlsRequest())).code is BookieCode.EOK
            client.writer.write(bytes(1000))
            await until(lambda: running.bookie.counters.tls_handshakes_failed > number)  # noqa: B023 - waited for
    for _ in range(3):
        assert await outcome(store, running, client_tls(files, files.broker)) == {BookieCode.EOK}
    assert running.bookie.counters.refused_connections.total == 0


async def test_a_closing_bookie_cuts_handshakes(start: StartBookie, files: Files) -> None:
    running = await start_required(start, files)
    async with raw(running) as client:
        assert (await client.ask(v3.Operation.START_TLS, v3.StartTlsRequest())).code is BookieCode.EOK
        await running.close()
        assert await client.ended()


# --- files


async def test_certificates_are_read_again_and_a_broken_file_leaves_the_old_ones(
    start: StartBookie, store: MemoryMetadataStore, files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    certificate, key = tmp_path / "own.pem", tmp_path / "own.key"

    def install(one: Certificate) -> None:
        for source, target in ((one.certificate_file, certificate), (one.key_file, key)):
            part = target.with_suffix(".part")
            part.write_bytes(source.read_bytes())
            part.rename(target)

    install(files.elsewhere)
    tls = server_tls(files, Certificate(certificate, key), refresh_seconds=0.000_001)
    running = await start(serve_tcp=True, tls=tls)
    broker = client_tls(files, files.broker)
    assert await outcome(store, running, broker) == {BookieCode.UNREACHABLE}
    install(files.bookie)
    assert await outcome(store, running, broker) == {BookieCode.EOK}
    key.write_bytes(b"half a ke")
    assert await outcome(store, running, broker) == {BookieCode.EOK}
    assert "the TLS certificates stay as they were: TLS cannot be set up with" in caplog.text


def make_store(folder: Path, files: Files, own: Certificate, password: bytes) -> tuple[Path, Path]:
    """A PKCS #12 store of a key, its certificate and the authority's, and the file of its password."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

    key = load_pem_private_key(own.key_file.read_bytes(), None)
    certificate = x509.load_pem_x509_certificate(own.certificate_file.read_bytes())
    authority = x509.load_pem_x509_certificate(files.authority.certificate_file.read_bytes())
    store, password_file = folder / "own.p12", folder / "password"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"own",
            key,  # type: ignore[arg-type]  # One of the kinds that it takes.
            certificate,
            [authority],
            BestAvailableEncryption(password),
        )
    )
    password_file.write_bytes(password + b"\n")
    return store, password_file


async def test_a_bookie_with_a_pkcs12_store(
    start: StartBookie, store: MemoryMetadataStore, files: Files, tmp_path: Path
) -> None:
    key_store, password_file = make_store(tmp_path, files, files.bookie, b"secret")
    tls = BookieTlsSettings(
        provider=TLS_FACTORY,
        client_authentication=True,
        key_type=StoreType.PKCS12,
        key_store=key_store,
        key_password_file=password_file,
        trust_type=StoreType.PKCS12,
        trust_store=key_store,
        trust_password_file=password_file,
    )
    running = await start(serve_tcp=True, tls=tls)
    assert await outcome(store, running, client_tls(files, files.broker)) == {BookieCode.EOK}
    assert await outcome(store, running, client_tls(files, files.elsewhere)) == {BookieCode.UNREACHABLE}
    await running.close()
    password_file.write_bytes(b"wrong")
    with pytest.raises(SettingError, match="is no PKCS #12 store, or its password is another one"):
        await start(serve_tcp=True, tls=tls)
