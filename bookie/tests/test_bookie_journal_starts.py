"""A journal that cannot even make its first file."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from magnetar.bookie.journal import Journal
from magnetar.bookie.journal_worker import ThreadJournalWorker
from magnetar.bookie.settings import JournalSettings
from magnetar.core.disk import SystemDisk


class NoDirectorySync(SystemDisk):
    """Files are written, their names are not made durable."""

    def sync_directory(self, directory: Path) -> None:
        """Fails."""
        raise OSError(errno.EIO, f"{directory} cannot be synced")


async def test_a_first_file_whose_name_is_not_durable_is_none(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be synced"):
        Journal(tmp_path, 1, JournalSettings(), NoDirectorySync(), ThreadJournalWorker())
