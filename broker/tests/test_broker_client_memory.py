"""What the broker keeps of open producers, consumers and watchers is counted, bounded, and freed with them."""

from __future__ import annotations

from typing import Any

import pytest
from magnetar.broker import client_memory
from magnetar.broker.client_memory import (
    HASH_RANGE_BYTES,
    ClientMemory,
    ConnectionMemory,
    consumer_bytes,
    producer_bytes,
)
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.core.limits import KIB
from magnetar.net.testing import until
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/t"
LONG = [pb.KeyValue(key="a", value="x" * 60 * KIB)]
WATCHED: dict[str, Any] = {"namespace": "public/default", "topics_pattern": "persistent://public/default/a.*"}


@pytest.fixture
def small_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_memory, "CONNECTION_MEMORY_BYTES_MAX", 150 * KIB)
    monkeypatch.setattr(client_memory, "CONNECTION_RESERVATIONS_MAX", 4)


def held_bytes(broker: MemoryBroker) -> int:
    kept: ClientMemory = broker.service.limits.client_memory
    return kept.held_bytes


async def open_one(client: ProtocolClient, kind: str, number: int, **fields: Any) -> Any:
    if kind == "producer":
        return await client.request(Command.PRODUCER, topic=TOPIC, producer_id=number, **fields)
    if kind == "consumer":
        return await client.request(
            Command.SUBSCRIBE, topic=TOPIC, subscription="s", subType=1, consumer_id=number, **fields
        )
    return await client.request(Command.WATCH_TOPIC_LIST, watcher_id=number, **{**WATCHED, **fields})


async def close_one(client: ProtocolClient, kind: str, number: int) -> None:
    if kind == "producer":
        await client.request(Command.CLOSE_PRODUCER, producer_id=number)
    elif kind == "consumer":
        await client.request(Command.CLOSE_CONSUMER, consumer_id=number)
    else:
        await client.request(Command.WATCH_TOPIC_LIST_CLOSE, watcher_id=number)


@pytest.mark.parametrize("kind", ["producer", "consumer", "watcher"])
async def test_what_is_closed_counts_no_more(memory_broker: MemoryBroker, kind: str) -> None:
    client = await memory_broker.connect()
    for _ in range(3):
        opened = await open_one(client, kind, 1)
        assert opened.name not in ("ERROR",), opened
        one = held_bytes(memory_broker)
        assert one > 0
        await open_one(client, kind, 1)
        assert held_bytes(memory_broker) == one, "the same again is one"
        await close_one(client, kind, 1)
        assert held_bytes(memory_broker) == 0
        await close_one(client, kind, 1)
        assert held_bytes(memory_broker) == 0


@pytest.mark.parametrize("kind", ["producer", "consumer", "watcher"])
async def test_what_fails_to_open_counts_no_more(memory_broker: MemoryBroker, kind: str) -> None:
    client = await memory_broker.connect()
    wrong = {"namespace": "no namespace"} if kind == "watcher" else {"topic": "a/b/c/d/e"}
    if kind == "watcher":
        refused = await client.request(Command.WATCH_TOPIC_LIST, watcher_id=1, **{**WATCHED, **wrong})
    elif kind == "producer":
        refused = await client.request(Command.PRODUCER, producer_id=1, **wrong)
    else:
        refused = await client.request(Command.SUBSCRIBE, subscription="s", subType=1, consumer_id=1, **wrong)
    assert refused.name == "ERROR"
    await until(lambda: held_bytes(memory_broker) == 0)


