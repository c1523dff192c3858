"""Topics that are loaded, unloaded and deleted while clients use them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from magnetar.broker.bundles.moves import BundleMoves
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, SharedParts, message
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.ids import EARLIEST
from magnetar.core.topic_name import TopicName
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
NAME = TopicName.parse(TOPIC)


async def publish_all(client: ProtocolClient, count: int) -> int:
    """Publish messages 0..count-1 as clients do: what has no receipt when the producer is closed is sent again.

    Returns how often the producer was opened."""
    acknowledged = 0
    opened = 0
    while acknowledged < count:
        answer = await client.request(Command.PRODUCER, topic=TOPIC, producer_id=1)
        if answer.name == "ERROR":
            assert answer.body.error == pb.ServiceNotReady, answer
            await asyncio.sleep(0.001)
            continue
        opened += 1
        next_one = acknowledged
        while acknowledged < count:
            while next_one < min(count, acknowledged + 10):
                client.send(Command.SEND, message(b"%d" % next_one), producer_id=1, sequence_id=next_one)
                next_one += 1
            received = await client._take(lambda one: one.name in ("SEND_RECEIPT", "CLOSE_PRODUCER"))
            if received.name == "CLOSE_PRODUCER":
                break
            assert received.body.sequence_id == acknowledged
            acknowledged += 1
    return opened


async def consume_all(client: ProtocolClient, count: int) -> list[bytes]:
    """Receive and acknowledge until so many different messages came; the payloads in the order they came."""
    payloads: list[bytes] = []
    while len(set(payloads)) < count:
        answer = await client.request(Command.SUBSCRIBE, topic=TOPIC, subscription="s", subType=0, consumer_id=1)
        if answer.name == "ERROR":
            assert answer.body.error == pb.ServiceNotReady, answer
            await asyncio.sleep(0.001)
            continue
        client.send(Command.FLOW, consumer_id=1, messagePermits=1000)
        while len(set(payloads)) < count:
            received = await client._take(lambda one: one.name in ("MESSAGE", "CLOSE_CONSUMER"))
            if received.name == "CLOSE_CONSUMER":
                break
            payloads.append(received.payload[received.payload.rindex(b"\x18\x01") + 2 :])
            position = received.body.message_id
            message_id = {"ledgerId": position.ledgerId, "entryId": position.entryId}
            client.send(Command.ACK, consumer_id=1, ack_type=0, message_id=[message_id])
    return payloads


async def test_unload_under_load_loses_and_repeats_nothing(memory_broker: MemoryBroker) -> None:
    publisher, subscriber = await memory_broker.connect(), await memory_broker.connect()
    for subscription in ("s", "keeps everything"):
        await subscriber.consumer(TOPIC, subscription)
        await subscriber.request(Command.CLOSE_CONSUMER, consumer_id=1)
    count = 600
    publishing = asyncio.create_task(publish_all(publisher, count))
    consuming = asyncio.create_task(consume_all(subscriber, count))
    for _ in range(5):
        await asyncio.sleep(0.01)
        await memory_broker.service.unload(NAME)
    await publishing
    payloads = await consuming
    assert [payload for index, payload in enumerate(payloads) if payload not in payloads[:index]] == [
        b"%d" % number for number in range(count)
    ]
    topic = await memory_broker.service.topic(NAME, create=False)
    assert topic.number_of_entries == count, "nothing was stored twice"


async def test_unload_tells_every_handle(memory_broker: MemoryBroker) -> None:
    clients = [await memory_broker.connect() for _ in range(3)]
    for client in clients:
        for handle in range(3):
            await client.producer(TOPIC, handle)
            await client.consumer(TOPIC, f"s{handle}", handle, subType=1)
    await memory_broker.service.unload(NAME)
    for client in clients:
        told = [(received.name, dict_of(received)) for received in await client.round_trip()]
        assert sorted(told) == [(f"CLOSE_{kind}", handle) for kind in ("CONSUMER", "PRODUCER") for handle in range(3)]
        for handle in range(3):
            await client.producer(TOPIC, handle)
            await client.consumer(TOPIC, f"s{handle}", handle, subType=1)


def dict_of(received: object) -> int:
    """The id of the handle that a CLOSE command is about."""
    body = received.body  # type: ignore[attr-defined]
    return int(body.producer_id if received.name == "CLOSE_PRODUCER" else body.consumer_id)  # type: ignore[attr-defined]


async def test_unload_of_what_is_not_loaded(memory_broker: MemoryBroker) -> None:
    await memory_broker.service.unload(NAME)
    assert not memory_broker.service.topics


async def test_unload_waits_for_a_load(memory_broker: MemoryBroker) -> None:
    loading = asyncio.create_task(memory_broker.service.topic(NAME, create=True))
    while not memory_broker.service._loading:
        await asyncio.sleep(0)
    await memory_broker.service.unload(NAME)
    assert (await loading).closing
    assert not memory_broker.service.topics


@pytest.mark.parametrize("bookie", ["stopped", "hanging"])
async def test_unload_when_nothing_can_be_stored(memory_broker: MemoryBroker, bookie: str) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC, initial_subscription_name="keeps everything")
    await client.publish(3)
    (memory,) = memory_broker.bookies.bookies.values()
    topic = memory_broker.service.topics[TOPIC]
    if bookie == "stopped":
        memory.stop()
    else:
        memory.hang()
        client.send(Command.SEND, message(), producer_id=1, sequence_id=3)
        await client.round_trip()
        asyncio.get_running_loop().call_later(0.02, memory.heal)
    await memory_broker.service.unload(NAME)
    assert topic.closing
    assert TOPIC not in memory_broker.service.topics
    names = [received.name for received in await client.round_trip()]
    assert names == (["CLOSE_PRODUCER"] if bookie == "stopped" else ["SEND_RECEIPT", "CLOSE_PRODUCER"])
    memory.heal()
    await client.producer(TOPIC)
    assert memory_broker.service.topics[TOPIC].number_of_entries == (3 if bookie == "stopped" else 4)


async def test_producers_whose_topic_stores_nothing_reconnect_and_the_log_says_why(
    memory_broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.publish(1)
    (memory,) = memory_broker.bookies.bookies.values()
    memory.stop()
    client.send(Command.SEND, message(), producer_id=1, sequence_id=1)
    await client.expect(Command.CLOSE_PRODUCER)
    said = [record.getMessage() for record in caplog.records if "its producers reconnect" in record.getMessage()]
    assert len(said) == 1
    assert TOPIC in said[0]
    memory.heal()
    await client.producer(TOPIC)
    await client.publish(1)


async def test_a_subscription_that_is_made_while_its_topic_is_unloaded_is_refused(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked would else believe in one that nobody serves."""
    topic = await memory_broker.service.topic(NAME, create=True)
    open_cursor = ManagedLedger.open_cursor

    async def unloaded_meanwhile(ledger: ManagedLedger, *arguments: Any, **named: Any) -> Any:
        cursor = await open_cursor(ledger, *arguments, **named)
        await memory_broker.service.unload(NAME)
        return cursor

    with monkeypatch.context() as patched:
        patched.setattr(ManagedLedger, "open_cursor", unloaded_meanwhile)
        with pytest.raises(PulsarError) as refusal:
            await topic.create_subscription("s", EARLIEST)
    assert refusal.value.code == ServerError.SERVICE_NOT_READY
    assert not topic.subscriptions
    again = await memory_broker.service.topic(NAME, create=False)
    assert again is not topic
    assert list(again.subscriptions) == ["s"], "it is made, and the next owner has it"


