"""The stored records, byte for byte.

The vectors were made by Pulsar 4.0.8's own classes (MLDataFormats, MetaStoreImpl, RangeSetWrapper.toRanges)."""

from __future__ import annotations

import pytest
from magnetar.core.ids import Position
from magnetar.managed.ack_state import AckState
from magnetar.managed.info_codec import (
    BrokenMetadata,
    decode_cursor_info,
    decode_ledger_info,
    decode_position,
    encode_cursor_info,
    encode_ledger_info,
    encode_position,
    last_acknowledged,
    restore_acks,
)
from magnetar.managed.ledger_list import LedgerList, LedgerRecord
from magnetar.managed.paths import cursor_path, decode, encode
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import ManagedCursorInfo, ManagedLedgerInfo, PositionInfo

LEDGER_INFO = bytes.fromhex(
    "0a39080310d08603188080b51820fbd095ffbc312a2508fbffffffffffffffff01100718012000280932100a066177732d73"
    "3312060a01621201780a04080920001a0e0a05696e64657812053439393939"
)
LEDGER_INFO_TERMINATED = bytes.fromhex("0a0d08031005183220fbd095ffbc31120408031004")
CURSOR_INFO = bytes.fromhex(
    "08ffffffffffffffffff011003180a220c0a040803100c12040803100f22150a0d080910ffffffffffffffffff0112040809"
    "10002a0e0a0a70726f64756365722d31104d30fbd095ffbc313a110a040803101410faffffffffffffffff0142060a016b12"
    "0176"
)
POSITION_LONG_ARRAY = bytes.fromhex("0803100a320f08031080c08380808080808001100132080809100110001004")
POSITION_RANGES = bytes.fromhex(
    "0803100a1a0c0a040803100c12040803100f1a150a0d080910ffffffffffffffffff01120408091000220e0a016e10feffff"
    "ffffffffffff012a130a040803101410faffffffffffffffff011001"
)
COMPRESSED = {
    "ledger_info_lz4": (
        "47780000000408011051f30a0a39080310d08603188080b51820fbd095ffbc312a2508fbff0100f022011007180120002809"
        "32100a066177732d733312060a01621201780a04080920001a0e0a05696e64657812053439393939"
    ),
    "cursor_info_lz4": (
        "477800000004080110662408ff0100f40b011003180a220c0a040803100c12040803100f22150a0d0809102200f112ff0112"
        "04080910002a0e0a0a70726f64756365722d31104d30fbd095ffbc313a113c00341410fa3100900142060a016b120176"
    ),
    "ledger_info_zlib": (
        "47780000000408021051789ce2b2e46016b8d0c62cd1d0b05542e1f785a9fff7186aa972fcfe0f058c02ec128c0a0c1a9c46"
        "025c6c89e5c5bac5c6426c5c8c49428c155c2c1c9c0a0c527c5cac997929a91542ac26964000000000ffff"
    ),
    "cursor_info_zlib": (
        "47780000000408021066789ce2f80f038c02cc125c4a3c5c2c1ccc023c4220925f49948b97835300a10428cc29c0a0c5c7c5"
        "5550949f529a9c5aa46b28e06bf0fbc2d4ff7b0cad04c17a45047ec1d53bb17131660b319601000000ffff"
    ),
    "ledger_info_zstd": (
        "4778000000040803105128b52ffd24518902000a39080310d08603188080b51820fbd095ffbc312a2508fbffffffffffffff"
        "ff01100718012000280932100a066177732d733312060a01621201780a04080920001a0e0a05696e64657812053439393939"
        "53dde779"
    ),
    "cursor_info_zstd": (
        "4778000000040803106628b52ffd2466a50200440408ff011003180a220c0a040803100c120f22150a0d080910ff01120408"
        "0910002a0e0a0a70726f64756365722d31104d30fbd095ffbc313a111410fa42060a016b120176050053d5c057f7e1e84809"
        "8a0058bfac7874"
    ),
    "ledger_info_snappy": (
        "4778000000040804105151600a39080310d08603188080b51820fbd095ffbc312a2508fbff0d01c001100718012000280932"
        "100a066177732d733312060a01621201780a04080920001a0e0a05696e64657812053439393939"
    ),
    "cursor_info_snappy": (
        "47780000000408041066660408ff110134011003180a220c0a040803100c1201061c0f22150a0d0809101122a0ff01120408"
        "0910002a0e0a0a70726f64756365722d31104d30fbd095ffbc313a110a040803101410fa1131200142060a016b120176"
    ),
}

