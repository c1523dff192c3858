from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.client.message import Message, MessageId, OutgoingMessage, entry_of_batch, messages_of_entry
from magnetar.spark.decode.columns import BadRecordPolicy, BatchBuilder
from magnetar.spark.decode.metadata_columns import METADATA_TYPES
from magnetar.spark.decode.pieces import Joiner
from magnetar.spark.entries import WholeEntry
from magnetar.spark.errors import BadOption, BadRecord
from magnetar.spark.message_keys import KeyType
from magnetar.spark.options.pushdown import EVERYTHING, MessageFilters
from magnetar.spark.options.reading import BadRecordMode
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.values.api import DecodedValues
from magnetar.wire.pulsar.batch import build_batch, build_message, split_batch
from magnetar.wire.pulsar.compression import compress
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import KeyValue, MessageMetadata
from magnetar.wire.pulsar.metadata import MessageMetadataView, full_metadata, skim

TOPIC = "persistent://public/default/t-partition-3"
END = MessagePosition(2**62, 0)
SCHEMA = pa.schema([("value", pa.binary()), *METADATA_TYPES.items()])
CORRUPT = "_corrupt_record"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]


class Bytes:
    """Values as they are; what begins with b"bad" is bad. Remembers what it was asked."""

    def __init__(self, needs_keys: bool = False) -> None:
        self.needs_keys = needs_keys
        self.note = ""
        self.seen: list[tuple[bytes | None, bytes, Any, Any]] = []
        """Payload, schema version, key, whether in base64: of each message."""

    def fields(self) -> list[tuple[str, pa.DataType]]:
        return [("value", pa.binary()), ("length", pa.int32())]

    async def decode(
        self,
        values: pa.Array,
        versions: Sequence[tuple[bytes, int]],
        keys: pa.Array | None = None,
        keys_base64: pa.Array | None = None,
    ) -> DecodedValues:
        payloads = values.to_pylist()
        by_row = [version for version, count in versions for _ in range(count)]
        keys_by_row = [None] * len(values) if keys is None else keys.to_pylist()
        base64_by_row = [False] * len(values) if keys_base64 is None else keys_base64.to_pylist()
        self.seen += zip(payloads, by_row, keys_by_row, base64_by_row, strict=True)
        bad = {row: "it is bad" for row, value in enumerate(payloads) if value is not None and value[:3] == b"bad"}
        good = [None if row in bad else value for row, value in enumerate(payloads)]
        lengths = [None if value is None else len(value) for value in good]
        return DecodedValues([pa.array(good, pa.binary()), pa.array(lengths, pa.int32())], bad)


def builder(
    schema: pa.Schema = SCHEMA,
    *,
    values: Bytes | None = None,
    filters: MessageFilters = EVERYTHING,
    first: MessagePosition = BEGINNING,
    end: MessagePosition = END,
    policy: BadRecordPolicy | None = None,
    key_type: KeyType = "text",
) -> BatchBuilder:
    return BatchBuilder(
        topic=TOPIC,
        schema=schema,
        values=values or Bytes(),
        filters=filters,
        first=first,
        end=end,
        policy=policy or BadRecordPolicy("FAILFAST"),
        key_type=key_type,
    )


async def rows_of(made: BatchBuilder, entries: list[WholeEntry]) -> list[Row]:
    rows: list[Row] = []
    for entry in entries:
        made.add([entry])
    for batch in await made.take():
        batch.validate(full=True)
        rows += batch.to_pylist(maps_as_pydicts="strict")
    assert await made.take() == []
    return rows


def whole(data: bytes, entry_id: int, ledger_id: int = 7) -> WholeEntry:
    return WholeEntry(ledger_id, entry_id, skim(data), data)


def single_entry(message: OutgoingMessage, kind: Compression = Compression.NONE, **fields: Any) -> bytes:
    metadata = MessageMetadata(**{"producer_name": "p", "sequence_id": 1, "publish_time": 2, **fields})
    payload = message.payload or b""
    if message.payload is None:
        metadata.null_value = True
    if message.key is not None:
        metadata.partition_key = message.key
    if message.event_time_ms:
        metadata.event_time = message.event_time_ms
    metadata.properties.extend(KeyValue(key=key, value=value) for key, value in message.properties.items())
    metadata.compression = int(kind)  # type: ignore[assignment] # The stub wants the enum's own class.
    metadata.uncompressed_size = len(payload)
    return build_message(metadata, compress(kind, payload))


