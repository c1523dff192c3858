"""SUBSCRIBE and everything that a consumer says after it, as clients see it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from magnetar.broker.settings.broker import AutoCreationSettings, BrokerSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, Received, batch_message, command_frame
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.topic_name import TopicName
from magnetar.metadata.store import StoreUnavailable
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
MINUS_ONE = 2**64 - 1
EARLIEST = {"ledgerId": MINUS_ONE, "entryId": MINUS_ONE}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


def entry_ids(messages: list[Received]) -> list[int]:
    """Of MESSAGE commands."""
    return [message.body.message_id.entryId for message in messages]


def an_id(message_id: object, **fields: object) -> dict[str, object]:
    """A message id as a command takes it."""
    return {"ledgerId": message_id.ledgerId, "entryId": message_id.entryId, **fields}  # type: ignore[attr-defined]


async def refused(client: ProtocolClient, topic: str = TOPIC, **fields: object) -> int:
    """Subscribe in vain; the code."""
    answer = await client.request(
        Command.SUBSCRIBE, **{"topic": topic, "subscription": "s", "consumer_id": 99, "subType": EXCLUSIVE, **fields}
    )
    assert answer.name == "ERROR", answer
    return int(answer.body.error)


async def with_messages(broker: MemoryBroker, count: int = 5) -> tuple[ProtocolClient, list[object]]:
    """A client with producer 1, and the ids of messages that it published."""
    client = await broker.connect()
    await client.producer(TOPIC)
    return client, await client.publish(count)


# --- SUBSCRIBE


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": "persistent://a/b"}, pb.InvalidTopicName),
        ({"topic": "persistent://public/none/t"}, pb.TopicNotFound),
        ({"topic": "missing", "force_topic_creation": False}, pb.TopicNotFound),
        ({"topic": "parts"}, pb.NotAllowedError),
        ({"topic": "parts-partition-7"}, pb.TopicNotFound),
        ({"subscription": ""}, pb.ProducerBusy),
        ({"subscription": "pulsar.repl.east"}, pb.ProducerBusy),
        ({"subscription": "pulsar.dedup"}, pb.ProducerBusy),
        ({"metadata": [{"key": "k", "value": "v" * 1024}]}, pb.MetadataError),
        ({"read_compacted": True, "subType": SHARED}, pb.NotAllowedError),
        ({"read_compacted": True, "subType": KEY_SHARED}, pb.NotAllowedError),
        ({"read_compacted": True, "topic": "non-persistent://public/default/t"}, pb.NotAllowedError),
    ],
)
async def test_subscribe_refusals(memory_broker: MemoryBroker, fields: dict[str, object], error: int) -> None:
    await memory_broker.service.partitioned.create(TopicName.parse("parts"), 2)
    client = await memory_broker.connect()
    assert await refused(client, **fields) == error  # type: ignore[arg-type]
    assert all(not topic.subscriptions for topic in memory_broker.service.topics.values())


async def test_subscribe_where_topics_are_not_created() -> None:
    async with MemoryBroker(BrokerSettings(auto_creation=AutoCreationSettings(topics_allowed=False))) as broker:
        client = await broker.connect()
        assert await refused(client) == pb.TopicNotFound


async def test_subscribe_where_subscriptions_are_not_created() -> None:
    async with MemoryBroker(BrokerSettings(auto_creation=AutoCreationSettings(subscriptions_allowed=False))) as broker:
        client = await broker.connect()
        assert await refused(client) == pb.SubscriptionNotFound
        await client.consumer(TOPIC, "reader", durable=False)
        await client.consumer("non-persistent://public/default/t", consumer_id=2)
        await broker.service.topics[TOPIC].create_subscription("s", (-1, -1))
        await client.consumer(TOPIC, consumer_id=3)


async def test_subscribe_second_exclusive(memory_broker: MemoryBroker) -> None:
    client, other = await memory_broker.connect(), await memory_broker.connect()
    await client.consumer(TOPIC)
    assert await refused(other) == pb.ConsumerBusy
    assert await refused(client) == pb.ConsumerBusy
    await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
    await other.consumer(TOPIC)


async def test_subscribe_over_a_dead_exclusive() -> None:
    async with MemoryBroker(BrokerSettings(connection_liveness_check_seconds=0.02)) as broker:
        dead, back = await broker.connect(), await broker.connect()
        await dead.consumer(TOPIC)
        dead.stop_reading()
        await back.consumer(TOPIC)
        assert len(broker.service.topics[TOPIC].subscriptions["s"].consumers) == 1


@pytest.mark.parametrize("first", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
async def test_subscribe_with_another_type(memory_broker: MemoryBroker, first: int) -> None:
    client = await memory_broker.connect()
    await client.consumer(TOPIC, subType=first)
    for other in {EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED} - {first}:
        assert await refused(client, subType=other) == pb.ConsumerBusy
    await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
    await client.consumer(TOPIC, subType=(first + 1) % 4)


async def test_subscribe_key_shared_ranges(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    sticky = {"keySharedMode": 1, "hashRanges": [{"start": 0, "end": 100}]}
    await client.consumer(TOPIC, subType=KEY_SHARED, keySharedMeta=sticky)
    assert await refused(client, subType=KEY_SHARED, keySharedMeta=sticky) == pb.ConsumerAssignError
    assert await refused(client, subType=KEY_SHARED, keySharedMeta={"keySharedMode": 0}) == pb.ConsumerBusy


async def test_subscribe_twice_with_one_id(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.consumer(TOPIC)
    await client.consumer(TOPIC)
    frame: dict[str, Any] = {"topic": TOPIC, "subscription": "s2", "subType": SHARED, "consumer_id": 5}
    client.send_bytes(
        command_frame(Command.SUBSCRIBE, **frame, request_id=50)
        + command_frame(Command.SUBSCRIBE, **frame, request_id=51)
    )
    assert (await client.answer(51)).body.error == pb.ServiceNotReady
    assert (await client.answer(50)).name == "SUCCESS"


async def test_subscribe_durable_or_not(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.consumer(TOPIC, "kept", subType=SHARED)
    await client.consumer(TOPIC, "passing", 2, durable=False)
    for subscription, durable in (("kept", False), ("passing", True)):
        assert await refused(client, subscription=subscription, subType=SHARED, durable=durable) == pb.NotAllowedError


async def test_subscribe_from_earliest_or_latest(memory_broker: MemoryBroker) -> None:
    client, _ = await with_messages(memory_broker)
    await client.consumer(TOPIC, "latest", 1)
    await client.consumer(TOPIC, "earliest", 2, initialPosition=1)
    assert entry_ids(await client.messages(5, consumer_id=2)) == [0, 1, 2, 3, 4]
    client.send(Command.FLOW, consumer_id=1, messagePermits=10)
    await client.publish(1, first=5)
    assert entry_ids([await client.expect(Command.MESSAGE)]) == [5]


async def test_subscribe_rolled_back_in_time(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    now_ms = int(time.time() * 1000)
    for number, age_ms in enumerate((60_000, 30_000, 1_000)):
        await client.publish(1, first=number, publish_time=now_ms - age_ms)
    await client.consumer(TOPIC, start_message_rollback_duration_sec=40)
    assert entry_ids(await client.messages(2)) == [1, 2]


async def test_subscription_properties_are_kept(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.consumer(TOPIC, subscription_properties=[{"key": "team", "value": "blue"}])
    cursor = memory_broker.service.topics[TOPIC].subscriptions["s"].cursor
    assert cursor.cursor_properties == {"team": "blue"}


async def test_a_subscription_resumes(memory_broker: MemoryBroker) -> None:
    client, ids = await with_messages(memory_broker)
    await client.consumer(TOPIC, initialPosition=1)
    await client.messages(5)
    client.send(Command.ACK, consumer_id=1, ack_type=1, message_id=[an_id(ids[2])])
    await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
    await memory_broker.stop()
    await memory_broker.start()
    client = await memory_broker.connect()
    await client.consumer(TOPIC)
    assert entry_ids(await client.messages(2)) == [3, 4]


# --- FLOW


async def test_flow_limits_what_is_sent(memory_broker: MemoryBroker) -> None:
    client, _ = await with_messages(memory_broker)
    await client.consumer(TOPIC, initialPosition=1)
    assert await client.round_trip() == []
    await client.messages(2)
    assert await client.round_trip() == []
    assert entry_ids(await client.messages(3, permits=10)) == [2, 3, 4]
    client.send(Command.FLOW, consumer_id=77, messagePermits=10)
    assert await client.round_trip() == [], "one of an unknown consumer is dropped"


async def test_message_carries_the_partition(memory_broker: MemoryBroker) -> None:
    await memory_broker.service.partitioned.create(TopicName.parse("parts"), 2)
    client = await memory_broker.connect()
    await client.producer("parts-partition-1")
    await client.publish(1)
    await client.consumer("parts-partition-1", initialPosition=1)
    (received,) = await client.messages(1)
    assert received.body.message_id.partition == 1
    assert received.payload.endswith(b"m0")


# --- ACK


async def test_ack_with_a_request_id_is_answered(memory_broker: MemoryBroker) -> None:
    client, ids = await with_messages(memory_broker)
    await client.consumer(TOPIC, initialPosition=1)
    await client.messages(5)
    fields = {"consumer_id": 1, "ack_type": 0, "message_id": [an_id(ids[0]), an_id(ids[2])]}
    answer = await client.request(Command.ACK, **fields)
    assert (answer.name, answer.body.consumer_id) == ("ACK_RESPONSE", 1)
    assert not answer.body.HasField("error")
    cursor = memory_broker.service.topics[TOPIC].subscriptions["s"].cursor
    assert cursor.mark_delete[1] == 0
    assert cursor.backlog_entries == 3


async def test_ack_of_unknown_consumer_is_dropped(memory_broker: MemoryBroker) -> None:
    client, ids = await with_messages(memory_broker)
    client.send(Command.ACK, consumer_id=77, ack_type=0, message_id=[an_id(ids[0])])
    assert await client.round_trip() == []


async def test_ack_cumulative(memory_broker: MemoryBroker) -> None:
    client, ids = await with_messages(memory_broker)
    await client.consumer(TOPIC, initialPosition=1)
    await client.messages(5)
    await client.request(Command.ACK, consumer_id=1, ack_type=1, message_id=[an_id(ids[3])])
    assert memory_broker.service.topics[TOPIC].subscriptions["s"].cursor.backlog_entries == 1


async def test_ack_of_parts_of_a_batch(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC, subType=SHARED)
    client.send(Command.SEND, batch_message(b"a", b"b", b"c"), producer_id=1, sequence_id=0, num_messages=3)
    batch = (await client.expect(Command.SEND_RECEIPT)).body.message_id
    client.send(Command.FLOW, consumer_id=1, messagePermits=10)
    await client.expect(Command.MESSAGE)
    part = an_id(batch, ack_set=[0b101], batch_size=3)
    await client.request(Command.ACK, consumer_id=1, ack_type=0, message_id=[part])
    assert memory_broker.service.topics[TOPIC].subscriptions["s"].cursor.backlog_entries == 1
    client.send(Command.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
    again = await client.expect(Command.MESSAGE)
    assert (list(again.body.ack_set), again.body.redelivery_count) == ([0b101], 1)
    rest = an_id(batch, ack_set=[0b010], batch_size=3)
    await client.request(Command.ACK, consumer_id=1, ack_type=0, message_id=[rest])
    assert memory_broker.service.topics[TOPIC].subscriptions["s"].cursor.backlog_entries == 0


async def test_ack_in_a_transaction_is_refused(memory_broker: MemoryBroker) -> None:
    client, ids = await with_messages(memory_broker)
    await client.consumer(TOPIC, initialPosition=1)
    fields = {"ack_type": 0, "message_id": [an_id(ids[0])], "txnid_least_bits": 1, "txnid_most_bits": 0}
    answer = await client.request(Command.ACK, consumer_id=1, **fields)
    assert (answer.name, answer.body.error) == ("ACK_RESPONSE", pb.NotAllowedError)


# --- REDELIVER


async def test_redeliver_some(memory_broker: MemoryBroker) -> None:
    client, ids = await with_messages(memory_broker)
    await client.consumer(TOPIC, subType=SHARED, initialPosition=1)
    await client.messages(5, permits=20)
    client.send(Command.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=[an_id(ids[1]), an_id(ids[3])])
    again = [await client.expect(Command.MESSAGE) for _ in range(2)]
    assert entry_ids(again) == [1, 3]
    assert [message.body.redelivery_count for message in again] == [1, 1]


async def test_redeliver_everything_with_an_epoch(memory_broker: MemoryBroker) -> None:
    client, ids = await with_messages(memory_broker)
    await client.consumer(TOPIC, initialPosition=1, consumer_epoch=0)
    await client.messages(5, permits=20)
    client.send(Command.ACK, consumer_id=1, ack_type=1, message_id=[an_id(ids[1])])
    client.send(Command.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, consumer_epoch=4)
    again = [await client.expect(Command.MESSAGE) for _ in range(3)]
    assert entry_ids(again) == [2, 3, 4]
    assert [message.body.consumer_epoch for message in again] == [4, 4, 4]
    client.send(Command.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=77)
    assert await client.round_trip() == []


async def subscribed_again(broker: MemoryBroker, client: ProtocolClient, count: int, **fields: Any) -> list[Received]:
    """What comes after the topic was unloaded and the client has subscribed again."""
    await broker.service.unload(TopicName.parse(TOPIC))
    await client.expect(Command.CLOSE_CONSUMER)
    client.inbox.clear()
    await client.consumer(TOPIC, **fields)
    return await client.messages(count, permits=20)


async def test_counts_and_epochs_outlast_an_unload(memory_broker: MemoryBroker) -> None:
    """What a client asked for counts, at whichever broker; that the topic was moved does not."""
    client, ids = await with_messages(memory_broker)
    await client.consumer(TOPIC, subType=SHARED, initialPosition=1)
    await client.messages(5, permits=20)
    for _ in range(2):
        client.send(
            Command.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=[an_id(ids[1]), an_id(ids[3])]
        )
        assert len([await client.expect(Command.MESSAGE) for _ in range(2)]) == 2
    await client.request(Command.ACK, consumer_id=1, ack_type=0, message_id=[an_id(ids[3])])
    for _ in range(2):
        again = await subscribed_again(memory_broker, client, 4, subType=SHARED)
        assert entry_ids(again) == [0, 1, 2, 4]
        assert [message.body.redelivery_count for message in again] == [0, 2, 0, 0]
    await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
    await client.consumer(TOPIC, consumer_epoch=7)
    await client.messages(4, permits=20)
    again = await subscribed_again(memory_broker, client, 4, consumer_epoch=8)
    assert [(message.body.consumer_epoch, message.body.redelivery_count) for message in again] == [(8, 0)] * 4


# --- SEEK


async def seek(client: ProtocolClient, consumer_id: int = 1, **fields: object) -> None:
    """Seek; the client is told to come back before it is told that the seek is done."""
    request_id = client.start(Command.SEEK, consumer_id=consumer_id, **fields)
    answer = await client.answer(request_id)
    assert answer.name == "SUCCESS", answer
    (closed,) = [received for received in client.inbox if received.name == "CLOSE_CONSUMER"]
    assert (closed.body.consumer_id, closed.body.request_id) == (consumer_id, MINUS_ONE)
    client.inbox.clear()
    await client.consumer(TOPIC, consumer_id=consumer_id)


async def test_seek_by_id(memory_broker: MemoryBroker) -> None:
    client, ids = await with_messages(memory_broker)
    await client.consumer(TOPIC, initialPosition=1)
    await client.messages(5)
    for target, expected in ((an_id(ids[3]), [3, 4]), (EARLIEST, [0, 1, 2, 3, 4]), (an_id(ids[0]), [0, 1, 2, 3, 4])):
        await seek(client, message_id=target)
        assert entry_ids(await client.messages(len(expected))) == expected
    await seek(client, message_id=LATEST)
    client.send(Command.FLOW, consumer_id=1, messagePermits=10)
    assert await client.round_trip() == []


async def test_seek_to_a_part_of_a_batch(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    client.send(Command.SEND, batch_message(b"a", b"b", b"c"), producer_id=1, sequence_id=0, num_messages=3)
    batch = (await client.expect(Command.SEND_RECEIPT)).body.message_id
    await seek(client, message_id=an_id(batch, ack_set=[0b110]))
    client.send(Command.FLOW, consumer_id=1, messagePermits=10)
    assert list((await client.expect(Command.MESSAGE)).body.ack_set) == [0b110]


async def test_seek_by_time(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    for number in range(5):
        await client.publish(1, first=number, publish_time=1_000 + 100 * number)
    await client.consumer(TOPIC)
    for target, expected in ((1_200, [2, 3, 4]), (1_201, [3, 4]), (0, [0, 1, 2, 3, 4])):
        await seek(client, message_publish_time=target)
        assert entry_ids(await client.messages(len(expected))) == expected
    await seek(client, message_publish_time=5_000)
    client.send(Command.FLOW, consumer_id=1, messagePermits=10)
    assert await client.round_trip() == []


async def test_seek_disconnects_every_consumer(memory_broker: MemoryBroker) -> None:
    client, other = await memory_broker.connect(), await memory_broker.connect()
    await client.consumer(TOPIC, subType=SHARED)
    await other.consumer(TOPIC, subType=SHARED)
    assert (await client.request(Command.SEEK, consumer_id=1, message_id=EARLIEST)).name == "SUCCESS"
    await client.expect(Command.CLOSE_CONSUMER)
    await other.expect(Command.CLOSE_CONSUMER)


@pytest.mark.parametrize("fields", [{}, {"message_publish_time": 1}, {"message_id": EARLIEST}])
async def test_seek_of_unknown_consumer(memory_broker: MemoryBroker, fields: dict[str, object]) -> None:
    client = await memory_broker.connect()
    answer = await client.request(Command.SEEK, consumer_id=77, **fields)
    assert (answer.name, answer.body.error) == ("ERROR", pb.MetadataError)


# --- GET_LAST_MESSAGE_ID


async def test_last_message_id_of_nothing(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.consumer(TOPIC)
    answer = (await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)).body
    assert (answer.last_message_id.ledgerId, answer.last_message_id.entryId) == (MINUS_ONE, MINUS_ONE)
    assert answer.last_message_id.batch_index == -1
    assert answer.consumer_mark_delete_position.entryId == MINUS_ONE


async def test_last_message_id(memory_broker: MemoryBroker) -> None:
    client, ids = await with_messages(memory_broker, 2)
    await client.consumer(TOPIC, initialPosition=1)
    await client.messages(2)
    await client.request(Command.ACK, consumer_id=1, ack_type=0, message_id=[an_id(ids[0])])
    answer = (await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)).body
    assert (answer.last_message_id.entryId, answer.last_message_id.batch_index) == (1, -1)
    assert answer.consumer_mark_delete_position.entryId == 0
    client.send(Command.SEND, batch_message(b"a", b"b", b"c"), producer_id=1, sequence_id=2, num_messages=3)
    await client.expect(Command.SEND_RECEIPT)
    answer = (await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)).body
    assert (answer.last_message_id.entryId, answer.last_message_id.batch_index) == (2, 2)
    unknown = await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=77)
    assert (unknown.name, unknown.body.error) == ("ERROR", pb.MetadataError)


async def test_last_message_id_steps_over_markers(memory_broker: MemoryBroker) -> None:
    client, _ = await with_messages(memory_broker, 1)
    await client.publish(2, first=1, marker_type=13)
    await client.consumer(TOPIC)
    answer = (await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)).body
    assert answer.last_message_id.entryId == 0


# --- UNSUBSCRIBE, CLOSE_CONSUMER


async def test_a_refused_unsubscribe_has_the_consumer_subscribe_again(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients go on with their consumer after the refusal, and would wait for messages for ever."""

    async def fail(self: PersistentTopic, name: str, *, force: bool = False) -> None:
        raise StoreUnavailable("the metadata store is out of reach")

    monkeypatch.setattr(PersistentTopic, "delete_subscription", fail)
    client = await memory_broker.connect()
    await client.consumer(TOPIC)
    client.send(Command.UNSUBSCRIBE, consumer_id=1, request_id=77)
    refusal = await client.expect(Command.ERROR)
    assert refusal.body.request_id == 77
    closed = await client.expect(Command.CLOSE_CONSUMER)
    assert closed.body.consumer_id == 1
    await client.consumer(TOPIC)