LONG_ARRAYS = ManagedLedgerSettings(persist_acks_as_long_array=True)
RANGES = ManagedLedgerSettings(persist_acks_as_long_array=False)


def state() -> AckState:
    """Mark 3:10 over two ledgers that are long enough for all vectors."""
    return AckState(LedgerList([LedgerRecord(3, 100), LedgerRecord(9, 200)]), (3, 10))


def test_ledger_info() -> None:
    info = decode_ledger_info(LEDGER_INFO)
    first, current = info.records
    assert (first.ledger_id, first.entries, first.size_bytes, first.closed_ms) == (
        3,
        50_000,
        51_200_000,
        1_700_000_000_123,
    )
    assert (current.ledger_id, current.entries, current.closed_ms) == (9, 0, 0)
    assert first.rest is not None
    assert first.rest.offloadContext.complete
    assert info.properties == {"index": "49999"}
    assert info.terminated_at is None
    assert encode_ledger_info(info.records, None, info.properties) == LEDGER_INFO


def test_a_due_time_stands_beside_what_others_have_noted_of_a_ledger() -> None:
    info = decode_ledger_info(LEDGER_INFO)
    first = info.records[0]
    assert first.due_ms == 0
    first.due_ms = 1_700_000_000_999
    again = decode_ledger_info(encode_ledger_info(info.records, None, info.properties))
    assert [record.due_ms for record in again.records] == [1_700_000_000_999, 0]
    assert again.records[0].rest is not None
    assert again.records[0].rest.offloadContext.complete
    again.records[0].due_ms += 1
    assert again.records[0].rest.properties.add(key="other", value="x").value == "x"
    stored = ManagedLedgerInfo.FromString(encode_ledger_info(again.records, None, {})).ledgerInfo[0]
    assert {each.key: each.value for each in stored.properties} == {"magnetar.due-ms": "1700000001000", "other": "x"}


@pytest.mark.parametrize("value", ["", "-5", "soon", "1.5", "9" * 20])
def test_a_due_time_that_is_no_number_says_nothing(value: str) -> None:
    node = ManagedLedgerInfo()
    node.ledgerInfo.add(ledgerId=3, timestamp=5).properties.add(key="magnetar.due-ms", value=value)
    assert decode_ledger_info(node.SerializeToString()).records[0].due_ms == 0


def test_terminated_ledger_info() -> None:
    info = decode_ledger_info(LEDGER_INFO_TERMINATED)
    assert info.terminated_at == (3, 4)
    assert encode_ledger_info(info.records, info.terminated_at, {}) == LEDGER_INFO_TERMINATED


def test_cursor_info() -> None:
    info = decode_cursor_info(CURSOR_INFO)
    acks = state()
    restore_acks(acks, info)
    assert acks.ranges() == [((3, 12), (3, 15)), ((9, -1), (9, 0))]
    assert acks.remaining_ack_set((3, 20)) == [-6]
    again = encode_cursor_info(acks, {"producer-1": 77}, {"k": "v"}, LONG_ARRAYS, 1_700_000_000_123)
    assert again == CURSOR_INFO


def test_position_with_long_arrays() -> None:
    acks = state()
    restore_acks(acks, decode_position(POSITION_LONG_ARRAY))
    assert acks.ranges() == [((3, 12), (3, 15)), ((3, 62), (3, 64)), ((9, -1), (9, 0)), ((9, 129), (9, 130))]
    assert encode_position(acks, {}, LONG_ARRAYS) == POSITION_LONG_ARRAY


