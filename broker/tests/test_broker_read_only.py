"""Brokers that only read beside the broker that writes: what their clients see, and where positions are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientSession
from magnetar.broker.bundles.close_notices import urls_of
from magnetar.broker.read_only.membership import ReadOnlyMembership
from magnetar.broker.read_only.paths import BROKERS_PATH, SUBSCRIPTIONS_PATH, binding_path
from magnetar.broker.read_only.upkeep import COMPACTIONS, IDLE_SECONDS, IDLE_TOPICS
from magnetar.broker.session.acknowledge import HOLD_KEY
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.read_only import ReadOnlySettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, Received, ShiftedClock
from magnetar.core.clock import Clock
from magnetar.core.errors import Unavailable
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.following.followed_ledger import FollowedLedger
from magnetar.managed.following.tail_follower import TailFollower
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
EARLIEST = pb.CommandSubscribe.Earliest
SHARED = pb.CommandSubscribe.Shared

SETTINGS = BrokerSettings(cluster_name="memory")
READ_ONLY = replace(SETTINGS, read_only=ReadOnlySettings(enabled=True))


class Stage(MemoryCluster):
    """One broker that writes, and others that only read."""

    def __init__(self) -> None:
        super().__init__(1, SETTINGS)

    async def __aenter__(self) -> Stage:
        await super().__aenter__()
        return self

    @property
    def writer(self) -> MemoryBroker:
        """Owns every topic."""
        return self[0]

    async def reader(self, clock: Clock | None = None) -> MemoryBroker:
        """One more broker that only reads."""
        count = len(self.brokers)
        broker = await self.add(READ_ONLY, clock)
        await until(lambda: all(len(readers_known_to(one)) == count for one in self.brokers[1:]))
        return broker

    async def producer(self) -> ProtocolClient:
        """A producer at the broker that writes."""
        client = await self.writer.connect()
        await client.producer(TOPIC)
        return client


def readers_known_to(broker: MemoryBroker) -> Collection[str]:
    """The brokers that only read, as one of them knows them."""
    load = broker.running.context.load
    assert isinstance(load, ReadOnlyMembership)
    return load.readers


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage() as cluster:
        yield cluster


def payloads(messages: list[Received]) -> list[bytes]:
    """What was published, without the metadata."""
    return [one.payload[-2:] for one in messages]


async def acknowledge(client: ProtocolClient, *messages: Received, cumulative: bool = False) -> None:
    """With a receipt."""
    kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
    ids = [one.body.message_id for one in messages]
    answer = await client.request(pb.BaseCommand.ACK, consumer_id=1, ack_type=kind, message_id=ids)
    assert answer.name == "ACK_RESPONSE", answer
    assert not answer.body.HasField("error"), answer


async def left_at_the_writer(stage: Stage, count: int) -> list[bytes]:
    """The messages that a consumer of the subscription is sent there, which are to be so many."""
    client = await stage.writer.connect()
    await client.consumer(TOPIC)
    received = await client.messages(count, permits=100)
    received += [one for one in await client.round_trip() if one.name == "MESSAGE"]
    await client.request(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=1)
    return payloads(received)


def quiet(broker: MemoryBroker) -> bool:
    """Whether no subscription is on its way out."""
    return not any(topic._leaving or topic.subscriptions for topic in broker.service.topics.values())


# --- what is served


async def test_what_was_published_before_and_after_is_delivered(stage: Stage) -> None:
    producer = await stage.producer()
    await producer.publish(3)
    reader = await stage.reader()
    client = await reader.connect()
    await client.consumer(TOPIC, initialPosition=EARLIEST)
    assert payloads(await client.messages(3, permits=100)) == [b"m0", b"m1", b"m2"]
    await producer.publish(1, first=3)  # The last one of a burst: bookies do not say that it is confirmed.
    assert (await client.expect(pb.BaseCommand.MESSAGE)).payload[-2:] == b"m3"
    await producer.publish(2, first=4)
    assert payloads([await client.expect(pb.BaseCommand.MESSAGE) for _ in range(2)]) == [b"m4", b"m5"]


async def test_a_reader_knows_where_the_topic_ends(stage: Stage) -> None:
    producer = await stage.producer()
    reader = await stage.reader()
    client = await reader.connect()
    await client.consumer(TOPIC, "r", durable=False)
    for number in range(3):
        published = (await producer.publish(1, first=number))[0]
        last = (await client.request(pb.BaseCommand.GET_LAST_MESSAGE_ID, consumer_id=1)).body.last_message_id
        assert (last.ledgerId, last.entryId) == (published.ledgerId, published.entryId)


async def test_who_has_read_more_than_is_shown_is_not_taken_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner is away, and bookies do not vouch for the last entry: a reader that has it waits."""
    producer = await stage.producer()
    published = await producer.publish(3)
    reader = await stage.reader()
    client = await reader.connect()
    start = {"durable": False, "initialPosition": EARLIEST, "start_message_id": published[-1]}
    with monkeypatch.context() as away:

        async def nobody_answers(self: TailFollower) -> Position:
            raise Unavailable("the owner is away")

        away.setattr(TailFollower, "owner_says", nobody_answers)
        subscribe = {"topic": TOPIC, "subscription": "r", "consumer_id": 1, "subType": 0, **start}
        answer = await client.request(pb.BaseCommand.SUBSCRIBE, **subscribe)
        assert (answer.name, answer.body.error) == ("ERROR", pb.ServiceNotReady)
        await client.consumer(TOPIC, "another", 2, durable=False, initialPosition=EARLIEST)
        answer = await client.request(pb.BaseCommand.SEEK, consumer_id=2, message_id=published[-1])
        assert (answer.name, answer.body.error) == ("ERROR", pb.ServiceNotReady)
    await client.consumer(TOPIC, "r", **start)
    await producer.publish(1, first=3)
    assert payloads(await client.messages(2, permits=100)) == [b"m2", b"m3"]


