"""Readers of topics that a compaction went through, as Apache's brokers do with their system topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.compaction import compacted_cursor
from magnetar.broker.compaction.compacted_cursor import CHUNK_ENTRIES, CompactedCursor
from magnetar.broker.compaction.compacted_topic import Compaction
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.client.client import PulsarClient
from magnetar.client.message import EARLIEST_ID, LATEST_ID, Message, MessageId, OutgoingMessage
from magnetar.client.reader import Reader, ReaderOptions
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.ledger.api import LedgerOptions, LedgerReader
from magnetar.managed.compaction import COMPACTION_CURSOR, LEDGER_PROPERTY
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.compacted import decode_compacted, encode_compacted
from magnetar.wire.pulsar.errors import BadMetadata

TOPIC = TopicName.parse("persistent://public/default/t")


class Listener:
    """Of a ledger that is written once."""

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        pass

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        raise error


async def compact(broker: MemoryBroker, kept: list[MessageId], up_to: MessageId) -> None:
    """What a compaction up to a message does that leaves these."""
    assert broker.ledgers is not None
    topic = broker.service.topics[str(TOPIC)]
    writer = await broker.ledgers.create(LedgerOptions(ensemble_size=1, write_quorum=1, ack_quorum=1), Listener())
    if kept:
        entries = [await topic.ledger.read_entry(message_id.position) for message_id in kept]
        writer.append([encode_compacted(entry.position, entry.data) for entry in entries])
    await writer.close()
    subscription = await topic.create_subscription(COMPACTION_CURSOR, EARLIEST)
    subscription.cursor.acknowledge_cumulative(up_to.position)
    await subscription.cursor.set_properties({LEDGER_PROPERTY: writer.ledger_id})


@pytest.fixture
async def client(memory_broker: MemoryBroker) -> AsyncIterator[PulsarClient]:
    settings = ClientSettings(receiver_queue_size=4, backoff_seconds_min=0.005)
    client = PulsarClient(lambda: memory_broker.running.settings.service_url, SystemClock(), settings)
    yield client
    await client.close()


async def publish(client: PulsarClient, count: int, first: int = 0) -> list[MessageId]:
    producer = await client.producer(TOPIC)
    ids = await producer.send_all([OutgoingMessage(b"%d" % number) for number in range(first, first + count)])
    await producer.close()
    return ids


async def rest(reader: Reader) -> list[bytes]:
    messages: list[bytes] = []
    while (message := await reader.next_or_end()) is not None:
        messages.append(message.payload)
    return messages


def numbers(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


COMPACTED = ReaderOptions(read_compacted=True)


@pytest.fixture(params=[False, True], ids=["all there", "trimmed"])
async def compacted(request: Any, memory_broker: MemoryBroker, client: PulsarClient) -> list[MessageId]:
    """Messages 0 to 9, of which 2, 5 and 6 are left; the topic itself may have lost them all."""
    ids = await publish(client, 10)
    await compact(memory_broker, [ids[2], ids[5], ids[6]], ids[9])
    if request.param:
        await memory_broker.service.unload(TOPIC)
    return ids


async def test_what_is_left_comes_before_the_rest(client: PulsarClient, compacted: list[MessageId]) -> None:
    reader = await client.reader(TOPIC, COMPACTED)
    assert (await reader.last_message_id()).position == compacted[6].position
    assert await rest(reader) == numbers(2, 5, 6)
    assert not await reader.has_next()
    await publish(client, 12, 10)
    assert await rest(reader) == numbers(*range(10, 22))
    again = await client.reader(TOPIC, COMPACTED)
    assert await rest(again) == numbers(2, 5, 6, *range(10, 22))


async def test_a_reader_begins_within(client: PulsarClient, compacted: list[MessageId]) -> None:
    for index, expected in ((1, (2, 5, 6)), (2, (5, 6)), (3, (5, 6)), (6, ()), (9, ())):
        reader = await client.reader(TOPIC, ReaderOptions(start=compacted[index], read_compacted=True))
        assert await rest(reader) == numbers(*expected)
        await reader.close()
    latest = await client.reader(TOPIC, ReaderOptions(start=LATEST_ID, read_compacted=True))
    await publish(client, 1, 10)
    assert (await latest.receive()).payload == b"10"


async def test_a_reader_goes_on_after_an_unload(
    client: PulsarClient, memory_broker: MemoryBroker, compacted: list[MessageId]
) -> None:
    await publish(client, 5, 10)
    reader = await client.reader(TOPIC, COMPACTED)
    got: list[Message] = []
    for _ in range(8):
        got.append(await reader.receive())
        await memory_broker.service.unload(TOPIC)
    assert [message.payload for message in got] == numbers(2, 5, 6, *range(10, 15))


async def test_other_readers_read_the_topic_itself(client: PulsarClient, memory_broker: MemoryBroker) -> None:
    ids = await publish(client, 3)
    await compact(memory_broker, [ids[1]], ids[2])
    reader = await client.reader(TOPIC)
    assert (await reader.last_message_id()).position == ids[2].position
    assert await rest(reader) == numbers(0, 1, 2)


async def test_a_compaction_may_leave_nothing(client: PulsarClient, memory_broker: MemoryBroker) -> None:
    ids = await publish(client, 3)
    await compact(memory_broker, [], ids[2])
    reader = await client.reader(TOPIC, COMPACTED)
    assert await rest(reader) == []
    await publish(client, 1, 3)
    assert await rest(reader) == numbers(3)


async def test_many_are_left(client: PulsarClient, memory_broker: MemoryBroker) -> None:
    ids = await publish(client, 1_200)
    await compact(memory_broker, ids[::2], ids[-1])
    await memory_broker.service.unload(TOPIC)
    reader = await client.reader(TOPIC, COMPACTED)
    assert await rest(reader) == numbers(*range(0, 1_200, 2))


async def test_batches_lose_members(client: PulsarClient, memory_broker: MemoryBroker) -> None:
    producer = await client.producer(TOPIC)
    ids = await producer.send_batch([OutgoingMessage(b"%d" % number) for number in range(4)])
    await compact(memory_broker, [ids[0]], ids[0])
    reader = await client.reader(TOPIC, COMPACTED)
    assert await reader.last_message_id() == ids[3]._replace(batch_size=0)
    assert await rest(reader) == numbers(0, 1, 2, 3)
    assert reader.position != EARLIEST_ID


@given(st.integers(0, 2**62), st.integers(-1, 2**62), st.binary(max_size=200))
def test_entries_round_trip(ledger_id: int, entry_id: int, content: bytes) -> None:
    data = encode_compacted((ledger_id, entry_id), content)
    assert decode_compacted(data) == ((ledger_id, entry_id), content)
    for cut in range(0, len(data), 7):
        with pytest.raises(BadMetadata):
            decode_compacted(data[:cut])


async def test_a_reader_that_leaves_while_the_ledger_is_opened(
    memory_broker: MemoryBroker, compacted: list[MessageId], client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was opened for it is closed."""
    await publish(client, 1, first=10)
    ledger = memory_broker.service.topics[str(TOPIC)].ledger
    cursor = CompactedCursor(ledger, ledger.new_non_durable_cursor("reader", EARLIEST), EARLIEST)
    go_on, closed = asyncio.Event(), asyncio.Event()
    open_other = ManagedLedger.open_other

    async def open_slowly(managed: ManagedLedger, ledger_id: int) -> Any:
        opened: Any = await open_other(managed, ledger_id)
        close = opened.close

        async def close_and_tell() -> None:
            await close()
            closed.set()

        monkeypatch.setattr(opened, "close", close_and_tell)
        await go_on.wait()
        return opened

    monkeypatch.setattr(ManagedLedger, "open_other", open_slowly)
    reading = asyncio.create_task(cursor.read(10, 1000))
    await asyncio.sleep(0)
    await cursor.close()
    go_on.set()
    async with asyncio.timeout(30):
        await closed.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


