"""Topics that show the entries of another topic, as this broker makes and serves them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import aiohttp
import pytest
from magnetar.auth.testing import token_of
from magnetar.broker.replication.states import Reason
from magnetar.broker.replicator_names import SOURCE_POSITION_PROPERTY, shadow_producer_name
from magnetar.broker.schema.strategy import Strategy
from magnetar.broker.schema.wire import from_wire
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.read_only import ReadOnlySettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing import auth
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import (
    MemoryBroker,
    ProtocolClient,
    Received,
    ShiftedClock,
    batch_message,
    message,
)
from magnetar.broker.topics.following.shadow_topic import ShadowTopic
from magnetar.broker.topics.following.source_end import SourceEnd
from magnetar.core.errors import Unavailable
from magnetar.core.topic_name import TopicName
from magnetar.managed.info_codec import SHADOW_SOURCE_PROPERTY, encode_ledger_info
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.paths import ledger_path
from magnetar.managed.states import ManagedLedgerState
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.conftest import Admin
from broker.tests.test_broker_transaction_buffer import end, send
from broker.tests.two_clusters import name_cluster

SOURCE: Final = "persistent://public/default/source"
SHADOW: Final = "persistent://public/default/shadow"
BASE: Final = "/admin/v2/persistent/public/default"
NOTED: Final = {SHADOW_SOURCE_PROPERTY: SOURCE}
EARLIEST: Final = pb.CommandSubscribe.Earliest
TYPES: Final = sorted(pb.CommandSubscribe.SubType.values())
Command = pb.BaseCommand


async def make_source(broker: MemoryBroker, count: int = 0) -> ProtocolClient:
    """The source with so many messages, and its producer."""
    client = await broker.connect()
    await client.producer(SOURCE, producer_name="p")
    await client.publish(count)
    return client


async def make_shadow(broker: MemoryBroker, *, told: bool = True) -> None:
    """`told`: the source tells it of each message."""
    assert await broker.service.shadows.create(TopicName.parse(SHADOW), NOTED)
    if told:
        await tell(broker)


async def tell(broker: MemoryBroker) -> None:
    await name_cluster(broker, broker.running.settings.cluster_name, f"pulsar://127.0.0.1:{broker.port}")
    policies = broker.running.context.topic_policies
    await policies.update(TopicName.parse(SOURCE), lambda own: {**own, "shadowTopics": [SHADOW]})


async def loaded(broker: MemoryBroker, name: str = SHADOW) -> ShadowTopic:
    topic = await broker.service.topic(TopicName.parse(name), create=False)
    assert isinstance(topic, ShadowTopic)
    return topic


async def consumer_of(
    broker: MemoryBroker, name: str = SHADOW, subscription: str = "s", **fields: Any
) -> ProtocolClient:
    client = await broker.connect()
    await client.consumer(name, subscription, **{"initialPosition": EARLIEST, **fields})
    return client


def texts(messages: list[Received]) -> list[bytes]:
    return [one.payload[-2:] for one in messages]


def places(ids: list[Any]) -> list[tuple[int, int]]:
    return [(one.ledgerId, one.entryId) for one in ids]


async def acknowledge(client: ProtocolClient, *messages: Received, cumulative: bool = False) -> None:
    kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
    ids = [one.body.message_id for one in messages]
    answer = await client.request(Command.ACK, consumer_id=1, ack_type=kind, message_id=ids)
    assert answer.name == "ACK_RESPONSE", answer
    assert not answer.body.HasField("error"), answer


@pytest.fixture
async def apart() -> AsyncIterator[tuple[MemoryCluster, MemoryBroker, MemoryBroker, str]]:
    """One broker has the source and another one a shadow of this name."""
    async with MemoryCluster(2) as cluster:
        first = await cluster.lookup(cluster[0], SOURCE)
        second = next(one for one in cluster.brokers if one is not first)
        bundle = await cluster.bundle_of(SOURCE)
        names = [f"{SHADOW}{number}" for number in range(100)]
        elsewhere = [each for each in names if await cluster.bundle_of(each) != bundle]
        name = elsewhere[0]
        await cluster.take(second, name)
        yield cluster, first, second, name


# --- what is served


@pytest.mark.parametrize("kind", TYPES)
async def test_a_shadow_shows_what_its_source_has_and_gets_where_it_stands_there(
    memory_broker: MemoryBroker, kind: Any
) -> None:
    producer = await make_source(memory_broker, 3)
    await make_shadow(memory_broker)
    client = await consumer_of(memory_broker, subType=kind)
    received = await client.messages(3)
    ids = await producer.publish(5, first=3)
    received += await client.messages(5)
    assert texts(received) == [b"m%d" % number for number in range(8)]
    assert places([one.body.message_id for one in received[3:]]) == places(ids)
    await acknowledge(client, *received)
    topic = await loaded(memory_broker)
    assert topic.subscriptions["s"].cursor.mark_delete == topic.ledger.last_confirmed
    source = await memory_broker.service.topic(TopicName.parse(SOURCE), create=False)
    assert not source.subscriptions  # The source knows nothing of it.
    assert list(source.ledger.cursors) == []


async def test_who_is_told_of_nothing_finds_it_at_the_bookies(memory_broker: MemoryBroker) -> None:
    producer = await make_source(memory_broker, 2)
    await make_shadow(memory_broker, told=False)
    client = await consumer_of(memory_broker)
    received = await client.messages(2)
    await producer.publish(1, first=2)
    received += await client.messages(1)
    assert texts(received) == [b"m0", b"m1", b"m2"]


async def test_positions_outlive_the_owner_and_nothing_comes_twice(memory_broker: MemoryBroker) -> None:
    producer = await make_source(memory_broker, 6)
    await make_shadow(memory_broker)
    client = await consumer_of(memory_broker, subType=pb.CommandSubscribe.Shared)
    received = await client.messages(6)
    await acknowledge(client, received[0], received[1], received[3], received[5])
    before = await loaded(memory_broker)
    await memory_broker.service.unload(TopicName.parse(SHADOW))
    await producer.publish(1, first=6)
    again = await consumer_of(memory_broker, subType=pb.CommandSubscribe.Shared)
    assert texts(await again.messages(3, permits=10)) == [b"m2", b"m4", b"m6"]
    assert [one.name for one in await again.round_trip() if one.name == "MESSAGE"] == []
    assert await loaded(memory_broker) is not before


@pytest.mark.parametrize("orderly", [True, False])
async def test_each_message_comes_once_to_who_acknowledges_it_whoever_owns_the_shadow(
    memory_broker: MemoryBroker, orderly: bool
) -> None:
    """Owners change while messages come, in good order or without a word."""
    producer = await make_source(memory_broker)
    await make_shadow(memory_broker)
    source = await memory_broker.service.topic(TopicName.parse(SOURCE), create=False)
    await consumer_of(memory_broker, SOURCE, "own")
    received: list[Received] = []
    for first in range(0, 60, 10):
        client = await consumer_of(memory_broker)
        await producer.publish(10, first=first)
        if first == 30:
            await source.ledger.roll()
        some = await client.messages(10)
        await acknowledge(client, some[-1], cumulative=True)
        received += some
        if orderly:
            await memory_broker.service.unload(TopicName.parse(SHADOW))
        else:
            await memory_broker.service.abandon([await loaded(memory_broker)])
    assert texts(received) == [b"m%d" % number for number in range(10)] + [b"%d" % number for number in range(10, 60)]
    topic = await loaded(memory_broker)
    assert topic.subscriptions["s"].cursor.backlog_entries == 0


async def test_a_restart_of_the_broker_loses_nothing(memory_broker: MemoryBroker) -> None:
    await make_source(memory_broker, 4)
    await consumer_of(memory_broker, SOURCE, "own")  # Else the source is trimmed when it is loaded again.
    await make_shadow(memory_broker)
    client = await consumer_of(memory_broker)
    received = await client.messages(4)
    await acknowledge(client, received[1], cumulative=True)
    await memory_broker.stop()
    await memory_broker.start()
    assert texts(await (await consumer_of(memory_broker)).messages(2)) == [b"m2", b"m3"]


async def test_parts_of_batches_are_acknowledged(memory_broker: MemoryBroker) -> None:
    producer = await make_source(memory_broker)
    await make_shadow(memory_broker)
    content = batch_message(b"m0", b"m1", b"m2")
    producer.send(Command.SEND, content, producer_id=1, sequence_id=0, num_messages=3)
    place = (await producer.expect(Command.SEND_RECEIPT)).body.message_id
    shared = pb.CommandSubscribe.Shared
    client = await consumer_of(memory_broker, subType=shared)
    client.send(Command.FLOW, consumer_id=1, messagePermits=10)
    await client.expect(Command.MESSAGE)
    part = pb.MessageIdData(ledgerId=place.ledgerId, entryId=place.entryId, ack_set=[0b101], batch_size=3)
    await client.request(Command.ACK, consumer_id=1, ack_type=0, message_id=[part])
    topic = await loaded(memory_broker)
    position = place.ledgerId, place.entryId
    assert topic.ledger.cursors["s"].acks.remaining_ack_set(position) == [0b101]


async def test_readers_seeks_and_the_last_message(memory_broker: MemoryBroker) -> None:
    producer = await make_source(memory_broker, 5)
    await make_shadow(memory_broker)
    reader = await consumer_of(memory_broker, subscription="reader", durable=False)
    ids = [one.body.message_id for one in await reader.messages(5)]
    answer: Any = await reader.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)
    assert places([answer.body.last_message_id]) == places(ids[-1:])
    client = await consumer_of(memory_broker, initialPosition=pb.CommandSubscribe.Latest)
    await producer.publish(1, first=5)
    assert texts(await client.messages(1)) == [b"m5"]
    await client.request(Command.SEEK, consumer_id=1, message_id=ids[2])
    client = await consumer_of(memory_broker)
    assert texts(await client.messages(4)) == [b"m2", b"m3", b"m4", b"m5"]


async def test_roll_overs_and_trims_of_the_source(memory_broker: MemoryBroker) -> None:
    producer = await make_source(memory_broker, 2)
    source = await memory_broker.service.topic(TopicName.parse(SOURCE), create=False)
    own = await consumer_of(memory_broker, SOURCE, "own")
    await make_shadow(memory_broker)
    client = await consumer_of(memory_broker)
    received = await client.messages(2)
    await source.ledger.roll()
    await producer.publish(2, first=2)
    received += await client.messages(2)
    assert texts(received) == [b"m0", b"m1", b"m2", b"m3"]
    topic = await loaded(memory_broker)
    await acknowledge(own, *(await own.messages(4))[-1:], cumulative=True)
    await source.ledger.trim(retain=False)
    # What the source drops, nobody has any more: the shadow's subscription goes on behind it.
    await until(lambda: topic.ledger.ledgers.ids == source.ledger.ledgers.ids)
    assert topic.subscriptions["s"].cursor.backlog_entries == 2


# --- what is published to it


async def test_messages_to_a_shadow_are_refused_and_only_its_replicator_tells(memory_broker: MemoryBroker) -> None:
    await make_source(memory_broker, 1)
    await make_shadow(memory_broker, told=False)
    client = await memory_broker.connect()
    await client.producer(SHADOW)
    place = pb.MessageIdData(ledgerId=1, entryId=2)
    for fields in ({}, {"message_id": place}):
        client.send(Command.SEND, message(b"no"), producer_id=1, sequence_id=7, **fields)
        refused: Any = (await client.expect(Command.SEND_ERROR)).body
        assert (refused.sequence_id, refused.error) == (7, pb.NotAllowedError)
        assert refused.message == "Cannot send messages to a shadow topic"


@pytest.mark.parametrize("by_position", [True, False])
async def test_the_replicator_has_a_receipt_for_what_it_tells_also_of_what_is_nowhere(
    memory_broker: MemoryBroker, by_position: bool
) -> None:
    producer = await make_source(memory_broker)
    await make_shadow(memory_broker, told=False)
    topic = await loaded(memory_broker)
    reader = await consumer_of(memory_broker)
    (place,) = await producer.publish(1)
    client = await memory_broker.open()
    flags = pb.FeatureFlags(supports_repl_dedup_by_lid_and_eid=by_position)
    client.send(Command.CONNECT, client_version="test", protocol_version=21, feature_flags=flags)
    await client.expect(Command.CONNECTED)
    await client.producer(SHADOW, producer_name=shadow_producer_name(SOURCE, SHADOW))
    for ledger_id, entry_id in ((place.ledgerId, place.entryId), (place.ledgerId, 5), (1 << 40, 5)):
        position = pb.KeyValue(key=SOURCE_POSITION_PROPERTY, value=f"{ledger_id}:{entry_id}")
        told = message(b"", properties=[position], replicated_from="standalone")
        at = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
        client.send(Command.SEND, told, producer_id=1, sequence_id=9, message_id=at)
        receipt: Any = (await client.expect(Command.SEND_RECEIPT)).body
        assert places([receipt.message_id]) == [(ledger_id, entry_id)]
        if by_position:
            assert (receipt.sequence_id, receipt.highest_sequence_id) == (ledger_id, entry_id)
        else:
            assert receipt.sequence_id == 9
    assert texts(await reader.messages(1)) == [b"m0"]
    assert topic.ledger.last_confirmed == (place.ledgerId, place.entryId)
    assert topic.messages_in == 3


async def test_the_source_is_told_that_markers_have_come(memory_broker: MemoryBroker) -> None:
    producer = await make_source(memory_broker)
    await make_shadow(memory_broker)
    reader = await consumer_of(memory_broker)
    producer.send(Command.SEND, message(b"", marker_type=10), producer_id=1, sequence_id=0)
    await producer.expect(Command.SEND_RECEIPT)
    await producer.publish(1, first=1)
    assert texts(await reader.messages(1)) == [b"m1"]
    source = await memory_broker.service.topic(TopicName.parse(SOURCE), create=False)
    await until(lambda: all(one.backlog == 0 for one in source.shadow_replicators.running.values()))


# --- its source


async def test_a_deleted_shadow_leaves_its_source(admin: Admin) -> None:
    broker = admin.broker
    producer = await make_source(broker, 2)
    await make_shadow(broker, told=False)
    client = await consumer_of(broker)
    await acknowledge(client, (await client.messages(2))[0])
    await admin.check(("DELETE", f"{BASE}/shadow?force=true", None, 204, None))
    assert await broker.store.get(ledger_path(TopicName.parse(SHADOW).persistence_name)) is None
    await producer.publish(1, first=2)
    assert texts(await (await consumer_of(broker, SOURCE)).messages(3)) == [b"m0", b"m1", b"m2"]


@pytest.mark.parametrize("ending", ["", "-partition-0"])
async def test_no_schema_is_registered_for_a_shadow(admin: Admin, ending: str) -> None:
    """One of its own would be shown by the brokers that do not serve it, the source's by the one that does."""
    for name, properties in (("source", {}), ("shadow", NOTED)):
        if ending:
            body = {"partitions": 1, "properties": properties}
            await admin.check(("PUT", f"{BASE}/{name}/partitions", body, 204, None))
        else:
            await admin.check(("PUT", f"{BASE}/{name}", properties, 204, None))
    shadow, source = (f"/admin/v2/schemas/public/default/{name}{ending}/schema" for name in ("shadow", "source"))
    schema = {"type": "STRING", "schema": "", "properties": {}}
    status, reason = await admin("POST", shadow, schema)
    assert (status, "register schemas with its source" in reason) == (405, True)
    await admin.check(("GET", shadow, None, 404, "Schema not found"))
    assert (await admin("POST", source, schema))[0] == 200


