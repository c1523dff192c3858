"""Whatever bytes a client sends, a session answers with frames or closes; it never fails and never gets stuck."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.broker.testing.sessions import MemoryBroker, batch_message, command_frame, message
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
PASSING = "non-persistent://public/default/topic"
AN_ID = {"ledgerId": 0, "entryId": 0}
TXN: dict[str, Any] = {"request_id": 1, "txnid_least_bits": 1, "txnid_most_bits": 0}

VALID = [
    command_frame(Command.CONNECT, client_version="x", protocol_version=21),
    command_frame(Command.PING),
    command_frame(Command.PONG),
    command_frame(Command.LOOKUP, topic=TOPIC, request_id=1),
    command_frame(Command.PARTITIONED_METADATA, topic=TOPIC, request_id=1),
    command_frame(Command.PRODUCER, topic=TOPIC, producer_id=2, request_id=1, producer_access_mode=2),
    command_frame(Command.PRODUCER, topic=PASSING, producer_id=3, request_id=1),
    command_frame(Command.SEND, message(b"payload"), producer_id=1, sequence_id=1),
    command_frame(Command.SEND, batch_message(b"a", b"b"), producer_id=1, sequence_id=1, num_messages=2),
    command_frame(Command.SEND, message(b"payload", checksum=False), producer_id=1, sequence_id=1),
    command_frame(Command.CLOSE_PRODUCER, producer_id=1, request_id=1),
    command_frame(Command.SUBSCRIBE, topic=TOPIC, subscription="t", subType=3, consumer_id=2, request_id=1),
    command_frame(Command.SUBSCRIBE, topic=TOPIC, subscription="u", subType=0, consumer_id=3, request_id=1,
                  durable=False, start_message_id=AN_ID),
    command_frame(Command.FLOW, consumer_id=1, messagePermits=100),
    command_frame(Command.ACK, consumer_id=1, ack_type=0, message_id=[AN_ID], request_id=1),
    command_frame(Command.ACK, consumer_id=1, ack_type=1, message_id=[{**AN_ID, "ack_set": [5], "batch_size": 3}]),
    command_frame(Command.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=[AN_ID]),
    command_frame(Command.SEEK, consumer_id=1, request_id=1, message_id=AN_ID),
    command_frame(Command.SEEK, consumer_id=1, request_id=1, message_publish_time=5),
    command_frame(Command.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=1),
    command_frame(Command.CONSUMER_STATS, consumer_id=1, request_id=1),
    command_frame(Command.UNSUBSCRIBE, consumer_id=1, request_id=1),
    command_frame(Command.CLOSE_CONSUMER, consumer_id=1, request_id=1),
    command_frame(Command.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=1, topics_pattern=".*"),
    command_frame(Command.WATCH_TOPIC_LIST, namespace="public/default", request_id=1, watcher_id=1,
                  topics_pattern=".*"),
    command_frame(Command.WATCH_TOPIC_LIST_CLOSE, request_id=1, watcher_id=1),
    command_frame(Command.GET_SCHEMA, topic=TOPIC, request_id=1),
    command_frame(Command.GET_OR_CREATE_SCHEMA, topic=TOPIC, request_id=1,
                  schema={"name": "s", "type": 1, "schema_data": b""}),
    command_frame(Command.NEW_TXN, request_id=1),
    command_frame(Command.END_TXN_ON_PARTITION, **TXN, topic=TOPIC),
]  # fmt: skip

whole_frames = st.lists(st.sampled_from(VALID), min_size=1, max_size=6)


@st.composite
def mutated_frames(draw: st.DrawFn) -> bytes:
    """Valid frames with some bytes changed; mostly behind the sizes, so that commands are reached."""
    data = bytearray(b"".join(draw(whole_frames)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        data[at] = draw(st.integers(0, 255))
    return bytes(data)


@st.composite
def refilled_frames(draw: st.DrawFn) -> bytes:
    """A frame of the right size around any bytes, also behind a command's own type and length."""
    command = draw(st.binary(max_size=40))
    if draw(st.booleans()):
        kind = draw(st.sampled_from([number for number in Command.Type.values() if number < 128]))
        tag = kind << 3 | 2
        encoded_tag = bytes([tag]) if tag < 128 else bytes([tag & 0x7F | 0x80, tag >> 7])
        command = bytes([8, kind]) + encoded_tag + bytes([len(command)]) + command
    payload = draw(st.binary(max_size=40))
    size = 4 + len(command) + len(payload)
    return size.to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + payload


async def survives(data: bytes, pieces: int, records: list[logging.LogRecord]) -> None:
    """Send bytes to a session with a producer and a consumer, then see whether the broker still works."""
    async with MemoryBroker() as broker:
        client, witness = await broker.connect(), await broker.connect()
        await client.producer(TOPIC)
        await client.consumer(TOPIC, subType=1)
        step = max(1, len(data) // pieces)
        for start in range(0, len(data), step):
            client.send_bytes(data[start : start + step])
            await asyncio.sleep(0)
        await witness.round_trip()
        await witness.producer(TOPIC + "-other")
        assert len(await witness.publish()) == 1
        await client.abort()
        async with asyncio.timeout(30):
            # What a connection held that has ended is let go of in turns.
            requests = broker.service.limits.requests
            while len(broker.running._ports.connections) > 1 or broker.service._tasks or requests.crowded:
                await asyncio.sleep(0)
        for topic in broker.service.topics.values():
            if topic.name.local_name == "topic":
                assert not topic.producers.by_name
                assert not any(subscription.consumers for subscription in topic.subscriptions.values())
    failures = [record.getMessage() for record in records if record.exc_info or record.levelno >= logging.ERROR]
    assert failures == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [st.binary(min_size=1, max_size=200), mutated_frames(), refilled_frames(), whole_frames.map(b"".join)],
    ids=["anything", "mutated", "refilled", "valid"],
)  # fmt: skip
def test_any_bytes(make: st.SearchStrategy[bytes], caplog: pytest.LogCaptureFixture) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(data=make, pieces=st.integers(1, 5))
    def run(data: bytes, pieces: int) -> None:
        caplog.clear()
        asyncio.run(survives(data, pieces, caplog.records))

    run()
