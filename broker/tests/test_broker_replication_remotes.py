"""What the record of a cluster says of how to reach it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.replication import replicator as module
from magnetar.broker.replication.non_persistent_replicators import NonPersistentReplicator
from magnetar.broker.replication.outgoing import UnstoredOutgoing
from magnetar.broker.replication.remote_clusters import RemoteClusters, service_url_of, shown_to
from magnetar.broker.replication.states import NoRemote
from magnetar.broker.replication.topic_replicators import TopicReplicators
from magnetar.broker.resources import Resources
from magnetar.broker.settings.access import PeerSettings
from magnetar.broker.settings.broker import BrokerSettings, DispatchSettings
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.testing.clusters import until
from magnetar.client.errors import ClientClosed
from magnetar.client.relay import RelayProducer, RelayReceiver
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import TopicName
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import NodeChange, Notification
from magnetar.net.tls import TlsSettings


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


FILES = {
    "trust_certificates_file": "brokerClientTrustCertsFilePath",
    "certificate_file": "brokerClientCertificateFilePath",
    "key_file": "brokerClientKeyFilePath",
}
"""Of `TlsSettings`, and how a record names them."""


@pytest.mark.parametrize("one", FILES)
def test_each_file_that_the_record_leaves_open_is_the_brokers_own(one: str) -> None:
    paths: dict[str, Any] = {field: Path(f"/own/{field}") for field in FILES}
    theirs: dict[str, Any] = {**paths, one: Path("/theirs")}
    for given, expected in (("/theirs", theirs), ("", paths), (None, paths), (7, paths)):
        record = {"brokerClientTlsEnabled": True, FILES[one]: given}
        assert shown_to(record, PeerSettings(tls=TlsSettings(**paths))).tls == TlsSettings(**expected)


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


async def test_a_replicator_that_connects_while_the_record_changes_tries_again() -> None:
    """Its connection is given up with the client of the old record; it is not."""
    resources = Resources(MemoryMetadataStore())
    remotes = RemoteClusters(resources, BrokerSettings, SystemClock(), Random(0))
    path = resources.cluster_path("west")
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    runtime = SubscriptionRuntime(SystemClock(), lambda work: tasks.append(loop.create_task(work)), loop.call_later)

    class West:
        async def producer(self, receiver: RelayReceiver) -> RelayProducer:
            return (await remotes.client("west")).relay(TopicName.parse("non-persistent://a/b/t"), "r", receiver)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"pulsar://127.0.0.1:{silent.getsockname()[1]}"
        await resources.documents.create(path, {"brokerServiceUrl": url})
        replicator = NonPersistentReplicator("r", UnstoredOutgoing("east", "west"), West(), runtime, lambda: 10)
        replicator.start()
        pool = (await remotes.client("west"))._parts.pool
        await until(lambda: pool._connections)
        await resources.documents.update(path, lambda record: {**record, "brokerServiceUrl": "pulsar://127.0.0.1:1"})
        await remotes.client("west")
        await until(lambda: "127.0.0.1:1 cannot be reached" in replicator.detail)
        replicator.terminate()
        await until(lambda: all(task.done() for task in tasks))
        assert not any(task.cancelled() for task in tasks)
        await remotes.close()


async def test_a_client_that_takes_its_time_to_close_holds_up_no_other_cluster() -> None:
    resources = Resources(MemoryMetadataStore())
    remotes = RemoteClusters(resources, BrokerSettings, SystemClock(), Random(0))
    for name in ("west", "north"):
        await resources.documents.create(resources.cluster_path(name), {"brokerServiceUrl": f"pulsar://{name}:6650"})
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def close() -> None:
        begun.set()
        await may_end.wait()

    slow: Any = await remotes.client("west")
    slow.close = close
    path = resources.cluster_path("west")
    await resources.documents.update(path, lambda record: {**record, "brokerServiceUrl": "pulsar://west2:6650"})
    asking = asyncio.ensure_future(remotes.client("west"))
    async with asyncio.timeout(30):
        await begun.wait()
        await remotes.client("north")
        newest = await remotes.client("west")
    assert not asking.done()
    may_end.set()
    assert await asking is newest
    await remotes.close()


async def test_the_client_of_a_cluster_that_is_removed_is_closed() -> None:
    resources = Resources(MemoryMetadataStore())
    remotes = RemoteClusters(resources, BrokerSettings, SystemClock(), Random(0))
    await resources.documents.create(resources.cluster_path("west"), {"brokerServiceUrl": "pulsar://west:6650"})
    client = await remotes.client("west")
    await resources.documents.delete(resources.cluster_path("west"))
    with pytest.raises(NoRemote, match="has no record"):
        await remotes.client("west")
    with pytest.raises(NoRemote, match="has no serviceUrl"):
        await remotes.admin("west")
    with pytest.raises(ClientClosed):
        await client.partitions(TopicName.parse("t"))
    await remotes.close()


async def test_the_client_of_a_removed_cluster_for_which_nobody_asks_is_closed() -> None:
    resources = Resources(MemoryMetadataStore())
    remotes = RemoteClusters(resources, BrokerSettings, SystemClock(), Random(0))
    for name in ("west", "north"):
        await resources.documents.create(resources.cluster_path(name), {"brokerServiceUrl": f"pulsar://{name}:6650"})
    west, north = await remotes.client("west"), await remotes.client("north")
    path = resources.cluster_path("west")
    await resources.documents.update(path, lambda record: {**record, "serviceUrl": "http://west:8080"})
    pool = west._parts.pool
    assert not pool._closed, "whoever asks next has another one"
    await resources.documents.delete(path)
    await until(lambda: pool._closed)
    assert await remotes.client("north") is north
    await remotes.close()
    assert not remotes._tasks


async def test_a_cluster_that_is_removed_while_the_store_is_away_is_found_removed() -> None:
    store = MemoryMetadataStore()
    resources = Resources(store)
    remotes = RemoteClusters(resources, BrokerSettings, SystemClock(), Random(0))
    path = resources.cluster_path("west")
    await resources.documents.create(path, {"brokerServiceUrl": "pulsar://west:6650"})
    pool = (await remotes.client("west"))._parts.pool
    store.disconnect()
    await store.another_session().delete(path)
    for _ in range(3):
        await asyncio.sleep(0)
    await until(lambda: not remotes._tasks)
    assert not pool._closed, "nobody knows"
    store.reconnect()
    await until(lambda: pool._closed)
    await remotes.close()


class UnsureStore(MemoryMetadataStore):
    """Tells of a change where a node was deleted, as ZooKeeper's store does when it was away meanwhile."""

    def watch(self, listener: Callable[[Notification], None]) -> Callable[[], None]:
        return super().watch(lambda told: listener(Notification(NodeChange.MODIFIED, told.path)))


