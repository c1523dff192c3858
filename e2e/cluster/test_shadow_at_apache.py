"""A topic of our broker whose shadow an Apache broker of the same cluster serves, or ours, or one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest

from e2e.cluster import admin
from e2e.faults.support import client_of
from e2e.interchange import brokers, parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import CLUSTER, BrokerPart
from e2e.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SOURCE: Final = "persistent://public/sources/t"
SHADOW: Final = "persistent://public/shadows/t"
WHOLE: Final = "0x00000000_0xffffffff"
COUNT: Final = 50
SECONDS_MAX: Final = 60.0
SILENCE_MS: Final = 100


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """ZooKeeper, a bookie, and what brokers want to find."""
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path) as running:
        running.initialize_pulsar(transaction_coordinators=1)
        running.start(running.our_bookie("bookie"))
        yield running


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def owner_of(broker: BrokerPart, topic: str) -> str:
    found: dict[str, Any] = admin.get_json(f"{broker.admin_url}/lookup/v2/topic/{path_of(topic)}")
    return str(found["brokerUrl"])


def give(topic: str, to: BrokerPart, asked: BrokerPart) -> None:
    """Have one broker own a topic."""
    namespace = topic.removeprefix("persistent://").rpartition("/")[0]
    if owner_of(asked, topic) != to.service_url:
        broker_id = to.admin_url.removeprefix("http://")
        url = f"{asked.admin_url}/admin/v2/namespaces/{namespace}/{WHOLE}/unload?destinationBroker={broker_id}"
        admin.call("PUT", url)
    wait_for(lambda: owner_of(asked, topic) == to.service_url, SECONDS_MAX, f"{topic} has another owner")


def make_namespaces(ours: BrokerPart, theirs: BrokerPart, shadow_at: BrokerPart) -> None:
    """One for the source, which ours has, and one for the shadow."""
    base = f"{theirs.admin_url}/admin/v2"
    urls = {"serviceUrl": ours.admin_url, "brokerServiceUrl": ours.service_url}
    admin.call("POST", f"{base}/clusters/{CLUSTER}", urls)
    for topic, owner in ((SOURCE, ours), (SHADOW, shadow_at)):
        namespace = topic.removeprefix("persistent://").rpartition("/")[0]
        policies = {
            "bundles": {"numBundles": 1},
            "replication_clusters": [CLUSTER],
            # What the source drops, its shadow drops.
            "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        }
        admin.call("PUT", f"{base}/namespaces/{namespace}", policies)
        give(topic, owner, theirs)
    admin.call("PUT", f"{ours.admin_url}/admin/v2/{path_of(SOURCE)}", {})
    admin.call("PUT", f"{shadow_at.admin_url}/admin/v2/{path_of(SHADOW)}", {"PULSAR.SHADOW_SOURCE": SOURCE})
    admin.call("PUT", f"{ours.admin_url}/admin/v2/{path_of(SOURCE)}/shadowTopics", [SHADOW])


def test_an_apache_broker_serves_the_shadow_of_our_topic(cluster: Cluster) -> None:
    theirs, ours = cluster.apache_broker((1, 1, 1)), cluster.our_broker((1, 1, 1))
    brokers.start_with_namespace(cluster, theirs)
    brokers.start_with_namespace(cluster, ours)
    make_namespaces(ours, theirs, theirs)
    with client_of(ours) as client:
        consumer = client.subscribe(SHADOW, "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(SOURCE, batching_enabled=False)
        sent: list[Any] = []
        received: list[Any] = []
        publish_until_received(producer, consumer, sent, received, COUNT)
        check(received, sent)


def test_a_shadow_moves_from_our_broker_to_apaches_and_back(cluster: Cluster) -> None:
    """Its subscription goes on where it was, at each of them."""
    theirs, ours = cluster.apache_broker((1, 1, 1)), cluster.our_broker((1, 1, 1))
    brokers.start_with_namespace(cluster, theirs)
    brokers.start_with_namespace(cluster, ours)
    make_namespaces(ours, theirs, ours)
    with client_of(ours) as client:
        consumer = client.subscribe(SHADOW, "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(SOURCE, batching_enabled=False)
        sent: list[Any] = []
        received: list[Any] = []
        publish_until_received(producer, consumer, sent, received, COUNT)
        for number, owner in enumerate((theirs, ours), 2):
            wait_for(lambda: acknowledged(ours, sent[-1]), SECONDS_MAX, "all is acknowledged")
            give(SHADOW, owner, ours)
            publish_until_received(producer, consumer, sent, received, number * COUNT)
        check(received, sent)


def publish_until_received(producer: Any, consumer: Any, sent: list[Any], received: list[Any], count: int) -> None:
    """Until so many have come. What is published before the shadow has its replicator is told with what comes after."""
    deadline = time.monotonic() + SECONDS_MAX
    while len(sent) < count or len(received) < len(sent):
        assert time.monotonic() < deadline, f"{len(received)} of {len(sent)} have come"
        if len(sent) < count or time.monotonic() > deadline - SECONDS_MAX / 2:
            sent.append(producer.send(b"%d" % len(sent)))
        received += receive_all(consumer)


def acknowledged(broker: BrokerPart, last: Any) -> bool:
    """Whether the subscription has all up to this message, as the shadow's owner says. (Of the backlog Apache's broker
    has another opinion once the source has gone on to another ledger.)"""
    stats: dict[str, Any] = admin.get_json(f"{broker.admin_url}/admin/v2/{path_of(SHADOW)}/internalStats")
    ledger_id, _, entry_id = stats["cursors"]["s"]["markDeletePosition"].partition(":")
    return (int(ledger_id), int(entry_id)) >= (last.ledger_id(), last.entry_id())


def check(received: list[Any], sent: list[Any]) -> None:
    """All of it, once, in order, under the source's ids, as it was published."""
    assert [int(message.data()) for message in received] == list(range(len(sent)))
    for message, position in zip(received, sent, strict=True):
        found = message.message_id()
        assert (found.ledger_id(), found.entry_id()) == (position.ledger_id(), position.entry_id())
        assert message.properties() == {}


def receive_all(consumer: Any) -> list[Any]:
    """What has come, acknowledged."""
    found: list[Any] = []
    while True:
        try:
            found.append(consumer.receive(SILENCE_MS))
        except pulsar.Timeout:
            return found
        consumer.acknowledge(found[-1])
