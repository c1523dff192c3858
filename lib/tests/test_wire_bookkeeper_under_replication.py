from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.errors import PeerError
from magnetar.wire.bookkeeper.under_replication import (
    CheckKind,
    decode_last_check,
    decode_layout,
    decode_lock,
    decode_underreplicated,
    decode_vote,
    encode_last_check,
    encode_layout,
    encode_lock,
    encode_underreplicated,
    encode_vote,
)

# Read from the ZooKeeper of a cluster of Apache's bookies 4.17.2, one on BookKeeper's driver, one on Pulsar's.
APACHE_LAYOUT = b'type: "BASIC"\nversion: 1\n'
APACHE_MARK = b'replica: "127.0.0.1:23283"\nctime: 1795237571721\n'
APACHE_LOCK = b'bookieId: "localhost"\n'
APACHE_VOTE = b'bookieId: "127.0.0.1:23282"\n'
APACHE_CHECK_MARK = b"\x08\xf2\xae\xf7\xe3\x9f4"


def test_values_are_byte_for_byte_apaches() -> None:
    assert encode_layout() == APACHE_LAYOUT
    assert encode_underreplicated(["127.0.0.1:23283"], 1795237571721) == APACHE_MARK
    assert encode_lock("localhost") == APACHE_LOCK
    assert encode_vote("127.0.0.1:23282") == APACHE_VOTE
    assert encode_last_check(CheckKind.ALL_LEDGERS, 1795237468018) == APACHE_CHECK_MARK


def test_apaches_values_are_read() -> None:
    assert decode_layout(APACHE_LAYOUT) == ("BASIC", 1)
    assert decode_underreplicated(APACHE_MARK) == (("127.0.0.1:23283",), 1795237571721)
    assert decode_lock(APACHE_LOCK) == "localhost"
    assert decode_vote(APACHE_VOTE) == "127.0.0.1:23282"
    assert decode_last_check(CheckKind.ALL_LEDGERS, APACHE_CHECK_MARK) == 1795237468018


def test_a_mark_may_name_nobody_and_no_time() -> None:
    assert decode_underreplicated(b"") == ((), None)
    assert encode_underreplicated([], None) == b""


def test_a_lock_may_name_nobody() -> None:
    assert decode_lock(b"") == ""


@pytest.mark.parametrize("kind", CheckKind)
def test_last_checks_come_back(kind: CheckKind) -> None:
    assert decode_last_check(kind, encode_last_check(kind, 12)) == 12
    assert decode_last_check(kind, b"") is None


@given(st.lists(st.text(min_size=1)), st.integers(0, 2**63 - 1))
def test_marks_come_back(replicas: list[str], created_ms: int) -> None:
    replicas = [replica.encode("utf-8", "ignore").decode() for replica in replicas]
    assert decode_underreplicated(encode_underreplicated(replicas, created_ms)) == (tuple(replicas), created_ms)


@pytest.mark.parametrize("damaged", [b"replica: 3", b"\xff\xfe", b"what: 1", b'replica: "open'])
def test_damage_is_said(damaged: bytes) -> None:
    with pytest.raises(PeerError):
        decode_underreplicated(damaged)


def test_a_layout_must_be_whole() -> None:
    with pytest.raises(PeerError):
        decode_layout(b'type: "BASIC"\n')


def test_a_damaged_check_mark_is_said() -> None:
    with pytest.raises(PeerError):
        decode_last_check(CheckKind.REPLICAS, b"\x08")
