"""Snapshots in segments, and those of one message after the setting was changed."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.broker.transactions.buffers.buffer import TransactionBuffer
from magnetar.broker.transactions.buffers.segment_codec import (
    SegmentPlace,
    SnapshotSegment,
    bits_block,
    encode_index,
    encode_segment,
    segment_capacity,
    segment_key,
)
from magnetar.broker.transactions.buffers.snapshot_codec import INDEXES, SEGMENT, SINGLE, Snapshot, is_like, schema_text
from magnetar.core.clock import SystemClock
from magnetar.core.ids import signed64
from magnetar.core.topic_name import TopicName

from broker.tests.test_broker_transaction_buffer import TOPIC, Command, all_sent, ended, loaded, send, texts

INDEX_TOPIC = "persistent://public/default/__transaction_buffer_snapshot_indexes"
SEGMENT_TOPIC = "persistent://public/default/__transaction_buffer_snapshot_segments"

INDEX_OF_APACHE = "02022e2c32302a000202040402080600403e023a70657273697374656e743a2f2f7075626c69632f64656661756c742f74"
"""As Apache Pulsar 4.0.8 encodes it: segment 21 up to the marker 22:23, at 24:25; (1,2) and (3,4); up to 31:32."""

unsigned = st.integers(0, 2**64 - 1)
position = st.tuples(st.integers(-1, 2**62), st.integers(-1, 2**31))
bits_lists = st.lists(st.tuples(unsigned, unsigned), min_size=1, max_size=10)
places_lists = st.lists(st.builds(SegmentPlace, st.integers(0, 2**40), position, position), max_size=5)


def as_avro(kind: str, payload: bytes) -> Any:
    return schemaless_reader(io.BytesIO(payload), parse_schema(json.loads(schema_text(kind))), None)


def transaction_ids(bits: list[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"mostSigBits": signed64(most), "leastSigBits": signed64(least)} for most, least in bits]


def test_an_index_is_apaches() -> None:
    index = encode_index(
        Snapshot("persistent://public/default/t", (31, 32)),
        [SegmentPlace(21, (22, 23), (24, 25))],
        [bits_block([(1, 2), (3, 4)])],
    )
    assert index.hex() == INDEX_OF_APACHE


def test_keys_and_sizes_are_apaches() -> None:
    assert segment_key("persistent://a/b/c", 7) == "multiple-7-persistent://a/b/c"
    assert segment_capacity(262_144, "persistent://a/b/c") == (262_144 - 8 - 18) // 3
    assert segment_capacity(1, "persistent://a/b/c") == 1


@given(position, places_lists, bits_lists)
def test_an_index_as_avro_reads_it(
    reached: tuple[int, int], places: list[SegmentPlace], bits: list[tuple[int, int]]
) -> None:
    record = as_avro(INDEXES, encode_index(Snapshot(TOPIC, reached), places, [bits_block(bits)]))
    assert record == {
        "topicName": TOPIC,
        "indexList": [
            {
                "sequenceID": place.sequence_id,
                "abortedMarkLedgerID": place.last_marker[0],
                "abortedMarkEntryID": place.last_marker[1],
                "segmentLedgerID": place.message[0],
                "segmentEntryID": place.message[1],
            }
            for place in places
        ],
        "snapshot": {
            "maxReadPositionLedgerId": reached[0],
            "maxReadPositionEntryId": reached[1],
            "aborts": transaction_ids(bits),
        },
    }


@given(position, bits_lists)
def test_a_segment_as_avro_reads_it(marker: tuple[int, int], bits: list[tuple[int, int]]) -> None:
    payload = encode_segment(SnapshotSegment(TOPIC, 5, marker), [bits_block(bits)])
    record = as_avro(SEGMENT, payload)
    assert record == {
        "topicName": TOPIC,
        "sequenceId": 5,
        "persistentPositionLedgerId": marker[0],
        "persistentPositionEntryId": marker[1],
        "aborts": transaction_ids(bits),
    }
    written = io.BytesIO()
    schemaless_writer(written, parse_schema(json.loads(schema_text(SEGMENT))), record)
    assert written.getvalue() == payload


def test_schemas_that_differ_in_java_only() -> None:
    schema = json.loads(schema_text(SINGLE))
    schema["fields"][0]["type"][1]["java-class"] = "java.util.Set"
    assert is_like(SINGLE, json.dumps(schema).encode())
    schema["fields"].reverse()
    assert not is_like(SINGLE, json.dumps(schema).encode())
    assert not is_like(SINGLE, b"no JSON")


def settings(*, segmented: bool = True, changes_max: int = 1) -> BrokerSettings:
    """Segments of two transactions."""
    size = 8 + len(TOPIC) + 6
    return BrokerSettings(
        transactions=TransactionSettings(
            enabled=True, segmented_snapshots=segmented, segment_bytes=size, snapshot_changes_max=changes_max
        )
    )


async def aborted_ones(client: ProtocolClient, *numbers: int) -> None:
    for number in numbers:
        await send(client, number, transaction=number)
        await ended(client, number, commit=False)


async def until_written(broker: MemoryBroker, client: ProtocolClient) -> None:
    """Until the last snapshot that was due is written."""
    buffer = loaded(broker).buffer
    assert buffer is not None
    while buffer._changes or buffer._writing:
        if not buffer._writing:
            buffer._take_snapshot()
        await client.round_trip()


async def keys(broker: MemoryBroker, topic: str) -> list[str]:
    """The keys of a system topic's messages in order; empty ones in brackets."""
    ledger = broker.service.topics[topic].ledger
    found: list[str] = []
    for index in range(ledger.ledgers.number_of_entries()):
        metadata = (await ledger.read_entry(ledger.ledgers.entry_at(index))).metadata()
        key = (metadata.partition_key or "").removesuffix(f"-{TOPIC}")
        found.append(f"[{key}]" if metadata.null_value else key)
    return found


