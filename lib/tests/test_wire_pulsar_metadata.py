import contextlib
import struct
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.wire.pulsar.batch import build_batch, build_message
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import (
    broker_entry_metadata,
    checksum_ok,
    count_messages,
    full_metadata,
    skim,
    sticky_key,
    strip_broker_entry_metadata,
)

# Written by Pulsar 4.0.8 (Commands.serializeMetadataAndPayload).
SHORT = bytes.fromhex("0e01dfba2d45000000110a017010051880d095ffbc3132016b580168656c6c6f")
RICH = bytes.fromhex(
    "000000610a017010051880d095ffbc3122060a01781201792a0163320461476b3d3a01724003484d60116a060a016112010282010101880101"
    "9201026f6b9801e8d795ffbc31a00115b00104b80105c00106c80101d20103702d35d80103e001b817e8010168656c6c6f"
)

U64 = st.integers(0, 2**64 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(max_size=6)
FIELDS = {
    "replicated_from": TEXT,
    "partition_key": TEXT,
    "compression": st.integers(0, 4),
    "uncompressed_size": st.integers(0, 2**32 - 1),
    "num_messages_in_batch": I32,
    "event_time": U64,
    "schema_version": st.binary(max_size=4),
    "partition_key_b64_encoded": st.booleans(),
    "ordering_key": st.binary(max_size=4),
    "deliver_at_time": st.integers(-(2**63), 2**63 - 1),
    "marker_type": I32,
    "txnid_least_bits": U64,
    "txnid_most_bits": U64,
    "highest_sequence_id": U64,
    "null_value": st.booleans(),
    "uuid": TEXT,
    "num_chunks_from_msg": I32,
    "total_chunk_msg_size": I32,
    "chunk_id": I32,
}


@st.composite
def metadatas(draw: st.DrawFn) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(producer_name=draw(TEXT), sequence_id=draw(U64), publish_time=draw(U64))
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True)):
        setattr(metadata, name, draw(FIELDS[name]))
    if draw(st.booleans()):
        metadata.encryption_keys.add(key="k", value=b"v")
        metadata.properties.add(key="a", value="b")
        metadata.replicate_to.append("c")
        metadata.schema_id = b"unknown to the walk"
    return metadata


def entry_of(metadata: pb.MessageMetadata, payload: bytes, prefix: bytes, checksum: bool) -> bytes:
    return prefix + build_message(metadata, payload, checksum=checksum)


def broker_prefix(index: int) -> bytes:
    body = pb.BrokerEntryMetadata(broker_timestamp=5, index=index).SerializeToString()
    return struct.pack(">HI", 0x0E02, len(body)) + body