async def test_unsubscribe_removes_the_subscription(memory_broker: MemoryBroker) -> None:
    client, _ = await with_messages(memory_broker)
    await client.consumer(TOPIC, initialPosition=1)
    assert (await client.request(Command.UNSUBSCRIBE, consumer_id=1)).name == "SUCCESS"
    assert not memory_broker.service.topics[TOPIC].subscriptions
    assert (await client.request(Command.UNSUBSCRIBE, consumer_id=1)).body.error == pb.MetadataError
    await client.consumer(TOPIC)
    assert await client.round_trip() == []


@pytest.mark.parametrize("happened", [True, False])
async def test_a_deletion_without_an_answer_can_be_asked_for_again(memory_broker: MemoryBroker, happened: bool) -> None:
    client, _ = await with_messages(memory_broker)
    await client.consumer(TOPIC, subscription="sub", initialPosition=1)
    topic = memory_broker.service.topics[TOPIC]
    right = memory_broker.store.delete

    async def lost(path: str, *arguments: Any) -> None:
        if happened:
            await right(path, *arguments)
        raise StoreUnavailable(f"no answer to the deletion of {path}")

    memory_broker.store.delete = lost
    with pytest.raises(StoreUnavailable):
        await topic.delete_subscription("sub", force=True)
    memory_broker.store.delete = right
    await topic.delete_subscription("sub")
    assert "sub" not in topic.ledger.cursors
    with pytest.raises(PulsarError):
        await topic.delete_subscription("sub")
    other = await memory_broker.connect()
    await other.consumer(TOPIC, subscription="sub")
    assert await other.round_trip() == []


