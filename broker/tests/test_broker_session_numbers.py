"""Numbers that no honest client sends: each is bounded where it comes in, and nobody else is held up by it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.broker.session.acknowledge import ACK_BYTES_PER_TURN, ConsumerRequests
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, batch_message, command_frame, message
from magnetar.core.limits import ACK_SET_WORDS_MAX
from magnetar.net.connection import Connection
from magnetar.net.handlers import Handler
from magnetar.wire.pulsar.ack_parts import ACK_BYTES_AT_ONCE
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
EXCLUSIVE, SHARED = range(2)
INT_MAX = 2**31 - 1


async def batch_of_three(client: ProtocolClient) -> dict[str, Any]:
    """The id of a batch that producer 1 has published."""
    await client.producer(TOPIC)
    client.send(Command.SEND, batch_message(b"a", b"b", b"c"), producer_id=1, sequence_id=0, num_messages=3)
    sent = (await client.expect(Command.SEND_RECEIPT)).body.message_id
    return {"ledgerId": sent.ledgerId, "entryId": sent.entryId}


async def statistics(client: ProtocolClient) -> Any:
    """CONSUMER_STATS of consumer 1."""
    return (await client.request(Command.CONSUMER_STATS, consumer_id=1)).body


async def test_an_ack_with_the_largest_batch_size(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    batch = await batch_of_three(client)
    await client.consumer(TOPIC, subType=SHARED, initialPosition=1)
    # Each id would take half a second, and 256 MiB, if that many bits were made for it.
    part = {**batch, "ack_set": [0b101], "batch_size": INT_MAX}
    answer = await client.request(Command.ACK, consumer_id=1, ack_type=0, message_id=[part] * 1_000)
    assert (answer.name, answer.body.HasField("error")) == ("ACK_RESPONSE", False)
    (again,) = await client.messages(1)
    assert list(again.body.ack_set) == [0b101]


@pytest.mark.parametrize("ack_type", [0, 1])
@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_an_ack_set_is_cut_to_the_batch(memory_broker: MemoryBroker, kind: int, ack_type: int) -> None:
    client = await memory_broker.connect()
    batch = await batch_of_three(client)
    await client.consumer(TOPIC, subType=kind, initialPosition=1)
    await client.messages(1)
    part = {**batch, "ack_set": [-7, *[-1] * 1_000]}
    await client.request(Command.ACK, consumer_id=1, ack_type=ack_type, message_id=[part])
    client.send(Command.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
    (again,) = await client.messages(1, permits=100)
    if kind == SHARED and ack_type == 1:  # Which is ignored there.
        assert list(again.body.ack_set) == []
        return
    assert list(again.body.ack_set) == [0b001]
    # 1 + 100 permits, of which the whole batch took three, and what is left of it one.
    assert (await statistics(client)).availablePermits == 97


async def test_an_ack_set_of_which_nothing_is_in_the_batch(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    batch = await batch_of_three(client)
    await client.consumer(TOPIC, initialPosition=1)
    await client.request(Command.ACK, consumer_id=1, ack_type=0, message_id=[{**batch, "ack_set": [0b11000]}])
    await client.publish(1, first=5)
    (received,) = await client.messages(1, permits=10)
    assert received.body.message_id.entryId == batch["entryId"] + 1
    assert memory_broker.service.topics[TOPIC].subscriptions["s"].cursor.backlog_entries == 1


async def test_an_ack_set_that_no_batch_has(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    batch = await batch_of_three(client)
    await client.consumer(TOPIC, subType=SHARED)
    longest = {**batch, "ack_set": [1] * ACK_SET_WORDS_MAX}
    answer = await client.request(Command.ACK, consumer_id=1, ack_type=0, message_id=[longest])
    assert not answer.body.HasField("error")
    client.start(Command.ACK, consumer_id=1, ack_type=0, message_id=[{**batch, "ack_set": [1] * 440_000}])
    await client.end()


async def test_a_seek_with_an_ack_set_that_no_batch_has(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    batch = await batch_of_three(client)
    await client.consumer(TOPIC)
    answer = await client.request(Command.SEEK, consumer_id=1, message_id={**batch, "ack_set": [1] * 440_000})
    assert (answer.name, answer.body.error) == ("ERROR", pb.NotAllowedError)
    assert "440000 words" in answer.body.message


async def test_a_message_that_says_it_is_two_thousand_million(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC, subType=SHARED)
    liar = message(b"x", num_messages_in_batch=INT_MAX)
    client.send(Command.SEND, liar, producer_id=1, sequence_id=0, num_messages=INT_MAX)
    await client.expect(Command.SEND_RECEIPT)
    await client.publish(1, first=1)
    received = await client.messages(2, permits=10)
    assert [one.body.message_id.entryId for one in received] == [0, 1]
    counts = await statistics(client)
    assert (counts.availablePermits, counts.unackedMessages) == (8, 2)
    (producer,) = memory_broker.service.topics[TOPIC].producers.by_name.values()
    assert producer.messages_in == 2


@pytest.mark.parametrize("said", [0, -5, -(2**31)])
async def test_a_send_of_no_messages_counts_as_one(memory_broker: MemoryBroker, said: int) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    client.send(Command.SEND, message(b"x"), producer_id=1, sequence_id=0, num_messages=said)
    await client.expect(Command.SEND_RECEIPT)
    (producer,) = memory_broker.service.topics[TOPIC].producers.by_name.values()
    assert producer.messages_in == 1


async def test_permits_without_end(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.consumer(TOPIC)
    for _ in range(100):
        client.send(Command.FLOW, consumer_id=1, messagePermits=2**32 - 1)
    assert (await statistics(client)).availablePermits == INT_MAX


async def test_an_ack_of_very_many_ids_is_taken_in_turns_and_in_order(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    batch = await batch_of_three(client)
    await client.consumer(TOPIC, subType=SHARED, initialPosition=1)
    await client.messages(1)
    unknown = [{"ledgerId": batch["ledgerId"] + 1, "entryId": number} for number in range(50_000)]
    many = client.start(Command.ACK, consumer_id=1, ack_type=0, message_id=[*unknown, batch])
    small = [client.start(Command.ACK, consumer_id=1, ack_type=0, message_id=[batch]) for _ in range(3_000)]
    closed = client.start(Command.CLOSE_CONSUMER, consumer_id=1)
    assert (await client.answer(closed)).name == "SUCCESS"
    receipts = [received for received in client.inbox if received.name == "ACK_RESPONSE"]
    receipts += [await client.expect(Command.ACK_RESPONSE) for _ in range(3_001 - len(receipts))]
    assert [receipt.body.request_id for receipt in receipts] == [many, *small]
    assert not any(receipt.body.HasField("error") for receipt in receipts)
    assert memory_broker.service.topics[TOPIC].subscriptions["s"].cursor.backlog_entries == 0


def nobody(connection: Connection) -> Handler:
    """Handles no connection."""
    raise AssertionError(connection)


async def test_acks_of_one_read_take_several_turns() -> None:
    requests = ConsumerRequests(Connection(asyncio.get_running_loop(), nobody))
    few = command_frame(Command.ACK, consumer_id=1, ack_type=0, message_id=[{"ledgerId": 1, "entryId": 1}] * 100)
    turns = [requests.acknowledge(few, 4, len(few)) for _ in range(1_000)].count(False)
    assert turns == pytest.approx(1_000 * len(few) / ACK_BYTES_PER_TURN, rel=0.2)
    many = command_frame(Command.ACK, consumer_id=1, ack_type=0, message_id=[{"ledgerId": 1, "entryId": 1}] * 100_000)
    turns = 1
    while not requests.acknowledge(many, 4, len(many)):
        turns += 1
    assert turns > len(many) / ACK_BYTES_AT_ONCE


async def test_very_many_ids_are_redelivered_in_turns(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    sent = await client.publish(5)
    await client.consumer(TOPIC, subType=SHARED, initialPosition=1)
    await client.messages(5, permits=100)
    ledger_id = sent[0].ledgerId
    ids = [{"ledgerId": ledger_id, "entryId": number} for number in (*range(99_999, 4, -1), 3, 1, 3)]
    client.send(Command.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=ids)
    again = [await client.expect(Command.MESSAGE) for _ in range(2)]
    assert [(one.body.message_id.entryId, one.body.redelivery_count) for one in again] == [(1, 1), (3, 1)]
    client.send(Command.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=ids)
    closed = await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
    assert closed.name == "SUCCESS"


async def test_the_last_message_before_very_many_markers(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.publish(1)
    await client.publish(3_000, first=1, marker_type=13)
    await client.consumer(TOPIC)
    answer = (await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)).body
    assert answer.last_message_id.entryId == 0
