"""What is wrong with a journal is told as what it is, or is a torn end that nobody was ever told is safe."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal import header as journal_header
from magnetar.bookie.journal.files import JournalDamaged
from magnetar.bookie.journal.journal import Journal, Mark
from magnetar.bookie.journal.note import NOTE_FILE, encode_note, read_note
from magnetar.bookie.journal.replay import JournalReplay
from magnetar.bookie.journal.worker import ThreadJournalWorker
from magnetar.bookie.loss import Losses, OnLoss
from magnetar.bookie.settings import JournalSettings
from magnetar.bookie.storage.directories import decode_mark, encode_mark
from magnetar.core.disk import SystemDisk
from magnetar.core.limits import MIB
from magnetar.wire.bookkeeper.entry import EntryCodec

DISK = SystemDisk()
SETTINGS = JournalSettings(preallocate_bytes=MIB, size_bytes_max=4 * MIB)
RECORDS = EntryCodec(7, "CRC32C").encode_many(0, -1, 0, [b"%d" % number * 300 for number in range(8)])
BLOCK = 4096
HEAD = journal_format.HEADER_BYTES


async def written(
    directory: Path, records: Sequence[bytes] = RECORDS, first_id: int = 100, end: Mark = (0, 0)
) -> list[int]:
    """A journal with one group for each record, as a kill leaves it; where each group ends."""
    journal = Journal(directory, first_id, SETTINGS, DISK, ThreadJournalWorker(), end)
    journal.start(lambda _waited: None, lambda _error: None)
    ends = []
    for record in records:
        done = asyncio.Event()
        context = (lambda _code, _ledger_id, _entry_ids: None, 7, ())
        journal.append([record], len(record), lambda _code, _context, done=done: done.set(), context)  # type: ignore[misc]
        await asyncio.wait_for(done.wait(), 30)
        ends.append(journal.mark[1])
    await journal.close()
    return ends


def replay(directory: Path, mark: Mark = (0, 0), *, synced: bool = True, losses: Losses | None = None) -> list[bytes]:
    groups = JournalReplay(DISK, directory, mark, synced=synced, losses=losses).groups()
    return [record for group in groups for record in group]


def change(path: Path, edit: Callable[[bytes], bytes]) -> None:
    path.write_bytes(edit(path.read_bytes()))


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def zero(begin: int, end: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:begin] + bytes(end - begin) + data[end:]


def note_older(directory: Path, offset: int) -> None:
    """The note of the durable end as it stood before the last group."""
    assert read_note(DISK, directory)[1] > offset
    (directory / NOTE_FILE).write_bytes(encode_note((100, offset)))


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a head of zeros": (zero(0, HEAD), "its head is zeros"),
    "a flipped magic word": (flip(1), "the header starts with"),
    "a version that is another": (flip(7), "damaged|starts with|checksum"),
    "a flipped mark of the head": (flip(9), "the header is damaged"),
    "a flipped bit in the rest of the head": (flip(300), "the header is damaged"),
    "a flipped checksum of the head": (flip(37), "does not match its checksum"),
    "no bytes": (lambda _data: b"", "it is empty, and was not when it was begun"),
    "zeros only": (lambda data: bytes(len(data)), "it is empty, and was not when it was begun"),
    "a flip in the first group": (flip(HEAD + 60), "whole groups follow"),
    "a flip in the last group": (flip(7 * BLOCK + 60), "all of it was written"),
    "a flipped length in the last group": (flip(7 * BLOCK + 2), "all of it was written"),
    "a block of zeros between groups": (zero(3 * BLOCK, 5 * BLOCK), "whole groups follow"),
    "a block that stands twice": (lambda data: data[: 4 * BLOCK] + data[3 * BLOCK :], "whole groups follow"),
    "a block over the next one": (
        lambda data: data[: 4 * BLOCK] + data[3 * BLOCK : 4 * BLOCK] + data[5 * BLOCK :],
        "whole groups follow",
    ),
    "a cut between groups": (lambda data: data[: 5 * BLOCK], "it was cut"),
    "a cut in a group": (lambda data: data[: 5 * BLOCK + 1000], "it was cut"),
    "a cut behind all groups": (lambda data: data[: 9 * BLOCK], "it was cut"),
}


@pytest.mark.parametrize("name", DAMAGE)
async def test_damage_is_told_with_its_file(tmp_path: Path, name: str) -> None:
    edit, problem = DAMAGE[name]
    await written(tmp_path)
    path = tmp_path / "64.txn"
    change(path, edit)
    with pytest.raises(JournalDamaged, match=problem) as told:
        replay(tmp_path)
    assert str(path) in str(told.value)
    assert "--accept-loss" in str(told.value)


@pytest.mark.parametrize("name", DAMAGE)
async def test_accepted_damage_leaves_what_stands_whole(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await written(tmp_path)
    change(tmp_path / "64.txn", DAMAGE[name][0])
    losses = Losses(OnLoss.ACCEPT)
    found = replay(tmp_path, losses=losses)
    assert len(losses.told) == 1
    assert f"going on without what is lost: {losses.told[0]}" in caplog.text
    assert "--accept-loss" not in caplog.text
    assert found == [record for record in RECORDS if record in found]
    lost_at_most = {"no bytes": 8, "zeros only": 8, "a cut between groups": 4, "a cut in a group": 4}
    assert len(RECORDS) - len(found) <= lost_at_most.get(name, 5 if "twice" in name else 3)


@pytest.mark.parametrize("first_lost", [0, 1, 6, 7])
async def test_an_end_that_became_zeros_is_told_by_the_note(tmp_path: Path, first_lost: int) -> None:
    """Whole groups, or sectors of the last one: to the file alone it is as if nobody had written them."""
    ends = [HEAD, *await written(tmp_path)]
    assert read_note(DISK, tmp_path) == (100, ends[-1])
    begin = ends[first_lost]
    change(tmp_path / "64.txn", zero(begin, ends[-1]))
    with pytest.raises(JournalDamaged, match=rf"64.txn: it ends at {begin}, and was durable up to {ends[-1]}"):
        replay(tmp_path)
    losses = Losses(OnLoss.ACCEPT)
    assert replay(tmp_path, losses=losses) == RECORDS[:first_lost]
    assert len(losses.told) == 1
    # As after a power failure: the note is older, or gone.
    (tmp_path / NOTE_FILE).write_bytes(encode_note((100, begin)))
    assert replay(tmp_path) == RECORDS[:first_lost]
    (tmp_path / NOTE_FILE).unlink()
    assert replay(tmp_path) == RECORDS[:first_lost]


async def test_a_note_of_what_a_checkpoint_has_is_left_out(tmp_path: Path) -> None:
    ends = await written(tmp_path)
    await written(tmp_path, [], 110, (100, ends[-1]))
    (tmp_path / NOTE_FILE).write_bytes(encode_note((100, ends[-1])))
    (tmp_path / "64.txn").unlink()
    assert replay(tmp_path, (110, 0)) == []


async def test_the_end_is_noted_while_the_journal_is_idle(tmp_path: Path) -> None:
    """As kill -9 finds it: nothing was closed."""
    journal = Journal(tmp_path, 100, SETTINGS, DISK, ThreadJournalWorker())
    journal.start(lambda _waited: None, lambda _error: None)
    context = (lambda _code, _ledger_id, _entry_ids: None, 7, ())
    for _ in range(2):
        before = journal.mark
        journal.append([RECORDS[0]], len(RECORDS[0]), lambda _code, _context: None, context)
        async with asyncio.timeout(30):
            while journal.mark == before or read_note(DISK, tmp_path) != journal.mark:
                await asyncio.sleep(0.001)
    await journal.close()


async def test_a_journal_lost_with_all_else_that_names_it_is_missed(tmp_path: Path) -> None:
    await written(tmp_path)
    (tmp_path / "64.txn").unlink()
    (tmp_path / journal_header.NEWEST_FILE).unlink()
    with pytest.raises(JournalDamaged, match=f"64.txn is missing in {tmp_path}: durableEnd names it"):
        replay(tmp_path)


@pytest.mark.parametrize("content", [b"", bytes(28), b"MGTRdend", flip(20)(encode_note((100, 9 * BLOCK)))])
async def test_a_note_that_is_torn_is_left_out(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await written(tmp_path)
    (tmp_path / NOTE_FILE).write_bytes(content)
    assert replay(tmp_path) == RECORDS
    assert (f"{NOTE_FILE} is damaged" in caplog.text) is bool(content.strip(b"\0"))


async def test_a_note_that_cannot_be_kept_up_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / NOTE_FILE).mkdir()
    await written(tmp_path)
    assert caplog.text.count(f"{NOTE_FILE} cannot be kept up") == 1


async def test_a_group_of_which_sectors_are_missing_is_torn(tmp_path: Path) -> None:
    """As a power failure leaves it: none of its bytes is wrong, some were never written."""
    ends = await written(tmp_path, [*RECORDS, b"\x01" * 3000])
    note_older(tmp_path, ends[-2])
    for begin in range(ends[-2], ends[-2] + 3000, 512):
        change(tmp_path / "64.txn", zero(begin, begin + 512))
        assert replay(tmp_path) == RECORDS
    change(tmp_path / "64.txn", flip(ends[-2] + 9000))  # Behind the end nobody has written anything yet.
    assert replay(tmp_path) == RECORDS


@pytest.mark.parametrize("beyond", range(-2, 30))
async def test_a_group_whose_mark_alone_is_torn_is_torn(tmp_path: Path, beyond: int) -> None:
    """Wherever a sector ends in its mark: the second one was never written."""
    ends = await written(tmp_path, [*RECORDS, b"\x01" * (512 - 4 - 8 - beyond)])
    note_older(tmp_path, ends[-2])
    change(tmp_path / "64.txn", zero(ends[-2] + 512, ends[-2] + 1024))
    found = replay(tmp_path)
    assert found[: len(RECORDS)] == RECORDS
    assert len(found) == len(RECORDS) + (beyond >= 24)


ZEROS = b"\x01" * 700 + bytes(5_000) + b"\x02" * 700
"""A record with sectors of zeros that somebody sent."""


@pytest.mark.parametrize("at", [100, 3_000, 6_300])
async def test_a_wrong_byte_in_zeros_that_were_sent_is_told(tmp_path: Path, at: int) -> None:
    """In the newest group, too: its mark says how many sectors are zeros by themselves."""
    ends = await written(tmp_path, [*RECORDS, ZEROS])
    change(tmp_path / "64.txn", flip(ends[-2] + 4 + at))
    with pytest.raises(JournalDamaged, match="all of it was written"):
        replay(tmp_path)


@pytest.mark.parametrize("begin", [0, 512, 6 * 1024 - 512])
async def test_a_torn_group_with_zeros_that_were_sent_is_torn(tmp_path: Path, begin: int) -> None:
    ends = await written(tmp_path, [*RECORDS, ZEROS])
    note_older(tmp_path, ends[-2])
    change(tmp_path / "64.txn", zero(ends[-2] + begin, ends[-2] + begin + 512))
    assert replay(tmp_path) == RECORDS


@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(1, 3_000)), min_size=1, max_size=12), st.data())
def test_sectors_of_zeros_are_counted_whatever_the_pieces(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    body = b"".join(bytes([value]) * size for value, size in runs)
    sectors = [body[at : at + 512] for at in range(0, len(body) - 511, 512)]
    assert journal_format.zero_sectors([body]) == sectors.count(bytes(512))
    # As a group is written: a length before each record.
    cut = data.draw(st.integers(0, len(body)))
    lengths = st.sampled_from([b"\0\0\0\1", b"\0\1\0\0", b"\1\1\1\1"])
    parts = [data.draw(lengths), body[:cut], data.draw(lengths), body[cut:]]
    assert journal_format.zero_sectors(parts) == journal_format.zero_sectors([b"".join(parts)])


@pytest.mark.parametrize("parts", [[4, 1529, 0], [4, 509, 600], [508, 4, 508], [1, 2, 3, 600]])
def test_a_sector_of_zeros_may_span_parts(parts: list[int]) -> None:
    for length in (b"\0\0\0\1", b"\0\1\0\0", b"\1\0\0\0"):
        group = [piece for size in parts for piece in (length, bytes(size))]
        whole = b"".join(group)
        sectors = [whole[at : at + 512] for at in range(0, len(whole) - 511, 512)]
        assert journal_format.zero_sectors(group) == sectors.count(bytes(512))


async def test_a_file_that_was_just_being_made_is_no_damage(tmp_path: Path) -> None:
    await written(tmp_path)
    for content in (b"", bytes(600), b"BKLG" + bytes(40)):
        (tmp_path / "65.txn").write_bytes(content)
        assert replay(tmp_path) == RECORDS


async def test_a_missing_file_is_missed(tmp_path: Path) -> None:
    replayed: list[Mark] = [(0, 0)]
    for number in range(3):
        await written(tmp_path, RECORDS[2 * number : 2 * number + 2], 100 + 10 * number, replayed[-1])
        journal = JournalReplay(DISK, tmp_path, (0, 0), synced=True)
        assert len(list(journal.groups())) == 2 * number + 2
        replayed.append(journal.end)
    for file_id, known_by in ((100, "6e.txn follows it"), (110, "78.txn follows it"), (120, "it was the newest one")):
        path = tmp_path / journal_format.file_name(file_id)
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(JournalDamaged, match=f"{path.name} is missing in {tmp_path}: {known_by}"):
            replay(tmp_path)
        path.write_bytes(content)
    with pytest.raises(JournalDamaged, match="lastMark names it"):
        replay(tmp_path, (111, 512))
    # What a checkpoint has is needed no more.
    (tmp_path / "64.txn").unlink()
    assert replay(tmp_path, (110, 0)) == RECORDS[2:6]
    # Neither is the note, which an older version or Apache's bookie does not write.
    (tmp_path / journal_header.NEWEST_FILE).unlink()
    assert replay(tmp_path, (110, 0)) == RECORDS[2:6]


async def test_an_older_file_that_lost_its_end_is_told_by_the_next(tmp_path: Path) -> None:
    ends = await written(tmp_path)
    await written(tmp_path, [], 110, (100, ends[-1]))
    (tmp_path / NOTE_FILE).unlink()
    change(tmp_path / "64.txn", zero(ends[-3], ends[-1]))
    with pytest.raises(JournalDamaged, match=rf"64.txn: it ends at {ends[-3]}, and was acknowledged up to {ends[-1]}"):
        replay(tmp_path)


@pytest.mark.parametrize(
    ("offset", "problem"),
    [
        (2 * BLOCK + 512, "nothing begins or ends"),
        (2 * BLOCK + 44, "nothing begins or ends"),
        (9 * BLOCK, "nothing begins or ends"),
        (64 * MIB, "and the file has"),
    ],
)
async def test_a_mark_that_can_be_none_is_told(tmp_path: Path, offset: int, problem: str) -> None:
    await written(tmp_path)
    with pytest.raises(JournalDamaged, match=rf"64.txn: lastMark names offset {offset}, .*{problem}"):
        replay(tmp_path, (100, offset))
    assert replay(tmp_path, (100, offset), losses=Losses(OnLoss.ACCEPT)) == RECORDS


async def test_every_right_mark_is_taken(tmp_path: Path) -> None:
    ends = await written(tmp_path)
    for at, end in enumerate([0, HEAD, *ends]):
        assert replay(tmp_path, (100, end)) == RECORDS[max(0, at - 1) :]
    # Apache's bookie has replayed the file.
    assert replay(tmp_path, (100, ends[-1] + 4)) == []


def apache_file(path: Path, records: Sequence[bytes]) -> list[int]:
    """As BookKeeper writes it: no marks, flushes padded to 4096, zeros behind the end; where each flush ends."""
    data = struct.pack(">4sI", b"BKLG", 6).ljust(HEAD, b"\0")
    ends = []
    for record in records:
        data += struct.pack(">I", len(record)) + record
        padding = -(len(data) + 8) % BLOCK
        data += struct.pack(">II", journal_format.PADDING_LENGTH, padding) + bytes(padding)
        ends.append(len(data))
    path.write_bytes(data + bytes(MIB))
    return ends


async def test_apaches_journals_are_never_refused_when_healthy(tmp_path: Path) -> None:
    ends = apache_file(tmp_path / "64.txn", RECORDS)
    for at, end in enumerate([HEAD, *ends]):
        assert replay(tmp_path, (100, end)) == RECORDS[at:]
    # Its mark after a replay: behind the length of 0, or at the file's end.
    assert replay(tmp_path, (100, ends[-1] + 4)) == []
    assert replay(tmp_path, (100, (tmp_path / "64.txn").stat().st_size)) == []
    torn = (tmp_path / "64.txn").read_bytes()
    (tmp_path / "64.txn").write_bytes(torn[: ends[-2] + 2].ljust(len(torn), b"\0"))
    assert replay(tmp_path) == RECORDS[:-1]


@pytest.mark.parametrize("offset", [HEAD + 100, 2 * BLOCK + 20, 40 * BLOCK])
async def test_a_wrong_mark_of_apaches_journal_is_told(tmp_path: Path, offset: int) -> None:
    apache_file(tmp_path / "64.txn", RECORDS)
    with pytest.raises(JournalDamaged, match="nothing begins or ends"):
        replay(tmp_path, (100, offset))


async def test_a_damaged_head_of_apaches_journal_is_told(tmp_path: Path) -> None:
    apache_file(tmp_path / "64.txn", RECORDS)
    for edit in (zero(0, HEAD), flip(2), flip(7), flip(100), lambda data: data[:7] + b"\4" + data[8:]):
        content = (tmp_path / "64.txn").read_bytes()
        change(tmp_path / "64.txn", edit)
        with pytest.raises(JournalDamaged, match=r"64\.txn"):
            replay(tmp_path)
        (tmp_path / "64.txn").write_bytes(content)


def test_the_mark_has_a_checksum_behind_what_bookkeeper_reads() -> None:
    content = encode_mark((0x1A2B, 4096))
    assert content[:16] == struct.pack(">qq", 0x1A2B, 4096)
    assert decode_mark(content) == decode_mark(content[:16]) == (0x1A2B, 4096)
    for at in range(len(content)):
        with pytest.raises(ValueError, match="checksum"):
            decode_mark(flip(at)(content))
    for size in (0, 8, 15, 20):
        with pytest.raises(ValueError, match="bytes instead of 16"):
            decode_mark(content[:size])


def test_the_note_of_the_newest_file() -> None:
    content = journal_header.encode_newest(0x18F2B)
    assert journal_header.decode_newest(content) == 0x18F2B
    for broken in (b"", b"zz", content[:-1], *(flip(at)(content) for at in range(len(content)))):
        with pytest.raises(ValueError, match=r"checksum|invalid literal"):
            journal_header.decode_newest(broken)


async def test_without_sync_damage_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await written(tmp_path)
    change(tmp_path / "64.txn", flip(HEAD + 60))
    assert replay(tmp_path, synced=False) == RECORDS[1:]
    assert "written without sync" in caplog.text


async def test_without_sync_nothing_is_noted_as_durable(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 100, dataclasses.replace(SETTINGS, sync_data=False), DISK, ThreadJournalWorker())
    journal.start(lambda _waited: None, lambda _error: None)
    await journal.close()
    assert not (tmp_path / NOTE_FILE).exists()