async def test_without_its_source_a_shadow_is_not_served_and_can_be_deleted(admin: Admin) -> None:
    broker = admin.broker
    await make_source(broker, 2)
    await make_shadow(broker, told=False)
    client = await consumer_of(broker)
    await client.messages(2)
    await admin.check(("DELETE", f"{BASE}/source?force=true", None, 204, None))
    await client.expect(Command.CLOSE_CONSUMER)
    await until(lambda: SHADOW not in broker.service.topics)
    answer = await client.request(Command.SUBSCRIBE, topic=SHADOW, subscription="s", consumer_id=2, subType=0)
    assert (answer.body.error, "which does not exist" in answer.body.message) == (pb.TopicNotFound, True)
    await admin.check(("DELETE", f"{BASE}/shadow", None, 204, None))
    assert await broker.store.get(ledger_path(TopicName.parse(SHADOW).persistence_name)) is None


@pytest.mark.parametrize("told", [True, False])
async def test_a_namespace_with_source_and_shadow_is_deleted_by_force_at_once(told: bool) -> None:
    """The shadow is let go of as its source goes, while the same request deletes both."""
    settings = BrokerSettings(cluster_name="memory", admin=AdminSettings(force_delete_namespace_allowed=True))
    async with MemoryBroker(settings) as broker, aiohttp.ClientSession() as session:
        admin = Admin(broker, session)
        await make_source(broker, 2)
        await make_shadow(broker, told=told)
        client = await consumer_of(broker)
        await client.messages(2)
        await admin.check(("DELETE", "/admin/v2/namespaces/public/default?force=true", None, 204, None))
        assert not await broker.service.exists(TopicName.parse(SHADOW))


