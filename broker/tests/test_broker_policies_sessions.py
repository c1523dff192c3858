"""What policies do to clients: through the protocol, on a whole broker in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from magnetar.broker.admin.brokers.metrics import broker_metrics
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.sessions import (
    MemoryBroker,
    ProtocolClient,
    ShiftedClock,
    batch_message,
    command_frame,
    message,
)
from magnetar.core.limits import MIB
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.net.held_bytes import HELD_BYTES_MAX
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
NON_PERSISTENT = "non-persistent://public/default/topic"
NAME = TopicName.parse(TOPIC)
NAMESPACE = NamespaceName("public", "default")


@asynccontextmanager
async def broker_with(**settings: Any) -> AsyncIterator[tuple[MemoryBroker, ProtocolClient]]:
    """A broker with these policies of its own, and a client."""
    clock = ShiftedClock()
    async with MemoryBroker(BrokerSettings(policies=PolicySettings(**settings)), clock=clock) as broker:
        yield broker, await broker.connect()


async def set_namespace(broker: MemoryBroker, **fields: Any) -> None:
    """Change the namespace's policies as any broker or tool might."""
    resources = broker.service.resources
    await resources.documents.update(resources.namespace_path(NAMESPACE), lambda document: {**document, **fields})
    await broker.service.policies_changed(NAMESPACE)


async def set_topic(broker: MemoryBroker, topic: str = TOPIC, **fields: Any) -> None:
    """Change the topic's own policies."""
    store = broker.running.context.topic_policies
    await store.update(TopicName.parse(topic), lambda policies: {**policies, **fields})


async def refused(client: ProtocolClient, kind: Any, code: ServerError, text: str, **fields: Any) -> None:
    """A request that is answered with this error."""
    answer = await client.request(kind, **fields)
    assert answer.name == "ERROR", answer
    assert (answer.body.error, answer.body.message) == (code, text)


def subscribe(consumer_id: int, subscription: str = "s", kind: int = 1, topic: str = TOPIC) -> dict[str, Any]:
    return {"topic": topic, "subscription": subscription, "consumer_id": consumer_id, "subType": kind}


@pytest.mark.parametrize("topic", [TOPIC, NON_PERSISTENT])
async def test_producers_per_topic(topic: str) -> None:
    async with broker_with() as (broker, client):
        await client.producer(topic, 1)
        await set_namespace(broker, max_producers_per_topic=2)
        await client.producer(topic, 2)
        text = f"Topic '{topic}' reached max producers limit"
        await refused(client, Command.PRODUCER, ServerError.PRODUCER_BUSY, text, topic=topic, producer_id=3)
        await set_topic(broker, topic, maxProducerPerTopic=3)
        await client.producer(topic, 3)
        await refused(client, Command.PRODUCER, ServerError.PRODUCER_BUSY, text, topic=topic, producer_id=4)


async def test_producers_from_one_address() -> None:
    async with broker_with(same_address_producers_max=1) as (_, client):
        await client.producer(TOPIC, 1)
        text = f"Topic '{TOPIC}' reached max same address producers limit"
        await refused(client, Command.PRODUCER, ServerError.PRODUCER_BUSY, text, topic=TOPIC, producer_id=2)


@pytest.mark.parametrize("topic", [TOPIC, NON_PERSISTENT])
async def test_consumers_and_subscriptions_per_topic(topic: str) -> None:
    async with broker_with(consumers_per_topic_max=3, consumers_per_subscription_max=2) as (broker, client):
        for consumer_id in (1, 2):
            await client.consumer(consumer_id=consumer_id, topic=topic, subscription="s", subType=1)
        busy = ServerError.CONSUMER_BUSY
        text = "Subscription reached max consumers limit"
        await refused(client, Command.SUBSCRIBE, busy, text, **subscribe(3, topic=topic))
        await client.consumer(topic, "other", 4, subType=1)
        text = "Topic reached max consumers limit"
        await refused(client, Command.SUBSCRIBE, busy, text, **subscribe(5, "third", topic=topic))
        await set_namespace(broker, max_subscriptions_per_topic=2, max_consumers_per_topic=0)
        text = f"Exceed the maximum number of subscriptions of the topic: {topic}"
        await refused(
            client, Command.SUBSCRIBE, ServerError.NOT_ALLOWED_ERROR, text, **subscribe(6, "third", topic=topic)
        )
        await client.consumer(topic, "other", 7, subType=1)


