"""Notices of a topic's end, as a broker that only reads asks its owner for them."""

from __future__ import annotations

from typing import Any

from magnetar.broker.session.end_notices import END_NOTICES_KEY
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, Received
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
WANTED = [{"key": END_NOTICES_KEY, "value": "reader"}]


async def listener(broker: MemoryBroker, **fields: Any) -> tuple[ProtocolClient, int]:
    """A consumer that wants notices, and the id of its question, which was answered as any other."""
    client = await broker.connect()
    await client.consumer(TOPIC, "listener", durable=False, metadata=WANTED, **fields)
    request_id = client.start(Command.GET_LAST_MESSAGE_ID, consumer_id=1)
    await client.answer(request_id)
    return client, request_id


def entry_id(answer: Received) -> int:
    """Of a notice; -1: there is none."""
    last: int = answer.body.last_message_id.entryId
    return last if last < 2**63 else -1


async def test_a_second_answer_comes_at_once_and_others_as_the_end_moves(memory_broker: MemoryBroker) -> None:
    producer = await memory_broker.connect()
    await producer.producer(TOPIC)
    await producer.publish(2)
    client, request_id = await listener(memory_broker)
    assert entry_id(await client.answer(request_id)) == 1
    for number in (2, 3):
        await producer.publish(1, first=number)
        assert entry_id(await client.answer(request_id)) == number
    await producer.publish(1, first=4, marker_type=13)  # What is no message is told of, too.
    assert entry_id(await client.answer(request_id)) == 4


async def test_a_consumer_that_does_not_want_them_gets_one_answer(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)
    await client.publish(1)
    assert await client.round_trip() == []


async def test_later_questions_are_answered_once(memory_broker: MemoryBroker) -> None:
    producer = await memory_broker.connect()
    await producer.producer(TOPIC)
    client, standing = await listener(memory_broker)
    await client.answer(standing)
    later = client.start(Command.GET_LAST_MESSAGE_ID, consumer_id=1)
    await client.answer(later)
    await producer.publish(1)
    assert entry_id(await client.answer(standing)) == 0
    assert [one.body.request_id for one in await client.round_trip()] == []


async def test_nothing_is_told_after_the_consumer_is_closed(memory_broker: MemoryBroker) -> None:
    producer = await memory_broker.connect()
    await producer.producer(TOPIC)
    client, request_id = await listener(memory_broker)
    await client.answer(request_id)
    told = memory_broker.service.topics[TOPIC].ledger.appends.on_appended
    count = len(told)
    await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
    assert len(told) == count - 1
    await producer.publish(1)
    assert await client.round_trip() == []
    other, _ = await listener(memory_broker)
    await until(lambda: len(told) == count)
    await other.abort()
    await until(lambda: len(told) == count - 1)


async def test_consumers_of_one_connection_are_one_listener_of_the_topic(memory_broker: MemoryBroker) -> None:
    """Each of thousands would be called with every append, and looked for among all when it is closed."""
    producer = await memory_broker.connect()
    await producer.producer(TOPIC)
    client, first = await listener(memory_broker)
    await client.answer(first)
    told = memory_broker.service.topics[TOPIC].ledger.appends.on_appended
    count = len(told)
    await client.consumer(TOPIC, "second", consumer_id=2, durable=False, metadata=WANTED)
    second = client.start(Command.GET_LAST_MESSAGE_ID, consumer_id=2)
    for _ in range(2):
        assert entry_id(await client.answer(second)) == -1
    assert len(told) == count
    await producer.publish(1)
    assert [entry_id(await client.answer(each)) for each in (first, second)] == [0, 0]
    await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
    await producer.publish(1, first=1)
    assert entry_id(await client.answer(second)) == 1
    await client.request(Command.CLOSE_CONSUMER, consumer_id=2)
    assert len(told) == count - 1
    await producer.publish(1, first=2)
    assert await client.round_trip() == []
