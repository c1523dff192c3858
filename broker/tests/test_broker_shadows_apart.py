"""Several shadows of one source at another broker than the source's."""

from __future__ import annotations

from magnetar.broker.testing.clusters import MemoryCluster
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.test_broker_shadows import NOTED, SHADOW, SOURCE, consumer_of, loaded, make_source, texts


async def test_shadows_of_one_source_at_one_broker_each_hear_where_it_ends() -> None:
    """Also of the last entry, of which the bookies do not say yet that it is confirmed; nobody tells them."""
    async with MemoryCluster(2) as cluster:
        first = await cluster.lookup(cluster[0], SOURCE)
        second = next(one for one in cluster.brokers if one is not first)
        bundle = await cluster.bundle_of(SOURCE)
        names = [f"{SHADOW}{number}" for number in range(100)]
        shadows = [each for each in names if await cluster.bundle_of(each) != bundle][:2]
        producer = await make_source(first, 3)
        source = await first.service.topic(TopicName.parse(SOURCE), create=False)
        for shadow in shadows:
            await cluster.take(second, shadow)
            assert await second.service.shadows.create(TopicName.parse(shadow), NOTED)
        clients = [
            await consumer_of(second, shadow, initialPosition=pb.CommandSubscribe.Latest) for shadow in shadows
        ]
        for shadow in shadows:
            assert (await loaded(second, shadow)).ledger.last_confirmed == source.ledger.last_confirmed
        await producer.publish(1, first=3)
        for client in clients:
            assert texts(await client.messages(1)) == [b"m3"]
            last = (await client.request(pb.BaseCommand.GET_LAST_MESSAGE_ID, consumer_id=1)).body.last_message_id
            assert (last.ledgerId, last.entryId) == source.ledger.last_confirmed