async def test_consumers_from_one_address() -> None:
    async with broker_with(same_address_consumers_max=1) as (_, client):
        await client.consumer(TOPIC, "s", 1, subType=1)
        text = "Topic reached max same address consumers limit"
        await refused(client, Command.SUBSCRIBE, ServerError.CONSUMER_BUSY, text, **subscribe(2))


async def test_subscription_types_that_are_enabled() -> None:
    async with broker_with() as (broker, client):
        await set_namespace(broker, subscription_types_enabled=["Shared"])
        text = f"Topic[{{{TOPIC}}}] doesn't support Exclusive sub type!"
        await refused(client, Command.SUBSCRIBE, ServerError.NOT_ALLOWED_ERROR, text, **subscribe(1, kind=0))
        await client.consumer(TOPIC, "s", 2, subType=1)


async def test_subscribe_rate_per_consumer() -> None:
    async with broker_with(subscribes_per_consumer=2) as (_, client):
        for _ in range(2):
            await client.consumer(TOPIC, consumer_name="c")
            await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
        text = "Subscribe limited by subscribe rate limit per consumer."
        fields = {**subscribe(1), "consumer_name": "c"}
        await refused(client, Command.SUBSCRIBE, ServerError.NOT_ALLOWED_ERROR, text, **fields)
        await client.consumer(TOPIC, "s", 1, consumer_name="another")


async def test_topics_per_namespace() -> None:
    async with broker_with(topics_per_namespace_max=2) as (_, client):
        await client.producer(TOPIC + "1", 1)
        await client.producer(TOPIC + "2", 2)
        text = "Exceed maximum number of topics in namespace."
        fields: dict[str, Any] = {"topic": TOPIC + "3", "producer_id": 3}
        await refused(client, Command.PRODUCER, ServerError.NOT_ALLOWED_ERROR, text, **fields)
        await client.producer(TOPIC + "2", 4)
        await client.producer(NON_PERSISTENT, 5)


async def test_connections() -> None:
    async with broker_with(connections_max=2) as (broker, client):
        second = await broker.connect()
        third = await ProtocolClient.open(broker.port)
        answer = await third.expect(Command.ERROR)
        assert answer.body.error == ServerError.NOT_ALLOWED_ERROR
        assert answer.body.message == "Reached the maximum number of connections"
        metrics = b"".join(await broker_metrics(broker.running.context)).decode()
        assert 'pulsar_broker_rejected_connections_total{cluster="standalone",reason="all"} 1' in metrics
        assert 'pulsar_broker_rejected_connections_total{cluster="standalone",reason="http"} 0' in metrics
        await third.end()
        await third.close()
        await second.close()
        while broker.service.limits.connections.total > 1:
            await asyncio.sleep(0)
        await (await broker.connect()).round_trip()
        await client.round_trip()


@pytest.mark.parametrize("topic", [TOPIC, NON_PERSISTENT])
async def test_encryption(topic: str) -> None:
    async with broker_with() as (broker, client):
        await client.producer(topic, 1)
        await client.producer(topic, 2, encrypted=True)
        await set_namespace(broker, encryption_required=True)
        assert (await client.expect(Command.CLOSE_PRODUCER)).body.producer_id == 1
        text = f"Encryption is required in {topic}"
        await refused(client, Command.PRODUCER, ServerError.METADATA_ERROR, text, topic=topic, producer_id=3)
        client.send(Command.SEND, message(b"open"), producer_id=2, sequence_id=0)
        error = (await client.expect(Command.SEND_ERROR)).body
        assert (error.sequence_id, error.error, error.message) == (
            0,
            ServerError.METADATA_ERROR,
            "Messages must be encrypted",
        )
        keys = [pb.EncryptionKeys(key="k", value=b"v")]
        client.send(Command.SEND, message(b"secret", encryption_keys=keys), producer_id=2, sequence_id=1)
        assert (await client.expect(Command.SEND_RECEIPT)).body.sequence_id == 1


@pytest.mark.parametrize("topic", ["public/default/__change_events", "pulsar/system/load-history"])
async def test_brokers_write_their_own_topics_without_encryption(topic: str) -> None:
    """Apache: `ServerCnx.handleProducer` asks system topics for none."""
    async with broker_with(encryption_required=True) as (_, client):
        await client.producer(f"persistent://{topic}", 1)
        client.send(Command.SEND, message(b"open"), producer_id=1, sequence_id=0)
        while not client.inbox:
            await client.news()
        assert [received.name for received in client.inbox] == ["SEND_RECEIPT"]