async def test_lookups_lead_to_brokers_that_only_read(stage: Stage) -> None:
    await stage.producer()
    readers = [await stage.reader() for _ in range(3)]
    found = [await stage.lookup(readers[0], TOPIC) for _ in range(6)]
    assert set(found) == set(readers)
    # And not by the ordinary way: nobody else is told of them.
    assert await stage.lookup(stage.writer, TOPIC) is stage.writer
    assert set(stage.writer.running.context.load.brokers()) == {stage.writer.running.settings.broker_id}


async def test_nothing_is_written_but_registration_and_binding(stage: Stage) -> None:
    producer = await stage.producer()
    await producer.publish(3)
    store = stage.writer.store
    ledger = TopicName.parse(TOPIC).persistence_name
    before = await store.get(f"/managed-ledgers/{ledger}")
    reader = await stage.reader()
    client = await reader.connect()
    await client.consumer(TOPIC, initialPosition=EARLIEST)
    await client.messages(3)
    assert (await store.get(f"/managed-ledgers/{ledger}")).stat.version == before.stat.version
    assert await store.children("/loadbalance/brokers") == [stage.writer.running.settings.broker_id]
    assert await store.children(BROKERS_PATH) == [reader.running.settings.broker_id]
    assert await store.exists(binding_path(TopicName.parse(TOPIC), "s"))


# --- what is refused


async def test_producers_are_refused(stage: Stage) -> None:
    await stage.producer()
    client = await (await stage.reader()).connect()
    answer = await client.request(pb.BaseCommand.PRODUCER, topic=TOPIC, producer_id=1)
    assert answer.name == "ERROR"
    assert answer.body.error == pb.NotAllowedError
    assert "read-only" in answer.body.message


async def test_no_topic_is_made(stage: Stage) -> None:
    client = await (await stage.reader()).connect()
    answer = await client.request(
        pb.BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, subType=0, force_topic_creation=True
    )
    assert (answer.name, answer.body.error) == ("ERROR", pb.TopicNotFound)
    assert not await stage.writer.store.exists(f"/managed-ledgers/{TopicName.parse(TOPIC).persistence_name}")


