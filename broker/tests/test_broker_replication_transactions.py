"""Transactions over replication: what is committed arrives as ordinary messages, nothing else of them does."""

from __future__ import annotations

import pytest
from magnetar.broker.testing.clusters import until
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.test_broker_transaction_buffer import end, send
from broker.tests.two_clusters import TOPIC, caught_up, name_cluster, replicate, stored, topic_of, two_clusters


@pytest.mark.parametrize("unloaded", [False, True], ids=["at once", "by the next owner"])
@pytest.mark.parametrize("transactions_there", [False, True], ids=["without transactions there", "with"])
async def test_only_committed_messages_arrive_and_no_marker_does(unloaded: bool, transactions_there: bool) -> None:
    async with two_clusters(transactions=True) as (east, with_transactions), two_clusters() as (_, without):
        west = with_transactions if transactions_there else without
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        client = await east[0].connect()
        await client.producer(TOPIC, producer_name="p")
        # Else nothing is kept of what was published before the topic is replicated.
        await client.consumer(TOPIC)
        await send(client, 0)
        await send(client, 1, 2, transaction=1)
        await send(client, 3, transaction=2)
        await send(client, 4, transaction=3)
        await send(client, 5)
        for transaction, commit in ((1, True), (2, False)):
            assert not (await end(client, transaction, commit=commit, topic=TOPIC)).HasField("error")
        if unloaded:
            await east[0].service.unload(TopicName.parse(TOPIC))
        await replicate(east[0], "east", "west")
        topic = await topic_of(east[0])
        await until(lambda: topic.replicators is not None and topic.replicators.running.get("west"))
        assert topic.replicators is not None
        replicator = topic.replicators.running["west"]
        there = await topic_of(west[0])
        await until(lambda: there.messages_in >= 3 and replicator.reason.value == "open transaction")
        assert [entry.sequence_id for entry in await stored(west[0])] == [0, 1, 2]
        other = await east[0].connect()
        await other.request(pb.BaseCommand.LOOKUP, topic=TOPIC, authoritative=False)
        assert not (await end(other, 3, topic=TOPIC)).HasField("error")
        await caught_up(east[0])
        arrived = await stored(west[0])
        assert [entry.sequence_id for entry in arrived] == [0, 1, 2, 4, 5]
        for entry in arrived:
            assert not entry.HasField("marker_type")
            assert not entry.HasField("txnid_most_bits")
        consumer = await west[0].connect()
        await consumer.consumer(TOPIC, initialPosition=pb.CommandSubscribe.Earliest)
        assert [one.payload[-2:] for one in await consumer.messages(5)] == [b"m0", b"m1", b"m2", b"m4", b"m5"]
