import struct
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.wire.pulsar.batch import build_batch, build_message, split_batch
from magnetar.wire.pulsar.batch_positions import EVENT_TIME_MS_MAX, MessagePositions, batch_size
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import metadata_bounds, skim

TEXT = st.text(max_size=5)
PAIRS = st.lists(st.builds(pb.KeyValue, key=TEXT, value=st.text(max_size=200)), max_size=3)


@st.composite
def singles(draw: st.DrawFn) -> tuple[pb.SingleMessageMetadata, bytes]:
    single = pb.SingleMessageMetadata(payload_size=0)
    if draw(st.booleans()):
        single.properties.extend(draw(PAIRS))
        single.ordering_key = draw(st.binary(max_size=3))
        single.sequence_id = draw(st.integers(0, 2**64 - 1))
    if draw(st.booleans()):
        single.partition_key = draw(TEXT)
    if draw(st.booleans()):
        single.partition_key_b64_encoded = draw(st.booleans())
        single.null_value = draw(st.booleans())
        single.compacted_out = draw(st.booleans())
    single.event_time = draw(st.sampled_from([0, 1, 1_700_000_000_000, EVENT_TIME_MS_MAX]))
    return single, draw(st.binary(max_size=200))


def entry_of(messages: list[tuple[pb.SingleMessageMetadata, bytes]], **fields: Any) -> bytes:
    return build_batch(pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields), messages)


def bounds(noted: int) -> tuple[int, int]:
    number = ~noted if noted < 0 else noted
    return number & 0xFFFF_FFFF, number >> 32


def cut(buffer: bytes, noted: int) -> bytes:
    start, end = bounds(noted)
    return buffer[start:end]


def seen(positions: MessagePositions, buffer: bytes) -> list[tuple[object, ...]]:
    """What the positions say, in the shape of `expected`."""
    properties: list[list[tuple[bytes, bytes]]] = [[] for _ in range(positions.rows)]
    for row, key, value in zip(
        positions.property_rows, positions.property_keys, positions.property_values, strict=True
    ):
        properties[row].append((cut(buffer, key), cut(buffer, value)))
    return [
        (
            cut(buffer, value),
            value < 0,
            None if key < 0 else cut(buffer, key),
            key >= 0 and row in positions.base64_keys,
            event_time_ms,
            row in positions.compacted_out,
            properties[row],
        )
        for row, (value, key, event_time_ms) in enumerate(
            zip(positions.values, positions.keys, positions.event_times_ms, strict=True)
        )
    ]


def expected(messages: list[tuple[pb.SingleMessageMetadata, bytes]]) -> list[tuple[object, ...]]:
    return [
        (
            payload,
            single.null_value,
            single.partition_key.encode() if single.HasField("partition_key") else None,
            single.HasField("partition_key") and single.partition_key_b64_encoded,
            single.event_time,
            single.compacted_out,
            [(pair.key.encode(), pair.value.encode()) for pair in single.properties],
        )
        for single, payload in messages
    ]


@given(st.lists(st.lists(singles(), max_size=4), max_size=3))
def test_positions_say_what_a_split_says(batches: list[list[tuple[pb.SingleMessageMetadata, bytes]]]) -> None:
    positions = MessagePositions()
    buffer = b""
    wanted: list[tuple[object, ...]] = []
    for batch in batches:
        data = entry_of(batch)
        positions.add_batch(data, skim(data).payload_start, len(batch), len(buffer))
        buffer += data
        wanted += expected(split_batch(data))
    assert seen(positions, buffer) == wanted
    for noted in (positions.values, positions.keys):
        flat = [place for number in noted for place in bounds(number)]
        assert flat == sorted(flat)
        # As 64-bit integers of this machine they are pairs of 32-bit offsets.
        assert (
            list(memoryview(array("q", [~n if n < 0 else n for n in noted])).cast("B").cast("i") if noted else [])
            == flat
        )


@given(st.binary(max_size=60), st.integers(-2, 5))
def test_garbage_is_refused_or_read_as_a_split_reads_it(body: bytes, count: int) -> None:
    check_against_split(body, count)


@given(st.lists(singles(), min_size=1, max_size=3), st.data())
def test_damaged_batches_are_refused_or_read_as_a_split_reads_them(
    batch: list[tuple[pb.SingleMessageMetadata, bytes]], data: st.DataObject
) -> None:
    entry = entry_of(batch)
    body = bytearray(entry[skim(entry).payload_start :])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    check_against_split(bytes(body[: data.draw(st.integers(0, len(body)))]), len(batch))


