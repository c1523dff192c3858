"""What one client may make a broker hold: bounded, whatever it sends and whether it reads; and gone when it is gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from types import FunctionType
from typing import Any

import pytest
from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.session.command_limits import FRAME_OVERHEAD_BYTES, TURN_COMMANDS_CROWDED, TURN_COMMANDS_MAX
from magnetar.broker.session.consume import ConsumerCommands
from magnetar.broker.session.produce import ProducerCommands
from magnetar.broker.session.server_session import ServerSession
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, command_frame, message
from magnetar.broker.topics.producer import Producer
from magnetar.core.limits import KIB, MIB, PROXIED_CONNECT_FRAME_BYTES_MAX
from magnetar.net.connection import Connection
from magnetar.net.requests import REQUESTS_BYTES_MAX, REQUESTS_MAX
from magnetar.net.testing import LIVING_PAUSE_SECONDS, SilentClient, living, until
from magnetar.wire.framing import FrameSplitter
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.frame import command_splitter
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
NAMESPACE = "persistent://public/default/"
TOPIC = NAMESPACE + "topic"
CONNECT_FRAME = command_frame(Command.CONNECT, client_version="test", protocol_version=21)

UNSENT_BYTES_MAX = 2 * MIB
"""What is unsent of answers to one that does not read: less than half of this when it is made, and what one read of
small requests may bring on top."""


def connections(broker: MemoryBroker) -> list[Connection]:
    return broker.running._ports.connections


def sessions(broker: MemoryBroker) -> list[Any]:
    return [connection._handler for connection in connections(broker) if connection._handler is not None]


@pytest.fixture
async def silent(memory_broker: MemoryBroker) -> AsyncIterator[SilentClient]:
    client = await SilentClient.open(memory_broker.port)
    await client.send(CONNECT_FRAME)
    await until(lambda: sessions(memory_broker))
    keep_little(connections(memory_broker)[0])
    yield client
    client.close()


def keep_little(connection: Connection) -> None:
    """Have the kernel keep little of what is unsent."""
    assert connection._transport is not None
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


async def many_topics(broker: MemoryBroker, count: int) -> None:
    async def names(*_: object) -> list[str]:
        return [f"{NAMESPACE}{'long' * 40}-{index}" for index in range(count)]

    broker.running.context.topic_lists._listings._list_topics = names


FLOODS = {
    "topic lists": command_frame(Command.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=1, mode=0),
    "pings": command_frame(Command.PING),
    "lookups": command_frame(Command.LOOKUP, topic=TOPIC, request_id=1),
    "no such topic": command_frame(Command.GET_SCHEMA, topic="persistent://public/default/no", request_id=1),
    "errors": command_frame(Command.SEEK, consumer_id=7, request_id=1),
    "send errors": command_frame(Command.ACK, consumer_id=7, request_id=1, ack_type=0),
}

SMALLEST_ANSWERS_BYTES = {"pings": 13, "lookups": 100, "no such topic": 100, "errors": 50, "send errors": 50}


@pytest.mark.parametrize("name", FLOODS)
async def test_answers_that_nobody_reads_are_bounded(
    memory_broker: MemoryBroker, silent: SilentClient, name: str
) -> None:
    """And the client is read again once it reads: each of its requests is answered."""
    await many_topics(memory_broker, 500)
    frame = FLOODS[name]
    large = name == "topic lists"
    count = 300 if large else 3 * MIB // SMALLEST_ANSWERS_BYTES[name]
    sending = asyncio.create_task(silent.send(frame * count))
    (connection,) = connections(memory_broker)
    (session,) = sessions(memory_broker)
    await until(lambda: session._waiting if large else connection.reading_paused)
    await until(lambda: not connection.writable)
    for _ in range(200):
        assert connection.unsent_bytes <= UNSENT_BYTES_MAX
        await asyncio.sleep(0.001)
    assert len(session._tasks) <= REQUESTS_MAX
    assert session._waiting_bytes <= 1 * MIB
    assert connection.reading_paused or large
    # Somebody else is served meanwhile.
    other = await memory_broker.connect()
    await other.producer(TOPIC)
    await other.publish(3)
    reading = asyncio.create_task(silent.read(1 << 40))
    await sending
    await until(lambda: not connection.reading_paused and not session._tasks and not session._waiting)
    await until(lambda: not connection.unsent_bytes)
    reading.cancel()


async def test_requests_that_wait_share_what_is_read_after_they_came(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    hold = asyncio.Event()
    readings = 0

    async def topics(*_: object) -> list[str]:
        nonlocal readings
        readings += 1
        await hold.wait()
        return [TOPIC]

    memory_broker.running.context.topic_lists._listings._list_topics = topics
    asked = [client.start(Command.GET_TOPICS_OF_NAMESPACE, namespace="public/default", mode=0) for _ in range(50)]
    await client.round_trip()
    hold.set()
    for request_id in asked:
        assert list((await client.answer(request_id)).body.topics) == [TOPIC]
    # The first one's was begun when the others may not have come yet.
    assert readings <= 2


async def test_messages_pass_by_requests_that_wait(memory_broker: MemoryBroker) -> None:
    """As they do while the metadata store cannot be reached."""
    client = await memory_broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    hold = asyncio.Event()

    async def topics(*_: object) -> list[str]:
        await hold.wait()
        return [TOPIC]

    memory_broker.running.context.topic_lists._listings._list_topics = topics
    asked = [client.start(Command.GET_TOPICS_OF_NAMESPACE, namespace="public/default", mode=0) for _ in range(500)]
    await client.publish(1)
    assert len(await client.messages(1)) == 1
    (session,) = sessions(memory_broker)
    assert session.requests._count == REQUESTS_MAX
    assert len(session._tasks) == 1, "large answers are made one at a time"
    hold.set()
    for request_id in asked:
        assert (await client.answer(request_id)).name == "GET_TOPICS_OF_NAMESPACE_RESPONSE"


@pytest.mark.parametrize("crowded", [False, True])
async def test_requests_that_waited_are_served_by_few_while_others_wait_for_their_turn(
    memory_broker: MemoryBroker, silent: SilentClient, crowded: bool
) -> None:
    (session,) = sessions(memory_broker)
    command = command_frame(Command.LOOKUP, topic=TOPIC, request_id=1)[4:]
    session._waiting.extend(command for _ in range(2 * TURN_COMMANDS_MAX))
    session._waiting_bytes = 2 * TURN_COMMANDS_MAX * (len(command) + FRAME_OVERHEAD_BYTES)
    if crowded:
        session._in_all.in_turn(lambda: None)
    session._serve_waiting()
    served = 2 * TURN_COMMANDS_MAX - len(session._waiting)
    assert served == (TURN_COMMANDS_CROWDED if crowded else TURN_COMMANDS_MAX)


async def test_clients_that_ask_for_one_list_cost_no_protobuf_message_and_no_copy_each(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protobuf gives memory back to the system at each ten thousandth message that it forgets: tens of milliseconds."""
    await many_topics(memory_broker, 500)
    clients = [await memory_broker.connect() for _ in range(3)]
    written: list[bytes] = []

    def write(session: ServerSession, data: bytes) -> None:
        written.append(data)
        session.connection.write(data)

    def read_command(*_: object) -> None:
        raise AssertionError("read by protobuf")

    monkeypatch.setattr(ServerSession, "write", write)
    monkeypatch.setattr(messages, "read_command", read_command)
    for client in clients:
        asked = client.start(Command.GET_TOPICS_OF_NAMESPACE, namespace="public/default", mode=0, topics_hash="old")
        answer = await client.answer(asked)
        assert len(answer.body.topics) == 500
    large = [part for part in written if len(part) > 500 * 160]
    assert len(large) == 3
    assert len({id(part) for part in large}) == 1


