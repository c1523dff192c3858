"""Brokers of ours that only read, beside a broker that writes: Apache's with its own settings, and ours."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace
from typing import Any, Final

import pulsar
import pytest

from e2e import corpus
from e2e.clients import builds
from e2e.cluster import admin
from e2e.faults.support import client_of
from e2e.interchange import brokers, parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.ours import OurBroker
from e2e.interchange.parts import BrokerPart
from e2e.processes import wait_for
from e2e.run_clients import Run, drive, verdict
from e2e.workload import SubscriptionType, Workload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TOPIC: Final = "persistent://public/default/read"
QUORUMS: Final = (1, 1, 1)
SUBSCRIPTION: Final = "readers"
PATIENCE_MS: Final = 60_000
QUIET_MS: Final = 2_000
BURST: Final = 40
MESSAGES: Final = 3_000
CLIENT_SECONDS_MAX: Final = 180.0
MOVED_SECONDS_MAX: Final = 60.0
DELIVERED_SECONDS_MAX: Final = 5.0
"""A lone message through a writer of Apache's: a look, a question to the owner, a read; far less, but for the load."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path / "cluster") as running:
        running.initialize_pulsar(transaction_coordinators=1)
        running.start(running.our_bookie("bookie"))
        yield running


def read_only(cluster: Cluster, name: str) -> OurBroker:
    """A broker that only reads; nothing but its own settings knows of it."""
    settings = {"readOnlyBrokerEnabled": "true"}
    return cluster.keep(OurBroker(cluster.folder / name, cluster.zookeeper.address, QUORUMS, settings))


def receive(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(PATIENCE_MS) for _ in range(count)]


def numbers(messages: list[Any]) -> list[int]:
    return [int(one.data()) for one in messages]


def nothing_more(consumer: Any) -> bool:
    try:
        message = consumer.receive(QUIET_MS)
    except pulsar.Timeout:
        return True
    raise AssertionError(f"{message.data()!r} comes again")


def subscribe(client: Any, **options: Any) -> Any:
    given = {"consumer_type": pulsar.ConsumerType.Shared, "negative_ack_redelivery_delay_ms": 100, **options}
    return client.subscribe(TOPIC, SUBSCRIPTION, **given)


def serves(broker: BrokerPart) -> bool:
    """Whether a broker that only reads serves the subscription."""
    path = f"/admin/v2/persistent/{TOPIC.removeprefix('persistent://')}/stats"
    return SUBSCRIPTION in json.loads(admin.call("GET", broker.admin_url + path))["subscriptions"]


def moves_between(cluster: Cluster, writer: BrokerPart) -> None:
    """A subscription goes from the first to the second, and to the broker that writes: nothing lost, nothing again."""
    first, second = read_only(cluster, "first"), read_only(cluster, "second")
    cluster.start(first, second)
    with client_of(writer) as client, client_of(first) as one, client_of(second) as other:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(BURST):
            producer.send(b"%d" % number)

        consumer = subscribe(one, initial_position=pulsar.InitialPosition.Earliest)
        messages = receive(consumer, BURST)
        assert numbers(messages) == list(range(BURST))
        for message in messages:
            if int(message.data()) % 3:
                consumer.acknowledge(message)
        producer.send(b"%d" % BURST)  # Alone, and the writer is idle afterwards.
        began = time.monotonic()
        assert numbers(receive(consumer, 1)) == [BURST]
        assert time.monotonic() - began < DELIVERED_SECONDS_MAX
        consumer.close()

        expected = [*range(0, BURST, 3), BURST]
        wait_for(lambda: not serves(first), MOVED_SECONDS_MAX, "the first broker keeps its subscription")
        consumer = subscribe(other)
        messages = receive(consumer, len(expected))
        assert sorted(numbers(messages)) == expected
        assert nothing_more(consumer)
        for message in messages:
            if int(message.data()) % 2:
                consumer.acknowledge(message)
        consumer.close()

        expected = [number for number in expected if number % 2 == 0]
        wait_for(lambda: not serves(second), MOVED_SECONDS_MAX, "the second broker keeps its subscription")
        consumer = subscribe(client)
        assert sorted(numbers(receive(consumer, len(expected)))) == expected
        assert nothing_more(consumer)
        consumer.close()


def test_subscriptions_move_beside_a_writer_of_apaches(cluster: Cluster) -> None:
    writer = cluster.apache_broker(QUORUMS)
    brokers.start_with_namespace(cluster, writer)
    moves_between(cluster, writer)


def test_subscriptions_move_beside_a_writer_of_ours(cluster: Cluster) -> None:
    writer = cluster.our_broker(QUORUMS)
    brokers.start_with_namespace(cluster, writer)
    moves_between(cluster, writer)


def test_a_broker_that_is_killed_leaves_its_subscription_to_another(cluster: Cluster) -> None:
    writer = cluster.apache_broker(QUORUMS)
    brokers.start_with_namespace(cluster, writer)
    first, second = read_only(cluster, "first"), read_only(cluster, "second")
    cluster.start(first, second)
    both = f"pulsar://127.0.0.1:{first.port},127.0.0.1:{second.port}"
    client = pulsar.Client(both)
    try:
        with client_of(writer) as writing:
            producer = writing.create_producer(TOPIC, batching_enabled=False)
            consumer = subscribe(client, initial_position=pulsar.InitialPosition.Earliest)
            seen: set[int] = set()
            for number in range(BURST):
                producer.send(b"%d" % number)
            for message in receive(consumer, BURST):
                seen.add(int(message.data()))
                consumer.acknowledge(message)
            assert serves(first) is not serves(second)
            (first if serves(first) else second).kill()
            for number in range(BURST, 2 * BURST):
                producer.send(b"%d" % number)
            while not set(range(2 * BURST)) <= seen:
                message = consumer.receive(PATIENCE_MS)
                seen.add(int(message.data()))
                consumer.acknowledge(message)
    finally:
        client.close()


class ReadElsewhere(Run):
    """Consumers have another service URL than producers."""

    reading: str = ""

    def spawn(self, mode: str) -> Popen[bytes]:
        self.service_url = self.reading if mode == "consume" else ""
        return super().spawn(mode)


# Java's client goes where the close notice says, by PIP-307; Go's as well; both after each was told to look up again.
@pytest.mark.parametrize("client", ["python", "java", "go"])
def test_all_consumers_of_a_subscription_come_to_one_broker(cluster: Cluster, client: str, tmp_path: Path) -> None:
    writer = cluster.our_broker(QUORUMS)
    brokers.start_with_namespace(cluster, writer)
    first, second = read_only(cluster, "first"), read_only(cluster, "second")
    cluster.start(first, second)
    builds.workload_command(client)
    workload = Workload(client, SubscriptionType.SHARED, True, "NONE", False, 0, False, count=MESSAGES)
    server: Any = SimpleNamespace(service_url=writer.service_url)
    this = ReadElsewhere(workload, server, tmp_path / "run", topic=TOPIC)
    this.reading = f"pulsar://127.0.0.1:{first.port},127.0.0.1:{second.port}"
    admin.call("PUT", f"{writer.admin_url}/admin/v2/persistent/{TOPIC.removeprefix('persistent://')}")
    this.folder.mkdir()
    corpus.write(this.folder / "corpus.txt", MESSAGES)
    drive(this, lambda under_way: None, CLIENT_SECONDS_MAX)
    assert verdict(this) == []