def batch_entry(messages: Sequence[OutgoingMessage], kind: Compression = Compression.NONE, **fields: Any) -> bytes:
    metadata = MessageMetadata(**{"producer_name": "p", "sequence_id": 1, "publish_time": 2, **fields})
    return entry_of_batch(messages, metadata, range(len(messages)), kind)


def expected(entry: WholeEntry) -> list[Row]:
    """What the client's own way of reading gives."""
    entry_id = MessageId(entry.ledger_id, entry.entry_id)
    return [expected_row(message) for message in messages_of_entry(entry.data, entry_id, 0, ())]


def expected_row(message: Message) -> Row:
    entry_id = f"{message.id.ledger_id}:{message.id.entry_id}"
    return {
        "value": None if message.has_no_value else message.payload,
        "__key": message.key,
        "__topic": TOPIC,
        "__messageId": entry_id if message.id.batch_index < 0 else f"{entry_id}:{message.id.batch_index}",
        "__publishTime": EPOCH + timedelta(milliseconds=message.publish_time_ms),
        "__eventTime": EPOCH + timedelta(milliseconds=message.event_time_ms) if message.event_time_ms else None,
        "__messageProperties": message.properties,
    }


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
TIMES_MS = st.sampled_from([1, 999, 1_700_000_000_000, 1_700_000_000_001])
MESSAGES = st.builds(
    OutgoingMessage,
    st.none() | st.binary(max_size=30),
    key=st.none() | TEXT,
    properties=st.dictionaries(TEXT, TEXT, max_size=3),
    event_time_ms=st.just(0) | TIMES_MS,
)