async def test_the_admin_api_changes_nothing(stage: Stage) -> None:
    await stage.producer()
    reader = await stage.reader()
    async with ClientSession(reader.admin_url) as http:
        for method, path in [
            ("PUT", "/admin/v2/tenants/new"),
            ("POST", "/admin/v2/namespaces/public/default/retention"),
            ("DELETE", "/admin/v2/persistent/public/default/t"),
            ("PUT", "/admin/v2/persistent/public/default/t/subscription/s"),
        ]:
            async with http.request(method, path, json={}) as answer:
                assert answer.status == 405, path
                assert "read-only" in await answer.text()
        async with http.get("/admin/v2/persistent/public/default") as answer:
            assert await answer.json() == [TOPIC]
        async with http.get("/admin/v2/brokers/health") as answer:
            assert answer.status == 200
        async with http.get("/admin/v2/persistent/public/default/t/stats") as answer:
            assert answer.status == 200


async def test_the_lag_is_a_metric(stage: Stage) -> None:
    reader = await stage.reader()
    async with ClientSession() as http, http.get(reader.admin_url + "/metrics/") as answer:
        assert 'pulsar_read_only_broker_lag_seconds{cluster="memory"} 0' in await answer.text()
    async with ClientSession() as http, http.get(stage.writer.admin_url + "/metrics/") as answer:
        assert "read_only" not in await answer.text()


# --- positions


async def test_positions_move_with_the_consumer(stage: Stage) -> None:
    producer = await stage.producer()
    await producer.publish(8)
    first, second = await stage.reader(), await stage.reader()
    client = await first.connect()
    await client.consumer(TOPIC, initialPosition=EARLIEST, subType=SHARED)
    messages = await client.messages(8)
    await acknowledge(client, messages[0], messages[1], messages[4], messages[6])
    await client.close()
    await until(lambda: quiet(first))

    client = await second.connect()
    await client.consumer(TOPIC, subType=SHARED)
    messages = await client.messages(4, permits=100)
    assert payloads(messages) == [b"m2", b"m3", b"m5", b"m7"]
    for one in (messages[0], messages[2]):  # Without a receipt: the close stores them before it is answered.
        client.send(
            pb.BaseCommand.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[one.body.message_id]
        )
    assert (await client.request(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=1)).name == "SUCCESS"
    assert await left_at_the_writer(stage, 2) == [b"m3", b"m7"]
    assert await stage.writer.store.children(SUBSCRIPTIONS_PATH + "/public/default/persistent") == []


async def test_from_the_broker_that_writes_and_back(stage: Stage) -> None:
    producer = await stage.producer()
    await producer.publish(5)
    client = await stage.writer.connect()
    await client.consumer(TOPIC, initialPosition=EARLIEST, subType=SHARED)
    messages = await client.messages(5)
    await acknowledge(client, messages[1], messages[3])
    await client.close()
    reader = await stage.reader()
    client = await reader.connect()
    await client.consumer(TOPIC, subType=SHARED)
    messages = await client.messages(3, permits=100)
    assert payloads(messages) == [b"m0", b"m2", b"m4"]
    await acknowledge(client, messages[0])
    await client.close()
    await until(lambda: quiet(reader))
    assert await left_at_the_writer(stage, 2) == [b"m2", b"m4"]


async def test_a_seek_moves_the_position_at_the_owner(stage: Stage) -> None:
    producer = await stage.producer()
    ids = await producer.publish(5)
    reader = await stage.reader()
    client = await reader.connect()
    await client.consumer(TOPIC, initialPosition=EARLIEST)
    await acknowledge(client, (await client.messages(5))[4], cumulative=True)
    answer = await client.request(
        pb.BaseCommand.SEEK, consumer_id=1, message_id={"ledgerId": ids[2].ledgerId, "entryId": ids[2].entryId}
    )
    assert answer.name == "SUCCESS", answer
    await client.close()
    await until(lambda: quiet(reader))
    assert await left_at_the_writer(stage, 3) == [b"m2", b"m3", b"m4"]


