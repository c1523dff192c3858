"""What one read brings and takes several turns, and who is written to: nothing is left out, nobody is forgotten."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity
from magnetar.broker.policies.send_turns import SEND_BYTES
from magnetar.broker.session.acknowledge import ACK_BYTES_PER_TURN
from magnetar.broker.session.command_limits import TURN_COMMANDS_CROWDED, TURN_COMMANDS_MAX
from magnetar.broker.session.frames import TURN_FLOWS_MAX
from magnetar.broker.states import ConsumerState, SessionState
from magnetar.broker.testing.sessions import MemoryBroker, command_frame, message
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.net.testing import until
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.frame import command_splitter
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.subscription_stage import StagedConnection

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
SHARED = 1


def the_topic(broker: MemoryBroker) -> PersistentTopic:
    found = broker.service.topics[TOPIC]
    assert isinstance(found, PersistentTopic)
    return found


def unserved(session: Any) -> int:
    """How many frames of what was read have to wait."""
    splitter = session._splitter
    _, bounds = command_splitter().feed(b"".join(splitter._parts)[splitter._start :])
    return len(bounds) // 2


def session_of(broker: MemoryBroker) -> Any:
    (connection,) = broker.running._ports.connections
    return connection._handler


def ack(ledger_id: int, entry_id: int) -> bytes:
    message_id = {"ledgerId": ledger_id, "entryId": entry_id}
    return command_frame(Command.ACK, consumer_id=1, ack_type=0, message_id=[message_id])


async def test_each_of_many_acknowledgements_in_one_read_counts(memory_broker: MemoryBroker) -> None:
    """And no more of them than a turn's worth is taken at once."""
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC, subType=SHARED)
    count = ACK_BYTES_PER_TURN // 10
    await client.publish(count)
    topic = the_topic(memory_broker)
    ledger_id = topic.ledger.ledgers.ids[-1]
    subscription = topic.subscriptions["s"]
    session_of(memory_broker).data_received(b"".join(ack(ledger_id, entry_id) for entry_id in range(count)))
    assert 0 < subscription.backlog < count
    await until(lambda: not subscription.backlog)


@pytest.mark.parametrize("state", [SessionState.CONNECTING, SessionState.REFUSED])
async def test_an_acknowledgement_before_the_client_is_let_in_is_not_served(
    memory_broker: MemoryBroker, state: SessionState
) -> None:
    client = await memory_broker.connect()
    session = session_of(memory_broker)
    session.state = state
    if state is SessionState.REFUSED:
        session._refusal = None
    served: list[bool] = []
    session._frames = SimpleNamespace(serve=lambda *_: served.append(True))
    client.send_bytes(ack(1, 1))
    await until(lambda: client.ended or bool(served))
    assert not served


async def test_who_catches_up_is_sent_what_waited(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC, subType=SHARED)
    client.send(Command.FLOW, consumer_id=1, messagePermits=10)
    await client.round_trip()
    connection = session_of(memory_broker).connection
    connection.pause_writing()
    await client.publish(3)
    assert [one.name for one in await client.round_trip() if one.name == "MESSAGE"] == []
    connection.resume_writing()
    for entry_id in range(3):
        assert (await client.expect(Command.MESSAGE)).body.message_id.entryId == entry_id


