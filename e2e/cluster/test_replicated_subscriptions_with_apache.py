"""A consumer changes from an Apache broker's cluster to one of ours, which is killed meanwhile, and back again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest

from e2e.cluster import admin
from e2e.faults.support import client_of, subscribe
from e2e.interchange import apache, brokers, parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import CLUSTER, BrokerPart
from e2e.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

WEST: Final = "west"
NAMESPACE: Final = "public/default"
TOPIC: Final = f"persistent://{NAMESPACE}/followed"
SUBSCRIPTION: Final = "moves"
COUNT: Final = 200
SECONDS_MAX: Final = 90.0
SILENCE_MS: Final = 3_000
HOLE_SECONDS: Final = 3.0


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
    """Where ours is to be."""
    del east
    with Cluster(tmp_path / WEST) as running:
        apache.initialize_cluster(running.zookeeper.address, WEST, running.folder / "logs", transaction_coordinators=1)
        running.start(running.our_bookie("bookie"))
        yield running


def topic_answer(broker: BrokerPart, what: str) -> Any:
    return admin.get_json(f"{broker.admin_url}/admin/v2/persistent/{TOPIC.removeprefix('persistent://')}/{what}")


def link(brokers_by_cluster: dict[str, BrokerPart]) -> None:
    """Each knows the other's cluster, and the namespace is in both."""
    names = sorted(brokers_by_cluster)
    for name, broker in brokers_by_cluster.items():
        base = f"{broker.admin_url}/admin/v2"
        for other in names:
            if other != name:
                there = brokers_by_cluster[other]
                urls = {"serviceUrl": there.admin_url, "brokerServiceUrl": there.service_url}
                admin.call("PUT", f"{base}/clusters/{other}", urls)
        admin.call("POST", f"{base}/tenants/public", {"adminRoles": [], "allowedClusters": names})
        admin.call("POST", f"{base}/namespaces/{NAMESPACE}/replication", names)


def connected(broker: BrokerPart, other: str) -> bool:
    replication = topic_answer(broker, "stats")["replication"].get(other, {})
    return bool(replication.get("connected")) and not replication["replicationBacklog"]


def publish(client: Any, first: int) -> list[int]:
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for number in range(first, first + COUNT):
        producer.send(b"%d" % number)
    producer.close()
    return list(range(first, first + COUNT))


def last_message(client: Any) -> tuple[tuple[int, int], int]:
    """Where the last message stands in this cluster, and its number."""
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = ((-1, -1), -1)
    while reader.has_message_available():
        message = reader.read_next(int(SECONDS_MAX * 1000))
        found = ((message.message_id().ledger_id(), message.message_id().entry_id()), int(message.data()))
    reader.close()
    return found


def behind_mark(broker: BrokerPart, position: tuple[int, int]) -> bool:
    """Whether the subscription has acknowledged everything up to a position."""
    cursor = topic_answer(broker, "internalStats")["cursors"].get(SUBSCRIPTION)
    if cursor is None:
        return False
    ledger_id, entry_id = (int(part) for part in cursor["markDeletePosition"].split(":"))
    return (ledger_id, entry_id) >= position


def consume(consumer: Any, wanted: list[int]) -> list[int]:
    """Receive and acknowledge until the last one of these has come."""
    received: list[int] = []
    while wanted[-1] not in received:
        message = consumer.receive(int(SECONDS_MAX * 1000))
        received.append(int(message.data()))
        consumer.acknowledge(message)
    return received


def rest(consumer: Any) -> list[int]:
    """What still comes."""
    received: list[int] = []
    while True:
        try:
            received.append(int(consumer.receive(SILENCE_MS).data()))
        except pulsar.Timeout:
            return received


def test_a_consumer_goes_from_apaches_cluster_to_ours_and_back(east: Cluster, west: Cluster) -> None:
    theirs = east.apache_broker((1, 1, 1))
    ours = west.our_broker((1, 1, 1), clusterName=WEST)
    brokers.start_with_namespace(east, theirs)
    brokers.start_with_namespace(west, ours)
    link({CLUSTER: theirs, WEST: ours})
    with client_of(theirs) as at_theirs, client_of(ours) as at_ours:
        there = subscribe(at_theirs, TOPIC, SUBSCRIPTION, replicate_subscription_state_enabled=True)
        first = publish(at_theirs, 0)
        wait_for(lambda: last_message(at_ours)[1] == first[-1], SECONDS_MAX, "ours gets nothing")
        wait_for(lambda: connected(theirs, WEST) and connected(ours, CLUSTER), SECONDS_MAX, "not linked")
        ours.kill()
        ours.start()
        second = publish(at_theirs, COUNT)
        assert consume(there, second) == first + second
        wait_for(lambda: last_message(at_ours)[1] == second[-1], SECONDS_MAX, "ours gets no more")
        at, _ = last_message(at_ours)
        wait_for(lambda: behind_mark(ours, at), SECONDS_MAX, "our subscription does not follow")
        assert topic_answer(ours, "stats")["subscriptions"][SUBSCRIPTION]["isReplicated"]
        there.close()
        # Here without the flag: what is stored of the subscription says it.
        here = subscribe(at_ours, TOPIC, SUBSCRIPTION)
        third = publish(at_theirs, 2 * COUNT)
        # What is acknowledged behind a hole is told in a way that Apache's broker passes over.
        held = here.receive(int(SECONDS_MAX * 1000))
        assert [int(held.data()), *consume(here, third)] == third
        time.sleep(HOLE_SECONDS)
        here.acknowledge(held)
        fourth = publish(at_ours, 3 * COUNT)
        assert consume(here, fourth) == fourth
        wait_for(lambda: last_message(at_theirs)[1] == fourth[-1], SECONDS_MAX, "theirs gets nothing")
        at, _ = last_message(at_theirs)
        wait_for(lambda: behind_mark(theirs, at), SECONDS_MAX, "their subscription does not follow")
        assert rest(here) == []
        here.close()
        assert rest(subscribe(at_theirs, TOPIC, SUBSCRIPTION)) == []
