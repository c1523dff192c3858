"""A ledger's entries as a bookie's index and entry logs have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from magnetar.bookie.storage.entry_log_format import EntryDamaged
from magnetar.bookie.storage.entry_log_reader import EntryLogReader
from magnetar.cli.tools.bookie_files import BookieFolders, current
from magnetar.cli.tools.index_reading import IndexReading
from magnetar.core.disk import SystemDisk


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """Where an entry is stored, by the index."""

    entry_id: int
    log_id: int
    position: int
    directory: str
    """The ledger directory whose index has the entry."""
    problem: str = ""
    """Why it cannot be read; empty when it can, or was not tried."""


def stored_entries(folders: BookieFolders, ledger_id: int, *, check: bool) -> Iterator[StoredEntry]:
    """Every entry that the index knows, ascending in each directory; with `check` each is read. OSError,
    `SettingError`."""
    for index_folder, ledger_folder in zip(folders.index_folders(), folders.ledgers, strict=True):
        reader = EntryLogReader(SystemDisk(), current(ledger_folder))
        with IndexReading(index_folder) as index:
            for entry in index.entries(ledger_id):
                location = entry.log_id << 32 | entry.position
                yield StoredEntry(
                    entry_id=entry.entry_id,
                    log_id=entry.log_id,
                    position=entry.position,
                    directory=str(ledger_folder),
                    problem=_problem(reader, location, ledger_id, entry.entry_id) if check else "",
                )
        reader.close()


def _problem(reader: EntryLogReader, location: int, ledger_id: int, entry_id: int) -> str:
    try:
        entry = reader.read(location, ledger_id, entry_id)
    except (EntryDamaged, OSError) as error:
        return str(error)
    reader.learn_digest(ledger_id, entry)
    return ""
