"""The entry logs of one ledger directory: which there are, who writes, who reads, which may be collected."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from magnetar.bookie.storage.entry_log_format import LOG_SUFFIX, log_id_of
from magnetar.bookie.storage.entry_log_note import list_logs, write_note
from magnetar.bookie.storage.entry_log_reader import EntryLogReader
from magnetar.bookie.storage.entry_log_writer import EntryLogWriter
from magnetar.core.disk import Disk

logger: Final = logging.getLogger(__name__)

LAST_ID_FILE: Final = "lastId"
LOG_ID_MAX: Final = 2**31 - 1
"""It is the upper half of a location, which has a sign."""


class EntryLogs:
    """Hands out ids, and knows which logs are finished. Methods may be called from any thread."""

    def __init__(self, disk: Disk, directory: Path, size_bytes_max: int) -> None:
        """`directory` holds the logs; `size_bytes_max` is where the writer begins a new one. OSError."""
        self.disk = disk
        self.directory = directory
        self.size_bytes_max = size_bytes_max
        self._lock = threading.Lock()
        there = list_logs(disk, directory)
        self._last_id = max(self._read_last_id(), *_ids_taken(disk.list_names(directory)), -1)
        self._noted = frozenset(there)
        self._unindexed: set[int] = set()
        self.writer = EntryLogWriter(disk, directory, size_bytes_max, self._allocate_for_writer)
        """Writes entry logs; for the checkpoint alone."""
        self.reader = EntryLogReader(disk, directory)

    @property
    def log_id(self) -> int:
        """The log that checkpoints write now, or wrote last; -1 when none was written yet."""
        return self.writer.log_id

    def allocate_log_id(self) -> int:
        """An id that no log has had and none will get again. OSError."""
        with self._lock:
            log_id = self._last_id + 1
            self.disk.replace_whole(self.directory / LAST_ID_FILE, f"{log_id:x}\n".encode())
            self._last_id = log_id
        return log_id

    def closed_logs(self) -> list[int]:
        """Ids, ascending, of the logs in the directory that nobody writes and whose entries are all in the index: an
        entry in one of them that the index looks for elsewhere, or not at all, is garbage. OSError."""
        # In this order: a log that is made or finished in between is left out or rightly in.
        there = list_logs(self.disk, self.directory)
        with self._lock:
            return [log_id for log_id in there if log_id not in self._unindexed]

    def note_written(self) -> None:
        """Note durably which logs the writer has begun, before the index names them. OSError."""
        with self._lock:
            if not self._unindexed <= self._noted:
                self._note(self._noted | self._unindexed)

    def indexed(self) -> None:
        """The index has everything that the writer has written; the log that it is in stays open."""
        with self._lock:
            self._unindexed = {self.writer.log_id}

    def abandon(self) -> None:
        """The writer failed. What it wrote since `indexed` will not come into the index; see its `abandon`."""
        self.writer.abandon()
        with self._lock:
            self._unindexed.clear()

    def forget(self, log_id: int, copy_id: int | None = None) -> None:
        """A log was deleted, maybe as another one has what was wanted of it: close the reader's descriptor, and expect
        the log no more."""
        self.reader.forget(log_id)
        with self._lock:
            try:
                self._note((self._noted - {log_id}) | ({copy_id} if copy_id is not None else set()))
            except OSError as error:
                # The next start asks the index, and finds that nothing is wanted of it.
                logger.warning("the note of the entry logs in %s could not be kept up: %s", self.directory, error)

    def close(self) -> None:
        """Finish the current log and close all."""
        try:
            self.writer.close()
        except OSError as error:
            # Its entries were synced by the checkpoint; only the ledgers map is missing, which a scan replaces.
            logger.warning("the current entry log could not be closed well: %s", error)
            self.writer.abandon()
        self.reader.close()

    def _allocate_for_writer(self) -> int:
        log_id = self.allocate_log_id()
        with self._lock:
            self._unindexed.add(log_id)
        return log_id

    def _note(self, log_ids: frozenset[int]) -> None:
        write_note(self.disk, self.directory, log_ids)
        self._noted = log_ids

    def _read_last_id(self) -> int:
        path = self.directory / LAST_ID_FILE
        content = self.disk.read_whole(path)
        if content is None:
            return -1
        try:
            last_id = int(content.strip() or b"-1", 16)
        except ValueError:
            last_id = LOG_ID_MAX + 1
        if last_id > LOG_ID_MAX:
            logger.warning("%s is damaged and left out: the logs that are there count", path)
            return -1
        return last_id


def _ids_taken(names: Sequence[str]) -> Iterator[int]:
    """Also by the copies of compactions, which a crash may have left without a log's name."""
    for name in names:
        stem, suffix, _ = name.partition(LOG_SUFFIX)
        log_id = log_id_of(stem + suffix)
        if log_id is not None:
            yield log_id
