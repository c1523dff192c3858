"""A bookie's directories, and the small files in them that say where it stands."""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import google_crc32c
from magnetar.bookie.journal import files as journal_files
from magnetar.bookie.journal.journal import Mark
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage.entry_log_note import list_logs
from magnetar.core.disk import Disk

logger: Final = logging.getLogger(__name__)

CURRENT: Final = "current"
LAST_MARK_FILE: Final = "lastMark"
_MARK: Final = struct.Struct(">qq")
_CHECK: Final = struct.Struct(">4sI")
_CHECK_WORD: Final = b"MGTR"

Marks: TypeAlias = tuple[Mark, ...]
"""One per journal directory, in the settings' order."""


@dataclass(frozen=True, slots=True)
class BookieDirectories:
    """`<directory>/current` of each directory in the settings, in their order: a ledger's place depends on it."""

    journals: tuple[Path, ...]
    ledgers: tuple[Path, ...]
    indexes: tuple[Path, ...]
    """The index's directories, one for each ledger directory; the same ones unless the settings say otherwise."""
    disk: Disk

    def all(self) -> tuple[Path, ...]:
        """Each directory once."""
        return tuple(dict.fromkeys((*self.journals, *self.ledgers, *self.indexes)))

    def holds_data(self) -> bool:
        """Whether any journal file or entry log stands in them. OSError."""
        return any(self.holds_data_in(directory) for directory in self.all())

    def holds_data_in(self, directory: Path) -> bool:
        """Whether any stands in this one. OSError."""
        return bool(journal_files.list_files(self.disk, directory)) or bool(list_logs(self.disk, directory))

    def read_last_marks(self) -> Marks:
        """Up to where each journal is in the entry logs; (0, 0) when nobody has said so. OSError.

        The greatest of the ledger directories' copies counts: marks are written when every directory has all that
        they cover. A damaged copy is left out; without any, a journal counts from the oldest file that checkpoints
        have left. Replaying more than is needed changes nothing."""
        return tuple(self._read_last_mark(index) for index in range(len(self.journals)))

    def _read_last_mark(self, journal_index: int) -> Mark:
        name = self._mark_file(journal_index)
        found: list[Mark] = []
        for directory in self.ledgers:
            content = self.disk.read_whole(directory / name)
            if content is None:
                continue
            try:
                found.append(decode_mark(content))
            except ValueError as error:
                logger.warning("%s is damaged and left out: %s", directory / name, error)
        if found:
            return max(found)
        if not any(list_logs(self.disk, directory) for directory in self.ledgers):
            return (0, 0)
        oldest = min(journal_files.list_files(self.disk, self.journals[journal_index]), default=0)
        logger.warning("no directory has a %s that can be read: the journal counts from file %x on", name, oldest)
        return (oldest, 0)

    def write_last_marks(self, marks: Marks) -> None:
        """Store the marks in every ledger directory, durably. OSError when no directory took them all.

        One is enough: a directory that is full, or fails, must not keep the others' journals from being trimmed."""
        failure: OSError | None = None
        written = 0
        for directory in self.ledgers:
            try:
                for index, mark in enumerate(marks):
                    self.disk.replace_whole(directory / self._mark_file(index), encode_mark(mark))
                written += 1
            except OSError as error:
                failure = error
                logger.warning("the journal's mark could not be stored in %s: %s", directory, error)
        if failure is not None and not written:
            raise failure

    def holds_old_journals(self, backups_max: int) -> bool:
        """Whether any journal has more files than the newest one and `backups_max` before it. OSError."""
        counts = [len(journal_files.list_files(self.disk, directory)) for directory in self.journals]
        return max(counts) > backups_max + 1

    def trim_journals(self, marks: Marks, backups_max: int) -> None:
        """Delete the journal files that are no longer needed, but for `backups_max` of each journal. OSError."""
        for directory, mark in zip(self.journals, marks, strict=True):
            deleted = journal_files.trim(self.disk, directory, mark, backups_max)
            if deleted:
                logger.info("deleted %d journal files up to %x in %s", len(deleted), deleted[-1], directory)

    def spaces(self) -> list[tuple[Path, int, int]]:
        """(directory, total, free bytes) of the file system of each directory. OSError."""
        return [(directory, *self.disk.usage_bytes(directory)) for directory in self.all()]

    def usage(self) -> tuple[int, int]:
        """(total, free) bytes of the ledger directories' file systems together. OSError.

        Directories that look exactly alike are taken for the same file system, which counts once."""
        found = {self.disk.usage_bytes(directory) for directory in self.ledgers}
        return sum(total for total, _ in found), sum(free for _, free in found)

    def _mark_file(self, journal_index: int) -> str:
        return LAST_MARK_FILE if len(self.journals) == 1 else f"{LAST_MARK_FILE}.{journal_index}"


def encode_mark(mark: Mark) -> bytes:
    """The content of `lastMark`: BookKeeper's 16 bytes, which is all that it reads, and a checksum behind them."""
    content = _MARK.pack(*mark)
    return content + _CHECK.pack(_CHECK_WORD, google_crc32c.value(content))


def decode_mark(content: bytes) -> Mark:
    """The mark, with a checksum or, as BookKeeper writes it, without. `ValueError` when it is damaged."""
    if len(content) not in (_MARK.size, _MARK.size + _CHECK.size):
        raise ValueError(f"it has {len(content)} bytes instead of {_MARK.size}")
    file_id, offset = _MARK.unpack_from(content)
    mark = (int(file_id), int(offset))
    if len(content) > _MARK.size and content != encode_mark(mark):
        raise ValueError("it does not match its checksum")
    return mark


def open_directories(settings: BookieSettings, disk: Disk) -> BookieDirectories:
    """The directories, made when missing. OSError.

    One without anything in it may be the work of a start that was killed before its name was durable."""
    directories = BookieDirectories(
        tuple(directory / CURRENT for directory in settings.journal_directories),
        tuple(directory / CURRENT for directory in settings.ledger_directories),
        tuple(directory / CURRENT for directory in settings.index_directories or settings.ledger_directories),
        disk,
    )
    for directory in directories.all():
        try:
            names = disk.list_names(directory)
        except FileNotFoundError:
            names = []
        if not names:
            disk.make_directory(directory)
    return directories