@st.composite
def entries(draw: st.DrawFn) -> list[WholeEntry]:
    made = []
    for place in range(draw(st.integers(0, 6))):
        kind, time_ms = draw(st.sampled_from(list(Compression))), draw(TIMES_MS)
        version = draw(st.sampled_from([b"", b"v1"]))
        if draw(st.booleans()):
            data = single_entry(draw(MESSAGES), kind, publish_time=time_ms, schema_version=version)
        else:
            messages = draw(st.lists(MESSAGES, min_size=1, max_size=5))
            messages[0].schema_version = version
            data = batch_entry(messages, kind, publish_time=time_ms)
            data = with_compacted_out(data, draw(st.sets(st.integers(0, 4)))) if draw(st.booleans()) else data
        made.append(whole(data, 5 * place, ledger_id=7 + place // 3))
    return made


def with_compacted_out(data: bytes, indexes: set[int]) -> bytes:
    singles = split_batch(data)
    for index in indexes & set(range(len(singles))):
        singles[index][0].compacted_out = True
    metadata = full_metadata(data)
    return build_batch(metadata, singles, Compression(metadata.compression))


@pytest.mark.slow
@settings(max_examples=60)
@given(entries(), st.sampled_from(["value", "length", *METADATA_TYPES]))
async def test_batches_have_what_a_client_gets(given_entries: list[WholeEntry], left_out: str) -> None:
    wanted = [row for entry in given_entries for row in expected(entry)]
    assert await rows_of(builder(), given_entries) == wanted
    # Columns in another order, one of them left out.
    schema = pa.schema([field for field in reversed(list(SCHEMA)) if field.name != left_out])
    assert await rows_of(builder(schema), given_entries) == [
        {name: row[name] for name in schema.names} for row in wanted
    ]


@pytest.mark.slow
@settings(max_examples=60)
@given(entries(), st.data())
async def test_the_slice_and_filters_decide_before_values_are_decoded(
    given_entries: list[WholeEntry], data: st.DataObject
) -> None:
    bounds = st.none() | TIMES_MS
    filters = MessageFilters(
        publish_time_ms_min=data.draw(bounds),
        publish_time_ms_max=data.draw(bounds),
        event_time_ms_min=data.draw(bounds | st.just(0)),
        event_time_ms_max=data.draw(bounds),
        keys=data.draw(st.none() | st.frozensets(TEXT.map(str.encode), max_size=20)),
    )
    places = st.builds(
        MessagePosition, st.integers(6, 9), st.sampled_from([0, 5, 7, 10, 15, 20, 25]), st.integers(0, 5)
    )
    first, end = sorted((data.draw(places), data.draw(places)))
    decoder = Bytes()
    found = await rows_of(builder(values=decoder, filters=filters, first=first, end=end), given_entries)
    wanted = [row for entry in given_entries for row in expected(entry) if fits(row, filters, first, end)]
    assert found == wanted
    assert [payload for payload, *_ in decoder.seen] == [row["value"] for row in wanted]


async def test_a_slice_begins_and_ends_within_a_batch() -> None:
    batch = whole(batch_entry([OutgoingMessage(bytes([number])) for number in range(5)]), 3)
    single = whole(single_entry(OutgoingMessage(b"v")), 4)
    for first, end, ids in (
        (MessagePosition(7, 3, 2), END, ["7:3:2", "7:3:3", "7:3:4", "7:4"]),
        (BEGINNING, MessagePosition(7, 3, 2), ["7:3:0", "7:3:1"]),
        (MessagePosition(7, 3, 1), MessagePosition(7, 3, 3), ["7:3:1", "7:3:2"]),
        (MessagePosition(7, 3, 9), MessagePosition(7, 4, 9), ["7:4"]),
        (MessagePosition(7, 4, 1), END, []),
        (MessagePosition(6, 3, 2), MessagePosition(8, 3, 2), [*(f"7:3:{number}" for number in range(5)), "7:4"]),
    ):
        rows = await rows_of(builder(first=first, end=end), [batch, single])
        assert [row["__messageId"] for row in rows] == ids
    with pytest.raises(BadRecord):
        await rows_of(builder(first=MessagePosition(7, 1, 1)), bad_entries()[1:2])
    # Nobody knows which messages a broken batch has: it is told of wherever a part of it is wanted.
    permissive = builder(first=MessagePosition(7, 1, 1), policy=BadRecordPolicy("PERMISSIVE"))
    assert [row["__messageId"] for row in await rows_of(permissive, bad_entries()[1:2])] == ["7:1"]


def fits(row: Row, filters: MessageFilters, first: MessagePosition, end: MessagePosition) -> bool:
    if not first <= MessagePosition.parse(row["__messageId"]) < end:
        return False
    for name, low, high in (
        ("__publishTime", filters.publish_time_ms_min, filters.publish_time_ms_max),
        ("__eventTime", filters.event_time_ms_min, filters.event_time_ms_max),
    ):
        if low is None and high is None:
            continue
        if row[name] is None:
            return False
        time_ms = (row[name] - EPOCH) // timedelta(milliseconds=1)
        if (low is not None and time_ms < low) or (high is not None and time_ms > high):
            return False
    return filters.keys is None or (row["__key"] is not None and row["__key"].encode() in filters.keys)


@pytest.mark.slow
@settings(max_examples=30)
@given(entries())
async def test_decoders_get_versions_and_keys(given_entries: list[WholeEntry]) -> None:
    decoder = Bytes(needs_keys=True)
    await rows_of(builder(pa.schema([("length", pa.int32())]), values=decoder), given_entries)
    messages = [m for e in given_entries for m in messages_of_entry(e.data, MessageId(1, 1), 0, ())]
    assert [(version, key) for _, version, key, _ in decoder.seen] == [
        (m.schema_version, None if m.key is None else m.key.encode()) for m in messages
    ]


def coded(key: str | None) -> OutgoingMessage:
    message = OutgoingMessage(b"", key=key)
    message.key_is_base64 = True
    return message


# Key, whether it has the flag, as text, as bytes, whether it counts as bytes.
KEYS: list[tuple[str | None, bool, str | None, bytes | None, bool | None]] = [
    ("YQ==", False, "YQ==", b"YQ==", False),
    ("é", False, "é", "é".encode(), False),
    ("w6k=", True, "é", "é".encode(), True),
    ("/wA=", True, "/wA=", b"\xff\x00", True),
    ("/wA", True, "/wA", b"\xff\x00", True),  # As Java's decoder takes it.
    ("", True, "", b"", True),
    ("no base64", True, "no base64", b"no base64", False),
    ("Y", True, "Y", b"Y", False),
    (None, True, None, None, None),
    (None, False, None, None, None),
]
KEY_SCHEMAS: dict[KeyType, pa.Schema] = {
    "text": pa.schema([("__key", pa.string()), ("__keyIsBytes", pa.bool_())]),
    "binary": pa.schema([("__keyIsBytes", pa.bool_()), ("__key", pa.binary())]),
}


def keyed_entries() -> list[WholeEntry]:
    """The same keys in a batch and one by one."""
    messages = [coded(key) if flag else OutgoingMessage(b"", key=key) for key, flag, *_ in KEYS]
    singles = [
        single_entry(message, partition_key_b64_encoded=True) if message.key_is_base64 else single_entry(message)
        for message in messages
    ]
    return [whole(data, place) for place, data in enumerate([batch_entry(messages), *singles])]


@pytest.mark.parametrize("key_type", ["text", "binary"])
async def test_keys_that_are_bytes(key_type: KeyType) -> None:
    rows = await rows_of(builder(KEY_SCHEMAS[key_type], key_type=key_type), keyed_entries())
    shown: list[Row] = [
        {"__key": as_bytes if key_type == "binary" else as_text, "__keyIsBytes": are_bytes}
        for _, _, as_text, as_bytes, are_bytes in KEYS
    ]
    assert rows == shown * 2


@pytest.mark.parametrize("key_type", ["text", "binary"])
async def test_keys_are_filtered_as_they_are_shown(key_type: KeyType) -> None:
    filters = MessageFilters(keys=frozenset([b"YQ==", "é".encode(), b"\xff\x00", b"/wA="]))
    schema = KEY_SCHEMAS[key_type]
    rows = await rows_of(builder(schema, filters=filters, key_type=key_type), keyed_entries())
    shown = [row["__key"] for row in rows]
    text = ["YQ==", "é", "é", "/wA="]
    assert shown == (text if key_type == "text" else [b"YQ==", *["é".encode()] * 2, *[b"\xff\x00"] * 2]) * 2
    # Also where the key is no column.
    without = pa.schema([("__messageId", pa.string())])
    assert len(await rows_of(builder(without, filters=filters, key_type=key_type), keyed_entries())) == len(rows)


async def test_decoders_get_keys_as_they_are() -> None:
    decoder = Bytes(needs_keys=True)
    plain = single_entry(OutgoingMessage(b"a", key="YQ=="))
    in_base64 = single_entry(OutgoingMessage(b"b", key="Yg=="), partition_key_b64_encoded=True)
    rows = await rows_of(builder(values=decoder), [whole(plain, 0), whole(in_base64, 1)])
    assert [row["__key"] for row in rows] == ["YQ==", "b"]
    assert [(key, base64) for _, _, key, base64 in decoder.seen] == [(b"YQ==", False), (b"Yg==", True)]


async def test_a_chunked_message_has_its_joined_payload_and_its_last_chunks_metadata() -> None:
    payload = bytes(range(256)) * 20
    for kind in Compression:
        message = OutgoingMessage(payload, key="k", properties={"a": "b"}, event_time_ms=5)
        packed = single_entry(message, kind, num_chunks_from_msg=2, chunk_id=1)
        view = skim(packed)
        entry = WholeEntry(3, 4, view, packed[: view.payload_start + 7], packed[view.payload_start :])
        (row,) = await rows_of(builder(), [entry])
        assert (row["value"], row["__key"], row["__messageId"]) == (payload, "k", "3:4")
        assert row["__messageProperties"] == {"a": "b"}


def bad_entries() -> list[WholeEntry]:
    """Of each kind one, between good ones."""
    two = [OutgoingMessage(b"x", key="k"), OutgoingMessage(b"y", key="k")]
    batch = batch_entry(two)
    zstd = single_entry(OutgoingMessage(b"z" * 100, key="k", properties={"a": "b"}), Compression.ZSTD)
    secret = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, partition_key="k")
    secret.encryption_keys.add(key="name", value=b"v")
    return [
        whole(single_entry(OutgoingMessage(b"good", key="k")), 0),
        whole(batch[:-3], 1),
        whole(zstd[:-3], 2),
        whole(build_message(secret, b"ciphertext"), 3),
        WholeEntry(7, 4, MessageMetadataView(), b"noise", broken="message metadata: noise"),
        whole(single_entry(OutgoingMessage(b"bad value", key="k")), 5),
        whole(batch_entry([OutgoingMessage(b"good"), OutgoingMessage(b"bad too"), OutgoingMessage(None)]), 6),
    ]


BAD_IDS = ["7:1", "7:2", "7:3", "7:4", "7:5", "7:6:1"]


@pytest.mark.parametrize("place", range(1, 7))
async def test_failfast_names_the_message_and_the_reason(place: int) -> None:
    entry = bad_entries()[place]
    with pytest.raises(BadRecord) as caught:
        await rows_of(builder(policy=BadRecordPolicy("FAILFAST", CORRUPT)), [entry])
    assert f"{TOPIC}: message {BAD_IDS[place - 1]} cannot be read: " in str(caught.value)
    if place == 3:
        assert "encrypted" in str(caught.value)


async def test_permissive_gives_rows_without_values_and_the_raw_bytes() -> None:
    schema = pa.schema(
        [("value", pa.binary()), ("length", pa.int32()), (CORRUPT, pa.binary()), *METADATA_TYPES.items()]
    )
    policy = BadRecordPolicy("PERMISSIVE", CORRUPT)
    given_entries = bad_entries()
    rows = await rows_of(builder(schema, policy=policy), given_entries)
    raw = {row["__messageId"]: row[CORRUPT] for row in rows}
    stored = [entry.data[entry.view.payload_start :] for entry in given_entries]
    assert raw == {
        "7:0": None,
        "7:1": stored[1],
        "7:2": stored[2],
        "7:3": b"ciphertext",
        "7:4": b"noise",
        "7:5": b"bad value",
        "7:6:0": None,
        "7:6:1": b"bad too",
        "7:6:2": None,
    }
    assert [row["value"] for row in rows] == [b"good", None, None, None, None, None, b"good", None, None]
    assert [row["length"] for row in rows] == [4, None, None, None, None, None, 4, None, None]
    assert [row["__key"] for row in rows] == ["k", None, "k", "k", None, "k", None, None, None]
    assert rows[2]["__messageProperties"] == {"a": "b"}
    assert rows[4]["__publishTime"] is None
    assert (policy.kept, policy.dropped) == (6, 0)
    assert policy.first_reason.startswith(f"{TOPIC}: message 7:1 cannot be read: ")


async def test_dropmalformed_leaves_bad_messages_out_and_counts_them() -> None:
    policy = BadRecordPolicy("DROPMALFORMED", CORRUPT)
    rows = await rows_of(builder(policy=policy), bad_entries())
    assert [row["__messageId"] for row in rows] == ["7:0", "7:6:0", "7:6:2"]
    assert (policy.kept, policy.dropped) == (0, 6)
    assert await rows_of(builder(policy=policy), bad_entries()[5:6]) == []


async def test_filters_leave_out_bad_messages_unless_nobody_knows_what_they_hold() -> None:
    filters = MessageFilters(keys=frozenset([b"other"]), publish_time_ms_max=10)
    policy = BadRecordPolicy("DROPMALFORMED")
    assert await rows_of(builder(filters=filters, policy=policy), bad_entries()) == []
    assert policy.dropped == 2  # The broken batch, and the entry without readable metadata.
    assert await rows_of(builder(filters=filters, policy=BadRecordPolicy("PERMISSIVE")), bad_entries()) == []
    with pytest.raises(BadRecord):
        await rows_of(builder(filters=filters), bad_entries()[1:2])
    assert await rows_of(builder(filters=filters), bad_entries()[2:4]) == []


def raw_batch(bodies: Sequence[tuple[bytes, bytes]], count: int | None = None, **fields: Any) -> bytes:
    """A batch of (encoded SingleMessageMetadata, payload)."""
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)
    metadata.num_messages_in_batch = len(bodies) if count is None else count
    body = b"".join(struct.pack(">I", len(single)) + single + payload for single, payload in bodies)
    return build_message(metadata, body)