async def test_who_closes_a_consumer_that_is_being_opened_leaves_none(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    topic = the_topic(memory_broker)
    subscribe, asked, go = PersistentTopic.subscribe, asyncio.Event(), asyncio.Event()

    async def slowly(self: PersistentTopic, *arguments: Any) -> Any:
        subscription = await subscribe(self, *arguments)
        asked.set()
        await go.wait()
        return subscription

    monkeypatch.setattr(PersistentTopic, "subscribe", slowly)
    client.start(Command.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, subType=SHARED)
    await asked.wait()
    await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
    assert len(topic.subscriptions["s"].consumers) == 1
    go.set()
    await until(lambda: not topic.subscriptions["s"].consumers)


def test_a_consumer_that_is_closed_has_no_room() -> None:
    consumer = Consumer(ConsumerIdentity(1, "a", SubscriptionType.SHARED), StagedConnection())
    consumer.allow(10)
    assert consumer.room == 10
    consumer.become(ConsumerState.CLOSED)
    assert consumer.room == 0


def send(producer_id: int, sequence_id: int) -> bytes:
    content = message(b"m%d" % sequence_id, sequence_id=sequence_id)
    return command_frame(Command.SEND, content, producer_id=producer_id, sequence_id=sequence_id)


async def test_messages_that_wait_for_a_turn_are_stored_in_their_order(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    session = session_of(memory_broker)
    memory_broker.service.limits.send_turns.left_bytes = 0
    for first in (0, 3):
        session.data_received(b"".join(send(1, first + number) for number in range(3)))
    assert session.connection.reading_paused
    assert the_topic(memory_broker).ledger.appends.pending_entries == 0
    receipts = [(await client.expect(Command.SEND_RECEIPT)).body for _ in range(6)]
    assert [receipt.sequence_id for receipt in receipts] == list(range(6))
    assert [receipt.message_id.entryId for receipt in receipts] == list(range(6))
    await until(lambda: not session.connection.reading_paused)


async def test_as_many_messages_of_a_read_are_stored_as_the_turn_has_room_for(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    session = session_of(memory_broker)
    memory_broker.service.limits.send_turns.left_bytes = 2 * (SEND_BYTES + len(message(b"m0")))
    session.data_received(b"".join(send(1, number) for number in range(5)))
    assert the_topic(memory_broker).ledger.appends.pending_entries == 2
    receipts = [(await client.expect(Command.SEND_RECEIPT)).body.sequence_id for _ in range(5)]
    assert receipts == list(range(5))


async def test_what_a_producer_sent_before_it_closes_is_stored_though_the_turn_has_no_room(
    memory_broker: MemoryBroker,
) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.producer("persistent://public/default/other", producer_id=2)
    session = session_of(memory_broker)
    memory_broker.service.limits.send_turns.left_bytes = 0
    close = command_frame(Command.CLOSE_PRODUCER, producer_id=1, request_id=77)
    session.data_received(send(1, 0) + send(2, 5) + send(1, 1) + close + send(2, 6))
    assert (await client.answer(77)).name == "SUCCESS"
    receipts = [(await client.expect(Command.SEND_RECEIPT)).body for _ in range(4)]
    assert [one.sequence_id for one in receipts if one.producer_id == 1] == [0, 1]
    assert [one.sequence_id for one in receipts if one.producer_id == 2] == [5, 6]


async def test_a_flow_is_served_in_a_turn_that_has_no_room_for_messages(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC, subType=SHARED)
    await client.publish(1)
    session = session_of(memory_broker)
    memory_broker.service.limits.send_turns.left_bytes = 0
    session.data_received(send(1, 1) + command_frame(Command.FLOW, consumer_id=1, messagePermits=10))
    (consumer,) = the_topic(memory_broker).subscriptions["s"].consumers
    assert consumer.entries_out == 1
    assert the_topic(memory_broker).ledger.appends.pending_entries == 0
    await until(lambda: consumer.entries_out == 2)


async def test_a_client_that_leaves_while_its_messages_wait_for_a_turn_leaves_nothing_behind(
    memory_broker: MemoryBroker,
) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    session = session_of(memory_broker)
    turns = memory_broker.service.limits.send_turns
    turns.left_bytes = 0
    session.data_received(send(1, 0))
    assert turns.held_bytes > 0
    session.connection.abort()
    await until(lambda: session.ended)
    assert turns.held_bytes == 0
    await until(lambda: the_topic(memory_broker).ledger.appends.entries_added == 1)


async def test_lookups_of_one_read_are_answered_in_turns_and_in_order(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    session = session_of(memory_broker)
    await client.request(Command.LOOKUP, topic=TOPIC)  # Its bundle is owned, and known, from now on.
    count = 3 * TURN_COMMANDS_MAX
    unknown = "persistent://public/nowhere/t"
    topics = [unknown if number % 50 == 7 else TOPIC for number in range(count)]
    frames = [requests.lookup(number, topic) for number, topic in enumerate(topics)]
    session.data_received(b"".join(frames))
    assert unserved(session) == count - TURN_COMMANDS_MAX
    found: dict[int, Any] = {}
    while len(found) < count:
        answer = await client.expect(Command.LOOKUP_RESPONSE)
        found[answer.body.request_id] = answer.body.response
    connects = [number for number, response in found.items() if response == pb.CommandLookupTopicResponse.Connect]
    # Those that memory answers keep their order; who asks for an unknown namespace hears of it, some time.
    assert connects == sorted(connects)
    assert set(found) - set(connects) == {number for number in range(count) if topics[number] == unknown}


async def test_thousands_of_flows_of_one_read_are_served_in_turns(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC, subType=SHARED)
    (consumer,) = the_topic(memory_broker).subscriptions["s"].consumers
    session = session_of(memory_broker)
    count = 3 * TURN_FLOWS_MAX
    session.data_received(count * command_frame(Command.FLOW, consumer_id=1, messagePermits=1))
    assert consumer.permits == TURN_FLOWS_MAX
    assert unserved(session) == count - TURN_FLOWS_MAX
    await until(lambda: consumer.permits == count)
    assert not session._splitter.pending_bytes


async def test_what_waits_of_a_read_of_small_commands_counts_in_full(memory_broker: MemoryBroker) -> None:
    """A hundred kilobytes of PONGs were six times as much in memory, and a thousand such clients a gigabyte."""
    await memory_broker.connect()
    session = session_of(memory_broker)
    pongs = 10_000 * command_frame(Command.PONG)
    told: list[int] = []
    session.connection = SimpleNamespace(
        hold_incoming=told.append, pause_reading=lambda _: None, resume_reading=lambda _: None, noted_bytes=0
    )
    session.data_received(pongs)
    assert set(told) == {session._splitter.pending_bytes} == {len(pongs)}
    assert len(session._splitter._parts) == 1, "there is nothing beside the bytes"
    await until(lambda: not session._splitter.has_more)
    assert told[-1] == 0


async def test_lookups_wait_behind_commands_that_wait(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    session = session_of(memory_broker)
    await client.request(Command.LOOKUP, topic=TOPIC)
    session._waiting.append(command_frame(Command.PING))
    session._waiting_bytes = 100
    session.data_received(requests.lookup(9, TOPIC))
    assert len(session._waiting) == 2


@pytest.mark.parametrize(("over", "served"), [(False, TURN_COMMANDS_CROWDED), (True, 1)])
async def test_lookups_have_their_share_of_a_turn_while_others_wait(
    memory_broker: MemoryBroker, over: bool, served: int
) -> None:
    """A thousand connections with eight each would make a turn of half a tenth of a second."""
    client = await memory_broker.connect()
    session = session_of(memory_broker)
    await client.request(Command.LOOKUP, topic=TOPIC)
    in_all = session.context.service.limits.requests
    in_all.in_turn(lambda: None)
    if over:
        in_all.spent()
        in_all._share_ends_seconds = 0.0
    session.data_received(b"".join(requests.lookup(number, TOPIC) for number in range(20)))
    assert unserved(session) == 20 - served
    for _ in range(20):
        await client.expect(Command.LOOKUP_RESPONSE)


async def test_of_thousands_of_clients_that_go_together_some_are_let_go_of_in_each_turn(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one turn of the loop they took 130 ms."""
    limits = memory_broker.service.limits
    clients = [await memory_broker.connect() for _ in range(5)]
    monkeypatch.setattr(limits.requests, "_now_seconds", (0.0002 * tick for tick in itertools.count()).__next__)
    for connection in list(memory_broker.running._ports.connections):
        connection.abort()
    left = {limits.connections.total}
    while limits.connections.total:
        await asyncio.sleep(0)
        left.add(limits.connections.total)
    assert len(left) > 3
    assert len(clients) == 5
