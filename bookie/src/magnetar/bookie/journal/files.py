"""The journal's directory: which files there are, and dropping them when done with."""

from __future__ import annotations

from pathlib import Path

from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal.journal import Mark
from magnetar.core.disk import Disk
from magnetar.core.errors import Unavailable


class JournalDamaged(Unavailable):
    """The journal cannot be replayed whole: acknowledged entries would be lost. Somebody must decide."""


def list_files(disk: Disk, directory: Path) -> list[int]:
    """Ids of the journal files, ascending."""
    found = (journal_format.file_id_of(name) for name in disk.list_names(directory))
    return sorted(file_id for file_id in found if file_id is not None)


def trim(disk: Disk, directory: Path, mark: Mark, backups_max: int) -> list[int]:
    """Delete the oldest files before the marked one, all but `backups_max` of them; their ids."""
    old = [file_id for file_id in list_files(disk, directory) if file_id < mark[0]]
    doomed = old[: max(0, len(old) - backups_max)]
    for file_id in doomed:
        disk.delete(directory / journal_format.file_name(file_id))
    return doomed
