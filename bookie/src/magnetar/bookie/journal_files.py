"""The journal's directory: which files there are, reading them back at the start, dropping them when done with."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from magnetar.bookie import journal_format
from magnetar.bookie.journal import Mark
from magnetar.bookie.journal_format import Ending, JournalScan
from magnetar.core.disk import Disk
from magnetar.core.errors import Unavailable

log = logging.getLogger(__name__)


class JournalDamaged(Unavailable):
    """The journal cannot be replayed whole: acknowledged entries would be lost. Somebody must decide."""


def list_files(disk: Disk, directory: Path) -> list[int]:
    """Ids of the journal files, ascending."""
    found = (journal_format.file_id_of(name) for name in disk.list_names(directory))
    return sorted(file_id for file_id in found if file_id is not None)


def replay(disk: Disk, directory: Path, mark: Mark, *, synced: bool) -> Iterator[list[bytes]]:
    """The records of every whole group from the mark on, in order.

    Raises `JournalDamaged` when the marked file is missing, or when bytes before a whole group are wrong and the
    journal was written with sync (without it a power failure may do that, and the setting accepts the loss)."""
    file_ids = [file_id for file_id in list_files(disk, directory) if file_id >= mark[0]]
    if mark[0] > 0 and (not file_ids or file_ids[0] != mark[0]):
        raise JournalDamaged(
            f"lastMark names journal file {journal_format.file_name(mark[0])}, which is not in {directory}. Restore "
            "it, or remove the bookie's data and let the other replicas restore it"
        )
    for file_id in file_ids:
        path = directory / journal_format.file_name(file_id)
        yield from _replay_file(disk, path, mark[1] if file_id == mark[0] else 0, synced=synced)


def _replay_file(disk: Disk, path: Path, offset: int, *, synced: bool) -> Iterator[list[bytes]]:
    file = disk.open(path)
    try:
        if file.size_bytes() == 0 or not any(file.pread(journal_format.HEADER_BYTES, 0)):
            log.info("journal file %s was just being made; nothing in it", path.name)
            return
        try:
            scan = JournalScan(lambda at, size: file.pread(size, at), offset)
        except journal_format.NotAJournal as error:
            raise JournalDamaged(f"{path}: {error}") from None
        while (records := scan.next_group()) is not None:
            yield records
    finally:
        file.close()
    if scan.ending is Ending.DAMAGED and synced:
        raise JournalDamaged(
            f"{path}: {scan.problem}, yet whole groups follow it: the disk lost or changed acknowledged entries. "
            "Restore the file, or remove the bookie's data and let the other replicas restore it"
        )
    if scan.ending is not Ending.CLEAN:
        log.warning(
            "journal file %s ends at %d: %s; nobody was told it is safe", path.name, scan.end_offset, scan.problem
        )


def trim(disk: Disk, directory: Path, mark: Mark, backups_max: int) -> list[int]:
    """Delete the oldest files before the marked one, all but `backups_max` of them; their ids."""
    old = [file_id for file_id in list_files(disk, directory) if file_id < mark[0]]
    doomed = old[: max(0, len(old) - backups_max)]
    for file_id in doomed:
        disk.delete(directory / journal_format.file_name(file_id))
    return doomed