@pytest.mark.parametrize("source", ["no topic://", "", SHADOW, f"{SOURCE}-of-a-shadow", f"{SOURCE}-missing"])
async def test_what_cannot_be_loaded_can_be_deleted(admin: Admin, source: str) -> None:
    """Nodes as our own brokers let nobody make them."""
    broker, other = admin.broker, f"{SOURCE}-of-a-shadow"
    await make_source(broker, 1)
    kept = (await broker.service.topic(TopicName.parse(SOURCE), create=False)).ledger.ledgers.records()
    for name, of in ((other, SOURCE), (SHADOW, source)):
        node = encode_ledger_info(kept, None, {SHADOW_SOURCE_PROPERTY: of})
        await broker.store.put(ledger_path(TopicName.parse(name).persistence_name), node)
    client = await broker.connect()
    answer = await client.request(Command.SUBSCRIBE, topic=SHADOW, subscription="s", consumer_id=1, subType=0)
    assert answer.name == "ERROR"
    await admin.check(("DELETE", f"{BASE}/shadow", None, 204, None))
    assert await broker.store.get(ledger_path(TopicName.parse(SHADOW).persistence_name)) is None
    assert texts(await (await consumer_of(broker, SOURCE)).messages(1)) == [b"m0"]


@pytest.mark.parametrize("source", ["no topic://", SHADOW])
async def test_partitions_that_cannot_be_loaded_can_be_deleted(admin: Admin, source: str) -> None:
    """Their record says whose shadow they are, and their nodes list ledgers: nobody knows whose these are."""
    broker = admin.broker
    await make_source(broker, 1)
    kept = (await broker.service.topic(TopicName.parse(SOURCE), create=False)).ledger.ledgers.records()
    path = broker.service.resources.partitioned_topic_path(TopicName.parse(SHADOW))
    record = {"partitions": 1, "deleted": False, "properties": {SHADOW_SOURCE_PROPERTY: source}}
    await broker.store.put(path, json.dumps(record).encode())
    partition = ledger_path(TopicName.parse(f"{SHADOW}-partition-0").persistence_name)
    listed = encode_ledger_info(kept, None, {})
    await broker.store.put(partition, listed)
    client = await broker.connect()
    name = f"{SHADOW}-partition-0"
    answer = await client.request(Command.SUBSCRIBE, topic=name, subscription="s", consumer_id=1, subType=0)
    assert answer.body.error == pb.NotAllowedError
    assert (await broker.store.get(partition)).value == listed
    await admin.check(("DELETE", f"{BASE}/shadow/partitions", None, 204, None))
    assert await broker.store.get(partition) is None
    assert texts(await (await consumer_of(broker, SOURCE)).messages(1)) == [b"m0"]


