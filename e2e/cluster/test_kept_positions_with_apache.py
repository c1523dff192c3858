"""Subscriptions of a topic that Apache's broker writes, whose positions we keep there: what we find, and what it has
afterwards, through unloads, seeks and a kill."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from magnetar.admin_client.client import AdminAnswer
from magnetar.broker.peers.peer_client import PeerClient
from magnetar.broker.read_only.keep_settings import KeepSettings
from magnetar.broker.read_only.kept_position import KeptPosition, PositionMoved
from magnetar.broker.read_only.topic_owner import OwnerParts, RemoteTopicOwner
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ClientConsumer, ConsumerOptions
from magnetar.client.message import Message, OutgoingMessage
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.ack_state import AckState
from magnetar.managed.ledger_list import LedgerList, LedgerRecord
from magnetar.metadata.factory import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError

from e2e.interchange import brokers, parts
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import BrokerPart

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TOPIC: Final = TopicName.parse("persistent://public/default/kept")
PATH: Final = "/admin/v2/persistent/public/default/kept"
SECONDS_MAX: Final = 60.0
MANY: Final = 3_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Where Apache's broker is to be."""
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path) as running:
        running.initialize_pulsar(transaction_coordinators=1)
        running.start(running.our_bookie("bookie"))
        yield running


@dataclass
class World:
    """What asks the broker, and what was published."""

    broker: BrokerPart
    client: PulsarClient
    peers: PeerClient
    owner: RemoteTopicOwner
    positions: list[Position] = field(default_factory=list)
    lost: list[tuple[str, MagnetarError]] = field(default_factory=list)

    async def call(self, method: str, path: str, body: object = None) -> AdminAnswer:
        answer: AdminAnswer = await self.peers.call(method, PATH + path, body=body)
        return answer

    async def publish(self, count: int) -> None:
        producer = await self.client.producer(TOPIC)
        first = len(self.positions)
        sent = [producer.send(OutgoingMessage(b"%d" % number)) for number in range(first, first + count)]
        for message_id in await asyncio.gather(*sent):
            self.positions.append(message_id.position)
        await producer.close()

    async def consumer(self, subscription: str) -> ClientConsumer:
        options = ConsumerOptions(subscription=subscription, kind=SubscriptionType.SHARED, from_earliest=True)
        return await self.client.consumer(TOPIC, options)

    async def consume(self, subscription: str, up_to: int, acknowledged: set[int] | None = None) -> list[int]:
        """What a Shared consumer is sent until this number has come; it acknowledges these of it."""
        consumer = await self.consumer(subscription)
        got: dict[int, Message] = {}
        while up_to not in got:
            message = await asyncio.wait_for(consumer.receive(), SECONDS_MAX)
            got[int(message.payload)] = message
        await consumer.acknowledge([got[number].id for number in sorted(acknowledged or ())])
        await consumer.close()
        return sorted(got)

    async def take(self, subscription: str, start: Position = EARLIEST) -> tuple[KeptPosition, AckState]:
        kept = await self.owner.keep(subscription, start, {})
        entries: dict[int, int] = {}
        for ledger_id, entry_id in self.positions:
            entries[ledger_id] = max(entries.get(ledger_id, 0), entry_id + 1)
        acks = AckState(LedgerList([LedgerRecord(*each) for each in sorted(entries.items())]), kept.mark_delete)
        acks.load_ranges(kept.acknowledged)
        kept.store(acks)
        return kept, acks

    async def acknowledge(self, kept: KeptPosition, acks: AckState, *numbers: int) -> None:
        acks.acknowledge([self.positions[number] for number in numbers])
        kept.changed()
        await kept.flush()

    async def at_owner(self, subscription: str) -> tuple[Position, str]:
        """Mark and stretches of a subscription in internalStats."""
        cursor = json.loads((await self.call("GET", "/internalStats")).body)["cursors"][subscription]
        ledger_id, entry_id = cursor["markDeletePosition"].split(":")
        return (int(ledger_id), int(entry_id)), cursor["individuallyDeletedMessages"]

    def beyond(self, *numbers: int) -> str:
        """These single entries, as internalStats has them."""
        return f"[{','.join(self._stretch(self.positions[number]) for number in numbers)}]"

    @staticmethod
    def _stretch(position: Position) -> str:
        ledger_id, entry_id = position
        return f"({ledger_id}:{entry_id - 1}..{ledger_id}:{entry_id}]"


@asynccontextmanager
async def stage(broker: BrokerPart, store: MetadataStore) -> AsyncIterator[World]:
    client = PulsarClient(lambda: broker.service_url, SystemClock())
    peers = PeerClient(lambda: broker.admin_url)
    settings = KeepSettings(patience_seconds=SECONDS_MAX)
    lost: list[tuple[str, MagnetarError]] = []
    owner = RemoteTopicOwner(
        TOPIC,
        OwnerParts(
            client=lambda: client,
            admin=peers,
            store=store,
            clock=SystemClock(),
            broker_id="reader:8080",
            settings=settings,
        ),
        lambda name, error: lost.append((name, error)),
    )
    try:
        yield World(broker, client, peers, owner, lost=lost)
    finally:
        await owner.close()
        await client.close()
        await peers.close()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not holds():  # noqa: ASYNC110, as what is waited for has no event of its own
            await asyncio.sleep(0.05)


