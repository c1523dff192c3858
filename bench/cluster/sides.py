"""A cluster of ours and one of Apache's from separate processes, behind one face; on disk before a receipt, both.

Apache's parts have lean heaps, the serial collector and both compilers: what they need to be at their best on a small
machine. Neither side sheds or splits bundles by itself while it is measured.
"""

from __future__ import annotations

import contextlib
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from magnetar.core.bundle import NamespaceBundles
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.testing import ZookeeperServer
from magnetar.net.free_ports import free_port

from bench.bookies.fleet import MeasuredApacheBookie
from e2e import processes
from e2e.cluster import admin
from e2e.cluster.local import LocalCluster, Size, start_all
from e2e.interchange.apache import ApacheBroker, initialize_cluster
from e2e.interchange.parts import READY_PATH, jvm_environment
from e2e.part import Part
from e2e.peers import distribution
from e2e.processes import wait_for

OURS, REFERENCE = "magnetar", "apache"
SESSION_MS = 6_000
LEAN_JVM = "-Xms64m -Xmx512m -XX:MaxDirectMemorySize=512m"
LEAN_COLLECTOR = "-XX:+UseSerialGC"
PREFIXES_TRIED = 2_000
NAMESPACE_SECONDS_MAX = 60.0
START_SECONDS_MAX = 240.0
"""Three JVMs that start side by side on a machine that has other work take more than a minute."""

STEADY = {"loadBalancerSheddingEnabled": "false", "loadBalancerAutoBundleSplitEnabled": "false"}
"""For both: nothing moves unless it is told to."""


class BrokerLike(Protocol):
    """A broker of either side."""

    folder: Path
    port: int
    id: str
    service_url: str
    admin_url: str

    @property
    def pids(self) -> list[int]: ...

    def kill(self) -> None: ...

    def start(self) -> None: ...


class Side(Protocol):
    """A cluster that runs."""

    @property
    def name(self) -> str:
        """Which column of the table this is."""
        ...

    @property
    def brokers(self) -> Sequence[BrokerLike]: ...

    @property
    def pids(self) -> list[int]:
        """Of brokers and bookies, not of ZooKeeper."""
        ...


class LeanApacheBroker(ApacheBroker):
    """With a heap that it can keep up with."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PULSAR_MEM": LEAN_JVM, "PULSAR_GC": LEAN_COLLECTOR}

    def wait_until_ready(self) -> None:
        wait_for(lambda: not self.running or self.ready(), START_SECONDS_MAX, f"{self.folder.name} does not come up")
        assert self.running, f"{self.folder.name} ended while starting; the end of its log:\n{self.log_tail()}"


class LeanApacheProxy(Part):
    """`pulsar proxy` in front of whatever brokers the metadata store names."""

    def __init__(self, folder: Path, metadata_url: str, cluster: str) -> None:
        super().__init__(folder)
        self.port, self.http_port = free_port(), free_port()
        self.service_url = f"pulsar://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.http_port}"
        self.configuration = folder.with_suffix(".conf")
        self._settings = {
            "clusterName": cluster,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "servicePort": str(self.port),
            "webServicePort": str(self.http_port),
            "metadataStoreUrl": metadata_url,
            "configurationMetadataStoreUrl": metadata_url,
            "brokerProxyAllowedHostNames": "*",
            "brokerProxyAllowedIPAddresses": "127.0.0.1",
            "brokerProxyAllowedTargetPorts": "*",
        }

    def command(self) -> list[str]:
        return [str(distribution.home() / "bin" / "pulsar"), "proxy"]

    def environment(self) -> dict[str, str]:
        lean = {"PULSAR_MEM": LEAN_JVM, "PULSAR_GC": LEAN_COLLECTOR}
        return {**jvm_environment(self.folder.parent / "logs"), **lean, "PULSAR_PROXY_CONF": str(self.configuration)}

    def launch(self) -> None:
        distribution.configure(distribution.home() / "conf" / "proxy.conf", self.configuration, self._settings)
        super().launch()

    def ready(self) -> bool:
        return processes.accepts(self.port) and processes.answers(f"{self.admin_url}{READY_PATH}")


class OurSide:
    """`LocalCluster` as a side."""

    name = OURS

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    @property
    def brokers(self) -> Sequence[BrokerLike]:
        return self.cluster.brokers

    @property
    def pids(self) -> list[int]:
        return [pid for part in (*self.cluster.bookies, *self.cluster.brokers) for pid in part.pids]


@dataclass(frozen=True, slots=True)
class Shape:
    """How many of each, the cluster's name, and what the brokers of both sides have beside `STEADY`."""

    brokers: int = 1
    bookies: int = 1
    cluster: str = "local"
    settings: Mapping[str, str] = field(default_factory=dict)