@given(metadatas(), st.binary(max_size=20), st.booleans(), st.booleans())
def test_skim_sees_what_protobuf_sees(expected: pb.MessageMetadata, payload: bytes, brokers: bool, crc: bool) -> None:
    data = entry_of(expected, payload, broker_prefix(7) if brokers else b"", crc)
    view = skim(data)
    assert data[view.payload_start :] == payload
    assert view.producer_name == expected.producer_name
    assert (view.sequence_id, view.publish_time_ms) == (expected.sequence_id, expected.publish_time)
    room = len(payload) if not expected.compression else min(expected.uncompressed_size, len(payload) * 32_768)
    assert view.num_messages <= max(1, room // 6)
    said = view.num_messages_said or view.num_messages
    assert said == max(1, expected.num_messages_in_batch)
    assert count_messages(data) == view.num_messages
    assert view.is_batch == expected.HasField("num_messages_in_batch")
    assert (view.compression, view.uncompressed_size) == (expected.compression, expected.uncompressed_size)
    assert (view.null_value, view.uuid) == (expected.null_value, expected.uuid)
    assert (view.schema_version, view.replicated_from) == (expected.schema_version, expected.replicated_from)
    assert view.encrypted == bool(expected.encryption_keys)
    assert view.partition_key_b64 == expected.partition_key_b64_encoded
    for ours, theirs, absent in [
        ("partition_key", "partition_key", None),
        ("ordering_key", "ordering_key", None),
        ("event_time_ms", "event_time", -1),
        ("deliver_at_ms", "deliver_at_time", -1),
        ("marker_type", "marker_type", -1),
        ("txnid_least_bits", "txnid_least_bits", -1),
        ("txnid_most_bits", "txnid_most_bits", -1),
        ("highest_sequence_id", "highest_sequence_id", -1),
        ("num_chunks", "num_chunks_from_msg", -1),
        ("total_chunk_size", "total_chunk_msg_size", -1),
        ("chunk_id", "chunk_id", -1),
    ]:
        assert getattr(view, ours) == (getattr(expected, theirs) if expected.HasField(theirs) else absent)
    assert full_metadata(data) == expected


def test_messages_of_pulsar_are_read() -> None:
    view = skim(SHORT)
    assert (view.producer_name, view.sequence_id, view.publish_time_ms) == ("p", 5, 1_700_000_000_000)
    assert (view.partition_key, view.is_batch, SHORT[view.payload_start :]) == ("k", True, b"hello")
    assert checksum_ok(SHORT, 0, len(SHORT))

    view = skim(RICH)
    assert (view.partition_key, view.partition_key_b64, view.ordering_key) == ("aGk=", True, b"ok")
    assert (view.deliver_at_ms, view.event_time_ms, view.marker_type) == (1_700_000_001_000, 17, 21)
    assert (view.uuid, view.num_chunks, view.total_chunk_size, view.chunk_id) == ("p-5", 3, 3000, 1)
    assert (view.txnid_least_bits, view.txnid_most_bits, view.highest_sequence_id) == (4, 5, 6)
    assert (view.null_value, view.replicated_from, view.schema_version) == (True, "c", b"\x01")
    assert (view.uncompressed_size, view.compression, view.encrypted) == (77, 3, True)


def test_metadata_is_written_as_pulsar_writes_it() -> None:
    assert build_message(full_metadata(SHORT), b"hello") == SHORT
    assert build_message(full_metadata(RICH), b"hello", checksum=False) == RICH


def test_checksum() -> None:
    assert checksum_ok(b"xx" + SHORT + b"yy", 2, 2 + len(SHORT))
    for at in range(2, len(SHORT)):
        broken = SHORT[:at] + bytes([SHORT[at] ^ 1]) + SHORT[at + 1 :]
        assert not checksum_ok(broken, 0, len(broken))
    assert checksum_ok(RICH, 0, len(RICH))
    assert checksum_ok(b"", 0, 0)
    assert struct.unpack_from(">I", SHORT, 2)[0] == google_crc32c.value(SHORT[6:])


def test_broker_entry_metadata() -> None:
    data = broker_prefix(41) + SHORT
    found = broker_entry_metadata(data)
    assert found is not None
    assert (found.index, found.broker_timestamp) == (41, 5)
    assert strip_broker_entry_metadata(data) == SHORT
    assert strip_broker_entry_metadata(SHORT) is SHORT
    assert broker_entry_metadata(SHORT) is None
    assert skim(data).payload_start == len(data) - 5


@pytest.mark.parametrize(
    ("fields", "key"),
    # What Pulsar 4.0.8's Commands.resolveStickyKey gives for the same fields.
    [
        ({}, b"prod-3"),
        ({"partition_key": "key"}, b"key"),
        ({"partition_key": "a2V5", "partition_key_b64_encoded": True}, b"key"),
        ({"ordering_key": b"ord", "partition_key": "key"}, b"ord"),
        ({"null_partition_key": True}, b"prod-3"),
        ({"ordering_key": b"", "partition_key": ""}, b""),
        ({"partition_key": "%%%", "partition_key_b64_encoded": True}, None),
    ],
)
def test_sticky_key(fields: dict[str, Any], key: bytes | None) -> None:
    metadata = pb.MessageMetadata(producer_name="prod", sequence_id=3, publish_time=1, **fields)
    found = sticky_key(skim(build_message(metadata, b"")))
    assert key is None or found == key


def test_what_is_missing_is_refused() -> None:
    for body in (b"", b"\x0a\x01p\x10\x05", b"\x10\x05\x18\x01"[:2]):
        data = struct.pack(">I", len(body)) + body
        for read in (skim, full_metadata):
            with pytest.raises(BadMetadata):
                read(data)
    with pytest.raises(BadMetadata):
        skim(broker_prefix(1)[:-1])
    with pytest.raises(BadMetadata):
        skim(b"\x0e\x01\x00\x00\x00\x00\x00\x00")


PREFIXES = st.sampled_from([b"", b"\x0e\x02", b"\x0e\x01\x00\x00\x00\x00", b"\x0e\x02\x00\x00\x00\x02"])


@given(PREFIXES, st.binary(max_size=12) | st.binary(max_size=40).map(lambda body: struct.pack(">I", len(body)) + body))
def test_garbage_is_read_or_refused(prefix: bytes, rest: bytes) -> None:
    data = prefix + rest
    checksum_ok(data, 0, len(data))
    for read in (skim, full_metadata, broker_entry_metadata, strip_broker_entry_metadata):
        with contextlib.suppress(BadMetadata):
            read(data)
    with contextlib.suppress(BadMetadata):
        sticky_key(skim(data))


@given(st.integers(4, len(RICH) - 1), st.integers(0, 255))
def test_a_broken_byte_is_read_or_refused(at: int, byte: int) -> None:
    data = RICH[:at] + bytes([byte]) + RICH[at + 1 :]
    for read in (skim, full_metadata):
        with contextlib.suppress(BadMetadata):
            read(data)


def test_checksums_of_large_messages() -> None:
    data = build_message(pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2), bytes(100_000))
    assert checksum_ok(data, 0, len(data))
    assert not checksum_ok(data[:-1] + b"\1", 0, len(data))


