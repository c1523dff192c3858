"""The client of `magnetar.client` against a real broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.client.addresses import BrokerAddress
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ConsumerOptions
from magnetar.client.errors import ClientClosed, TimedOut
from magnetar.client.message import LATEST_ID, Message, OutgoingMessage
from magnetar.client.producer import AccessMode, ProducerOptions
from magnetar.client.reader import Reader, ReaderOptions
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import Misuse
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError

TOPIC = TopicName.parse("persistent://public/default/t")
QUICK = ClientSettings(backoff_seconds_min=0.005, backoff_seconds_max=0.05)


@pytest.fixture
async def client(memory_broker: MemoryBroker) -> AsyncIterator[PulsarClient]:
    made = client_of(memory_broker)
    yield made
    await made.close()


def client_of(broker: MemoryBroker, settings: ClientSettings = QUICK) -> PulsarClient:
    return PulsarClient(lambda: broker.running.settings.service_url, SystemClock(), settings)


def texts(count: int, first: int = 0) -> list[OutgoingMessage]:
    return [OutgoingMessage(b"m%d" % number, key=f"k{number}") for number in range(first, first + count)]


def payloads(count: int, first: int = 0) -> list[bytes]:
    return [b"m%d" % number for number in range(first, first + count)]


async def rest(reader: Reader) -> list[Message]:
    """All that the topic holds beyond the reader's position."""
    messages: list[Message] = []
    while (message := await reader.next_or_end()) is not None:
        messages.append(message)
    return messages


async def keep(client: PulsarClient) -> None:
    """A subscription that holds all messages: what nobody waits for is deleted when a topic is loaded again."""
    consumer = await client.consumer(TOPIC, ConsumerOptions(subscription="keep", from_earliest=True))
    await consumer.close()


def lose_connections(client: PulsarClient) -> None:
    """As when the network fails: nobody says goodbye."""
    for connection in client._parts.pool._connections.values():
        connection._connection.abort()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def test_messages_are_stored_and_read_in_order(client: PulsarClient) -> None:
    producer = await client.producer(TOPIC)
    single = await producer.send(OutgoingMessage(b"m0", key="k0", properties={"a": "b"}, event_time_ms=7))
    several = await producer.send_all(texts(3, 1))
    batch = await producer.send_batch(texts(3, 4))
    assert await producer.send_batch([]) == []

    reader = await client.reader(TOPIC)
    messages = await rest(reader)

    assert [message.payload for message in messages] == payloads(7)
    assert [message.key for message in messages] == [f"k{number}" for number in range(7)]
    assert [message.id.order for message in messages] == [one.order for one in [single, *several, *batch]]
    assert [message.sequence_id for message in messages] == list(range(7))
    assert messages[0].properties == {"a": "b"}
    assert messages[0].event_time_ms == 7
    assert messages[0].producer_name == producer.name
    assert not messages[0].has_no_value
    assert messages[0].publish_time_ms > 0
    assert not await reader.has_next()


@pytest.mark.parametrize("compression", list(Compression))
async def test_batches_are_compressed(client: PulsarClient, compression: Compression) -> None:
    producer = await client.producer(TOPIC, ProducerOptions(compression=compression))
    await producer.send_batch(texts(20))
    reader = await client.reader(TOPIC)
    assert [message.payload for message in await rest(reader)] == payloads(20)
    assert reader.position.batch_size == 20


async def test_a_message_may_have_no_value(client: PulsarClient) -> None:
    producer = await client.producer(TOPIC)
    await producer.send(OutgoingMessage(None, key="k"))
    await producer.send_batch([OutgoingMessage(None, key="k"), OutgoingMessage(b"", key="k")])
    messages = await rest(await client.reader(TOPIC))
    assert [message.has_no_value for message in messages] == [True, True, False]
    assert [message.payload for message in messages] == [b"", b"", b""]


async def test_readers_begin_where_they_are_told(client: PulsarClient) -> None:
    producer = await client.producer(TOPIC)
    ids = await producer.send_all(texts(2)) + await producer.send_batch(texts(3, 2))
    for index, start in enumerate(ids):
        after = await client.reader(TOPIC, ReaderOptions(start=start))
        assert [message.payload for message in await rest(after)] == payloads(4 - index, index + 1)
        here = await client.reader(TOPIC, ReaderOptions(start=start, inclusive=True))
        assert [message.payload for message in await rest(here)] == payloads(5 - index, index)
        await after.close()
        await here.close()

    latest = await client.reader(TOPIC, ReaderOptions(start=LATEST_ID))
    assert not await latest.has_next()
    await producer.send(OutgoingMessage(b"new"))
    assert (await latest.receive()).payload == b"new"


async def test_an_empty_topic_has_nothing_next(client: PulsarClient) -> None:
    reader = await client.reader(TOPIC, ReaderOptions(create_topic=True))
    assert not await reader.has_next()
    assert await reader.next_or_end() is None
    assert (await reader.last_message_id()).entry_id == -1


