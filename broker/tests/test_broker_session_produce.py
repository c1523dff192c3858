"""PRODUCER, SEND and CLOSE_PRODUCER as clients see them."""

from __future__ import annotations

import asyncio

import pytest
from magnetar.broker.settings.broker import AutoCreationSettings, BrokerSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, batch_message, command_frame, message
from magnetar.broker.topics.producer_admission import TOPIC_EPOCH_PROPERTY
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.limits import MIB
from magnetar.core.topic_name import TopicName
from magnetar.ledger.testing import MemoryBookie
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
SERVER_REQUEST_ID = 2**64 - 1
EXCLUSIVE, WAIT, FENCING = pb.Exclusive, pb.WaitForExclusive, pb.ExclusiveWithFencing


def bookie_of(broker: MemoryBroker) -> MemoryBookie:
    """The one bookie."""
    (bookie,) = broker.bookies.bookies.values()
    return bookie


async def refused(client: ProtocolClient, topic: str = TOPIC, producer_id: int = 99, **fields: object) -> int:
    """Open a producer that is refused; the code."""
    answer = await client.request(Command.PRODUCER, topic=topic, producer_id=producer_id, **fields)
    assert answer.name == "ERROR", answer
    return int(answer.body.error)


# --- names


async def test_producer_keeps_its_name(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    success = await client.producer(TOPIC, producer_name="mine", metadata=[{"key": "k", "value": "v"}])
    assert (success.producer_name, success.last_sequence_id, success.schema_version) == ("mine", -1, b"")
    assert success.producer_ready
    assert not success.HasField("topic_epoch")


async def test_producer_names_are_generated_apart(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    names = {(await client.producer(f"{TOPIC}-{number % 2}", number)).producer_name for number in range(4)}
    assert len(names) == 4
    assert all(name.startswith("standalone-") for name in names)


async def test_producer_name_in_use(memory_broker: MemoryBroker) -> None:
    client, other = await memory_broker.connect(), await memory_broker.connect()
    await client.producer(TOPIC, producer_name="mine")
    assert await refused(other, producer_name="mine") == pb.ProducerBusy
    assert await refused(client, producer_name="mine") == pb.ProducerBusy
    await client.request(Command.CLOSE_PRODUCER, producer_id=1)
    await other.producer(TOPIC, producer_name="mine")


async def test_producer_name_of_a_dead_connection() -> None:
    async with MemoryBroker(BrokerSettings(connection_liveness_check_seconds=0.02)) as broker:
        dead, back = await broker.connect(), await broker.connect()
        await dead.producer(TOPIC, producer_name="mine")
        dead.stop_reading()
        assert (await back.producer(TOPIC, producer_name="mine")).producer_name == "mine"
        assert list(broker.service.topics[TOPIC].producers.by_name) == ["mine"]


async def test_without_a_time_for_it_nobody_is_asked_whether_it_lives() -> None:
    """As in Apache: the name stays whose it is, and its connection stays open."""
    async with MemoryBroker(BrokerSettings(connection_liveness_check_seconds=0)) as broker:
        silent, other = await broker.connect(), await broker.connect()
        await silent.producer(TOPIC, producer_name="mine")
        silent.stop_reading()
        assert await refused(other, producer_name="mine") == pb.ProducerBusy
        assert list(broker.service.topics[TOPIC].producers.by_name) == ["mine"]


async def test_generated_name_reconnects(memory_broker: MemoryBroker) -> None:
    client, back = await memory_broker.connect(), await memory_broker.connect()
    name = (await client.producer(TOPIC)).producer_name
    await back.producer(TOPIC, producer_name=name, user_provided_producer_name=False, epoch=1)
    assert len(memory_broker.service.topics[TOPIC].producers.by_name) == 1


async def test_who_was_replaced_does_not_take_the_place_back(memory_broker: MemoryBroker) -> None:
    """Of two connections of one client the older may be heard later; its epoch tells."""
    client, back = await memory_broker.connect(), await memory_broker.connect()
    name = (await client.producer(TOPIC)).producer_name
    await back.producer(TOPIC, producer_name=name, user_provided_producer_name=False, epoch=2)
    late = {"producer_name": name, "user_provided_producer_name": False, "epoch": 1}
    assert await refused(client, producer_id=2, **late) == pb.ProducerBusy
    producer = memory_broker.service.topics[TOPIC].producers.by_name[name]
    assert (producer.identity.epoch, producer.closed) == (2, False)


async def test_producer_id_in_use_answers_again(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    assert (await client.producer(TOPIC, producer_name="a")).producer_name == "a"
    assert (await client.producer(TOPIC, producer_name="a")).producer_name == "a"


async def test_producer_id_being_opened(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    first = command_frame(Command.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)
    client.send_bytes(first + command_frame(Command.PRODUCER, topic=TOPIC, producer_id=1, request_id=2))
    assert (await client.answer(2)).body.error == pb.ServiceNotReady
    assert (await client.answer(1)).name == "PRODUCER_SUCCESS"


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        ("persistent://a/b", pb.InvalidTopicName),
        ("persistent://public/none/t", pb.TopicNotFound),
        ("parts", pb.NotAllowedError),
        ("parts-partition-2", pb.TopicNotFound),
    ],
)
async def test_producer_refused_topics(memory_broker: MemoryBroker, topic: str, error: int) -> None:
    await memory_broker.service.partitioned.create(TopicName.parse("parts"), 2)
    client = await memory_broker.connect()
    assert await refused(client, topic) == error
    await client.producer("parts-partition-1", 99)


# --- access modes


async def test_exclusive_keeps_others_out(memory_broker: MemoryBroker) -> None:
    client, other = await memory_broker.connect(), await memory_broker.connect()
    assert (await client.producer(TOPIC, producer_access_mode=EXCLUSIVE)).topic_epoch == 0
    assert await refused(other) == pb.ProducerBusy
    assert await refused(other, producer_access_mode=EXCLUSIVE) == pb.ProducerFenced
    await client.request(Command.CLOSE_PRODUCER, producer_id=1)
    assert (await other.producer(TOPIC, producer_access_mode=EXCLUSIVE)).topic_epoch == 1


async def test_exclusive_after_shared(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    assert await refused(client, producer_access_mode=EXCLUSIVE) == pb.ProducerFenced


async def test_wait_for_exclusive_answers_twice(memory_broker: MemoryBroker) -> None:
    client, other = await memory_broker.connect(), await memory_broker.connect()
    await client.producer(TOPIC)
    request_id = other.start(Command.PRODUCER, topic=TOPIC, producer_id=5, producer_access_mode=WAIT)
    waiting = (await other.answer(request_id)).body
    assert not waiting.producer_ready
    assert not waiting.HasField("topic_epoch")
    assert await refused(client) == pb.ProducerBusy, "nobody overtakes"
    await client.request(Command.CLOSE_PRODUCER, producer_id=1)
    ready = (await other.answer(request_id)).body
    assert (ready.producer_ready, ready.topic_epoch, ready.producer_name) == (True, 0, waiting.producer_name)
    assert len(await other.publish(producer_id=5)) == 1


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_wait_for_exclusive_given_up(memory_broker: MemoryBroker, how: str) -> None:
    client, other, third = [await memory_broker.connect() for _ in range(3)]
    await client.producer(TOPIC, producer_access_mode=EXCLUSIVE)
    await other.answer(other.start(Command.PRODUCER, topic=TOPIC, producer_id=1, producer_access_mode=WAIT))
    request_id = third.start(Command.PRODUCER, topic=TOPIC, producer_id=1, producer_access_mode=WAIT)
    await third.answer(request_id)
    if how == "close":
        await other.request(Command.CLOSE_PRODUCER, producer_id=1)
    else:
        await other.abort()
    await client.request(Command.CLOSE_PRODUCER, producer_id=1)
    assert (await third.answer(request_id)).body.producer_ready
    if how == "close":
        assert await other.round_trip() == []


async def test_exclusive_with_fencing_throws_others_out(memory_broker: MemoryBroker) -> None:
    client, waiting, new = [await memory_broker.connect() for _ in range(3)]
    epoch = (await client.producer(TOPIC, producer_access_mode=EXCLUSIVE)).topic_epoch
    request_id = waiting.start(Command.PRODUCER, topic=TOPIC, producer_id=1, producer_access_mode=WAIT)
    await waiting.answer(request_id)
    assert (await new.producer(TOPIC, producer_access_mode=FENCING)).topic_epoch == epoch + 1
    assert (await client.expect(Command.CLOSE_PRODUCER)).body.request_id == SERVER_REQUEST_ID
    assert (await waiting.answer(request_id)).body.error == pb.ProducerFenced
    back = {"producer_access_mode": EXCLUSIVE, "topic_epoch": epoch}
    assert await refused(client, **back) == pb.ProducerFenced
    await new.request(Command.CLOSE_PRODUCER, producer_id=1)
    assert await refused(client, **back) == pb.ProducerFenced, "its epoch is over"
    assert await refused(client, producer_access_mode=FENCING, topic_epoch=epoch) == pb.ProducerFenced


async def test_epochs_outlive_the_broker(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    for epoch in range(3):
        assert (await client.producer(TOPIC, producer_access_mode=EXCLUSIVE)).topic_epoch == epoch
        await client.request(Command.CLOSE_PRODUCER, producer_id=1)
    await memory_broker.service.unload(TopicName.parse(TOPIC))
    assert (await client.producer(TOPIC, producer_access_mode=EXCLUSIVE)).topic_epoch == 3
    await memory_broker.stop()
    await memory_broker.start()
    client = await memory_broker.connect()
    assert await refused(client, producer_access_mode=EXCLUSIVE, topic_epoch=2) == pb.ProducerFenced
    assert (await client.producer(TOPIC, producer_access_mode=EXCLUSIVE)).topic_epoch == 4


async def test_epochs_are_signed_and_begin_anew_behind_the_last_one(memory_broker: MemoryBroker) -> None:
    """As at Apache's broker, for which another number would not be one: it could not load the topic."""
    client = await memory_broker.connect()
    for wanted, stored, following in ((2**64 - 1, -1, 0), (2**63 - 1, 2**63 - 1, 2**63)):
        body = await client.producer(TOPIC, producer_access_mode=EXCLUSIVE, topic_epoch=wanted)
        assert body.topic_epoch == wanted
        topic = await memory_broker.service.topic(TopicName.parse(TOPIC), create=False)
        assert isinstance(topic, PersistentTopic)
        assert topic.ledger.properties[TOPIC_EPOCH_PROPERTY] == str(stored)
        await client.request(Command.CLOSE_PRODUCER, producer_id=1)
        await memory_broker.service.unload(TopicName.parse(TOPIC))
        assert (await client.producer(TOPIC, producer_access_mode=EXCLUSIVE)).topic_epoch == following
        await client.request(Command.CLOSE_PRODUCER, producer_id=1)


# --- initial subscription


async def test_initial_subscription_gets_everything(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC, initial_subscription_name="first")
    await client.publish(3)
    await client.consumer(TOPIC, "first")
    assert len(await client.messages(3)) == 3


async def test_initial_subscription_not_allowed() -> None:
    async with MemoryBroker(BrokerSettings(auto_creation=AutoCreationSettings(subscriptions_allowed=False))) as broker:
        client = await broker.connect()
        assert await refused(client, initial_subscription_name="first") == pb.NotAllowedError
        await client.producer(TOPIC)


# --- SEND


async def test_receipts_come_in_order(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC, 1)
    await client.producer(TOPIC, 2)
    frames = [
        command_frame(Command.SEND, message(b"%d" % number), producer_id=1 + number % 2, sequence_id=number)
        for number in range(40)
    ]
    client.send_bytes(b"".join(frames))
    receipts = [(await client.expect(Command.SEND_RECEIPT)).body for _ in frames]
    for producer_id in (1, 2):
        mine = [receipt for receipt in receipts if receipt.producer_id == producer_id]
        assert [receipt.sequence_id for receipt in mine] == list(range(producer_id - 1, 40, 2))
        assert [r.message_id.entryId for r in mine] == sorted(r.message_id.entryId for r in mine)
    assert {receipt.message_id.entryId for receipt in receipts} == set(range(40))


async def test_receipt_of_a_batch(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    client.send(
        Command.SEND,
        batch_message(b"a", b"b", b"c"),
        producer_id=1,
        sequence_id=4,
        highest_sequence_id=6,
        num_messages=3,
    )
    receipt = (await client.expect(Command.SEND_RECEIPT)).body
    assert (receipt.sequence_id, receipt.highest_sequence_id) == (4, 6)
    topic = memory_broker.service.topics[TOPIC]
    assert (topic.messages_in, topic.number_of_entries) == (3, 1)


async def test_messages_without_checksum_are_taken(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    client.send(Command.SEND, message(checksum=False), producer_id=1, sequence_id=0)
    await client.expect(Command.SEND_RECEIPT)


async def test_wrong_checksum(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    damaged = bytearray(message(b"payload"))
    damaged[-1] ^= 1
    client.send(Command.SEND, bytes(damaged), producer_id=1, sequence_id=1, highest_sequence_id=3)
    error = (await client.expect(Command.SEND_ERROR)).body
    assert (error.producer_id, error.sequence_id, error.error) == (1, 3, pb.ChecksumError)
    assert len(await client.publish()) == 1, "the producer goes on"
    assert memory_broker.service.topics[TOPIC].number_of_entries == 1


async def test_chunks_are_entries_of_their_own(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    for chunk in range(3):
        content = message(b"part", uuid="p-0", chunk_id=chunk, num_chunks_from_msg=3, total_chunk_msg_size=12)
        client.send(Command.SEND, content, producer_id=1, sequence_id=0, is_chunk=True)
    receipts = [(await client.expect(Command.SEND_RECEIPT)).body for _ in range(3)]
    assert [receipt.message_id.entryId for receipt in receipts] == [0, 1, 2]
    assert [m.body.message_id.entryId for m in await client.messages(3)] == [0, 1, 2]


async def test_send_of_unknown_producer_closes(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    client.send(Command.SEND, message(), producer_id=7, sequence_id=0)
    assert await client.end() == []


async def test_send_before_the_producer_stands_closes(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    client.send_bytes(
        command_frame(Command.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)
        + command_frame(Command.SEND, message(), producer_id=1, sequence_id=0)
    )
    assert await client.end() == []


async def test_send_after_the_broker_closed_is_dropped(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await memory_broker.service.unload(TopicName.parse(TOPIC))
    client.send(Command.SEND, message(), producer_id=1, sequence_id=0)
    assert [received.name for received in await client.round_trip()] == ["CLOSE_PRODUCER"]
    await client.producer(TOPIC)
    assert [message_id.entryId for message_id in await client.publish()] == [0]


async def test_receipts_come_before_the_answer_to_close(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    client.send_bytes(
        command_frame(Command.SEND, message(), producer_id=1, sequence_id=0)
        + command_frame(Command.SEND, message(), producer_id=1, sequence_id=1)
        + command_frame(Command.CLOSE_PRODUCER, producer_id=1, request_id=9)
    )
    answer = await client.answer(9)
    assert answer.name == "SUCCESS"
    assert [received.body.sequence_id for received in client.inbox] == [0, 1]
    assert not memory_broker.service.topics[TOPIC].producers.by_name


async def test_cut_while_the_producer_is_drained(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    bookie_of(memory_broker).hang()
    client.send(Command.SEND, message(), producer_id=1, sequence_id=0)
    client.start(Command.CLOSE_PRODUCER, producer_id=1)
    assert await client.round_trip() == [], "no answer before the message is stored"
    await client.abort()
    producers = memory_broker.service.topics[TOPIC].producers
    async with asyncio.timeout(30):
        while producers.by_name:
            await asyncio.sleep(0.001)
    bookie_of(memory_broker).heal()


async def test_close_of_unknown_producer(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    assert (await client.request(Command.CLOSE_PRODUCER, producer_id=7)).name == "SUCCESS"


async def test_terminated_topic(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.publish(2)
    await memory_broker.service.topics[TOPIC].terminate()
    await client.expect(Command.CLOSE_PRODUCER)
    assert await refused(client) == pb.TopicTerminatedError


async def test_send_while_the_topic_terminates(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    terminating = asyncio.create_task(memory_broker.service.topics[TOPIC].terminate())
    await asyncio.sleep(0)
    client.send(Command.SEND, message(), producer_id=1, sequence_id=0)
    await terminating
    names = {received.name for received in await client.round_trip()}
    assert names <= {"SEND_RECEIPT", "CLOSE_PRODUCER"}
    assert "CLOSE_PRODUCER" in names


async def test_what_a_terminated_topic_does_not_take_closes_its_producers(memory_broker: MemoryBroker) -> None:
    """Go's client forgets a producer at a SEND_ERROR that says so; then it would not hear CLOSE_PRODUCER."""
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    topic = memory_broker.service.topics[TOPIC]
    assert isinstance(topic, PersistentTopic)
    await topic.ledger.terminate()  # Its producers are not told yet.
    for number in range(2):
        client.send(Command.SEND, message(), producer_id=1, sequence_id=number)
    names = [received.name for received in await client.round_trip()]
    assert names == ["CLOSE_PRODUCER"]
    assert await refused(client) == pb.TopicTerminatedError


async def test_too_much_unstored_stops_the_reading() -> None:
    settings = BrokerSettings(message_size_bytes_max=MIB, publish_buffer_bytes_per_connection_max=2 * MIB)
    async with MemoryBroker(settings) as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        bookie_of(broker).hang()
        for number in range(6):
            client.send(Command.SEND, message(bytes(MIB // 2)), producer_id=1, sequence_id=number)
        client.send(Command.PING)
        await asyncio.sleep(0.05)
        assert client.inbox == [], "PING is behind what is not read"
        bookie_of(broker).heal()
        await client.expect(Command.PONG)
        receipts = [(await client.expect(Command.SEND_RECEIPT)).body.sequence_id for _ in range(6)]
        assert receipts == list(range(6))


async def test_old_clients_lose_the_connection_instead(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect(protocol_version=4)
    await client.producer(TOPIC)
    await memory_broker.service.unload(TopicName.parse(TOPIC))
    assert await client.end() == []


# --- non-persistent topics


async def test_non_persistent_topics_pass_messages_on(memory_broker: MemoryBroker) -> None:
    topic = "non-persistent://public/default/passing"
    client = await memory_broker.connect()
    await client.producer(topic)
    assert [(i.ledgerId, i.entryId) for i in await client.publish()] == [(0, 0)], "nobody is there, it is gone"
    await client.consumer(topic)
    client.send(Command.FLOW, consumer_id=1, messagePermits=10)
    await client.publish(2, first=1)
    payloads = [(await client.expect(Command.MESSAGE)).payload for _ in range(2)]
    assert [payload[-2:] for payload in payloads] == [b"m1", b"m2"]
    client.send(Command.ACK, consumer_id=1, ack_type=0, message_id=[{"ledgerId": 0, "entryId": 0}], request_id=5)
    assert (await client.answer(5)).name == "ACK_RESPONSE"
    assert (await client.request(Command.SEEK, consumer_id=1, message_publish_time=0)).name == "SUCCESS"
    last = await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)
    assert last.body.error == pb.NotAllowedError
    assert (await client.request(Command.UNSUBSCRIBE, consumer_id=1)).name == "SUCCESS"


async def test_non_persistent_access_modes(memory_broker: MemoryBroker) -> None:
    topic = "non-persistent://public/default/passing"
    client, other = await memory_broker.connect(), await memory_broker.connect()
    assert (await client.producer(topic, producer_access_mode=EXCLUSIVE)).topic_epoch == 0
    assert await refused(other, topic) == pb.ProducerBusy
    request_id = other.start(Command.PRODUCER, topic=topic, producer_id=1, producer_access_mode=WAIT)
    assert not (await other.answer(request_id)).body.producer_ready
    await memory_broker.service.unload(TopicName.parse(topic))
    assert (await other.answer(request_id)).body.error == pb.ServiceNotReady
    await client.expect(Command.CLOSE_PRODUCER)
