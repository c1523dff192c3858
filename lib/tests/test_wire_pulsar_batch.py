import contextlib
import struct
import zlib
from typing import Any

import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from magnetar.wire.pulsar.batch import BATCH_MESSAGES_MAX, build_batch, build_message, decompressed_payload, split_batch
from magnetar.wire.pulsar.compression import compress, decompress
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import checksum_ok, skim

# The same three messages, written by Pulsar 4.0.8 with each of its codecs.
BATCHES = {
    Compression.NONE: (
        "0e01a840be860000000b0a017010051801487258030000000612026b30181c76616c75652d3076616c75652d3076616c7565"
        "2d3076616c75652d300000000612026b31181c76616c75652d3176616c75652d3176616c75652d3176616c75652d31000000"
        "0612026b32181c76616c75652d3276616c75652d3276616c75652d3276616c75652d32"
    ),
    Compression.LZ4: (
        "0e014c1c41330000000d0a017010051801400148725803ff020000000612026b30181c76616c75652d300700020326001431"
        "2600123126000b07000326001432260012322600060700506c75652d32"
    ),
    Compression.ZLIB: (
        "0e019722ea6b0000000d0a017010051801400248725803789c626060601362ca369090294bcc294dd535c04a31405419c254"
        "1962a5a0aa8c60aa8cb05200000000ffff"
    ),
    Compression.ZSTD: (
        "0e01d52241700000000d0a01701005180140034872580328b52ffd2472550100a80000000612026b30181c76616c75652d30"
        "313132320900a00318070883cc400f300e104e2ab3f59525cb09ed2d"
    ),
    Compression.SNAPPY: (
        "0e013850d72f0000000d0a01701005180140044872580372400000000612026b30181c76616c75652d305207000d26003111"
        "26003109263a07000d260032112600320926383276616c75652d3276616c75652d32"
    ),
}


@pytest.mark.parametrize("kind", list(Compression))
def test_batches_of_pulsar_are_split(kind: Compression) -> None:
    data = bytes.fromhex(BATCHES[kind])
    assert checksum_ok(data, 0, len(data))
    assert skim(data).compression == kind
    messages = split_batch(data)
    assert [(single.partition_key, payload) for single, payload in messages] == [
        (f"k{index}", f"value-{index}".encode() * 4) for index in range(3)
    ]


def metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)


@given(st.sampled_from(list(Compression)), st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=50)), min_size=1))
def test_batch_round_trip(kind: Compression, messages: list[tuple[str, bytes]]) -> None:
    singles = [(pb.SingleMessageMetadata(partition_key=key, payload_size=0), payload) for key, payload in messages]
    data = build_batch(metadata(), singles, kind)
    assert checksum_ok(data, 0, len(data))
    view = skim(data)
    assert (view.is_batch, view.num_messages, view.compression) == (True, len(messages), kind)
    assert [(single.partition_key, payload) for single, payload in split_batch(data)] == messages


@given(st.sampled_from(list(Compression)), st.binary(max_size=300))
def test_compression_round_trip(kind: Compression, data: bytes) -> None:
    assert decompress(kind, compress(kind, data), len(data), 300) == data


@pytest.mark.parametrize("kind", [kind for kind in Compression if kind])
def test_sizes_that_are_not_what_was_announced(kind: Compression) -> None:
    data = bytes(1000)
    packed = compress(kind, data)
    for size in (0, 1, 999, 1001):
        with pytest.raises(BadMetadata):
            decompress(kind, packed, size, 10_000)
    with pytest.raises(BadMetadata):
        decompress(kind, packed, 1000, 999)
    with pytest.raises(BadMetadata):
        decompress(kind, packed[: len(packed) // 2], 1000, 10_000)


def test_a_block_cannot_ask_for_memory() -> None:
    # 0x1000000000 bytes, says this zstd frame; 0xffffffff, says this snappy block.
    for kind, block in (
        (Compression.ZSTD, bytes.fromhex("28b52ffde00000000010000000")),
        (Compression.SNAPPY, bytes.fromhex("ffffffff0f00616263")),
    ):
        with pytest.raises(BadMetadata):
            decompress(kind, block, 10, 100)
    # Without a size in the frame, the bound holds.
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100_000))
    assert decompress(Compression.ZSTD, stream, 100_000, 100_000) == bytes(100_000)
    with pytest.raises(BadMetadata):
        decompress(Compression.ZSTD, stream, 10, 100)
    assert snappy.uncompress(compress(Compression.SNAPPY, b"raw")) == b"raw"


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(BadMetadata):
        decompress(9, b"x", 1, 10)


@given(st.integers(0, 6), st.binary(max_size=60), st.integers(0, 80))
def test_garbage_blocks_are_unpacked_or_refused(kind: int, data: bytes, size: int) -> None:
    with contextlib.suppress(BadMetadata):
        assert len(decompress(kind, data, size, 1000)) in (size, len(data))


@given(st.integers(-1, 4), st.integers(0, 4), st.integers(0, 60), st.binary(max_size=60))
def test_garbage_batches_are_split_or_refused(count: int, kind: int, size: int, body: bytes) -> None:
    data = build_message(metadata(num_messages_in_batch=count, compression=kind, uncompressed_size=size), body)
    with contextlib.suppress(BadMetadata):
        split_batch(data)


@given(st.binary(max_size=60))
def test_garbage_messages_are_split_or_refused(data: bytes) -> None:
    for read in (split_batch, decompressed_payload):
        with contextlib.suppress(BadMetadata):
            read(data)


def tiny_batch(count: int) -> bytes:
    """A compressed batch of empty messages, a hundred of them a byte."""
    body = b"\0\0\0\2\x18\0" * count
    fields = {"num_messages_in_batch": count, "compression": int(Compression.ZLIB), "uncompressed_size": len(body)}
    return build_message(metadata(**fields), zlib.compress(body))


def test_a_batch_of_too_many_messages_is_not_taken_apart() -> None:
    assert len(split_batch(tiny_batch(1000), 1000)) == 1000
    for data, messages_max in ((tiny_batch(1001), 1000), (tiny_batch(BATCH_MESSAGES_MAX + 1), BATCH_MESSAGES_MAX)):
        assert len(data) < 2000
        with pytest.raises(BadMetadata, match="messages"):
            split_batch(data, messages_max)
    with pytest.raises(BadMetadata, match="unpack"):
        split_batch(tiny_batch(100), 100, 500)


def test_a_batch_that_ends_early() -> None:
    single = pb.SingleMessageMetadata(payload_size=10).SerializeToString()
    for body in (b"", b"\x00\x00", struct.pack(">I", 9), struct.pack(">I", len(single)) + single + b"short"):
        with pytest.raises(BadMetadata):
            split_batch(build_message(metadata(num_messages_in_batch=1), body))
    negative = pb.SingleMessageMetadata(payload_size=-1).SerializeToString()
    with pytest.raises(BadMetadata):
        split_batch(build_message(metadata(num_messages_in_batch=1), struct.pack(">I", len(negative)) + negative))
