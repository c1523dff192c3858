from __future__ import annotations

import asyncio

import pytest
from magnetar.spark import cluster
from magnetar.spark.cluster import ClusterConnections, close_clusters, cluster_of
from magnetar.spark.options.connection import ConnectionOptions

OPTIONS = ConnectionOptions(service_url="pulsar://127.0.0.1:1")


async def test_a_process_has_one_and_closes_those_unused_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CLUSTERS_MAX", 2)
    others = [ConnectionOptions(service_url=f"pulsar://127.0.0.1:{port}") for port in (2, 3)]
    first, second = await cluster_of(OPTIONS), await cluster_of(others[0])
    assert await cluster_of(OPTIONS) is first
    await cluster_of(others[1])
    assert await cluster_of(OPTIONS) is first
    assert await cluster_of(others[0]) is not second
    await close_clusters()
    assert await cluster_of(OPTIONS) is not first
    await close_clusters()


def test_a_fork_leaves_alone_what_its_parent_has_open() -> None:
    closed: list[ClusterConnections] = []

    async def opened() -> ClusterConnections:
        return await cluster_of(OPTIONS)

    async def forked(parents: ClusterConnections) -> None:
        own = await cluster_of(OPTIONS)
        assert own is not parents
        assert await cluster_of(OPTIONS) is own
        await close_clusters()
        assert not closed

    # A fork has its parent's memory, and an event loop of its own.
    parents = asyncio.run(opened())
    parents.close = lambda: closed.append(parents)  # type: ignore[method-assign, assignment, return-value]
    asyncio.run(forked(parents))
