"""Whole transactions: coordinator, topics and subscriptions of one broker, through the protocol alone."""

from __future__ import annotations

import pytest
from magnetar.broker.resources import Resources
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.broker.transactions.initialization import initialize_coordinators
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.test_broker_transaction_buffer import ENABLED, TOPIC, Command, all_sent, send, texts

SOURCE = "persistent://public/default/source"


@pytest.mark.parametrize("action", [pb.COMMIT, pb.ABORT])
async def test_consumed_and_produced_in_one(action: pb.TxnAction) -> None:
    async with MemoryBroker(ENABLED) as broker:
        await initialize_coordinators(Resources(broker.store), 1)
        client = await broker.connect()
        await client.producer(SOURCE, producer_id=2)
        await client.consumer(SOURCE, subscription="in", consumer_id=2, subType=1)
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        await client.publish(producer_id=2)
        (taken,) = await client.messages(1, consumer_id=2, permits=10)
        await client.request(
            Command.LOOKUP, topic="persistent://pulsar/system/transaction_coordinator_assign-partition-0"
        )
        assert not (await client.request(Command.TC_CLIENT_CONNECT_REQUEST, tc_id=0)).body.HasField("error")
        begun = (await client.request(Command.NEW_TXN, tc_id=0, txn_ttl_seconds=600_000)).body
        bits = {"txnid_most_bits": begun.txnid_most_bits, "txnid_least_bits": begun.txnid_least_bits}
        await client.request(Command.ADD_PARTITION_TO_TXN, partitions=[TOPIC], **bits)
        joined = [pb.Subscription(topic=SOURCE, subscription="in")]
        await client.request(Command.ADD_SUBSCRIPTION_TO_TXN, subscription=joined, **bits)
        await send(client, 0, transaction=begun.txnid_least_bits)
        acknowledged = await client.request(
            Command.ACK, consumer_id=2, ack_type=0, message_id=[taken.body.message_id], **bits
        )
        assert not acknowledged.body.HasField("error"), acknowledged
        assert await all_sent(client) == []
        ended = await client.request(Command.END_TXN, txn_action=action, **bits)
        assert ended.name == "END_TXN_RESPONSE"
        assert not ended.body.HasField("error"), ended
        again = await client.expect(Command.MESSAGE)
        assert texts([again]) == [b"m0"]
        # Committed: what was produced. Aborted: what was consumed, once more.
        assert again.body.consumer_id == (1 if action == pb.COMMIT else 2)
        assert await all_sent(client) == []
