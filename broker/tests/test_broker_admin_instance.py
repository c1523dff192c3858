"""Two clusters of one instance: what they share is in the configuration store, what is one's own in its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from magnetar.broker.app import RunningBroker, start_broker
from magnetar.broker.broker_parts import BrokerParts
from magnetar.broker.resources import Resources, initialize_cluster_metadata
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.clock import SystemClock
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.testing import MemoryBookies
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree

NAMESPACE = "/admin/v2/namespaces/t/n"


class Cluster:
    """One broker, its own store, and what it shares."""

    def __init__(self, name: str, instance: MemoryTree) -> None:
        self.name = name
        self.local = MemoryMetadataStore()
        self.shared = MemoryMetadataStore(instance)
        self.ledgers = BookKeeperClient(self.local, MemoryBookies(), SystemClock())
        self.running: RunningBroker | None = None

    async def start(self) -> None:
        resources = Resources(self.local, self.shared)
        await initialize_cluster_metadata(resources, self.name, {"serviceUrl": f"http://{self.name}:8080"})
        settings = BrokerSettings(cluster_name=self.name, broker_service_port=0, web_service_port=0)
        parts = BrokerParts(
            self.local, self.ledgers, SystemClock(), ManagedLedgerSettings(), configuration_store=self.shared
        )
        self.running = await start_broker(settings, parts)

    async def stop(self) -> None:
        assert self.running is not None
        await self.running.close()
        await self.ledgers.close()

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        assert self.running is not None
        url = self.running.settings.web_service_url + path
        data = None if body is None else json.dumps(body)
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, data=data, allow_redirects=False) as answer,
        ):
            if answer.status == 307:
                return 307, answer.headers["Location"]
            content = await answer.read()
            return answer.status, json.loads(content) if content else None


@pytest.fixture
async def clusters() -> AsyncIterator[tuple[Cluster, Cluster]]:
    tree = MemoryTree()
    east, west = Cluster("east", tree), Cluster("west", tree)
    await east.start()
    await west.start()
    yield east, west
    await west.stop()
    await east.stop()


async def test_what_is_shared_and_what_is_not(clusters: tuple[Cluster, Cluster]) -> None:
    east, west = clusters
    assert await east.ask("PUT", "/admin/v2/tenants/t", {"allowedClusters": ["east", "west"]}) == (204, None)
    assert await west.ask("PUT", NAMESPACE, {"replication_clusters": ["east", "west"]}) == (204, None)
    assert (await east.ask("POST", NAMESPACE + "/messageTTL", 7))[0] == 204
    assert await west.ask("GET", NAMESPACE + "/messageTTL") == (200, 7)
    assert (await west.ask("POST", NAMESPACE + "/publishRate", {"publishThrottlingRateInMsg": 5}))[0] == 204
    assert await east.ask("GET", NAMESPACE + "/publishRate") == (200, None), "each cluster has its own"
    assert not await east.local.exists("/admin/policies/t/n")
    assert await east.shared.exists("/admin/policies/t/n")
    # Each cluster cuts the namespace as it likes.
    await east.ask("PUT", NAMESPACE + "/0x00000000_0x40000000/split")
    assert (await east.ask("GET", NAMESPACE + "/bundles"))[1]["numBundles"] == 5
    assert (await west.ask("POST", NAMESPACE + "/antiAffinity", "group"))[0] == 204
    assert (await east.ask("GET", NAMESPACE + "/antiAffinity"))[0] == 204
    assert (await west.ask("POST", "/admin/v2/brokers/configuration/maxTenants/9"))[0] == 200
    assert await east.ask("GET", "/admin/v2/brokers/configuration/values") == (200, {})


async def test_a_namespace_is_deleted_by_the_last_cluster_that_has_it(clusters: tuple[Cluster, Cluster]) -> None:
    east, west = clusters
    await east.ask("PUT", "/admin/v2/tenants/t", {"allowedClusters": ["east", "west"]})
    await east.ask("PUT", NAMESPACE, {"replication_clusters": ["east", "west"]})
    assert (await east.ask("DELETE", NAMESPACE))[0] == 412
    assert (await east.ask("POST", NAMESPACE + "/replication?force=true", ["west"]))[0] == 200
    status, location = await east.ask("DELETE", NAMESPACE)
    assert (status, location) == (307, f"http://west:8080{NAMESPACE}?authoritative=false")
    assert (await east.ask("PUT", NAMESPACE + "/unload"))[0] == 412, "it is not in this cluster any more"
    assert (await east.ask("POST", "/admin/v2/clusters/east/peers", ["west"]))[0] == 204
    status, location = await east.ask("PUT", NAMESPACE + "/unload")
    assert (status, location) == (307, f"http://west:8080{NAMESPACE}/unload?authoritative=false")
    assert (await west.ask("DELETE", NAMESPACE))[0] == 204
    assert (await east.ask("GET", NAMESPACE))[0] == 404
