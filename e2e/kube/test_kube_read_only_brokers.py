"""Read-only brokers: what is published at the brokers is consumed at them, while they become more and fewer, are
updated, and over a cluster that is there already.

Lookups lead to pods by their addresses, which the machine of these tests reaches on a node of ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import pulsar
import pytest
from magnetar.operator.children.naming import READ_ONLY_BROKER

from e2e.kube.clusters import DeployedCluster
from e2e.kube.kubectl import Namespace, wait_for

LITTLE: Final = {"requests": {"cpu": "10m", "memory": "64Mi"}}
COME_SECONDS_MAX: Final = 60.0
"""Until what was published has come."""
SCALE_SECONDS_MAX: Final = 240.0
"""A minute of too many connections, twice, and pods that start."""
CONNECTIONS_MAX: Final = 4


def wish(**read_only: Any) -> dict[str, Any]:
    """A cluster of one bookie and one broker, with read-only brokers."""
    return {
        "replicas_of_bookies": 1,
        "bookkeeper": {"ensembleSize": 1, "writeQuorum": 1, "ackQuorum": 1},
        "readOnlyBrokers": {"resources": LITTLE, "service": {"type": "NodePort"}, **read_only},
    }


def status_of(cluster: DeployedCluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.resource()["status"]["readOnlyBrokers"]
    return found


def a_topic() -> str:
    return f"persistent://public/default/read-only-{time.time_ns()}"


@contextmanager
def client_of(url: str) -> Iterator[pulsar.Client]:
    """A stock client with connections of its own."""
    client = pulsar.Client(url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        client.close()


def publish(cluster: DeployedCluster, topic: str, numbers: range) -> None:
    """By the brokers, each acknowledged."""
    with client_of(cluster.service_url) as client:
        producer = client.create_producer(topic, send_timeout_millis=60_000)
        for number in numbers:
            producer.send(str(number).encode())
        producer.close()


def consumed(consumer: Any, count: int) -> list[int]:
    """So many messages, acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=int(COME_SECONDS_MAX * 1000))
        consumer.acknowledge(message)
        found.append(int(message.data()))
    return found


class Stream:
    """A producer at the brokers and a consumer at the read-only brokers that work until told to stop."""

    def __init__(self, cluster: DeployedCluster, read_only_url: str, topic: str) -> None:
        self.sent = 0
        self.received: list[int] = []
        self._over = threading.Event()
        with client_of(read_only_url) as client:
            # It has to be there before anybody follows it.
            publish(cluster, topic, range(1))
            self.sent = 1
            client.subscribe(
                topic, "stream", pulsar.ConsumerType.Failover, initial_position=pulsar.InitialPosition.Earliest
            ).close()
        self._urls = {self._produce: cluster.service_url, self._consume: read_only_url}
        self._topic = topic
        self._pool = ThreadPoolExecutor(2)
        self._works: list[Future[None]] = []

    def _produce(self, url: str, topic: str) -> None:
        with client_of(url) as client:
            producer = client.create_producer(topic, send_timeout_millis=60_000)
            while not self._over.wait(0.02):
                producer.send(str(self.sent).encode())
                self.sent += 1

    def _consume(self, url: str, topic: str) -> None:
        with client_of(url) as client:
            # An exclusive one would be refused while another broker still lets the subscription go.
            consumer = client.subscribe(topic, "stream", pulsar.ConsumerType.Failover)
            ends_at = time.monotonic() + 900
            while not (self._over.is_set() and len(set(self.received)) >= self.sent):
                assert time.monotonic() < ends_at, f"{len(set(self.received))} of {self.sent} came"
                try:
                    message = consumer.receive(timeout_millis=1000)
                except pulsar.Timeout:
                    if self._over.is_set():
                        ends_at = min(ends_at, time.monotonic() + COME_SECONDS_MAX)
                    continue
                self.received.append(int(message.data()))
                consumer.acknowledge(message)

    def wait_for_flow(self) -> None:
        """Until a message comes that was sent after this."""
        at_least = self.sent + 1
        wait_for("a message comes", lambda: at_least in self.received[-2000:] or self._ended(), COME_SECONDS_MAX)
        assert not self._ended()

    def _ended(self) -> bool:
        """Whether one has ended too early; what ended it is raised."""
        for work in self._works:
            if work.done():
                work.result()
        return any(work.done() for work in self._works)

    def __enter__(self) -> Stream:
        self._works = [self._pool.submit(work, url, self._topic) for work, url in self._urls.items()]
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._pool.shutdown()

    def check(self) -> None:
        """All came. What was consumed and not acknowledged when a broker stopped may come twice, never out of order
        the first time."""
        for work in self._works:
            work.result()
        assert list(dict.fromkeys(self.received)) == list(range(self.sent))


