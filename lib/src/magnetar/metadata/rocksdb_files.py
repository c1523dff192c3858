"""A RocksDB database on a disk that may have damaged it: refused when something is missing, never opened without it.

RocksDB's own checksums find what was changed. What they cannot find is an end that is gone (a log or a MANIFEST that
was cut, or deleted): that looks as if nobody had written it. So each database has a small file beside its own, which
says how far it was durable at last; RocksDB and BookKeeper pass over files that they do not know.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from pathlib import Path
from typing import Final

from magnetar.core.disk import SystemDisk
from magnetar.core.errors import Unavailable
from rocksdict import AccessType, DBRecoveryMode, Options, Rdict, RdictIter

logger: Final = logging.getLogger(__name__)

DATABASE: Final = "rocksdb"
"""The directory of a metadata store's database, below its own; made durably, as RocksDB makes it without a sync of its
name."""

SYNCED_FILE: Final = "magnetar.synced"
_SYNCED: Final = struct.Struct(">8sQI")
_SYNCED_WORD: Final = b"MGTRsync"
_MODE: Final = 0o644


class DatabaseDamaged(Unavailable):
    """Something of a database is wrong or missing; the text names the directory and what RocksDB says of it."""


class SyncedNumber:
    """How many changes of a database are durable, as far as was noted. Any thread, one at a time."""

    def __init__(self, directory: Path) -> None:
        """Makes the file when there is none. OSError."""
        self._path = directory / SYNCED_FILE
        made = not self._path.exists()
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        if made:
            # That it is there says that whatever was durable since was noted.
            SystemDisk().sync_directory(directory)
        self._failed = False

    def note(self, number: int) -> None:
        """So many are durable now. It is not synced itself: after a power failure an older number may stand there,
        which is true as well. That it cannot be noted is told once, and lessens only what the next start can tell."""
        content = _pack(number)
        try:
            written = os.pwrite(self._descriptor, content, 0)
            problem = "" if written == len(content) else f"{written} of {len(content)} bytes were written"
        except OSError as error:
            problem = str(error)
        if problem and not self._failed:
            logger.warning("%s cannot be kept up: %s", self._path, problem)
        self._failed = bool(problem)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def open_database(directory: Path, options: Options) -> Rdict:
    """Open it, or make it where nothing is; with `check`s that RocksDB leaves out. What it lacks stops it:
    `DatabaseDamaged`. Any other trouble is what RocksDB raises, which has no class of its own.

    An end of the log that was never whole is no damage: it was never said to be durable."""
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    number = noted_number(directory)
    _refuse_without_current(directory, number)
    if (directory / "CURRENT").exists() and not (directory / SYNCED_FILE).exists():
        logger.warning(
            "%s is missing, as it is where BookKeeper has written: whether the newest changes are all there, nobody "
            "can tell; it is made anew",
            directory / SYNCED_FILE,
        )
    try:
        database = Rdict(str(directory), options)
    except Exception as error:
        if not _is_damage(str(error)):
            raise
        said = " ".join(str(error).split()).rstrip(".")  # Of several lines, for the most part.
        if not _holds_what_was_synced(directory, options, number):
            raise DatabaseDamaged(f"{directory} is damaged: {said}") from error
        logger.warning(
            "%s ends with changes that were never said to be durable; they are left out: %s", directory, said
        )
        options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
        database = Rdict(str(directory), options)
    found = database.latest_sequence_number()
    if found < number:
        database.close()
        raise DatabaseDamaged(
            f"{directory} has lost its newest {number - found} changes: {number} were durable, {found} are there. A "
            "log (*.log) or the MANIFEST was cut or deleted"
        )
    return database


def _holds_what_was_synced(directory: Path, options: Options, number: int) -> bool:
    """Whether all that was noted as durable stands before what is damaged. Changes nothing on the disk.

    A power failure may leave the end of a log torn, with zeros, or with later sectors and without earlier ones. RocksDB
    cannot tell that from damage to what was durable, but the number noted can. Without a note nobody can."""
    if not (directory / SYNCED_FILE).exists():
        return False
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    try:
        database = Rdict(str(directory), options, access_type=AccessType.read_only())
        found = database.latest_sequence_number()
        database.close()
    except Exception as error:  # noqa: BLE001  (the binding's errors have no class of their own)
        logger.info("%s cannot be read at all: %s", directory, error)
        return False
    return found >= number


def repair_database(directory: Path, options: Options) -> None:
    """Make a database of what can still be read of a damaged one; what cannot is moved into `lost` below it. What
    RocksDB raises when nothing can be done."""
    (directory / SYNCED_FILE).unlink(missing_ok=True)
    Rdict.repair(str(directory), options)


def holds_database(directory: Path) -> bool:
    """Whether anything of a database stands in a directory, damaged or not."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False
    begins = ("CURRENT", "MANIFEST-", SYNCED_FILE)
    return any(name.startswith(begins) or name.endswith((".sst", ".log")) for name in names)


def noted_number(directory: Path) -> int:
    """How many changes were durable at least; 0 when nobody has said so, or what was said is damaged."""
    path = directory / SYNCED_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return 0
    if not content:
        return 0  # Just being made.
    if len(content) == _SYNCED.size:
        _, number, _ = _SYNCED.unpack(content)
        if content == _pack(number):
            return int(number)
    logger.warning("%s is damaged and left out: the database itself is checked all the same", path)
    return 0


def check_iterator(iterator: RdictIter) -> None:
    """Raise what made an iterator end before its time: to RocksDB a block that it cannot read is an end as well."""
    if not iterator.valid():
        iterator.status()


def _refuse_without_current(directory: Path, number: int) -> None:
    """RocksDB takes a directory without it for an empty one, makes a new database and deletes what was in the way."""
    if not directory.is_dir():
        return
    names = os.listdir(directory)
    if "CURRENT" not in names and (number or any(name.endswith((".sst", ".log")) for name in names)):
        raise DatabaseDamaged(f"{directory} is damaged: there is data, and the file CURRENT is missing")


def _is_damage(text: str) -> bool:
    return "Corruption" in text or "No such file" in text or "corrupted" in text or "not end with newline" in text


def _pack(number: int) -> bytes:
    return _SYNCED.pack(_SYNCED_WORD, number, zlib.crc32(_SYNCED.pack(_SYNCED_WORD, number, 0)))