@pytest.mark.parametrize("kind", [SHARED, FAILOVER, KEY_SHARED])
async def test_unsubscribe_with_others_there(memory_broker: MemoryBroker, kind: int) -> None:
    client, other = await memory_broker.connect(), await memory_broker.connect()
    await client.consumer(TOPIC, subType=kind)
    await other.consumer(TOPIC, subType=kind)
    for one in (client, other):
        assert (await one.request(Command.UNSUBSCRIBE, consumer_id=1)).body.error == pb.MetadataError
    assert len(memory_broker.service.topics[TOPIC].subscriptions["s"].consumers) == 2
    assert (await client.request(Command.UNSUBSCRIBE, consumer_id=1, force=True)).name == "SUCCESS"
    await other.expect(Command.CLOSE_CONSUMER)
    assert not memory_broker.service.topics[TOPIC].subscriptions


async def test_close_consumer(memory_broker: MemoryBroker) -> None:
    client, _ = await with_messages(memory_broker)
    await client.consumer(TOPIC, initialPosition=1)
    assert (await client.request(Command.CLOSE_CONSUMER, consumer_id=1)).name == "SUCCESS"
    assert (await client.request(Command.CLOSE_CONSUMER, consumer_id=1)).name == "SUCCESS"
    subscription = memory_broker.service.topics[TOPIC].subscriptions["s"]
    assert subscription.consumers == []
    assert subscription.backlog == 5


