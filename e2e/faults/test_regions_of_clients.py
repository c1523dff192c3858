"""Two clusters that replicate to each other, with stock clients: topics that store nothing, and topics that nobody
uses any more."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest

from e2e.faults.support import client_of
from e2e.faults.two_clusters import CLUSTERS, NAMESPACE, ask, two_clusters
from e2e.processes import wait_for
from e2e.server import MagnetarStandalone

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(400)]

PASSING = f"non-persistent://{NAMESPACE}/passing"
IDLE = f"persistent://{NAMESPACE}/idle"
MESSAGES = 500
PATIENCE_SECONDS = 120.0


def connected(server: MagnetarStandalone, topic: str) -> bool:
    """Whether all its replicators of the topic have their producers."""
    replication = ask(server, "GET", topic.replace("://", "/") + "/stats")["replication"]
    return bool(replication) and all(one["connected"] for one in replication.values())


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_what_passes_in_one_cluster_is_heard_in_the_other(tmp_path: Path, *, batched: bool) -> None:
    with two_clusters(tmp_path) as servers, client_of(servers["east"]) as east, client_of(servers["west"]) as west:
        hears = west.subscribe(PASSING, "hears", receiver_queue_size=2 * MESSAGES)
        producer = east.create_producer(PASSING, batching_enabled=batched)
        for server in servers.values():
            wait_for(lambda at=server: connected(at, PASSING), PATIENCE_SECONDS, "no replicator")
        for number in range(MESSAGES):
            producer.send_async(b"%d" % number, lambda _result, _id: None)
        producer.flush()
        received = [int(hears.receive(60_000).data()) for _ in range(MESSAGES)]
        assert received == list(range(MESSAGES))
        with pytest.raises(pulsar.Timeout):
            hears.receive(1_000)
        told = ask(servers["east"], "GET", PASSING.replace("://", "/") + "/stats")["replication"]["west"]
        assert (told["msgDropCount"], told["msgInCount"]) == (0, 0)


def test_both_clusters_let_go_of_a_topic_that_nobody_uses(tmp_path: Path) -> None:
    idle = {
        "brokerDeleteInactiveTopicsFrequencySeconds": "1",
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "5",
    }
    with (
        two_clusters(tmp_path, **idle) as servers,
        client_of(servers["east"]) as east,
        client_of(servers["west"]) as west,
    ):
        producers = [client.create_producer(IDLE) for client in (east, west)]
        for server in servers.values():
            wait_for(lambda at=server: connected(at, IDLE), PATIENCE_SECONDS, "no replicator")
        for producer in producers:
            producer.send(b"x")
        for name in CLUSTERS:
            assert IDLE in ask(servers[name], "GET", f"persistent/{NAMESPACE}")
        for producer in producers:
            producer.close()
        for name in CLUSTERS:
            wait_for(
                lambda at=servers[name]: IDLE not in ask(at, "GET", f"persistent/{NAMESPACE}"),
                PATIENCE_SECONDS,
                f"{name} keeps a topic that nobody uses",
            )
