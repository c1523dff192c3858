"""Readers of topics that a compaction went through, as Apache's brokers do with their system topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.compacted_cursor import CompactedCursor
from magnetar.broker.compacted_topic import LEDGER_PROPERTY, compaction_of
from magnetar.broker.policies.system_topics import COMPACTION
from magnetar.broker.session_testing import MemoryBroker
from magnetar.client.client import PulsarClient
from magnetar.client.message import EARLIEST_ID, LATEST_ID, Message, MessageId, OutgoingMessage
from magnetar.client.reader import Reader, ReaderOptions
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST
from magnetar.core.topic_name import TopicName
from magnetar.ledger.api import LedgerOptions
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
    subscription = await topic.create_subscription(COMPACTION, EARLIEST)
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
    compaction = compaction_of(ledger)
    assert compaction is not None
    cursor = CompactedCursor(ledger, ledger.new_non_durable_cursor("reader", EARLIEST), compaction, EARLIEST)
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
    await asyncio.wait([reading], timeout=1)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert closed.is_set()
