"""A real etcd that wants certificates of its clients, and the file that Pulsar's brokers say it by."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import GivenSettings
from magnetar.metadata.etcd import EtcdMetadataStore
from magnetar.metadata.etcd_access import parse_config, read_access
from magnetar.metadata.factory import check_url, open_store
from magnetar.metadata.store import MetadataStore, StoreUnavailable
from magnetar.metadata.testing import EtcdServer, EtcdTls
from magnetar.metadata.urls import with_config
from magnetar.net.testing import Certificate, TestAuthority
from magnetar.process.metadata_settings import pulsar_metadata

from lib.tests.metadata_contract import MetadataStoreContract

needs_etcd = [
    pytest.mark.etcd,
    pytest.mark.skipif(not EtcdServer.available(), reason="etcd is not installed: apt-get install etcd-server"),
]
TIMES = {"session_timeout_ms": 3_000, "operation_timeout_ms": 8_000}


@dataclass(frozen=True)
class Files:
    """Certificates of one authority, and a client's of another one."""

    authority: TestAuthority
    server: Certificate
    client: Certificate
    elsewhere: Certificate

    def config(self, folder: Path, own: Certificate | None, *further: str) -> Path:
        """A file as Pulsar has it."""
        lines = ["# etcd", "useTls: true", "tlsProvider: OPENSSL"]
        lines.append(f'tlsTrustCertsFilePath: "{self.authority.certificate_file}"')
        if own is not None:
            lines.append(f"tlsKeyFilePath: {own.key_file}")
            lines.append(f"tlsCertificateFilePath: {own.certificate_file}  # a chain")
        file = folder / "etcd.yaml"
        file.write_text("\n".join([*lines, *further]) + "\n")
        return file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")
    authority, other = TestAuthority(folder), TestAuthority(folder / "other")
    server = authority.issue("etcd", "DNS:etcd.example", "IP:127.0.0.1")
    return Files(authority, server, authority.issue("client"), other.issue("elsewhere"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[EtcdServer]:
    tls = EtcdTls(
        files.server.certificate_file,
        files.server.key_file,
        files.authority.certificate_file,
        files.client.certificate_file,
        files.client.key_file,
    )
    with EtcdServer(tmp_path_factory.mktemp("etcd"), tls) as started:
        yield started


class TestEtcdByTls(MetadataStoreContract):
    keeps_times = False
    pytestmark = needs_etcd

    @pytest.fixture
    async def store(self, server: EtcdServer, files: Files, tmp_path: Path) -> AsyncIterator[MetadataStore]:
        url = with_config(server.url, str(files.config(tmp_path, files.client)))
        opened = await EtcdMetadataStore.open(url, **TIMES)
        await opened.delete_recursively("/")
        yield opened
        await opened.close()

    @pytest.fixture
    async def other_session(self, server: EtcdServer, files: Files, tmp_path: Path) -> AsyncIterator[MetadataStore]:
        url = with_config(server.url, str(files.config(tmp_path, files.client)))
        opened = await EtcdMetadataStore.open(url, **TIMES)
        yield opened
        await opened.close()


async def opens(url: str) -> bool:
    try:
        store = await open_store(url, session_timeout_ms=3_000, operation_timeout_ms=1_500)
    except StoreUnavailable:
        return False
    await store.put("/there", b"x")
    await store.close()
    return True


class TestWhoComesIn:
    pytestmark = needs_etcd

    async def test_only_who_shows_a_certificate_of_the_authority(
        self, server: EtcdServer, files: Files, tmp_path: Path
    ) -> None:
        assert not await opens(with_config(server.url, str(files.config(tmp_path, None))))
        assert not await opens(with_config(server.url, str(files.config(tmp_path, files.elsewhere))))
        assert await opens(with_config(server.url, str(files.config(tmp_path, files.client))))
        # The file counts, whatever the scheme is: as for Pulsar's client.
        assert await opens(with_config(server.url.replace("https", "http"), str(tmp_path / "etcd.yaml")))
        assert not await opens(server.url.replace("https", "http"))

    async def test_the_servers_certificate_must_be_for_the_authority_that_is_named(
        self, server: EtcdServer, files: Files, tmp_path: Path
    ) -> None:
        right = files.config(tmp_path, files.client, "authority: etcd.example")
        assert await opens(with_config(server.url, str(right)))
        wrong = files.config(tmp_path, files.client, "authority: another.example")
        assert not await opens(with_config(server.url, str(wrong)))


def test_what_is_wrong_with_a_file_is_told(files: Files, tmp_path: Path) -> None:
    def problem(url: str) -> str:
        with pytest.raises(SettingError) as raised:
            check_url(url)
        return str(raised.value)

    missing = f"etcd:https://a:1?config={tmp_path}/nothing.yaml"
    assert problem(missing) == f"the etcd settings {tmp_path}/nothing.yaml cannot be read: No such file or directory"
    file = files.config(tmp_path, files.client)
    url = with_config("etcd:https://a:1", str(file))
    check_url(url)
    file.write_text(file.read_text().replace("elsewhere", "").replace("client.key", "gone.key"))
    assert f"{file}: tlsKeyFilePath" in problem(url)
    assert "gone.key cannot be read: No such file or directory" in problem(url)
    file.write_text("useTls: true\ntlsKeyFilePath: /a\n")
    assert problem(url) == f"{file}: tlsKeyFilePath and tlsCertificateFilePath go together"
    file.write_text("useTls: perhaps\n")
    assert problem(url) == f"{file}: useTls is 'perhaps', and neither true nor false"
    file.write_text("useTLS: true\n")
    assert problem(url).startswith(f"{file}, line 1: 'useTLS' is none of useTls, ")
    file.write_text("nested:\n  useTls: true\n")
    assert problem(url).startswith(f"{file}, line 1: ")


def test_the_forms_of_a_value() -> None:
    text = "---\n# a\nuseTls: 'true'\nauthority: \"a # b\"\ntlsKeyFilePath: null\ntlsProvider: JDK # c\n\n"
    assert parse_config(text, "f") == {"useTls": "true", "authority": "a # b", "tlsProvider": "JDK"}


def test_a_file_without_tls_leaves_the_scheme(tmp_path: Path) -> None:
    file = tmp_path / "etcd.yaml"
    file.write_text("useTls: false\nauthority: x\n")
    access = read_access(f"etcd:http://a:1,https://b?config={file}")
    assert (access.addresses, access.credentials, access.authority) == (("a:1", "b:2379"), (False, True), "x")


def test_brokers_name_the_file_by_pulsars_setting(tmp_path: Path) -> None:
    file = tmp_path / "etcd.yaml"
    file.write_text("useTls: false\n")

    def url(**settings: str) -> str:
        given = GivenSettings(
            frozenset(
                ["metadataStoreUrl", "metadataStoreConfigPath", "zookeeperServers", "metadataStoreSessionTimeoutMillis"]
            )
        )
        for name, value in settings.items():
            given.add(name, value, "test")
        found = pulsar_metadata(given)
        assert found is not None
        return found.url

    assert url(metadataStoreUrl="etcd:http://a:1", metadataStoreConfigPath=str(file)) == (
        f"etcd:http://a:1?config={file}"
    )
    assert url(metadataStoreUrl="zk:a:1", metadataStoreConfigPath="/nothing") == "zk:a:1"
