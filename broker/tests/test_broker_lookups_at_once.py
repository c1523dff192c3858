"""Questions about topics that memory answers: no task for them, and never an answer that is not true any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from magnetar.broker.session.server_session import ServerSession
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, command_frame
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

NAMESPACE = "persistent://public/default/"
TOPIC = NAMESPACE + "t"
LOOKUP, PARTITIONS = pb.BaseCommand.LOOKUP, pb.BaseCommand.PARTITIONED_METADATA
CONNECT, FAILED = pb.CommandLookupTopicResponse.Connect, pb.CommandLookupTopicResponse.Failed
POLICIES = "/admin/policies/public/default"


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(2) as running:
        yield running


async def look_up(client: ProtocolClient, topic: str = TOPIC, **fields: Any) -> Any:
    return (await client.request(LOOKUP, topic=topic, **fields)).body


async def partitions(client: ProtocolClient, topic: str = TOPIC, **fields: Any) -> Any:
    return (await client.request(PARTITIONS, topic=topic, **fields)).body


def url(broker: MemoryBroker) -> str:
    return broker.running.settings.service_url


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Commands for which sessions made a task from now on."""
    made: list[object] = []
    spawn = ServerSession.spawn

    def spawn_and_tell(session: ServerSession, work: Any) -> None:
        made.append(work)
        spawn(session, work)

    monkeypatch.setattr(ServerSession, "spawn", spawn_and_tell)
    return made


async def test_what_is_known_costs_no_task(memory_broker: MemoryBroker, tasks: list[object]) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await memory_broker.service.partitioned.create(TopicName.parse(NAMESPACE + "parts"), 3)
    asked = {TOPIC: 0, NAMESPACE + "parts": 3, NAMESPACE + "parts-partition-1": 0}
    for topic in asked:
        await look_up(client, topic)
        await partitions(client, topic)
    tasks.clear()
    for topic, count in asked.items():
        assert (await look_up(client, topic)).brokerServiceUrl == url(memory_broker)
        assert (await partitions(client, topic)).partitions == count
        assert (await look_up(client, topic, authoritative=True)).response == CONNECT
    assert tasks == []


async def test_another_owner_that_is_known_costs_no_task(cluster: MemoryCluster, tasks: list[object]) -> None:
    await cluster.take(cluster[1], TOPIC)
    client = await cluster[0].connect()
    await look_up(client)
    tasks.clear()
    answer = await look_up(client)
    assert (answer.response, answer.authoritative, answer.brokerServiceUrl) == (CONNECT, True, url(cluster[1]))
    assert tasks == []


