"""What the record of a cluster says of how to reach it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.replication import replicator as module
from magnetar.broker.replication.remote_clusters import RemoteClusters, service_url_of, shown_to
from magnetar.broker.replication.states import NoRemote
from magnetar.broker.replication.topic_replicators import TopicReplicators
from magnetar.broker.resources import Resources
from magnetar.broker.settings.access import PeerSettings
from magnetar.broker.settings.broker import BrokerSettings, DispatchSettings
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import TopicName
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryMetadataStore


def test_the_address_is_that_of_the_binary_protocol() -> None:
    record = {"serviceUrl": "http://west:8080", "brokerServiceUrl": "pulsar://west:6650"}
    assert service_url_of("west", record) == "pulsar://west:6650"
    secured = {**record, "brokerServiceUrlTls": "pulsar+ssl://west:6651"}
    assert service_url_of("west", secured) == "pulsar://west:6650"
    assert service_url_of("west", {**secured, "brokerClientTlsEnabled": True}) == "pulsar+ssl://west:6651"


def test_without_one_brokers_are_asked_for_over_http() -> None:
    """As Apache's broker has it; with TLS it goes by `serviceUrlTls`."""
    record = {"serviceUrl": "http://west:8080/", "serviceUrlTls": "https://west:8443"}
    assert service_url_of("west", record) == "http://west:8080"
    assert service_url_of("west", {**record, "brokerClientTlsEnabled": True}) == "https://west:8443"


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"brokerServiceUrl": None},
        {"serviceUrl": "ftp://west"},
        {"serviceUrl": "http://west:8080", "brokerClientTlsEnabled": True},
    ],
)
def test_a_record_without_an_address_is_told(record: dict[str, object]) -> None:
    with pytest.raises(NoRemote, match=r"cluster west has no serviceUrl.*or set brokerServiceUrl"):
        service_url_of("west", record)


def test_credentials_of_the_record_win_over_the_brokers_own() -> None:
    own = PeerSettings(plugin="own", parameters="secret")
    assert shown_to({}, own) is own
    assert shown_to({"authenticationPlugin": "theirs"}, own) is own
    shown = shown_to({"authenticationPlugin": "theirs", "authenticationParameters": "token:x"}, own)
    assert (shown.plugin, shown.parameters) == ("theirs", "token:x")


def test_tls_of_the_record_is_used_with_its_files() -> None:
    shown = shown_to({"brokerClientTlsEnabled": True, "brokerClientTrustCertsFilePath": "/ca.pem"}, PeerSettings())
    assert shown.tls_enabled
    assert shown.tls.trust_certificates_file == Path("/ca.pem")


async def test_a_cluster_has_one_client_until_its_record_changes() -> None:
    resources = Resources(MemoryMetadataStore())
    remotes = RemoteClusters(resources, BrokerSettings, SystemClock(), Random(0))
    path = resources.cluster_path("west")
    await resources.documents.create(path, {"brokerServiceUrl": "pulsar://west:6650"})
    first = await remotes.client("west")
    assert await remotes.client("west") is first
    await resources.documents.update(path, lambda record: {**record, "brokerServiceUrl": "pulsar://west2:6650"})
    assert await remotes.client("west") is not first
    await remotes.close()
    with pytest.raises(NoRemote, match="has no record"):
        await remotes.client("west")


@pytest.mark.parametrize("seconds", [0.0, 7.0])
async def test_connections_to_a_cluster_are_kept_alive_as_those_of_clients_are(seconds: float) -> None:
    resources = Resources(MemoryMetadataStore())
    await resources.documents.create(resources.cluster_path("west"), {"brokerServiceUrl": "pulsar://west:6650"})
    settings = BrokerSettings(keep_alive_seconds=seconds)
    remotes = RemoteClusters(resources, lambda: settings, SystemClock(), Random(0))
    assert (await remotes.client("west"))._parts.settings.keep_alive_seconds == seconds
    await remotes.close()


async def test_an_address_with_tls_needs_tls() -> None:
    resources = Resources(MemoryMetadataStore())
    remotes = RemoteClusters(resources, BrokerSettings, SystemClock(), Random(0))
    record = {
        "brokerServiceUrl": "pulsar+ssl://west:6651",
        "authenticationPlugin": "org.apache.pulsar.client.impl.auth.",
    }
    with_token = {**record, "authenticationPlugin": "token", "authenticationParameters": "token:x"}
    for name, one in (("west", record), ("north", with_token)):
        await resources.documents.create(resources.cluster_path(name), one)
        with pytest.raises(NoRemote, match="brokerClientTlsEnabled is off"):
            await remotes.client(name)
    await remotes.close()


def policies(*clusters: str) -> EffectivePolicies:
    return EffectivePolicies(
        ledger=ManagedLedgerSettings(), dispatch=DispatchSettings(), remote_clusters=tuple(clusters)
    )


def test_a_topic_that_is_closed_follows_no_policies() -> None:
    spawned: list[Any] = []
    world: Any = SimpleNamespace(runtime=SimpleNamespace(spawn=spawned.append))
    ledger: Any = SimpleNamespace(appends=SimpleNamespace(on_appended=[]), cursors=[])
    replicators = TopicReplicators(world, TopicName.parse("t"), ledger, lambda: None)
    assert len(ledger.appends.on_appended) == 1
    replicators.close()
    replicators.follow(policies("west"), ())
    assert (spawned, ledger.appends.on_appended) == ([], [])


def test_policies_are_followed_by_one_at_a_time() -> None:
    spawned: list[Any] = []
    world: Any = SimpleNamespace(runtime=SimpleNamespace(spawn=spawned.append))
    ledger: Any = SimpleNamespace(appends=SimpleNamespace(on_appended=[]), cursors=[])
    replicators = TopicReplicators(world, TopicName.parse("t"), ledger, lambda: None)
    for clusters in (("west",), ("west", "north")):
        replicators.follow(policies(*clusters), ())
    assert len(spawned) == 1
    spawned[0].close()


def test_versions_of_schemas_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCHEMAS_MAX", 2)
    anything: Any = SimpleNamespace(call_later=None, clock=None, spawn=None, turns=None)
    replicator = module.Replicator("r", anything, anything, anything, anything, lambda: None, lambda: 1)
    for number in (b"1", b"2", b"3"):
        replicator._remember_schema(number, b"there " + number)
    assert replicator._schemas == {b"2": b"there 2", b"3": b"there 3"}
