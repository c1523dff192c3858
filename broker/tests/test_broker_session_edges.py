"""What one connection asks for, at the edges: the second of two large things, the request with the number 0, what ends
while it begins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.policies.broker_limits import BrokerLimits
from magnetar.broker.session.command_limits import FRAME_OVERHEAD_BYTES, PAIRS_MAX, check_command
from magnetar.broker.session.publish import RECENTLY_CLOSED_MAX, Publishes
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.sessions import MemoryBroker, command_frame
from magnetar.broker.topics.producer import Producer, ProducerIdentity
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.topic_name import TopicName
from magnetar.net.connection import Connection
from magnetar.net.handlers import Handler
from magnetar.net.requests import REQUESTS_MAX
from magnetar.net.testing import until
from magnetar.wire.pulsar.ack_parts import ACK_BYTES_AT_ONCE
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.subscription_stage import Timers

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
NAME = TopicName.parse(TOPIC)
SHARED = 1


def nobody(connection: Connection) -> Handler:
    """Handles no connection."""
    raise AssertionError(connection)


def test_properties_of_both_kinds_count_together() -> None:
    subscribe = pb.CommandSubscribe(
        topic=TOPIC, subscription="s", subType=pb.CommandSubscribe.Exclusive, consumer_id=1, request_id=1
    )
    pairs = [pb.KeyValue(key="", value="") for _ in range(PAIRS_MAX // 2)]
    subscribe.metadata.extend(pairs)
    subscribe.subscription_properties.extend(pairs)
    command = pb.BaseCommand(type=Command.SUBSCRIBE, subscribe=subscribe)
    check_command(command, 100)
    command.subscribe.metadata.append(pairs[0])
    with pytest.raises(PulsarError, match=f"there are {PAIRS_MAX + 1} properties") as refusal:
        check_command(command, 100)
    assert refusal.value.code == ServerError.NOT_ALLOWED_ERROR


async def test_ids_of_closed_producers_are_remembered_up_to_a_bound() -> None:
    connection = Connection(asyncio.get_running_loop(), nobody)
    timers = Timers()
    limits = BrokerLimits(PolicySettings(), timers, timers.call_later)
    publishes = Publishes(connection, limits, 1 << 20)
    topic: Any = PersistentTopic.__new__(PersistentTopic)
    of_connection: Any = publishes
    for number in range(RECENTLY_CLOSED_MAX + 100):
        publishes.opened(Producer(ProducerIdentity(number, "p"), of_connection, 0), topic)
        publishes.closed(number)
    assert len(publishes._recently_closed) == RECENTLY_CLOSED_MAX
    assert RECENTLY_CLOSED_MAX + 99 in publishes._recently_closed


async def test_each_of_several_large_acknowledgements_is_taken(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    sent = await client.publish(3)
    await client.consumer(TOPIC, subType=SHARED, initialPosition=1)
    await client.messages(3)
    for one in sent:
        id_ = {"ledgerId": one.ledgerId, "entryId": one.entryId}
        many = [id_] * (ACK_BYTES_AT_ONCE // 4)
        assert len(command_frame(Command.ACK, consumer_id=1, ack_type=0, message_id=many)) > ACK_BYTES_AT_ONCE
        answer = await client.request(Command.ACK, consumer_id=1, ack_type=0, message_id=many)
        assert (answer.name, answer.body.HasField("error")) == ("ACK_RESPONSE", False)
    assert memory_broker.service.topics[TOPIC].subscriptions["s"].backlog == 0


async def test_the_request_with_the_number_0_is_answered(memory_broker: MemoryBroker) -> None:
    """Clients may begin to count there."""
    client = await memory_broker.connect()
    ack: dict[str, Any] = {"ack_type": 0, "message_id": [{"ledgerId": 1, "entryId": 0}], "request_id": 0}
    client.send(Command.ACK, consumer_id=9, **ack)
    gone = (await client.expect(Command.ACK_RESPONSE)).body
    assert (gone.request_id, gone.error) == (0, pb.ConsumerNotFound)
    await client.consumer(TOPIC)
    client.send(Command.ACK, consumer_id=1, **ack)
    taken = (await client.expect(Command.ACK_RESPONSE)).body
    assert (taken.request_id, taken.HasField("error")) == (0, False)


class Slowly:
    """The next subscribe is carried out and ends only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.over = asyncio.Event(), asyncio.Event()
        subscribe = PersistentTopic.subscribe

        async def slowly(topic: PersistentTopic, consumer: Consumer, *arguments: Any) -> Any:
            found = await subscribe(topic, consumer, *arguments)
            self.begun.set()
            await self.over.wait()
            return found

        monkeypatch.setattr(PersistentTopic, "subscribe", slowly)