@pytest.mark.parametrize("deleting", [False, True])
async def test_a_shadow_whose_source_goes_while_it_is_loaded_is_not_kept(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, deleting: bool
) -> None:
    broker = admin.broker
    await make_source(broker, 1)
    await make_shadow(broker, told=False)
    prepared = broker.service.upkeep.prepare

    async def prepare(topic: ShadowTopic) -> None:
        await prepared(topic)
        if topic.source is not None:
            await broker.service.delete(TopicName.parse(SOURCE), force=True)
            await until(lambda: topic.closing and topic.ledger.state is ManagedLedgerState.CLOSED)

    monkeypatch.setattr(broker.service.upkeep, "prepare", prepare)
    if not deleting:
        client = await broker.connect()
        for error in (pb.ServiceNotReady, pb.TopicNotFound):
            answer = await client.request(Command.SUBSCRIBE, topic=SHADOW, subscription="s", consumer_id=1, subType=0)
            assert answer.body.error == error
            assert SHADOW not in broker.service.topics
    await admin.check(("DELETE", f"{BASE}/shadow", None, 204, None))
    assert not await broker.service.exists(TopicName.parse(SHADOW))


async def test_a_deleted_shadow_does_not_come_back_as_an_ordinary_topic(admin: Admin) -> None:
    broker = admin.broker
    await make_source(broker, 1)
    await make_shadow(broker)
    source = await broker.service.topic(TopicName.parse(SOURCE), create=False)
    await until(lambda: SHADOW in source.shadow_replicators.running)
    replicator = source.shadow_replicators.running[SHADOW]
    await until(lambda: replicator.connected)
    await admin.check(("DELETE", f"{BASE}/shadow?force=true", None, 204, None))
    await until(lambda: replicator.reason is Reason.REFUSED)
    assert "does not exist" in replicator.detail
    await admin.check(("PUT", f"{BASE}/shadow", NOTED, 204, None))
    assert texts(await (await consumer_of(broker)).messages(1)) == [b"m0"]