# --- CONSUMER_STATS, readers, what the broker says by itself


async def test_consumer_stats(memory_broker: MemoryBroker) -> None:
    client, _ = await with_messages(memory_broker)
    await client.consumer(TOPIC, consumer_name="me", subType=SHARED, initialPosition=1)
    await client.messages(5, permits=7)
    stats = (await client.request(Command.CONSUMER_STATS, consumer_id=1)).body
    assert (stats.consumerName, stats.type, stats.availablePermits) == ("me", "Shared", 2)
    assert (stats.unackedMessages, stats.msgBacklog, stats.blockedConsumerOnUnackedMsgs) == (5, 5, False)
    assert stats.address.startswith("/127.0.0.1:")
    unknown = (await client.request(Command.CONSUMER_STATS, consumer_id=77)).body
    assert unknown.error_code == pb.ConsumerNotFound


@pytest.mark.parametrize("name", ["id", "earliest", "latest", "beyond", "nothing, earliest", "nothing, latest"])
async def test_readers_start_where_they_say(memory_broker: MemoryBroker, name: str) -> None:
    client, ids = await with_messages(memory_broker)
    fields, expected = {
        "id": ({"start_message_id": an_id(ids[2])}, [2, 3, 4]),
        "earliest": ({"start_message_id": EARLIEST}, [0, 1, 2, 3, 4]),
        "latest": ({"start_message_id": LATEST}, []),
        "beyond": ({"start_message_id": {**an_id(ids[4]), "entryId": 100}}, []),
        "nothing, earliest": ({"initialPosition": 1}, [0, 1, 2, 3, 4]),
        "nothing, latest": ({"initialPosition": 0}, []),
    }[name]
    await client.consumer(TOPIC, "reader", durable=False, **fields)  # type: ignore[arg-type]
    client.send(Command.FLOW, consumer_id=1, messagePermits=10)
    await client.publish(1, first=5)
    assert entry_ids([await client.expect(Command.MESSAGE) for _ in range(len(expected) + 1)]) == [*expected, 5]
    await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
    assert not memory_broker.service.topics[TOPIC].subscriptions, "a reader leaves nothing behind"


