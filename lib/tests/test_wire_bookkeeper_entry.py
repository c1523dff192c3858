"""Entries against bytes that BookKeeper 4.17.2's own DigestManager made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.errors import Misuse, PeerError
from magnetar.wire.bookkeeper.entry import DigestMismatch, EntryCodec, header, master_key, run_of

HEADER_HEX = "00000000000000070000000000000003000000000000000200000000000004d2"
DIGEST_HEX = {
    "CRC32C": "3016a106",
    "CRC32": "00000000214dfff8",
    "HMAC": "204f7470dbe126c2e43af4f040734d977789da04",
    "DUMMY": "",
}
EXPLICIT_LAC_HEX = {
    "CRC32C": "00000000000000070000000000000005b0e140ec",
    "CRC32": "0000000000000007000000000000000500000000f8b0d213",
    "HMAC": "000000000000000700000000000000053fb5a4b3aa81d32073665819fa0befefb1b41080",
    "DUMMY": "00000000000000070000000000000005",
}
digest_types = st.sampled_from(sorted(DIGEST_HEX))


def test_master_key() -> None:
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
    assert master_key(b"secret").hex() == "e793cbc379107648537183605cd361d3bb789a39"


@pytest.mark.parametrize("digest_type", sorted(DIGEST_HEX))
def test_bytes_are_bookkeepers(digest_type: str) -> None:
    codec = EntryCodec(7, digest_type, b"secret")
    (entry,) = codec.encode_many(3, 2, 1227, [b"payload"])
    assert entry.hex() == HEADER_HEX + DIGEST_HEX[digest_type] + b"payload".hex()
    assert codec.decode(entry, 3) == b"payload"
    assert header(entry) == codec.check(entry) == (7, 3, 2, 1234)


@pytest.mark.parametrize("digest_type", sorted(EXPLICIT_LAC_HEX))
def test_explicit_lac_is_bookkeepers(digest_type: str) -> None:
    codec = EntryCodec(7, digest_type, b"secret")
    assert codec.encode_explicit_lac(5).hex() == EXPLICIT_LAC_HEX[digest_type]
    assert codec.decode_explicit_lac(bytes.fromhex(EXPLICIT_LAC_HEX[digest_type])) == 5


def test_unknown_digest_is_misuse() -> None:
    with pytest.raises(Misuse):
        EntryCodec(1, "MD5")


@given(digest_type=digest_types, payloads=st.lists(st.binary(max_size=50), max_size=5), password=st.binary(max_size=9))
def test_round_trip(digest_type: str, payloads: list[bytes], password: bytes) -> None:
    codec = EntryCodec(1 << 40, digest_type, password)
    entries = codec.encode_many(10, 4, 100, payloads)
    assert [codec.decode(entry, 10 + index) for index, entry in enumerate(entries)] == payloads
    length = 100
    for index, entry in enumerate(entries):
        length += len(payloads[index])
        assert header(entry) == (1 << 40, 10 + index, 4, length)


@given(digest_type=st.sampled_from(["CRC32C", "CRC32", "HMAC"]), at=st.integers(0, 1000), flip=st.integers(1, 255))
def test_any_flipped_byte_is_found(digest_type: str, at: int, flip: int) -> None:
    codec = EntryCodec(7, digest_type)
    damaged = bytearray(codec.encode_many(0, -1, 0, [b"some payload"])[0])
    damaged[at % len(damaged)] ^= flip
    with pytest.raises(DigestMismatch):
        codec.decode(bytes(damaged), 0)
    with pytest.raises(DigestMismatch):
        codec.check(bytes(damaged))


def test_another_entry_or_ledger_is_found() -> None:
    (entry,) = EntryCodec(7, "DUMMY").encode_many(0, -1, 0, [b"x"])
    with pytest.raises(DigestMismatch):
        EntryCodec(7, "DUMMY").decode(entry, 1)
    with pytest.raises(DigestMismatch):
        EntryCodec(8, "DUMMY").decode(entry, 0)
    with pytest.raises(DigestMismatch):
        EntryCodec(8, "DUMMY").check(entry)


@given(digest_type=digest_types, garbage=st.binary(max_size=80))
def test_garbage_raises_peer_error_only(digest_type: str, garbage: bytes) -> None:
    codec = EntryCodec(7, digest_type)
    for decode in (lambda: codec.decode(garbage, 0), lambda: codec.check(garbage), lambda: header(garbage)):
        try:
            decode()
        except PeerError:
            continue


def test_a_run_ends_where_an_entry_is_missing() -> None:
    codec = EntryCodec(7, "CRC32C")
    first, _, third = codec.encode_many(3, -1, 0, [b"3", b"4", b"5"])
    payloads, error = codec.decode_run(run_of([first, third]), 3, 2)
    assert payloads == [b"3"]
    assert error is not None


@given(
    digest_type=digest_types,
    payloads=st.lists(st.binary(max_size=40), max_size=6),
    at=st.integers(0, 10_000),
    flip=st.integers(1, 255),
)
def test_a_run_is_good_up_to_the_first_wrong_entry(digest_type: str, payloads: list[bytes], at: int, flip: int) -> None:
    codec = EntryCodec(7, digest_type)
    entries = codec.encode_many(3, -1, 0, payloads)
    run = run_of(entries)
    assert run.entries() == entries
    assert codec.decode_run(run, 3, len(run)) == (payloads, None)
    assert codec.decode_run(run, 3, 2) == (payloads[:2], None)
    assert codec.decode_run(run, 4, len(run))[0] == []
    if digest_type != "DUMMY" and entries:
        wrong = at % len(entries)
        damaged = bytearray(entries[wrong])
        damaged[at % len(damaged)] ^= flip
        entries[wrong] = bytes(damaged)
        good, error = codec.decode_run(run_of(entries), 3, len(entries))
        assert good == payloads[:wrong]
        assert error is not None
    assert codec.decode_run(run_of([b"short"]), 0, 1)[1] is not None
