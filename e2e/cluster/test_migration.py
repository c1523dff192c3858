"""The clients of a cluster, ours or Apache's, are sent to one of ours: each goes on, and nothing is lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from e2e import checkers, corpus, history
from e2e.clients import builds
from e2e.cluster import admin
from e2e.history import Acknowledged, Received
from e2e.interchange import apache, brokers, parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import CLUSTER, BrokerPart
from e2e.processes import wait_for
from e2e.run_clients import Run, Tail, drive
from e2e.workload import SubscriptionType, Workload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GREEN: Final = "green"
NAMESPACE: Final = "public/default"
COUNT: Final = 3_000
SECONDS: Final = 10
MOVED_AT: Final = 600
SECONDS_MAX: Final = 120.0
MOVED_SECONDS_MAX: Final = 240.0
REPEATED_MAX: Final = 1_000
"""Messages of one producer that may be under way without a receipt when it is sent on."""
SETTINGS: Final = {"clusterMigrationCheckDurationSeconds": "1", "clusterMigrationAutoResourceCreation": "true"}


@pytest.fixture
def blue(tmp_path: Path) -> Iterator[Cluster]:
    """The cluster that moves."""
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path / "blue") as running:
        running.initialize_pulsar(transaction_coordinators=1)
        running.start(running.our_bookie("bookie"))
        yield running


@pytest.fixture
def green(blue: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Where its clients go."""
    del blue
    with Cluster(tmp_path / GREEN) as running:
        apache.initialize_cluster(running.zookeeper.address, GREEN, running.folder / "logs", transaction_coordinators=1)
        running.start(running.our_bookie("bookie"))
        yield running


def move(old: BrokerPart, new: BrokerPart) -> None:
    urls = {"serviceUrl": new.admin_url, "brokerServiceUrl": new.service_url}
    admin.call("POST", f"{old.admin_url}/admin/v2/clusters/{CLUSTER}/migrate?migrated=true", urls)


def introduce(to: BrokerPart, others: dict[str, BrokerPart]) -> None:
    """Have a cluster know others, and its tenant be in them, too."""
    base = f"{to.admin_url}/admin/v2"
    for name, broker in others.items():
        urls = {"serviceUrl": broker.admin_url, "brokerServiceUrl": broker.service_url}
        admin.call("PUT", f"{base}/clusters/{name}", urls)
    admin.call("POST", f"{base}/tenants/public", {"adminRoles": [], "allowedClusters": [CLUSTER, GREEN]})


def producers_at(broker: BrokerPart, topic: str) -> int:
    of_topic = f"{broker.admin_url}/admin/v2/persistent/{topic.removeprefix('persistent://')}"
    found: list[Any] = admin.get_json(f"{of_topic}/stats")["publishers"]
    return len(found)


# Go's client waits two minutes for the answer to PRODUCER that Apache's broker does not give it.
@pytest.mark.parametrize(("side", "client"), [("ours", "java"), ("ours", "go"), ("apache", "java")])
def test_clients_go_on_in_the_green_cluster(
    side: str, client: str, blue: Cluster, green: Cluster, tmp_path: Path
) -> None:
    quorums = (1, 1, 1)
    old = blue.our_broker(quorums, **SETTINGS) if side == "ours" else blue.apache_broker(quorums, **SETTINGS)
    new = green.our_broker(quorums, clusterName=GREEN)
    brokers.start_with_namespace(blue, old)
    brokers.start_with_namespace(green, new)
    builds.workload_command(client)
    introduce(old, {GREEN: new})
    # Apache's broker makes tenant and namespace anew there, and wants all of their clusters known.
    introduce(new, {CLUSTER: old})

    workload = Workload(client, SubscriptionType.EXCLUSIVE, False, "NONE", False, 0, False, count=COUNT)
    server: Any = SimpleNamespace(service_url=old.service_url)
    this = Run(workload, server, tmp_path / "run", topic=f"persistent://{NAMESPACE}/moves", rate=COUNT // SECONDS)
    # Apache's broker may let producers wait for two minutes before it tells them where to go.
    this.idle_timeout_s = MOVED_SECONDS_MAX
    this.folder.mkdir()
    corpus.write(this.folder / "corpus.txt", COUNT)

    def disturb(under_way: Run) -> None:
        acked = Tail(under_way.history_file("produce"), "acked")
        wait_for(lambda: acked.poll() >= MOVED_AT, SECONDS_MAX, "nothing is published")
        under_way.deaths_ms.append(time.time_ns() // 1_000_000)
        move(old, new)
        wait_for(lambda: _moved(new, under_way.topic), MOVED_SECONDS_MAX, "no producer comes")

    drive(this, disturb, 2 * MOVED_SECONDS_MAX)
    sent = [one for one in history.read(this.history_file("produce")) if isinstance(one, Acknowledged)]
    got = [one for one in history.read(this.history_file("consume")) if isinstance(one, Received)]
    assert len(sent) == COUNT
    assert checkers.lost(sent, got) == []
    assert checkers.out_of_order(got, lambda event: event.producer) == []
    times = Counter((one.producer, one.number) for one in got)
    assert sum(count - 1 for count in times.values()) <= REPEATED_MAX


def _moved(new: BrokerPart, topic: str) -> bool:
    try:
        return producers_at(new, topic) > 0
    except OSError:
        return False
