"""The system topic that snapshots are kept in: how long it stays open, and how it is closed."""

from __future__ import annotations

import asyncio
from typing import Any

from magnetar.broker.transactions.buffers.snapshot_codec import SINGLE, registered_schema
from magnetar.broker.transactions.buffers.snapshot_topic import KEPT_SECONDS, SnapshotParts, SnapshotTopic
from magnetar.broker.transactions.buffers.snapshots import SingleSnapshots
from magnetar.core.topic_name import TopicName
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop

new_event_loop = VirtualTimeLoop

SNAPSHOTS = TopicName.parse("persistent://public/default/__transaction_buffer_snapshot")
TOPIC = TopicName.parse("persistent://public/default/topic")


class World:
    """A client whose readers are at the end, or never get there."""

    def __init__(self) -> None:
        self.opened = 0
        self.open = 0
        self.hangs = False
        self._tasks: set[asyncio.Task[None]] = set()

    def parts(self) -> SnapshotParts:
        async def existing(name: TopicName) -> list[TopicName]:
            return [name]

        client: Any = self
        return SnapshotParts(
            client=lambda: client,
            existing=existing,
            spawn=lambda work: self._tasks.add(asyncio.ensure_future(work)),
            call_later=asyncio.get_running_loop().call_later,
            clock=LoopClock(),
        )

    async def reader(self, topic: TopicName, options: object) -> Reader:
        self.opened += 1
        self.open += 1
        return Reader(topic, self)


class Reader:
    """Of an empty topic."""

    def __init__(self, topic: TopicName, world: World) -> None:
        self.topic = topic
        self._world = world

    async def next_or_end(self) -> None:
        if self._world.hangs:
            await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        self._world.open -= 1


def topic_of(world: World) -> SnapshotTopic:
    return SnapshotTopic(SNAPSHOTS, registered_schema(SINGLE), world.parts())


async def test_a_topic_stays_open_so_long_after_its_last_use() -> None:
    world = World()
    topic = topic_of(world)
    for _ in range(3):
        assert await topic.latest("key") is None
        await asyncio.sleep(KEPT_SECONDS - 1)
    assert (world.opened, world.open) == (1, 1)
    assert not topic.idle
    await asyncio.sleep(2)
    assert world.open == 0
    assert topic.idle


async def test_a_close_waits_for_no_reading() -> None:
    world = World()
    world.hangs = True
    topic = topic_of(world)
    reading = [asyncio.ensure_future(topic.latest("key"))]
    await asyncio.sleep(0.1)
    # The second one begins when the first one is over.
    reading.append(asyncio.ensure_future(topic.latest("key")))
    await asyncio.sleep(0.1)
    before = asyncio.get_running_loop().time()
    await topic.close()
    assert asyncio.get_running_loop().time() == before
    assert world.open == 0
    await asyncio.wait(reading)
    assert [one.cancelled() for one in reading] == [True, True]


async def test_snapshots_that_are_closed_leave_no_reader() -> None:
    world = World()
    snapshots = SingleSnapshots(world.parts())
    assert await snapshots.read(TOPIC) is None
    assert world.open == 1
    await snapshots.close()
    assert world.open == 0
