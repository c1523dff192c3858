"""The clusters that the walk is taken through: three of our brokers, which redirect each other's, or Apache's one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.local import LocalCluster, Size
from e2e.interchange import apache, parts
from e2e.interchange.apache import ApacheBroker
from e2e.interchange.cluster import Cluster
from e2e.peers import distribution

CLUSTER = "local"
SIZE = Size(zookeepers=1, bookies=3, brokers=3, proxies=0)
QUORUMS = (3, 3, 2)
FILES = Path(__file__).parent / "schemas"
# Both walks take longer than an unused topic would be kept.
SETTINGS = {
    "brokerDeleteInactiveTopicsEnabled": "false",
    "loadBalancerSheddingEnabled": "false",
    "forceDeleteNamespaceAllowed": "true",
    "forceDeleteTenantAllowed": "true",
}
# Its load is managed, unlike that of the other tests' brokers: it is to report and lead. The shipped settings name a
# file without a name that is to exist before the broker calls itself ready.
APACHE_SETTINGS = {**SETTINGS, "clusterName": CLUSTER, "loadBalancerEnabled": "true"}


@dataclass(frozen=True, slots=True)
class Target:
    """A running cluster: where tools and clients reach it, and what its own names are."""

    name: str
    admin_url: str
    service_url: str
    broker_ids: list[str]
    service_urls: list[str]
    bookie_ids: list[str]

    @property
    def words(self) -> dict[str, str]:
        """What steps' placeholders stand for."""
        library = distribution.home() / "lib"
        names = {"cluster": CLUSTER, "broker": self.broker_ids[0], "bookie": self.bookie_ids[0]}
        return {**names, "files": str(FILES), "library": str(library), "ledger": "0"}

    @property
    def written(self) -> dict[str, str]:
        """What is written in place of its own addresses."""
        urls = {url.removeprefix("pulsar://"): "broker:6650" for url in self.service_urls}
        brokers = dict.fromkeys(self.broker_ids, "broker:8080")
        return {**brokers, **urls, **dict.fromkeys(self.bookie_ids, "bookie:3181"), str(FILES): "files"}


@contextlib.contextmanager
def running(name: str) -> Iterator[Target]:
    """`magnetar` or `apache`; gone afterwards. MAGNETAR_E2E_SERVER decides where `name` is empty."""
    chosen = name or os.environ.get("MAGNETAR_E2E_SERVER", "magnetar")
    with tempfile.TemporaryDirectory(prefix=f"admin-cli-{chosen}-") as folder:
        context = _apache(Path(folder)) if chosen == "apache" else _ours(Path(folder))
        with context as target:
            yield target


@contextlib.contextmanager
def _ours(folder: Path) -> Iterator[Target]:
    with LocalCluster(folder, SIZE, name=CLUSTER, broker_settings=SETTINGS) as cluster:
        cluster.start()
        yield Target(
            "magnetar",
            cluster.brokers[0].admin_url,
            cluster.broker_service_url,
            [broker.id for broker in cluster.brokers],
            [broker.service_url for broker in cluster.brokers],
            [bookie.id for bookie in cluster.bookies],
        )


@contextlib.contextmanager
def _apache(folder: Path) -> Iterator[Target]:
    reason = parts.missing()
    assert reason is None, reason
    with Cluster(folder) as cluster:
        bookies = [cluster.apache_bookie(f"bookie-{number}") for number in range(SIZE.bookies)]
        address, settings = (
            cluster.zookeeper.address,
            {
                **APACHE_SETTINGS,
                "statusFilePath": __file__,
                "statsUpdateFrequencyInSecs": "1",
                "statsUpdateInitialDelayInSecs": "1",
            },
        )
        broker = cluster.keep(ApacheBroker(folder / "broker", address, QUORUMS, settings))
        urls = (broker.admin_url, broker.service_url)
        apache.initialize_cluster(address, CLUSTER, folder / "logs", urls)
        cluster.start(*bookies)
        cluster.start(broker)
        yield Target(
            "apache",
            broker.admin_url,
            broker.service_url,
            [broker.id],
            [broker.service_url],
            [bookie.id for bookie in bookies],
        )
