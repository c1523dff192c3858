"""Load management of real brokers in one process: the leader moves bundles by HTTP, drains keep topics served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from magnetar.broker.load.drain import BrokerDrainStep
from magnetar.broker.load.registration import BROKERS_PATH, draining_brokers
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.load import LoadSettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import TopicName

pytestmark = pytest.mark.slow

TOPICS = [f"persistent://public/default/t{index}" for index in range(80)]
"""Some in each of the namespace's sixteen bundles."""
SETTINGS = BrokerSettings(
    cluster_name="memory", load=LoadSettings(report_interval_ms_min=1, round_seconds=3600, unloads_per_second_max=1000)
)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(3, SETTINGS) as made:
        yield made


def own_id(broker: MemoryBroker) -> str:
    broker_id: str = broker.running.context.ownership.own.broker_id
    return broker_id


def leader_of(cluster: MemoryCluster) -> MemoryBroker:
    return next(broker for broker in cluster.brokers if broker.running.context.load.leading)


def owned_count(broker: MemoryBroker) -> int:
    return sum(name.namespace.name == "default" for name in broker.running.context.ownership.owned())


def reports_are_true(cluster: MemoryCluster) -> bool:
    """Whether the leader knows who owns what."""
    reports = leader_of(cluster).running.context.load.directory.reports
    return all(
        set(reports[own_id(broker)].bundles)
        == {str(name) for name in broker.running.context.ownership.owned() if name.namespace.tenant == "public"}
        for broker in cluster.brokers
    )


async def load_topics(cluster: MemoryCluster, at: MemoryBroker | None = None) -> None:
    for topic in TOPICS:
        if at is not None:
            await cluster.take(at, topic)
        broker = at or await cluster.lookup(cluster[0], topic)
        await broker.running.context.service.topic(TopicName.parse(topic), create=True)


async def get(broker: MemoryBroker, path: str) -> Any:
    url = broker.running.settings.web_service_url + path
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200, await answer.text()
        return await (answer.json() if answer.content_type.endswith("json") else answer.text())


async def test_lookups_spread_bundles_over_all_brokers(cluster: MemoryCluster) -> None:
    await load_topics(cluster)
    counts = sorted(owned_count(broker) for broker in cluster.brokers)
    assert sum(counts) == 16
    assert counts[0] >= 5
    document = await get(cluster[2], "/admin/v2/brokers/load-decisions")
    assert document["broker"] == document["leader"] == own_id(leader_of(cluster))
    assert len(document["placements"]) == 16
    assert (await get(cluster[2], "/admin/v2/brokers/load-decisions?local=true"))["placements"] == []
    text = await get(leader_of(cluster), "/metrics/")
    assert 'magnetar_lb_placements_total{cluster="memory"} 16' in text
    assert 'magnetar_lb_leading{cluster="memory"} 1' in text
    assert 'pulsar_lb_unload_bundle_total{cluster="memory",metric="bundleUnloading"} 0' in text


async def test_the_leader_evens_out_what_one_broker_has(cluster: MemoryCluster) -> None:
    busy = cluster[1]
    await load_topics(cluster, at=busy)
    assert owned_count(busy) == 16
    load = leader_of(cluster).running.context.load
    for _ in range(8):
        await until(lambda: reports_are_true(cluster))
        await load.balancing.round()
        for broker in cluster.brokers:
            broker.running.context.load.renew_report()
    counts = [owned_count(broker) for broker in cluster.brokers]
    assert max(counts) <= 8, load.balancing.outlook
    log = load.balancing.log
    assert {entry.outcome for entry in log.decisions} == {"done"}
    assert sum(counts) == 16


async def test_a_drained_broker_can_be_stopped_unnoticed(cluster: MemoryCluster) -> None:
    await load_topics(cluster)
    leaving = leader_of(cluster)
    context = leaving.running.context
    await context.operations.drain()
    await until(lambda: context.operations.drain_state().step is BrokerDrainStep.DONE)
    assert owned_count(leaving) == 0
    staying = [broker for broker in cluster.brokers if broker is not leaving]
    assert sum(map(owned_count, staying)) == 16
    assert min(map(owned_count, staying)) >= 6
    for topic in TOPICS[:8]:
        assert await cluster.lookup(leaving, topic) is not leaving
    await cluster.stop(leaving)
    await cluster.settled()


async def test_a_stopping_broker_leaves_nothing_behind(cluster: MemoryCluster) -> None:
    await load_topics(cluster)
    leaving = cluster[0]
    await cluster.stop(leaving)
    for topic in TOPICS:
        assert await cluster.lookup(cluster[0], topic) is not leaving
    assert sum(map(owned_count, cluster.brokers)) == 16


@pytest.mark.parametrize("drained_before", [False, True])
async def test_a_broker_that_is_told_to_stop_is_shown_as_draining(
    monkeypatch: pytest.MonkeyPatch, drained_before: bool
) -> None:
    async with MemoryCluster(2, SETTINGS) as cluster:
        leaving, staying = cluster[0], cluster[1]
        await load_topics(cluster, at=leaving)
        ownership = leaving.running.context.ownership
        release, go_on = ownership.release, asyncio.Event()

        async def release_later(name: BundleName) -> None:
            await go_on.wait()
            await release(name)

        monkeypatch.setattr(ownership, "release", release_later)
        if drained_before:
            await leaving.running.context.operations.drain()
            await leaving.running.context.operations.cancel_drain()
            await leaving.running.context.operations.drain()
        store = staying.running.context.load.parts.store
        stopping = asyncio.ensure_future(cluster.stop(leaving))

        async def is_shown() -> bool:
            shown = await draining_brokers(store)
            return own_id(leaving) in shown and shown[own_id(leaving)].draining

        async with asyncio.timeout(30):
            while not await is_shown():
                await asyncio.sleep(0.005)
        assert own_id(leaving) not in await store.children(BROKERS_PATH)
        # It is known while it still hands over.
        assert not stopping.done()
        go_on.set()
        await stopping
        assert await draining_brokers(store) == {}
        assert owned_count(staying) == 16


async def test_alone_a_broker_is_quick_to_stop() -> None:
    slow = replace(SETTINGS, load=replace(SETTINGS.load, unloads_per_second_max=1))
    async with MemoryCluster(1, slow) as cluster:
        await load_topics(cluster)
        assert owned_count(cluster[0]) == 16