async def test_a_shadow_of_another_broker_is_taken_over_whatever_it_has_listed(memory_broker: MemoryBroker) -> None:
    """An old list of Apache's broker has too few entries of the ledger that was in use, and ledgers that are gone."""
    producer = await make_source(memory_broker, 3)
    source = await memory_broker.service.topic(TopicName.parse(SOURCE), create=False)
    ledger_id, _ = source.ledger.last_confirmed
    listed = [LedgerRecord(0, 5, 50, 7), LedgerRecord(ledger_id, 1, 10, 7)]
    path = ledger_path(TopicName.parse(SHADOW).persistence_name)
    await memory_broker.store.put(path, encode_ledger_info(listed, None, NOTED))
    client = await consumer_of(memory_broker)
    assert texts(await client.messages(3)) == [b"m0", b"m1", b"m2"]
    # The source's writer is not fenced.
    await producer.publish(1, first=3)
    assert source.ledger.last_confirmed == (ledger_id, 3)


async def test_a_source_with_shadows_counts_as_used(memory_broker: MemoryBroker) -> None:
    clock = ShiftedClock()
    async with MemoryBroker(clock=clock) as broker:
        producer = await make_source(broker, 1)
        await make_shadow(broker)
        await producer.close()
        source = await broker.service.topic(TopicName.parse(SOURCE), create=False)
        await until(lambda: source.shadow_replicators is not None and not source.producers.by_name)
        for _ in range(3):
            clock.advance(3600.0)
            await broker.service.upkeep.check_now("inactive topics")
        assert SOURCE in broker.service.topics


# --- two brokers


