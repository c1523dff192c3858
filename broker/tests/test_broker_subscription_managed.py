"""Subscriptions over real cursors: what the staged cursor promises is what managed ledgers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.core.clock import SystemClock
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed.entry import Entry
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import ManagedWorld, append
from magnetar.wire.pulsar.command import Ack
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests.subscription_stage import StagedConnection, stored_message

NAME = "public/default/persistent/topic"
ALL_TYPES = list(SubscriptionType)


@pytest.fixture
async def world() -> AsyncIterator[ManagedWorld]:
    world = ManagedWorld()
    yield world
    await world.close()


class Scene:
    """A topic's worth of managed ledger, a subscription, and consumers that acknowledge when told."""

    def __init__(self, ledger: ManagedLedger) -> None:
        loop = asyncio.get_running_loop()
        self.ledger = ledger
        self.positions: list[Position] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.runtime = SubscriptionRuntime(
            SystemClock(), lambda work: self.tasks.add(loop.create_task(work)), loop.call_later
        )

    async def subscribe(self) -> None:
        cursor = await self.ledger.open_cursor("s", EARLIEST)
        self.subscription = Subscription("topic", "s", cursor, self.runtime, DispatchSettings(failover_delay_ms=0))
        self.ledger.appends.on_appended.append(self.subscription.entries_available)

    async def publish(self, count: int) -> None:
        for number in range(count):
            data = stored_message(sequence_id=number, partition_key=f"k{number % 5}", num_messages_in_batch=3)
            self.positions.append(await append(self.ledger, [data]))

    def join(self, name: str, kind: SubscriptionType) -> Consumer:
        consumer = Consumer(ConsumerIdentity(1, name, kind), StagedConnection(), partition_index=0)
        self.subscription.add_consumer(consumer)
        self.subscription.consumer_ready(consumer)
        self.subscription.flow(consumer, 1_000)
        return consumer

    async def received(self, consumer: Consumer, count: int) -> list[Position]:
        connection = consumer.connection
        assert isinstance(connection, StagedConnection)
        async with asyncio.timeout(30):
            while len(connection.messages) < count:
                await asyncio.sleep(0.001)
        found = [(one.message_id.ledgerId, one.message_id.entryId) for one in connection.messages]
        connection.messages.clear()
        return found

    def acknowledge(self, consumer: Consumer, positions: list[Position], left: int | None = None) -> None:
        ack = Ack()
        ack.positions = positions
        if left is not None:
            ack.ack_sets = [[left] for _ in positions]
        self.subscription.acknowledge(consumer, ack, None)


@pytest.mark.parametrize("kind", ALL_TYPES)
@pytest.mark.parametrize("cached", [True, False])
async def test_backlog_and_tail_over_several_ledgers(world: ManagedWorld, kind: SubscriptionType, cached: bool) -> None:
    settings = ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0)
    factory = world.factory(settings)
    scene = Scene(await factory.open(NAME))
    await scene.subscribe()
    await scene.publish(25)
    if not cached:
        factory.cache.evict_older_than(float("inf"))
    consumer = scene.join("a", kind)
    assert await scene.received(consumer, 25) == scene.positions
    await scene.publish(3)
    assert await scene.received(consumer, 3) == scene.positions[25:]
    scene.acknowledge(consumer, scene.positions)
    assert scene.subscription.backlog == 0
    scene.subscription.close()


@pytest.mark.parametrize("kind", ALL_TYPES)
async def test_what_is_left_comes_again(world: ManagedWorld, kind: SubscriptionType) -> None:
    scene = Scene(await world.factory().open(NAME))
    await scene.subscribe()
    await scene.publish(6)
    first = scene.join("a", kind)
    await scene.received(first, 6)
    scene.acknowledge(first, [scene.positions[0], scene.positions[3]])
    scene.acknowledge(first, [scene.positions[1]], left=0b110)
    scene.subscription.redeliver(first, None)
    assert await scene.received(first, 4) == [scene.positions[one] for one in (1, 2, 4, 5)]
    scene.subscription.remove_consumer(first)
    second = scene.join("b", kind)
    connection = second.connection
    assert isinstance(connection, StagedConnection)
    assert list(connection.messages[0].ack_set) == [0b110]
    assert await scene.received(second, 4) == [scene.positions[one] for one in (1, 2, 4, 5)]
    assert second.permits == 1_000 - 2 - 3 * 3
    scene.subscription.close()


async def test_reset_is_where_the_next_consumer_begins(world: ManagedWorld) -> None:
    scene = Scene(await world.factory().open(NAME))
    await scene.subscribe()
    await scene.publish(6)
    first = scene.join("a", SubscriptionType.SHARED)
    await scene.received(first, 6)
    scene.acknowledge(first, scene.positions)
    await scene.subscription.reset(scene.positions[4])
    second = scene.join("b", SubscriptionType.SHARED)
    assert await scene.received(second, 2) == scene.positions[4:]
    scene.subscription.close()


class Snapshots:
    """Those that were handed over: the entry, and where the mark was."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.read_at: list[tuple[Position, Position]] = []

    def read(self, markers: list[Entry]) -> None:
        self.read_at += [(one.position, self.scene.subscription.cursor.mark_delete) for one in markers]


@pytest.mark.parametrize("kind", ALL_TYPES)
async def test_snapshots_are_handed_over_before_the_mark_passes_them(
    world: ManagedWorld, kind: SubscriptionType
) -> None:
    scene = Scene(await world.factory().open(NAME))
    await scene.subscribe()
    snapshots = Snapshots(scene)
    consumer = scene.join("a", kind)

    async def publish_around(marker_type: int) -> Position:
        await scene.publish(1)
        at = await append(scene.ledger, [stored_message(marker_type=marker_type)])
        await scene.publish(1)
        assert await scene.received(consumer, 2) == scene.positions[-2:]
        scene.acknowledge(consumer, scene.positions[-2:])
        return at

    await publish_around(12)
    scene.subscription.keep_snapshots(snapshots)
    await publish_around(10)
    wanted = await publish_around(12)
    ((position, mark),) = snapshots.read_at
    assert mark < wanted == position
    scene.subscription.remove_consumer(consumer)
    consumer = scene.join("b", kind)
    await publish_around(12)
    assert len(snapshots.read_at) == 2
    scene.subscription.keep_snapshots(None)
    await publish_around(12)
    assert len(snapshots.read_at) == 2
    assert scene.subscription.backlog == 0
