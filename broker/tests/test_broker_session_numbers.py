"""Numbers that no honest client sends: each is bounded where it comes in, and nobody else is held up by it."""

from __future__ import annotations

from typing import Any

import pytest
from magnetar.broker.session_testing import MemoryBroker, ProtocolClient, batch_message, message
from magnetar.core.limits import ACK_SET_WORDS_MAX
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