async def test_message_size_and_delay_are_answered_in_their_turn() -> None:
    async with broker_with() as (broker, client):
        await client.producer(TOPIC)
        await set_topic(broker, maxMessageSize=100, delayedDeliveryMaxDelayInMillis=1_000)
        contents = [
            message(b"first"),
            message(b"x" * 200),
            message(b"later", publish_time=1_000, deliver_at_time=2_000),
            message(b"too late", publish_time=1_000, deliver_at_time=2_001),
            message(b"last"),
        ]
        for number, content in enumerate(contents):
            client.send(Command.SEND, content, producer_id=1, sequence_id=number)
        while len(client.inbox) < len(contents):
            await client._more()
        assert [(one.name, one.body.sequence_id) for one in client.inbox] == [
            ("SEND_RECEIPT", 0),
            ("SEND_ERROR", 1),
            ("SEND_RECEIPT", 2),
            ("SEND_ERROR", 3),
            ("SEND_RECEIPT", 4),
        ]
        errors = [client.inbox[1].body, client.inbox[3].body]
        assert {error.error for error in errors} == {ServerError.NOT_ALLOWED_ERROR}
        assert errors[0].message == "Exceed maximum message size"
        assert errors[1].message == "Exceeds max allowed delivery delay of 1000 milliseconds"
        assert broker.service.topics[TOPIC].messages_in == 3
        await client.request(Command.CLOSE_PRODUCER, producer_id=1)


async def test_chunks_are_of_any_size_and_what_comes_with_them_is_not() -> None:
    async with broker_with() as (broker, client):
        await client.producer(TOPIC)
        await set_topic(broker, maxMessageSize=100)
        chunk = message(b"x" * 200, num_chunks_from_msg=2, chunk_id=0, uuid="u", total_chunk_msg_size=400)
        client.send_bytes(
            command_frame(Command.SEND, chunk, producer_id=1, sequence_id=0, is_chunk=True)
            + command_frame(Command.SEND, message(b"x" * 200), producer_id=1, sequence_id=1)
        )
        answers = [await client._take(lambda one: one.name in ("SEND_RECEIPT", "SEND_ERROR")) for _ in range(2)]
        assert [one.name for one in answers] == ["SEND_RECEIPT", "SEND_ERROR"]


@pytest.mark.parametrize("topic", [TOPIC, NON_PERSISTENT])
async def test_a_topics_publish_rate_stops_reading_and_is_never_an_error(topic: str) -> None:
    async with broker_with() as (broker, client):
        await client.producer(topic)
        await set_topic(broker, topic, publishRate={"publishThrottlingRateInMsg": 200})
        start = time.monotonic()
        client.send(Command.SEND, batch_message(*[b"x"] * 240), producer_id=1, sequence_id=0, num_messages=240)
        await client.expect(Command.SEND_RECEIPT)
        await client.publish(1, first=300)
        assert 0.15 <= time.monotonic() - start < 30
        client.send(Command.SEND, batch_message(*[b"x"] * 500), producer_id=1, sequence_id=400, num_messages=500)
        await client.expect(Command.SEND_RECEIPT)
        await set_topic(broker, topic, publishRate=None)
        await client.round_trip()


async def test_the_brokers_publish_rate_is_for_all_topics() -> None:
    async with broker_with(publish_messages=100) as (broker, client):
        other = await broker.connect()
        await client.producer(TOPIC)
        await other.producer(TOPIC + "2")
        start = time.monotonic()
        await client.publish(100)
        await other.publish(20)
        await other.round_trip()
        await client.round_trip()
        assert 0.1 <= time.monotonic() - start < 30


async def test_the_brokers_publish_buffer_holds_and_lets_go() -> None:
    async with broker_with(publish_buffer_bytes_max=1) as (broker, client):
        await client.producer(TOPIC)
        await client.publish(100)
        assert broker.service.limits.publish_buffer.held_bytes == 0


async def test_a_throttled_client_is_not_taken_for_dead() -> None:
    settings = BrokerSettings(keep_alive_seconds=0.1, policies=PolicySettings(publish_messages_per_topic=10))
    async with MemoryBroker(settings) as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        await client.publish(14)
        await client.publish(1)
        await client.round_trip()