async def test_failover_is_told_who_receives(memory_broker: MemoryBroker) -> None:
    topic = TOPIC + "-partition-0"
    client, other = await memory_broker.connect(), await memory_broker.connect()
    await client.consumer(topic, consumer_name="a", subType=FAILOVER)
    assert (await client.expect(Command.ACTIVE_CONSUMER_CHANGE)).body.is_active
    await other.consumer(topic, consumer_name="b", subType=FAILOVER)
    assert not (await other.expect(Command.ACTIVE_CONSUMER_CHANGE)).body.is_active
    await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
    assert (await other.expect(Command.ACTIVE_CONSUMER_CHANGE)).body.is_active


@pytest.mark.parametrize(("client_version", "told"), [("Pulsar-Java-v4.0.8", True), ("Pulsar-CPP-v4.2.0", False)])
async def test_reached_end_of_topic(memory_broker: MemoryBroker, client_version: str, told: bool) -> None:
    client = await memory_broker.connect(client_version=client_version)
    await client.consumer(TOPIC)
    await memory_broker.service.topics[TOPIC].terminate()
    assert [received.name for received in await client.round_trip()] == ["REACHED_END_OF_TOPIC"] * told


async def test_old_clients_lose_the_connection_instead(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect(protocol_version=4)
    await client.consumer(TOPIC)
    await memory_broker.service.unload(TopicName.parse(TOPIC))
    assert await client.end() == []


async def test_a_close_does_not_overtake_the_clients_knowledge() -> None:
    """Go's client passes over a CLOSE_CONSUMER that it reads before it has registered the id, and waits for ever."""
    async with MemoryBroker(known_after_seconds=0.1) as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        await client.consumer(TOPIC, "s", 1)
        await broker.service.unload(TopicName.parse(TOPIC))
        assert await client.round_trip() == []
        await client.expect(Command.CLOSE_PRODUCER)
        await client.expect(Command.CLOSE_CONSUMER)


async def test_who_uses_a_consumer_is_told_of_its_end_at_once() -> None:
    """C++'s client takes what it gets between the end of a seek and the close for the place that it asked for, and
    acknowledgements that Java's and Go's group for 100 ms would be lost meanwhile."""
    async with MemoryBroker(known_after_seconds=60.0) as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        first, _ = await client.publish(2)
        await client.consumer(TOPIC, "s", 1)
        await seek(client, message_id=first)
        await client.messages(2)
        await broker.service.unload(TopicName.parse(TOPIC))
        await client.expect(Command.CLOSE_CONSUMER)


async def test_an_acknowledgement_of_a_closed_consumer_is_refused(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.consumer(TOPIC, "s", 1)
    await memory_broker.service.unload(TopicName.parse(TOPIC))
    await client.expect(Command.CLOSE_CONSUMER)
    client.send(Command.ACK, consumer_id=1, ack_type=0, message_id=[{"ledgerId": 1, "entryId": 0}], request_id=77)
    answer = await client.expect(Command.ACK_RESPONSE)
    assert (answer.body.request_id, answer.body.error) == (77, pb.ConsumerNotFound)
    client.send(Command.ACK, consumer_id=1, ack_type=0, message_id=[{"ledgerId": 1, "entryId": 0}])
    assert await client.round_trip() == []