NO_MORE_THAN_FIT = [
    (Compression.NONE, 0, 600, 100, 100),
    (Compression.NONE, 0, 599, 100, 99),
    (Compression.NONE, 0, 0, 2, 1),
    (Compression.NONE, 2**32 - 1, 1, 2**31 - 1, 1),
    (Compression.LZ4, 600, 60, 100, 100),
    (Compression.LZ4, 2**32 - 1, 60, 2**31 - 1, 10_320),
    (Compression.LZ4, 0, 60, 11, 1),
    (Compression.ZSTD, 2**32 - 1, 20, 100_000, 100_000),
    (Compression.ZSTD, 2**32 - 1, 500_000, 2**31 - 1, 1 << 20),
]


@pytest.mark.parametrize(("kind", "uncompressed_size", "payload_size", "said", "counted"), NO_MORE_THAN_FIT)
def test_a_batch_counts_for_no_more_messages_than_its_payload_can_hold(
    kind: Compression, uncompressed_size: int, payload_size: int, said: int, counted: int
) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=said)
    metadata.compression = int(kind)  # type: ignore[assignment] # The stub wants the enum's own class.
    metadata.uncompressed_size = uncompressed_size
    data = build_message(metadata, bytes(payload_size))
    assert (skim(data).num_messages, count_messages(data)) == (counted, counted)
    assert skim(data).num_messages_said == (said if said != counted else 0)


def test_what_clients_pack_counts_in_full() -> None:
    singles = [(pb.SingleMessageMetadata(payload_size=0), b"")] * 5_000
    for kind in Compression:
        data = build_batch(
            pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2), singles, compression=kind
        )
        assert (skim(data).num_messages, skim(data).num_messages_said) == (5_000, 0)