async def test_more_messages_than_the_queue_holds(memory_broker: MemoryBroker) -> None:
    settings = ClientSettings(receiver_queue_size=10, pending_messages_max=7)
    client = client_of(memory_broker, settings)
    producer = await client.producer(TOPIC)
    for first in range(0, 100, 5):
        await producer.send_batch(texts(5, first))
    reader = await client.reader(TOPIC)
    await until(lambda: len(reader._queue) >= 10)
    await asyncio.sleep(0.01)
    assert len(reader._queue) < 10 + 5
    assert [message.payload for message in await rest(reader)] == payloads(100)
    await client.close()


async def test_senders_wait_for_room(memory_broker: MemoryBroker) -> None:
    client = client_of(memory_broker, ClientSettings(pending_messages_max=3))
    producer = await client.producer(TOPIC)
    sends = [asyncio.create_task(producer.send(message)) for message in texts(20)]
    await asyncio.sleep(0)
    assert len(producer._pending) <= 3
    ids = await asyncio.gather(*sends)
    assert ids == sorted(ids)
    await producer.flush()
    await client.close()


async def test_a_reader_does_not_make_a_topic(client: PulsarClient) -> None:
    with pytest.raises(PulsarError) as refused:
        await client.reader(TOPIC)
    assert refused.value.code is ServerError.TOPIC_NOT_FOUND


async def test_partitions(client: PulsarClient, memory_broker: MemoryBroker) -> None:
    assert await client.topics(TOPIC, create=True) == [TOPIC]
    await memory_broker.service.partitioned.create(TOPIC, 3)
    assert await client.topics(TOPIC) == [TOPIC.partition(index) for index in range(3)]
    producer = await client.producer(TOPIC.partition(1))
    assert (await producer.send(OutgoingMessage(b""))).partition == 1


async def test_unloading_a_topic_hides_nothing(client: PulsarClient, memory_broker: MemoryBroker) -> None:
    producer = await client.producer(TOPIC)
    await keep(client)
    name = producer.name
    await producer.send_batch(texts(3))
    reader = await client.reader(TOPIC)
    taken = [(await reader.receive()).payload]
    for round_number in range(1, 4):
        await memory_broker.service.unload(TOPIC)
        await producer.send_batch(texts(3, 3 * round_number))
    taken += [message.payload for message in await rest(reader)]
    assert taken == payloads(12)
    assert producer.name == name


async def test_a_lost_connection_loses_nothing(client: PulsarClient) -> None:
    producer = await client.producer(TOPIC, ProducerOptions(name="p"))
    reader = await client.reader(TOPIC)
    sent = 0
    taken: list[bytes] = []
    for _ in range(5):
        sends = asyncio.gather(*(producer.send(message) for message in texts(20, sent)))
        await asyncio.sleep(0)
        lose_connections(client)
        await sends
        sent += 20
        taken += [message.payload for message in await rest(reader)]
    # What was stored but not confirmed is stored twice without deduplication; in order each time.
    assert list(dict.fromkeys(taken)) == payloads(sent)


async def test_a_restarted_broker_is_found_again(memory_broker: MemoryBroker) -> None:
    client = client_of(memory_broker)
    producer = await client.producer(TOPIC)
    await keep(client)
    reader = await client.reader(TOPIC)
    await producer.send(texts(1)[0])
    await memory_broker.running.close()
    sending = asyncio.create_task(producer.send_all(texts(3, 1)))
    await asyncio.sleep(0.02)
    assert memory_broker.ledgers is not None
    await memory_broker.ledgers.close()
    await memory_broker.start()
    await sending
    assert [message.payload for message in await rest(reader)] == payloads(4)
    await client.close()


