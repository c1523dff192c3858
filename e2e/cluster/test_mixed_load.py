"""An Apache broker and ours in one cluster: each lists the other, either leads, and bundles move both ways."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.faults.support import assert_kept, client_of, new_publisher, read_all
from e2e.interchange import parts
from e2e.interchange.apache import ApacheBroker
from e2e.interchange.cluster import Cluster
from e2e.interchange.ours import OurBroker
from e2e.interchange.parts import CLUSTER, BrokerPart, jvm_environment
from e2e.peers import distribution
from e2e.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAMESPACE = "public/spread"
BUNDLES = 16
TOPICS = [f"persistent://{NAMESPACE}/topic-{index}" for index in range(48)]
SEEN_SECONDS_MAX = 30.0
BALANCED_SECONDS_MAX = 150.0
"""Two rounds of the leader, a minute apart."""

BALANCING = {
    "loadBalancerEnabled": "true",
    "loadBalancerReportUpdateMinIntervalMillis": "500",
    # The brokers share one busy host, so neither is to be spared for its CPU.
    "loadBalancerCPUResourceWeight": "0",
    # Apache's default strategy moves nothing for little traffic; these are for ours alone.
    "loadBalancerLoadSheddingStrategy": "org.apache.pulsar.broker.loadbalance.impl.ThresholdShedder",
    "loadBalancerLoadPlacementStrategy": "org.apache.pulsar.broker.loadbalance.impl.LeastLongTermMessageRate",
}
OUR_BALANCING = {
    **BALANCING,
    "loadBalancerLoadSheddingStrategy": "BalancedShedder",
    "loadBalancerLoadPlacementStrategy": "LeastLoad",
    "loadBalancerSheddingConditionHitCountThreshold": "1",
}


class KeepMethod(urllib.request.HTTPRedirectHandler):
    """Follows 307 with the method and body that were sent, as admin clients do."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request:
        return urllib.request.Request(newurl, data=req.data, headers=dict(req.headers), method=req.get_method())


OPENER = urllib.request.build_opener(KeepMethod)


def call(broker: BrokerPart, method: str, path: str, body: object = None) -> Any:
    """The answer of the admin API, decoded."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(broker.admin_url + path, data=data, method=method, headers=headers)
    try:
        with OPENER.open(request, timeout=60) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path}: {error.code} {error.read()!r}") from error
    # Some answers are plain text, as Apache's are.
    return json.loads(content) if content[:1] in (b"{", b"[") else content.decode()


class Mixed:
    """The two brokers, and what is asked of both."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.apache: ApacheBroker = cluster.apache_broker((1, 1, 1), **BALANCING)
        self.ours: OurBroker = cluster.our_broker((1, 1, 1), **OUR_BALANCING)

    @property
    def brokers(self) -> tuple[BrokerPart, BrokerPart]:
        return self.apache, self.ours

    def see_each_other(self, leader: BrokerPart) -> None:
        """Wait until both list both and agree on the leader."""

        def agreed() -> bool:
            return all(
                set(call(broker, "GET", f"/admin/v2/brokers/{CLUSTER}")) == {self.apache.id, self.ours.id}
                and call(broker, "GET", "/admin/v2/brokers/leaderBroker")["brokerId"] == leader.id
                for broker in self.brokers
            )

        wait_for(agreed, SEEN_SECONDS_MAX, f"the brokers do not see each other with {leader.id} as the leader")

    def owner(self, topic: str, asked: BrokerPart) -> BrokerPart:
        """Whom a lookup leads to."""
        url = call(asked, "GET", "/lookup/v2/topic/" + topic.replace("://", "/"))["brokerUrl"]
        return next(broker for broker in self.brokers if broker.service_url == url)

    def bundle(self, topic: str) -> str:
        """Its range, `0x…_0x…`."""
        return str(call(self.ours, "GET", "/lookup/v2/topic/" + topic.replace("://", "/") + "/bundle"))

    def bundles_of(self, broker: BrokerPart) -> set[str]:
        """What a broker owns of the namespace."""
        owned = call(broker, "GET", f"/admin/v2/brokers/{CLUSTER}/{broker.id}/ownedNamespaces")
        return {name for name in owned if name.startswith(NAMESPACE + "/")}

    def unload(self, asked: BrokerPart, bundle: str, destination: BrokerPart) -> None:
        path = f"/admin/v2/namespaces/{NAMESPACE}/{bundle}/unload"
        call(asked, "PUT", f"{path}?destinationBroker={destination.id}")

    def spread(self, leader: BrokerPart) -> None:
        """Look all topics up at both brokers: the leader gives some bundles to each, and both say the same."""
        owners = {topic: self.owner(topic, self.brokers[index % 2]) for index, topic in enumerate(TOPICS)}
        assert set(owners.values()) == set(self.brokers), f"{leader.id} gives everything to one"
        for topic, owner in owners.items():
            assert all(self.owner(topic, asked) is owner for asked in self.brokers)
        assert not self.bundles_of(self.apache) & self.bundles_of(self.ours)


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Mixed]:
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path) as cluster:
        cluster.initialize_pulsar()
        cluster.start(cluster.our_bookie("bookie"))
        yield Mixed(cluster)


