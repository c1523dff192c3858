"""The administration of replication: which clusters a namespace or a topic may be in, and what that forbids."""

from __future__ import annotations

from typing import Final

import pytest
from magnetar.broker.migration.migration import tell_if_unchecked
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.conftest import Admin

CLUSTERS: Final = "/admin/v2/clusters"
NAMESPACE: Final = "/admin/v2/namespaces/public/default"
TOPIC: Final = "/admin/v2/persistent/public/default/topic"
TENANT: Final = "/admin/v2/tenants/public"
DATA: Final = {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1"}


@pytest.fixture(autouse=True)
async def other_clusters(admin: Admin) -> None:
    """`west`, in which the tenant may be, `east`, in which it may not, and `north`, a peer of `west`."""
    await admin.check(
        *[("PUT", f"{CLUSTERS}/{name}", DATA, 200, ...) for name in ("west", "east", "north")],
        ("POST", f"{CLUSTERS}/west/peers", ["north"], 204, ...),
        ("POST", TENANT, {"allowedClusters": ["standalone", "west", "north"]}, 204, ...),
    )


@pytest.mark.parametrize("path", [NAMESPACE + "/replication", TOPIC + "/replication"])
@pytest.mark.parametrize(
    ("wanted", "status", "reason"),
    [
        ([], 412, "should not be null or empty"),
        (None, 412, "should not be null or empty"),
        (["standalone", "global"], 412, "Cannot specify global"),
        (["standalone", "nowhere"], 403, "Invalid cluster id: nowhere"),
        (["standalone", "east"], 403, "allowed clusters list for tenant [public]"),
        (["standalone", "west", "north"], 409, "peer-clusters"),
    ],
)
async def test_what_is_refused(admin: Admin, path: str, wanted: list[str] | None, status: int, reason: str) -> None:
    await admin.check(("PUT", TOPIC, None, 204, ...))
    before = await admin("GET", path)
    await admin.check(("POST", path, wanted, status, reason))
    assert await admin("GET", path) == before


async def test_a_namespace_and_its_topics_stay_within_its_allowed_clusters(admin: Admin) -> None:
    await admin.check(
        ("PUT", TOPIC, None, 204, ...),
        ("POST", NAMESPACE + "/allowedClusters", ["standalone"], 200, ...),
        ("POST", NAMESPACE + "/replication", ["standalone", "west"], 400, "Cluster [west] is not in the list"),
        ("POST", TOPIC + "/replication", ["standalone", "west"], 400, "Cluster [west] is not in the list"),
        ("POST", NAMESPACE + "/allowedClusters", ["standalone", "west"], 200, ...),
        ("POST", NAMESPACE + "/replication", ["standalone", "west"], 200, ...),
        ("POST", NAMESPACE + "/allowedClusters", ["standalone"], 400, "do not contain the replication cluster west."),
    )


async def test_a_migration_without_an_address_is_refused_and_leaves_the_one_under_way(admin: Admin) -> None:
    path = CLUSTERS + "/standalone/migrate"
    urls = {"serviceUrl": "http://west:8080", "brokerServiceUrl": "pulsar://west:6650"}
    told = {"migrated": True, "migratedClusterUrl": {**urls, "empty": False}}
    await admin.check(
        ("POST", path + "?migrated=true", urls, 200, ...),
        ("POST", path + "?migrated=true", {"empty": True}, 400, "Cluster url must not be empty"),
        ("GET", path, None, 200, told),
        ("POST", path + "?migrated=false", {"empty": True}, 200, ...),
    )


async def test_the_log_says_so_when_nobody_looks_whether_what_is_marked_has_moved(
    admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    urls = {"brokerServiceUrl": "pulsar://west:6650"}
    namespace = NAMESPACE + "/migration"
    await admin.check(
        ("POST", CLUSTERS + "/standalone/migrate?migrated=false", urls, 200, ...),
        ("POST", CLUSTERS + "/west/migrate?migrated=true", urls, 200, ...),  # Other brokers look, or do not.
        ("POST", namespace, False, 204, ...),
    )
    assert "marked as migrated" not in caplog.text
    await admin.check(("POST", CLUSTERS + "/standalone/migrate?migrated=true", urls, 200, ...))
    assert "the cluster standalone is marked as migrated, but topics" in caplog.text
    assert "clusterMigrationCheckDurationSeconds is 0" in caplog.text
    await admin.check(("POST", namespace, True, 204, ...))
    assert "the namespace public/default is marked as migrated, but topics" in caplog.text
    caplog.clear()
    tell_if_unchecked(PolicySettings(migration_check_seconds=1), "the cluster standalone")
    assert not caplog.records


@pytest.mark.parametrize("member", ["replication", "allowedClusters"])
async def test_a_list_without_this_cluster_takes_force(admin: Admin, member: str) -> None:
    path = f"{NAMESPACE}/{member}"
    if member == "allowedClusters":
        document = {"replication_clusters": ["west"], "allowed_clusters": ["standalone", "west"]}
        path = "/admin/v2/namespaces/public/both/allowedClusters"
        await admin.check(("PUT", "/admin/v2/namespaces/public/both", document, 204, ...))
    before = await admin("GET", path)
    await admin.check(("POST", path, ["west"], 412, "use force=true"))
    assert await admin("GET", path) == before
    await admin.check(("POST", path + "?force=true", ["west"], 200, ...), ("GET", path, None, 200, ["west"]))


async def test_with_force_nothing_is_deleted(admin: Admin, client: ProtocolClient, memory_broker: MemoryBroker) -> None:
    name = "persistent://public/default/topic"
    await client.producer(name)
    await client.publish(3)
    await admin.check(("POST", NAMESPACE + "/replication?force=true", ["west"], 200, ...))
    answer = await client.request(pb.BaseCommand.LOOKUP, topic=name, authoritative=False)
    assert answer.body.error == pb.MetadataError
    elsewhere = "Namespace missing local cluster name"
    await admin.check(
        ("GET", TOPIC + "/stats", None, 412, elsewhere),
        ("POST", TOPIC + "/replication", ["standalone"], 412, elsewhere),
        ("DELETE", TOPIC, None, 412, elsewhere),
        ("POST", NAMESPACE + "/replication", ["standalone"], 200, ...),
    )
    other = await memory_broker.connect()
    answer = await other.request(pb.BaseCommand.LOOKUP, topic=name, authoritative=False)
    assert not answer.body.HasField("error")
    await other.consumer(name, initialPosition=1)
    assert len(await other.messages(3)) == 3


async def test_a_topic_that_is_replicated_is_deleted_by_force_only(admin: Admin) -> None:
    partitioned = "/admin/v2/persistent/public/default/parted"
    await admin.check(
        ("PUT", TOPIC, None, 204, ...),
        ("PUT", partitioned + "/partitions", 2, 204, ...),
        ("POST", NAMESPACE + "/replication", ["standalone", "west"], 200, ...),
        ("DELETE", TOPIC, None, 422, "replicated on clusters [west]"),
        ("DELETE", partitioned + "/partitions", None, 422, "replicated on clusters [west]"),
        ("GET", partitioned + "/partitions", None, 200, {"partitions": 2, "deleted": False}),
        ("DELETE", "/admin/v2/persistent/public/default/none", None, 404, "not found"),
        ("DELETE", TOPIC + "?force=true", None, 204, ...),
        ("DELETE", partitioned + "/partitions?force=true", None, 204, ...),
        ("PUT", TOPIC, None, 204, ...),
        ("POST", NAMESPACE + "/replication", ["standalone"], 200, ...),
        ("DELETE", TOPIC, None, 204, ...),
    )


@pytest.mark.parametrize("name", ["a.b", ".b", "eu.west.1"])
async def test_clusters_have_names_without_dots(admin: Admin, name: str) -> None:
    await admin.check(
        ("PUT", f"{CLUSTERS}/{name}", DATA, 412, "has a dot"), ("GET", f"{CLUSTERS}/{name}", None, 404, ...)
    )


async def test_a_namespace_that_only_a_peer_has_is_looked_up_there(admin: Admin, client: ProtocolClient) -> None:
    await admin.check(
        ("POST", f"{CLUSTERS}/standalone/peers", ["west"], 204, ...),
        ("PUT", "/admin/v2/namespaces/public/elsewhere", {"replication_clusters": ["standalone"]}, 204, ...),
        ("POST", "/admin/v2/namespaces/public/elsewhere/replication?force=true", ["west"], 200, ...),
    )
    topic = "persistent://public/elsewhere/topic"
    answer = await client.request(pb.BaseCommand.LOOKUP, topic=topic, authoritative=False)
    assert (answer.body.response, answer.body.brokerServiceUrl) == (
        pb.CommandLookupTopicResponse.Redirect,
        DATA["brokerServiceUrl"],
    )