class ApacheSide:
    """Apache's bookies and brokers over a ZooKeeper."""

    name = REFERENCE

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._folder = folder
        self._cluster = shape.cluster
        self._zookeeper = ZookeeperServer(folder / "zookeeper")
        uri = f"metadata-store:zk:{self._zookeeper.address}"
        self.bookies = [MeasuredApacheBookie(folder / f"bookie-{n}", uri, {}) for n in range(shape.bookies)]
        replicas = min(3, shape.bookies)
        settings = {
            **STEADY,
            "clusterName": shape.cluster,
            "loadBalancerEnabled": "true",
            "managedLedgerCacheSizeMB": "128",
            "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
            **shape.settings,
        }
        quorums = (replicas, replicas, max(1, replicas - 1))
        self.brokers: list[LeanApacheBroker] = [
            LeanApacheBroker(folder / f"broker-{n}", self._zookeeper.address, quorums, settings)
            for n in range(shape.brokers)
        ]

    @property
    def pids(self) -> list[int]:
        return [pid for part in (*self.bookies, *self.brokers) for pid in part.pids]

    def start(self) -> None:
        self._zookeeper.start()
        initialize_cluster(self._zookeeper.address, self._cluster, self._folder / "logs")
        start_all(self.bookies)
        start_all(self.brokers)

    def kill(self) -> None:
        for part in (*self.brokers, *self.bookies):
            part.kill()
        self._zookeeper.kill()


@contextlib.contextmanager
def running(name: str, folder: Path, shape: Shape) -> Iterator[Side]:
    """A started cluster of one side, gone afterwards."""
    if name == OURS:
        size = Size(bookies=shape.bookies, brokers=shape.brokers, proxies=0)
        with LocalCluster(folder, size, name=shape.cluster, broker_settings={**STEADY, **shape.settings}) as cluster:
            cluster.start()
            yield OurSide(cluster)
        return
    side = ApacheSide(folder, shape)
    try:
        side.start()
        yield side
    finally:
        side.kill()


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace cut into equal bundles, and where its bundles are."""

    side: Side
    name: str
    bundles: NamespaceBundles

    def spread_prefix(self, topics: int) -> str:
        """A prefix with which the topics `PREFIX-0`, `PREFIX-1` … fall as evenly into the bundles as they can.

        If no prefix that is tried does it best, the best one tried."""
        best, most_seen = "", topics + 1
        wanted = -(-topics // len(self.bundles.bundles))
        for number in range(PREFIXES_TRIED):
            prefix = f"persistent://{self.name}/load{number}"
            counts: dict[object, int] = {}
            for index in range(topics):
                bundle = self.bundles.bundle_of(TopicName.parse(f"{prefix}-{index}"))
                counts[bundle] = counts.get(bundle, 0) + 1
            most = max(counts.values())
            if most < most_seen:
                best, most_seen = prefix, most
            if most == wanted:
                break
        return best

    def spread(self) -> None:
        """Have the brokers own as many of the bundles each."""
        for number, bundle in enumerate(self.bundles.bundles):
            wanted = self.side.brokers[number % len(self.side.brokers)]
            self._move(f"{self.name}/{bundle.range}", str(bundle.range), wanted)

    def _move(self, bundle: str, bundle_range: str, wanted: BrokerLike) -> None:
        topic = next(
            text
            for number in range(100_000)
            if str(self.bundles.bundle_of(TopicName.parse(text := f"persistent://{self.name}/probe-{number}")).range)
            == bundle_range
        )

        def there() -> bool:
            with contextlib.suppress(urllib.error.URLError):
                if owner(self.side, topic) == wanted.service_url:
                    return True
                path = f"/admin/v2/namespaces/{bundle}/unload?destinationBroker={wanted.id}"
                admin.call("PUT", self.side.brokers[0].admin_url + path)
            return False

        wait_for(there, NAMESPACE_SECONDS_MAX, f"{bundle} does not go to {wanted.id}")


def new_namespace(side: Side, name: str, bundles: int) -> Namespace:
    """Create it, with that many bundles."""
    url = f"{side.brokers[0].admin_url}/admin/v2/namespaces/{name}"

    def created() -> bool:
        # Apache's broker serves before its cluster's default tenant is known to it.
        with contextlib.suppress(urllib.error.HTTPError):
            admin.call("PUT", url, {"bundles": {"numBundles": bundles}})
            return True
        return False

    wait_for(created, NAMESPACE_SECONDS_MAX, f"{name} cannot be created")
    boundaries = admin.get_json(f"{url}/bundles")["boundaries"]
    return Namespace(side, name, NamespaceBundles(NamespaceName.parse(name), boundaries))


def owner(side: Side, topic: str) -> str:
    """The service URL of the broker that serves a topic; it takes it if none does. URLError when nobody can tell."""
    path = "/lookup/v2/topic/" + topic.replace("://", "/")
    url: str = admin.get_json(side.brokers[0].admin_url + path)["brokerUrl"]
    return url


def service_url(side: Side) -> str:
    """All brokers, for clients."""
    return "pulsar://" + ",".join(broker.service_url.removeprefix("pulsar://") for broker in side.brokers)
