"""What a client may make a broker keep, or send to the metadata store, by long names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from magnetar.broker.command_limits import NOTES_CHARACTERS_MAX
from magnetar.broker.peer_client import PeerRefused
from magnetar.broker.session_testing import MemoryBroker, ProtocolClient
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.messages import TEXT_CHARACTERS_MAX

LONG = "x" * (NOTES_CHARACTERS_MAX + 1)
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
        with pytest.raises(PeerRefused) as refused:
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
