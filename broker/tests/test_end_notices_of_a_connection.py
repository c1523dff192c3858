"""When the consumers of one connection are told of a topic's end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.broker.session.end_notices import PAUSE_SECONDS, PAUSE_SECONDS_EACH, EndNotices
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.wire.pulsar.messages import decode_command

new_event_loop = VirtualTimeLoop


class Peer:
    """A connection as far as notices use it."""

    def __init__(self) -> None:
        self.writable = True
        self.told: list[int] = []
        self.requests: list[int] = []
        self.partition: int | None = None

    def write(self, data: bytes) -> None:
        body = decode_command(data, 4, len(data)).getLastMessageIdResponse
        self.told.append(body.last_message_id.entryId)
        self.requests.append(body.request_id)
        self.partition = body.last_message_id.partition


class Topic:
    """A topic as far as notices use it."""

    def __init__(self, name: str = "topic") -> None:
        self.name = TopicName.parse(f"persistent://public/default/{name}")
        self.ledger = self
        self.appends = self
        self.last_confirmed: Position = (3, 0)
        self.on_appended: list[Any] = []

    def append(self, entry_id: int) -> None:
        self.last_confirmed = (3, entry_id)
        for told in self.on_appended:
            told()


def begun(consumers: int = 1) -> tuple[Peer, Topic, EndNotices]:
    """So many consumers, from number 1 on; the request of each is its number and a hundred thousand."""
    peer: Any = Peer()
    topic: Any = Topic()
    notices = EndNotices(peer)
    for consumer_id in range(1, consumers + 1):
        notices.begin(consumer_id, topic, 100_000 + consumer_id)
    return peer, topic, notices


async def test_a_busy_topic_is_told_of_now_and_then_and_its_last_end_always() -> None:
    peer, topic, notices = begun()
    for number in range(1, 100):
        topic.append(number)
    assert peer.told == [0]
    await asyncio.sleep(3 * PAUSE_SECONDS)
    assert peer.told == [0, 99]
    await asyncio.sleep(3 * PAUSE_SECONDS)
    topic.append(100)
    assert peer.told == [0, 99, 100]
    topic.append(101)
    notices.stop(1)
    await asyncio.sleep(3 * PAUSE_SECONDS)
    assert peer.told == [0, 99, 100]
    assert topic.on_appended == []


async def test_who_does_not_read_hears_the_newest_end_when_it_reads_again() -> None:
    peer, topic, notices = begun()
    await asyncio.sleep(3 * PAUSE_SECONDS)
    peer.writable = False
    for number in range(1, 10):
        topic.append(number)
        await asyncio.sleep(PAUSE_SECONDS)
    assert peer.told == [0]
    peer.writable = True
    notices.writable_again()
    assert peer.told == [0, 9]
    notices.stop(1)


async def test_who_asks_later_hears_the_end_once_though_it_is_not_another_one() -> None:
    peer, topic, notices = begun()
    await asyncio.sleep(3 * PAUSE_SECONDS)
    peer.writable = False
    late: Any = topic
    notices.begin(2, late, 100_002)
    notices.begin(2, late, 100_003)  # A second question of the same consumer begins nothing.
    notices.begin(3, late, 100_004)
    notices.stop(3)
    peer.writable = True
    notices.writable_again()
    notices.writable_again()
    await asyncio.sleep(3 * PAUSE_SECONDS)
    assert (peer.requests, peer.told) == ([100_001, 100_002], [0, 0])
    topic.append(1)
    assert peer.requests[2:] == [100_001, 100_002]
    notices.stop(1)
    notices.stop(2)
    notices.stop(4)  # It has never asked.


async def test_thousands_of_consumers_are_not_told_more_often_than_a_thousand_times_a_second() -> None:
    count = 2_000
    peer, topic, notices = begun(count)
    await asyncio.sleep(1.0 + PAUSE_SECONDS_EACH * count)
    before = len(peer.told)
    assert before == count
    for number in range(1, 1_000):
        topic.append(number)
        await asyncio.sleep(0.01)
    assert len(peer.told) - before <= 10 / PAUSE_SECONDS_EACH + count
    await asyncio.sleep(PAUSE_SECONDS_EACH * count)
    assert peer.told[-count:] == [999] * count
    for consumer_id in range(1, count + 1):
        notices.stop(consumer_id)
    assert topic.on_appended == []


@pytest.mark.parametrize(("name", "partition"), [("topic", -1), ("topic-partition-3", 3)])
async def test_a_notice_names_the_partition(name: str, partition: int) -> None:
    peer: Any = Peer()
    topic: Any = Topic(name)
    notices = EndNotices(peer)
    notices.begin(1, topic, 7)
    notices.stop(1)
    assert peer.partition == partition


async def test_notices_may_be_stopped_twice() -> None:
    """The topic goes, and its consumer with it; what others listen for stays."""
    peer, topic, notices = begun()
    other: list[int] = []
    topic.on_appended.append(lambda: other.append(1))
    notices.stop(1)
    notices.stop(1)
    topic.append(1)
    assert (peer.told, other) == ([0], [1])