async def test_text_that_is_no_utf8_is_replaced() -> None:
    pair = b"\x0a\x02\xffa\x12\x02b\xfe"
    broken = b"\x0a" + bytes([len(pair)]) + pair + b"\x12\x03k\xc3\x28\x18\x01"
    fine = b"\x12\x01k\x18\x01"
    rows = await rows_of(builder(), [whole(raw_batch([(fine, b"v"), (broken, b"w")]), 0)])
    assert [row["__key"] for row in rows] == ["k", "k\ufffd("]
    assert [row["__messageProperties"] for row in rows] == [{}, {"\ufffda": "b\ufffd"}]


async def test_of_a_property_that_stands_there_twice_the_last_one_counts() -> None:
    def pair(key: bytes, value: bytes) -> bytes:
        return b"\x0a\x06\x0a\x01" + key + b"\x12\x01" + value

    singles = [pair(b"a", b"1") + pair(b"b", b"2") + pair(b"a", b"3"), b"", pair(b"a", b"4"), b""]
    data = raw_batch([(single + b"\x18\x00", b"") for single in singles])
    rows = await rows_of(builder(), [whole(data, 0)])
    assert [row["__messageProperties"] for row in rows] == [{"b": "2", "a": "3"}, {}, {"a": "4"}, {}]
    assert rows == expected(whole(data, 0))


