"""Two clusters, and a topic that stores nothing: what is published in one is sent to who listens in the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import pytest
from magnetar.broker.replication.non_persistent_replicators import NonPersistentReplicator
from magnetar.broker.replication.states import ReplicatorState
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import PATIENCE_SECONDS, MemoryBroker, ProtocolClient
from magnetar.broker.topics.non_persistent_topic import NonPersistentTopic
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import full_metadata

from broker.tests.two_clusters import Pair, name_cluster, replicate, two_clusters

PASSING: Final = "non-persistent://public/default/passing"
PATH: Final = "/admin/v2/non-persistent/public/default/passing"


@asynccontextmanager
async def passing_clusters() -> AsyncIterator[Pair]:
    """Both know each other, and the namespace is in both."""
    async with two_clusters() as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        await name_cluster(west[0], "east", east[0].running.settings.service_url)
        for cluster in (east, west):
            await replicate(cluster[0], "east", "west")
        yield east, west


async def passing(at: MemoryBroker, name: str = PASSING) -> NonPersistentTopic:
    topic = await at.service.topic(TopicName.parse(name), create=True)
    assert isinstance(topic, NonPersistentTopic)
    return topic


async def connected(at: MemoryBroker) -> None:
    """Until its replicators of the topic have their producers."""
    topic = await passing(at)
    await until(
        lambda: topic.replicators is not None and all(one.connected for one in topic.replicators.running.values())
    )


async def ended(replicator: NonPersistentReplicator) -> None:
    await until(lambda: replicator.state is ReplicatorState.TERMINATED)


async def listener(at: MemoryBroker) -> ProtocolClient:
    """A consumer that takes all that comes."""
    client = await at.connect()
    await client.consumer(PASSING)
    client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=1_000)
    await client.round_trip()
    return client


async def sender(at: MemoryBroker) -> ProtocolClient:
    client = await at.connect()
    await client.producer(PASSING, producer_name="p")
    return client


async def heard(client: ProtocolClient, count: int) -> list[Any]:
    """The metadata of so many messages."""
    return [full_metadata((await client.expect(pb.BaseCommand.MESSAGE)).payload) for _ in range(count)]


async def metrics(at: MemoryBroker) -> str:
    async with aiohttp.request("GET", at.admin_url + "/metrics") as answer:
        return await answer.text()


async def test_what_is_published_here_comes_there_once_and_does_not_come_back() -> None:
    async with passing_clusters() as (east, west):
        here, there = await listener(east[0]), await listener(west[0])
        client, other = await sender(east[0]), await sender(west[0])
        for cluster in (east, west):
            await connected(cluster[0])
        await client.publish(20)
        arrived = await heard(there, 20)
        assert [one.sequence_id for one in arrived] == list(range(20))
        assert {one.replicated_from for one in arrived} == {"east"}
        await other.publish(1, first=100)
        # All that was sent back before would have come before it.
        assert [one.sequence_id for one in await heard(here, 21)] == [*range(20), 100]
        assert [one.sequence_id for one in await heard(there, 1)] == [100]
        assert not here.inbox
        assert not there.inbox
        topic = await passing(west[0])
        assert sorted(topic.producers.by_name) == ["p", "pulsar.repl.east-->west"]
        for at, remote in ((east[0], "west"), (west[0], "east")):
            async with aiohttp.request("GET", at.admin_url + PATH + "/stats") as answer:
                stats = await answer.json()
            assert [one["producerName"] for one in stats["publishers"]] == ["p"]
            told = stats["replication"][remote]
            assert (told["connected"], told["state"], told["msgDropCount"], told["msgDropRate"]) == (
                True,
                "Started",
                0,
                0.0,
            )
            assert told["outboundConnection"]
            assert told["inboundConnection"]
            assert told["msgOutCount"] == (20 if remote == "west" else 1)
            assert told["msgInCount"] == (1 if remote == "west" else 20)


async def test_what_cannot_be_sent_is_dropped_and_told() -> None:
    async with two_clusters() as (east, west):
        await replicate(east[0], "east", "west")
        client = await sender(east[0])
        topic = await passing(east[0])
        await client.publish(7)
        assert topic.replicators is not None
        stats = topic.replicators.stats()["west"]
        assert (stats["connected"], stats["msgDropCount"], stats["replicationBacklog"]) == (False, 7, 0)
        page = await metrics(east[0])
        labels = f'{{cluster="east",namespace="public/default",topic="{PASSING}",remote_cluster="west"}}'
        assert f"magnetar_replication_dropped_total{labels} 7" in page
        assert f"pulsar_replication_disconnected_count{labels} 1" in page
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        there = await listener(west[0])
        await connected(east[0])
        await client.publish(1, first=7)
        assert [one.sequence_id for one in await heard(there, 1)] == [7]
        assert f"magnetar_replication_dropped_total{labels} 7" in await metrics(east[0])


async def test_messages_say_where_they_go() -> None:
    async with passing_clusters() as (east, west):
        there, client = await listener(west[0]), await sender(east[0])
        await connected(east[0])
        await client.publish(1, first=0, replicate_to=["__local__"])
        await client.publish(1, first=1, replicate_to=["west"])
        await client.publish(1, first=2, replicated_from="north")
        await client.publish(1, first=3)
        assert [one.sequence_id for one in await heard(there, 2)] == [1, 3]


@pytest.mark.parametrize("checked", [False, True], ids=["not looked at", "looked at one by one"])
async def test_more_than_the_window_passes_while_receipts_come(*, checked: bool) -> None:
    """Neither messages nor receipts of a topic that stores nothing name a position: each makes room all the same, also
    where deduplication asks for positions."""
    async with passing_clusters() as (east, west):
        if checked:
            async with aiohttp.request(
                "POST", f"{west[0].admin_url}/admin/v2/namespaces/public/default/deduplication", json=True
            ) as answer:
                assert answer.status == 204
            assert (await passing(west[0])).policies.checks_messages
        await east[0].running.context.dynamic.set("replicationProducerQueueSize", "10")
        there, client = await listener(west[0]), await sender(east[0])
        await connected(east[0])
        topic = await passing(east[0])
        assert topic.replicators is not None
        replicator = topic.replicators.running["west"]
        for round_ in range(5):
            await client.publish(8, first=8 * round_)
            await heard(there, 8)
            await until(lambda: replicator._producer is not None and not replicator._producer.unanswered)
        assert replicator.counters.dropped == 0


async def test_it_begins_and_ends_with_the_list_of_clusters() -> None:
    async with passing_clusters() as (east, west):
        topic = await passing(east[0])
        await connected(east[0])
        assert topic.replicators is not None
        first = topic.replicators.running["west"]
        await replicate(east[0], "east")
        assert topic.replicators.running == {}
        there = await passing(west[0])
        await until(lambda: first.state is ReplicatorState.TERMINATED and not there.producers.by_name)
        client = await sender(east[0])
        await client.publish(3)
        await replicate(east[0], "east", "west")
        await connected(east[0])
        assert topic.replicators.running["west"] is not first
        hears = await listener(west[0])
        await client.publish(1, first=3)
        assert [one.sequence_id for one in await heard(hears, 1)] == [3]


async def test_the_topics_own_list_comes_before_the_namespaces() -> None:
    async with passing_clusters() as (east, _):
        topic = await passing(east[0])
        await connected(east[0])
        assert topic.replicators is not None
        service = east[0].service
        policies = service.policies.of(topic.name)
        assert policies.remote_clusters == ("west",)
        async with aiohttp.request("POST", f"{east[0].admin_url}{PATH}/replication", json=["east"]) as answer:
            assert answer.status == 204, await answer.text()
        await until(lambda: topic.replicators is not None and not topic.replicators.running)
        async with aiohttp.request("DELETE", f"{east[0].admin_url}{PATH}/replication") as answer:
            assert answer.status == 204, await answer.text()
        await until(lambda: topic.replicators is not None and topic.replicators.running)


async def test_it_ends_with_the_topic_however_that_ends() -> None:
    async with two_clusters() as (east, west):
        # One way only: what leads back would load the topic again.
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        await replicate(east[0], "east", "west")
        name, there = TopicName.parse(PASSING), await passing(west[0])
        for end in ("unload", "delete"):
            topic = await passing(east[0])
            await connected(east[0])
            assert list(there.producers.by_name) == ["pulsar.repl.east-->west"]
            assert topic.replicators is not None
            replicator = topic.replicators.running["west"]
            if end == "unload":
                await east[0].service.unload(name)
            else:
                await east[0].service.delete(name, force=True)
            await ended(replicator)
            await until(lambda: not there.producers.by_name)


async def test_of_a_partitioned_topic_the_partitions_are_replicated_and_it_is_not() -> None:
    async with passing_clusters() as (east, west):
        for cluster in (east, west):
            async with aiohttp.request(
                "PUT", f"{cluster[0].admin_url}{PATH}/partitions?createLocalTopicOnly=true", json=2
            ) as answer:
                assert answer.status == 204
        whole, part = await passing(east[0]), await passing(east[0], f"{PASSING}-partition-1")
        assert whole.replicators is not None
        assert part.replicators is not None
        await until(lambda: part.replicators is not None and part.replicators.running["west"].connected)
        one = whole.replicators.running["west"]
        await until(lambda: one.detail)
        assert one.reason.value == "no remote"
        assert "its partitions are replicated" in one.detail
        assert f"{PASSING}-partition-1" in west[0].service.topics


async def test_a_partitioned_topic_is_made_there_as_it_is_here() -> None:
    async with passing_clusters() as (east, west):
        resources, url = east[0].service.resources, west[0].admin_url
        await resources.documents.update(resources.cluster_path("west"), lambda record: {**record, "serviceUrl": url})
        async with aiohttp.request("PUT", f"{east[0].admin_url}{PATH}/partitions", json=3) as answer:
            assert answer.status == 204
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await west[0].service.resources.partitions(TopicName.parse(PASSING)) != 3:
                await asyncio.sleep(0.01)


async def test_a_lost_connection_is_made_again() -> None:
    async with passing_clusters() as (east, west):
        client, topic = await sender(east[0]), await passing(east[0])
        await connected(east[0])
        assert topic.replicators is not None
        replicator = topic.replicators.running["west"]
        lost = replicator._producer
        await west[0].service.unload(TopicName.parse(PASSING))
        await until(lambda: replicator.connected and replicator._producer is not lost)
        there = await listener(west[0])
        await client.publish(1)
        assert len(await heard(there, 1)) == 1