def test_consumers_get_all_that_is_published_and_keep_their_place(
    new_cluster: Callable[..., DeployedCluster],
) -> None:
    cluster = new_cluster(**wish(replicas=2))
    assert len(cluster.ready_pods(READ_ONLY_BROKER)) == 2
    topic = a_topic()
    publish(cluster, topic, range(500))
    with client_of(cluster.read_only_service_url) as client:
        consumer = client.subscribe(topic, "place", initial_position=pulsar.InitialPosition.Earliest)
        assert consumed(consumer, 500) == list(range(500))
        # The tail, as it is written.
        publish(cluster, topic, range(500, 600))
        assert consumed(consumer, 100) == list(range(500, 600))
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        read = [int(reader.read_next(timeout_millis=60_000).data()) for _ in range(600)]
        assert read == list(range(600))
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(topic)
        consumer.close()
    stats = f"/admin/v2/{topic.replace('://', '/')}/stats"

    def nothing_left() -> bool:
        backlog: int = cluster.admin("GET", stats)["subscriptions"]["place"]["msgBacklog"]
        return backlog == 0

    wait_for("the brokers know what was acknowledged", nothing_left, COME_SECONDS_MAX)
    # The subscription goes on at the brokers where it was left.
    publish(cluster, topic, range(600, 610))
    with client_of(cluster.service_url) as client:
        assert consumed(client.subscribe(topic, "place"), 10) == list(range(600, 610))
    found = status_of(cluster)
    assert (found["readyReplicas"], found["desiredReplicas"]) == (2, 2)
    assert all(member["connections"] >= 0 for member in found["members"])


def test_they_become_more_with_their_connections_and_fewer_again(
    new_cluster: Callable[..., DeployedCluster], note: Callable[[str], None]
) -> None:
    limits = {
        "minReplicas": 1,
        "maxReplicas": 3,
        "connectionsPerBrokerMax": CONNECTIONS_MAX,
        "stabilizationSeconds": 10,
    }
    cluster = new_cluster(**wish(autoscaling=limits))

    def ready(number: int) -> bool:
        return len(cluster.ready_pods(READ_ONLY_BROKER)) == len(cluster.pods(READ_ONLY_BROKER)) == number

    wait_for("one is there", lambda: ready(1), SCALE_SECONDS_MAX)
    with Stream(cluster, cluster.read_only_service_url, a_topic()) as stream:
        topic = a_topic()
        publish(cluster, topic, range(10))
        clients = [pulsar.Client(cluster.read_only_service_url) for _ in range(3 * CONNECTIONS_MAX)]
        try:
            for client in clients:
                client.create_reader(topic, pulsar.MessageId.earliest).read_next(timeout_millis=60_000)
            began = time.monotonic()
            wait_for("three are there", lambda: ready(3), SCALE_SECONDS_MAX)
            note(f"three after {time.monotonic() - began:.0f} s")
            assert "connections" in status_of(cluster)["lastScale"]["reason"]
            stream.wait_for_flow()
        finally:
            for client in clients:
                client.close()
        wait_for("one is left", lambda: ready(1), SCALE_SECONDS_MAX)
        stream.wait_for_flow()
    stream.check()
    events = cluster.events()
    assert any(event.startswith("ScaledOut: read-only brokers:") for event in events)
    assert any(event.startswith("ScaledIn: read-only brokers:") for event in events)


def test_a_restart_of_all_of_them_loses_nothing(new_cluster: Callable[..., DeployedCluster]) -> None:
    cluster = new_cluster(**wish(replicas=2))
    before = set(cluster.ready_pods(READ_ONLY_BROKER))
    with Stream(cluster, cluster.read_only_service_url, a_topic()) as stream:
        stream.wait_for_flow()
        cluster.apply(readOnlyBrokers={"pod": {"annotations": {"example.com/again": "1"}}})
        cluster.wait_ready()
        assert not before & set(cluster.ready_pods(READ_ONLY_BROKER))
        stream.wait_for_flow()
        # One that is killed without a word, too.
        victim = cluster.ready_pods(READ_ONLY_BROKER)[0]
        cluster.namespace("delete", "pod", victim, "--grace-period=0", "--force")
        wait_for("two are there", lambda: len(cluster.ready_pods(READ_ONLY_BROKER)) == 2, SCALE_SECONDS_MAX)
        stream.wait_for_flow()
    stream.check()


def test_attached_to_a_cluster_that_is_there(new_cluster: Callable[..., DeployedCluster], scratch: Namespace) -> None:
    other = new_cluster(**wish(replicas=0))
    spec = {
        "attach": {"clusterName": other.name},
        "metadata": {"url": f"zk:{other.name}-zookeeper:2181"},
        "readOnlyBrokers": {"replicas": 1, "resources": LITTLE, "service": {"type": "NodePort"}},
    }
    readers = DeployedCluster(scratch, "readers", spec)
    readers.apply()
    try:
        readers.wait_ready()
        for component in ("zookeeper", "bookie", "broker", "proxy", "init"):
            assert not readers.pods(component)
        with Stream(other, readers.read_only_service_url, a_topic()) as stream:
            stream.wait_for_flow()
        stream.check()
        assert "readers" not in other.admin("GET", "/admin/v2/clusters"), "nothing was written into its metadata"
    finally:
        readers.delete()
    # What others run runs on.
    topic = a_topic()
    publish(other, topic, range(10))
    assert other.is_ready()
