"""Where a topic ends, as the broker that writes it is asked, or tells by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from magnetar.broker.read_only.topic_owner import RemoteTopicOwner
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.errors import Unavailable
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError

from broker.tests.kept_stage import TOPIC, World, stage


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with MemoryBroker(BrokerSettings(cluster_name="memory")) as broker, stage(broker) as made:
        yield made


async def test_the_last_entry_is_asked_for_once_for_all_who_want_it(world: World) -> None:
    assert await world.owner.last_confirmed() == (0, -1)
    positions = await world.publish(3)
    assert await asyncio.gather(*(world.owner.last_confirmed() for _ in range(5))) == [positions[-1]] * 5
    subscriptions = world.broker.service.topics[str(TOPIC)].subscriptions
    assert list(subscriptions) == ["read-only-broker-reader:1"]
    assert not subscriptions["read-only-broker-reader:1"].durable
    (asker,) = subscriptions["read-only-broker-reader:1"].consumers
    assert (asker.permits, asker.identity.name) == (0, "read-only broker reader:1")
    (batch,) = await world.publish(1, size=3)
    assert await world.owner.last_confirmed() == batch


async def test_a_topic_that_is_gone_has_no_last_entry(world: World) -> None:
    other = RemoteTopicOwner(TopicName.parse("persistent://public/default/gone"), world.parts, lambda *_: None)
    with pytest.raises(PulsarError) as caught:
        await other.last_confirmed()
    assert caught.value.code == ServerError.TOPIC_NOT_FOUND
    await other.close()
    with pytest.raises(Unavailable):
        await other.last_confirmed()


async def test_who_asks_is_replaced_once_it_is_over_and_leaves_nothing_behind(world: World) -> None:
    (position,) = await world.publish(1)
    assert await world.owner.last_confirmed() == position
    assert world.owner._asker is not None
    await world.owner._asker.close()
    assert await world.owner.last_confirmed() == position
    subscriptions = world.broker.service.topics[str(TOPIC)].subscriptions
    assert len(subscriptions) == 1
    await world.owner.close()
    await until(lambda: not subscriptions)


async def test_a_topic_that_is_gone_is_not_made_for_who_holds_a_subscription(world: World) -> None:
    gone = "persistent://public/default/gone"
    other = RemoteTopicOwner(TopicName.parse(gone), world.parts, lambda *_: None)
    with pytest.raises(PulsarError) as caught:
        await other.keep("s", EARLIEST, {})
    assert caught.value.code == ServerError.TOPIC_NOT_FOUND
    assert gone not in world.broker.service.topics
    await other.close()


async def until_heard(heard: list[Position | None], position: Position) -> None:
    await until(lambda: heard[-1] == position)


async def test_an_owner_of_ours_tells_of_its_end_by_itself(world: World) -> None:
    heard: list[Position | None] = []
    world.owner.listen(heard.append)
    await world.owner.last_confirmed()
    await until(lambda: world.owner.has_notices)
    for _ in range(3):
        (position,) = await world.publish(1)
        await until_heard(heard, position)
    # Another owner, here the same broker: it tells as soon as it is found.
    await world.broker.service.close_topic(world.broker.service.topics[str(TOPIC)])
    await until(lambda: None in heard)
    await until(lambda: world.owner.has_notices)
    (position,) = await world.publish(1)
    await until_heard(heard, position)
    await world.owner.close()
    assert not world.owner.has_notices


async def test_an_owner_that_gives_notices_is_asked_with_one_consumer(world: World) -> None:
    """One that gives none tells of messages only, and whether the end is a marker is seen by another consumer."""
    world.owner.listen(lambda position: None)
    positions = await world.publish(2)
    for _ in range(3):
        assert await world.owner.last_confirmed() == positions[-1]
    other = RemoteTopicOwner(TOPIC, replace(world.parts, asks_for="-other"), lambda *_: None)
    for _ in range(3):
        assert await other.last_confirmed() == positions[-1]
    assert (world.owner._ends_asked, other._ends_asked) == (0, 2)
    assert (world.owner.has_notices, other.has_notices) == (True, False)
    await other.close()


async def test_an_owner_that_gives_notices_tells_of_markers(world: World) -> None:
    world.owner.listen(lambda position: None)
    positions = await world.publish(1)
    assert await world.owner.last_confirmed() == positions[-1]
    client = await world.broker.connect()
    await client.producer(str(TOPIC))
    (marker,) = await client.publish(1, marker_type=13)
    assert await world.owner.last_confirmed() == (marker.ledgerId, marker.entryId)
