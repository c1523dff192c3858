"""What is told of a topic with very many subscriptions is gathered in turns with what clients send."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from magnetar.broker.admin.brokers.metrics import broker_metrics
from magnetar.broker.admin.brokers.stats import namespace_metrics, topic_document
from magnetar.broker.admin.topics.internals import internal_stats
from magnetar.broker.admin.topics.stats import StatsOptions, topic_stats
from magnetar.broker.admin.topics.stats_merge import merge_stats
from magnetar.broker.admin.web.responses import encoded_in_turns
from magnetar.broker.context import BrokerContext
from magnetar.broker.peers.large_json import decoded_in_turns
from magnetar.broker.slices import TimeSlice
from magnetar.broker.testing.sessions import ProtocolClient
from magnetar.broker.topics.topic import PersistentTopic

pytestmark = pytest.mark.slow

SUBSCRIPTIONS = 10_000
PAUSE_SECONDS_MAX = 0.05
ATTEMPTS = 5
"""The best of them counts: the machine does other things, too."""


OF_MANY: dict[str, Any] = {
    f"{number}": {"msgBacklog": 1, "type": "Shared", "consumers": [{"unackedMessages": 2}]}
    for number in range(SUBSCRIPTIONS)
}
"""What a partition tells."""

OF_ONE: dict[str, Any] = {f"number {count}": count for count in range(70)}
ANSWER = json.dumps(
    {
        "msgInCounter": 5,
        "subscriptions": {f"{number}": OF_ONE for number in range(SUBSCRIPTIONS)},
        "publishers": [{}] * 50_000,
    }
).encode()
"""Thirteen megabytes."""


@pytest.fixture
async def context(admin: Any, client: ProtocolClient) -> AsyncIterator[BrokerContext]:
    """Of a broker with one topic; one subscription stands for all, so that nobody waits for ten thousand cursors."""
    await client.producer("persistent://public/default/topic")
    await client.consumer("persistent://public/default/topic")
    found: BrokerContext = admin.broker.running.context
    topic = topic_of(found)
    real, cursor = topic.subscriptions, topic.ledger.cursors["s"]
    topic.subscriptions = {f"{number}": real["s"] for number in range(SUBSCRIPTIONS)}
    topic.ledger.cursors.update(dict.fromkeys(topic.subscriptions, cursor))
    del topic.ledger.cursors["s"]
    yield found
    topic.subscriptions = real
    topic.ledger.cursors.clear()
    topic.ledger.cursors["s"] = cursor


def topic_of(context: BrokerContext) -> PersistentTopic:
    (topic,) = context.service.topics.values()
    assert isinstance(topic, PersistentTopic)
    return topic


async def of_prometheus(context: BrokerContext) -> int:
    return b"".join(await broker_metrics(context)).count(b"\npulsar_subscription_back_log{")


async def of_the_namespace(context: BrokerContext) -> int:
    found: int = (await namespace_metrics([topic_of(context)]))["brk_no_of_subscriptions"]
    return found


async def of_the_broker(context: BrokerContext) -> int:
    return len((await topic_document(topic_of(context), TimeSlice()))["subscriptions"])


async def of_the_topic(context: BrokerContext) -> int:
    document = await topic_stats(topic_of(context), context, StatsOptions())
    return len(await encoded_in_turns(document["subscriptions"]))


async def of_partitions(context: BrokerContext) -> int:
    merged = await merge_stats([{"subscriptions": OF_MANY}] * 3)
    assert merged["subscriptions"]["4711"] == {"msgBacklog": 3, "type": "Shared", "consumers": [{"unackedMessages": 6}]}
    return len(merged["subscriptions"])


async def of_another_broker(context: BrokerContext) -> int:
    document = await decoded_in_turns(ANSWER)
    assert document["subscriptions"]["4711"] == OF_ONE
    assert (document["msgInCounter"], document["publishers"]) == (5, [{}] * 50_000)
    return len(document["subscriptions"])


async def of_the_ledger(context: BrokerContext) -> int:
    return len((await internal_stats(topic_of(context)))["cursors"])


@pytest.mark.parametrize(
    "gather",
    [of_prometheus, of_the_namespace, of_the_broker, of_the_topic, of_the_ledger, of_partitions, of_another_broker],
)
async def test_others_have_their_turn_meanwhile(
    context: BrokerContext, gather: Callable[[BrokerContext], Awaitable[int]]
) -> None:
    longest_seconds = 0.0

    async def measure() -> None:
        nonlocal longest_seconds
        while True:
            begun = time.thread_time()
            await asyncio.sleep(0)
            longest_seconds = max(longest_seconds, time.thread_time() - begun)

    gc.disable()  # A collection would look at all that other tests have left in this process.
    try:
        for _ in range(ATTEMPTS):
            longest_seconds = 0.0
            measuring = asyncio.create_task(measure())
            await asyncio.sleep(0)  # It has begun.
            assert await gather(context) == SUBSCRIPTIONS
            measuring.cancel()
            if longest_seconds < PAUSE_SECONDS_MAX:
                break
    finally:
        gc.enable()
    assert 0 < longest_seconds < PAUSE_SECONDS_MAX


@pytest.mark.parametrize("gather", [of_prometheus, of_the_namespace, of_the_broker, of_the_topic])
async def test_subscriptions_that_are_removed_meanwhile_are_left_out(
    context: BrokerContext, gather: Callable[[BrokerContext], Awaitable[int]]
) -> None:
    subscriptions = topic_of(context).subscriptions
    gathering = asyncio.ensure_future(gather(context))
    await asyncio.sleep(0)
    for number in range(SUBSCRIPTIONS // 2, SUBSCRIPTIONS):
        del subscriptions[f"{number}"]
    assert await gathering == SUBSCRIPTIONS // 2


async def test_the_answer_is_whole(admin: Any, context: BrokerContext) -> None:
    topic = topic_of(context)
    status, document = await admin("GET", "/admin/v2/persistent/public/default/topic/stats")
    assert status == 200
    assert len(document["subscriptions"]) == SUBSCRIPTIONS
    one = document["subscriptions"]["4711"]
    assert (one["type"], one["durable"], len(one["consumers"])) == ("Exclusive", True, 1)
    assert "keySharedMode" not in one  # As all that is null.
    assert document["backlogSize"] == topic.ledger.ledgers.total_size_bytes()
