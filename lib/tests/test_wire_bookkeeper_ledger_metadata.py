"""Ledger metadata against bytes that BookKeeper 4.17.2's own LedgerMetadataSerDe wrote."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.errors import PeerError
from magnetar.wire.bookkeeper.ledger_metadata import (
    LedgerMetadata,
    LedgerState,
    decode_ledger_metadata,
    encode_ledger_metadata,
)

FORMAT_3_OPEN = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a5808031003180020ffffffffffffffffff012801"
    "321d0a0762313a333138310a0762323a333138310a0762333a3331383110003803420048025080d095ffbc315a150a0b6170"
    "706c69636174696f6e120670756c7361726000"
)
FORMAT_3_IN_RECOVERY = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a5808031003180020ffffffffffffffffff012802"
    "321d0a0762313a333138310a0762323a333138310a0762333a3331383110003803420048025080d095ffbc315a150a0b6170"
    "706c69636174696f6e120670756c7361726000"
)
FORMAT_3_CLOSED = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a6f0803100318b96020132803321d0a0762313a33"
    "3138310a0762323a333138310a0762333a333138311000321d0a0762313a333138310a0762343a333138310a0762333a3331"
    "3831100a3803420048025080d095ffbc315a150a0b6170706c69636174696f6e120670756c7361726000"
)
FORMAT_2_OPEN = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09320a71756f72756d53697a653a20330a656e73656d62"
    "6c6553697a653a20330a6c656e6774683a20300a6c617374456e74727949643a202d310a73746174653a204f50454e0a7365"
    "676d656e74207b0a2020656e73656d626c654d656d6265723a202262313a33313831220a2020656e73656d626c654d656d62"
    "65723a202262323a33313831220a2020656e73656d626c654d656d6265723a202262333a33313831220a2020666972737445"
    "6e74727949643a20300a7d0a646967657374547970653a204352433332430a70617373776f72643a2022220a61636b51756f"
    "72756d53697a653a20320a6374696d653a20313730303030303030303030300a637573746f6d4d65746164617461207b0a20"
    "206b65793a20226170706c69636174696f6e220a202076616c75653a202270756c736172220a7d0a"
)
FORMAT_2_IN_RECOVERY = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09320a71756f72756d53697a653a20330a656e73656d62"
    "6c6553697a653a20330a6c656e6774683a20300a6c617374456e74727949643a202d310a73746174653a20494e5f5245434f"
    "564552590a7365676d656e74207b0a2020656e73656d626c654d656d6265723a202262313a33313831220a2020656e73656d"
    "626c654d656d6265723a202262323a33313831220a2020656e73656d626c654d656d6265723a202262333a33313831220a20"
    "206669727374456e74727949643a20300a7d0a646967657374547970653a204352433332430a70617373776f72643a202222"
    "0a61636b51756f72756d53697a653a20320a6374696d653a20313730303030303030303030300a637573746f6d4d65746164"
    "617461207b0a20206b65793a20226170706c69636174696f6e220a202076616c75653a202270756c736172220a7d0a"
)
FORMAT_2_CLOSED = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09320a71756f72756d53697a653a20330a656e73656d62"
    "6c6553697a653a20330a6c656e6774683a2031323334350a6c617374456e74727949643a2031390a73746174653a20434c4f"
    "5345440a7365676d656e74207b0a2020656e73656d626c654d656d6265723a202262313a33313831220a2020656e73656d62"
    "6c654d656d6265723a202262323a33313831220a2020656e73656d626c654d656d6265723a202262333a33313831220a2020"
    "6669727374456e74727949643a20300a7d0a7365676d656e74207b0a2020656e73656d626c654d656d6265723a202262313a"
    "33313831220a2020656e73656d626c654d656d6265723a202262343a33313831220a2020656e73656d626c654d656d626572"
    "3a202262333a33313831220a20206669727374456e74727949643a2031300a7d0a646967657374547970653a204352433332"
    "430a70617373776f72643a2022220a61636b51756f72756d53697a653a20320a6374696d653a203137303030303030303030"
    "30300a637573746f6d4d65746164617461207b0a20206b65793a20226170706c69636174696f6e220a202076616c75653a20"
    "2270756c736172220a7d0a"
)
FORMAT_1_OPEN = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09310a330a330a300a300962313a333138310962323a33"
    "3138310962333a333138310a"
)
FORMAT_1_IN_RECOVERY = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09310a330a330a300a300962313a333138310962323a33"
    "3138310962333a333138310a2d31303209434c4f534544"
)
FORMAT_1_CLOSED = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09310a330a330a31323334350a300962313a3331383109"
    "62323a333138310962333a333138310a31300962313a333138310962343a333138310962333a333138310a313909434c4f53"
    "4544"
)

ENSEMBLE = (0, ["b1:3181", "b2:3181", "b3:3181"])
CHANGED = (10, ["b1:3181", "b4:3181", "b3:3181"])
OPEN = LedgerMetadata(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    ensembles=[ENSEMBLE],
    created_ms=1_700_000_000_000,
    custom_metadata={"application": b"pulsar"},
)
IN_RECOVERY = dataclasses.replace(OPEN, state=LedgerState.IN_RECOVERY)
CLOSED = dataclasses.replace(
    OPEN, state=LedgerState.CLOSED, ensembles=[ENSEMBLE, CHANGED], last_entry_id=19, length_bytes=12345
)


def as_format_1(metadata: LedgerMetadata) -> LedgerMetadata:
    return dataclasses.replace(metadata, ack_quorum=3, digest_type=None, created_ms=None, custom_metadata={})


@pytest.mark.parametrize(
    ("data", "expected"),
    [(FORMAT_3_OPEN, OPEN), (FORMAT_3_IN_RECOVERY, IN_RECOVERY), (FORMAT_3_CLOSED, CLOSED)],
)
def test_format_3_is_byte_for_byte_bookkeepers(data: bytes, expected: LedgerMetadata) -> None:
    assert decode_ledger_metadata(data) == expected
    assert encode_ledger_metadata(expected) == data


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (FORMAT_2_OPEN, OPEN),
        (FORMAT_2_IN_RECOVERY, IN_RECOVERY),
        (FORMAT_2_CLOSED, CLOSED),
        (FORMAT_1_OPEN, as_format_1(OPEN)),
        (FORMAT_1_IN_RECOVERY, as_format_1(IN_RECOVERY)),
        (FORMAT_1_CLOSED, as_format_1(CLOSED)),
    ],
)
def test_older_formats_are_read(data: bytes, expected: LedgerMetadata) -> None:
    assert decode_ledger_metadata(data) == expected


def test_the_ensemble_of_an_entry_is_that_of_its_segment() -> None:
    assert CLOSED.ensemble_of(9) == ENSEMBLE[1]
    assert CLOSED.ensemble_of(10) == CHANGED[1]
    assert CLOSED.ensemble_of(1000) == CHANGED[1]


def test_a_segment_with_the_same_first_entry_is_replaced() -> None:
    changed = CLOSED.with_ensemble(10, ["x", "y", "z"])
    assert changed.ensembles == [ENSEMBLE, (10, ["x", "y", "z"])]
    assert CLOSED.with_ensemble(12, ["x", "y", "z"]).ensembles == [ENSEMBLE, CHANGED, (12, ["x", "y", "z"])]


bookie_ids = st.lists(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1), min_size=1, max_size=4)
ensembles = st.dictionaries(st.integers(0, 2**62), bookie_ids, min_size=1, max_size=4).map(
    lambda segments: sorted(segments.items())
)


@pytest.mark.slow
@given(
    ensembles=ensembles,
    state=st.sampled_from(LedgerState),
    last=st.integers(-1, 2**62),
    length=st.integers(0, 2**62),
    digest=st.sampled_from(["CRC32", "CRC32C", "HMAC", "DUMMY"]),
    password=st.binary(max_size=30),
    custom=st.dictionaries(st.text(max_size=10), st.binary(max_size=300), max_size=3),
)
def test_round_trip(
    ensembles: list[tuple[int, list[str]]],
    state: LedgerState,
    last: int,
    length: int,
    digest: str,
    password: bytes,
    custom: dict[str, bytes],
) -> None:
    metadata = LedgerMetadata(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        ensembles=ensembles,
        state=state,
        last_entry_id=last,
        length_bytes=length,
        digest_type=digest,
        password=password,
        custom_metadata=custom,
    )
    assert decode_ledger_metadata(encode_ledger_metadata(metadata)) == metadata


@given(version=st.sampled_from([b"1", b"2", b"3", b"4", b""]), garbage=st.binary(max_size=200))
def test_garbage_raises_peer_error_only(version: bytes, garbage: bytes) -> None:
    for data in (garbage, b"BookieMetadataFormatVersion\t" + version + b"\n" + garbage):
        try:
            decode_ledger_metadata(data)
        except PeerError:
            continue


def test_an_escape_that_is_none_is_damage() -> None:
    data = bytearray(FORMAT_2_CLOSED)
    at = data.index(b"bookie") if b"bookie" in data else data.index(b'"') + 1
    data[at : at + 2] = b"\\:"
    with pytest.raises(PeerError):
        decode_ledger_metadata(bytes(data))


@given(at=st.integers(0, len(FORMAT_3_CLOSED) - 1), value=st.integers(0, 255))
def test_a_flipped_byte_raises_peer_error_only(at: int, value: int) -> None:
    for source in (FORMAT_3_CLOSED, FORMAT_2_CLOSED, FORMAT_1_CLOSED):
        data = bytearray(source)
        data[at % len(data)] = value
        try:
            decode_ledger_metadata(bytes(data))
        except PeerError:
            continue
