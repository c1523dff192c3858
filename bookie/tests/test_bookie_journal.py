"""Group commit: order, durability, rolling, failing, trimming."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest
from magnetar.bookie.journal import files as journal_files
from magnetar.bookie.journal.files import JournalDamaged
from magnetar.bookie.journal.journal import Context, Journal
from magnetar.bookie.journal.replay import JournalReplay
from magnetar.bookie.journal.worker import ThreadJournalWorker
from magnetar.bookie.settings import JournalSettings
from magnetar.core.disk import Disk, SystemDisk, SystemFile
from magnetar.core.limits import MIB
from magnetar.wire.bookkeeper.codes import BookieCode

DISK = SystemDisk()
SETTINGS = JournalSettings(preallocate_bytes=MIB, size_bytes_max=4 * MIB)


class Harness:
    """A journal, and what it told."""

    def __init__(self, directory: Path, settings: JournalSettings = SETTINGS, disk: Disk = DISK) -> None:
        self.directory = directory
        self.told: list[tuple[int, int]] = []
        self.failures: list[OSError] = []
        self.progress = asyncio.Event()
        self.journal = Journal(directory, 100, settings, disk, ThreadJournalWorker())
        self.journal.start(lambda _waited: self.progress.set(), self.failures.append)

    def append(self, number: int, *records: bytes) -> None:
        context: Context = (lambda _code, _ledger_id, _entry_ids: None, number, ())
        self.journal.append(list(records), sum(map(len, records)), self._done, context)

    def _done(self, code: int, context: Context) -> None:
        self.told.append((context[1], code))

    async def settle(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.told) < count:
                self.progress.clear()
                await self.progress.wait()

    def records(self, mark: tuple[int, int] = (0, 0)) -> list[bytes]:
        return [record for group in JournalReplay(DISK, self.directory, mark, synced=True).groups() for record in group]


async def test_appends_are_told_in_order_and_stand_in_the_file_in_order(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    wanted = []
    for number in range(200):
        record = number.to_bytes(16, "big") + b"x" * (number % 50)
        wanted.append(record)
        harness.append(number, record)
    await harness.settle(200)
    assert harness.told == [(number, BookieCode.EOK) for number in range(200)]
    assert harness.records() == wanted
    assert harness.journal.groups < 200
    await harness.journal.close()
    await harness.journal.close()


async def test_the_answer_never_comes_from_inside_the_call_and_the_mark_is_behind_it(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    before = harness.journal.mark
    harness.append(1, b"r" * 16)
    assert harness.told == []
    await harness.settle(1)
    assert harness.journal.mark > before
    assert harness.records(before) == [b"r" * 16]
    assert harness.records(harness.journal.mark) == []
    await harness.journal.close()


async def test_close_writes_what_was_appended(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for number in range(10):
        harness.append(number, b"r" * 16)
    await harness.journal.close()
    assert len(harness.told) == 10
    assert len(harness.records()) == 10


async def test_it_rolls_at_its_size_and_trims(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for number in range(12):
        harness.append(number, bytes([number + 1]) * MIB)
        await harness.settle(number + 1)
    assert journal_files.list_files(DISK, tmp_path) == [100, 101, 102]
    assert [record[0] for record in harness.records()] == list(range(1, 13))
    assert journal_files.trim(DISK, tmp_path, harness.journal.mark, 1) == [100]
    assert journal_files.list_files(DISK, tmp_path) == [101, 102]
    assert [record[0] for record in harness.records((101, 0))] == list(range(5, 13))
    with pytest.raises(JournalDamaged, match=r"64\.txn"):
        harness.records((100, 0))
    await harness.journal.close()


async def test_a_failed_write_refuses_the_group_and_the_next_goes_to_another_file(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.append(1, b"a" * 16)
    await harness.settle(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        harness.append(2, b"b" * MIB)
        harness.append(3, b"c" * MIB)
        await harness.settle(3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert harness.told == [(1, BookieCode.EOK), (2, BookieCode.EIO), (3, BookieCode.EIO)]
    assert harness.failures
    harness.append(4, b"d" * 16)
    await harness.settle(4)
    assert harness.told[3] == (4, BookieCode.EOK)
    assert harness.records() == [b"a" * 16, b"d" * 16]
    # One failure, or two when the writer had the first of them before the second came.
    assert len(journal_files.list_files(DISK, tmp_path)) == 1 + len(harness.failures)
    await harness.journal.close()


class StubbornFile(SystemFile):
    """Fails to write and to close."""

    failing = False

    def pwritev(self, parts: Sequence[bytes], position: int, *, durable: bool = False) -> int:
        """See `DiskFile.pwritev`."""
        if self.failing:
            raise OSError(errno.EIO, "the disk is going")
        return super().pwritev(parts, position, durable=durable)

    def close(self) -> None:
        """See `DiskFile.close`."""
        super().close()
        if self.failing:
            raise OSError(errno.EIO, "what was written is lost")


class StubbornDisk(SystemDisk):
    """Remembers the file that it made last."""

    last: StubbornFile
    refusing = False
    """Nothing can be written to new files."""

    def create(self, path: Path) -> SystemFile:
        """See `Disk.create`."""
        self.last = StubbornFile(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        self.last.failing = self.refusing
        return self.last


async def test_a_file_that_cannot_even_be_closed_does_not_end_the_journal(tmp_path: Path) -> None:
    disk = StubbornDisk()
    harness = Harness(tmp_path, disk=disk)
    disk.last.failing = True
    harness.append(1, b"a" * 16)
    await harness.settle(1)
    harness.append(2, b"b" * 16)
    await harness.settle(2)
    assert harness.told == [(1, BookieCode.EIO), (2, BookieCode.EOK)]
    assert harness.records() == [b"b" * 16]
    await harness.journal.close()


async def test_a_file_that_cannot_be_begun_is_not_left_behind(tmp_path: Path) -> None:
    """A disk that stays full is tried again with each group: it must not fill up with files of nothing."""
    disk = StubbornDisk()
    harness = Harness(tmp_path, disk=disk)
    disk.last.failing = disk.refusing = True
    for number in range(3):
        harness.append(number, b"a" * 16)
        await harness.settle(number + 1)
    disk.refusing = False
    harness.append(3, b"b" * 16)
    await harness.settle(4)
    assert [code for _, code in harness.told] == [BookieCode.EIO] * 3 + [BookieCode.EOK]
    assert len(journal_files.list_files(DISK, tmp_path)) == 2, "the one that failed, and the one that works"
    assert harness.records() == [b"b" * 16]
    await harness.journal.close()


async def test_one_listener_that_fails_leaves_the_others_theirs(tmp_path: Path) -> None:
    harness = Harness(tmp_path)

    def failing(_code: int, _context: Context) -> None:
        raise ValueError("a mistake")

    harness.journal.append([b"a" * 16], 16, failing, (lambda _code, _ledger_id, _entry_ids: None, 0, ()))
    harness.append(1, b"b" * 16)
    await harness.settle(1)
    assert harness.told == [(1, BookieCode.EOK)]
    await harness.journal.close()


async def test_who_wants_to_know_hears_once_all_of_a_group_are_told(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    heard: list[tuple[int, bool]] = []
    harness.journal.when_told(lambda: heard.append((len(harness.told), harness.progress.is_set())))
    for number in range(3):
        harness.append(number, b"a" * 16)
    await harness.settle(3)
    await harness.journal.close()
    assert len(heard) == harness.journal.groups
    assert heard[-1] == (3, True)


async def test_without_sync_it_writes_the_same(tmp_path: Path) -> None:
    harness = Harness(tmp_path, dataclasses.replace(SETTINGS, sync_data=False))
    harness.append(1, b"a" * 16)
    await harness.settle(1)
    assert harness.records() == [b"a" * 16]
    await harness.journal.close()


async def test_a_full_queue_is_told(tmp_path: Path) -> None:
    harness = Harness(tmp_path, dataclasses.replace(SETTINGS, queue_bytes_max=6 * MIB))
    full = []
    for number in range(6):
        full.append(harness.journal.full)
        harness.append(number, b"a" * MIB)
    full.append(harness.journal.full)
    await harness.settle(6)
    full.append(harness.journal.full)
    assert full == [False] * 6 + [True, False]
    await harness.journal.close()


@pytest.mark.parametrize("content", [b"", bytes(600)])
async def test_a_file_that_was_just_being_made_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "64.txn").write_bytes(content)
    assert list(JournalReplay(DISK, tmp_path, (0, 0), synced=True).groups()) == []


async def test_damage_before_whole_groups_stops_the_start(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for number in range(3):
        harness.append(number, b"a" * 100)
        await harness.settle(number + 1)
    await harness.journal.close()
    descriptor = os.open(tmp_path / "64.txn", os.O_RDWR)
    os.pwrite(descriptor, b"!", 512 + 20)
    os.close(descriptor)
    with pytest.raises(JournalDamaged, match="whole groups follow"):
        harness.records()
    unsynced: Sequence[list[bytes]] = list(JournalReplay(DISK, tmp_path, (0, 0), synced=False).groups())
    assert unsynced == [[b"a" * 100]] * 2