@pytest.mark.parametrize("target", [(2**64 - 1, 2**64 - 1), (2**63 - 1, 2**63 - 1)], ids=["earliest", "latest"])
async def test_a_seek_in_a_topic_of_which_nothing_is_left(stage: Stage, target: tuple[int, int]) -> None:
    """What is acknowledged is then all before a ledger without entries, which is behind the last confirmed one."""
    producer = await stage.producer()
    await producer.publish(2)
    reader = await stage.reader()
    client = await reader.connect()
    await client.consumer(TOPIC, initialPosition=EARLIEST)
    await acknowledge(client, (await client.messages(2))[1], cumulative=True)
    ledger = stage.writer.service.topics[TOPIC].ledger
    await ledger.roll()
    await ledger.trim(retain=False)
    assert ledger.ledgers.number_of_entries() == 0
    followed = reader.service.topics[TOPIC].ledger
    await until(lambda: bool(followed.ledgers.ids == ledger.ledgers.ids))
    message_id = {"ledgerId": target[0], "entryId": target[1]}
    async with asyncio.timeout(20):  # Else the owner is told again for half a minute.
        answer = await client.request(pb.BaseCommand.SEEK, consumer_id=1, message_id=message_id)
    assert answer.name == "SUCCESS", answer
    await client.close()
    await until(lambda: quiet(reader))
    await producer.publish(1, first=2)
    assert await left_at_the_writer(stage, 1) == [b"m2"]


async def test_all_before_a_ledger_of_the_next_owner_has_no_receipt(stage: Stage) -> None:
    producer = await stage.producer()
    (there,) = await producer.publish(1)
    client = await stage.writer.connect()
    await client.consumer(TOPIC, initialPosition=EARLIEST, metadata=[{"key": HOLD_KEY, "value": "reader"}])
    next_one = {"ledgerId": there.ledgerId + 1, "entryId": 2**64 - 1}
    cumulative = pb.CommandAck.Cumulative
    answer = await client.request(pb.BaseCommand.ACK, consumer_id=1, ack_type=cumulative, message_id=[next_one])
    assert (answer.name, answer.body.error) == ("ACK_RESPONSE", pb.ServiceNotReady)
    assert stage.writer.service.topics[TOPIC].ledger.cursors["s"].backlog_entries == 1


async def test_unsubscribing_deletes_at_the_owner(stage: Stage) -> None:
    producer = await stage.producer()
    await producer.publish(1)
    client = await (await stage.reader()).connect()
    await client.consumer(TOPIC, initialPosition=EARLIEST)
    assert "s" in stage.writer.service.topics[TOPIC].subscriptions
    answer = await client.request(pb.BaseCommand.UNSUBSCRIBE, consumer_id=1)
    assert answer.name == "SUCCESS", answer
    assert "s" not in stage.writer.service.topics[TOPIC].subscriptions
    assert await stage.writer.store.children(SUBSCRIPTIONS_PATH + "/public/default/persistent") == []


async def test_what_the_owner_has_not_confirmed_has_no_receipt(stage: Stage) -> None:
    """A broker that only reads may have seen what the next owner has recovered, while the former one knows nothing."""
    producer = await stage.producer()
    (there,) = await producer.publish(1)
    client = await stage.writer.connect()
    hold = {"key": HOLD_KEY, "value": "reader"}
    await client.consumer(TOPIC, initialPosition=EARLIEST, metadata=[hold])
    for kind in (pb.CommandAck.Cumulative, pb.CommandAck.Individual):
        beyond = {"ledgerId": there.ledgerId, "entryId": there.entryId + 1}
        answer = await client.request(pb.BaseCommand.ACK, consumer_id=1, ack_type=kind, message_id=[beyond])
        assert (answer.name, answer.body.error) == ("ACK_RESPONSE", pb.ServiceNotReady)
    await acknowledge(client, (await client.messages(1))[0])


# --- one subscription, one broker