async def test_the_owner_of_the_source_is_asked_where_it_ends(
    apart: tuple[MemoryCluster, MemoryBroker, MemoryBroker, str],
) -> None:
    cluster, first, second, name = apart
    producer = await make_source(first, 3)
    assert await second.service.shadows.create(TopicName.parse(name), NOTED)
    client = await consumer_of(second, name, initialPosition=pb.CommandSubscribe.Latest)
    topic = await loaded(second, name)
    source = await first.service.topic(TopicName.parse(SOURCE), create=False)
    assert topic.ledger.last_confirmed == source.ledger.last_confirmed
    await producer.publish(1, first=3)
    assert texts(await client.messages(1)) == [b"m3"]
    # Another broker takes it over, at the same place.
    late = await consumer_of(second, name, "late")
    received = await late.messages(4)
    await acknowledge(late, received[2], cumulative=True)
    await cluster.stop(second)
    await until(lambda: len(cluster.brokers) == 1)
    owner = await cluster.lookup(first, name)
    assert texts(await (await consumer_of(owner, name, "late")).messages(1)) == [b"m3"]


async def test_who_asked_where_a_source_ends_lets_go_of_it_once() -> None:
    """So many shadows are counted as are loaded: the more there are, the more rarely each looks by itself."""
    let_go: list[int] = []
    end = SourceEnd(TopicName.parse(SOURCE), {}, None, lambda: let_go.append(1))
    await end.close()
    await end.close()
    assert let_go == [1]
    with pytest.raises(Unavailable):
        await end.last_confirmed()


async def test_read_only_brokers_serve_no_shadows() -> None:
    settings = BrokerSettings(cluster_name="memory")
    async with MemoryCluster(1, settings) as cluster:
        await make_source(cluster[0], 1)
        await make_shadow(cluster[0], told=False)
        reader = await cluster.add(replace(settings, read_only=ReadOnlySettings(enabled=True)))
        client = await reader.connect()
        answer = await client.request(Command.SUBSCRIBE, topic=SHADOW, subscription="s", consumer_id=1, subType=0)
        assert (answer.body.error, SOURCE in answer.body.message) == (pb.NotAllowedError, True)


# --- schemas and transactions


async def test_a_shadow_has_the_schemas_of_its_source(memory_broker: MemoryBroker) -> None:
    schema = pb.Schema(name="text", type=pb.Schema.String, schema_data=b"")
    client = await memory_broker.connect()
    version = (await client.producer(SOURCE, schema=schema)).schema_version
    assert version
    await make_shadow(memory_broker, told=False)
    reader = await memory_broker.connect()
    await reader.consumer(SHADOW, schema=schema)
    found: Any = (await reader.request(Command.GET_SCHEMA, topic=SHADOW)).body
    assert (found.schema_version, found.schema.type) == (version, pb.Schema.String)
    other = pb.Schema(name="n", type=pb.Schema.Int32, schema_data=b"")
    answer = await reader.request(Command.GET_OR_CREATE_SCHEMA, topic=SHADOW, schema=other)
    assert answer.body.error_code == pb.NotAllowedError
    assert not (await reader.producer(SHADOW, producer_id=2, schema=other)).schema_version
    registry = memory_broker.service.schemas
    for name in (SOURCE, SHADOW):
        versions = await registry.all_versions(TopicName.parse(name).schema_name)
        assert len(versions or []) == (1 if name == SOURCE else 0)


@pytest.mark.parametrize("partitioned", [False, True])
async def test_a_broker_that_does_not_serve_a_shadow_knows_its_schemas_too(
    apart: tuple[MemoryCluster, MemoryBroker, MemoryBroker, str], partitioned: bool
) -> None:
    """Stock clients ask any broker for schemas."""
    _, first, second, name = apart
    service, ending = second.service, "-partition-0" if partitioned else ""
    if partitioned:
        for each, properties in ((SOURCE, {}), (name, NOTED)):
            document = {"partitions": 1, "deleted": False, "properties": properties}
            path = service.resources.partitioned_topic_path(TopicName.parse(each))
            await service.resources.documents.create(path, document)
    else:
        assert await service.shadows.create(TopicName.parse(name), NOTED)
    schema = pb.Schema(name="text", type=pb.Schema.String, schema_data=b"")
    await second.service.schemas.put_if_absent(
        TopicName.parse(SOURCE).schema_name, from_wire(schema), Strategy.FULL, allow_auto_update=True
    )
    for broker in (first, second):
        client = await broker.connect()
        found: Any = (await client.request(Command.GET_SCHEMA, topic=name + ending)).body
        assert found.schema.type == pb.Schema.String, found
        answer: Any = (await client.request(Command.GET_SCHEMA, topic=f"{SOURCE}-of-nobody")).body
        assert answer.error_code == pb.TopicNotFound


