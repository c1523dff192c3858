"""The journal's bytes: what is written comes back, and nothing that was not whole does."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal import header as journal_header
from magnetar.bookie.journal.format import HEADER_BYTES, Ending, JournalScan
from magnetar.bookie.journal.header import NotAJournal

records_lists = st.lists(
    st.lists(st.lists(st.binary(min_size=16, max_size=300), min_size=1, max_size=4), min_size=1, max_size=4),
    min_size=1,
    max_size=5,
)


def write(groups: list[list[list[bytes]]], alignment: int = 512) -> tuple[bytes, list[int]]:
    """A file of these groups, and where each ends."""
    data = journal_header.encode_header(6)
    ends = []
    for group in groups:
        parts, size = journal_format.encode_group(group, len(data), alignment)
        assert sum(map(len, parts)) == size
        data += b"".join(parts)
        assert len(data) % alignment == 0
        ends.append(len(data))
    return data, ends


def test_large_records_are_not_joined() -> None:
    large = [bytes([number]) * journal_format.PIECE_BYTES_MIN for number in range(3)]
    parts, _ = journal_format.encode_group([large], HEADER_BYTES, 4096)
    assert [part for part in parts if part in large] == large
    small = [[b"x" * 100] * 10]
    assert len(journal_format.encode_group(small, HEADER_BYTES, 4096)[0]) == 2
    many = [[large[0]] * (journal_format.GROUP_RECORDS_MAX + 1)]
    assert len(journal_format.encode_group(many, HEADER_BYTES, 4096)[0]) == 2
    data, _ = write([[large, [b"between" * 10]], small])
    assert scan(data)[0] == [[*large, b"between" * 10], *small]


def scan(data: bytes, start: int = 0) -> tuple[list[list[bytes]], JournalScan]:
    found = JournalScan(lambda at, size: data[at : at + size], start)
    groups: list[list[bytes]] = []
    while (records := found.next_group()) is not None:
        groups.append(records)
    return groups, found


def flat(group: list[list[bytes]]) -> list[bytes]:
    return [record for records in group for record in records]


@given(records_lists, st.sampled_from([512, 4096]), st.integers(0, 5000))
def test_groups_come_back(groups: list[list[list[bytes]]], alignment: int, zeros: int) -> None:
    data, ends = write(groups, alignment)
    found, scanned = scan(data + bytes(zeros))
    assert found == [flat(group) for group in groups]
    assert (scanned.ending, scanned.end_offset) == (Ending.CLEAN, ends[-1])


@given(records_lists, st.data())
def test_a_cut_gives_the_whole_groups_before_it(groups: list[list[list[bytes]]], choice: st.DataObject) -> None:
    data, ends = write(groups)
    cut = choice.draw(st.integers(HEADER_BYTES, len(data)))
    zeros = choice.draw(st.sampled_from([0, 700]))
    found, scanned = scan(data[:cut] + bytes(zeros))
    whole = [flat(group) for group, end in zip(groups, ends, strict=True) if end <= cut]
    # Zeros may complete the last group: its padding ends in zeros anyway.
    assert found[: len(whole)] == whole
    assert found == [flat(group) for group in groups[: len(found)]]
    assert scanned.ending is not Ending.DAMAGED


@given(records_lists, st.data())
def test_a_hole_in_the_last_group_is_a_torn_tail(groups: list[list[list[bytes]]], choice: st.DataObject) -> None:
    data, ends = write(groups)
    start = ends[-2] if len(ends) > 1 else HEADER_BYTES
    size = sum(4 + len(record) for record in flat(groups[-1]))
    at = choice.draw(st.integers(start, start + size - 1))
    flipped = data[:at] + bytes([data[at] ^ 1 << choice.draw(st.integers(0, 7))]) + data[at + 1 :]
    found, scanned = scan(flipped)
    assert found == [flat(group) for group in groups[:-1]]
    assert (scanned.ending, scanned.end_offset) == (Ending.TORN, start)
    assert scanned.problem


def test_a_bad_group_before_a_good_one_is_damage() -> None:
    data, ends = write([[[b"a" * 40]], [[b"b" * 40]], [[b"c" * 40]]])
    flipped = bytearray(data)
    flipped[ends[0] + 10] ^= 1
    found, scanned = scan(bytes(flipped))
    assert found == [[b"a" * 40]]
    assert scanned.ending is Ending.DAMAGED


def test_a_length_that_became_zero_is_no_end() -> None:
    data, ends = write([[[b"a" * 40]], [[b"b" * 64]], [[b"c" * 40]]])
    zeroed = data[: ends[0]] + bytes(4) + data[ends[0] + 4 :]
    found, scanned = scan(zeroed)
    assert found == [[b"a" * 40]]
    assert scanned.ending is Ending.DAMAGED


def test_a_payload_cannot_forge_a_later_group() -> None:
    forged = journal_format.GROUP_MARK + struct.pack(">QI", HEADER_BYTES + 8, 0)
    data, _ = write([[[b"a" * 40 + forged + b"b" * 600]]])
    _, scanned = scan(data[:1024] + bytes(1000))
    assert scanned.ending is Ending.TORN


def test_reading_starts_at_the_mark() -> None:
    data, ends = write([[[b"a" * 40]], [[b"b" * 40]]])
    found, _ = scan(data, ends[0])
    assert found == [[b"b" * 40]]


@pytest.mark.parametrize(("version", "header_bytes"), [(4, 8), (5, 512), (6, 512)])
def test_files_that_bookkeeper_wrote_have_no_marks(version: int, header_bytes: int) -> None:
    data = struct.pack(">4sI", b"BKLG", version).ljust(header_bytes, b"\0")
    data += struct.pack(">I", 40) + b"a" * 40
    if version >= 5:
        data += struct.pack(">Ii", 0xFFFFFF00, 100) + bytes(100)
    data += struct.pack(">I", 50) + b"b" * 50
    found, scanned = scan(data + bytes(2000))
    assert flat(found) == [b"a" * 40, b"b" * 50]
    assert scanned.ending is Ending.CLEAN
    assert scanned.end_offset == len(data)
    _, torn = scan(data[:-1])
    assert torn.ending is Ending.TORN


@pytest.mark.parametrize("data", [b"", b"BKLG", b"BKLO" + bytes(600), struct.pack(">4sI", b"BKLG", 9) + bytes(600)])
def test_other_files_are_no_journals(data: bytes) -> None:
    with pytest.raises(NotAJournal):
        scan(data)


def test_a_large_group_crosses_the_read_window() -> None:
    group = [[bytes([i]) * 3_000_000] for i in range(1, 6)]
    data, ends = write([group, [[b"z" * 100]]])
    found, scanned = scan(data)
    assert [len(records) for records in found] == [5, 1]
    assert found[0] == flat(group)
    assert scanned.end_offset == ends[-1]


def test_file_names() -> None:
    assert journal_format.file_name(0x18F2B) == "18f2b.txn"
    assert journal_format.file_id_of("18f2b.txn") == 0x18F2B
    assert [journal_format.file_id_of(name) for name in ("x.txn", "1.log", "VERSION", ".txn")] == [None] * 4


def test_meta_records() -> None:
    key = journal_format.encode_master_key_record(7, b"k" * 20)
    assert key == struct.pack(">qqI", 7, -0x1000, 20) + b"k" * 20
    assert journal_format.record_ids(key) == (7, journal_format.MASTER_KEY_RECORD)
    assert journal_format.record_value(key) == b"k" * 20
    assert journal_format.encode_fence_record(7) == struct.pack(">qq", 7, -0x2000)
    assert not journal_format.is_entry(key)
    with pytest.raises(ValueError, match="announces"):
        journal_format.record_value(key[:-1])