async def test_persistence_and_retention_reach_the_ledger() -> None:
    async with broker_with() as (broker, client):
        await client.producer(TOPIC)
        ledger = broker.service.topics[TOPIC].ledger
        await set_namespace(broker, retention_policies={"retentionTimeInMinutes": 1, "retentionSizeInMB": 2})
        assert (ledger.settings.retention_time_ms, ledger.settings.retention_size_bytes) == (60_000, 2 * MIB)
        await set_topic(broker, persistence={"managedLedgerMaxMarkDeleteRate": 7.0})
        assert ledger.settings.mark_delete_rate == 7.0


async def test_a_namespaces_policies_hold_for_topics_loaded_later() -> None:
    async with broker_with() as (broker, client):
        await set_namespace(broker, max_unacked_messages_per_consumer=2)
        await client.producer(TOPIC)
        await client.consumer(TOPIC, subType=1)
        await client.publish(5)
        assert len(await client.messages(2, permits=5)) == 2
        assert not [one for one in await client.round_trip() if one.name == "MESSAGE"]
        await set_namespace(broker, max_unacked_messages_per_consumer=4)
        assert len([await client.expect(Command.MESSAGE) for _ in range(2)]) == 2


async def test_auto_subscription_creation_of_a_topic() -> None:
    async with broker_with() as (broker, client):
        await client.producer(TOPIC)
        await set_topic(broker, autoSubscriptionCreationOverride={"allowAutoSubscriptionCreation": False})
        text = "Subscription s does not exist"
        await refused(client, Command.SUBSCRIBE, ServerError.SUBSCRIPTION_NOT_FOUND, text, **subscribe(1))


async def test_a_partition_comes_back_even_where_topics_are_not_made_by_clients() -> None:
    async with broker_with() as (broker, client):
        await broker.service.partitioned.create(NAME, 2)
        await set_namespace(broker, autoTopicCreationOverride={"allowAutoTopicCreation": False})
        await broker.service.delete(NAME.partition(1), force=False)
        await client.producer(TOPIC + "-partition-1")
        await refused(
            client,
            Command.PRODUCER,
            ServerError.TOPIC_NOT_FOUND,
            f"Topic {TOPIC}x does not exist",
            topic=TOPIC + "x",
            producer_id=2,
        )


async def test_the_brokers_limit_of_unacknowledged_messages() -> None:
    async with broker_with(unacked_messages_per_broker_max=10) as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC, subType=1)
        await client.publish(30)
        await client.messages(11)
        for _ in range(2):
            await broker.service.upkeep.check_now("unacknowledged")
        client.send(Command.FLOW, consumer_id=1, messagePermits=19)
        assert not await client.round_trip()
        ids = [pb.MessageIdData(ledgerId=one.ledgerId, entryId=one.entryId) for one in _held(broker)]
        client.send(Command.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids)
        await client.round_trip()
        for _ in range(2):
            await broker.service.upkeep.check_now("unacknowledged")
        assert len([one for one in await client.round_trip() if one.name == "MESSAGE"]) == 19


def _held(broker: MemoryBroker) -> list[Any]:
    consumer = broker.service.topics[TOPIC].subscriptions["s"].consumers[0]
    return [pb.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in consumer.pending.messages]


class DeafPeer:
    """A connection that holds more than all may, and whose peer takes nothing."""

    peer_address = "/192.0.2.1:1"
    held_bytes = 2 * HELD_BYTES_MAX
    incoming_bytes = moved_bytes = 0

    def __init__(self) -> None:
        self.cut = asyncio.Event()

    def narrow(self) -> bool:
        return False

    def pause_reading(self, reason: str) -> None:
        """Nothing is read of it."""

    def abort(self) -> None:
        self.cut.set()


async def test_who_is_cut_for_what_is_held_for_it_shows_in_the_metrics(memory_broker: MemoryBroker) -> None:
    peer = DeafPeer()
    memory_broker.running._ports.held.note(cast(Any, peer), peer.held_bytes)
    await peer.cut.wait()
    metrics = b"".join(await broker_metrics(memory_broker.running.context)).decode()
    assert 'pulsar_broker_rejected_connections_total{cluster="standalone",reason="memory"} 1' in metrics
