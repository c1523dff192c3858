"""A topic and its shadow at two brokers of ours, either of which is killed under load: what the source has confirmed
comes to the shadow's subscription, in order, at its place; what is acknowledged there is known to the next owner."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest

from e2e.cluster import admin
from e2e.cluster.local import LocalCluster, Size
from e2e.cluster.parts import Broker
from e2e.processes import wait_for

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(400)]

SOURCE: Final = "persistent://public/sources/t"
SHADOW: Final = "persistent://public/shadows/t"
WHOLE: Final = "0x00000000_0xffffffff"
QUIET: Final = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
MESSAGES: Final = 6_000
KILL_AFTER: Final = (1_500, 3_500)
SECONDS_MAX: Final = 60.0
RECEIVE_MS_MAX: Final = 60_000
QUIET_MS: Final = 1_000
"""After so long without a message nothing comes."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """One broker has the source, the other one the shadow."""
    with LocalCluster(tmp_path, Size(bookies=1, brokers=2, proxies=0)) as running:
        running.start()
        source, shadow = running.brokers
        for topic, owner in ((SOURCE, source), (SHADOW, shadow)):
            policies = {
                "bundles": {"numBundles": 1},
                "deduplicationEnabled": True,
                "replication_clusters": [running.settings.name],
                # What the source drops, its shadow drops.
                "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
            }
            admin.call("PUT", f"{running.admin_url}/admin/v2/namespaces/{namespace_of(topic)}", policies)
            give(topic, owner, running)
        admin.call("PUT", f"{source.admin_url}/admin/v2/{path_of(SOURCE)}", {})
        admin.call("PUT", f"{source.admin_url}/admin/v2/{path_of(SHADOW)}", {"PULSAR.SHADOW_SOURCE": SOURCE})
        admin.call("PUT", f"{source.admin_url}/admin/v2/{path_of(SOURCE)}/shadowTopics", [SHADOW])
        yield running


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def namespace_of(topic: str) -> str:
    return topic.removeprefix("persistent://").rpartition("/")[0]


def owner_of(topic: str, cluster: LocalCluster) -> Broker:
    url = admin.get_json(f"{cluster.admin_url}/lookup/v2/topic/{path_of(topic)}")["brokerUrl"]
    return next(broker for broker in cluster.brokers if broker.service_url == url)


def give(topic: str, to: Broker, cluster: LocalCluster) -> None:
    if owner_of(topic, cluster) is not to:
        broker_id = to.admin_url.removeprefix("http://")
        path = f"namespaces/{namespace_of(topic)}/{WHOLE}/unload?destinationBroker={broker_id}"
        admin.call("PUT", f"{cluster.admin_url}/admin/v2/{path}")
    wait_for(lambda: owner_of(topic, cluster) is to, SECONDS_MAX, f"{topic} has another owner")


def place_of(message_id: Any) -> tuple[int, int, int]:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def backlog(cluster: LocalCluster) -> int:
    stats = admin.get_json(f"{cluster.admin_url}/admin/v2/{path_of(SHADOW)}/stats")
    return int(stats["subscriptions"]["s"]["msgBacklog"])


class Taker(threading.Thread):
    """Takes and acknowledges until it has had so many different messages."""

    def __init__(self, consumer: Any, count: int) -> None:
        super().__init__()
        self.places: dict[int, tuple[int, int, int]] = {}
        """By the number of a message, in the order in which they came first."""
        self.moved: list[int] = []
        """Those that came again from another place."""
        self.error: Exception | None = None
        self._consumer = consumer
        self._count = count

    def run(self) -> None:
        try:
            while len(self.places) < self._count:
                message = self._consumer.receive(RECEIVE_MS_MAX)
                number, place = int(message.data()), place_of(message.message_id())
                if self.places.setdefault(number, place) != place:
                    self.moved.append(number)
                self._consumer.acknowledge(message)
        except Exception as error:  # noqa: BLE001  (whatever it is, the test tells it)
            self.error = error


@pytest.mark.parametrize("killed", [SHADOW, SOURCE], ids=["the shadow's broker", "the source's broker"])
def test_a_shadow_outlives_the_kill_of_a_broker_under_load(cluster: LocalCluster, killed: str) -> None:
    confirmed: dict[int, tuple[int, int, int]] = {}
    failed: list[object] = []

    def told(result: Any, message_id: Any, number: int) -> None:
        if result == pulsar.Result.Ok:
            confirmed[number] = place_of(message_id)
        else:
            failed.append(result)

    client = pulsar.Client(cluster.broker_service_url, logger=QUIET)
    consumer = client.subscribe(SHADOW, "s", initial_position=pulsar.InitialPosition.Earliest)
    taker = Taker(consumer, MESSAGES)
    taker.start()
    producer = client.create_producer(SOURCE, producer_name="p", block_if_queue_full=True, send_timeout_millis=0)
    for number in range(MESSAGES):
        producer.send_async(b"%d" % number, lambda result, place, number=number: told(result, place, number))
        if number in KILL_AFTER:
            # Whichever has it by now; what comes next waits for the next owner, or for this one.
            broker = owner_of(killed, cluster)
            broker.kill()
            broker.start()
    producer.flush()
    taker.join()
    assert taker.error is None
    assert not failed
    assert list(taker.places) == list(range(MESSAGES))
    assert not taker.moved
    # A receipt that was lost with a broker is of a duplicate: it says no place.
    assert {number: place for number, place in confirmed.items() if place[0] >= 0}.items() <= taker.places.items()
    assert len(confirmed) == MESSAGES
    wait_for(lambda: backlog(cluster) == 0, SECONDS_MAX, "what was acknowledged is not known")
    consumer.close()
    owner = owner_of(SHADOW, cluster)
    give(SHADOW, next(broker for broker in cluster.brokers if broker is not owner), cluster)
    again = client.subscribe(SHADOW, "s")
    with pytest.raises(pulsar.Timeout):
        again.receive(QUIET_MS)
    client.close()