async def test_the_next_owner_reads_segments_and_index() -> None:
    broker = MemoryBroker(settings())
    await broker.start()
    client = await broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    await aborted_ones(client, 1, 2, 3, 4, 5)
    await until_written(broker, client)
    assert await keys(broker, SEGMENT_TOPIC) == ["multiple-0", "multiple-1"]
    assert set(await keys(broker, INDEX_TOPIC)) == {TOPIC}
    await send(client, 6)
    await until_written(broker, client)
    await broker.stop()
    await broker.start()
    client = await broker.connect()
    await client.consumer(TOPIC)
    client.send(Command.FLOW, consumer_id=1, messagePermits=100)
    assert texts([await client.expect(Command.MESSAGE)]) == [b"m6"]
    assert await all_sent(client) == []
    buffer = loaded(broker).buffer
    assert buffer is not None
    assert [bits[1] for bits in buffer.table.aborted] == [1, 2, 3, 4, 5]
    # What is aborted now joins the one that no segment has yet.
    await client.producer(TOPIC)
    await aborted_ones(client, 7)
    await until_written(broker, client)
    assert await keys(broker, SEGMENT_TOPIC) == ["multiple-0", "multiple-1", "multiple-2"]
    await broker.stop()


async def test_statistics_of_segments() -> None:
    """Of those that this broker wrote, and of those that it found; members and texts as Apache's."""
    broker, before_ms = MemoryBroker(settings()), SystemClock().now_ms()
    await broker.start()
    client = await broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    await aborted_ones(client, 1, 2, 3, 4, 5)
    await until_written(broker, client)
    markers = list(transaction_buffer(broker).table.aborted.values())
    each = [
        {"lastTxnID": f"(0,{number})", "persistentPosition": f"{markers[number - 1][0]}:{markers[number - 1][1]}"}
        for number in (2, 4)
    ]
    found = await segments_stats(broker, "?segmentStats=true")
    assert found.pop("lastTookSnapshotSegmentTimestamp") >= before_ms
    counts = {"segmentsSize": 2, "currentSegmentCapacity": 2, "unsealedAbortTxnIDSize": 1}
    assert found == {**counts, "segmentStats": each}
    assert "segmentStats" not in await segments_stats(broker, "")
    await broker.stop()
    await broker.start()
    client = await broker.connect()
    await client.producer(TOPIC)
    unknown = {"lastTookSnapshotSegmentTimestamp": 0}
    assert await segments_stats(broker, "?segmentStats=true") == {**counts, **unknown, "segmentStats": each}
    # Their messages are gone, and the next snapshot is not written yet.
    await loaded(broker).ledger.truncate()
    buffer = transaction_buffer(broker)
    buffer.table.forget_before(buffer._ledger.ledgers.ids[0], 100)
    found = await segments_stats(broker, "?segmentStats=true")
    assert found == {**counts, **unknown, "unsealedAbortTxnIDSize": 0, "segmentStats": []}
    await broker.stop()


async def test_a_snapshot_of_one_message_has_no_statistics_of_segments() -> None:
    async with MemoryBroker(settings(segmented=False)) as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        await aborted_ones(client, 1)
        assert await segments_stats(broker, "?segmentStats=true") is None


async def segments_stats(broker: MemoryBroker, query: str) -> Any:
    url = f"{broker.admin_url}/admin/v3/transactions/transactionBufferStats/public/default/topic{query}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        return (await answer.json()).get("segmentsStats")


def transaction_buffer(broker: MemoryBroker) -> TransactionBuffer:
    buffer = loaded(broker).buffer
    assert buffer is not None
    return buffer


async def test_segments_go_with_the_ledgers_of_their_markers() -> None:
    async with MemoryBroker(settings()) as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        await aborted_ones(client, 1, 2)
        await until_written(broker, client)
        topic = loaded(broker)
        await topic.ledger.roll()
        await send(client, 3)
        await topic.ledger.trim(retain=False)
        await aborted_ones(client, 4)
        await until_written(broker, client)
        assert await keys(broker, SEGMENT_TOPIC) == ["multiple-0", "[multiple-0]"]
        assert topic.buffer is not None
        assert list(topic.buffer.table.aborted) == [(0, 4)]


async def test_a_deleted_topic_leaves_neither_index_nor_segments() -> None:
    async with MemoryBroker(settings()) as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        await aborted_ones(client, 1, 2)
        await until_written(broker, client)
        await broker.service.delete(TopicName.parse(TOPIC), force=True)
        assert (await keys(broker, SEGMENT_TOPIC))[-1] == "[multiple-0]"
        assert (await keys(broker, INDEX_TOPIC))[-1] == f"[{TOPIC}]"


@pytest.mark.parametrize("commit", [True, False])
async def test_a_snapshot_of_one_message_is_read_after_the_switch(*, commit: bool) -> None:
    first = MemoryBroker(settings(segmented=False))
    await first.start()
    client = await first.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    await aborted_ones(client, 1)
    await send(client, 2, transaction=2)
    await until_written(first, client)
    first._settings = replace(first._settings, transactions=settings().transactions)
    await first.stop()
    await first.start()
    client = await first.connect()
    await client.consumer(TOPIC)
    client.send(Command.FLOW, consumer_id=1, messagePermits=100)
    await ended(client, 2, commit=commit)
    await client.producer(TOPIC)
    await send(client, 3)
    expected = [b"m2", b"m3"] if commit else [b"m3"]
    assert texts([await client.expect(Command.MESSAGE) for _ in expected]) == expected
    assert await all_sent(client) == []
    await first.stop()