async def test_the_end_of_a_consumer_is_not_told_of_the_next_one_with_its_id(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notice may wait until the client knows of what it ends; by then the id may be on its way to another."""
    slow = Slowly(monkeypatch)
    client = await memory_broker.connect()
    (connection,) = memory_broker.running._ports.connections
    session: Any = connection._handler
    request_id = client.start(Command.SUBSCRIBE, topic=TOPIC, subscription="s", subType=0, consumer_id=1)
    await slow.begun.wait()
    session.consumers._tell_closed(1, "", "")
    assert await client.round_trip() == []
    slow.over.set()
    assert (await client.answer(request_id)).name == "SUCCESS"
    session.consumers._tell_closed(1, "", "")
    assert await client.round_trip() == []
    session.consumers._tell_closed(2, "", "")
    assert (await client.expect(Command.CLOSE_CONSUMER)).body.consumer_id == 2


@pytest.mark.parametrize("how", ["closed", "cut off"])
async def test_a_consumer_that_is_gone_before_it_is_there_is_not_subscribed(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    slow = Slowly(monkeypatch)
    client = await memory_broker.connect()
    client.start(Command.SUBSCRIBE, topic=TOPIC, subscription="s", subType=0, consumer_id=1)
    await slow.begun.wait()
    subscription = memory_broker.service.topics[TOPIC].subscriptions["s"]
    assert len(subscription.consumers) == 1
    if how == "closed":
        assert (await client.request(Command.CLOSE_CONSUMER, consumer_id=1)).name == "SUCCESS"
    else:
        await client.abort()
        limits = memory_broker.service.limits
        await until(lambda: limits.connections.total == 0)
    slow.over.set()
    await until(lambda: not subscription.consumers)
    other = await memory_broker.connect()
    await other.consumer(TOPIC)
    assert len(subscription.consumers) == 1


async def test_a_producer_whose_connection_is_gone_before_it_is_there_leaves_its_name(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over = asyncio.Event(), asyncio.Event()
    add_producer = PersistentTopic.add_producer

    async def slowly(topic: PersistentTopic, *arguments: Any) -> Any:
        waits = await add_producer(topic, *arguments)
        begun.set()
        await over.wait()
        return waits

    client = await memory_broker.connect()
    with monkeypatch.context() as patched:
        patched.setattr(PersistentTopic, "add_producer", slowly)
        client.start(Command.PRODUCER, topic=TOPIC, producer_id=1, producer_name="p")
        await begun.wait()
    topic = memory_broker.service.topics[TOPIC]
    assert list(topic.producers.by_name) == ["p"]
    await client.abort()
    await until(lambda: memory_broker.service.limits.connections.total == 0)
    over.set()
    await until(lambda: not topic.producers.by_name)


async def test_a_producer_that_fails_after_it_was_let_in_leaves_its_name(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose epoch cannot be stored."""
    add_producer = PersistentTopic.add_producer

    async def fail(topic: PersistentTopic, *arguments: Any) -> Any:
        await add_producer(topic, *arguments)
        raise PulsarError(ServerError.PERSISTENCE_ERROR, "staged")

    client = await memory_broker.connect()
    with monkeypatch.context() as patched:
        patched.setattr(PersistentTopic, "add_producer", fail)
        refused = await client.request(Command.PRODUCER, topic=TOPIC, producer_id=1, producer_name="p")
    assert refused.body.error == pb.PersistenceError
    assert not memory_broker.service.topics[TOPIC].producers.by_name
    other = await memory_broker.connect()
    assert (await other.producer(TOPIC, producer_name="p")).producer_name == "p"


async def test_what_waited_counts_no_more_once_it_is_served(memory_broker: MemoryBroker) -> None:
    """Else a connection that was busy often enough would never be read again."""
    client = await memory_broker.connect()
    (connection,) = memory_broker.running._ports.connections
    session: Any = connection._handler
    for _ in range(REQUESTS_MAX):
        session.step_back(1)
    client.send_bytes(command_frame(Command.GET_SCHEMA, topic=TOPIC, request_id=7) * 20)
    await until(lambda: len(session._waiting) == 20)
    assert session._waiting_bytes > 20 * FRAME_OVERHEAD_BYTES
    for _ in range(REQUESTS_MAX):
        session.step_aside(1)
    for _ in range(20):
        assert (await client.expect(Command.GET_SCHEMA_RESPONSE)).body.request_id == 7
    assert (len(session._waiting), session._waiting_bytes) == (0, 0)
