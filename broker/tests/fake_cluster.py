"""Brokers that have load management alone, for tests: what they own are dictionaries, their calls are methods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from magnetar.admin_client.client import AdminAnswer
from magnetar.admin_client.errors import AdminRefused
from magnetar.broker.bundles.owned_bundles import OwnedBundle
from magnetar.broker.load.drain import Drains
from magnetar.broker.load.manager import LoadParts, ModularLoadManager
from magnetar.broker.load.operations import BrokerOperations
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.policies.ensembles import Ensemble
from magnetar.broker.resources import Documents
from magnetar.broker.settings.load import LoadSettings
from magnetar.core.bundle import BundleName, BundleRange
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import NamespaceName
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree

SETTINGS: Final = LoadSettings(report_interval_ms_min=1, round_seconds=3600, unloads_per_second_max=10_000)


def owned_bundle() -> OwnedBundle:
    """One without topics; nobody asks what it is called."""
    return OwnedBundle(BundleName.parse("public/default/0x00000000_0xffffffff"), 0, None)


class FakeBroker:
    """A broker with load management alone: what it owns is a dictionary."""

    def __init__(self, cluster: FakeCluster, port: int, settings: LoadSettings) -> None:
        self.cluster = cluster
        self.store = cluster.first_store.another_session()
        self.bundles: dict[BundleName, OwnedBundle] = {}
        self.stuck: set[BundleName] = set()
        self.splits: list[tuple[BundleName, str, list[int] | None, bool]] = []
        self.addresses = BrokerAddresses(
            broker_id=f"b{port}:{port}",
            service_url=f"pulsar://b{port}:1{port}",
            service_url_tls=None,
            web_service_url=f"http://b{port}:{port}",
            web_service_url_tls=None,
        )
        self.load = ModularLoadManager(
            LoadParts(
                settings=settings,
                addresses=self.addresses,
                cluster="c",
                version="4.0.8",
                store=self.store,
                configuration_store=self.store,
                clock=cluster.clock,
                peers=cluster,
                owned=self.owned,
                find_owner=cluster.find_owner,
                # A host that tells nothing: what this machine does must not decide here.
                host_root=Path("/nowhere"),
            )
        )
        self.drains = Drains(self.load, self, self, settings)
        self.operations = BrokerOperations(
            self.load, self.owned, self, self.drains, Documents(self.store), self.largest
        )

    @property
    def id(self) -> str:
        return self.addresses.broker_id

    def owned(self) -> Mapping[BundleName, OwnedBundle]:
        return self.bundles

    async def unload(self, bundle: BundleName, *, destination: str | None = None) -> None:
        if bundle in self.stuck:
            raise AdminRefused(500, "it is stuck")
        await asyncio.sleep(0)
        del self.bundles[bundle]
        if destination is not None:
            self.cluster.by_id[destination].bundles[bundle] = owned_bundle()

    async def split(
        self, bundle: BundleName, algorithm: str, *, boundaries: list[int] | None = None, unload: bool = False
    ) -> None:
        self.splits.append((bundle, algorithm, boundaries, unload))

    async def largest(self) -> Ensemble:
        return Ensemble(4, "namespace a/b")

    async def close(self) -> None:
        await self.drains.close()
        await self.load.close()
        await self.store.close()


class JumpingClock(SystemClock):
    """The machine's clocks; the wall's may be wrong."""

    def __init__(self) -> None:
        self.wrong_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.wrong_ms


class FakeCluster:
    """The brokers, and how they call each other."""

    def __init__(self) -> None:
        self.first_store = MemoryMetadataStore(MemoryTree())
        self.clock = JumpingClock()
        self.by_id: dict[str, FakeBroker] = {}
        self.calls: list[tuple[str, str, str, dict[str, str]]] = []
        self.refusing = False

    def make_broker(self, port: int, settings: LoadSettings = SETTINGS) -> FakeBroker:
        broker = FakeBroker(self, port, settings)
        self.by_id[broker.id] = broker
        return broker

    async def start(self, *ports: int, settings: LoadSettings = SETTINGS) -> list[FakeBroker]:
        brokers = [self.make_broker(port, settings) for port in ports]
        for broker in brokers:
            await broker.load.start()
        await until(lambda: all(len(broker.load.brokers()) == len(self.by_id) for broker in self.by_id.values()))
        return brokers

    async def find_owner(self, bundle: BundleName) -> str | None:
        return next((broker.id for broker in self.by_id.values() if bundle in broker.bundles), None)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        base_url: str | None = None,
    ) -> AdminAnswer:
        assert (method, body) == ("PUT", None)
        self.calls.append((method, path, base_url or "", dict(query or {})))
        if self.refusing:
            raise AdminRefused(503, "try later")
        owner = next(broker for broker in self.by_id.values() if broker.addresses.web_service_url == base_url)
        name, _, verb = path.removeprefix("/admin/v2/namespaces/").rpartition("/")
        bundle = BundleName.parse(name)
        if verb == "unload":
            await owner.unload(bundle, destination=(query or {}).get("destinationBroker"))
        else:
            await owner.split(bundle, (query or {})["splitAlgorithmName"], unload=(query or {})["unload"] == "true")
        return AdminAnswer(204, b"")

    def url_of(self, broker: BrokerAddresses) -> str | None:
        return broker.web_service_url

    @property
    def leader(self) -> FakeBroker:
        return next(broker for broker in self.by_id.values() if broker.load.leading)

    def reports_are_true(self) -> bool:
        """Whether the leader knows what everybody owns."""
        known = self.leader.load.directory.reports
        return all(len(broker.bundles) == len(known[broker.id].bundles) for broker in self.by_id.values())

    async def close(self) -> None:
        for broker in self.by_id.values():
            await broker.close()
        await self.first_store.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait, five seconds at most."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def bundles(count: int, namespace: str = "t/n") -> list[BundleName]:
    """A namespace cut in so many."""
    step = (1 << 32) // count
    name = NamespaceName.parse(namespace)
    bounds = [index * step for index in range(count)] + [0xFFFFFFFF]
    return [BundleName(name, BundleRange(bounds[index], bounds[index + 1])) for index in range(count)]