@pytest.mark.parametrize(
    ("stored", "last"),
    [
        (decode_cursor_info(CURSOR_INFO), (9, 0)),
        (decode_position(POSITION_LONG_ARRAY), (9, 130)),
        (decode_position(POSITION_RANGES), (9, 0)),
        (PositionInfo(ledgerId=3, entryId=7), (3, 7)),
        (ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=3, markDeleteEntryId=-1), (3, -1)),
    ],
)
def test_the_last_position_that_a_record_has_as_acknowledged(
    stored: PositionInfo | ManagedCursorInfo, last: Position
) -> None:
    assert last_acknowledged(stored) == last


def test_position_with_ranges() -> None:
    acks = state()
    restore_acks(acks, decode_position(POSITION_RANGES))
    assert acks.ranges() == [((3, 12), (3, 15)), ((9, -1), (9, 0))]
    assert acks.remaining_ack_set((3, 20)) == [-6, 1]
    assert encode_position(acks, {"n": -2}, RANGES) == POSITION_RANGES


@pytest.mark.parametrize("name", list(COMPRESSED))
def test_compressed_records_are_understood(name: str) -> None:
    data = bytes.fromhex(COMPRESSED[name])
    if name.startswith("ledger"):
        info = decode_ledger_info(data)
        assert encode_ledger_info(info.records, None, info.properties) == LEDGER_INFO
    else:
        assert decode_cursor_info(data).SerializeToString() == CURSOR_INFO


@pytest.mark.parametrize(
    "data", [b"\x08", b"\x47\x78\x00\x00\x00\x04\x08\x02\x10\x51nonsense", b"\x47\x78\x00\x00\x00\x09\xff"]
)
def test_broken_records(data: bytes) -> None:
    for read in (decode_ledger_info, decode_cursor_info, decode_position):
        with pytest.raises(BrokenMetadata):
            read(data)


def test_names_in_paths() -> None:
    assert encode("a b/c~d*e-f_g.é") == "a+b%2Fc%7Ed*e-f_g.%C3%A9"
    assert decode(encode("a b/c~d*+%")) == "a b/c~d*+%"
    assert cursor_path("t/n/persistent/x", "my sub") == "/managed-ledgers/t/n/persistent/x/my+sub"


PROPERTY = b"\x0a\x01a\x12\x01b"
NO_TEXT = (b"\x0a\x01\xff\x12\x01b", b"\x0a\x01a\x12\x01\xff")
"""Properties whose name, or whose value, is no UTF-8."""


def _field(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | 2, len(data))) + data


@pytest.mark.parametrize("damaged", NO_TEXT)
def test_texts_that_are_none_are_broken_records(damaged: bytes) -> None:
    ledger = b"\x08\x05"
    driver = _field(1, b"aws-s3")
    for wanted, broken in (
        (_field(3, PROPERTY), _field(3, damaged)),
        (_field(1, ledger + _field(6, PROPERTY)), _field(1, ledger + _field(6, damaged))),
        (
            _field(1, ledger + _field(5, _field(6, driver + _field(2, PROPERTY)))),
            _field(1, ledger + _field(5, _field(6, driver + _field(2, damaged)))),
        ),
    ):
        decode_ledger_info(wanted)
        with pytest.raises(BrokenMetadata, match="no UTF-8"):
            decode_ledger_info(broken)


def test_names_of_a_cursors_properties_that_are_none_are_broken_records() -> None:
    for damaged in NO_TEXT:
        with pytest.raises(BrokenMetadata, match="no UTF-8"):
            decode_cursor_info(b"\x08\x01" + _field(8, damaged))
    name = b"\x0a\x01\xff\x10\x01"
    with pytest.raises(BrokenMetadata, match="no UTF-8"):
        decode_position(b"\x08\x01\x10\x01" + _field(4, name))
    with pytest.raises(BrokenMetadata, match="no UTF-8"):
        decode_cursor_info(b"\x08\x01" + _field(5, name))


def test_what_could_not_be_written_again_is_a_broken_record() -> None:
    with pytest.raises(BrokenMetadata, match="lacks what it must have"):
        decode_ledger_info(_field(1, b"\x08\x05" + _field(6, b"\x0a\x01a")))