async def test_an_outage_is_logged_once_and_so_is_its_end(
    memory_broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A client may have thousands of consumers of a broker that is away for an hour."""
    caplog.set_level(logging.INFO, "magnetar.client.topic_end")
    client = client_of(memory_broker, ClientSettings(backoff_seconds_min=0.005, backoff_seconds_max=0.01))
    producer = await client.producer(TOPIC)
    attempts = 0
    broker_of = client.lookup.broker_of

    async def counted(topic: TopicName) -> BrokerAddress:
        nonlocal attempts
        attempts += 1
        return await broker_of(topic)

    client.lookup.broker_of = counted  # type: ignore[method-assign]
    await memory_broker.running.close()
    await until(lambda: attempts > 10)
    assert memory_broker.ledgers is not None
    await memory_broker.ledgers.close()
    await memory_broker.start()
    await producer.send(texts(1)[0])
    told = [(record.levelname, record.getMessage()) for record in caplog.records if str(TOPIC) in record.getMessage()]
    assert [level for level, _ in told] == ["WARNING", "INFO"], told
    assert "other attempts follow" in told[0][1]
    assert told[1][1] == f"{TOPIC} is attached again"
    await client.close()


async def test_messages_without_a_receipt_fail_in_time(memory_broker: MemoryBroker) -> None:
    client = client_of(memory_broker, ClientSettings(send_timeout_seconds=0.05, backoff_seconds_min=60))
    producer = await client.producer(TOPIC)
    lose_connections(client)
    await until(lambda: producer._connection is None)
    with pytest.raises(TimedOut):
        await producer.send_all(texts(3))
    assert not producer._pending
    await client.close()


async def test_exclusive_producers(client: PulsarClient) -> None:
    only = await client.producer(TOPIC, ProducerOptions(access_mode=AccessMode.EXCLUSIVE))
    with pytest.raises(PulsarError) as refused:
        await client.producer(TOPIC, ProducerOptions(access_mode=AccessMode.EXCLUSIVE))
    assert refused.value.code is ServerError.PRODUCER_FENCED

    waiting = asyncio.create_task(client.producer(TOPIC, ProducerOptions(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await only.close()
    second = await waiting
    await second.send(OutgoingMessage(b"x"))

    third = await client.producer(TOPIC, ProducerOptions(access_mode=AccessMode.EXCLUSIVE_WITH_FENCING))
    await third.send(OutgoingMessage(b"y"))
    await until(lambda: second.failure is not None)
    with pytest.raises(PulsarError):
        await second.send(OutgoingMessage(b"z"))


async def test_names_are_taken_once(client: PulsarClient) -> None:
    await client.producer(TOPIC, ProducerOptions(name="p"))
    with pytest.raises(PulsarError) as refused:
        await client.producer(TOPIC, ProducerOptions(name="p"))
    assert refused.value.code is ServerError.PRODUCER_BUSY


async def test_sequence_ids_are_the_users_if_wanted(client: PulsarClient) -> None:
    producer = await client.producer(TOPIC, ProducerOptions(first_sequence_id=100))
    message = OutgoingMessage(b"")
    message.sequence_id = 200
    await producer.send_all([OutgoingMessage(b""), message, OutgoingMessage(b"")])
    assert [one.sequence_id for one in await rest(await client.reader(TOPIC))] == [100, 200, 201]
    with pytest.raises(Misuse):
        await producer.send(message)


async def test_a_message_that_is_too_large_is_not_sent(client: PulsarClient) -> None:
    producer = await client.producer(TOPIC)
    with pytest.raises(Misuse):
        await producer.send(OutgoingMessage(bytes(6 << 20)))
    await producer.send(OutgoingMessage(b"small"))


async def test_consumers_acknowledge(client: PulsarClient, memory_broker: MemoryBroker) -> None:
    options = ConsumerOptions(subscription="s", kind=SubscriptionType.SHARED)
    consumer = await client.consumer(TOPIC, options)
    producer = await client.producer(TOPIC)
    await producer.send_all(texts(3))
    await producer.send_batch(texts(3, 3))
    got = [await consumer.receive() for _ in range(6)]
    assert [message.payload for message in got] == payloads(6)
    await consumer.acknowledge([got[0].id, got[2].id, got[3].id, got[5].id])
    await consumer.close()

    again = await client.consumer(TOPIC, options)
    got = [await again.receive() for _ in range(4)]
    assert [message.payload for message in got] == [b"m1", b"m3", b"m4", b"m5"]
    await again.acknowledge([message.id for message in got])
    topic = memory_broker.service.topics[str(TOPIC)]
    assert topic.subscriptions["s"].backlog == 0
    await again.unsubscribe()
    assert "s" not in topic.subscriptions


async def test_what_is_closed_is_over(client: PulsarClient) -> None:
    producer = await client.producer(TOPIC)
    reader = await client.reader(TOPIC)
    waiting = asyncio.create_task(reader.receive())
    await asyncio.sleep(0)
    await producer.close()
    await producer.close()
    await client.close()
    with pytest.raises(ClientClosed):
        await producer.send(OutgoingMessage(b""))
    with pytest.raises(ClientClosed):
        await waiting
    with pytest.raises(ClientClosed):
        await client.reader(TOPIC)


async def test_an_unknown_broker_is_reported_in_time(memory_broker: MemoryBroker) -> None:
    settings = ClientSettings(operation_timeout_seconds=1.0, backoff_seconds_min=0.01)
    nobody = PulsarClient(lambda: "pulsar://127.0.0.1:1", SystemClock(), settings)
    with pytest.raises(TimedOut, match="cannot be reached"):
        await nobody.reader(TOPIC)
    await nobody.close()


async def test_one_of_several_brokers_is_enough(memory_broker: MemoryBroker) -> None:
    url = f"pulsar://127.0.0.1:1,127.0.0.1:{memory_broker.port}"
    client = PulsarClient(lambda: url, SystemClock(), QUICK)
    producer = await client.producer(TOPIC)
    await producer.send(OutgoingMessage(b""))
    await client.close()