async def test_nobody_comes_to_a_subscription_past_its_binding(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for another subscription to be opened would open anew, unbound, what has left meanwhile."""
    await stage.producer()
    reader = await stage.reader()
    first, second, third = [await reader.connect() for _ in range(3)]
    await first.consumer(TOPIC, subType=SHARED)
    entered, leave = asyncio.Event(), asyncio.Event()
    right = FollowedLedger.open_cursor

    async def open_cursor(self: FollowedLedger, name: str, *rest: Any) -> Cursor:
        if name == "other":
            entered.set()
            await leave.wait()
        return await right(self, name, *rest)

    monkeypatch.setattr(FollowedLedger, "open_cursor", open_cursor)
    second.send(
        pb.BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="other", consumer_id=1, request_id=1, subType=SHARED
    )
    await entered.wait()
    await third.consumer(TOPIC, subType=SHARED)
    assert (await first.request(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=1)).name == "SUCCESS"
    leave.set()
    await second.expect(pb.BaseCommand.SUCCESS)
    for subscription in ("s", "other"):
        assert await stage.writer.store.exists(binding_path(TopicName.parse(TOPIC), subscription))


async def test_a_shared_consumer_is_sent_to_the_broker_that_serves_the_subscription(stage: Stage) -> None:
    await stage.producer()
    first, second = await stage.reader(), await stage.reader()
    await (await first.connect()).consumer(TOPIC, subType=SHARED)
    client = await second.connect()
    await client.consumer(TOPIC, subType=SHARED)
    notice = (await client.expect(pb.BaseCommand.CLOSE_CONSUMER)).body
    url, _ = urls_of(first.running.context.ownership.own)
    assert (notice.consumer_id, notice.assignedBrokerServiceUrl) == (1, url)


async def test_a_second_exclusive_consumer_is_refused_everywhere(stage: Stage) -> None:
    await stage.producer()
    first, second = await stage.reader(), await stage.reader()
    await (await first.connect()).consumer(TOPIC)
    for broker in (first, second, stage.writer):
        client = await broker.connect()
        answer = await client.request(pb.BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, subType=0)
        assert (answer.name, answer.body.error) == ("ERROR", pb.ConsumerBusy), broker


async def test_a_subscription_with_a_consumer_at_the_writer_is_refused(stage: Stage) -> None:
    await stage.producer()
    await (await stage.writer.connect()).consumer(TOPIC, subType=SHARED)
    reader = await stage.reader()
    client = await reader.connect()
    answer = await client.request(
        pb.BaseCommand.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, subType=SHARED
    )
    assert (answer.name, answer.body.error) == ("ERROR", pb.ConsumerBusy)
    assert not await stage.writer.store.exists(binding_path(TopicName.parse(TOPIC), "s"))


async def test_after_a_lost_session_another_broker_goes_on(stage: Stage) -> None:
    producer = await stage.producer()
    await producer.publish(4)
    first, second = await stage.reader(), await stage.reader()
    client = await first.connect()
    await client.consumer(TOPIC, initialPosition=EARLIEST, subType=SHARED)
    messages = await client.messages(4)
    await acknowledge(client, messages[0], messages[2])
    first.store.expire_session()
    await client.expect(pb.BaseCommand.CLOSE_CONSUMER)
    other = await second.connect()
    await other.consumer(TOPIC, subType=SHARED)
    assert payloads(await other.messages(2, permits=100)) == [b"m1", b"m3"]


async def test_a_stop_sends_consumers_to_others_with_their_positions(stage: Stage) -> None:
    producer = await stage.producer()
    await producer.publish(4)
    first, second = await stage.reader(), await stage.reader()
    client = await ProtocolClient.connected(first.port)
    await client.consumer(TOPIC, initialPosition=EARLIEST, subType=SHARED)
    messages = await client.messages(4)
    for one in (messages[0], messages[2]):  # Without a receipt: the stop stores them.
        client.send(
            pb.BaseCommand.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[one.body.message_id]
        )
    await client.round_trip()
    await stage.stop(first)
    await client.close()
    assert await stage.lookup(second, TOPIC) is second
    other = await second.connect()
    await other.consumer(TOPIC, subType=SHARED)
    assert payloads(await other.messages(2, permits=100)) == [b"m1", b"m3"]


# --- the owner


async def test_consumers_go_on_when_the_topic_moves_at_its_owner(stage: Stage) -> None:
    producer = await stage.producer()
    await producer.publish(2)
    reader = await stage.reader()
    client = await reader.connect()
    await client.consumer(TOPIC, initialPosition=EARLIEST)
    messages = await client.messages(2, permits=100)
    await stage.writer.service.unload(TopicName.parse(TOPIC))
    producer = await stage.producer()
    await producer.publish(2, first=2)
    messages += [await client.expect(pb.BaseCommand.MESSAGE) for _ in range(2)]
    assert payloads(messages) == [b"m0", b"m1", b"m2", b"m3"]
    await acknowledge(client, messages[2], cumulative=True)
    await client.close()
    await until(lambda: quiet(reader))
    assert await left_at_the_writer(stage, 1) == [b"m3"]


async def test_a_terminated_topic_ends_for_its_consumers(stage: Stage) -> None:
    producer = await stage.producer()
    await producer.publish(1)
    client = await (await stage.reader()).connect(client_version="Pulsar-Java-v4.0.8")
    await client.consumer(TOPIC, initialPosition=EARLIEST)
    message = (await client.messages(1, permits=10))[0]
    await stage.writer.service.topics[TOPIC].terminate()
    await acknowledge(client, message, cumulative=True)
    assert (await client.expect(pb.BaseCommand.REACHED_END_OF_TOPIC)).body.consumer_id == 1


async def test_a_topic_that_nobody_reads_is_let_go_of(stage: Stage) -> None:
    await stage.producer()
    clock = ShiftedClock()
    reader = await stage.reader(clock)
    client = await reader.connect()
    await client.consumer(TOPIC)
    clock.advance(IDLE_SECONDS)
    await reader.service.upkeep.check_now(IDLE_TOPICS)
    assert TOPIC in reader.service.topics
    await client.request(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=1)
    await reader.service.upkeep.check_now(IDLE_TOPICS)
    assert TOPIC in reader.service.topics  # It was read a moment ago.
    clock.advance(IDLE_SECONDS)
    await reader.service.upkeep.check_now(IDLE_TOPICS)
    assert TOPIC not in reader.service.topics
    await client.consumer(TOPIC)


async def test_a_compacted_view_is_that_of_the_owners_newest_compaction(stage: Stage) -> None:
    producer = await stage.producer()
    reader = await stage.reader()
    await producer.publish(1, first=0, partition_key="a")
    await producer.publish(1, first=1, partition_key="b")
    await producer.publish(1, first=2, partition_key="a")
    await compacted(stage)
    client = await reader.connect()
    await client.consumer(TOPIC, "first", initialPosition=EARLIEST, read_compacted=True)
    assert payloads(await client.messages(2, permits=100)) == [b"m1", b"m2"]
    await producer.publish(1, first=3, partition_key="b")
    assert payloads([await client.expect(pb.BaseCommand.MESSAGE)]) == [b"m3"]
    await compacted(stage)
    await reader.service.upkeep.check_now(COMPACTIONS)
    other = await reader.connect()
    await other.consumer(TOPIC, "second", durable=False, initialPosition=EARLIEST, read_compacted=True)
    assert payloads(await other.messages(2, permits=100)) == [b"m2", b"m3"]


async def compacted(stage: Stage) -> None:
    """Compact the topic at its owner, to the end."""
    run = stage.writer.service.compaction(stage.writer.service.topics[TOPIC])
    run.start()
    await until(lambda: run.status["status"] == "SUCCESS")


async def test_few_topics_are_looked_at_more_often_than_many(stage: Stage) -> None:
    reader = await stage.reader()
    service = reader.service
    pauses = []
    for count in (1, 20, 200, 1_000):
        service.topics = {str(number): None for number in range(count)}
        pauses.append(service._longest_pause_seconds())
    service.topics = {}
    assert pauses == [0.01, 0.02, 0.05, 0.25]
