"""Clusters over what their metadata can be kept in, under a stock client: an ensemble, etcd, a store that two share."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from magnetar.metadata.testing import EtcdServer, ZookeeperServer

from e2e.cluster import admin
from e2e.cluster.local import LocalCluster, Size

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(180)]

SMALL = Size(bookies=3, brokers=2, proxies=1)
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
RECEIVE_MS_MAX = 30_000


@contextlib.contextmanager
def client_of(cluster: LocalCluster) -> Iterator[pulsar.Client]:
    client = pulsar.Client(cluster.service_url, logger=QUIET)
    try:
        yield client
    finally:
        client.close()


def publish(cluster: LocalCluster, topic: str, *payloads: bytes) -> None:
    """What nobody is subscribed to is not kept over a change of owner: the subscription comes first."""
    with client_of(cluster) as client:
        client.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest).close()
        producer = client.create_producer(topic)
        for payload in payloads:
            producer.send(payload)


def drain(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    with client_of(cluster) as client:
        consumer = client.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest)
        received = []
        for _ in range(count):
            message = consumer.receive(RECEIVE_MS_MAX)
            consumer.acknowledge(message)
            received.append(message.data())
        return received


def test_an_ensemble_loses_its_leader(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, Size(zookeepers=3, bookies=3, brokers=2, proxies=1)) as cluster:
        cluster.start()
        publish(cluster, "before", b"1")
        cluster.ensemble.leader().kill()
        publish(cluster, "after", b"2")
        assert drain(cluster, "before", 1) == [b"1"]
        assert drain(cluster, "after", 1) == [b"2"]


@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
def test_a_cluster_over_etcd(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, SMALL, metadata=EtcdServer(tmp_path / "etcd")) as cluster:
        cluster.start()
        topics = [f"topic-{number}" for number in range(8)]
        for topic in topics:
            publish(cluster, topic, b"1", b"2")
        owners = {
            admin.get_json(f"{cluster.admin_url}/lookup/v2/topic/persistent/public/default/{topic}")["brokerUrl"]
            for topic in topics
        }
        assert owners == {broker.service_url for broker in cluster.brokers}
        cluster.brokers[0].kill()
        for topic in topics:
            publish(cluster, topic, b"3")
            assert drain(cluster, topic, 3) == [b"1", b"2", b"3"]
        cluster.restart()
        publish(cluster, topics[0], b"4")
        assert drain(cluster, topics[0], 1) == [b"4"]


def test_two_clusters_of_one_instance_see_each_others_tenants(tmp_path: Path) -> None:
    """A configuration store of its own, and a local store for each cluster (mission features 1 and 4)."""
    size = Size(bookies=1, brokers=1, proxies=0)
    with ZookeeperServer(tmp_path / "configuration") as configuration, contextlib.ExitStack() as stack:
        east, west = (
            stack.enter_context(LocalCluster(tmp_path / name, size, name=name, configuration_url=configuration.url))
            for name in ("east", "west")
        )
        for cluster in (east, west):
            cluster.start()
        assert admin.get_json(f"{west.admin_url}/admin/v2/clusters") == ["east", "west"]
        tenant = {"adminRoles": ["ops"], "allowedClusters": ["east", "west"]}
        admin.call("PUT", f"{east.admin_url}/admin/v2/tenants/acme", tenant)
        admin.call(
            "PUT", f"{east.admin_url}/admin/v2/namespaces/acme/orders", {"replication_clusters": ["east", "west"]}
        )
        assert admin.get_json(f"{west.admin_url}/admin/v2/tenants/acme") == tenant
        assert admin.get_json(f"{west.admin_url}/admin/v2/namespaces/acme") == ["acme/orders"]
        admin.call("POST", f"{west.admin_url}/admin/v2/namespaces/acme/orders/messageTTL", 60)
        assert admin.get_json(f"{east.admin_url}/admin/v2/namespaces/acme/orders/messageTTL") == 60
        # Topics, and the cut of the namespace into bundles, are each cluster's own.
        publish(east, "persistent://acme/orders/t", b"east")
        publish(west, "persistent://acme/orders/t", b"west")
        assert drain(east, "persistent://acme/orders/t", 1) == [b"east"]
        assert drain(west, "persistent://acme/orders/t", 1) == [b"west"]
        admin.call("PUT", f"{east.admin_url}/admin/v2/namespaces/acme/orders/0x00000000_0x40000000/split")
        bundles = [admin.get_json(f"{c.admin_url}/admin/v2/namespaces/acme/orders/bundles") for c in (east, west)]
        assert [bundle["numBundles"] for bundle in bundles] == [5, 4]
