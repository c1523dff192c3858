"""Delayed entries leave the cache of entries once all subscriptions have put them aside."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.subscriptions.delayed_in_cache import KEPT_MS, DelayedInCache
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, ShiftedClock, message
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.limits import MIB
from magnetar.managed.entry_cache import CHUNK_ENTRIES_MAX, ENTRY_OVERHEAD_BYTES, EntryCache
from magnetar.managed.testing import append
from magnetar.net.testing import freed, until
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC: Final = "persistent://public/default/topic"
SHARED: Final = 1
SUBSCRIPTIONS: Final = 10
ENTRIES: Final = 2_000
AT_ONCE: Final = 20
LATER_MS: Final = 3_600_000
CACHE_BYTES: Final = 4 * MIB
LEFT_MAX: Final = 3 * CHUNK_ENTRIES_MAX
"""The chunk that grows, and what was added since the last look."""


class Stage:
    """A topic with many subscriptions, whose consumers wait for messages."""

    def __init__(self, broker: MemoryBroker, clock: ShiftedClock, client: ProtocolClient) -> None:
        self.broker = broker
        self.clock = clock
        self.client = client

    @property
    def topic(self) -> PersistentTopic:
        """As it is loaded."""
        found = self.broker.service.topics[TOPIC]
        assert isinstance(found, PersistentTopic)
        return found

    @property
    def cache(self) -> EntryCache:
        """The broker's."""
        return self.topic.ledger.cache

    async def publish(self, delay_ms: int, count: int = ENTRIES) -> None:
        """Messages, some at a time, of which all but the delayed ones are sent at once."""
        now_ms = self.clock.now_ms()
        fields: dict[str, Any] = {"deliver_at_time": now_ms + delay_ms} if delay_ms else {}
        for first in range(0, count, AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            await append(self.topic.ledger, [message(sequence_id=at, publish_time=now_ms, **fields) for at in numbers])
        await self.client.round_trip()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    clock = ShiftedClock()
    async with MemoryBroker(BrokerSettings(managed_ledger_cache_bytes_max=CACHE_BYTES), clock=clock) as broker:
        client = await broker.connect()
        for number in range(SUBSCRIPTIONS):
            await client.consumer(TOPIC, f"s{number}", consumer_id=number, subType=SHARED)
            client.send(Command.FLOW, consumer_id=number, messagePermits=10 * ENTRIES)
        await client.round_trip()
        yield Stage(broker, clock, client)


async def test_what_is_due_much_later_leaves_the_cache_and_comes_all_the_same(stage: Stage) -> None:
    await stage.publish(LATER_MS)
    subscriptions = list(stage.topic.subscriptions.values())
    assert [each.delayed_entries for each in subscriptions] == [ENTRIES] * SUBSCRIPTIONS
    assert stage.cache.entries <= LEFT_MAX
    assert stage.cache.missed_entries == 0
    # All is due.
    stage.topic.follow(replace(stage.topic.policies, delayed_delivery=False))
    await until(lambda: [each.unacked_messages for each in subscriptions] == [ENTRIES] * SUBSCRIPTIONS)
    assert stage.cache.missed_entries > 0
    # Nobody wants them again. Without a bound of their own they would take 1.1 MB.
    assert stage.cache.size_bytes < CACHE_BYTES // 8 + LEFT_MAX * (200 + ENTRY_OVERHEAD_BYTES)


async def test_what_is_due_soon_stays_in_the_cache(stage: Stage) -> None:
    await stage.publish(KEPT_MS // 2)
    assert stage.cache.entries == ENTRIES


async def test_what_is_sent_at_once_stays_in_the_cache(stage: Stage) -> None:
    await stage.publish(0)
    await stage.publish(LATER_MS)
    assert ENTRIES <= stage.cache.entries <= ENTRIES + LEFT_MAX


async def test_what_one_subscription_has_not_read_stays_in_the_cache(stage: Stage) -> None:
    await stage.client.consumer(TOPIC, "slow", consumer_id=SUBSCRIPTIONS, subType=SHARED)
    await stage.publish(LATER_MS)
    assert stage.cache.entries == ENTRIES
    await stage.client.request(Command.CLOSE_CONSUMER, consumer_id=SUBSCRIPTIONS)
    await stage.publish(LATER_MS)
    assert stage.cache.entries <= LEFT_MAX


@pytest.mark.usefixtures("no_collector")
async def test_an_unloaded_topic_is_gone(memory_broker: MemoryBroker, admin: Any) -> None:
    async def work() -> None:
        client = await memory_broker.connect()
        await client.producer(TOPIC)
        await client.consumer(TOPIC, subType=SHARED)
        await client.publish(3, deliver_at_time=int(time.time() * 1_000) + LATER_MS)
        await client.close()
        path = TOPIC.replace("://", "/")
        assert (await admin("PUT", f"/admin/v2/{path}/unload"))[0] == 204

    await freed((PersistentTopic, Subscription, DelayedInCache), work)