async def test_what_transactions_of_the_source_hide_the_shadow_hides() -> None:
    settings = BrokerSettings(transactions=TransactionSettings(enabled=True))
    async with MemoryBroker(settings) as broker:
        producer = await make_source(broker)
        await make_shadow(broker)
        await send(producer, 0)
        await send(producer, 1, transaction=7)
        await send(producer, 2)
        client = await consumer_of(broker)
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        assert texts([await client.expect(Command.MESSAGE)]) == [b"m0"]
        assert [one.name for one in await client.round_trip() if one.name == "MESSAGE"] == []
        await end(producer, 7, commit=False, topic=SOURCE)
        assert texts([await client.expect(Command.MESSAGE)]) == [b"m2"]
        await send(producer, 3, transaction=8)
        await end(producer, 8, commit=False, topic=SOURCE)
        last = (await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)).body.last_message_id
        assert last.entryId == 2


async def test_a_shadow_that_is_loaded_later_hides_what_transactions_of_the_source_hid_before() -> None:
    settings = BrokerSettings(transactions=TransactionSettings(enabled=True))
    async with MemoryBroker(settings) as broker:
        producer = await make_source(broker)
        for number, transaction in enumerate((None, 7, 8)):
            await send(producer, number, transaction=transaction)
        await end(producer, 7, commit=False, topic=SOURCE)
        await make_shadow(broker, told=False)
        client = await consumer_of(broker)
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        assert texts([await client.expect(Command.MESSAGE)]) == [b"m0"]
        assert [one.name for one in await client.round_trip() if one.name == "MESSAGE"] == []
        await end(producer, 8, topic=SOURCE)
        assert texts([await client.expect(Command.MESSAGE)]) == [b"m2"]


async def test_the_last_message_is_before_an_open_transaction_that_is_the_last_there_is() -> None:
    settings = BrokerSettings(transactions=TransactionSettings(enabled=True))
    async with MemoryBroker(settings) as broker:
        producer = await make_source(broker)
        await send(producer, 0)
        await send(producer, 1, transaction=7)
        await make_shadow(broker, told=False)
        client = await consumer_of(broker)
        last = (await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)).body.last_message_id
        assert last.entryId == 0


async def test_consumers_of_a_shadow_hear_of_the_end_of_the_source(memory_broker: MemoryBroker) -> None:
    await make_source(memory_broker, 1)
    await make_shadow(memory_broker)
    client = await memory_broker.connect(client_version="Pulsar-Java-v4.0.8")
    await client.consumer(SHADOW, "s", initialPosition=EARLIEST)
    await acknowledge(client, *await client.messages(1))
    source = await memory_broker.service.topic(TopicName.parse(SOURCE), create=False)
    await source.terminate()
    assert (await client.expect(Command.REACHED_END_OF_TOPIC)).body.consumer_id == 1


# --- how it is made


async def test_a_shadow_is_made_by_a_property_that_stays(admin: Admin) -> None:
    await make_source(admin.broker, 1)
    await admin.check(
        ("PUT", f"{BASE}/shadow", {**NOTED, "a": "b"}, 204, None),
        ("PUT", f"{BASE}/shadow", NOTED, 409, "already exists"),
        ("GET", f"{BASE}/shadow/properties", None, 200, {**NOTED, "a": "b"}),
        ("PUT", f"{BASE}/shadow/properties", {"c": "d"}, 204, None),
        ("DELETE", f"{BASE}/shadow/properties?key=a", None, 204, None),
        ("PUT", f"{BASE}/shadow/properties", {SHADOW_SOURCE_PROPERTY: SHADOW}, 412, "given at its creation"),
        ("DELETE", f"{BASE}/shadow/properties?key={SHADOW_SOURCE_PROPERTY}", None, 412, "given at its creation"),
        ("PUT", f"{BASE}/source/properties", NOTED, 412, "given at its creation"),
        ("GET", f"{BASE}/shadow/properties", None, 200, {**NOTED, "c": "d"}),
        ("POST", f"{BASE}/shadow/terminate", {}, 405, "Terminate is not allowed"),
    )
    stats = await admin("GET", f"{BASE}/shadow/internalStats")
    assert stats[0] == 200
    assert stats[1]["state"] == "Followed"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "trim", None),
        ("DELETE", "truncate", None),
        ("PUT", "compaction", None),
        ("PUT", "offload", {"ledgerId": 1, "entryId": 0, "partitionIndex": -1}),
    ],
)
async def test_what_would_change_the_source_is_refused(admin: Admin, method: str, path: str, body: Any) -> None:
    await make_source(admin.broker, 1)
    await make_shadow(admin.broker, told=False)
    await admin.check((method, f"{BASE}/shadow/{path}", body, 405, f"shows what {SOURCE} has"))


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("new", {SHADOW_SOURCE_PROPERTY: "no topic://"}, 412, "no topic"),
        ("new", {SHADOW_SOURCE_PROPERTY: "non-persistent://public/default/source"}, 412, "persistent"),
        ("new", {SHADOW_SOURCE_PROPERTY: f"{SOURCE}-missing"}, 404, "is not there"),
        ("new", {SHADOW_SOURCE_PROPERTY: 7}, 412, "persistent"),
        ("new", {SHADOW_SOURCE_PROPERTY: SHADOW}, 412, "is a shadow of"),
        ("new", {SHADOW_SOURCE_PROPERTY: "persistent://public/default/new"}, 412, "cannot be a shadow of"),
        ("new", {SHADOW_SOURCE_PROPERTY: "persistent://public/default/parted"}, 412, "2 partitions"),
        ("new/partitions", {"partitions": 2, "properties": NOTED}, 412, "0 partitions"),
        (
            "new/partitions",
            {"partitions": 3, "properties": {SHADOW_SOURCE_PROPERTY: "persistent://public/default/parted"}},
            412,
            "2 partitions",
        ),
    ],
)
async def test_what_cannot_be_a_shadow_is_refused(admin: Admin, path: str, body: Any, status: int, reason: str) -> None:
    await make_source(admin.broker)
    await make_shadow(admin.broker, told=False)
    await admin.check(
        ("PUT", f"{BASE}/parted/partitions", 2, 204, None),
        ("PUT", f"{BASE}/{path}", body, status, reason),
    )
    assert not await admin.broker.service.exists(TopicName.parse("persistent://public/default/new"))
    assert await admin.broker.service.resources.partitions(TopicName.parse("persistent://public/default/new")) is None


