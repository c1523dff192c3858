"""Topics are compacted: what readers get then, over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from magnetar.broker.compaction.compacted_topic import compaction_of
from magnetar.broker.subscriptions.reset import skip
from magnetar.broker.testing.sessions import MemoryBroker, message
from magnetar.client.consumer import ConsumerOptions
from magnetar.client.reader import ReaderOptions
from magnetar.managed.compaction import COMPACTION_CURSOR, LEDGER_PROPERTY, RUN_PROPERTY
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.compaction_world import COMPACTED, TOPIC, CompactionWorld

Command = pb.BaseCommand

SUCCESS = {"status": "SUCCESS", "lastError": ""}


@pytest.fixture
async def world(memory_broker: MemoryBroker) -> AsyncIterator[CompactionWorld]:
    world = CompactionWorld(memory_broker)
    yield world
    await world.close()


async def test_the_last_message_of_each_key_is_left(world: CompactionWorld) -> None:
    await world.publish(("a", "1"), ("b", "1"), (None, "x"), ("a", "2"), ("c", "1"), ("b", None))
    assert await world.compact() == SUCCESS
    assert await world.read() == [("a", "2"), ("c", "1")]
    assert len(await world.read(ReaderOptions())) == 6
    await world.publish(("c", None), ("d", "1"))
    assert await world.read() == [("a", "2"), ("c", "1"), ("c", ""), ("d", "1")]


async def test_a_second_compaction_begins_with_what_the_first_has_left(world: CompactionWorld) -> None:
    await world.publish(("a", "1"), ("b", "1"), ("a", "2"))
    await world.compact()
    first = await world.compacted()
    await world.trim()
    assert (await world.ledger()).ledgers.number_of_entries() == 0
    await world.publish(("b", "2"), ("c", "1"))
    assert await world.compact() == SUCCESS
    second = await world.compacted()
    assert second.horizon > first.horizon
    assert await world.read() == [("a", "2"), ("b", "2"), ("c", "1")]
    assert await world.compacted_ledgers() == {second.ledger_id}


async def test_the_ledger_is_as_those_of_apache(world: CompactionWorld) -> None:
    ids = await world.publish(("a", "1"), ("a", "2"), ("b", "1"), ("b", None))
    await world.compact()
    ledger = await world.ledger()
    cursor = ledger.cursors[COMPACTION_CURSOR]
    found = await world.compacted()
    assert cursor.properties == {LEDGER_PROPERTY: found.ledger_id}
    assert cursor.cursor_properties == {}
    assert found.horizon == ids[3].position
    metadata = await world.metadata(found.ledger_id)
    assert metadata is not None
    assert (metadata.digest_type, metadata.password, metadata.state.name) == ("CRC32", b"", "CLOSED")
    ledger_id, entry_id = ids[2].position
    assert metadata.custom_metadata == {
        "application": b"pulsar",
        "component": b"compacted-ledger",
        "pulsar/compactedTopic": str(TOPIC).encode(),
        "pulsar/compactedTo": bytes([0x08, ledger_id, 0x10, entry_id]),
    }


async def test_nothing_may_be_left(world: CompactionWorld) -> None:
    await world.publish(("a", "1"), ("a", None), (None, "x"))
    assert await world.compact() == SUCCESS
    found = await world.compacted()
    metadata = await world.metadata(found.ledger_id)
    assert metadata is not None
    assert metadata.last_entry_id == -1
    assert await world.read() == []
    await world.publish(("a", "2"))
    assert await world.read() == [("a", "2")]


async def test_an_empty_topic_is_left_alone(world: CompactionWorld) -> None:
    await (await world.client.producer(TOPIC)).close()
    assert await world.compact() == SUCCESS
    assert compaction_of(await world.ledger()) is None
    assert await world.compacted_ledgers() == set()


@pytest.mark.parametrize("compression", Compression)
async def test_batches_keep_their_places(world: CompactionWorld, compression: Compression) -> None:
    ids = await world.publish_batch(("a", "1"), ("b", "1"), (None, "x"), ("c", None), compression=compression)
    whole = await world.publish_batch(("d", "1"), ("e", "1"), compression=compression)
    await world.publish_batch(("f", "1"), ("f", None), compression=compression)
    await world.publish(("a", "2"))
    for _ in range(2):
        await world.compact()
        reader = await world.client.reader(TOPIC, COMPACTED)
        messages = [await reader.receive() for _ in range(4)]
        assert [(message.key, message.payload) for message in messages] == [
            ("b", b"1"), ("d", b"1"), ("e", b"1"), ("a", b"2"),
        ]  # fmt: skip
        assert [message.id for message in messages[:3]] == [ids[1], *whole]
        await reader.close()
        await world.trim()


async def test_a_durable_subscription_reads_compacted(world: CompactionWorld) -> None:
    await world.publish(("a", "1"), ("b", "1"), ("a", "2"))
    await world.compact()
    await world.trim()
    options = ConsumerOptions(subscription="s", kind=SubscriptionType.FAILOVER, from_earliest=True, read_compacted=True)
    consumer = await world.client.consumer(TOPIC, options)
    received = [await consumer.receive() for _ in range(2)]
    assert [(message.key, message.payload) for message in received] == [("b", b"1"), ("a", b"2")]
    for one in received:
        await consumer.acknowledge([one.id])
    await world.publish(("c", "1"), ("c", "2"))
    await consumer.acknowledge([(await consumer.receive()).id])
    await consumer.close()
    await world.compact()
    again = await world.client.consumer(TOPIC, options)
    assert (await again.receive()).payload == b"2"
    await again.close()
    plain = await world.client.consumer(TOPIC, ConsumerOptions(subscription="s", kind=SubscriptionType.FAILOVER))
    assert (await plain.receive()).payload == b"2"


async def test_a_reader_is_overtaken_by_a_compaction(world: CompactionWorld) -> None:
    """What it has not read yet is trimmed: it goes on in the compacted ledger, then in the one after that."""
    await world.publish(*((f"k{number}", "1") for number in range(20)))
    await world.compact()
    reader = await world.client.reader(TOPIC, COMPACTED)
    found = [(await reader.receive()).key for _ in range(3)]
    await world.trim()
    await world.publish(*((f"k{number}", "2") for number in range(10)))
    await world.compact()
    await world.trim()
    await world.publish(("last", "1"))
    while found[-1] != "last":
        found.append((await reader.receive()).key)
    assert dict.fromkeys(found) == dict.fromkeys(f"k{number}" for number in range(20)) | {"last": None}
    assert found[-11:] == [*(f"k{number}" for number in range(10)), "last"]


async def test_seeking(world: CompactionWorld) -> None:
    """To what only compaction has, by id and by time; and what the last message is."""
    client = await world.broker.connect()
    await client.producer(str(TOPIC))
    for number, (key, value) in enumerate((("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"))):
        content = message(value, publish_time=1_000 * (number + 1), partition_key=key)
        client.send(Command.SEND, content, producer_id=1, sequence_id=number)
    ids = [(await client.expect(Command.SEND_RECEIPT)).body.message_id for _ in range(4)]
    await world.compact()
    await world.trim()
    wanted: dict[str, Any] = {"durable": False, "read_compacted": True, "initialPosition": 1}
    await client.consumer(str(TOPIC), **wanted)
    last = await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)
    assert last.body.last_message_id.entryId == 3
    # Other readers get nothing any more: they would wait for that message for ever.
    await client.consumer(str(TOPIC), "others", consumer_id=2, durable=False, initialPosition=1)
    last = await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=2)
    assert last.body.last_message_id.entryId == 2**64 - 1

    for fields, expected in (
        ({"message_id": {"ledgerId": ids[2].ledgerId, "entryId": 2}}, [2, 3]),
        ({"message_id": {"ledgerId": ids[0].ledgerId, "entryId": 0}}, [1, 2, 3]),
        ({"message_publish_time": 0}, [1, 2, 3]),
        ({"message_publish_time": 2_001}, [2, 3]),
        ({"message_publish_time": 4_000}, [3]),
    ):
        answer = await client.request(Command.SEEK, consumer_id=1, **fields)
        assert answer.name == "SUCCESS", answer
        await client.consumer(str(TOPIC), **wanted)
        found = await client.messages(len(expected))
        assert [one.body.message_id.entryId for one in found] == expected
    await client.request(Command.SEEK, consumer_id=1, message_publish_time=9_000)
    await client.consumer(str(TOPIC), **wanted)
    await world.publish(("z", "1"))
    (after,) = await client.messages(1)
    assert after.body.message_id.entryId == 0


async def test_removing_the_subscription_removes_the_ledger(world: CompactionWorld) -> None:
    await world.publish(("a", "1"), ("a", "2"))
    await world.compact()
    await (await world.topic()).delete_subscription(COMPACTION_CURSOR)
    assert await world.compacted_ledgers() == set()
    assert await world.read() == [("a", "1"), ("a", "2")]


async def test_deleting_the_topic_deletes_the_ledger(world: CompactionWorld) -> None:
    await world.publish(("a", "1"), ("a", "2"))
    await world.compact()
    await world.broker.service.delete(TOPIC, force=True)
    assert await world.compacted_ledgers() == set()


async def test_it_outlasts_restarts_and_later_acknowledgements(world: CompactionWorld) -> None:
    await world.publish(("a", "1"), ("a", "2"))
    await world.compact()
    found = await world.compacted()
    await world.publish(("b", "1"))
    await skip((await world.topic()).subscriptions[COMPACTION_CURSOR], 1)
    await world.broker.service.unload(TOPIC)
    assert (await world.compacted()).ledger_id == found.ledger_id
    assert (await world.compaction()).status == {"status": "NOT_RUN", "lastError": ""}
    assert RUN_PROPERTY not in (await world.ledger()).cursors[COMPACTION_CURSOR].cursor_properties
