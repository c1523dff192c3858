"""Topics that are being loaded while their bundle changes hands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.errors import PulsarError

TOPIC = "persistent://public/default/t"


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(2) as running:
        yield running


class SlowOpen:
    """Managed ledgers are opened at once; who opened them hears of it when the gate is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cluster: MemoryCluster) -> None:
        self.gate = asyncio.Event()
        self.opened = asyncio.Event()
        ledgers = cluster[0].service.ledgers
        open_at_once = ledgers.open

        async def open_slowly(*arguments: Any, **named: Any) -> Any:
            ledger = await open_at_once(*arguments, **named)
            self.opened.set()
            await self.gate.wait()
            return ledger

        monkeypatch.setattr(ledgers, "open", open_slowly)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, cluster: MemoryCluster) -> Iterator[SlowOpen]:
    opening = SlowOpen(monkeypatch, cluster)
    yield opening
    opening.gate.set()


async def test_what_was_loaded_over_a_lost_session_is_not_served(cluster: MemoryCluster, slow: SlowOpen) -> None:
    """Though the bundle is ours again by then: another broker may have had it, and the topic, in between."""
    bundle = await cluster.take(cluster[0], TOPIC)
    loading = asyncio.create_task(cluster[0].service.topic(TopicName.parse(TOPIC), create=True))
    await slow.opened.wait()
    cluster[0].store.expire_session()
    await asyncio.sleep(0)
    assert cluster.owners(bundle) == []
    await until(lambda: cluster.owners(bundle) == [cluster[0]])
    slow.gate.set()
    with pytest.raises(PulsarError, match="not served by this instance"):
        await loading
    assert TOPIC not in cluster[0].service.topics
    await cluster[0].service.topic(TopicName.parse(TOPIC), create=True)
    assert TOPIC in cluster[0].service.topics


async def test_an_unload_waits_for_loads_and_leaves_none(cluster: MemoryCluster, slow: SlowOpen) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    loading = asyncio.create_task(cluster[0].service.topic(TopicName.parse(TOPIC), create=True))
    await slow.opened.wait()
    unloading = asyncio.create_task(cluster[0].running.context.moves.unload(bundle))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not unloading.done()
    slow.gate.set()
    with pytest.raises(PulsarError, match="not served by this instance"):
        await loading
    await unloading
    assert not cluster[0].service.topics
    assert cluster.owned(cluster[0], bundle) is None
