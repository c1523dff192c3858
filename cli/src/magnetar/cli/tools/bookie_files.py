"""Which files a stopped or running bookie has. Reads only."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookie.cookie import COOKIE_FILE
from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.directories import CURRENT, LAST_MARK_FILE
from magnetar.bookie.storage.index import LEDGERS_DIRECTORY, LOCATIONS_DIRECTORY
from magnetar.core.errors import SettingError

_MARK: Final = struct.Struct(">qq")
_INDEXES: Final = (LEDGERS_DIRECTORY, LOCATIONS_DIRECTORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieFolders:
    """A bookie's directories, as its settings name them (without `current`)."""

    journals: tuple[Path, ...]
    ledgers: tuple[Path, ...]
    indexes: tuple[Path, ...]

    def journal_files(self) -> list[Path]:
        """All journal files, oldest first within each directory. `SettingError` when a directory is missing."""
        return [path for folder in self.journals for path in _numbered(folder, journal_format.file_id_of)]

    def entry_logs(self) -> list[Path]:
        """All entry logs, oldest first within each directory. `SettingError` when a directory is missing."""
        return [path for folder in self.ledgers for path in _numbered(folder, entry_log_format.log_id_of)]

    def index_folders(self) -> list[Path]:
        """…/current of each index. `SettingError` when a directory is missing."""
        return [current(folder) for folder in self.indexes]

    def all(self) -> list[Path]:
        """Each directory once."""
        return list(dict.fromkeys((*self.journals, *self.ledgers, *self.indexes)))


def current(folder: Path) -> Path:
    """The folder's `current`; the folder itself when it is one. `SettingError` when there is none."""
    inner = folder if folder.name == CURRENT else folder / CURRENT
    if not inner.is_dir():
        raise SettingError(f"{inner} is no directory; give the bookie's own with --journal, --ledgers or --conf")
    return inner


def _numbered(folder: Path, number: object) -> list[Path]:
    assert callable(number)
    found = [(number(name), name) for name in os.listdir(current(folder))]
    return [current(folder) / name for _, name in sorted((at, name) for at, name in found if at is not None)]


def find_file(given: str, files: Callable[[], Sequence[Path]]) -> Path:
    """A file that was given as a path, a name, or the id in the name; only for the last two the bookie's `files` are
    looked at. `SettingError` when there is none, or several."""
    path = Path(given)
    if path.is_file():
        return path
    try:
        candidates = files()
    except SettingError as error:
        raise SettingError(f"no file {given}; and as for one of a bookie with this name: {error}") from None
    fitting = [candidate for candidate in candidates if given.lower() in (candidate.name.lower(), candidate.stem)]
    if len(fitting) != 1:
        what = "there are several" if fitting else "there is none"
        raise SettingError(f"no file {given}: {what} with this name in {len(candidates)} files of the bookie")
    return fitting[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMark:
    """Up to where a journal is in the entry logs, as one ledger directory says."""

    ledger_directory: str
    journal: int
    """Which of the journal directories, from 0."""
    file: str
    offset: int


def last_marks(folders: BookieFolders) -> list[StoredMark]:
    """Every copy of the last mark; at a start the greatest one of each journal counts. `SettingError`."""
    marks: list[StoredMark] = []
    for folder in folders.ledgers:
        for path in sorted(current(folder).glob(f"{LAST_MARK_FILE}*")):
            content = path.read_bytes()
            number = path.name[len(LAST_MARK_FILE) + 1 :]
            if len(content) < _MARK.size or not (number.isdigit() or path.name == LAST_MARK_FILE):
                continue
            file_id, offset = _MARK.unpack_from(content)
            marks.append(
                StoredMark(
                    ledger_directory=str(folder),
                    journal=int(number or 0),
                    file=journal_format.file_name(file_id),
                    offset=offset,
                )
            )
    return marks


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderUsage:
    """One directory and the file system that it is on."""

    directory: str
    total_bytes: int
    free_bytes: int
    journal_files: int
    journal_bytes: int
    entry_logs: int
    entry_log_bytes: int
    index_bytes: int


def usage(folders: BookieFolders) -> list[FolderUsage]:
    """How much of each disk is used, and what of it is this bookie's. `SettingError`."""
    found: list[FolderUsage] = []
    for folder in folders.all():
        inner = current(folder)
        disk = shutil.disk_usage(inner)
        journals = [path for path in inner.iterdir() if journal_format.file_id_of(path.name) is not None]
        logs = [path for path in inner.iterdir() if entry_log_format.log_id_of(path.name) is not None]
        index = [path for name in _INDEXES for path in (inner / name).glob("*")]
        found.append(
            FolderUsage(
                directory=str(folder),
                total_bytes=disk.total,
                free_bytes=disk.free,
                journal_files=len(journals),
                journal_bytes=_size(journals),
                entry_logs=len(logs),
                entry_log_bytes=_size(logs),
                index_bytes=_size(index),
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a bookie."""

    kind: str
    """journal, entry-log, index, cookie, mark or other."""
    path: str
    size_bytes: int
    modified_ms: int


def files(folders: BookieFolders) -> Iterator[StoredFile]:
    """Every file, directory by directory. `SettingError`."""
    for folder in folders.all():
        for parent, _, names in sorted(os.walk(current(folder))):
            for name in sorted(names):
                path = Path(parent) / name
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # A running bookie removes files.
                yield StoredFile(
                    kind=_kind(path),
                    path=str(path),
                    size_bytes=status.st_size,
                    modified_ms=status.st_mtime_ns // 1_000_000,
                )


def _kind(path: Path) -> str:
    if journal_format.file_id_of(path.name) is not None:
        return "journal"
    if path.parent.name in _INDEXES:
        return "index"
    if entry_log_format.log_id_of(path.name) is not None:
        return "entry-log"
    if path.name == COOKIE_FILE:
        return "cookie"
    return "mark" if path.name.startswith(LAST_MARK_FILE) else "other"


def _size(paths: Sequence[Path]) -> int:
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # A running bookie removes files.
    return total
