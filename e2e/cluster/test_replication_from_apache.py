"""An Apache broker replicates into a cluster of ours, which is killed in the middle: nothing lost, nothing twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from magnetar.broker.replicator_names import SOURCE_POSITION_PROPERTY

from e2e.cluster import admin
from e2e.faults.support import Publisher, assert_kept, client_of, new_publisher, read_all, subscribe
from e2e.interchange import apache, brokers, parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import CLUSTER, BrokerPart
from e2e.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

WEST: Final = "west"
NAMESPACE: Final = "public/default"
TOPIC: Final = f"persistent://{NAMESPACE}/replicated"
CHUNKS: Final = 30
CHUNK: Final = 20
REPLICATED_SECONDS_MAX: Final = 120.0


@pytest.fixture
def east(tmp_path: Path) -> Iterator[Cluster]:
    """Where Apache's broker is to be."""
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path / "east") as running:
        running.initialize_pulsar(transaction_coordinators=1)
        running.start(running.our_bookie("bookie"))
        yield running


@pytest.fixture
def west(east: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Where ours is to be: a cluster with a store of its own, and another name."""
    del east
    with Cluster(tmp_path / WEST) as running:
        apache.initialize_cluster(running.zookeeper.address, WEST, running.folder / "logs", transaction_coordinators=1)
        running.start(running.our_bookie("bookie"))
        yield running


def statistics(broker: BrokerPart) -> Any:
    path = f"/admin/v2/persistent/{TOPIC.removeprefix('persistent://')}/stats"
    return json.loads(admin.call("GET", broker.admin_url + path))


def replicate(source: BrokerPart, target: BrokerPart) -> None:
    """Have the source know the target's cluster, and its namespace be in both."""
    urls = {"serviceUrl": target.admin_url, "brokerServiceUrl": target.service_url}
    base = f"{source.admin_url}/admin/v2"
    admin.call("PUT", f"{base}/clusters/{WEST}", urls)
    admin.call("POST", f"{base}/tenants/public", {"adminRoles": [], "allowedClusters": [CLUSTER, WEST]})
    admin.call("POST", f"{base}/namespaces/{NAMESPACE}/replication", [CLUSTER, WEST])


def publish(publishers: list[Publisher], chunks: int) -> None:
    for _ in range(chunks):
        for publisher in publishers:
            publisher.send(CHUNK)
    for publisher in publishers:
        publisher.settle()


def test_apaches_replicator_sends_everything_once_to_a_broker_that_is_killed(east: Cluster, west: Cluster) -> None:
    source = east.apache_broker((1, 1, 1))
    target = west.our_broker((1, 1, 1), clusterName=WEST)
    brokers.start_with_namespace(east, source)
    brokers.start_with_namespace(west, target)
    admin.call("POST", f"{target.admin_url}/admin/v2/namespaces/{NAMESPACE}/deduplication", True)
    replicate(source, target)
    with client_of(target) as remote:
        subscribe(remote, TOPIC, "check").close()
    with client_of(source) as client:
        publishers = [
            new_publisher(client, TOPIC, "unbatched"),
            new_publisher(client, TOPIC, "batched", batching_enabled=True),
        ]
        wait_for(lambda: statistics(source)["replication"][WEST]["connected"], REPLICATED_SECONDS_MAX, "no replicator")
        publish(publishers, CHUNKS)
        wait_for(lambda: statistics(target)["msgInCounter"] > CHUNK, REPLICATED_SECONDS_MAX, "nothing comes")
        assert statistics(target)["replication"][CLUSTER]["inboundConnection"]
        target.kill()
        publish(publishers, CHUNKS)
        target.start()
        publish(publishers, CHUNKS)
    wait_for(
        lambda: statistics(source)["replication"][WEST]["replicationBacklog"] == 0,
        REPLICATED_SECONDS_MAX,
        "the replicator has not caught up",
    )
    assert not any(publisher.failed for publisher in publishers)
    acknowledged = [event for publisher in publishers for event in publisher.acknowledged]
    with client_of(target) as remote:
        received = read_all(remote, TOPIC, acknowledged)
        assert_kept(publishers, received)
        assert len(received) == len(acknowledged) == 2 * 3 * CHUNKS * CHUNK
        one = remote.create_reader(TOPIC, _earliest()).read_next()
        assert SOURCE_POSITION_PROPERTY in one.properties()


def _earliest() -> Any:
    import pulsar

    return pulsar.MessageId.earliest