async def test_delete_refuses_what_is_in_use(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    with pytest.raises(PulsarError, match="active producers"):
        await memory_broker.service.delete(NAME, force=False)
    await client.request(Command.CLOSE_PRODUCER, producer_id=1)
    await client.consumer(TOPIC)
    with pytest.raises(PulsarError, match="active producers"):
        await memory_broker.service.delete(NAME, force=False)
    assert await client.round_trip() == []


@pytest.mark.parametrize("loaded", [True, False])
async def test_delete_with_subscriptions_removes_everything(memory_broker: MemoryBroker, loaded: bool) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC, schema={"name": "s", "type": 1, "schema_data": b""})
    await client.consumer(TOPIC)
    await client.publish(3)
    if not loaded:
        await memory_broker.service.unload(NAME)
    await memory_broker.service.delete(NAME, force=True)
    assert not memory_broker.service.topics
    assert not await memory_broker.service.exists(NAME)
    assert await memory_broker.service.schemas.get("public/default/topic", None) is None
    assert await memory_broker.store.children("/managed-ledgers/public/default/persistent") == []
    names = sorted(received.name for received in await client.round_trip())
    assert names == ["CLOSE_CONSUMER", "CLOSE_PRODUCER"]
    await client.consumer(TOPIC, initialPosition=1)
    client.send(Command.FLOW, consumer_id=1, messagePermits=10)
    assert await client.round_trip() == [], "the new topic is empty"


