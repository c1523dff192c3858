"""What transactions hide from consumers of brokers that only read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from magnetar.broker.read_only.service import ReadOnlyService
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.read_only import ReadOnlySettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.clusters import MemoryCluster
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.core.topic_name import TopicName
from magnetar.metadata.store import ANY_VERSION
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.test_broker_transaction_buffer import TOPIC, Command, ended, send, texts

SETTINGS = BrokerSettings(cluster_name="memory")
EARLIEST = pb.CommandSubscribe.Earliest


@dataclass(slots=True)
class Stage:
    """A writer with transactions, a producer there, and a broker that only reads."""

    producer: ProtocolClient
    reader: MemoryBroker

    async def consumer(self, subscription: str = "s") -> ProtocolClient:
        client = await self.reader.connect()
        await client.consumer(TOPIC, subscription, initialPosition=EARLIEST)
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        return client


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    writing = replace(SETTINGS, transactions=TransactionSettings(enabled=True))
    async with MemoryCluster(1, writing) as cluster:
        client = await cluster[0].connect()
        await client.producer(TOPIC)
        reader = await cluster.add(replace(SETTINGS, read_only=ReadOnlySettings(enabled=True)))
        yield Stage(client, reader)


async def received(client: ProtocolClient, count: int) -> list[bytes]:
    return texts([await client.expect(Command.MESSAGE) for _ in range(count)])


async def last_entry(client: ProtocolClient) -> int:
    answer = await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)
    entry_id: int = answer.body.last_message_id.entryId
    return entry_id


async def test_messages_come_once_their_transaction_is_committed(stage: Stage) -> None:
    client = await stage.consumer()
    await send(stage.producer, 0)
    assert await received(client, 1) == [b"m0"]
    await send(stage.producer, 1, transaction=7)  # The first one of the topic: nothing has announced it.
    await send(stage.producer, 2)
    assert await last_entry(client) == 0
    assert [one.name for one in await client.round_trip() if one.name == "MESSAGE"] == []
    await ended(stage.producer, 7)
    assert await received(client, 2) == [b"m1", b"m2"]


async def test_what_was_aborted_is_never_sent(stage: Stage) -> None:
    client = await stage.consumer()
    await send(stage.producer, 0, transaction=1)
    await send(stage.producer, 1, transaction=2)
    await ended(stage.producer, 1, commit=False)
    await ended(stage.producer, 2)
    await send(stage.producer, 2)
    assert await received(client, 2) == [b"m1", b"m2"]
    # And to who comes later, by the owner's snapshot and the markers since.
    later = await stage.consumer("later")
    assert await received(later, 2) == [b"m1", b"m2"]


async def test_what_was_aborted_is_not_the_last_message(stage: Stage) -> None:
    await send(stage.producer, 0)
    await send(stage.producer, 1, transaction=1)
    await ended(stage.producer, 1, commit=False)
    client = await stage.consumer()
    assert await received(client, 1) == [b"m0"]
    # Who reads up to the last message would wait for it for ever.
    assert await last_entry(client) == 0


async def test_a_topic_with_an_open_transaction_is_read_up_to_it(stage: Stage) -> None:
    await send(stage.producer, 0)
    await send(stage.producer, 1, transaction=3)
    await send(stage.producer, 2)
    client = await stage.consumer()
    assert await received(client, 1) == [b"m0"]
    assert await last_entry(client) == 0
    await ended(stage.producer, 3, commit=False)
    assert await received(client, 1) == [b"m2"]


async def test_a_reader_may_begin_with_a_message_of_an_open_transaction(stage: Stage) -> None:
    """Who published it has its id. The owner tells of the last message first, which is before it."""
    await send(stage.producer, 0)
    (receipt,) = await send(stage.producer, 1, transaction=3)
    client = await stage.reader.connect()
    start = receipt.body.message_id
    await client.consumer(TOPIC, "r", durable=False, initialPosition=EARLIEST, start_message_id=start)
    client.send(Command.FLOW, consumer_id=1, messagePermits=100)
    await ended(stage.producer, 3)
    assert await received(client, 1) == [b"m1"]


async def test_a_seek_goes_to_a_message_of_an_open_transaction(stage: Stage) -> None:
    client = await stage.consumer()
    await send(stage.producer, 0)
    assert await received(client, 1) == [b"m0"]
    await send(stage.producer, 1)
    (receipt,) = await send(stage.producer, 2, transaction=3)
    await send(stage.producer, 3)
    await client.request(Command.SEEK, consumer_id=1, message_id=receipt.body.message_id)
    await ended(stage.producer, 3)
    client = await stage.consumer()
    assert await received(client, 2) == [b"m2", b"m3"]


async def test_snapshots_that_were_just_made_are_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a session reads in the metadata store may be old until it has written something."""
    await send(stage.producer, 0, transaction=7)
    await ended(stage.producer, 7, commit=False)
    await send(stage.producer, 1)
    written: list[str] = []
    service = stage.reader.service
    exists, delete = ReadOnlyService.exists, service.store.delete

    async def behind(self: ReadOnlyService, name: TopicName) -> bool:
        return (bool(written) or "__transaction" not in str(name)) and await exists(self, name)

    async def writing(path: str, expected_version: int | None = ANY_VERSION) -> None:
        written.append(path)
        await delete(path, expected_version)

    monkeypatch.setattr(ReadOnlyService, "exists", behind)
    monkeypatch.setattr(service.store, "delete", writing)
    assert await received(await stage.consumer(), 1) == [b"m1"]