def make_namespace(broker: BrokerPart) -> None:
    call(broker, "PUT", f"/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": BUNDLES}})


def move_to_and_fro(mixed: Mixed, leader: BrokerPart) -> None:
    """A topic's bundle goes from each broker to the other, asked of the leader, while somebody publishes."""
    for source, destination in (mixed.brokers, mixed.brokers[::-1]):
        topic = next(one for one in TOPICS if mixed.owner(one, leader) is source)
        with client_of(source) as client:
            publisher = new_publisher(client, topic, f"to-{destination.folder.name}")
            publisher.send(50)
            publisher.settle()
            mixed.unload(leader, mixed.bundle(topic), destination)
            wait_for(
                lambda topic=topic, to=destination: all(mixed.owner(topic, asked) is to for asked in mixed.brokers),
                SEEN_SECONDS_MAX,
                f"{topic} does not go from {source.id} to {destination.id}",
            )
            publisher.send(50)
            publisher.settle()
            assert not publisher.failed
            assert_kept([publisher], read_all(client, topic, publisher.acknowledged, 30))


def test_apache_leads(mixed: Mixed) -> None:
    mixed.apache.start()
    mixed.ours.start()
    mixed.see_each_other(mixed.apache)
    listed = subprocess.run(
        [str(distribution.home() / "bin" / "pulsar-admin"), "--admin-url", mixed.ours.admin_url, "brokers", "list",
         CLUSTER],
        capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, **jvm_environment(mixed.cluster.folder / "logs")},
    )  # fmt: skip
    assert set(listed.stdout.split()) >= {mixed.apache.id, mixed.ours.id}
    make_namespace(mixed.apache)
    mixed.spread(mixed.apache)
    move_to_and_fro(mixed, mixed.apache)


def test_ours_leads(mixed: Mixed) -> None:
    mixed.ours.start()
    mixed.apache.start()
    mixed.see_each_other(mixed.ours)
    make_namespace(mixed.ours)
    mixed.spread(mixed.ours)
    move_to_and_fro(mixed, mixed.ours)
    decisions = call(mixed.ours, "GET", "/admin/v2/brokers/load-decisions")
    assert {entry["destination"] for entry in decisions["placements"]} == {mixed.apache.id, mixed.ours.id}
    assert all(entry["reason"] for entry in decisions["placements"])


def test_ours_gives_an_empty_apache_broker_its_share_and_leads_no_more_when_it_stops(mixed: Mixed) -> None:
    mixed.ours.start()
    make_namespace(mixed.ours)
    for topic in TOPICS:
        assert mixed.owner(topic, mixed.ours) is mixed.ours
    mixed.apache.start()
    mixed.see_each_other(mixed.ours)
    wait_for(lambda: len(mixed.bundles_of(mixed.apache)) >= BUNDLES // 4, BALANCED_SECONDS_MAX, "nothing moves")
    mixed.ours.stop()
    wait_for(
        lambda: call(mixed.apache, "GET", f"/admin/v2/brokers/{CLUSTER}") == [mixed.apache.id],
        SEEN_SECONDS_MAX,
        "ours is still listed",
    )
    for topic in TOPICS:
        assert mixed.owner(topic, mixed.apache) is mixed.apache
