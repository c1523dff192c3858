"""CONNECT, PING and what no client may do: each ends in an answer or in a closed connection, and leaves nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.sessions import (
    ConnectionEnded,
    MemoryBroker,
    ProtocolClient,
    command_frame,
    command_type,
    message,
)
from magnetar.core.limits import FRAME_PADDING_BYTES, MESSAGE_SIZE_BYTES_MAX
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"

CONNECT_FRAME = command_frame(Command.CONNECT, client_version="test", protocol_version=21)
CLIENT_ONLY_FRAMES = {
    "lookup": command_frame(Command.LOOKUP, topic=TOPIC, request_id=1),
    "send": command_frame(Command.SEND, message(), producer_id=1, sequence_id=0),
    "ack": command_frame(Command.ACK, consumer_id=1, ack_type=0),
    "flow": command_frame(Command.FLOW, consumer_id=1, messagePermits=1),
    "ping": command_frame(Command.PING),
}


def nothing_left(broker: MemoryBroker) -> bool:
    """Whether no producer, consumer or watcher is left."""
    return (
        all(
            not topic.producers.by_name
            and not topic.producers.waiting
            and not any(subscription.consumers for subscription in topic.subscriptions.values())
            for topic in broker.service.topics.values()
        )
        and not broker.running.context.topic_lists._watched
    )


async def until_nothing_left(broker: MemoryBroker, connections: int = 0) -> None:
    """Wait until the broker has noticed that clients are gone."""
    async with asyncio.timeout(30):
        while len(broker.running._ports.connections) > connections or broker.service._tasks:
            await asyncio.sleep(0.001)
    assert nothing_left(broker)


async def test_connected_tells_version_and_limits(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.open()
    client.send(Command.CONNECT, client_version="test", protocol_version=21)
    connected = (await client.expect(Command.CONNECTED)).body
    assert connected.server_version.startswith("Pulsar Server")
    assert connected.protocol_version == 21
    assert connected.max_message_size == MESSAGE_SIZE_BYTES_MAX
    assert connected.feature_flags.supports_topic_watchers
    assert connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation


@pytest.mark.parametrize(("theirs", "agreed"), [(0, 0), (13, 13), (21, 21), (99, 21)])
async def test_connected_agrees_on_the_lower_version(memory_broker: MemoryBroker, theirs: int, agreed: int) -> None:
    client = await memory_broker.open()
    client.send(Command.CONNECT, client_version="test", protocol_version=theirs)
    assert (await client.expect(Command.CONNECTED)).body.protocol_version == agreed


async def test_ping_is_answered_at_once(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    assert await client.round_trip() == []


async def test_keep_alive_pings_and_drops_the_silent() -> None:
    async with MemoryBroker(BrokerSettings(keep_alive_seconds=0.1)) as broker:
        speechless = await broker.open()
        silent, old, living = await broker.connect(), await broker.connect(0), await broker.connect()
        silent.stop_reading()
        assert await speechless.end() == []
        async with asyncio.timeout(30):
            while len(broker.running._ports.connections) > 2:
                await asyncio.sleep(0.005)
        # The silent one is the one that is gone, and peers of version 0 are not pinged.
        assert await living.round_trip() == await old.round_trip() == []


async def test_a_pong_is_taken(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    client.send(Command.PONG)
    assert await client.round_trip() == []


@pytest.mark.parametrize("name", CLIENT_ONLY_FRAMES)
async def test_a_command_before_connect_closes(memory_broker: MemoryBroker, name: str) -> None:
    client = await memory_broker.open()
    client.send_bytes(CLIENT_ONLY_FRAMES[name])
    assert await client.end() == []


CLIENTS_SEND = (  # In words, as a list of them is hard to read.
    "CONNECT AUTH_RESPONSE PING PONG LOOKUP PARTITIONED_METADATA PRODUCER SEND CLOSE_PRODUCER SUBSCRIBE FLOW ACK "
    "REDELIVER_UNACKNOWLEDGED_MESSAGES UNSUBSCRIBE SEEK GET_LAST_MESSAGE_ID CLOSE_CONSUMER CONSUMER_STATS "
    "GET_TOPICS_OF_NAMESPACE WATCH_TOPIC_LIST WATCH_TOPIC_LIST_CLOSE GET_SCHEMA GET_OR_CREATE_SCHEMA "
    "TC_CLIENT_CONNECT_REQUEST NEW_TXN ADD_PARTITION_TO_TXN ADD_SUBSCRIPTION_TO_TXN END_TXN END_TXN_ON_PARTITION "
    "END_TXN_ON_SUBSCRIPTION"
)
# Nobody is asked for an AUTH_RESPONSE as long as there is no authentication.
UNEXPECTED = [name for name in Command.Type.keys() if name not in CLIENTS_SEND.split() or name == "AUTH_RESPONSE"]  # noqa: SIM118
REQUIRED = {
    "server_version": "x", "request_id": 1, "producer_id": 1, "consumer_id": 1, "sequence_id": 1, "watcher_id": 1,
    "resource_id": 1, "resource_type": 0, "producer_name": "x", "message": "x", "error": 0, "topics_hash": "x",
    "message_id": {"ledgerId": 1, "entryId": 1}, "last_message_id": {"ledgerId": 1, "entryId": 1},
}  # fmt: skip


def filled(name: str) -> dict[str, Any]:
    """Values for the required fields of a command."""
    number = Command.Type.Value(name)
    message_type = Command.DESCRIPTOR.fields_by_number[number].message_type
    assert message_type is not None
    return {
        field.name: REQUIRED[field.name]
        for field in message_type.fields
        if field.name in REQUIRED and field.is_required
    }


@pytest.mark.parametrize("name", UNEXPECTED)
async def test_what_only_brokers_send_closes(memory_broker: MemoryBroker, name: str) -> None:
    client = await memory_broker.connect()
    client.send(command_type(name), **filled(name))
    assert await client.end() == []


async def test_a_second_connect_closes(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    client.send_bytes(CONNECT_FRAME)
    assert await client.end() == []


LOOKUP = CLIENT_ONLY_FRAMES["lookup"]
BAD_BYTES = {
    "garbage": bytes(range(255, -1, -1)),
    "zeros": bytes(64),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "oversize frame": (MESSAGE_SIZE_BYTES_MAX + FRAME_PADDING_BYTES + 1).to_bytes(4, "big") + b"x" * 100,
    "frame of 0 bytes": (0).to_bytes(4, "big"),
    "frame of 3 bytes": (3).to_bytes(4, "big") + b"abc",
    "unknown type": b"\0\0\0\x07\0\0\0\x03\x08\xe7\x07",
    "type of a newer protocol": b"\0\0\0\x07\0\0\0\x03\x08\x46\x00",
    "no type": b"\0\0\0\x04\0\0\0\0",
    "type without body": b"\0\0\0\x06\0\0\0\x02\x08\x17",
    "truncated protobuf": LOOKUP[:8] + LOOKUP[8:-4] + b"\xff\xff\xff\xff",
    "command larger than its frame": LOOKUP[:4] + (len(LOOKUP)).to_bytes(4, "big") + LOOKUP[8:],
    "command of 4 GiB": LOOKUP[:4] + b"\xff\xff\xff\xff" + LOOKUP[8:],
    "required field missing": command_frame(Command.LOOKUP, topic=TOPIC),
    "unknown enum value": command_frame(Command.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, request_id=1),
    "text that is not UTF-8": LOOKUP.replace(b"default", b"d\xfffault"),
    "send without ids": command_frame(Command.SEND, message()),
    "ack without type": command_frame(Command.ACK, consumer_id=1),
    "flow without permits": command_frame(Command.FLOW, consumer_id=1),
}


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("name", BAD_BYTES)
async def test_bad_bytes_close_with_one_line(
    memory_broker: MemoryBroker, caplog: pytest.LogCaptureFixture, name: str, connected: bool
) -> None:
    client = await (memory_broker.connect() if connected else memory_broker.open())
    with caplog.at_level(logging.INFO):
        client.send_bytes(BAD_BYTES[name])
        assert await client.end() == []
    assert len(caplog.records) == 1, [record.getMessage() for record in caplog.records]
    assert caplog.records[0].exc_info is None
    assert "closing connection of /127.0.0.1:" in caplog.records[0].getMessage()


async def test_frames_may_come_in_any_pieces(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.open()
    frames = CONNECT_FRAME + LOOKUP + command_frame(Command.PING)
    for index in range(len(frames)):
        client.send_bytes(frames[index : index + 1])
        await asyncio.sleep(0)
    await client.expect(Command.CONNECTED)
    await client.expect(Command.PONG)
    assert (await client.answer(1)).body.response == pb.CommandLookupTopicResponse.Connect


@pytest.mark.parametrize("cut", [1, 4, 7, 20])
async def test_a_cut_in_the_middle_of_a_frame_leaves_nothing(memory_broker: MemoryBroker, cut: int) -> None:
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    assert not nothing_left(memory_broker)
    client.send_bytes(command_frame(Command.SEND, message(), producer_id=1, sequence_id=0)[:cut])
    await client.abort()
    await until_nothing_left(memory_broker)


@pytest.mark.parametrize("turns", range(0, 40, 3))
@pytest.mark.parametrize("kind", ["producer", "exclusive producer", "consumer", "watcher"])
async def test_a_cut_while_something_is_opened_leaves_nothing(
    memory_broker: MemoryBroker, kind: str, turns: int
) -> None:
    client = await memory_broker.connect()
    if kind == "consumer":
        client.start(Command.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, subType=0)
    elif kind == "watcher":
        client.start(Command.WATCH_TOPIC_LIST, watcher_id=1, namespace="public/default", topics_pattern=".*")
    else:
        mode = pb.Exclusive if kind.startswith("exclusive") else pb.Shared
        client.start(Command.PRODUCER, topic=TOPIC, producer_id=1, producer_access_mode=mode)
    for _ in range(turns):
        await asyncio.sleep(0)
    await client.abort()
    await until_nothing_left(memory_broker)
    again = await memory_broker.connect()
    await again.producer(TOPIC, producer_access_mode=pb.Exclusive)
    await again.consumer(TOPIC)


@pytest.mark.parametrize("turns", range(0, 30, 3))
async def test_a_producer_closed_while_it_is_opened_is_closed(memory_broker: MemoryBroker, turns: int) -> None:
    client = await memory_broker.connect()
    opened = client.start(Command.PRODUCER, topic=TOPIC, producer_id=1)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert (await client.request(Command.CLOSE_PRODUCER, producer_id=1)).name == "SUCCESS"
    received = await client.round_trip()
    assert [one.name for one in received] in ([], ["PRODUCER_SUCCESS"]), opened
    assert nothing_left(memory_broker)


@pytest.mark.parametrize("turns", range(0, 30, 3))
async def test_a_consumer_closed_while_it_is_opened_is_closed(memory_broker: MemoryBroker, turns: int) -> None:
    client = await memory_broker.connect()
    client.start(Command.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, subType=0)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert (await client.request(Command.CLOSE_CONSUMER, consumer_id=1)).name == "SUCCESS"
    assert [one.name for one in await client.round_trip()] in ([], ["SUCCESS"])
    assert nothing_left(memory_broker)


async def test_opened_and_closed_in_one_read(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    client.send_bytes(
        command_frame(Command.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)
        + command_frame(Command.CLOSE_PRODUCER, producer_id=1, request_id=2)
        + command_frame(Command.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, subType=0, request_id=3)
        + command_frame(Command.CLOSE_CONSUMER, consumer_id=1, request_id=4)
    )
    assert (await client.answer(2)).name == "SUCCESS"
    assert (await client.answer(4)).name == "SUCCESS"
    await asyncio.sleep(0.02)
    assert await client.round_trip() == []
    assert nothing_left(memory_broker)


async def test_a_bad_frame_ends_what_the_connection_held(memory_broker: MemoryBroker) -> None:
    client, other = await memory_broker.connect(), await memory_broker.connect()
    await client.producer(TOPIC)
    client.send_bytes(BAD_BYTES["garbage"])
    await client.end()
    await until_nothing_left(memory_broker, connections=1)
    assert await other.round_trip() == [], "others are not touched"


async def test_nobody_listens_after_the_end(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    port = memory_broker.port
    await memory_broker.running.close()
    assert await client.end() == []
    with pytest.raises((ConnectionError, ConnectionEnded)):
        await ProtocolClient.connected(port)
    await memory_broker.start()
