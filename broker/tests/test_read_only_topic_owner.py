"""Subscriptions that are held at the broker that writes their topic, and what that broker has of them afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from magnetar.admin_client.client import AdminAnswer
from magnetar.broker.read_only.kept_position import KeepSettings, KeptPosition
from magnetar.broker.read_only.topic_owner import OwnerParts, RemoteTopicOwner
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ClientConsumer, ConsumerOptions
from magnetar.client.message import Message, OutgoingMessage
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.ack_state import AckState
from magnetar.managed.ledger_list import LedgerList, LedgerRecord
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError

TOPIC = TopicName.parse("persistent://public/default/read")
QUICK = ClientSettings(backoff_seconds_min=0.005, backoff_seconds_max=0.05)
KEEP = KeepSettings(rate_seconds=0.01, patience_seconds=20.0, close_seconds=5.0)


class CountingAdmin:
    """The owner's admin API, which a test may have answer something else."""

    def __init__(self, broker: Callable[[], MemoryBroker]) -> None:
        self._broker = broker
        self.calls: list[tuple[str, str]] = []
        self.instead: bytes | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def call(self, method: str, path: str, *, body: object = None) -> AdminAnswer:
        self.calls.append((method, path))
        await self.goes_on.wait()
        if self.instead is not None:
            return AdminAnswer(200, self.instead)
        answer: AdminAnswer = await self._broker().running.context.peers.call(method, path, body=body)
        return answer


@dataclass
class World:
    """An owner with a topic, and who takes subscriptions from it."""

    broker: MemoryBroker
    client: PulsarClient
    parts: OwnerParts
    admin: CountingAdmin
    owner: RemoteTopicOwner
    lost: list[tuple[str, MagnetarError]] = field(default_factory=list)

    @property
    def ledger(self) -> Any:
        return self.broker.service.topics[str(TOPIC)].ledger

    def acks_of(self, kept: KeptPosition) -> AckState:
        """As a followed ledger makes it."""
        records = [LedgerRecord(each.ledger_id, each.entries) for each in self.ledger.ledgers.records()]
        acks = AckState(LedgerList(records), kept.mark_delete)
        acks.load_ranges(kept.acknowledged)
        return acks

    async def take(self, subscription: str = "s", start: Position = EARLIEST) -> tuple[KeptPosition, AckState]:
        kept = await self.owner.keep(subscription, start, {})
        acks = self.acks_of(kept)
        assert kept.store(acks) is kept
        return kept, acks

    async def publish(self, count: int, size: int = 1) -> list[Position]:
        """So many entries, each a batch when `size` is more than 1."""
        producer = await self.client.producer(TOPIC)
        positions = []
        for number in range(count):
            batch = [OutgoingMessage(b"%d.%d" % (number, each)) for each in range(size)]
            ids = await producer.send_batch(batch) if size > 1 else [await producer.send(batch[0])]
            positions.append(ids[0].position)
        await producer.close()
        return positions

    async def consumer(self, subscription: str = "s", **options: Any) -> ClientConsumer:
        return await self.client.consumer(TOPIC, ConsumerOptions(subscription=subscription, **options))

    async def rest(self, subscription: str = "s") -> list[bytes]:
        """What an ordinary consumer at the owner gets: all that is not acknowledged, up to a last message."""
        producer = await self.client.producer(TOPIC)
        await producer.send(OutgoingMessage(b"end"))
        await producer.close()
        consumer = await self.consumer(subscription)
        found: list[bytes] = []
        while not found or found[-1] != b"end":
            message: Message = await asyncio.wait_for(consumer.receive(), 60)
            found.append(message.payload)
        await consumer.close()
        return found[:-1]


async def acknowledge(kept: KeptPosition, acks: AckState, *positions: Position) -> None:
    acks.acknowledge(positions)
    kept.changed()
    await kept.flush()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with MemoryBroker(BrokerSettings(cluster_name="memory")) as broker:
        client = PulsarClient(lambda: broker.running.settings.service_url, SystemClock(), QUICK)
        admin = CountingAdmin(lambda: broker)
        parts = OwnerParts(
            client=lambda: client,
            admin=admin,
            store=broker.store,
            clock=SystemClock(),
            broker_id="reader:1",
            settings=KEEP,
        )
        lost: list[tuple[str, MagnetarError]] = []
        owner = RemoteTopicOwner(TOPIC, parts, lambda name, error: lost.append((name, error)))
        world = World(broker, client, parts, admin, owner, lost)
        await (await client.producer(TOPIC)).close()
        yield world
        await owner.close()
        await client.close()


# --- the last entry


async def test_the_last_entry_is_asked_for_once_for_all_who_want_it(world: World) -> None:
    assert await world.owner.last_confirmed() == (-1, -1)
    positions = await world.publish(3)
    assert await asyncio.gather(*(world.owner.last_confirmed() for _ in range(5))) == [positions[-1]] * 5
    subscriptions = world.broker.service.topics[str(TOPIC)].subscriptions
    assert list(subscriptions) == ["read-only-broker-reader:1"]
    assert not subscriptions["read-only-broker-reader:1"].durable
    (batch,) = await world.publish(1, size=3)
    assert await world.owner.last_confirmed() == batch


async def test_a_topic_that_is_gone_has_no_last_entry(world: World) -> None:
    other = RemoteTopicOwner(TopicName.parse("persistent://public/default/gone"), world.parts, lambda *_: None)
    with pytest.raises(PulsarError) as caught:
        await other.last_confirmed()
    assert caught.value.code == ServerError.TOPIC_NOT_FOUND
    await other.close()
    with pytest.raises(Unavailable):
        await other.last_confirmed()


# --- taken, acknowledged, given back


async def test_what_was_acknowledged_here_does_not_come_again_at_the_owner(world: World) -> None:
    kept, acks = await world.take()
    positions = await world.publish(10)
    acks = kept.acks = world.acks_of(kept)
    kept.store(acks)
    await acknowledge(kept, acks, positions[0], positions[1], positions[4], positions[5], positions[8])
    subscription = world.broker.service.topics[str(TOPIC)].subscriptions["s"]
    assert subscription.cursor.mark_delete == positions[1]
    assert not kept.dirty
    acks.acknowledge([positions[2]])
    kept.changed()
    await kept.close()
    assert not subscription.consumers
    assert await world.rest() == [b"3.0", b"6.0", b"7.0", b"9.0"]


async def test_a_subscription_comes_with_its_mark_and_what_lies_behind_holes(world: World) -> None:
    consumer = await world.consumer(kind=SubscriptionType.SHARED, from_earliest=True)
    positions = await world.publish(8)
    got = [await consumer.receive() for _ in range(8)]
    await consumer.acknowledge([got[number].id for number in (0, 1, 3, 6)])
    await consumer.close()
    kept, acks = await world.take()
    assert kept.mark_delete == positions[1]
    assert [number for number in range(8) if acks.is_acknowledged(positions[number])] == [0, 1, 3, 6]
    await acknowledge(kept, acks, positions[4])
    await kept.close()
    assert await world.rest() == [b"2.0", b"5.0", b"7.0"]


async def test_a_part_of_a_batch_is_told(world: World) -> None:
    await (await world.consumer(from_earliest=True)).close()
    positions = await world.publish(3, size=4)
    kept, acks = await world.take()
    acks.acknowledge_batch_indexes(positions[1], [0b0110], 4)
    kept.changed()
    await kept.close()
    assert await world.rest() == [b"0.0", b"0.1", b"0.2", b"0.3", b"1.1", b"1.2", b"2.0", b"2.1", b"2.2", b"2.3"]
