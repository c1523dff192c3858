"""Notices of a topic's end, as a broker that only reads asks its owner for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.broker.session.end_notices import END_NOTICES_KEY, PAUSE_SECONDS, EndNotices
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, Received
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import decode_command

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


class Peer:
    """A connection as far as notices use it."""

    def __init__(self) -> None:
        self.writable = True
        self.told: list[int] = []
        self.partition: int | None = None

    def write(self, data: bytes) -> None:
        body = decode_command(data, 4, len(data)).getLastMessageIdResponse
        self.told.append(body.last_message_id.entryId)
        self.partition = body.last_message_id.partition


class Topic:
    """A topic as far as notices use it."""

    def __init__(self, name: str = TOPIC) -> None:
        self.name = TopicName.parse(name)
        self.ledger = self
        self.appends = self
        self.last_confirmed: Position = (3, 0)
        self.on_appended: list[Any] = []

    def append(self, entry_id: int) -> None:
        self.last_confirmed = (3, entry_id)
        for told in self.on_appended:
            told()


async def test_a_busy_topic_is_told_of_now_and_then_and_its_last_end_always() -> None:
    peer, topic = Peer(), Topic()
    notices = EndNotices(peer, topic, 7)  # type: ignore[arg-type]
    for number in range(1, 100):
        topic.append(number)
    assert peer.told == [0]
    await asyncio.sleep(3 * PAUSE_SECONDS)
    assert peer.told == [0, 99]
    await asyncio.sleep(3 * PAUSE_SECONDS)
    topic.append(100)
    assert peer.told == [0, 99, 100]
    topic.append(101)
    notices.stop()
    await asyncio.sleep(3 * PAUSE_SECONDS)
    assert peer.told == [0, 99, 100]
    assert topic.on_appended == []


async def test_who_does_not_read_hears_the_newest_end_when_it_reads_again() -> None:
    peer, topic = Peer(), Topic()
    notices = EndNotices(peer, topic, 7)  # type: ignore[arg-type]
    await asyncio.sleep(3 * PAUSE_SECONDS)
    peer.writable = False
    for number in range(1, 10):
        topic.append(number)
        await asyncio.sleep(PAUSE_SECONDS)
    assert peer.told == [0]
    peer.writable = True
    notices.moved()
    assert peer.told == [0, 9]
    notices.stop()


@pytest.mark.parametrize(("name", "partition"), [(TOPIC, -1), (f"{TOPIC}-partition-3", 3)])
async def test_a_notice_names_the_partition(name: str, partition: int) -> None:
    peer, topic = Peer(), Topic(name)
    EndNotices(peer, topic, 7).stop()  # type: ignore[arg-type]
    assert peer.partition == partition


async def test_notices_may_be_stopped_twice() -> None:
    """The topic goes, and its consumer with it; what others listen for stays."""
    peer, topic = Peer(), Topic()
    notices = EndNotices(peer, topic, 7)  # type: ignore[arg-type]
    other: list[int] = []
    topic.on_appended.append(lambda: other.append(1))
    notices.stop()
    notices.stop()
    topic.append(1)
    assert (peer.told, other) == ([0], [1])
