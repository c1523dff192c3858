"""A bookie's directories, and the small files in them that say where it stands."""

from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookie.entry_log import list_logs, write_small_file
from magnetar.bookie.journal import Mark
from magnetar.bookie.journal_files import list_files
from magnetar.bookie.settings import BookieSettings

CURRENT: Final = "current"
LAST_MARK_FILE: Final = "lastMark"
_MARK: Final = struct.Struct(">qq")


@dataclass(frozen=True, slots=True)
class BookieDirectories:
    """`<journal>/current` and `<ledgers>/current`."""

    journal: Path
    ledgers: Path

    def all(self) -> tuple[Path, ...]:
        """Each directory once."""
        return (self.journal, self.ledgers) if self.journal != self.ledgers else (self.ledgers,)

    def holds_data(self) -> bool:
        """Whether any journal file or entry log stands in them."""
        return bool(list_files(self.journal) or list_logs(self.ledgers))

    def read_last_mark(self) -> Mark:
        """Up to where the journal is in the entry logs; (0, 0) when nobody has said so. `ValueError` if damaged."""
        try:
            content = (self.ledgers / LAST_MARK_FILE).read_bytes()
        except FileNotFoundError:
            return (0, 0)
        if len(content) < _MARK.size:
            raise ValueError(f"{self.ledgers / LAST_MARK_FILE} has {len(content)} bytes instead of {_MARK.size}")
        file_id, offset = _MARK.unpack_from(content)
        return (file_id, offset)

    def write_last_mark(self, mark: Mark) -> None:
        """Store the mark, durably. OSError."""
        write_small_file(self.ledgers / LAST_MARK_FILE, _MARK.pack(*mark))

    def usage(self) -> tuple[int, int]:
        """(total, free) bytes of the fullest of the directories' file systems. OSError."""
        usages = [shutil.disk_usage(directory) for directory in self.all()]
        fullest = min(usages, key=lambda usage: usage.free / max(1, usage.total))
        return fullest.total, fullest.free


def open_directories(settings: BookieSettings) -> BookieDirectories:
    """The directories, made when missing. OSError."""
    directories = BookieDirectories(settings.journal_directory / CURRENT, settings.ledger_directory / CURRENT)
    for directory in directories.all():
        directory.mkdir(parents=True, exist_ok=True)
    return directories