@pytest.mark.parametrize("count", [-3, 0, 1, 2])
async def test_a_batch_has_as_many_messages_as_it_says(count: int) -> None:
    data = raw_batch([(b"\x18\x01", b"a"), (b"\x18\x01", b"b")], count)
    rows = await rows_of(builder(), [whole(data, 0)])
    assert [row["value"] for row in rows] == [b"a", b"b"][: max(0, count)]


async def test_times_that_no_timestamp_holds_are_null() -> None:
    data = single_entry(OutgoingMessage(b"v"), publish_time=2**64 - 1, event_time=2**64 - 1)
    (row,) = await rows_of(builder(), [whole(data, 0)])
    assert (row["__publishTime"], row["__eventTime"]) == (None, None)


async def test_many_small_messages_make_batches_of_some_10_000_rows() -> None:
    body = struct.pack(">I", 2) + b"\x18\x01"
    one = b"".join(body + bytes([number % 251]) for number in range(25_000))
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=25_000)
    metadata.compression, metadata.uncompressed_size = 3, len(one)  # type: ignore[assignment] # The enum's own class.
    made = builder(pa.schema([("value", pa.binary()), ("__messageId", pa.string())]))
    made.add([whole(build_message(metadata, compress(Compression.ZSTD, one)), 0)])
    assert made.ready()
    batches = [batch async for batch in made.batches(final=False)]
    assert [batch.num_rows for batch in batches] == [12_500, 12_500]
    table = pa.Table.from_batches(batches)
    assert table["value"].to_pylist() == [bytes([number % 251]) for number in range(25_000)]
    assert table["__messageId"].to_pylist() == [f"7:0:{number}" for number in range(25_000)]