def check_against_split(body: bytes, count: int) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=count)
    positions = MessagePositions()
    positions.add_message(5 | 9 << 32, ~(9 | 9 << 32), 3, False)
    try:
        positions.add_batch(body, 0, count, 0)
    except BadMetadata:
        assert (positions.rows, positions.values, positions.keys) == (1, [5 | 9 << 32], [~(9 | 9 << 32)])
        assert positions.event_times_ms == [3]
        rare = (positions.base64_keys, positions.compacted_out, positions.property_rows)
        assert (*rare, positions.property_keys, positions.property_values) == ([],) * 5
        return
    for noted in positions.values[1:] + positions.keys[1:] + positions.property_keys + positions.property_values:
        start, end = bounds(noted)
        assert 0 <= start <= end <= len(body)
    try:
        messages = split_batch(build_message(metadata, body))
    except BadMetadata:  # The library knows rules that do not matter to where things are.
        return
    assert [cut(body, value) for value in positions.values[1:]] == [payload for _, payload in messages]
    assert [value < 0 for value in positions.values[1:]] == [single.null_value for single, _ in messages]
    assert [key >= 0 for key in positions.keys[1:]] == [single.HasField("partition_key") for single, _ in messages]


def test_the_announced_count_is_not_believed() -> None:
    data = entry_of([(pb.SingleMessageMetadata(payload_size=0), b"a")])
    start = skim(data).payload_start
    positions = MessagePositions()
    for count in (2, 2**31 - 1):
        with pytest.raises(BadMetadata):
            positions.add_batch(data, start, count, 0)
    positions.add_batch(data, start, 0, 0)
    positions.add_batch(data, start, -5, 0)
    assert positions.rows == 0


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 1, 2, 300, 2**31 - 1])
def test_the_size_that_a_batch_says(count: int) -> None:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=2**64 - 1, publish_time=2, num_messages_in_batch=count, schema_version=b"abc"
    )
    data = build_message(metadata, b"")
    assert batch_size(data, *metadata_bounds(data)) == count


def test_a_message_without_the_size_of_its_payload_is_refused() -> None:
    body = struct.pack(">I", 2) + b"\x28\x05"
    with pytest.raises(BadMetadata):
        MessagePositions().add_batch(body, 0, 1, 0)


def test_fields_of_later_versions_are_passed_over() -> None:
    rest = b"\x18\x01" + b"\xf8\x07\x80\x01" + b"\xfa\x07\x02zz" + b"\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4)
    body = struct.pack(">I", len(rest)) + rest + b"v"
    positions = MessagePositions()
    positions.add_batch(body, 0, 1, 100)
    assert [bounds(value) for value in positions.values] == [(100 + 4 + len(rest), 100 + len(body))]
    for kind in (3, 4, 6, 7):
        group = b"\x18\x00" + bytes([0x78 | kind]) + b"\x00"
        with pytest.raises(BadMetadata):
            positions.add_batch(struct.pack(">I", len(group)) + group, 0, 1, 0)


def test_event_times_that_no_column_holds_are_absent() -> None:
    times = [0, 7, EVENT_TIME_MS_MAX, EVENT_TIME_MS_MAX + 1, 2**63, 2**64 - 1]
    data = entry_of([(pb.SingleMessageMetadata(payload_size=0, event_time=time), b"") for time in times])
    positions = MessagePositions()
    positions.add_batch(data, skim(data).payload_start, len(times), 0)
    assert positions.event_times_ms == [0, 7, EVENT_TIME_MS_MAX, 0, 0, 0]


def test_what_is_not_wanted_is_not_noted() -> None:
    single = pb.SingleMessageMetadata(payload_size=0, partition_key="k", partition_key_b64_encoded=True, event_time=4)
    single.properties.add(key="a", value="b")
    data = entry_of([(single, b"v")])
    positions = MessagePositions(keys=False, event_times=False, properties=False)
    positions.add_batch(data, skim(data).payload_start, 1, 0)
    positions.add_message(0, 0, 5, True)
    assert positions.rows == len(positions.values) == 2
    assert positions.keys == positions.event_times_ms == positions.property_rows == positions.base64_keys == []


@given(PAIRS, st.integers(0, 1000))
def test_properties_of_an_entry(pairs: list[pb.KeyValue], base: int) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, properties=pairs, uuid="u")
    data = build_message(metadata, b"payload")
    positions = MessagePositions()
    positions.add_message(0, 0, 0, False)
    positions.add_entry_properties(data, *metadata_bounds(data), base)
    positions.add_message(0, 0, 0, False)
    buffer = bytes(base) + data
    assert positions.property_rows == [1] * len(pairs)
    assert [cut(buffer, key).decode() for key in positions.property_keys] == [pair.key for pair in pairs]
    assert [cut(buffer, value).decode() for value in positions.property_values] == [pair.value for pair in pairs]


@given(st.binary(max_size=30))
def test_garbage_metadata_is_walked_or_refused(data: bytes) -> None:
    positions = MessagePositions()
    try:
        positions.add_entry_properties(data, 0, len(data), 0)
    except BadMetadata:
        assert positions.property_rows == positions.property_keys == positions.property_values == []


def test_a_buffer_that_is_too_long_for_offsets_is_refused() -> None:
    data = entry_of([(pb.SingleMessageMetadata(payload_size=0), b"v")])
    with pytest.raises(BadMetadata):
        MessagePositions().add_batch(data, skim(data).payload_start, 1, 2**31 - len(data))
