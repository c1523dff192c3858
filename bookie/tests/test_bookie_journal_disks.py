"""Disks that let a journal down: names that are not durable, writes that are cut short."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from magnetar.bookie.journal.journal import Journal, JournalFile
from magnetar.bookie.journal.worker import ThreadJournalWorker
from magnetar.bookie.settings import JournalSettings
from magnetar.core.disk import SystemDisk, SystemFile


class NoDirectorySync(SystemDisk):
    """Files are written, their names are not made durable."""

    def sync_directory(self, directory: Path) -> None:
        """Fails."""
        raise OSError(errno.EIO, f"{directory} cannot be synced")


class ShortFile(SystemFile):
    """Writes half of it once it is full."""

    full = False

    def pwritev(self, parts: Sequence[bytes], position: int, *, durable: bool = False) -> int:
        """See `DiskFile.pwritev`."""
        whole = b"".join(parts)
        return super().pwritev([whole[: len(whole) // 2] if self.full else whole], position, durable=durable)


class ShortDisk(SystemDisk):
    """Remembers the file that it made last."""

    last: ShortFile

    def create(self, path: Path) -> SystemFile:
        """See `Disk.create`."""
        self.last = ShortFile(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        return self.last


async def test_a_first_file_whose_name_is_not_durable_is_none(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be synced"):
        Journal(tmp_path, 1, JournalSettings(), NoDirectorySync(), ThreadJournalWorker())


def test_a_write_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    disk = ShortDisk()
    file = JournalFile(disk, tmp_path, 1, JournalSettings())
    file.write_group([[b"whole" * 10]])
    position = file.position
    disk.last.full = True
    with pytest.raises(OSError, match="bytes were written"):
        file.write_group([[b"cut short" * 10]])
    assert file.position == position
    file.close()
