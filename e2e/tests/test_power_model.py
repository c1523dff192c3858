"""What a power cut may leave of a file and of a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.power.cuts import choose_cuts
from e2e.power.fates import Fate, Style, put_disk
from e2e.power.files import SECTOR_BYTES, Directory, File, NameChange
from e2e.power.recording import Event, Kind
from e2e.power.replaying import Beginning, Replay

A, B = b"a" * SECTOR_BYTES, b"b" * SECTOR_BYTES


def nothing(file: File) -> bytes:
    return file.content(lambda _, touching: 0, 0)


def test_what_was_not_synced_may_be_gone_and_what_was_is_there() -> None:
    file = File()
    file.write(0, A, end=2, durable=False)
    file.sync(begin=3)
    file.write(SECTOR_BYTES, B, end=5, durable=False)
    assert nothing(file) == A
    assert file.all_of() == A + B


def test_a_write_beside_a_sync_is_not_covered_by_it() -> None:
    file = File()
    file.write(0, A, end=4, durable=False)
    file.sync(begin=3)
    assert nothing(file) == b""


def test_a_write_through_settles_its_own_sectors_and_the_length_and_no_more() -> None:
    file = File()
    file.write(0, A, end=1, durable=False)
    file.write(SECTOR_BYTES, B, end=2, durable=True)
    assert nothing(file) == bytes(SECTOR_BYTES) + B


def test_a_sector_that_is_written_through_holds_earlier_writes_to_it() -> None:
    file = File()
    file.write(0, b"ab", end=1, durable=False)
    file.write(2, b"cd", end=2, durable=True)
    assert nothing(file) == b"abcd"


def test_a_write_through_is_not_undone_by_earlier_lengths() -> None:
    file = File()
    file.resize(0, end=1)
    file.grow(4 * SECTOR_BYTES, end=2)
    file.write(0, A, end=3, durable=True)
    assert nothing(file) == A + bytes(3 * SECTOR_BYTES)


def test_each_sector_goes_by_itself() -> None:
    file = File(A + A)
    file.write(0, B + B, end=1, durable=False)
    assert file.content(lambda sector, touching: sector * len(touching), 1) == A + B
    assert file.content(lambda sector, touching: (1 - sector) * len(touching), 1) == B + A


def test_a_longer_file_without_its_content_holds_zeros() -> None:
    file = File(b"xy")
    file.write(2, b"z", end=1, durable=False)
    assert file.content(lambda _, touching: 0, 1) == b"xy\0"


def test_a_file_that_was_cut_off_and_written_again() -> None:
    file = File(A + B)
    file.resize(10, end=1)
    file.write(10, b"new", end=2, durable=False)
    assert nothing(file) == A + B
    assert file.all_of() == A[:10] + b"new"
    assert file.content(lambda _, touching: 1, 1) == A[:10]
    file.sync(begin=3)
    assert nothing(file) == A[:10] + b"new"


def test_a_rename_is_there_as_a_whole_or_not_at_all() -> None:
    old, new = File(b"old"), File(b"new")
    directory = Directory({"mark": old})
    directory.changes.append(NameChange(1, {"mark.tmp": new}))
    directory.changes.append(NameChange(2, {"mark.tmp": None, "mark": new}))
    assert [directory.entries(kept) for kept in range(3)] == [
        {"mark": old},
        {"mark": old, "mark.tmp": new},
        {"mark": new},
    ]
    directory.sync(begin=2)
    assert directory.settled == {"mark": old, "mark.tmp": new}


ROOT = Path("/recorded")
EVENTS = [
    Event(Kind.MADE_DIRECTORY, 1, 2, inode=10, path="/recorded/d"),
    Event(Kind.SYNCED, 3, 4, inode=1),
    Event(Kind.OPENED, 5, 6, inode=11, path="/recorded/d/f"),
    Event(Kind.WRITTEN, 7, 8, inode=11, size=1, data=b"1"),
    Event(Kind.SYNCED, 9, 12, inode=11),
    Event(Kind.WRITTEN, 10, 11, inode=11, offset=1, size=1, data=b"2"),
    Event(Kind.SYNCED, 13, 14, inode=10),
]


def disk(cut: int, style: Style, target: Path) -> dict[str, bytes]:
    replay = Replay(Beginning(ROOT, ((str(ROOT), 1, None),))).until(EVENTS, cut)
    target.mkdir()
    put_disk(replay.top, Fate(style, "seed", replay, cut), target)
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("cut", "style", "there"),
    [
        (12, Style.NOTHING, {}),
        (14, Style.NOTHING, {"d/f": b"1"}),
        (12, Style.NAMES, {"d/f": b"1"}),
        (11, Style.NAMES, {"d/f": b""}),
        (11, Style.LENGTHS, {"d/f": b"\0\0"}),
        (12, Style.EVERYTHING, {"d/f": b"12"}),
        (14, Style.ORDERED, {"d/f": b"1"}),
    ],
)
def test_what_a_cut_leaves(tmp_path: Path, cut: int, style: Style, there: dict[str, bytes]) -> None:
    found = disk(cut, style, tmp_path / "disk")
    if style is Style.ORDERED:
        # The length may be there before what is written into a block that the file had already.
        assert found in (there, {"d/f": b"1\0"}, {"d/f": b"12"})
    else:
        assert found == there


def test_a_journaling_disk_has_names_once_anything_later_was_synced(tmp_path: Path) -> None:
    assert disk(12, Style.ORDERED, tmp_path / "disk").keys() == {"d/f"}


def test_cuts_are_the_same_for_a_seed_and_cover_each_kind_of_file() -> None:
    import random

    beginning = Beginning(ROOT, ((str(ROOT), 1, None),))
    first, again = (choose_cuts(beginning, EVENTS, 0, 40, random.Random(1)) for _ in range(2))
    assert first == again
    reasons = {cut.reason.partition(" ")[2] for cut in first}
    assert {"synced d", "synced d/f", "opened d/f", "made_directory d"} <= reasons
    assert {cut.style for cut in first} == set(Style)