LEFT = 5_000
"""Entries of a large compacted ledger; they stand at the even positions of a ledger that the topic had once."""


class Counting:
    """What a reader of a ledger was asked for."""

    def __init__(self, reader: LedgerReader) -> None:
        self.ledger_id = reader.ledger_id
        self.last_add_confirmed = reader.last_add_confirmed
        self.length_bytes = reader.length_bytes
        self.closed = reader.closed
        self.close = reader.close
        self._reader = reader
        self.reads = self.entries = 0

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        self.reads += 1
        self.entries += last_entry_id - first_entry_id + 1
        return await self._reader.read(first_entry_id, last_entry_id)


class Large:
    """A topic with a large compacted ledger."""

    def __init__(self, ledger: ManagedLedger, compacted_ledger_id: int, counting: list[Counting]) -> None:
        self.ledger = ledger
        self.gone_ledger_id = ledger.last_confirmed[0] - 1
        self.compaction = Compaction(compacted_ledger_id, (self.gone_ledger_id, 2 * LEFT + 10))
        self._counting = counting

    def cursor(self, start: Position) -> CompactedCursor:
        cursor = self.ledger.new_non_durable_cursor("reader", start)
        return CompactedCursor(self.ledger, cursor, start, lambda _: self.compaction)

    def at(self, entry_id: int) -> Position:
        return (self.gone_ledger_id, entry_id)

    async def next_entry_id(self, cursor: CompactedCursor) -> int:
        (entry,) = await cursor.read(1, 1_000)
        return entry.entry_id if entry.ledger_id == self.gone_ledger_id else -1

    def counted(self) -> tuple[int, int]:
        return sum(each.reads for each in self._counting), sum(each.entries for each in self._counting)


