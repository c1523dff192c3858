"""Ownership over a real ZooKeeper: its sessions end by themselves, its watches come later than its answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker, message
from magnetar.core.topic_name import TopicName
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.testing import ZookeeperServer
from magnetar.metadata.zookeeper import ZookeeperMetadataStore
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

TOPIC = "persistent://public/default/t"
CLOSE_PRODUCER = pb.BaseCommand.CLOSE_PRODUCER

numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper")) as started:
        yield started


@pytest.fixture
async def cluster(server: ZookeeperServer) -> AsyncIterator[MemoryCluster]:
    url = f"zk:{server.address}/ownership-{next(numbers)}"

    async def open_store() -> MetadataStore:
        # Sessions end because a test ends them, not because the machine is busy.
        return await ZookeeperMetadataStore.open(url, session_timeout_ms=20_000, operation_timeout_ms=20_000)

    async with MemoryCluster(3, open_store=open_store) as running:
        yield running


async def expire(broker: MemoryBroker, server: ZookeeperServer) -> None:
    """End a broker's session as if the server had waited too long for it."""
    await asyncio.to_thread(server.end_session, broker.store._session._client.client_id)


async def test_three_brokers_take_bundles_at_once(cluster: MemoryCluster) -> None:
    for number in range(5):
        name = TopicName.parse(f"{TOPIC}-{number}")
        answers = await asyncio.gather(
            *(broker.running.context.lookup.find(name, authoritative=True) for broker in cluster.brokers)
        )
        assert len({answer.addresses.broker_id for answer in answers}) == 1
        assert len(cluster.owners(await cluster.bundle_of(str(name)))) == 1
        found = {await cluster.lookup(broker, str(name)) for broker in cluster.brokers}
        assert len(found) == 1


async def test_transfers_and_splits(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    await client.publish(3)
    parts = await cluster[0].running.context.moves.split(bundle)
    part = next(part for part in parts if TopicName.parse(TOPIC) in part)
    await client.publish(1, first=3)
    there = cluster[1].running.settings
    await cluster[0].running.context.moves.unload(part, destination=there.broker_id)
    assert (await client.expect(CLOSE_PRODUCER)).body.assignedBrokerServiceUrl == there.service_url
    for broker in cluster.brokers:
        assert await cluster.lookup(broker, TOPIC) is cluster[1]
    other = await cluster[1].connect()
    await other.consumer(TOPIC)
    assert len(await other.messages(4)) == 4


async def test_an_owner_whose_session_ends(cluster: MemoryCluster, server: ZookeeperServer) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    await client.publish(2)
    await expire(cluster[0], server)
    await client.expect(CLOSE_PRODUCER)
    # Whoever is quicker; the former owner comes back when nobody is.
    await until(lambda: len(cluster.owners(bundle)) == 1)
    await cluster.settled()
    owner = await cluster.lookup(cluster[2], TOPIC)
    other = await owner.connect()
    await other.consumer(TOPIC)
    assert len(await other.messages(2)) == 2


async def test_another_broker_takes_over(cluster: MemoryCluster, server: ZookeeperServer) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    await client.publish(1)
    # It hears nothing: neither of its session nor of its node, as if it were paused.
    ownership = cluster[0].running.context.ownership
    for stop in ownership._stops:
        stop()
    await expire(cluster[0], server)

    async def taken() -> bool:
        answer = await cluster[1].running.context.lookup.find(TopicName.parse(TOPIC), authoritative=True)
        return answer.addresses.broker_id == cluster[1].running.settings.broker_id

    while not await taken():
        await asyncio.sleep(0.02)
    assert cluster.owners(bundle) == [cluster[0], cluster[1]], "that is what the test is about"
    other = await cluster[1].connect()
    await other.producer(TOPIC)
    await other.publish(1)
    client.send(pb.BaseCommand.SEND, message(b"late", sequence_id=9), producer_id=1, sequence_id=9)
    await client.expect(CLOSE_PRODUCER)
    assert "SEND_RECEIPT" not in [each.name for each in await client.round_trip()]
    await until(lambda: cluster.owners(bundle) == [cluster[1]])
    await other.publish(1, first=5)


async def test_a_broker_that_goes_away_is_replaced(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    gone = cluster[0]
    await cluster.stop(gone)
    await cluster.settled()
    owner = await cluster.lookup(cluster[1], TOPIC)
    assert cluster.owners(bundle) == [owner]
    await (await owner.connect()).producer(TOPIC)