async def test_large_messages_make_batches_of_some_megabytes() -> None:
    made = builder()
    data = single_entry(OutgoingMessage(bytes(3 << 20)))
    made.add([whole(data, 0)])
    assert not made.ready()
    made.add([whole(data, number) for number in range(1, 5)])
    assert made.ready()
    sizes = [batch.num_rows async for batch in made.batches(final=False)]
    assert sizes == [1, 1, 1, 1] or sizes == [2, 2]
    assert not made.ready()
    assert [batch.num_rows for batch in await made.take()] == [1]
    assert await made.take() == []


@pytest.mark.slow
@settings(max_examples=20)
@given(entries(), st.integers(1, 4))
async def test_taking_now_and_then_loses_nothing(given_entries: list[WholeEntry], step: int) -> None:
    made = builder()
    batches: list[pa.RecordBatch] = []
    for place, entry in enumerate(given_entries):
        made.add([entry])
        if place % step == 0:
            batches += await made.take()
    batches += await made.take()
    # Looked at only now: memory that is used again is none of theirs.
    rows = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    assert rows == [row for entry in given_entries for row in expected(entry)]


def test_joined_memory_is_used_again_once_nobody_holds_it() -> None:
    joiner = Joiner()
    first = joiner.joined([b"ab", b"cde"], 5)
    place = first.address
    second = joiner.joined([b"xyz", b"uv"], 5)
    assert (first.to_pybytes(), second.to_pybytes()) == (b"abcde", b"xyzuv")
    assert second.address != place
    place = second.address
    del second
    third = joiner.joined([b"12", b"3"], 3)
    assert (third.address, third.to_pybytes()[:3]) == (place, b"123")


def test_schemas_that_do_not_fit_the_topic_are_refused() -> None:
    with pytest.raises(BadOption, match="did you mean __key"):
        builder(pa.schema([("_key", pa.string())]))
    with pytest.raises(BadOption, match="value is binary"):
        builder(pa.schema([("value", pa.string())]))
    with pytest.raises(BadOption, match=CORRUPT):
        builder(pa.schema([(CORRUPT, pa.binary())]))
    builder(pa.schema([(CORRUPT, pa.binary())]), policy=BadRecordPolicy("PERMISSIVE", CORRUPT))


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
async def test_without_value_columns_nothing_is_decoded(mode: BadRecordMode) -> None:
    decoder = Bytes()
    made = builder(pa.schema([("__topic", pa.string())]), values=decoder, policy=BadRecordPolicy(mode, CORRUPT))
    assert len(await rows_of(made, [whole(single_entry(OutgoingMessage(b"bad")), 0)])) == 1
    assert decoder.seen == []
