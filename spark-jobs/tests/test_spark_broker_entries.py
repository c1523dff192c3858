from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pulsar
import pytest
from magnetar.broker.testing.sessions import MemoryBroker, message
from magnetar.client.consumer import ConsumerOptions
from magnetar.client.message import Message, MessageId, OutgoingMessage, messages_of_entry
from magnetar.client.producer import ProducerOptions
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST
from magnetar.core.topic_name import TopicName
from magnetar.ledger.api import LedgerOptions
from magnetar.managed.compaction import COMPACTION_CURSOR, LEDGER_PROPERTY
from magnetar.spark.brokers import entries as broker_entries
from magnetar.spark.brokers.client_factory import make_client
from magnetar.spark.brokers.entries import BrokerEntries
from magnetar.spark.entries import EntryBlock, Hole
from magnetar.spark.errors import ClusterUnreachable, TopicMissing
from magnetar.spark.options.connection import ConnectionOptions
from magnetar.spark.planning.plan import stretch_ranges
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.slices import LedgerRange
from magnetar.standalone.threaded import ThreadedCluster
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.compacted import encode_compacted
from magnetar.wire.pulsar.compression_type import Compression

NAME = "persistent://public/default/t"
TOPIC = TopicName.parse(NAME)


class World:
    """A broker and a client."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.client = make_client(
            ConnectionOptions(service_url=broker.running.settings.service_url, operation_timeout_seconds=10)
        )

    async def send(self, count: int, first: int = 0, **options: Any) -> list[MessageId]:
        producer = await self.client.producer(TOPIC, ProducerOptions(**options))
        messages = [OutgoingMessage(b"m%d" % number) for number in range(first, first + count)]
        ids = await (producer.send_batch(messages) if options else producer.send_all(messages))
        await producer.close()
        return ids

    async def keep(self) -> None:
        """A subscription that holds all messages."""
        await (await self.client.consumer(TOPIC, ConsumerOptions(subscription="keep", from_earliest=True))).close()

    async def call(self, method: str, path: str) -> None:
        import aiohttp

        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"{self.broker.admin_url}/admin/v2/persistent/public/default/t{path}") as answer,
        ):
            assert answer.status < 300, await answer.text()

    async def add(self, entry: bytes) -> None:
        """Store it as it is, past the checks of SEND."""
        topic = await self.broker.service.topic(TOPIC, create=False)
        stored = asyncio.get_running_loop().create_future()
        topic.ledger.appends.append([entry], lambda *outcome: stored.set_result(outcome), None)
        await stored

    async def ledgers(self) -> list[tuple[int, int]]:
        """(id, entries) of each."""
        topic = await self.broker.service.topic(TOPIC, create=False)
        return [(each.ledger_id, each.entries) for each in topic.ledger.internal_stats().ledgers]

    async def ranges(self) -> list[LedgerRange]:
        return [range_of(ledger_id, 0, entries - 1) for ledger_id, entries in await self.ledgers() if entries]

    def entries(self, **options: Any) -> BrokerEntries:
        return BrokerEntries(self.client, NAME, **{"patience_seconds": 5.0, **options})


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with MemoryBroker() as broker:
        made = World(broker)
        yield made
        await made.client.close()


def range_of(ledger_id: int, first: int, last: int) -> LedgerRange:
    return LedgerRange(ledger_id=ledger_id, first_entry_id=first, last_entry_id=last, size_bytes=0)


def no_hole(hole: Hole) -> None:
    raise AssertionError(str(hole))


async def read(
    source: BrokerEntries,
    ranges: list[LedgerRange],
    on_hole: Callable[[Hole], None] = no_hole,
) -> list[EntryBlock]:
    blocks = [block async for block in source.blocks(ranges, on_hole)]
    await source.close()
    return blocks


def messages_in(blocks: list[EntryBlock]) -> list[Message]:
    return [
        each
        for block in blocks
        for entry_id, entry in zip(block.entry_ids, block.entries, strict=True)
        for each in messages_of_entry(entry, MessageId(block.ledger_id, entry_id), 0, [])
    ]


def payloads(blocks: list[EntryBlock]) -> list[bytes]:
    return [each.payload for each in messages_in(blocks)]


def texts(count: int, first: int = 0) -> list[bytes]:
    return [b"m%d" % number for number in range(first, first + count)]


async def test_all_entries_and_parts(world: World) -> None:
    await world.send(20)
    [whole] = await world.ranges()
    source = world.entries()
    assert payloads(await read(source, [whole])) == texts(20)
    part = range_of(whole.ledger_id, 5, 8)
    [block] = await read(source, [part])
    assert list(block.entry_ids) == [5, 6, 7, 8]
    assert payloads([block]) == texts(4, 5)
    assert payloads(await read(source, [range_of(whole.ledger_id, 19, 19)])) == texts(1, 19)
    assert await read(source, []) == []
    await source.close()


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4, Compression.ZSTD])
async def test_batches_stay_whole(world: World, compression: Compression) -> None:
    await world.send(300, compression=compression)
    await world.send(300, 300, compression=compression)
    [whole] = await world.ranges()
    blocks = await read(world.entries(), [whole])
    assert [len(block.entries) for block in blocks] == [2]
    assert payloads(blocks) == texts(600)


async def test_several_ledgers_and_those_that_nobody_knows(world: World) -> None:
    for part in range(3):
        await world.send(4, 4 * part)
        await world.keep()
        await world.call("PUT", "/unload")
    ranges = await world.ranges()
    assert len(ranges) == 3
    blocks = await read(world.entries(), ranges)
    assert [block.ledger_id for block in blocks] == [each.ledger_id for each in ranges]
    assert payloads(blocks) == texts(12)
    end = MessagePosition(ranges[2].ledger_id, 3)
    assert payloads(await read(world.entries(), [*stretch_ranges(BEGINNING, end)])) == texts(11)
    middle = MessagePosition(ranges[0].ledger_id, 2)
    assert payloads(await read(world.entries(), [*stretch_ranges(middle, end)])) == texts(9, 2)


@pytest.mark.parametrize(("entry_bytes", "permits"), [(0, 8), (100, 40), (3 << 20, 2), (100 << 20, 1)])
async def test_a_broker_is_asked_for_no_more_than_there_is_room_for(
    world: World, monkeypatch: pytest.MonkeyPatch, entry_bytes: int, permits: int
) -> None:
    await world.send(40)
    [whole] = await world.ranges()
    asked: list[int] = []
    flow = requests.flow

    def noted(consumer_id: int, count: int) -> Any:
        asked.append(count)
        return flow(consumer_id, count)

    monkeypatch.setattr(requests, "flow", noted)
    part = replace(whole, size_bytes=entry_bytes * whole.entries)
    assert payloads(await read(world.entries(), [part])) == texts(40)
    assert asked[0] == permits


async def test_many_entries_of_all_sizes_within_the_bounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_entries, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr(broker_entries, "AHEAD_BYTES_MAX", 80_000)
    producer = await world.client.producer(TOPIC)
    sizes = [10] * 500 + [5_000] * 100 + [1] * 500
    await producer.send_all([OutgoingMessage(b"x" * size) for size in sizes])
    await producer.send_batch([OutgoingMessage(b"y") for _ in range(900)])
    await producer.send_all([OutgoingMessage(b"z") for _ in range(300)])
    [whole] = await world.ranges()
    source = world.entries()
    held = 0
    found: list[EntryBlock] = []
    async for block in source.blocks([whole], no_hole):
        assert source._reader is not None
        held = max(held, source._reader._held_bytes)
        found.append(block)
        await asyncio.sleep(0.002)  # A decoder that is slower than the broker.
    assert [len(each) for each in payloads(found)] == sizes + [1] * 1200
    assert len(found) > 20
    # One read of a broker, 100 entries of 5 kB, may come on top.
    assert held < 80_000 + 500_000 + 20_000


async def test_what_the_broker_leaves_out_is_not_waited_for(world: World) -> None:
    await world.send(3)
    marker = message(b"", marker_type=21, sequence_id=1)
    await world.add(marker)
    await world.send(2, 3)
    await world.add(marker)
    await world.add(marker)
    [whole] = await world.ranges()
    assert whole.entries == 8
    [block] = await read(world.entries(), [whole])
    assert list(block.entry_ids) == [0, 1, 2, 4, 5]
    assert await read(world.entries(), [range_of(whole.ledger_id, 6, 7)]) == []


async def test_unloading_in_the_middle_loses_and_repeats_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_entries, "BLOCK_BYTES", 2_000)
    monkeypatch.setattr(broker_entries, "AHEAD_BYTES_MAX", 8_000)
    await world.keep()
    for first in range(0, 2_000, 500):
        await world.send(500, first)
    await world.call("PUT", "/unload")
    await world.send(500, 2_000)
    found: list[EntryBlock] = []
    unloads = 0
    async for block in world.entries().blocks(await world.ranges(), no_hole):
        found.append(block)
        if len(found) % 10 == 5 and unloads < 4:
            unloads += 1
            await world.call("PUT", "/unload")
    assert unloads == 4
    assert payloads(found) == texts(2_500)


async def test_a_lost_connection_in_the_middle(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_entries, "BLOCK_BYTES", 2_000)
    monkeypatch.setattr(broker_entries, "AHEAD_BYTES_MAX", 8_000)
    await world.send(1_000)
    found: list[EntryBlock] = []
    async for block in world.entries().blocks(await world.ranges(), no_hole):
        found.append(block)
        if len(found) in (3, 9):
            for connection in world.client._parts.pool._connections.values():
                connection._connection.abort()
    assert payloads(found) == texts(1_000)


async def test_a_topic_that_is_not_there(world: World) -> None:
    with pytest.raises(TopicMissing, match="public/default/t"):
        await read(world.entries(), [range_of(3, 0, 10)])
    assert NAME not in world.broker.service.topics


async def test_a_topic_that_is_deleted_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_entries, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(broker_entries, "AHEAD_BYTES_MAX", 4_000)
    await world.send(2_000)
    [whole] = await world.ranges()

    async def read_and_delete() -> None:
        count = 0
        async for _ in world.entries().blocks([whole], no_hole):
            count += 1
            if count == 2:
                await world.call("DELETE", "?force=true")

    with pytest.raises(TopicMissing, match="public/default/t"):
        await read_and_delete()


async def test_ledgers_that_are_gone_are_holes_where_somebody_can_tell(world: World) -> None:
    await world.send(3)
    [gone] = await world.ranges()
    await world.call("DELETE", "/truncate")
    await world.send(2, 3)
    there = await world.ranges()

    async def ledger_ids(topic: str) -> frozenset[int]:
        assert topic == NAME
        return frozenset(ledger_id for ledger_id, _ in await world.ledgers())

    holes: list[Hole] = []
    source = world.entries(ledger_ids=ledger_ids)
    assert payloads(await read(source, [gone, *there], holes.append)) == texts(2, 3)
    assert [(hole.ledger_id, hole.first_entry_id, hole.last_entry_id) for hole in holes] == [(gone.ledger_id, 0, 2)]
    assert payloads(await read(world.entries(), [gone, *there])) == texts(2, 3)
    assert await read(world.entries(ledger_ids=ledger_ids), [gone], holes.append) == []
    assert len(holes) == 2
    assert await read(world.entries(ledger_ids=ledger_ids, read_compacted=True), [gone]) == []


async def test_a_wrong_checksum_is_a_hole(world: World) -> None:
    await world.send(1)
    damaged = bytearray(message(b"abc", sequence_id=1))
    damaged[-1] ^= 1
    await world.add(bytes(damaged))
    await world.send(1, 1)
    holes: list[Hole] = []
    assert payloads(await read(world.entries(), await world.ranges(), holes.append)) == texts(2)
    assert [hole.first_entry_id for hole in holes] == [1]


async def test_a_broker_that_says_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.send(3)
    [whole] = await world.ranges()
    monkeypatch.setattr(broker_entries.BrokerEntryReader, "arrived", lambda *_: None)
    with pytest.raises(ClusterUnreachable, match=f"{whole.ledger_id}:0 to {whole.ledger_id}:2 is still to come"):
        await read(world.entries(patience_seconds=0.3), [whole])


async def test_stopping_early_leaves_nothing_behind(world: World) -> None:
    await world.send(10)
    source = world.entries()
    blocks = source.blocks(await world.ranges(), no_hole)
    async for _ in blocks:
        break
    await blocks.aclose()  # type: ignore[attr-defined]
    topic = await world.broker.service.topic(TOPIC, create=False)
    async with asyncio.timeout(5):
        while topic.subscriptions:
            await asyncio.sleep(0.005)


class Listener:
    """Of a ledger that is written once."""

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        pass

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        raise error


async def compact(broker: MemoryBroker, kept: list[MessageId], up_to: MessageId) -> None:
    """What a compaction up to a message does that leaves these."""
    assert broker.ledgers is not None
    topic = broker.service.topics[NAME]
    writer = await broker.ledgers.create(LedgerOptions(ensemble_size=1, write_quorum=1, ack_quorum=1), Listener())
    entries = [await topic.ledger.read_entry(message_id.position) for message_id in kept]
    writer.append([encode_compacted(entry.position, entry.data) for entry in entries])
    await writer.close()
    subscription = await topic.create_subscription(COMPACTION_CURSOR, EARLIEST)
    subscription.cursor.acknowledge_cumulative(up_to.position)
    await subscription.cursor.set_properties({LEDGER_PROPERTY: writer.ledger_id})


async def test_compacted_topics(world: World) -> None:
    ids = await world.send(10)
    await compact(world.broker, [ids[2], ids[5], ids[6]], ids[9])
    [whole] = await world.ranges()
    kept = await read(world.entries(read_compacted=True), [whole])
    assert payloads(kept) == [b"m2", b"m5", b"m6"]
    assert list(kept[0].entry_ids) == [2, 5, 6]
    assert payloads(await read(world.entries(), [whole])) == texts(10)
    part = range_of(whole.ledger_id, 7, 9)
    assert await read(world.entries(read_compacted=True), [part]) == []
    await world.send(2, 10)
    [whole] = await world.ranges()
    assert payloads(await read(world.entries(read_compacted=True), [whole])) == [b"m2", b"m5", b"m6", b"m10", b"m11"]


@pytest.mark.slow
def test_messages_of_the_stock_client() -> None:
    with ThreadedCluster() as cluster:
        name = cluster.unique_topic()
        stock = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        for kind, batching in ((pulsar.CompressionType.NONE, False), (pulsar.CompressionType.ZLib, True)):
            producer = stock.create_producer(
                name, compression_type=kind, batching_enabled=batching, block_if_queue_full=True
            )
            for number in range(500):
                producer.send_async(b"m%d" % number, lambda *_: None, properties={"n": str(number)})
            producer.flush()
        stock.close()
        blocks = asyncio.run(_read_all(cluster.service_url, name))
    assert payloads(blocks) == texts(500) * 2


async def _read_all(service_url: str, name: str) -> list[EntryBlock]:
    client = make_client(ConnectionOptions(service_url=service_url))
    try:
        end = await client.reader(TopicName.parse(name))
        last = await end.last_message_id()
        ranges = stretch_ranges(BEGINNING, MessagePosition(last.ledger_id, last.entry_id + 1))
        return await read(BrokerEntries(client, name), [*ranges])
    finally:
        await client.close()