async def test_what_came_together_is_answered_in_order(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await look_up(client)
    numbers = range(1000, 1500)
    client.send_bytes(b"".join(command_frame(LOOKUP, topic=TOPIC, request_id=number) for number in numbers))
    await client.answer(numbers[-1])
    assert [received.body.request_id for received in client.inbox] == list(numbers[:-1])


@pytest.mark.parametrize("first", [LOOKUP, PARTITIONS, pb.BaseCommand.GET_TOPICS_OF_NAMESPACE])
async def test_a_command_is_of_the_type_that_it_names_last(
    memory_broker: MemoryBroker, first: pb.BaseCommand.Type
) -> None:
    """As protobuf reads it. The one that it names first is read by hand, and has no body here."""
    client = await memory_broker.connect()
    command = bytes([8, first]) + command_frame(pb.BaseCommand.GET_SCHEMA, topic=TOPIC, request_id=7)[8:]
    client.send_bytes((len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command)
    assert (await client.answer(7)).name == "GET_SCHEMA_RESPONSE"


async def test_unusual_forms_get_the_same_answers(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    usual, count = await look_up(client), await partitions(client, "p-partition-0")
    for fields in ({"original_principal": "proxy"}, {"properties": [pb.KeyValue(key="a", value="b")]}):
        unusual = await look_up(client, **fields)
        unusual.request_id = usual.request_id
        assert unusual == usual
    unusual = await partitions(client, "p-partition-0", original_principal="proxy")
    unusual.request_id = count.request_id
    assert unusual == count
    body = pb.CommandLookupTopic(topic=TOPIC, request_id=77).SerializeToString()
    # The type comes last.
    command = b"\xba\x01" + bytes([len(body)]) + body + b"\x08\x17"
    client.send_bytes((len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command)
    assert (await client.answer(77)).body.brokerServiceUrl == usual.brokerServiceUrl


@pytest.mark.parametrize("kind", [LOOKUP, PARTITIONS])
async def test_what_cannot_be_read_ends_the_connection(memory_broker: MemoryBroker, kind: pb.BaseCommand.Type) -> None:
    client = await memory_broker.connect()
    client.send(kind, topic=TOPIC)
    assert await client.end() == []


async def test_a_full_broker_refuses_what_it_knows() -> None:
    async with MemoryBroker(BrokerSettings(lookups_max=1)) as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        await partitions(client)
        with broker.running.context.lookup.place():
            assert (await look_up(client)).error == pb.TooManyRequests
            assert (await partitions(client)).error == pb.TooManyRequests
        assert (await look_up(client)).response == CONNECT
        assert (await partitions(client)).response == pb.CommandPartitionedTopicMetadataResponse.Success


async def test_listeners_of_what_is_known() -> None:
    text = "inside:pulsar://10.0.0.1:6650,outside:pulsar://1.2.3.4:16650"
    async with MemoryCluster(2, BrokerSettings(cluster_name="memory", advertised_listeners=text)) as cluster:
        await cluster.take(cluster[1], TOPIC)
        for broker in cluster.brokers:
            client = await broker.connect()
            for _ in range(3):
                assert (await look_up(client)).brokerServiceUrl == "pulsar://10.0.0.1:6650"
                outside = await look_up(client, advertised_listener_name="outside")
                assert outside.brokerServiceUrl == "pulsar://1.2.3.4:16650"
                unknown = await look_up(client, advertised_listener_name="none")
                assert (unknown.response, unknown.error) == (FAILED, pb.ServiceNotReady)


async def test_a_namespace_that_goes(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    assert (await look_up(client)).response == CONNECT
    documents = memory_broker.service.resources.documents
    await documents.update(POLICIES, lambda policies: {**policies, "deleted": True})
    for _ in range(3):
        assert (await look_up(client)).error == pb.TopicNotFound, "also by what is in memory"
    await documents.update(POLICIES, lambda policies: {**policies, "deleted": False})
    assert (await look_up(client)).response == CONNECT
    await documents.delete(POLICIES)
    assert (await look_up(client)).error == pb.TopicNotFound


async def until_told(clients: list[ProtocolClient], expected: Callable[[Any], bool]) -> None:
    """Brokers hear a moment later of what is written; from then on each of them says so."""
    for client in clients:
        while not expected(await look_up(client)):
            await asyncio.sleep(0.001)
    for client in clients:
        assert expected(await look_up(client))


async def test_a_namespace_that_goes_to_another_cluster(cluster: MemoryCluster) -> None:
    await cluster.take(cluster[1], TOPIC)
    clients = [await broker.connect() for broker in cluster.brokers]
    for client in clients:
        assert (await look_up(client)).response == CONNECT
    documents = cluster[0].service.resources.documents
    await documents.update(POLICIES, lambda policies: {**policies, "replication_clusters": ["elsewhere"]})
    await until_told(clients, lambda answer: answer.error == pb.MetadataError)


async def test_a_bundle_that_moves(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    clients = [await broker.connect() for broker in cluster.brokers]
    for client in clients:
        assert (await look_up(client)).brokerServiceUrl == url(cluster[0])
    await cluster[0].running.context.moves.unload(bundle)
    await cluster.take(cluster[1], TOPIC)
    await until_told(clients, lambda answer: answer.brokerServiceUrl == url(cluster[1]))


async def test_a_bundle_that_is_being_unloaded(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    # Others are told of an unload that takes a while: there is a topic to close.
    await (await cluster[0].connect()).producer(TOPIC)
    clients = [await broker.connect() for broker in cluster.brokers]
    for client in clients:
        assert (await look_up(client)).response == CONNECT
    ownership = cluster[0].running.context.ownership
    release, go_on = ownership.release, asyncio.Event()

    async def release_later(name: Any) -> None:
        await go_on.wait()
        await release(name)

    monkeypatch.setattr(ownership, "release", release_later)
    unload = asyncio.create_task(cluster[0].running.context.moves.unload(bundle))
    try:
        await until(lambda: (owner := cluster[1].running.context.ownership.peek(bundle)) is None or owner.disabled)
        for client in clients:
            answer = await look_up(client)
            assert (answer.response, answer.error) == (FAILED, pb.ServiceNotReady)
    finally:
        go_on.set()
        await unload


async def test_a_lost_session(cluster: MemoryCluster) -> None:
    await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    assert (await look_up(client)).response == CONNECT
    cluster[0].store.expire_session()
    cluster[0].store.disconnect()
    answer = await look_up(client)
    assert (answer.response, answer.error) == (FAILED, pb.ServiceNotReady)
    cluster[0].store.reconnect()
    owned = cluster[0].running.context.ownership.serving(TopicName.parse(TOPIC))
    assert owned is not None
    await until(lambda: owned.active)
    assert (await look_up(client)).response == CONNECT


async def test_a_split_changes_no_answer(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    topics = [name for name in (f"{TOPIC}{number}" for number in range(200)) if TopicName.parse(name) in bundle]
    clients = [await broker.connect() for broker in cluster.brokers]
    for _ in range(2):
        for client in clients:
            answers = await asyncio.gather(*(look_up(client, topic) for topic in topics))
            assert {(answer.response, answer.brokerServiceUrl) for answer in answers} == {(CONNECT, url(cluster[0]))}
        if bundle in cluster[0].running.context.ownership.owned():
            await cluster[0].running.context.moves.split(bundle, "range_equally_divide")
            await asyncio.sleep(0.01)
    assert bundle not in cluster[0].running.context.ownership.owned()


async def test_partitions_that_change(cluster: MemoryCluster) -> None:
    client, name = await cluster[0].connect(), TopicName.parse(NAMESPACE + "parts")
    service = cluster[1].service
    await service.partitioned.create(name, 2)
    assert [(await partitions(client, str(name))).partitions for _ in range(2)] == [2, 2]
    path = service.resources.partitioned_topic_path(name)
    await service.resources.documents.update(path, lambda document: {**document, "partitions": 5})
    while (await partitions(client, str(name))).partitions != 5:
        await asyncio.sleep(0.001)
    assert (await partitions(client, str(name))).partitions == 5
    await service.resources.documents.delete(path)
    while (await partitions(client, str(name), metadata_auto_creation_enabled=False)).error != pb.TopicNotFound:
        await asyncio.sleep(0.001)


async def test_a_topic_that_is_unloaded_is_looked_for(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    never: dict[str, Any] = {"metadata_auto_creation_enabled": False}
    for _ in range(2):
        assert (await partitions(client, **never)).response == pb.CommandPartitionedTopicMetadataResponse.Success
    await client.request(pb.BaseCommand.CLOSE_PRODUCER, producer_id=1)
    await memory_broker.service.delete(TopicName.parse(TOPIC), force=True)
    assert (await partitions(client, **never)).error == pb.TopicNotFound
