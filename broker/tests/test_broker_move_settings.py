"""Moves and splits by hand follow the settings of load management."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from magnetar.balance.settings import BalanceSettings, SplitSettings
from magnetar.balance.split_algorithms import BadSplit
from magnetar.broker.testing.clusters import MemoryCluster
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.broker.topics.producer_admission import ProducerAdmission
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import TopicName

TOPICS = [f"persistent://public/default/t{number}" for number in range(60)]
BY_TOPICS = "topic_count_equally_divide"
RANGES = "range_equally_divide"


async def load_bundle(broker: MemoryBroker) -> BundleName:
    """A bundle with a few topics."""
    found: BundleName | None = None
    for topic in TOPICS:
        bundle = await broker.running.context.bundles.bundle_of(TopicName.parse(topic))
        if found is None or bundle == found:
            found = bundle
            await broker.service.topic(TopicName.parse(topic), create=True)
    assert found is not None
    return found


async def test_splits_by_hand_follow_the_settings() -> None:
    only = BalanceSettings(split=SplitSettings(algorithm=BY_TOPICS, algorithms=(BY_TOPICS,)))
    async with MemoryBroker(balance=only) as broker, aiohttp.ClientSession(broker.admin_url) as session:
        bundle = await load_bundle(broker)
        moves = broker.running.context.moves
        with pytest.raises(BadSplit, match=BY_TOPICS):
            await moves.split(bundle, RANGES)
        path = f"/admin/v2/namespaces/{bundle}/split"
        async with session.put(path, params={"splitAlgorithmName": RANGES}) as answer:
            refusal: Any = await answer.json()
            assert answer.status == 412
            assert refusal["reason"].endswith(f"supported algorithms are [{BY_TOPICS}]")
        async with session.put(path) as answer:
            assert answer.status == 204
        owned = [name for name in broker.running.context.ownership.owned() if name.namespace == bundle.namespace]
        counts = [len(broker.running.context.ownership.owned()[name].topics) for name in owned]
        assert len(owned) == 2
        assert max(counts) - min(counts) <= 1
        middle = bundle.range.low + (bundle.range.high - bundle.range.low) // 2
        assert owned[0].range.high != middle


async def test_an_unload_may_take_as_long_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: ProducerAdmission) -> None:
        await asyncio.Event().wait()

    async with MemoryBroker(balance=BalanceSettings(unloading_timeout_ms=50)) as broker:
        bundle = await load_bundle(broker)
        client = await broker.connect()
        (name, *_) = broker.running.context.ownership.owned()[bundle].topics
        await client.producer(name)
        with monkeypatch.context() as patched:
            patched.setattr(ProducerAdmission, "drain", never)
            async with asyncio.timeout(30):
                await broker.running.context.moves.unload(bundle)
        assert bundle not in broker.running.context.ownership.owned()


async def test_what_a_broker_runs_with_has_the_settings_of_balance() -> None:
    settings = BalanceSettings(unloading_timeout_ms=50, split=SplitSettings(namespace_bundles_max=64))
    async with (
        MemoryBroker(balance=settings) as broker,
        aiohttp.ClientSession(broker.admin_url) as session,
        session.get("/admin/v2/brokers/configuration/runtime") as answer,
    ):
        told = await answer.json()
    assert told["namespaceBundleUnloadingTimeoutMs"] == "50"
    assert told["loadBalancerNamespaceMaximumBundles"] == "64"
    assert told["loadBalancerLoadSheddingStrategy"] == "BalancedShedder"
    assert told["loadBalancerSheddingEnabled"] == "true"
    assert all(isinstance(value, str) for value in told.values())


async def test_brokers_without_settings_have_the_defaults() -> None:
    async with MemoryCluster(1) as cluster:
        bundle = await load_bundle(cluster[0])
        assert len(await cluster[0].running.context.moves.split(bundle)) == 2
