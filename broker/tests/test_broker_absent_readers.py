"""Subscriptions that are not durable go with their readers, also with those that were refused."""

from __future__ import annotations

from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
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
