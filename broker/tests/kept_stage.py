"""An owner of a topic, and who keeps the positions of its subscriptions from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from magnetar.admin_client.client import AdminAnswer
from magnetar.broker.read_only.keep_settings import KeepSettings
from magnetar.broker.read_only.kept_position import KeptPosition
from magnetar.broker.read_only.topic_owner import OwnerParts, RemoteTopicOwner
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ClientConsumer, ConsumerOptions
from magnetar.client.message import Message, OutgoingMessage
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.ack_state import AckState

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


class GatedStore:
    """The owner's metadata store, as far as it is read; a test may have nobody see what is there for a while."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def get(self, path: str, *, watch: bool = True) -> Any:
        return await self._store.get(path, watch=watch)

    async def exists(self, path: str, *, watch: bool = True) -> Any:
        await self.goes_on.wait()
        return await self._store.exists(path, watch=watch)


@dataclass
class World:
    """An owner with a topic, and who takes subscriptions from it."""

    broker: MemoryBroker
    client: PulsarClient
    parts: OwnerParts
    admin: CountingAdmin
    store: GatedStore
    owner: RemoteTopicOwner
    lost: list[tuple[str, MagnetarError]] = field(default_factory=list)

    @property
    def ledger(self) -> Any:
        return self.broker.service.topics[str(TOPIC)].ledger

    def acks_of(self, kept: KeptPosition) -> AckState:
        """As a followed ledger makes it."""
        acks = AckState(self.ledger.ledgers, kept.mark_delete)
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


@asynccontextmanager
async def stage(broker: MemoryBroker) -> AsyncIterator[World]:
    """An empty topic."""
    client = PulsarClient(lambda: broker.running.settings.service_url, SystemClock(), QUICK)
    admin = CountingAdmin(lambda: broker)
    store = GatedStore(broker.store)
    gated: Any = store
    parts = OwnerParts(
        client=lambda: client,
        admin=admin,
        store=gated,
        clock=SystemClock(),
        broker_id="reader:1",
        settings=KEEP,
    )
    lost: list[tuple[str, MagnetarError]] = []
    owner = RemoteTopicOwner(TOPIC, parts, lambda name, error: lost.append((name, error)))
    world = World(broker, client, parts, admin, store, owner, lost)
    await (await client.producer(TOPIC)).close()
    try:
        yield world
    finally:
        await owner.close()
        await client.close()