async def test_what_the_broker_closes_counts_no_more(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await open_one(client, "producer", 1)
    await open_one(client, "consumer", 1)
    await memory_broker.running.context.peers.call("PUT", TOPIC.replace("://", "/").join(["/admin/v2/", "/unload"]))
    await client.expect(Command.CLOSE_PRODUCER)
    await client.expect(Command.CLOSE_CONSUMER)
    assert held_bytes(memory_broker) == 0


async def test_an_unsubscribed_consumer_counts_no_more(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await open_one(client, "consumer", 1)
    assert (await client.request(Command.UNSUBSCRIBE, consumer_id=1)).name == "SUCCESS"
    assert held_bytes(memory_broker) == 0


async def test_a_producer_that_waits_counts_until_it_is_withdrawn(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    exclusive = pb.ProducerAccessMode.WaitForExclusive
    await open_one(client, "producer", 1, producer_access_mode=exclusive)
    one = held_bytes(memory_broker)
    waiting = await open_one(client, "producer", 2, producer_access_mode=exclusive)
    assert not waiting.body.producer_ready
    # Its command, too, as it stays in memory.
    assert 2 * one < held_bytes(memory_broker) < 2 * one + KIB
    await close_one(client, "producer", 2)
    await until(lambda: held_bytes(memory_broker) == one)


async def test_what_a_lost_connection_had_noted_counts_no_more(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    for kind in ("producer", "consumer", "watcher"):
        await open_one(client, kind, 1)
    client.send(Command.PRODUCER, topic=TOPIC, producer_id=2, request_id=99)
    await client.abort()
    await until(lambda: held_bytes(memory_broker) == 0)


@pytest.mark.usefixtures("small_connection")
async def test_one_connection_gets_a_part(memory_broker: MemoryBroker) -> None:
    client, other = await memory_broker.connect(), await memory_broker.connect()
    for number in (1, 2):
        assert (await open_one(client, "producer", number, metadata=LONG)).name == "PRODUCER_SUCCESS"
    refused = await open_one(client, "producer", 3, metadata=LONG)
    assert refused.body.error == pb.NotAllowedError
    assert str(150 * KIB) in refused.body.message
    assert (await open_one(client, "producer", 3)).name == "PRODUCER_SUCCESS", "less may still be noted"
    assert (await open_one(other, "producer", 1, metadata=LONG)).name == "PRODUCER_SUCCESS"


@pytest.mark.usefixtures("small_connection")
@pytest.mark.parametrize("kind", ["producer", "consumer", "watcher"])
async def test_one_connection_opens_so_many(memory_broker: MemoryBroker, kind: str) -> None:
    client = await memory_broker.connect()
    for number in range(4):
        await open_one(client, "producer" if number % 2 else "consumer", 10 + number)
    refused = await open_one(client, kind, 3)
    assert refused.body.error == pb.NotAllowedError
    assert "at most 4" in refused.body.message
    await close_one(client, "producer", 11)
    assert (await open_one(client, kind, 3)).name != "ERROR"


async def test_all_connections_together(memory_broker: MemoryBroker) -> None:
    memory_broker.service.limits.client_memory.bytes_max = 150 * KIB
    clients = [await memory_broker.connect() for _ in range(3)]
    for client in clients[:2]:
        assert (await open_one(client, "producer", 1, metadata=LONG)).name == "PRODUCER_SUCCESS"
    refused = await open_one(clients[2], "producer", 1, metadata=LONG)
    assert refused.body.error == pb.TooManyRequests
    assert str(150 * KIB) in refused.body.message
    await clients[0].close()
    await until(lambda: held_bytes(memory_broker) < 100 * KIB)
    assert (await open_one(clients[2], "producer", 1, metadata=LONG)).name == "PRODUCER_SUCCESS"


def test_a_note_is_given_back_once() -> None:
    kept = ClientMemory(100)
    connection = ConnectionMemory(kept)
    first, second = connection.reserve(40), connection.reserve(60)
    with pytest.raises(PulsarError) as refused:
        connection.reserve(1)
    assert refused.value.code == ServerError.TOO_MANY_REQUESTS
    first.release()
    first.release()
    assert kept.held_bytes == 60
    connection.close()
    second.release()
    connection.close()
    assert kept.held_bytes == 0


def test_wide_letters_count_as_what_they_take() -> None:
    narrow, wide = (
        producer_bytes(pb.CommandProducer(topic="t", producer_id=1, request_id=1, producer_name=letter * 1_000))
        for letter in "x😀"
    )
    assert wide > narrow + 2_900


def test_hash_ranges_count() -> None:
    ranges = [pb.IntRange(start=index, end=index) for index in range(100)]
    plain = pb.CommandSubscribe(topic="t", subscription="s", subType=pb.CommandSubscribe.Key_Shared)
    sticky = pb.CommandSubscribe(
        topic="t",
        subscription="s",
        subType=pb.CommandSubscribe.Key_Shared,
        keySharedMeta=pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=ranges),
    )
    assert consumer_bytes(sticky) == consumer_bytes(plain) + 100 * HASH_RANGE_BYTES


def test_who_notes_something_after_his_connection_is_gone_counts_nothing() -> None:
    in_all = ClientMemory()
    connection = ConnectionMemory(in_all)
    connection.close()
    reservation = connection.reserve(KIB)
    assert not in_all.held_bytes
    reservation.release()
    assert not in_all.held_bytes


async def test_a_watcher_that_is_closed_before_it_is_made_is_none(memory_broker: MemoryBroker) -> None:
    """It waits behind a large answer. Else it is told of each topic, and counts, as long as its connection stands."""
    client = await memory_broker.connect()
    client.start(Command.GET_TOPICS_OF_NAMESPACE, namespace=WATCHED["namespace"])
    opening = client.start(Command.WATCH_TOPIC_LIST, watcher_id=1, **WATCHED)
    closing = client.start(Command.WATCH_TOPIC_LIST_CLOSE, watcher_id=1)
    assert (await client.answer(closing)).name == "SUCCESS"
    assert (await client.answer(opening)).body.message == "Closed watcher before creation was complete"  # As Apache's.
    assert not held_bytes(memory_broker)
    assert (await open_one(client, "watcher", 1)).name == "WATCH_TOPIC_LIST_SUCCESS"


async def test_a_watcher_whose_client_is_gone_before_it_is_made_counts_nothing(memory_broker: MemoryBroker) -> None:
    """Else some thousands of these lock everybody out of the broker, for good."""
    for _ in range(10):
        client = await memory_broker.connect()
        client.start(Command.WATCH_TOPIC_LIST, watcher_id=1, **WATCHED)
        await client.abort()
    limits = memory_broker.service.limits
    await until(lambda: not limits.connections.total and not limits.requests.count)
    assert not held_bytes(memory_broker)
