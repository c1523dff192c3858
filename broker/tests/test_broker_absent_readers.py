"""Subscriptions that are not durable go with their readers, also with those that were refused, or that do not come back
after a seek."""

from __future__ import annotations

import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, ShiftedClock
from magnetar.broker.topics.expiry import READER_AWAY_SECONDS
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/t"
EARLIEST = pb.MessageIdData(ledgerId=0, entryId=0)


def the_topic(broker: MemoryBroker) -> PersistentTopic:
    topic = broker.service.topics[TOPIC]
    assert isinstance(topic, PersistentTopic)
    return topic


async def read(client: ProtocolClient, name: str) -> None:
    await client.consumer(TOPIC, name, durable=False, subType=0, start_message_id=EARLIEST)


async def test_who_is_refused_leaves_no_subscription(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    refusal = await client.request(
        Command.SUBSCRIBE,
        topic=TOPIC,
        subscription="r",
        consumer_id=1,
        subType=3,
        durable=False,
        keySharedMeta=pb.KeySharedMeta(keySharedMode=pb.STICKY),
    )
    assert refusal.name == "ERROR"
    topic = the_topic(memory_broker)
    assert topic.subscriptions == {}
    assert topic.ledger._non_durable == []


async def test_who_is_refused_takes_nothing_from_the_reader_that_is_there(memory_broker: MemoryBroker) -> None:
    client, other = await memory_broker.connect(), await memory_broker.connect()
    await client.producer(TOPIC)
    await read(client, "r")
    refusal = await other.request(
        Command.SUBSCRIBE, topic=TOPIC, subscription="r", consumer_id=1, subType=1, durable=False
    )
    assert refusal.name == "ERROR"
    assert len(the_topic(memory_broker).subscriptions["r"].consumers) == 1


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_reader_that_seeks_is_waited_for(*, comes_back: bool) -> None:
    clock = ShiftedClock()
    async with MemoryBroker(BrokerSettings(), clock=clock) as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        ids = await client.publish(3)
        await client.consumer(TOPIC, "durable", 2)
        await client.request(Command.CLOSE_CONSUMER, consumer_id=2)
        await read(client, "r")
        await client.answer(client.start(Command.SEEK, consumer_id=1, message_id=ids[1]))
        topic, upkeep = the_topic(broker), broker.service.upkeep
        clock.advance(READER_AWAY_SECONDS - 1)
        await upkeep.check_now("absent readers")
        assert list(topic.subscriptions) == ["durable", "r"]
        if comes_back:
            await client.consumer(TOPIC, "r", 3, durable=False, subType=0)
        clock.advance(2)
        await upkeep.check_now("absent readers")
        assert list(topic.subscriptions) == (["durable", "r"] if comes_back else ["durable"])
        if comes_back:
            client.send(Command.FLOW, consumer_id=3, messagePermits=10)
            assert (await client.expect(Command.MESSAGE)).body.message_id.entryId == ids[1].entryId
