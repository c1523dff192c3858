"""Our proxy before Apache's broker, and Apache's proxy before ours: stock clients and the admin API go through."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from magnetar.net.free_ports import free_port

from e2e import processes
from e2e.faults.support import client_of
from e2e.interchange import brokers, parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.ours import PROGRAM
from e2e.interchange.parts import CLUSTER, READY_PATH, SESSION_MS, BrokerPart, jvm_environment
from e2e.part import Part
from e2e.peers import distribution

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(300)]

ONE_COPY = (1, 1, 1)
COUNT = 1_000


class ProxyPart(Part):
    """A proxy of either side: Apache's shipped `proxy.conf` with a few lines changed."""

    def __init__(self, folder: Path, zookeeper: str, **settings: str) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.http_port = free_port()
        self.service_url = f"pulsar://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.http_port}"
        self.configuration = folder.with_suffix(".conf")
        self._settings = {
            "clusterName": CLUSTER,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "servicePort": str(self.port),
            "webServicePort": str(self.http_port),
            "metadataStoreUrl": f"zk:{zookeeper}",
            "configurationMetadataStoreUrl": f"zk:{zookeeper}",
            "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
            "brokerProxyAllowedHostNames": "*",
            "brokerProxyAllowedIPAddresses": "127.0.0.1",
            "brokerProxyAllowedTargetPorts": "*",
            **settings,
        }

    def launch(self) -> None:
        distribution.configure(distribution.home() / "conf" / "proxy.conf", self.configuration, self._settings)
        super().launch()

    def ready(self) -> bool:
        return processes.accepts(self.port) and processes.answers(f"{self.admin_url}{READY_PATH}")


class OurProxy(ProxyPart):
    """`magnetar proxy run`."""

    def command(self) -> list[str]:
        # Apache's file switches the second off; it is our default where brokers register.
        settings = ["--set", "controlEnabled=false", "--set", "checkActiveBrokers=true"]
        return [PROGRAM, "proxy", "run", "--conf", str(self.configuration), *settings]


class ApacheProxy(ProxyPart):
    """`pulsar proxy`."""

    def command(self) -> list[str]:
        return [str(distribution.home() / "bin" / "pulsar"), "proxy"]

    def environment(self) -> dict[str, str]:
        return {**jvm_environment(self.folder.parent / "logs"), "PULSAR_PROXY_CONF": str(self.configuration)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """ZooKeeper, a bookie, and what brokers want to find."""
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path) as running:
        running.initialize_pulsar()
        running.start(running.our_bookie("bookie"))
        yield running


def our_proxy(cluster: Cluster, **settings: str) -> tuple[BrokerPart, ProxyPart]:
    broker = cluster.apache_broker(ONE_COPY, **settings)
    return broker, cluster.keep(OurProxy(cluster.folder / "our-proxy", cluster.zookeeper.address, **settings))


def apache_proxy(cluster: Cluster, **settings: str) -> tuple[BrokerPart, ProxyPart]:
    broker = cluster.our_broker(ONE_COPY, **settings)
    return broker, cluster.keep(ApacheProxy(cluster.folder / "apache-proxy", cluster.zookeeper.address, **settings))


Sides = Callable[..., tuple[BrokerPart, ProxyPart]]
EACH_BEFORE_THE_OTHER = pytest.mark.parametrize("sides", [our_proxy, apache_proxy])


def ask(url: str, method: str = "GET", body: object = None) -> Any:
    """The decoded answer of the admin API."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {url}: {error.code} {error.read()!r}") from error
    return json.loads(content) if content else None


@EACH_BEFORE_THE_OTHER
def test_clients_and_tools_go_through(cluster: Cluster, sides: Sides) -> None:
    broker, proxy = sides(cluster)
    brokers.start_with_namespace(cluster, broker)
    cluster.start(proxy)
    admin = f"{proxy.admin_url}/admin/v2/persistent/public/default"
    ask(f"{admin}/parts/partitions", "PUT", 3)
    with client_of(proxy) as client:
        exchange(client, "plain", batching_enabled=True)
        exchange(client, "parts", batching_enabled=False)
        # Topics of a namespace are listed over the lookup connection.
        consumer = client.subscribe(
            re.compile("persistent://public/default/pl.*"), "pattern", initial_position=pulsar.InitialPosition.Earliest
        )
        assert consumer.receive(20_000).data() == b"0"
        stats = ask(f"{admin}/plain/stats")
        assert stats["msgInCounter"] == COUNT
        (address,) = {publisher["address"] for publisher in stats["publishers"]}
        assert address.startswith("/127.0.0.1:")
        assert len(ask(f"{proxy.admin_url}/proxy-stats/connections")) >= 1
    with urllib.request.urlopen(f"{proxy.admin_url}/metrics/") as answer:
        text = answer.read().decode()
    counted = re.search(r"^pulsar_proxy_binary_bytes_total\{cluster=\"interchange\"\} (\S+)", text, re.MULTILINE)
    assert counted is not None
    assert float(counted[1]) > COUNT


@EACH_BEFORE_THE_OTHER
def test_brokers_learn_the_clients_address_by_proxy_headers(cluster: Cluster, sides: Sides) -> None:
    broker, proxy = sides(cluster, haProxyProtocolEnabled="true")
    brokers.start_with_namespace(cluster, broker)
    cluster.start(proxy)
    with client_of(proxy) as client:
        producer = client.create_producer("seen")
        producer.send(b"hello")
        url = f"{broker.admin_url}/admin/v2/persistent/public/default/seen/stats"
        (connection,) = ask(f"{proxy.admin_url}/proxy-stats/connections")
        (publisher,) = ask(url)["publishers"]
        assert publisher["address"].lstrip("/") == connection["clientAddress"].lstrip("/")


@EACH_BEFORE_THE_OTHER
def test_a_client_survives_its_broker(cluster: Cluster, sides: Sides) -> None:
    broker, proxy = sides(cluster)
    brokers.start_with_namespace(cluster, broker)
    cluster.start(proxy)
    with client_of(proxy) as client:
        consumer = client.subscribe("survives", "all")
        producer = client.create_producer("survives", send_timeout_millis=120_000)
        producer.send(b"before")
        broker.kill()
        cluster.start(broker)
        producer.send(b"after")
        received = {consumer.receive(20_000).data()}
        while b"after" not in received:
            received.add(consumer.receive(20_000).data())
        assert received == {b"before", b"after"}


def exchange(client: Any, topic: str, **options: Any) -> None:
    """Publish and receive; each partition keeps its order."""
    consumer = client.subscribe(topic, "all")
    producer = client.create_producer(topic, block_if_queue_full=True, **options)
    failed: list[object] = []
    for number in range(COUNT):
        producer.send_async(
            b"%d" % number, lambda result, _: failed.append(result) if result != pulsar.Result.Ok else None
        )
    producer.flush()
    received: list[bytes] = []
    for _ in range(COUNT):
        message = consumer.receive(20_000)
        consumer.acknowledge(message)
        received.append(message.data())
    assert sorted(map(int, received)) == list(range(COUNT))
    assert not failed
    consumer.close()