async def test_a_change_that_may_be_a_removal_is_looked_at() -> None:
    resources = Resources(UnsureStore())
    remotes = RemoteClusters(resources, BrokerSettings, SystemClock(), Random(0))
    path = resources.cluster_path("west")
    await resources.documents.create(path, {"brokerServiceUrl": "pulsar://west:6650"})
    pool = (await remotes.client("west"))._parts.pool
    await resources.documents.delete(path)
    await until(lambda: pool._closed)
    await remotes.close()


TOKEN_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


@pytest.mark.parametrize(
    "given",
    [
        {"brokerClientTlsEnabled": True, "brokerClientTrustCertsFilePath": "/ca\0.pem"},
        {"authenticationPlugin": TOKEN_PLUGIN, "authenticationParameters": "token:\ud800"},
    ],
    ids=["a zero byte in a path", "half a character in a token"],
)
async def test_a_record_with_what_no_file_or_token_can_be_is_told(given: dict[str, object]) -> None:
    store = MemoryMetadataStore()
    resources = Resources(store)
    remotes = RemoteClusters(resources, BrokerSettings, SystemClock(), Random(0))
    record = {"serviceUrl": "http://west:8080", "serviceUrlTls": "https://west:8443", **given}
    await store.put(resources.cluster_path("west"), json.dumps(record).encode())
    for ask in (remotes.client, remotes.admin):
        with pytest.raises(NoRemote, match="the record of cluster west names a file or a token that cannot be one"):
            await ask("west")
    await remotes.close()


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