def code_of(error: BaseException) -> Any:
    return getattr(error, "code", None)


async def test_positions_go_to_apaches_broker_and_come_from_there(cluster: Cluster) -> None:
    broker = cluster.apache_broker((1, 1, 1))
    brokers.start_with_namespace(cluster, broker)
    store = await open_store(f"zk:{cluster.zookeeper.address}")
    try:
        async with stage(broker, store) as world:
            await taken_and_given_back(world)
            await through_seeks_and_unloads(world)
            await lost_and_deleted(world)
            await many_holes(world)
    finally:
        await store.close()


async def taken_and_given_back(world: World) -> None:
    """What a Shared consumer of the broker left is found; what is acknowledged here is not sent there."""
    await (await world.consumer("s")).close()
    await world.publish(10)
    assert await world.owner.last_confirmed() == world.positions[9]
    assert await world.consume("s", 9, {0, 1, 3, 6}) == list(range(10))
    old = await world.owner.keep("old", EARLIEST, {})
    new = await world.owner.keep("new", LATEST, {"a": "b"})
    assert (old.mark_delete, new.mark_delete) == ((world.positions[0][0], -1), world.positions[9])
    await asyncio.gather(old.close(), new.close())
    again = await world.owner.keep("new", EARLIEST, {})
    assert (again.mark_delete, again.cursor_properties) == (world.positions[9], {"a": "b"})
    await again.close()
    kept, acks = await world.take("s")
    assert kept.mark_delete == world.positions[1]
    assert [number for number in range(10) if acks.is_acknowledged(world.positions[number])] == [0, 1, 3, 6]
    with pytest.raises(PulsarError) as caught:
        await world.consumer("s")
    assert code_of(caught.value) == ServerError.CONSUMER_BUSY
    await world.acknowledge(kept, acks, 2, 8)
    assert await world.at_owner("s") == (world.positions[3], world.beyond(6, 8))
    await kept.close()
    assert await world.consume("s", 9) == [4, 5, 7, 9]


async def through_seeks_and_unloads(world: World) -> None:
    """The same position after the broker has let go of the topic, was told to seek, and was killed."""
    kept, acks = await world.take("s")
    await world.call("PUT", "/unload")
    await world.acknowledge(kept, acks, 4)
    assert await world.at_owner("s") == (world.positions[4], world.beyond(6, 8))
    acks.reset(world.positions[1])
    kept.changed()
    await kept.flush()
    assert await world.at_owner("s") == (world.positions[1], "[]")
    await world.acknowledge(kept, acks, 5)
    acks.reset(world.positions[2])
    kept.changed()
    await kept.flush()
    assert await world.at_owner("s") == (world.positions[2], "[]")
    world.broker.kill()
    told = asyncio.ensure_future(world.acknowledge(kept, acks, 3, 7))
    await asyncio.to_thread(world.broker.start)
    await asyncio.wait_for(told, SECONDS_MAX)
    assert await world.at_owner("s") == (world.positions[3], world.beyond(7))
    # To the end, which is behind the last entry that there is.
    acks.reset(world.positions[9])
    kept.held_again(let_go=False)
    await kept.flush()
    assert await world.at_owner("s") == (world.positions[9], "[]")
    acks.reset(world.positions[3])
    await world.acknowledge(kept, acks, 7)
    await kept.close()
    assert world.lost == []
    assert await world.consume("s", 9) == [4, 5, 6, 8, 9]


async def lost_and_deleted(world: World) -> None:
    """A position that is moved there is given up; a subscription that is deleted here is gone there."""
    kept, acks = await world.take("s")
    await world.acknowledge(kept, acks, 4, 5, 6)
    ledger_id, entry_id = world.positions[1]
    await world.call("POST", "/subscription/s/resetcursor", {"ledgerId": ledger_id, "entryId": entry_id})
    await until(lambda: world.lost)
    ((name, error),) = world.lost
    assert (name, type(error)) == ("s", PositionMoved)
    await kept.close()
    world.lost.clear()
    kept, _ = await world.take("s")
    await world.call("DELETE", "/subscription/s?force=true")
    await until(lambda: world.lost)
    assert code_of(world.lost[0][1]) == ServerError.SUBSCRIPTION_NOT_FOUND
    await kept.close()
    world.lost.clear()
    kept, _ = await world.take("new")
    await kept.delete()
    cursors = json.loads((await world.call("GET", "/internalStats")).body)["cursors"]
    assert {"s", "new"} & set(cursors) == set()


async def many_holes(world: World) -> None:
    """Every second of a few thousand, in either direction."""
    await (await world.consumer("many")).close()
    await world.publish(MANY)
    last = len(world.positions) - 1
    kept, acks = await world.take("many")
    half = set(range(1, last, 2))
    await world.acknowledge(kept, acks, *half)
    await kept.close()
    kept, acks = await world.take("many")
    assert {number for number in range(last + 1) if acks.is_acknowledged(world.positions[number])} == half
    await kept.close()
    assert await world.consume("many", last) == [number for number in range(last + 1) if number not in half]