@pytest.fixture
async def large(memory_broker: MemoryBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch) -> Large:
    assert memory_broker.ledgers is not None
    options = LedgerOptions(ensemble_size=1, write_quorum=1, ack_quorum=1)
    writer = await memory_broker.ledgers.create(options, Listener())
    await publish(client, 1)
    ledger = memory_broker.service.topics[str(TOPIC)].ledger
    assert ledger.last_confirmed[0] > 0
    counting: list[Counting] = []
    open_other = ManagedLedger.open_other

    async def open_counting(managed: ManagedLedger, ledger_id: int) -> LedgerReader:
        counting.append(Counting(await open_other(managed, ledger_id)))
        return counting[-1]

    monkeypatch.setattr(ManagedLedger, "open_other", open_counting)
    large = Large(ledger, writer.ledger_id, counting)
    writer.append([encode_compacted(large.at(2 * index), b"x") for index in range(LEFT)])
    await writer.close()
    return large


@pytest.mark.parametrize(
    ("wanted", "found"), [(0, 0), (1, 2), (998, 998), (999, 1000), (7_001, 7_002), (9_998, 9_998), (9_999, -1)]
)
async def test_where_a_reader_begins_is_searched_for(large: Large, wanted: int, found: int) -> None:
    cursor = large.cursor(large.at(wanted))
    assert cursor.read_position == large.at(wanted)
    assert await large.next_entry_id(cursor) == found
    reads, entries = large.counted()
    assert reads <= 6
    assert entries <= CHUNK_ENTRIES + 6
    await cursor.close()


async def test_a_reader_of_all_holds_no_more_than_one_chunk(large: Large) -> None:
    cursor = large.cursor(EARLIEST)
    entry_ids: list[int] = []
    while (entries := await cursor.read(70, 1 << 20))[0].ledger_id == large.gone_ledger_id:
        entry_ids += [entry.entry_id for entry in entries]
        assert cursor.read_position > entries[-1].position
        assert sum(len(value) for value in vars(cursor).values() if isinstance(value, list)) <= CHUNK_ENTRIES
    assert entry_ids == [2 * index for index in range(LEFT)]
    assert large.counted() == (LEFT / CHUNK_ENTRIES, LEFT)
    await cursor.close()


async def test_large_entries_make_small_chunks(large: Large, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted_cursor, "CHUNK_BYTES", 1_000)
    cursor = large.cursor(large.at(7_001))
    assert await large.next_entry_id(cursor) == 7_002
    reads, entries = large.counted()
    assert reads < 12
    assert entries < 100
    await cursor.close()


async def test_a_reader_goes_to_and_fro(large: Large) -> None:
    cursor = large.cursor(large.at(5))
    assert await large.next_entry_id(cursor) == 6
    cursor.skip_to(large.at(8_001))
    assert cursor.read_position == large.at(8_001)
    assert await large.next_entry_id(cursor) == 8_002
    cursor.skip_to(large.at(8_101))
    assert cursor.read_cached(1, 1_000) is not None, "what is at hand is not read again"
    cursor.acknowledge_cumulative(large.at(4_000))
    cursor.rewind()
    assert await large.next_entry_id(cursor) == 4_002
    cursor.acknowledge_cumulative(large.at(6_000), [0b10])
    cursor.rewind()
    assert await large.next_entry_id(cursor) == 6_000, "a part of this batch is acknowledged, and all before it"
    await cursor.reset(large.at(100))
    assert await large.next_entry_id(cursor) == 100
    cursor.skip_to(large.at(3))
    assert await large.next_entry_id(cursor) == 100, "nothing before the start"
    cursor.acknowledge_cumulative(large.ledger.last_confirmed)
    cursor.rewind()
    assert cursor.read_position == large.ledger.ledgers.next_position(large.ledger.last_confirmed)
    await cursor.reset(large.at(100))
    await cursor.clear_backlog()
    cursor.rewind()
    assert cursor.read_position > large.ledger.last_confirmed
    await cursor.close()


async def test_the_last_message_that_compaction_looked_at_is_read_by_who_begins_there(large: Large) -> None:
    last = large.at(2 * (LEFT - 1))
    large.compaction = Compaction(large.compaction.ledger_id, last)
    for start in (EARLIEST, last):
        cursor = large.cursor(start)
        cursor.skip_to(last)
        assert cursor.read_position == last
        assert await large.next_entry_id(cursor) == last[1]
        assert await large.next_entry_id(cursor) == -1
        await cursor.close()
