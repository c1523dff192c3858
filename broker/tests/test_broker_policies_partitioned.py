"""Partitioned topics that nobody uses, with partitions at several brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.clusters import MemoryCluster
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

SETTINGS = BrokerSettings(cluster_name="memory", policies=PolicySettings(delete_inactive_partitioned_metadata=True))


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(2, SETTINGS) as running:
        yield running


async def spread(cluster: MemoryCluster, name: TopicName) -> list[tuple[MemoryBroker, TopicName]]:
    """A partition at each broker."""
    count = 16
    await cluster[0].service.partitioned.create(name, count)
    placed: dict[MemoryBroker, TopicName] = {}
    taken = set()
    for index in range(count):
        partition = name.partition(index)
        bundle = await cluster.bundle_of(str(partition))
        free = [broker for broker in cluster.brokers if broker not in placed]
        if bundle not in taken and free:
            taken.add(bundle)
            placed[free[0]] = partition
            await cluster.take(free[0], str(partition))
            await free[0].service.topic(partition, create=True)
    assert len(placed) == len(cluster.brokers)
    return list(placed.items())


async def forget(broker: MemoryBroker) -> None:
    """Long ago somebody used its topics."""
    for topic in broker.service.topics.values():
        topic.last_active_seconds = float("-inf")
    await broker.service.upkeep.check_now("inactive topics")


async def test_a_partition_at_another_broker_keeps_the_record_of_its_topic(cluster: MemoryCluster) -> None:
    name = TopicName.parse("non-persistent://public/default/parts")
    (first, mine), (second, theirs) = await spread(cluster, name)
    client = await second.connect()
    await client.producer(str(theirs))
    await forget(first)
    assert str(mine) not in first.service.topics
    assert await first.service.resources.partitions(name) == 16
    assert await second.service.resources.partitions(name) == 16, "it is not marked as one that goes"
    await client.request(pb.BaseCommand.CLOSE_PRODUCER, producer_id=1)
    await forget(second)
    assert str(theirs) not in second.service.topics
    assert await second.service.resources.partitions(name) is None


async def test_the_last_stored_partition_takes_the_record_along(cluster: MemoryCluster) -> None:
    name = TopicName.parse("persistent://public/default/parts")
    (first, mine), (second, theirs) = await spread(cluster, name)
    for index in range(16):
        partition = name.partition(index)
        if partition not in (mine, theirs):
            owner = await cluster.lookup(first, str(partition))
            await owner.service.delete(partition, force=True)
    await forget(first)
    assert await first.service.resources.partitions(name) == 16
    await forget(second)
    assert await second.service.resources.partitions(name) is None
    assert await first.service.resources.persistent_topics(name.namespace_name) == []