@pytest.mark.parametrize("by_apache", [False, True])
async def test_partitions_are_shadows_of_the_partitions_of_the_same_number(admin: Admin, by_apache: bool) -> None:
    """Also where their nodes do not say so, as those that Apache's brokers have made: the record does."""
    broker = admin.broker
    await admin.check(
        ("PUT", f"{BASE}/source/partitions", 2, 204, None),
        ("PUT", f"{BASE}/shadow/partitions", {"partitions": 2, "properties": NOTED}, 204, None),
        ("GET", f"{BASE}/shadow/properties", None, 200, NOTED),
    )
    client = await broker.connect()
    await client.producer(f"{SOURCE}-partition-1")
    await client.publish(2)
    source = await broker.service.topic(TopicName.parse(f"{SOURCE}-partition-1"), create=False)
    if by_apache:
        path = ledger_path(TopicName.parse(f"{SHADOW}-partition-1").persistence_name)
        await broker.store.put(path, encode_ledger_info(source.ledger.ledgers.records(), None, {}))
    reader = await consumer_of(broker, f"{SHADOW}-partition-1")
    assert texts(await reader.messages(2)) == [b"m0", b"m1"]
    topic = await loaded(broker, f"{SHADOW}-partition-1")
    assert topic.ledger.properties == {SHADOW_SOURCE_PROPERTY: f"{SOURCE}-partition-1"}
    await admin.check(
        ("PUT", f"{BASE}/shadow/properties", NOTED, 412, "given at its creation"),
        ("DELETE", f"{BASE}/shadow/partitions?force=true", None, 204, None),
    )
    await client.publish(1, first=2)
    assert len(await (await consumer_of(broker, f"{SOURCE}-partition-1")).messages(3)) == 3
    assert source.ledger.last_confirmed[1] == 2


async def test_a_shadow_gets_no_partitions_that_its_source_has_not(admin: Admin) -> None:
    await admin.check(
        ("PUT", f"{BASE}/source/partitions", 3, 204, None),
        ("PUT", f"{BASE}/shadow/partitions", {"partitions": 1, "properties": NOTED}, 204, None),
        ("POST", f"{BASE}/shadow/partitions", 4, 422, "which has 3 partitions"),
        ("POST", f"{BASE}/shadow/partitions", 3, 204, None),
    )
    assert await admin.broker.service.resources.partitions(TopicName.parse(SHADOW)) == 3
    assert not await admin.broker.service.exists(TopicName.parse(f"{SHADOW}-partition-3"))
    await consumer_of(admin.broker, f"{SHADOW}-partition-2")


async def test_who_may_not_consume_the_source_may_not_have_a_shadow_of_it() -> None:
    settings = auth.broker_settings()
    async with MemoryBroker(settings) as broker:
        await auth.make_namespace(broker)
        await broker.service.topic(TopicName.parse(SOURCE), create=True)
        url = f"{broker.admin_url}/admin/v2/persistent/{auth.NAMESPACE}/shadow"

        async def make(role: str) -> int:
            headers = {"Authorization": f"Bearer {token_of(role)}"}
            async with aiohttp.ClientSession() as session, session.put(url, json=NOTED, headers=headers) as answer:
                return answer.status

        assert await make(auth.TENANT_ADMIN) == 401
        assert await make(auth.ADMIN) == 204
