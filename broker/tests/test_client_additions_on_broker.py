"""What `magnetar.client` has for those who look at topics from outside: lists, schemas with versions, ends of their own
kinds, and acknowledgements of everything up to a place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ClientConsumer, ConsumerOptions
from magnetar.client.message import OutgoingMessage
from magnetar.client.producer import ClientProducer, ProducerOptions
from magnetar.client.settings import ClientSettings
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

TOPIC = TopicName.parse("persistent://public/default/t")
QUICK = ClientSettings(backoff_seconds_min=0.005, backoff_seconds_max=0.05)


@pytest.fixture
async def memory_broker() -> AsyncIterator[MemoryBroker]:
    policies = PolicySettings(deduplication=True)
    async with MemoryBroker(BrokerSettings(cluster_name="memory", policies=policies)) as broker:
        yield broker


@pytest.fixture
async def client(memory_broker: MemoryBroker) -> AsyncIterator[PulsarClient]:
    made = PulsarClient(lambda: memory_broker.running.settings.service_url, SystemClock(), QUICK)
    yield made
    await made.close()


async def test_topics_of_a_namespace(client: PulsarClient, memory_broker: MemoryBroker) -> None:
    namespace = NamespaceName("public", "default")
    assert await client.lookup.topics_of(namespace) == []
    for name in ("a", "p-partition-0"):
        await (await client.producer(TopicName.parse(name))).close()
    assert sorted(map(str, await client.lookup.topics_of(namespace))) == [
        "persistent://public/default/a",
        "persistent://public/default/p-partition-0",
    ]
    assert await client.lookup.topics_of(NamespaceName("no", "where")) == []
    assert len(memory_broker.service.topics) == 2


async def test_schemas_come_with_their_versions(client: PulsarClient) -> None:
    schema = Schema(name="t", type=Schema.String, schema_data=b"")
    await (await client.producer(TOPIC, ProducerOptions(schema=schema))).close()
    found, version = await client.lookup.versioned_schema_of(TOPIC)
    assert (found.type, version) == (Schema.String, bytes(8))
    assert (await client.lookup.versioned_schema_of(TOPIC, version))[0].type == Schema.String


async def test_everything_up_to_a_place_is_acknowledged(client: PulsarClient, memory_broker: MemoryBroker) -> None:
    options = ConsumerOptions(subscription="s", from_earliest=True)
    consumer = await client.consumer(TOPIC, options)
    producer = await client.producer(TOPIC)
    ids = [(await producer.send_batch([OutgoingMessage(b"x"), OutgoingMessage(b"y")]))[0] for _ in range(4)]
    for _ in range(8):
        await consumer.receive()
    cursor = memory_broker.service.topics[str(TOPIC)].subscriptions["s"].cursor
    await consumer.acknowledge_up_to(ids[1].position)
    assert cursor.mark_delete == ids[1].position
    assert sorted(consumer._open_batches) == [ids[2].position, ids[3].position]
    await consumer.acknowledge_up_to(ids[0].position)
    assert cursor.mark_delete == ids[1].position
    await consumer.acknowledge_up_to((ids[0].ledger_id, -1))
    assert cursor.mark_delete == ids[1].position


async def test_who_only_acknowledges_gets_nothing(client: PulsarClient, memory_broker: MemoryBroker) -> None:
    options = ConsumerOptions(subscription="s", from_earliest=True, kind=SubscriptionType.FAILOVER, receives=False)
    producer = await client.producer(TOPIC)
    sent = await producer.send(OutgoingMessage(b"x"))
    consumers = [await client.consumer(TOPIC, options) for _ in range(2)]
    await asyncio.sleep(0.02)
    assert not any(consumer._queue for consumer in consumers)
    for consumer in consumers:
        await consumer.acknowledge_up_to(sent.position)
    assert memory_broker.service.topics[str(TOPIC)].subscriptions["s"].cursor.mark_delete == sent.position


async def test_ends_of_the_callers_own_kind_are_closed_with_the_client(client: PulsarClient) -> None:
    make = partial(ClientConsumer, topic=TOPIC, options=ConsumerOptions(subscription="s"))
    consumer = await client.attach(make)
    assert consumer.failure is None
    await client.close()
    assert consumer.failure is not None


async def open_twice(client: PulsarClient, memory_broker: MemoryBroker) -> tuple[ClientProducer, ClientProducer]:
    """A producer that lost its connection, and another one that got its name meanwhile."""
    options = ProducerOptions(name="n", ends_at_failure=True)
    slow = ClientSettings(backoff_seconds_min=0.3, backoff_seconds_max=0.3)
    lost_client = PulsarClient(lambda: memory_broker.running.settings.service_url, SystemClock(), slow)
    lost = await lost_client.producer(TOPIC, options)
    await lost.send_batch([OutgoingMessage(b"a"), OutgoingMessage(b"b")])
    assert lost._connection is not None
    lost._connection.abort()
    other = None
    while other is None:
        try:
            other = await client.producer(TOPIC, options)
        except PulsarError:  # The broker does not know yet that the connection is lost.
            await asyncio.sleep(0.01)
    return lost, other


async def test_a_name_that_somebody_else_used_meanwhile_ends_the_producer(
    client: PulsarClient, memory_broker: MemoryBroker
) -> None:
    lost, other = await open_twice(client, memory_broker)
    receipt = await lost.put_batch([OutgoingMessage(b"c"), OutgoingMessage(b"d")])
    await other.send(OutgoingMessage(b"C"))
    await other.close()
    with pytest.raises(PulsarError, match="another producer of this name stored number 2 meanwhile") as caught:
        await receipt
    assert caught.value.code == ServerError.PRODUCER_FENCED
    # The broker does not keep it.
    await (await client.producer(TOPIC, ProducerOptions(name="n"))).close()


async def test_a_name_that_was_used_for_the_same_messages_may_be_used_on(
    client: PulsarClient, memory_broker: MemoryBroker
) -> None:
    lost, other = await open_twice(client, memory_broker)
    receipts = [await lost.put_batch([OutgoingMessage(b"c"), OutgoingMessage(b"d")])]
    await other.send_batch([OutgoingMessage(b"c"), OutgoingMessage(b"d")])
    await other.close()
    receipts.append(await lost.put(OutgoingMessage(b"e")))
    assert [(await receipt).entry_id for receipt in receipts] == [-1, 2]
