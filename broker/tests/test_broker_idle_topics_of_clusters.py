"""Two clusters that replicate a topic to each other let go of it once nobody uses it in either."""

from __future__ import annotations

from typing import Any, Final

import pytest
from magnetar.broker.replication.states import ReplicatorState
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, ShiftedClock
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.two_clusters import (
    TOPIC,
    Pair,
    caught_up,
    linked_clusters,
    name_cluster,
    numbers,
    publish,
    stored,
    topic_of,
)

PASSING: Final = "non-persistent://public/default/passing"
IDLE_SECONDS: Final = 60
"""After so long a topic is idle: the default."""


async def check(at: MemoryBroker) -> None:
    await at.service.upkeep.check_now("inactive topics")


def topics(at: MemoryBroker) -> list[str]:
    """Those of clients that are loaded."""
    return [name for name in at.service.topics if "__" not in name]


async def load(at: MemoryBroker, name: str) -> Any:
    return await at.service.topic(TopicName.parse(name), create=True)


def remotes(topic: Any) -> list[str]:
    """Producers of other clusters."""
    return [one.name for one in topic.producers.by_name.values() if one.is_replicator]


async def linked(pair: Pair, name: str) -> tuple[Any, Any]:
    """Both topics, connected both ways."""
    both = [await load(cluster[0], name) for cluster in pair]
    await until(lambda: all(topic.replicators is not None and remotes(topic) for topic in both))
    return both[0], both[1]


async def producer(at: MemoryBroker, name: str) -> ProtocolClient:
    client = await at.connect()
    await client.producer(name, producer_name="p")
    return client


@pytest.mark.parametrize("name", [TOPIC, PASSING], ids=["persistent", "not persistent"])
async def test_both_let_go_of_a_topic_that_nobody_uses(name: str) -> None:
    clock = ShiftedClock()
    async with linked_clusters(clock=clock) as (east, west):
        here, there = await linked((east, west), name)
        if name == TOPIC:
            await publish(east[0], 0, 5)
            await caught_up(east[0])
            await caught_up(west[0])
        else:
            await east[0].service.delete(TopicName.parse(TOPIC), force=True)
            await west[0].service.delete(TopicName.parse(TOPIC), force=True)
        clock.advance(IDLE_SECONDS + 1)
        await check(east[0])
        # West's way to it is still there, so it stays, without a way of its own.
        assert name in topics(east[0])
        assert remotes(here)
        await until(lambda: not remotes(there))
        assert here.replicators.stats()["west"]["reason"] == "idle"
        clock.advance(IDLE_SECONDS + 1)
        await check(west[0])
        assert name not in topics(west[0])
        await until(lambda: not remotes(here))
        clock.advance(IDLE_SECONDS + 1)
        await check(east[0])
        assert name not in topics(east[0])
        assert not await east[0].service.exists(TopicName.parse(name))
        assert not await west[0].service.exists(TopicName.parse(name))


async def test_a_client_of_either_side_keeps_both_and_its_messages_arrive() -> None:
    clock = ShiftedClock()
    async with linked_clusters(clock=clock) as (east, west):
        here, there = await linked((east, west), TOPIC)
        client = await producer(east[0], TOPIC)
        for _ in range(3):
            clock.advance(IDLE_SECONDS + 1)
            for cluster in (east, west):
                await check(cluster[0])
        # East's is in use; west's way back rests, and its topic stays while east's way leads to it.
        await until(lambda: not remotes(here))
        assert remotes(there)
        assert here.replicators.stats()["west"]["connected"]
        assert TOPIC in topics(east[0])
        assert TOPIC in topics(west[0])
        await client.publish(3, producer_name="p")
        await caught_up(east[0])
        assert numbers(await stored(west[0])) == [0, 1, 2]
        # What has come wakes the way back, which finds that none of it is to go there.
        await caught_up(west[0])
        assert numbers(await stored(east[0])) == [0, 1, 2]


async def test_a_producer_or_a_message_has_a_resting_way_open_again() -> None:
    clock = ShiftedClock()
    async with linked_clusters(clock=clock) as (east, west):
        here, _ = await linked((east, west), TOPIC)
        clock.advance(IDLE_SECONDS + 1)
        await check(east[0])
        resting = here.replicators.running["west"]
        assert resting.state is ReplicatorState.DISCONNECTED
        client = await producer(east[0], TOPIC)
        await until(lambda: resting.connected)
        await client.request(pb.BaseCommand.CLOSE_PRODUCER, producer_id=1)
        clock.advance(IDLE_SECONDS + 1)
        await check(east[0])
        assert resting.state is ReplicatorState.DISCONNECTED
        # A message that comes from there: the way back is looked at, or it would count as behind for ever.
        await publish(west[0], 0, 3, "w")
        await caught_up(west[0])
        await caught_up(east[0])
        assert numbers(await stored(east[0]), "w") == [0, 1, 2]


async def test_a_topic_to_which_another_cluster_sends_does_not_rest_between_its_messages() -> None:
    clock = ShiftedClock()
    async with linked_clusters(clock=clock) as (east, west):
        _, there = await linked((east, west), TOPIC)
        client = await producer(east[0], TOPIC)
        before = there.replicators.running["east"]._producer
        for number in range(3):
            clock.advance(IDLE_SECONDS - 10)
            await client.publish(1, first=number, producer_name="p")
            for cluster in (east, west):
                await caught_up(cluster[0])
            await check(west[0])
        assert there.replicators.running["east"]._producer is before
        assert before is not None


async def test_what_the_other_cluster_lacks_keeps_the_topic() -> None:
    clock = ShiftedClock()
    async with linked_clusters(clock=clock) as (east, west):
        await linked((east, west), TOPIC)
        url = west[0].running.settings.service_url
        await name_cluster(east[0], "west", "pulsar://127.0.0.1:1")
        await west[0].service.unload(TopicName.parse(TOPIC))
        topic = await topic_of(east[0])
        assert topic.replicators is not None
        replicator = topic.replicators.running["west"]
        await until(lambda: replicator.reason.value == "unreachable")
        await publish(east[0], 0, 2)
        for _ in range(3):
            clock.advance(IDLE_SECONDS + 1)
            await check(east[0])
        assert TOPIC in topics(east[0])
        await name_cluster(east[0], "west", url)
        await caught_up(east[0])
        assert numbers(await stored(west[0])) == [0, 1]
