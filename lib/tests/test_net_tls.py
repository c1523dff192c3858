"""TLS on both sides, with certificates that change."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop
from magnetar.core.errors import SettingError
from magnetar.net import endpoints
from magnetar.net.connection import Connection
from magnetar.net.endpoints import REFUSED_WITH_A_WORD, Listener, connect, listen
from magnetar.net.testing import Certificate, TestAuthority
from magnetar.net.tls import ClientTls, ServerTls, TlsSettings

LOCAL = ("DNS:localhost", "IP:127.0.0.1")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def certificate(authority: TestAuthority) -> Certificate:
    return authority.issue("here", *LOCAL)


class Echo:
    """A server's handler."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def connection_made(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        self.connection.write(data)

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass


class Asker(Echo):
    """A client's handler: what came back, and whom the certificate was for."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.answer = b""
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.answer += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True


async def server(settings: TlsSettings) -> Listener:
    return await listen("127.0.0.1", 0, Echo, tls=ServerTls(settings))


async def ask(listener: Listener, settings: TlsSettings, name: str = "127.0.0.1") -> bytes:
    """The echo, or nothing when the server hangs up. ssl.SSLError."""
    asked: list[Asker] = []

    def make(connection: Connection) -> Asker:
        asked.append(Asker(connection))
        return asked[0]

    connection = await connect("127.0.0.1", listener.port, make, 10, tls=ClientTls(settings), server_name=name)
    connection.write(b"hello")
    async with asyncio.timeout(30):
        while not (asked[0].answer or asked[0].lost):
            await asyncio.sleep(0.005)
    connection.abort()
    await asyncio.sleep(0)
    return asked[0].answer


@pytest.fixture
async def plain(certificate: Certificate) -> AsyncIterator[Listener]:
    listener = await server(TlsSettings(certificate_file=certificate.certificate_file, key_file=certificate.key_file))
    yield listener
    await listener.close()


async def test_who_trusts_the_authority_gets_through(plain: Listener, authority: TestAuthority) -> None:
    trusting = TlsSettings(trust_certificates_file=authority.certificate_file, verify_host_name=True)
    assert await ask(plain, trusting) == b"hello"
    assert await ask(plain, trusting, "localhost") == b"hello"
    with pytest.raises(ssl.SSLCertVerificationError):
        await ask(plain, trusting, "elsewhere")
    lenient = TlsSettings(trust_certificates_file=authority.certificate_file)
    assert await ask(plain, lenient, "elsewhere") == b"hello"


async def test_who_does_not_trust_it_goes_away_unless_told_otherwise(plain: Listener) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await ask(plain, TlsSettings())
    assert await ask(plain, TlsSettings(allow_insecure=True)) == b"hello"


async def test_clients_show_certificates(authority: TestAuthority, certificate: Certificate, tmp_path: Path) -> None:
    own = TlsSettings(
        certificate_file=certificate.certificate_file,
        key_file=certificate.key_file,
        trust_certificates_file=authority.certificate_file,
        require_client_certificate=True,
    )
    stranger = TestAuthority(tmp_path, "stranger").issue("nobody")
    nameless = TlsSettings(trust_certificates_file=authority.certificate_file)
    unknown = TlsSettings(
        certificate_file=stranger.certificate_file,
        key_file=stranger.key_file,
        trust_certificates_file=authority.certificate_file,
    )
    listener = await server(own)
    try:
        assert await ask(listener, own) == b"hello"
        assert await ask(listener, nameless) == b""
        assert await ask(listener, unknown) == b""
    finally:
        await listener.close()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
async def test_new_files_are_taken_for_the_next_connection(
    authority: TestAuthority, certificate: Certificate, tmp_path: Path, name: str
) -> None:
    files = Certificate(tmp_path / "c.pem", tmp_path / "c.key")
    trusted = tmp_path / "trusted.pem"
    for source, target in (
        (certificate.certificate_file, files.certificate_file),
        (certificate.key_file, files.key_file),
        (authority.certificate_file, trusted),
    ):
        shutil.copy(source, target)
    client = TlsSettings(trust_certificates_file=trusted, refresh_seconds=0)
    listener = await server(
        TlsSettings(certificate_file=files.certificate_file, key_file=files.key_file, refresh_seconds=0)
    )
    try:
        assert await ask(listener, client, name) == b"hello"
        other = TestAuthority(tmp_path / "other", "other")
        renewed = other.issue("here", *LOCAL)
        shutil.copy(renewed.certificate_file, files.certificate_file)
        # Half of the pair is new: the old pair goes on.
        assert await ask(listener, client, name) == b"hello"
        shutil.copy(renewed.key_file, files.key_file)
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(listener, client, name)
        os.replace(other.certificate_file, trusted)
        assert await ask(listener, client, name) == b"hello"
    finally:
        await listener.close()


async def test_clients_of_an_authority_that_is_trusted_no_more_are_refused(
    authority: TestAuthority, certificate: Certificate, tmp_path: Path
) -> None:
    trusted = tmp_path / "trusted.pem"
    shutil.copy(authority.certificate_file, trusted)
    own = TlsSettings(
        certificate_file=certificate.certificate_file,
        key_file=certificate.key_file,
        trust_certificates_file=trusted,
        require_client_certificate=True,
        refresh_seconds=0,
    )
    other = TestAuthority(tmp_path / "other", "other")
    former, renewed = (
        TlsSettings(
            certificate_file=shown.certificate_file,
            key_file=shown.key_file,
            trust_certificates_file=authority.certificate_file,
        )
        for shown in (authority.issue("client"), other.issue("client"))
    )
    listener = await server(own)
    try:
        assert (await ask(listener, former), await ask(listener, renewed)) == (b"hello", b"")
        os.replace(other.certificate_file, trusted)
        assert (await ask(listener, former), await ask(listener, renewed)) == (b"", b"hello")
    finally:
        await listener.close()


def test_settings_that_cannot_be(certificate: Certificate, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="go together"):
        TlsSettings(certificate_file=tmp_path)
    with pytest.raises(SettingError, match=r"TLSv1\.1"):
        TlsSettings(protocols=("TLSv1.1",))
    with pytest.raises(SettingError, match="needs tlsCertificateFilePath"):
        ServerTls(TlsSettings())
    with pytest.raises(SettingError, match="No such file"):
        ServerTls(TlsSettings(certificate_file=tmp_path / "none", key_file=tmp_path / "none"))
    with pytest.raises(SettingError, match="cannot be read"):
        ClientTls(TlsSettings(trust_certificates_file=certificate.key_file))


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_handshakes_that_fail_take_no_places(
    first: bytes, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A load balancer that looks whether the port is open makes thousands of these a day.
    monkeypatch.setattr(endpoints, "clients_max", lambda: 1)
    settings = TlsSettings(certificate_file=certificate.certificate_file, key_file=certificate.key_file)

    async def come_and_go() -> None:
        listener = await server(settings)
        for _ in range(2 * REFUSED_WITH_A_WORD):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(first)
            writer.close()
            await writer.wait_closed()
            while listener.arriving:
                await asyncio.sleep(0.001)
        assert not listener.refused_connections.total
        assert await ask(listener, TlsSettings(allow_insecure=True)) == b"hello"
        await listener.close()

    # The loop that servers run on.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(come_and_go(), 30))