async def test_a_deleted_partition_leaves_the_schema_to_the_others(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    for index in range(2):
        partition = NAME.partition(index)
        schema = {"name": "s", "type": 1, "schema_data": b""}
        await client.producer(str(partition), index + 1, schema=schema)
    await memory_broker.service.delete(NAME.partition(0), force=True)
    kept = await client.request(Command.GET_SCHEMA, topic=str(NAME.partition(1)))
    assert (kept.body.HasField("error_code"), kept.body.schema.type) == (False, 1)
    await memory_broker.service.delete(NAME.partition(1), force=True)


async def test_delete_of_nothing(memory_broker: MemoryBroker) -> None:
    with pytest.raises(PulsarError) as refusal:
        await memory_broker.service.delete(NAME, force=True)
    assert refusal.value.code == ServerError.TOPIC_NOT_FOUND


async def test_delete_while_loading(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await memory_broker.service.unload(NAME)
    client.inbox.clear()
    request_id = client.start(Command.PRODUCER, topic=TOPIC, producer_id=2)
    await asyncio.sleep(0)
    await memory_broker.service.delete(NAME, force=True)
    answer = await client.answer(request_id)
    if answer.name == "PRODUCER_SUCCESS":
        await client.expect(Command.CLOSE_PRODUCER)
    else:
        assert answer.body.error == pb.ServiceNotReady
    await client.producer(TOPIC, 3)
    assert len(await client.publish(producer_id=3)) == 1


async def test_deletes_and_uses_at_once(memory_broker: MemoryBroker) -> None:
    clients = [await memory_broker.connect() for _ in range(4)]
    publishing = [asyncio.create_task(publish_from(client)) for client in clients]
    for _ in range(30):
        with contextlib.suppress(PulsarError):
            await asyncio.gather(*(memory_broker.service.delete(NAME, force=True) for _ in range(2)))
        await asyncio.sleep(0.001)
    for task in publishing:
        task.cancel()
    await asyncio.gather(*publishing, return_exceptions=True)
    fresh = await memory_broker.connect()
    await fresh.producer(TOPIC, producer_name="fresh")
    assert len(await fresh.publish(3)) == 3


async def publish_from(client: ProtocolClient) -> None:
    """Publish until cancelled."""
    while True:
        await publish_all(client, 1000)


async def test_fifty_sessions_make_one_topic(memory_broker: MemoryBroker) -> None:
    clients = [await memory_broker.connect() for _ in range(50)]
    answers = await asyncio.gather(
        *(client.request(Command.PRODUCER, topic=TOPIC, producer_id=1) for client in clients)
    )
    assert {answer.name for answer in answers} == {"PRODUCER_SUCCESS"}
    assert len({answer.body.producer_name for answer in answers}) == 50
    assert len(memory_broker.service.topics) == 1
    assert memory_broker.service.topics[TOPIC].ledger.ledgers.ids == [
        memory_broker.service.topics[TOPIC].ledger.last_confirmed[0]
    ]
    answers = await asyncio.gather(
        *(
            client.request(Command.SUBSCRIBE, topic=TOPIC, subscription="s", subType=1, consumer_id=1)
            for client in clients
        )
    )
    assert {answer.name for answer in answers} == {"SUCCESS"}
    assert len(memory_broker.service.topics[TOPIC].subscriptions["s"].consumers) == 50


async def test_a_load_that_may_not_create_does_not_spoil_one_that_may(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    asking = client.start(
        Command.SUBSCRIBE, topic=TOPIC, subscription="s", subType=0, consumer_id=1, force_topic_creation=False
    )
    making = client.start(Command.PRODUCER, topic=TOPIC, producer_id=1)
    assert (await client.answer(making)).name == "PRODUCER_SUCCESS"
    assert (await client.answer(asking)).name in ("SUCCESS", "ERROR")


async def test_too_many_loads(memory_broker: MemoryBroker) -> None:
    names = [TopicName.parse(f"{TOPIC}-{number}") for number in range(40)]
    topics = await asyncio.gather(*(memory_broker.service.topic(name, create=True) for name in names))
    assert len({topic.name for topic in topics}) == 40


async def test_a_topic_that_somebody_else_opened_is_loaded_again(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC, initial_subscription_name="keeps everything")
    await client.publish(2)
    async with MemoryBroker(shared=SharedParts(memory_broker.store.another_session(), memory_broker.bookies)) as other:
        # As a broker does that has not heard yet that the bundle is another's.
        name = TopicName.parse(TOPIC).persistence_name
        await (await other.service.ledgers.open(name)).close()
        client.send(Command.SEND, message(), producer_id=1, sequence_id=2)
        await client.expect(Command.CLOSE_PRODUCER)
        await client.producer(TOPIC, producer_id=2)
        assert len(await client.publish(1, producer_id=2)) == 1
        assert memory_broker.service.topics[TOPIC].number_of_entries == 3
    await other.store.close()


async def test_a_stop_waits_for_all_work_though_topics_go_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that are left when bundles could not be handed over, and are let go of while others are being closed."""
    broker = MemoryBroker()
    await broker.start()
    service = broker.service
    topics = [await service.topic(TopicName.parse(name), create=True) for name in ("a", "b")]
    close, done = PersistentTopic.close, asyncio.Event()

    async def nothing(moves: BundleMoves) -> None:
        del moves

    async def close_and_lose_the_other(topic: PersistentTopic) -> None:
        if topic is topics[0]:
            service._forget(topics[1])
        await close(topic)

    async def work() -> None:
        await asyncio.sleep(0.05)
        done.set()

    monkeypatch.setattr(BundleMoves, "unload_all", nothing)
    monkeypatch.setattr(PersistentTopic, "close", close_and_lose_the_other)
    service.spawn(work())
    await broker.stop()
    assert done.is_set()


async def test_who_wants_to_make_a_topic_outlasts_a_load_that_must_not(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes in the very turn of the loop in which the load has failed and is not forgotten yet: it asked for that
    load's result again and again, and nothing else was done by the broker any more."""
    service = memory_broker.service
    await service.topic(TopicName.parse(TOPIC + "-other"), create=True)
    open_topic = service._open
    comers: list[asyncio.Task[object]] = []

    async def open_and_be_met(name: TopicName, *, create: bool) -> object:
        if create:
            return await open_topic(name, create=True)
        # Its first step is due before those hear of the end of this load who are told of it.
        comers.append(asyncio.ensure_future(service.topic(name, create=True)))
        raise PulsarError(ServerError.TOPIC_NOT_FOUND, "no such topic")

    monkeypatch.setattr(service, "_open", open_and_be_met)
    with pytest.raises(PulsarError, match="no such topic"):
        await service.topic(NAME, create=False)
    (comer,) = comers
    assert await comer is service.topics[TOPIC]
