"""What is told of a subscription with thousands of consumers looks at each slot once, and is gathered in turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.admin.brokers.metrics import broker_metrics
from magnetar.broker.admin.brokers.stats import topic_document
from magnetar.broker.admin.topics.stats import StatsOptions, topic_stats
from magnetar.broker.admin.web.responses import encoded_in_turns
from magnetar.broker.context import BrokerContext
from magnetar.broker.dispatch import hash_ring
from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity, KeySharedPolicy
from magnetar.broker.dispatch.hash_ring import POINTS_PER_CONSUMER, ConsistentHashSelector
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher, Selector
from magnetar.broker.dispatch.split_ranges import SplitRangeSelector
from magnetar.broker.dispatch.sticky_ranges import StickyRangeSelector
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.slices import TimeSlice
from magnetar.broker.subscriptions.statistics import all_consumer_statistics, dispatch_statistics
from magnetar.broker.subscriptions.totals import SubscriptionTotals
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.broker.topics.topic import Topic
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests import straightforward_dispatch
from broker.tests.straightforward_dispatch import Halves, Named, Ring
from broker.tests.subscription_stage import StagedConnection

TOPIC: Final = "persistent://public/default/topic"
KEY_SHARED: Final = 3
CONSUMERS: Final = 30

MOVES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=25)
"""Who leaves, if there are so many, else somebody comes; by which name."""


def consumer(name: str, *ranges: tuple[int, int]) -> Consumer:
    identity = ConsumerIdentity(1, name, SubscriptionType.KEY_SHARED)
    identity.key_shared = KeySharedPolicy(sticky=True, ranges=list(ranges))
    return Consumer(identity, StagedConnection())


@pytest.mark.parametrize("kind", ["ring", "crowded ring", "halves", "named"])
@given(MOVES)
def test_ranges_are_those_of_a_walk_along_all_slots(kind: str, moves: list[tuple[int, int]]) -> None:
    pairs: dict[str, tuple[Selector, Ring | Halves | Named]] = {
        "ring": (ConsistentHashSelector(3), Ring(3)),
        "crowded ring": (ConsistentHashSelector(40), Ring(40)),
        "halves": (SplitRangeSelector(), Halves()),
        "named": (StickyRangeSelector(), Named()),
    }
    selector, straightforward = pairs[kind]
    with pytest.MonkeyPatch.context() as patch:
        if kind == "crowded ring":  # Points fall together, and beside each other.
            for module in (hash_ring, straightforward_dispatch):
                patch.setattr(module, "KEY_HASH_RANGE", 60)
        present: list[Consumer] = []
        for number, (leaving, name) in enumerate(moves):
            if leaving < len(present):
                gone = present.pop(leaving)
                selector.remove(gone)
                straightforward.remove(gone)
                assert selector.ranges(gone) == []
            else:
                present.append(consumer(str(name), (10 * number + 5, 10 * number + 7), (10 * number, 10 * number)))
                selector.add(present[-1])
                straightforward.add(present[-1])
            assert [selector.ranges(one) for one in present] == [straightforward.ranges(one) for one in present]


class CountingOwners(dict[int, list[Consumer]]):
    """Counts how often the owners of a point are looked at."""

    looks = 0

    def __getitem__(self, point: int) -> list[Consumer]:
        self.looks += 1
        return super().__getitem__(point)


def test_ranges_of_all_consumers_look_at_each_point_once() -> None:
    selector = ConsistentHashSelector()
    present = [consumer(str(number)) for number in range(100)]
    for one in present:
        selector.add(one)
    owners = selector._owners = CountingOwners(selector._owners)
    for one in present:
        selector.ranges(one)
    # And at the first point, whose owner has the slots behind the last.
    assert owners.looks <= (POINTS_PER_CONSUMER + 1) * len(present)


# --- slots that drain


class CountingDraining(dict[int, Consumer]):
    """Counts the walks along all slots."""

    walks = 0

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def test_slots_that_drain_are_looked_at_once_for_all() -> None:
    a, b, _ = present = [consumer(name) for name in "abc"]
    a.pending.per_hash.update({1: 4, 2: 5})
    b.pending.per_hash.update({3: 7})
    draining = CountingDraining({1: a, 2: a, 3: b, 4: b})
    selector = SplitRangeSelector()
    for one in present:
        selector.add(one)
    key_shared = cast(KeySharedDispatcher, SimpleNamespace(selector=selector, draining=draining))
    told = list(all_consumer_statistics(present, key_shared))
    assert draining.walks == 1
    assert [one["drainingHashesCount"] for one in told] == [2, 2, 0]
    assert [one["drainingHashesUnackedMessages"] for one in told] == [9, 7, 0]
    assert [one["keyHashRanges"] for one in told] == [["[32769, 65536]"], ["[16385, 32768]"], ["[0, 16384]"]]
    summed = dispatch_statistics(present, SubscriptionTotals(), key_shared, with_consumers=False)
    assert (summed["drainingHashesCount"], summed["drainingHashesUnackedMessages"]) == (4, 16)


def test_no_ranges_are_looked_for_where_none_are_shown() -> None:
    selector = SimpleNamespace()  # Without `ranges`.
    key_shared = cast(KeySharedDispatcher, SimpleNamespace(selector=selector, draining={}))
    present = [consumer("a"), consumer("b")]
    for one in present:
        one.rates.messages_out.per_second = 1.5
    summed = dispatch_statistics(present, SubscriptionTotals(), key_shared, with_consumers=False)
    assert (summed["msgRateOut"], summed["consumers"]) == (3.0, [])


# --- in turns


@pytest.fixture
async def memory_broker() -> AsyncIterator[MemoryBroker]:
    """One that tells of consumers."""
    async with MemoryBroker(BrokerSettings(admin=AdminSettings(consumer_metrics=True))) as running:
        yield running


@pytest.fixture
async def context(admin: Any, client: ProtocolClient) -> BrokerContext:
    """Of a broker with one subscription of many consumers."""
    for number in range(CONSUMERS):
        await client.consumer(TOPIC, consumer_id=number, subType=KEY_SHARED, consumer_name=f"c{number}")
    found: BrokerContext = admin.broker.running.context
    return found


def topic_of(context: BrokerContext) -> Topic:
    (topic,) = context.service.topics.values()
    return topic


async def of_prometheus(context: BrokerContext) -> int:
    return b"".join(await broker_metrics(context)).count(b"\npulsar_consumer_available_permits{")


async def of_the_broker(context: BrokerContext) -> int:
    return len((await topic_document(topic_of(context), TimeSlice()))["subscriptions"]["s"]["consumers"])


async def of_the_topic(context: BrokerContext) -> int:
    document = await topic_stats(topic_of(context), context, StatsOptions())
    return len(document["subscriptions"]["s"]["consumers"])


async def of_the_answer(context: BrokerContext) -> int:
    consumers = [{"consumerName": str(number)} for number in range(CONSUMERS)]
    encoded = await encoded_in_turns({"s": {"type": "Shared", "consumers": list(consumers)}, "t": {}, "u": 5})
    assert msgspec.json.decode(encoded["s"]) == {"type": "Shared", "consumers": consumers}
    assert (encoded["t"], encoded["u"]) == (msgspec.Raw(b"{}"), msgspec.Raw(b"5"))
    return CONSUMERS


@pytest.mark.parametrize("gather", [of_prometheus, of_the_broker, of_the_topic, of_the_answer])
async def test_others_have_their_turn_between_consumers(
    context: BrokerContext, gather: Callable[[BrokerContext], Awaitable[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = 0

    async def pause(_: TimeSlice) -> None:
        nonlocal pauses
        pauses += 1
        await asyncio.sleep(0)

    monkeypatch.setattr(TimeSlice, "over", property(lambda _: True))
    monkeypatch.setattr(TimeSlice, "pause", pause)
    assert await gather(context) == CONSUMERS
    assert pauses >= CONSUMERS


async def test_consumers_may_leave_between_the_turns(
    context: BrokerContext, client: ProtocolClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeSlice, "over", property(lambda _: True))
    gathering = asyncio.ensure_future(topic_stats(topic_of(context), context, StatsOptions()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    last = topic_of(context).subscriptions["s"].consumers[-1]
    topic_of(context).subscriptions["s"].remove_consumer(last)
    assert not gathering.done()
    *others, gone = (await gathering)["subscriptions"]["s"]["consumers"]
    assert (gone["consumerName"], gone["keyHashRanges"]) == (last.name, [])
    assert all(one["keyHashRanges"] for one in others)


async def test_consumers_are_left_out_on_request(context: BrokerContext) -> None:
    document = await topic_stats(topic_of(context), context, StatsOptions(consumers=False))
    assert document["subscriptions"]["s"]["consumers"] == []