async def test_a_mistake_of_ours_ends_one_connection_and_holds_up_no_other(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a later turn, where nobody but the session would see it."""
    original = ServerSession.ping
    pings = 0

    def ping(session: ServerSession) -> None:
        nonlocal pings
        pings += 1
        if pings == 2 * TURN_COMMANDS_MAX:
            raise ValueError("a mistake of ours")
        original(session)

    monkeypatch.setattr(ServerSession, "ping", ping)
    client = await SilentClient.open(memory_broker.port)
    await client.send(CONNECT_FRAME + command_frame(Command.PING) * 10 * TURN_COMMANDS_MAX)
    await until(lambda: pings >= 2 * TURN_COMMANDS_MAX)
    await until(lambda: not connections(memory_broker))
    client.close()
    assert pings == 2 * TURN_COMMANDS_MAX
    other = await SilentClient.open(memory_broker.port)
    count = 3 * TURN_COMMANDS_MAX
    await other.send(CONNECT_FRAME + command_frame(Command.PING) * count)
    splitter = command_splitter()
    frames = 0
    async with asyncio.timeout(30):
        while frames < 1 + count:
            frames += len(splitter.feed(await other.read(1))[1]) // 2
    other.close()


async def test_producers_that_wait_for_their_turn_stop_nothing(memory_broker: MemoryBroker) -> None:
    """Each has to be let in by a request that comes later on the same connection."""
    client = await memory_broker.connect()
    mode = pb.ProducerAccessMode.WaitForExclusive
    await client.producer(TOPIC, producer_access_mode=mode)
    waiting = [
        client.start(Command.PRODUCER, topic=TOPIC, producer_id=2 + index, producer_access_mode=mode)
        for index in range(REQUESTS_MAX + 5)
    ]
    for request_id in waiting:
        assert not (await client.answer(request_id)).body.producer_ready
    assert (await client.request(Command.CLOSE_PRODUCER, producer_id=1)).name == "SUCCESS"
    assert (await client.answer(waiting[0])).body.producer_ready


async def test_producers_that_wait_with_large_schemas_stop_nothing(memory_broker: MemoryBroker) -> None:
    """What they brought is more than a connection's requests may have under way; it counts with what is kept of it."""
    client = await memory_broker.connect()
    schema = {"name": "s", "type": pb.Schema.String, "schema_data": b"", "properties": []}
    schema["properties"] = [pb.KeyValue(key="k", value="v" * 60 * KIB)]
    await client.producer(TOPIC, producer_id=1, producer_access_mode=pb.Exclusive, schema=schema)
    count = REQUESTS_BYTES_MAX // (60 * KIB) + 3
    for number in range(count):
        opened = client.start(
            Command.PRODUCER,
            topic=TOPIC,
            producer_id=2 + number,
            producer_access_mode=pb.WaitForExclusive,
            schema=schema,
        )
        assert not (await client.answer(opened)).body.producer_ready
    kept = memory_broker.service.limits.client_memory
    assert kept.held_bytes > count * 60 * KIB
    assert (await client.request(Command.CLOSE_PRODUCER, producer_id=1)).name == "SUCCESS"
    assert (await client.expect(Command.PRODUCER_SUCCESS)).body.producer_ready
    await client.close()
    await until(lambda: not kept.held_bytes and not memory_broker.service.limits.requests.count)


async def test_a_client_that_takes_nothing_is_cut() -> None:
    """Though it says all the time that it is there."""
    async with MemoryBroker(BrokerSettings(keep_alive_seconds=0.2)) as broker:
        await many_topics(broker, 500)
        client = await SilentClient.open(broker.port)
        await client.send(CONNECT_FRAME)
        await client.send(FLOODS["topic lists"] * 1_000)
        await until(lambda: connections(broker) and not connections(broker)[0].writable)

        async def cut() -> bool:
            return not await client.send(command_frame(Command.PONG)) or not connections(broker)

        async with asyncio.timeout(30):
            while not await cut():
                await asyncio.sleep(0.02)
        client.close()


@pytest.mark.parametrize("size_bytes", [PROXIED_CONNECT_FRAME_BYTES_MAX + 1, 5 * MIB])
async def test_frames_are_small_before_a_client_is_let_in(memory_broker: MemoryBroker, size_bytes: int) -> None:
    client = await memory_broker.open()
    client.send_bytes(size_bytes.to_bytes(4, "big"))
    assert await client.end() == []


async def test_a_large_token_fits_into_connect(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.open()
    client.send(Command.CONNECT, client_version="test", protocol_version=21, auth_data=b"t" * 120 * KIB)
    await client.expect(Command.CONNECTED)
    await client.producer(TOPIC)
    client.send(Command.SEND, message(b"x" * 4 * MIB), producer_id=1, sequence_id=0)
    await client.expect(Command.SEND_RECEIPT)


async def test_half_frames_count_as_held(memory_broker: MemoryBroker) -> None:
    client = await memory_broker.connect()
    held = memory_broker.running._ports.held
    client.send_bytes((4 * MIB).to_bytes(4, "big") + bytes(3 * MIB))
    await until(lambda: held.held_bytes > 2.9 * MIB)
    await client.abort()
    await until(lambda: not held.held_bytes and not held.holders)


OF_A_CONNECTION = (ServerSession, Connection, FrameSplitter, Producer, Consumer, ProducerCommands, ConsumerCommands)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("how", ["close", "abort", "half a frame", "before CONNECT"])
async def test_what_a_connection_had_is_freed_with_it(memory_broker: MemoryBroker, how: str) -> None:
    """At once, not when the collector of cycles comes by."""
    before = living(*OF_A_CONNECTION)
    client = await ProtocolClient.open(memory_broker.port)
    if how != "before CONNECT":
        client.send_bytes(CONNECT_FRAME)
        await client.expect(Command.CONNECTED)
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await client.publish(3)
        await client.messages(3)
        await client.request(Command.WATCH_TOPIC_LIST, watcher_id=1, namespace="public/default", topics_pattern=".*")
        client.send(Command.LOOKUP, topic=TOPIC, request_id=100)
        await client.round_trip()
    if how in ("half a frame", "before CONNECT"):
        client.send_bytes((64 * KIB).to_bytes(4, "big") + bytes(60 * KIB))
    await until(lambda: sessions(memory_broker))
    there = living(*OF_A_CONNECTION) - before
    assert set(there) >= {"ServerSession", "Connection", "FrameSplitter", "ProducerCommands", "ConsumerCommands"}
    assert how == "before CONNECT" or set(there) >= {"Producer", "Consumer"}
    await (client.abort() if how == "abort" else client.close())
    # Its last tasks may be in the middle of ending.
    await until(
        lambda: not connections(memory_broker) and not living(*OF_A_CONNECTION) - before,
        pause_seconds=LIVING_PAUSE_SECONDS,
    )


async def test_connections_share_the_tables_of_commands(memory_broker: MemoryBroker) -> None:
    """What the collector has to walk through grows with connections: two dozen functions each were most of it."""
    count = 20
    first = await memory_broker.connect()
    await first.round_trip()
    before = living(FunctionType)["function"]
    clients = [await memory_broker.connect() for _ in range(count)]
    for client in clients:
        await client.round_trip()
    assert living(FunctionType)["function"] - before < 8 * count
