"""A standalone takes the settings of a broker and of a bookie."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp
import pytest
from magnetar.auth.settings import TOKEN_PROVIDER
from magnetar.auth.testing import SECRET, token_of
from magnetar.core.errors import SettingError, SettingErrors
from magnetar.core.limits import MIB
from magnetar.net.testing import TestAuthority
from magnetar.process.service import SettingSources
from magnetar.standalone.cluster import start_cluster
from magnetar.standalone.configured import FolderOptions, read_settings
from magnetar.standalone.settings import StandaloneSettings


def read(
    data: Path,
    *assignments: str,
    file: str = "",
    environment: dict[str, str] | None = None,
    options: dict[str, tuple[str, str]] | None = None,
) -> StandaloneSettings:
    conf = data / "standalone.conf" if file else None
    if conf is not None:
        conf.write_text(file)
    sources = SettingSources(
        file=conf, environment=environment or {}, assignments=list(assignments), options=options or {}
    )
    return read_settings(sources, FolderOptions(data_directory=data / "data"))


def test_what_stands_further_down_wins(tmp_path: Path) -> None:
    lines = ("brokerServicePort=1", "webServicePort=1", "maxMessageSize=1", "maxTenants=1", "journalSyncData=false")
    found = read(
        tmp_path,
        "maxMessageSize=3",
        "webServicePort=3",
        file="\n".join((*lines, "logSizeLimit=2097152")),
        environment={"PULSAR_PREFIX_maxMessageSize": "2", "PULSAR_PREFIX_maxTenants": "2"},
        options={"webServicePort": ("4", "--http-port")},
    )
    assert found.configured is not None
    broker = found.configured.broker
    assert (broker.broker_service_port, broker.web_service_port) == (1, 4)
    assert (broker.message_size_bytes_max, broker.admin.tenants_max) == (3, 2)
    assert (found.broker_service_port, found.web_service_port, found.journal_sync) == (1, 4, False)
    assert found.configured.storage.entry_log_bytes_max == 2 * MIB


def test_where_nothing_is_said_it_is_as_without_a_file(tmp_path: Path) -> None:
    found, plain = read(tmp_path), StandaloneSettings(data_directory=tmp_path)
    assert found.configured is not None
    assert (found.address, found.broker_service_port, found.web_service_port, found.journal_sync) == (
        plain.address,
        plain.broker_service_port,
        plain.web_service_port,
        plain.journal_sync,
    )
    assert found.configured.broker.cluster_name == "standalone"
    assert found.configured.journal.backups_max == 0


def test_listening_everywhere_tells_clients_an_address_that_they_can_use(tmp_path: Path) -> None:
    found = read(tmp_path, "bindAddress=0.0.0.0")
    assert found.configured is not None
    assert found.configured.broker.service_url == "pulsar://127.0.0.1:6650"
    found = read(tmp_path, "bindAddress=::")
    assert found.configured is not None
    assert found.configured.broker.service_url == "pulsar://[::1]:6650"


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingErrors) as refused:
        read(
            tmp_path,
            "metadataStoreUrl=zk:elsewhere:2181",
            "managedLedgerDefaultEnsembleSize=2",
            "managedLedgerCacheSizeMB=-1",
            "tlsEnabledWithKeyStore=true",
            "httpServerTlsEnable=true",
            "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory",
            "maxMesageSize=5",
            "brokerServicePortTls=0",
            "readOnlyBrokerEnabled=true",
            "nothing",
        )
    assert [problem.split(":")[0] for problem in refused.value.problems] == [
        "--set maxMesageSize",
        "--set nothing",
        "metadataStoreUrl is zk",
        "--set managedLedgerCacheSizeMB",
        "readOnlyBrokerEnabled is true, and a standalone's broker is the one that writes; `magnetar broker run` "
        "starts a broker that only reads",
        "tlsEnabledWithKeyStore=true asks for a protection that Magnetar does not have yet; remove it only if the "
        "network around this process protects it instead",
        "a TLS port needs tlsCertificateFilePath and tlsKeyFilePath",
        "httpServerTlsEnable=true asks for a protection that Magnetar does not have yet; remove it only if the "
        "network around this process protects it instead",
        "tlsProviderFactoryClass is org.apache.bookkeeper.tls.TLSContextFactory",
        "managedLedgerDefaultEnsembleSize is 2, and a standalone has one bookie",
    ]


async def test_tls_authentication_authorization_and_sizes(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    own = authority.issue("broker", "IP:127.0.0.1")
    settings = read(
        tmp_path,
        file=f"""
brokerServicePort=0
webServicePort=0
brokerServicePortTls=0
webServicePortTls=0
tlsCertificateFilePath={own.certificate_file}
tlsKeyFilePath={own.key_file}
authenticationEnabled=true
authenticationProviders={TOKEN_PROVIDER}
tokenSecretKey={SECRET}
authorizationEnabled=true
superUserRoles=admin
brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
brokerClientAuthenticationParameters=token:{token_of("admin")}
maxMessageSize=1000
journalSyncData=false
dbStorage_writeCacheMaxSizeMb=24
""",
    )
    running = await start_cluster(settings)
    try:
        told = running.broker.settings
        assert told.message_size_bytes_max == 1000
        assert told.web_service_url_tls is not None
        context = ssl.create_default_context(cafile=str(authority.certificate_file))
        url = f"{told.web_service_url_tls}/admin/v2/tenants"
        async with aiohttp.ClientSession() as session:
            async with session.get(url, ssl=context) as answer:
                assert answer.status == 401
            for subject, status in (("admin", 200), ("somebody", 401)):
                headers = {"Authorization": f"Bearer {token_of(subject)}"}
                async with session.get(url, ssl=context, headers=headers) as answer:
                    assert answer.status == status
    finally:
        await running.close()


async def test_a_folder_keeps_its_clusters_name(tmp_path: Path) -> None:
    ports = ("brokerServicePort=0", "webServicePort=0")
    await (await start_cluster(read(tmp_path, *ports, "clusterName=mine"))).close()
    with pytest.raises(SettingError, match="clusterName is standalone, and the data folder's cluster is called mine"):
        await start_cluster(read(tmp_path, *ports))
    await (await start_cluster(read(tmp_path, *ports, "clusterName=mine"))).close()
