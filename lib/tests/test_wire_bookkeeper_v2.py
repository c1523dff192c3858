"""Version 2 both ways; the byte layouts are spelt out by hand where two sides could be wrong together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.errors import PeerError
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX
from magnetar.ledger.bookie_client.bookie_connection import ADD_FLAG_HIGH_PRIORITY, ADD_FLAG_RECOVERY
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.entry import EntryCodec, master_key
from magnetar.wire.framing import FrameSplitter

KEY = master_key(b"")
ids = st.integers(-1, 2**63 - 1)


def requests_of(stream: bytes) -> list[v2.Request]:
    return v2.decode_requests(*FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX).feed(stream))


def responses_of(stream: bytes) -> list[v2.Response]:
    return v2.decode_responses(*FrameSplitter(BOOKKEEPER_FRAME_BYTES_MAX).feed(stream))


def fields(item: object) -> dict[str, object]:
    return {name: getattr(item, name) for name in dir(item) if not name.startswith("_")}


def test_add_bytes() -> None:
    (entry,) = EntryCodec(5, "DUMMY").encode_many(9, 8, 0, [b"ab"])
    stream = b"".join(v2.encode_add_requests(KEY, [entry], ADD_FLAG_RECOVERY | ADD_FLAG_HIGH_PRIORITY))
    assert stream == bytes.fromhex("0000003a" + "02010006") + KEY + entry
    (group,) = requests_of(stream)
    assert fields(group) == {
        "ledger_id": 5,
        "master_key": KEY,
        "flags": 6,
        "entry_ids": [9],
        "entries": [entry],
    }


def test_read_bytes() -> None:
    plain = v2.encode_read_request(5, -1, 0, KEY)
    assert plain == bytes.fromhex("00000014" + "02020000" + "0000000000000005" + "ffffffffffffffff")
    fencing = v2.encode_read_request(5, -1, v2.FLAG_FENCE, KEY)
    assert fencing == bytes.fromhex("00000028" + "02020001" + "0000000000000005" + "ffffffffffffffff") + KEY
    first, second = requests_of(plain + fencing)
    assert fields(first) == {"ledger_id": 5, "entry_id": -1, "flags": 0, "master_key": b""}
    assert fields(second) == {"ledger_id": 5, "entry_id": -1, "flags": 1, "master_key": KEY}


def test_batch_read_bytes() -> None:
    stream = v2.encode_batch_read_request(5, 6, 7, 8, 9)
    assert stream.hex() == "00000028" + "02070000" + "0000000000000005" + "0000000000000006" + (
        "0000000000000007" + "00000008" + "0000000000000009"
    )
    (request,) = requests_of(stream)
    assert fields(request) == {
        "ledger_id": 5,
        "first_entry_id": 6,
        "request_id": 7,
        "count_max": 8,
        "size_bytes_max": 9,
        "flags": 0,
        "master_key": b"",
    }


def test_response_bytes() -> None:
    assert v2.encode_add_responses(BookieCode.EFENCED, 5, [6]).hex() == (
        "00000018" + "02010000" + "00000068" + "0000000000000005" + "0000000000000006"
    )
    assert v2.encode_read_response(0, 5, 6, b"ab").hex() == (
        "0000001a" + "02020000" + "00000000" + "0000000000000005" + "0000000000000006" + "6162"
    )
    assert b"".join(v2.encode_batch_read_response(0, 5, 6, 7, [b"ab", b""])).hex() == (
        "0000002a" + "02070000" + "00000000" + "0000000000000005" + "0000000000000006" + "0000000000000007"
    ) + ("00000002" + "6162" + "00000000")


def test_adds_are_grouped_by_ledger_but_never_across_a_read() -> None:
    def add(ledger_id: int, entry_id: int, flags: int = 0) -> bytes:
        entries = EntryCodec(ledger_id, "CRC32C").encode_many(entry_id, -1, 0, [b"x" * entry_id])
        return b"".join(v2.encode_add_requests(KEY, entries, flags))

    stream = add(1, 0) + add(2, 0) + add(1, 1) + add(1, 2, 6) + add(1, 3, 6) + add(2, 1)
    stream += v2.encode_read_request(1, 0) + add(1, 4, 6)
    seen = [
        (item.ledger_id, item.flags, item.entry_ids) if isinstance(item, v2.AddGroup) else "read"
        for item in requests_of(stream)
    ]
    assert seen == [(1, 0, [0, 1]), (2, 0, [0, 1]), (1, 6, [2, 3]), "read", (1, 6, [4])]


@given(code=st.sampled_from(BookieCode), ledger_id=ids, entry_ids=st.lists(ids, min_size=1, max_size=9))
def test_add_responses_round_trip(code: BookieCode, ledger_id: int, entry_ids: list[int]) -> None:
    (group,) = responses_of(v2.encode_add_responses(code, ledger_id, entry_ids))
    assert fields(group) == {"code": code, "ledger_id": ledger_id, "entry_ids": entry_ids}


@given(ledger_id=ids, entry_id=ids, entry=st.binary(max_size=50))
def test_read_response_round_trip(ledger_id: int, entry_id: int, entry: bytes) -> None:
    (response,) = responses_of(v2.encode_read_response(0, ledger_id, entry_id, entry))
    assert fields(response) == {"code": 0, "ledger_id": ledger_id, "entry_id": entry_id, "entry": entry}
    (response,) = responses_of(v2.encode_read_response(BookieCode.ENOENTRY, ledger_id, entry_id))
    assert isinstance(response, v2.ReadResponse)
    assert response.code is BookieCode.ENOENTRY


@given(entries=st.lists(st.binary(max_size=50), max_size=5))
def test_batch_read_response_round_trip(entries: list[bytes]) -> None:
    (response,) = responses_of(b"".join(v2.encode_batch_read_response(0, 1, 2, 3, entries)))
    assert isinstance(response, v2.BatchReadResponse)
    assert (response.code, response.ledger_id, response.first_entry_id, response.request_id) == (0, 1, 2, 3)
    assert response.run.entries() == entries


def test_auth_round_trip() -> None:
    stream = v2.encode_auth("AuthDisabledPlugin", b"xyz")
    for item in (*requests_of(stream), *responses_of(stream)):
        assert fields(item) == {"plugin_name": "AuthDisabledPlugin", "payload": b"xyz"}


def test_an_unknown_code_is_an_io_error() -> None:
    (response,) = responses_of(v2.encode_read_response(999, 1, 1))
    assert isinstance(response, v2.ReadResponse)
    assert response.code is BookieCode.EIO


@given(body=st.binary(max_size=60), opcode=st.integers(0, 9), flags=st.integers(0, 7))
def test_garbage_raises_peer_error_only(body: bytes, opcode: int, flags: int) -> None:
    for frame in (body, bytes([2, opcode, 0, flags]) + body):
        for decode in (v2.decode_requests, v2.decode_responses):
            try:
                decode(frame, [0, len(frame)])
            except PeerError:
                continue


def test_other_versions_and_operations_are_refused() -> None:
    for start in (b"\x01\x01\x00\x00", b"\x02\x04\x00\x00", b"\x02\x63\x00\x00"):
        with pytest.raises(PeerError):
            v2.decode_requests(start + bytes(60), [0, 64])
