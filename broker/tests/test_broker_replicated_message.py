"""What a replicated message says of itself, read by hand, is what protobuf reads of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.replicated_message import ReplicatedMessage, _read_by_protobuf, _read_usual, read_replicated
from magnetar.broker.replicated_subscriptions.entry_origins import origin_of
from magnetar.broker.replicator_names import SOURCE_POSITION_PROPERTY
from magnetar.broker.source_position import SourcePositions
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.pulsar.batch import build_message
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import metadata_bounds

KEYS = st.sampled_from(["", "a", SOURCE_POSITION_PROPERTY, SOURCE_POSITION_PROPERTY + "S"])
VALUES = st.sampled_from(["1:2", "12345678:0", "", ":", "1:", "1:2:3", "-1:2", "9" * 20 + ":1", "9" * 19 + ":1", "é:1"])
METADATA = st.builds(
    pb.MessageMetadata,
    producer_name=st.text(max_size=5),
    sequence_id=st.integers(0, 2**64 - 1),
    publish_time=st.integers(0, 2**64 - 1),
    properties=st.lists(st.builds(pb.KeyValue, key=KEYS, value=VALUES), max_size=3),
    replicated_from=st.none() | st.just("west"),
    marker_type=st.none() | st.sampled_from([-1, 0, 9, 10, 13, 14, 21]),
    num_chunks_from_msg=st.none() | st.integers(-1, 4),
    chunk_id=st.none() | st.integers(-1, 4),
    encryption_keys=st.lists(st.builds(pb.EncryptionKeys, key=st.just("k"), value=st.just(b"v")), max_size=1),
    num_messages_in_batch=st.none() | st.integers(1, 9),
)


def fields(message: ReplicatedMessage | None) -> tuple[object, ...] | None:
    if message is None:
        return None
    return message.producer_name, message.position, message.is_marker, message.is_chunk_before_last


def usual(data: bytes) -> ReplicatedMessage | None:
    try:
        return _read_usual(data, *metadata_bounds(data))
    except (BadMetadata, BadProtobuf, UnicodeDecodeError):
        return None


@given(METADATA)
def test_both_readers_say_the_same(metadata: pb.MessageMetadata) -> None:
    data = build_message(metadata, b"payload")
    wanted = fields(_read_by_protobuf(data))
    assert wanted is not None
    assert fields(read_replicated(data)) == wanted
    if not metadata.encryption_keys:
        assert fields(usual(data)) == wanted


@given(METADATA, st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), min_size=1, max_size=3))
def test_of_what_is_damaged_the_reader_by_hand_says_nothing_else(
    metadata: pb.MessageMetadata, damages: list[tuple[int, int]]
) -> None:
    body = bytearray(metadata.SerializeToString())
    for at, byte in damages:
        body[at % len(body)] = byte
    data = len(body).to_bytes(4, "big") + bytes(body) + b"payload"
    by_hand = usual(data)
    if by_hand is not None:
        assert fields(by_hand) == fields(_read_by_protobuf(data))


def test_properties_in_an_unusual_form_are_left_to_protobuf() -> None:
    pair = b"\x12\x031:2\x0a" + bytes([len(SOURCE_POSITION_PROPERTY)]) + SOURCE_POSITION_PROPERTY.encode()
    body = b"\x0a\x01p\x10\x01\x18\x01\x22" + bytes([len(pair)]) + pair
    data = len(body).to_bytes(4, "big") + body
    assert usual(data) is None
    assert fields(read_replicated(data)) == ("p", (1, 2), False, False)


def test_a_property_that_ends_after_its_key_is_left_to_protobuf() -> None:
    """Which wants a value. Also where the entry ends there, too."""
    body = b"\x0a\x01p\x10\x01\x18\x01\x22\x04\x0a\x02ab"
    data = len(body).to_bytes(4, "big") + body
    assert usual(data) is None
    assert read_replicated(data) is None


def test_texts_that_are_not_utf8_are_no_error() -> None:
    """Protobuf gives them as bytes. Any producer may write them, and the topic is read again when it is loaded."""
    place = b"\x0a" + bytes([len(SOURCE_POSITION_PROPERTY)]) + SOURCE_POSITION_PROPERTY.encode() + b"\x12\x03"
    for name, value, position in ((b"\xff", b"7:9", (7, 9)), (b"p", b"\xff:9", None)):
        pair = place + value
        body = b"\x0a\x01" + name + b"\x10\x01\x18\x01\x22" + bytes([len(pair)]) + pair + b"\x2a\x04west"
        data = len(body).to_bytes(4, "big") + body
        message = read_replicated(data)
        assert message is not None
        assert (message.producer_name, message.position) == (name.decode(errors="backslashreplace"), position)
        assert SourcePositions("east").replay("west", data) is (position is not None)
        assert origin_of(data, (1, 1), "east") == (None if position is None else ("west", position))


def test_a_key_whose_length_takes_more_bytes_than_it_has_to_is_left_to_protobuf() -> None:
    pair = (
        b"\x0a" + bytes([len(SOURCE_POSITION_PROPERTY) | 0x80, 0]) + SOURCE_POSITION_PROPERTY.encode() + b"\x12\x031:2"
    )
    body = b"\x0a\x01p\x10\x01\x18\x01\x22" + bytes([len(pair)]) + pair
    data = len(body).to_bytes(4, "big") + body
    assert usual(data) is None
    assert fields(read_replicated(data)) == ("p", (1, 2), False, False)


USUAL = b"\x0a\x01p\x10\x01\x18\x01"
PLACE = b"\x0a" + bytes([len(SOURCE_POSITION_PROPERTY)]) + SOURCE_POSITION_PROPERTY.encode()


def stored(metadata: bytes) -> bytes:
    return len(metadata).to_bytes(4, "big") + metadata


@pytest.mark.parametrize("encryption", [b"", b"\x6a\x06\x0a\x01k\x12\x01v"], ids=["by hand", "by protobuf"])
@pytest.mark.parametrize(("marker_type", "is_marker"), [(9, False), (10, True), (13, True), (14, False), (0, False)])
def test_four_types_of_markers_are_of_replicated_subscriptions(
    encryption: bytes, marker_type: int, *, is_marker: bool
) -> None:
    message = read_replicated(stored(USUAL + encryption + b"\xa0\x01" + bytes([marker_type])))
    assert message is not None
    assert message.is_marker is is_marker


@pytest.mark.parametrize("number", [b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x0f"], ids=["-1", "-1 in 32 bits"])
def test_a_number_of_chunks_below_0_makes_no_chunk(number: bytes) -> None:
    data = stored(USUAL + b"\xd8\x01" + number + b"\xe8\x01\x00")
    assert fields(usual(data)) == fields(_read_by_protobuf(data)) == ("p", None, False, False)


def test_a_marker_type_of_more_than_32_bits_is_read_as_protobuf_does() -> None:
    data = stored(USUAL + b"\xa0\x01\x8a\x80\x80\x80\x10")
    assert fields(usual(data)) == fields(_read_by_protobuf(data)) == ("p", None, True, False)


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(b"\x10\x01\x18\x01", id="no name"),
        pytest.param(b"\x0a\x01p\x18\x01", id="no sequence id"),
        pytest.param(b"\x0a\x01p\x10\x01", id="no publish time"),
        pytest.param(USUAL + b"\x22\x00", id="a property that is empty"),
        pytest.param(USUAL + b"\x6a\x03\x0a\x01k", id="an encryption key without value"),
    ],
)
def test_metadata_that_lacks_something_says_nothing(metadata: bytes) -> None:
    """Also where the entry ends there."""
    assert usual(stored(metadata)) is None
    assert read_replicated(stored(metadata)) is None


def test_of_a_property_with_two_values_the_last_one_counts() -> None:
    pair = PLACE + b"\x12\x031:2\x12\x033:4"
    data = stored(USUAL + b"\x22" + bytes([len(pair)]) + pair)
    assert usual(data) is None
    assert fields(read_replicated(data)) == ("p", (3, 4), False, False)
