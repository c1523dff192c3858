"""Schemas on the wire, and the commands that this broker refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from magnetar.broker.testing.sessions import MemoryBroker, command_type
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
VERSION_0 = bytes(8)
NONE, STRING, JSON_TYPE, AUTO_CONSUME = 0, 1, 2, 21


def record(*fields: str) -> dict[str, object]:
    """The schema of a record whose fields are integers without a default."""
    definition = {"type": "record", "name": "R", "fields": [{"name": name, "type": "int"} for name in fields]}
    return {"name": "s", "type": JSON_TYPE, "schema_data": json.dumps(definition).encode()}


async def set_policy(broker: MemoryBroker, **policies: object) -> None:
    """Change the namespace's policies, as its administrators do."""
    resources, namespace = broker.service.resources, NamespaceName("public", "default")
    path = resources.namespace_path(namespace)
    await resources.documents.update(path, lambda document: {**document, **policies})
    await broker.service.policies_changed(namespace)


async def test_producer_registers_its_schema(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    assert (await client.producer(TOPIC, schema=record("a"))).schema_version == VERSION_0
    assert (await client.producer(TOPIC, 2, schema=record("a"))).schema_version == VERSION_0
    assert (await client.producer(TOPIC, 3)).schema_version == b"", "without a schema anything may be sent"
    stored = (await client.request(Command.GET_SCHEMA, topic=TOPIC)).body
    assert stored.schema.type == JSON_TYPE
    assert stored.schema.schema_data == record("a")["schema_data"]
    assert (stored.schema.name, stored.schema_version) == ("public/default/topic", VERSION_0)


async def test_producer_with_incompatible_schema(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC, schema=record("a"))
    answer = await client.request(Command.PRODUCER, topic=TOPIC, producer_id=2, schema=record("b"))
    assert (answer.name, answer.body.error) == ("ERROR", pb.IncompatibleSchema)
    assert len(memory_broker.service.topics[TOPIC].producers.by_name) == 1


async def test_a_topic_has_a_strategy_of_its_own(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    other = TOPIC + "-other"
    for number, topic in enumerate((TOPIC, other)):
        await client.producer(topic, number, schema=record("a"))
    store = memory_broker.running.context.topic_policies
    await store.update(TopicName.parse(TOPIC), lambda own: {**own, "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE"})
    assert (await client.producer(TOPIC, 2, schema=record("b"))).schema_version == (1).to_bytes(8, "big")
    await client.consumer(TOPIC, schema=record("c"))
    answer = await client.request(Command.PRODUCER, topic=other, producer_id=3, schema=record("b"))
    assert answer.body.error == pb.IncompatibleSchema
    await store.update(TopicName.parse(other), lambda own: {**own, "schemaCompatibilityStrategy": "BACKWARD"})
    assert (await client.producer(other, 4, schema=record())).schema_version == (1).to_bytes(8, "big")
    # The namespace's word counts again once the topic has none.
    await store.delete(TopicName.parse(TOPIC))
    answer = await client.request(Command.PRODUCER, topic=TOPIC, producer_id=5, schema=record("d"))
    assert answer.body.error == pb.IncompatibleSchema


async def test_producer_without_schema_where_one_is_enforced(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC, schema=record("a"))
    await set_policy(memory_broker, schema_validation_enforced=True)
    answer = await client.request(Command.PRODUCER, topic=TOPIC, producer_id=2)
    assert answer.body.error == pb.IncompatibleSchema


async def test_producer_where_schemas_do_not_change_by_themselves(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC, schema=record("a"))
    await set_policy(
        memory_broker, is_allow_auto_update_schema=False, schema_compatibility_strategy="ALWAYS_COMPATIBLE"
    )
    answer = await client.request(Command.PRODUCER, topic=TOPIC, producer_id=2, schema=record("b"))
    assert answer.body.error == pb.IncompatibleSchema
    await set_policy(memory_broker, is_allow_auto_update_schema=True)
    assert (await client.producer(TOPIC, 3, schema=record("b"))).schema_version == (1).to_bytes(8, "big")


async def test_the_brokers_word_on_new_schemas_holds_where_the_namespace_has_none(
    memory_broker: MemoryBroker, admin: Any
) -> None:
    """At once for topics that are there; each route tells what holds."""
    namespace, name = "/admin/v2/namespaces/public/default", "isAllowAutoUpdateSchemaEnabled"
    client, dynamic = await memory_broker.connect(), memory_broker.running.context.dynamic
    await set_policy(memory_broker, schema_compatibility_strategy="ALWAYS_COMPATIBLE")
    await client.producer(TOPIC, schema=record("a"))
    await admin.check(("GET", f"{namespace}/isAllowAutoUpdateSchema", None, 200, True))
    await dynamic.set(name, "false")
    await admin.check(("GET", f"{namespace}/isAllowAutoUpdateSchema", None, 200, False))
    _, policies = await admin("GET", namespace)
    assert policies["is_allow_auto_update_schema"] is False
    answer = await client.request(Command.PRODUCER, topic=TOPIC, producer_id=2, schema=record("b"))
    assert answer.body.error == pb.IncompatibleSchema
    await admin.check(
        ("POST", f"{namespace}/isAllowAutoUpdateSchema", True, 204, None),
        ("GET", f"{namespace}/isAllowAutoUpdateSchema", None, 200, True),
    )
    await client.producer(TOPIC, 3, schema=record("b"))
    await set_policy(memory_broker, is_allow_auto_update_schema=None)
    answer = await client.request(Command.PRODUCER, topic=TOPIC, producer_id=4, schema=record("c"))
    assert answer.body.error == pb.IncompatibleSchema
    await dynamic.remove(name)
    await client.producer(TOPIC, 5, schema=record("c"))


async def test_subscribe_registers_the_schema_of_an_idle_topic(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    await client.consumer(TOPIC, schema=record("a"))
    assert (await client.request(Command.GET_SCHEMA, topic=TOPIC)).body.schema_version == VERSION_0
    answer = await client.request(
        Command.SUBSCRIBE, topic=TOPIC, subscription="t", subType=0, consumer_id=2, schema=record("b")
    )
    assert (answer.name, answer.body.error) == ("ERROR", pb.IncompatibleSchema)
    assert list(memory_broker.service.topics[TOPIC].subscriptions) == ["s"]


@pytest.mark.parametrize("kind", [NONE, AUTO_CONSUME])
async def test_subscribe_to_whatever_there_is(memory_broker: MemoryBroker, kind: int) -> None:
    client = await memory_broker.connect()
    await client.consumer(TOPIC, schema={"name": "s", "type": kind, "schema_data": b""})
    assert (await client.request(Command.GET_SCHEMA, topic=TOPIC)).body.error_code == pb.TopicNotFound


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": TOPIC}, pb.TopicNotFound),
        ({"topic": TOPIC, "schema_version": b""}, pb.IncompatibleSchema),
        ({"topic": TOPIC, "schema_version": b"abc"}, pb.IncompatibleSchema),
        ({"topic": TOPIC, "schema_version": (7).to_bytes(8, "big")}, pb.TopicNotFound),
        ({"topic": "persistent://a/b"}, pb.InvalidTopicName),
    ],
)
async def test_get_schema_refusals(memory_broker: MemoryBroker, fields: dict[str, object], error: int) -> None:
    client = await memory_broker.connect()
    answer = await client.request(Command.GET_SCHEMA, **fields)
    assert (answer.name, answer.body.error_code) == ("GET_SCHEMA_RESPONSE", error)


async def test_get_schema_of_a_version(memory_broker: MemoryBroker) -> None:
    await set_policy(memory_broker, schema_compatibility_strategy="ALWAYS_COMPATIBLE")
    client = await memory_broker.connect()
    for number, name in enumerate("ab"):
        await client.producer(TOPIC, number, schema=record(name))
    for number, name in enumerate("ab"):
        version = number.to_bytes(8, "big")
        answer = (await client.request(Command.GET_SCHEMA, topic=TOPIC, schema_version=version)).body
        assert (answer.schema.schema_data, answer.schema_version) == (record(name)["schema_data"], version)


async def test_get_or_create_schema(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    kind = Command.GET_OR_CREATE_SCHEMA
    missing = await client.request(kind, topic=TOPIC, schema=record("a"))
    assert (missing.name, missing.body.error_code) == ("GET_OR_CREATE_SCHEMA_RESPONSE", pb.TopicNotFound)
    await client.producer(TOPIC)
    for _ in range(2):
        assert (await client.request(kind, topic=TOPIC, schema=record("a"))).body.schema_version == VERSION_0
    for schema in (record("b"), {"name": "s", "type": JSON_TYPE, "schema_data": b"nonsense"}):
        answer = await client.request(kind, topic=TOPIC, schema=schema)
        assert answer.body.error_code == pb.IncompatibleSchema
    bad = await client.request(kind, topic="persistent://a/b", schema=record("a"))
    assert bad.body.error_code == pb.InvalidTopicName


TXN = {"txnid_least_bits": 1, "txnid_most_bits": 0}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("TC_CLIENT_CONNECT_REQUEST", {"tc_id": 0}),
        ("NEW_TXN", {"txn_ttl_seconds": 1000}),
        ("ADD_PARTITION_TO_TXN", {**TXN, "partitions": [TOPIC]}),
        ("ADD_SUBSCRIPTION_TO_TXN", {**TXN, "subscription": [{"topic": TOPIC, "subscription": "s"}]}),
        ("END_TXN", {**TXN, "txn_action": 0}),
    ],
)
async def test_transactions_are_not_enabled(memory_broker: MemoryBroker, kind: str, fields: dict[str, object]) -> None:
    client = await memory_broker.connect()
    answer = await client.request(command_type(kind), **fields)
    assert (answer.name, answer.body.error) == ("ERROR", pb.NotAllowedError)
    assert answer.body.message == "Transactions are not enabled."


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("END_TXN_ON_PARTITION", {**TXN, "topic": TOPIC}),
        ("END_TXN_ON_SUBSCRIPTION", {**TXN, "subscription": {"topic": TOPIC, "subscription": "s"}}),
    ],
)
async def test_transactions_of_other_brokers(memory_broker: MemoryBroker, kind: str, fields: dict[str, object]) -> None:
    client = await memory_broker.connect()
    answer = await client.request(command_type(kind), **fields)
    assert (answer.name, answer.body.error) == (f"{kind}_RESPONSE", pb.NotAllowedError)
    assert (answer.body.txnid_least_bits, answer.body.txnid_most_bits) == (1, 0)
