"""What a client may make a broker keep, or send to the metadata store, by long names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.admin_client.errors import AdminRefused
from magnetar.broker.schema.limits import SCHEMA_BYTES_MAX, SCHEMA_PROPERTIES_CHARACTERS_MAX, SCHEMA_PROPERTIES_MAX
from magnetar.broker.session.command_limits import (
    COMMAND_BYTES_MAX,
    HASH_RANGES_MAX,
    PAIRS_MAX,
    PROPERTIES_CHARACTERS_MAX,
)
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, command_frame
from magnetar.core.limits import CLIENT_VERSION_CHARACTERS_MAX
from magnetar.core.topic_name import NAME_CHARACTERS_MAX
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import TEXT_CHARACTERS_MAX

LONG = "x" * (PROPERTIES_CHARACTERS_MAX + 1)
TOPIC = "persistent://public/default/t"
PAIRS = [pb.KeyValue(key="a", value=LONG)]
SUBSCRIBE: dict[str, Any] = {"topic": TOPIC, "subscription": "s", "subType": pb.CommandSubscribe.Shared}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("PRODUCER", {"topic": TOPIC, "producer_id": 1, "producer_name": LONG}),
        ("PRODUCER", {"topic": TOPIC, "producer_id": 1, "metadata": PAIRS}),
        ("PRODUCER", {"topic": f"{TOPIC}{LONG}", "producer_id": 1}),
        ("SUBSCRIBE", {**SUBSCRIBE, "consumer_id": 1, "consumer_name": LONG}),
        ("SUBSCRIBE", {**SUBSCRIBE, "consumer_id": 1, "subscription": LONG}),
        ("SUBSCRIBE", {**SUBSCRIBE, "consumer_id": 1, "subscription_properties": PAIRS}),
        ("SUBSCRIBE", {**SUBSCRIBE, "consumer_id": 1, "metadata": PAIRS}),
        ("SUBSCRIBE", {**SUBSCRIBE, "consumer_id": 1, "topic": f"non-persistent://public/default/{LONG}"}),
    ],
)
async def test_producers_and_consumers_that_say_too_much(
    memory_broker: MemoryBroker, kind: str, fields: dict[str, Any]
) -> None:
    client = await memory_broker.open()
    client.send(pb.BaseCommand.CONNECT, client_version="test", protocol_version=21)
    await client.expect(pb.BaseCommand.CONNECTED)
    client.send(getattr(pb.BaseCommand, kind), request_id=5, **fields)
    error = await client.expect(pb.BaseCommand.ERROR)
    assert (error.body.request_id, error.body.error) == (5, pb.NotAllowedError)
    assert await usable(client)


async def test_what_is_noted_over_http_has_the_same_limit(memory_broker: MemoryBroker) -> None:
    peers = memory_broker.running.context.peers
    topic = "/admin/v2/persistent/public/default/noted"
    await peers.call("PUT", topic)
    await peers.call("PUT", f"{topic}/subscription/s")
    for path, body in (
        (f"{topic}/subscription/s/properties", {"a": LONG}),
        (f"{topic}/subscription/t", {"ledgerId": -1, "entryId": -1, "properties": {"a": LONG}}),
        ("/admin/v2/namespaces/public/default/properties", {"a": "x" * 1_000_001}),
        (f"{topic}/properties", {"a": "x" * 1_000_001}),
    ):
        with pytest.raises(AdminRefused) as refused:
            await peers.call("PUT", path, body=body)
        assert refused.value.status == 413
    assert (await peers.call("GET", f"{topic}/subscription/s/properties")).json() == {}
    assert (await peers.call("GET", f"{topic}/properties")).json() == {}
    assert (await peers.call("GET", f"{topic}/subscriptions")).json() == ["s"]


async def usable(client: ProtocolClient) -> bool:
    client.send(pb.BaseCommand.PRODUCER, topic=TOPIC, producer_id=2, request_id=6)
    await client.expect(pb.BaseCommand.PRODUCER_SUCCESS)
    return True


@pytest.mark.parametrize("name", ["x" * 2_000_000, "\n" * 2_000_000, "a/b/c/d" + "x" * 2_000_000])
async def test_names_that_no_store_takes_are_an_error_with_a_short_text(memory_broker: MemoryBroker, name: str) -> None:
    client = await memory_broker.open()
    client.send(pb.BaseCommand.CONNECT, client_version="test", protocol_version=21)
    await client.expect(pb.BaseCommand.CONNECTED)
    topic = f"persistent://public/default/{name}"
    client.send(pb.BaseCommand.PARTITIONED_METADATA, topic=topic, request_id=1)
    counted = await client.expect(pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)
    assert counted.body.response == pb.CommandPartitionedTopicMetadataResponse.Failed
    client.send(pb.BaseCommand.GET_SCHEMA, topic=topic, request_id=2)
    await asyncio.sleep(0)
    for answer in (counted, *client.inbox):
        text = getattr(answer.body, "message", "") or getattr(answer.body, "error_message", "")
        assert len(text) <= TEXT_CHARACTERS_MAX + 1
    assert await usable(client)


MANY_EMPTY = [pb.KeyValue(key="", value="")] * (PAIRS_MAX + 1)
MANY_RANGES = [pb.IntRange(start=0, end=0)] * (HASH_RANGES_MAX + 1)
STICKY_META = pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=MANY_RANGES)


def schema(**fields: Any) -> pb.Schema:
    return pb.Schema(**{"name": "s", "type": pb.Schema.String, "schema_data": b"", **fields})


LARGE = schema(schema_data=bytes(SCHEMA_BYTES_MAX + 1), type=pb.Schema.Avro)
LABELLED = schema(properties=[pb.KeyValue(key="a", value="x" * SCHEMA_PROPERTIES_CHARACTERS_MAX)])
CROWDED = schema(properties=[pb.KeyValue(key="", value="")] * (SCHEMA_PROPERTIES_MAX + 1))


@pytest.mark.parametrize(
    ("kind", "fields", "named", "limit"),
    [
        ("PRODUCER", {"producer_id": 1, "metadata": MANY_EMPTY}, "properties", PAIRS_MAX),
        ("SUBSCRIBE", {**SUBSCRIBE, "consumer_id": 1, "metadata": MANY_EMPTY}, "properties", PAIRS_MAX),
        ("SUBSCRIBE", {**SUBSCRIBE, "consumer_id": 1, "subscription_properties": MANY_EMPTY}, "properties", PAIRS_MAX),
        ("SUBSCRIBE", {**SUBSCRIBE, "consumer_id": 1, "keySharedMeta": STICKY_META}, "ranges", HASH_RANGES_MAX),
        ("PRODUCER", {"producer_id": 1, "schema": LARGE}, "bytes", SCHEMA_BYTES_MAX),
        ("SUBSCRIBE", {**SUBSCRIBE, "consumer_id": 1, "schema": LARGE}, "bytes", SCHEMA_BYTES_MAX),
        ("GET_OR_CREATE_SCHEMA", {"schema": LARGE}, "bytes", SCHEMA_BYTES_MAX),
        ("PRODUCER", {"producer_id": 1, "schema": LABELLED}, "characters", SCHEMA_PROPERTIES_CHARACTERS_MAX),
        ("PRODUCER", {"producer_id": 1, "schema": CROWDED}, "properties", SCHEMA_PROPERTIES_MAX),
        ("SUBSCRIBE", {**SUBSCRIBE, "consumer_id": 1, "schema": CROWDED}, "properties", SCHEMA_PROPERTIES_MAX),
        ("GET_OR_CREATE_SCHEMA", {"schema": CROWDED}, "properties", SCHEMA_PROPERTIES_MAX),
        ("LOOKUP", {"advertised_listener_name": "x" * COMMAND_BYTES_MAX}, "bytes", COMMAND_BYTES_MAX),
        ("PARTITIONED_METADATA", {"original_principal": "x" * COMMAND_BYTES_MAX}, "bytes", COMMAND_BYTES_MAX),
        ("GET_SCHEMA", {"schema_version": bytes(COMMAND_BYTES_MAX)}, "bytes", COMMAND_BYTES_MAX),
        ("LOOKUP", {"topic": f"{TOPIC}{LONG}"}, "characters", NAME_CHARACTERS_MAX),
        ("PARTITIONED_METADATA", {"topic": f"{TOPIC}{LONG}"}, "characters", NAME_CHARACTERS_MAX),
        ("GET_SCHEMA", {"topic": f"{TOPIC}{LONG}"}, "characters", NAME_CHARACTERS_MAX),
    ],
)
async def test_what_a_command_may_bring_and_how_it_is_told(
    memory_broker: MemoryBroker, kind: str, fields: dict[str, Any], named: str, limit: int
) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC, 9)
    refused = await client.request(getattr(pb.BaseCommand, kind), **{"topic": TOPIC, **fields})
    text = getattr(refused.body, "message", "") or getattr(refused.body, "error_message", "")
    assert named in text, refused
    assert str(limit) in text, refused
    assert not memory_broker.service.topics[TOPIC].subscriptions
    assert len(memory_broker.service.topics[TOPIC].producers.by_name) == 1
    assert await usable(client)


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared])
async def test_hash_ranges_of_other_types_are_not_kept(memory_broker: MemoryBroker, kind: Any) -> None:
    client = await memory_broker.connect()
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=0, end=1)])
    await client.consumer(TOPIC, subType=kind, keySharedMeta=meta)
    [consumer] = memory_broker.service.topics[TOPIC].subscriptions["s"].consumers
    assert consumer.identity.key_shared is None


async def test_as_many_hash_ranges_as_may_be(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    ranges = [pb.IntRange(start=2 * index, end=2 * index) for index in range(HASH_RANGES_MAX)]
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=ranges)
    await client.consumer(TOPIC, subType=pb.CommandSubscribe.Key_Shared, keySharedMeta=meta)
    [consumer] = memory_broker.service.topics[TOPIC].subscriptions["s"].consumers
    assert len(consumer.identity.key_shared.ranges) == HASH_RANGES_MAX


async def test_what_a_client_calls_itself_is_cut(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect(client_version="v" * 100_000)
    await client.producer(TOPIC)
    [producer] = memory_broker.service.topics[TOPIC].producers.by_name.values()
    assert producer.identity.client_version == "v" * CLIENT_VERSION_CHARACTERS_MAX


@pytest.mark.parametrize("kind", ["PRODUCER", "SUBSCRIBE", "GET_OR_CREATE_SCHEMA", "ADD_SUBSCRIPTION_TO_TXN"])
async def test_texts_are_walked_through_only_once_they_are_bounded(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    walked: list[int] = []
    check_texts = messages.check_texts

    def watched(message: Any) -> None:
        walked.append(message.ByteSize())
        check_texts(message)

    monkeypatch.setattr(messages, "check_texts", watched)
    client = await memory_broker.connect()
    # Bytes that are no ASCII, as most lengths and numbers are: else there is nothing to check.
    number = {"PRODUCER": {"producer_id": 200}, "SUBSCRIBE": {**SUBSCRIBE, "consumer_id": 200}}.get(kind, {})
    many = pb.Schema(name="s", schema_data=b"", type=pb.Schema.String, properties=MANY_EMPTY)
    fields: dict[str, Any] = {"topic": TOPIC, "schema": many, **number}
    if kind == "ADD_SUBSCRIPTION_TO_TXN":
        fields = {"txnid_least_bits": 200, "subscription": [pb.Subscription(topic="", subscription="")] * 20_000}
    refused = await client.request(getattr(pb.BaseCommand, kind), **fields)
    assert refused.body.error == pb.NotAllowedError
    assert all(size < 1_000 for size in walked), "small parts of other commands"


async def test_texts_that_are_no_texts_still_end_the_connection(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    frame = command_frame(pb.BaseCommand.PRODUCER, topic="persistent://public/default/ab", producer_id=1, request_id=1)
    client.send_bytes(frame.replace(b"/ab", b"/\xff\xfe"))
    await client.end()


async def test_lists_of_messages_may_be_longer(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.consumer(TOPIC)
    ids = [pb.MessageIdData(ledgerId=2**40, entryId=2**40)] * (COMMAND_BYTES_MAX // 8)
    client.send(pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=ids)
    assert await usable(client)
