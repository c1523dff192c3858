"""Blocks, indexes and names of offloaded ledgers: byte by byte as Apache's, and what is damaged is told."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.errors import Misuse
from magnetar.tiered.testing import ClosedMemoryLedger
from magnetar.wire.offload.data_block import (
    BLOCK_MAGIC,
    HEADER_BYTES,
    decode_block_header,
    encode_block_header,
    encode_streaming_block,
    padding,
    scan_entries,
    streaming_block_bytes,
    wanted_bytes,
)
from magnetar.wire.offload.data_object import DataObjectWriter
from magnetar.wire.offload.errors import BadOffload
from magnetar.wire.offload.index import (
    INDEX_BYTES_MAX,
    IndexEntry,
    decode_index,
    encode_index,
    encode_streaming_index,
)
from magnetar.wire.offload.object_names import (
    ObjectName,
    check_format_version,
    data_key,
    index_key,
    parse_object_name,
    streaming_data_key,
    streaming_index_key,
    user_metadata,
)
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import ManagedLedgerInfo

from lib.tests.recorded_offloads import (
    LEDGER_ID,
    SIZES,
    STREAMING_BLOCK_BYTES_MIN,
    STREAMING_BLOCKS,
    UID,
    payload,
    payloads,
    recorded,
)

NAMES = sorted(SIZES)


def written(data: list[bytes], block_bytes_max: int) -> tuple[bytes, DataObjectWriter]:
    writer = DataObjectWriter(len(data) - 1, sum(map(len, data)), block_bytes_max)
    given = writer.add(data)
    return b"".join(given + writer.finish()), writer


def streaming_infos() -> list[tuple[ManagedLedgerInfo.LedgerInfo, list[IndexEntry]]]:
    made: dict[int, tuple[ManagedLedgerInfo.LedgerInfo, list[IndexEntry]]] = {}
    offset = 0
    for part_id, (ledger_id, first, count, size_bytes) in enumerate(STREAMING_BLOCKS, 1):
        entry = made.setdefault(
            ledger_id,
            (ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id, size=1234, timestamp=1_700_000_000_123), []),
        )
        entry[0].entries = first + count
        entry[1].append(IndexEntry(first, part_id, offset))
        offset += streaming_block_bytes(STREAMING_BLOCK_BYTES_MIN, [bytes(size_bytes)] * count)
    return list(made.values())


# --- Apache's bytes ---


@pytest.mark.parametrize("name", NAMES)
def test_a_data_object_is_apaches(name: str) -> None:
    data, writer = written(payloads(name), SIZES[name][0])
    assert data == recorded(f"{name}-data")
    assert writer.size_bytes == len(data)


@pytest.mark.parametrize("name", NAMES)
def test_an_index_is_apaches(name: str) -> None:
    _, writer = written(payloads(name), SIZES[name][0])
    described = ClosedMemoryLedger(LEDGER_ID, payloads(name)).described()
    encoded = encode_index(described, writer.size_bytes, HEADER_BYTES, writer.blocks)
    assert encoded == recorded(f"{name}-index")
    assert b"secret" not in encoded, "the password stays in the metadata store"
    index = decode_index(encoded)
    ledger = index.ledgers[None]
    assert (index.data_bytes, index.header_bytes) == (writer.size_bytes, 128)
    assert list(ledger.blocks) == writer.blocks
    assert ledger.last_entry_id == len(SIZES[name][1]) - 1
    assert ledger.length_bytes == sum(SIZES[name][1])


def test_streaming_blocks_are_apaches() -> None:
    blocks = []
    for ledger_id, first, count, size_bytes in STREAMING_BLOCKS:
        data = [payload(entry_id, size_bytes) for entry_id in range(first, first + count)]
        block_bytes = streaming_block_bytes(STREAMING_BLOCK_BYTES_MIN, data)
        blocks.append(encode_streaming_block(block_bytes, ledger_id, first, data))
    assert b"".join(blocks) == recorded("streaming-data")
    header = decode_block_header(blocks[2])
    assert (header.ledger_id, header.first_entry_id, header.block_bytes) == (101, 0, len(blocks[2]))


def test_a_streaming_index_is_apaches() -> None:
    data_bytes = len(recorded("streaming-data"))
    assert encode_streaming_index(data_bytes, HEADER_BYTES, streaming_infos()) == recorded("streaming-index")
    index = decode_index(recorded("streaming-index"))
    assert sorted(filter(None, index.ledgers)) == [100, 101]
    assert index.ledgers[100].first_entry_id == 5
    assert index.ledgers[100].last_entry_id == 9
    assert [index.ledgers[100].block_of(entry_id) for entry_id in (5, 7, 8, 9)] == [0, 0, 1, 1]


# --- blocks ---


@given(
    st.lists(st.integers(0, 700), min_size=1, max_size=60),
    st.integers(141, 900),
    st.integers(-300, 300),
)
def test_every_entry_is_found_in_the_block_that_the_index_names(
    sizes: list[int], block_bytes_max: int, lie_bytes: int
) -> None:
    """Also of a ledger whose metadata tells a wrong length, and with entries that are larger than a block may be."""
    data = [payload(entry_id, size_bytes) for entry_id, size_bytes in enumerate(sizes)]
    writer = DataObjectWriter(len(data) - 1, max(0, sum(sizes) + lie_bytes), block_bytes_max)
    whole = b"".join(writer.add(data) + writer.finish())
    assert len(whole) == writer.size_bytes
    found: list[bytes] = []
    for number, block in enumerate(writer.blocks):
        header = decode_block_header(whole[block.offset :])
        assert header.first_entry_id == block.first_entry_id == len(found)
        assert block.part_id == number + 1
        held = memoryview(whole)[block.offset + header.header_bytes : block.offset + header.block_bytes]
        scan = scan_entries(held, len(found), 0, len(data) - 1)
        assert scan.ended or scan.used_bytes == len(held) or scan.next_entry_id == len(data)
        found += scan.payloads
    assert found == data


@given(st.lists(st.integers(0, 60), min_size=1, max_size=20), st.data())
def test_entries_are_the_same_in_any_pieces(sizes: list[int], draw: st.DataObject) -> None:
    data = [payload(entry_id, size_bytes) for entry_id, size_bytes in enumerate(sizes)]
    whole = memoryview(written(data, 5 << 20)[0] + padding(draw.draw(st.integers(0, 30))))
    position, next_id, found = HEADER_BYTES, 0, []
    while next_id < len(data):
        piece = whole[position : position + draw.draw(st.integers(0, 100))]
        scan = scan_entries(piece, next_id, 0, len(data) - 1)
        assert not scan.ended
        if not scan.used_bytes and (needed := wanted_bytes(piece)) > len(piece):
            scan = scan_entries(whole[position : position + max(needed, 72)], next_id, 0, len(data) - 1)
            assert scan.used_bytes
        found += scan.payloads
        position, next_id = position + scan.used_bytes, scan.next_entry_id
    assert found == data


@pytest.mark.parametrize("size_bytes", [1, 2, 3, 4, 11, 12, 200])
def test_padding_of_any_length_ends_a_block(size_bytes: int) -> None:
    assert scan_entries(memoryview(padding(size_bytes)), 7, 7, 9).ended


def test_a_writer_wants_all_entries_and_no_more() -> None:
    writer = DataObjectWriter(1, 2, 200)
    writer.add([b"a"])
    with pytest.raises(Misuse, match="not before 1"):
        writer.finish()
    with pytest.raises(Misuse, match="beyond the ledger's last one"):
        writer.add([b"b", b"c"])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\xfb\xdb\xab\xcb" + bytes(80), "84 bytes"),
        (bytes(128), "magic 0x00000000"),
        (struct.pack(">Iqqq", BLOCK_MAGIC, 8, 500, 0).ljust(128), "a header of 8"),
        (struct.pack(">Iqqq", BLOCK_MAGIC, 1 << 40, 1 << 50, 0).ljust(128), "a header of 1099511627776"),
        (struct.pack(">Iqqq", BLOCK_MAGIC, 128, 100, 0).ljust(128), "a block of 100 bytes"),
        (struct.pack(">Iqqq", BLOCK_MAGIC, 128, -1, 0).ljust(128), "a block of -1 bytes"),
        (encode_block_header(500, -3), "begins with entry -3"),
    ],
)
def test_a_header_that_lies_is_told(data: bytes, told: str) -> None:
    with pytest.raises(BadOffload, match=told):
        decode_block_header(data)


def test_another_entry_than_the_next_is_told() -> None:
    whole = memoryview(recorded("blocks-data"))[HEADER_BYTES:600]
    with pytest.raises(BadOffload, match="entry 0 stands where entry 1 should"):
        scan_entries(whole, 1, 1, 3)


# --- indexes ---


@pytest.mark.parametrize("name", ["one-block-index", "blocks-index", "streaming-index"])
def test_an_index_that_is_cut_short_is_told(name: str) -> None:
    whole = recorded(name)
    for size_bytes in range(len(whole)):
        with pytest.raises(BadOffload):
            decode_index(whole[:size_bytes])


@given(st.data())
def test_any_bytes_are_an_index_or_told(draw: st.DataObject) -> None:
    whole = bytearray(recorded(draw.draw(st.sampled_from(["blocks-index", "streaming-index"]))))
    for _ in range(draw.draw(st.integers(1, 4))):
        whole[draw.draw(st.integers(0, len(whole) - 1))] = draw.draw(st.integers(0, 255))
    try:
        index = decode_index(bytes(whole))
    except BadOffload:
        return
    for ledger in index.ledgers.values():
        assert 0 <= ledger.first_entry_id <= ledger.last_entry_id
        assert all(0 <= block.offset < index.data_bytes for block in ledger.blocks)


@pytest.mark.parametrize(
    ("position", "value", "told"),
    [
        (0, struct.pack(">I", 0xDE47DE48), "magic 0xde47de48"),
        (8, struct.pack(">q", -1), "an index over -1 bytes"),
        (8, struct.pack(">q", 1900), "the object at 1900"),
        (16, struct.pack(">q", 5), "block headers have 5"),
        (24, struct.pack(">i", 0), "an index of 0 blocks"),
        (24, struct.pack(">i", -5), "an index of -5 blocks"),
        (24, struct.pack(">i", 2**31 - 1), "that should have"),
        (28, struct.pack(">i", -1), "-1 bytes of metadata"),
        (28, struct.pack(">i", 2**31 - 1), "that should have"),
        (32, b"\xff\xff", "damaged ledger metadata"),
        (-20, struct.pack(">q", 3), "a block of entry 3 at 1800 behind one of entry 11 at 1200"),
        (-20, struct.pack(">q", 99), "the ledger ends with entry 15"),
        (-8, struct.pack(">q", 1200), "at 1200 behind one"),
        (-8, struct.pack(">q", -7), "at -7 behind one"),
        (-8, struct.pack(">q", 1 << 60), "at 1152921504606846976"),
    ],
)
def test_an_index_that_lies_is_told(position: int, value: bytes, told: str) -> None:
    whole = bytearray(recorded("blocks-index"))
    position %= len(whole)
    if told == "the object at 1900":
        value = struct.pack(">q", 1810)
        told = "the object at 1810"
    whole[position : position + len(value)] = value
    with pytest.raises(BadOffload, match=told):
        decode_index(bytes(whole))


def test_an_index_over_an_open_ledger_and_one_too_long_are_told() -> None:
    with pytest.raises(BadOffload, match="are the most"):
        decode_index(bytes(INDEX_BYTES_MAX + 1))
    with pytest.raises(BadOffload, match="has ledger 100 twice"):
        decode_index(encode_streaming_index(2000, 128, [*streaming_infos(), streaming_infos()[0]]))
    with pytest.raises(BadOffload, match="without a ledger"):
        decode_index(encode_streaming_index(2000, 128, []))
    info = ManagedLedgerInfo.LedgerInfo(ledgerId=1)
    with pytest.raises(BadOffload, match="a ledger of 0 entries"):
        decode_index(encode_streaming_index(2000, 128, [(info, [IndexEntry(0, 1, 0)])]))
    empty = ClosedMemoryLedger(1, []).described()
    with pytest.raises(BadOffload, match="up to entry -1"):
        decode_index(encode_index(empty, 2000, 128, [IndexEntry(0, 1, 0)]))


# --- names and user metadata ---


def test_names_are_apaches_and_say_what_they_are() -> None:
    uid = UUID(UID)
    assert data_key(uid, LEDGER_ID) == f"{UID}-ledger-4711"
    assert parse_object_name(data_key(uid, LEDGER_ID)) == ObjectName(uid, LEDGER_ID, is_index=False)
    assert parse_object_name(index_key(uid, LEDGER_ID)) == ObjectName(uid, LEDGER_ID, is_index=True)
    assert parse_object_name(streaming_data_key(uid)) == ObjectName(uid, None, is_index=False)
    assert parse_object_name(streaming_index_key(uid)) == ObjectName(uid, None, is_index=True)


@pytest.mark.parametrize(
    "key",
    ["", "backup.tar", UID + "-ledger-", UID + "-ledger-1-Index", UID + "-ledger--1", UID.upper(), UID + "-ledger-01"]
    + [f"x/{UID}-ledger-1", UID + "-ledger-9223372036854775808", UID + "-ledger-1\n"],
)
def test_names_of_others_are_left_alone(key: str) -> None:
    assert parse_object_name(key) is None


def test_user_metadata_is_what_apache_asks_for() -> None:
    made = user_metadata(
        is_index=True, managed_ledger_name="public/default/persistent/a%2Fb", software_version="1.0\nx: ü"
    )
    assert made == {
        "s3managedledgeroffloaderformatversion": "1",
        "role": "index",
        "managedledgername": "public/default/persistent/a%2Fb",
        "s3managedledgeroffloadersoftwareversion": "1.0%0Ax: %C3%BC",
    }
    check_format_version(made)
    check_format_version({"S3ManagedLedgerOffloaderFormatVersion": "1"})
    with pytest.raises(BadOffload, match="no format version"):
        check_format_version({"role": "data"})
    with pytest.raises(BadOffload, match="the format version '2'"):
        check_format_version({"s3managedledgeroffloaderformatversion": "2"})
