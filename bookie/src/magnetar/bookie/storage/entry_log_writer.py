"""Writes entry logs. One thread at a time.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from magnetar.bookie.storage import entry_log_format
from magnetar.core.disk import Disk, DiskFile, write_all

logger: Final = logging.getLogger(__name__)

PIECES_MAX: Final = 1024
"""Buffers of one `pwritev`: the kernel's IOV_MAX."""


class EntryLogWriter:
    """Appends entries to the current log; makes the next one when it is full. Used by one thread at a time.

    A start never appends to an old log: every log that is written has a new id (as BookKeeper does)."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        size_bytes_max: int,
        allocate_log_id: Callable[[], int],
        file_name: Callable[[int], str] = entry_log_format.file_name,
    ) -> None:
        """`allocate_log_id` gives ids that no log has had; `file_name` the name of the log with an id."""
        self._file_name = file_name
        self._disk = disk
        self._directory = directory
        self._size_bytes_max = size_bytes_max
        self._allocate_log_id = allocate_log_id
        self._file: DiskFile | None = None
        self._position = 0
        self._durable_position = 0
        self._sizes_bytes: dict[int, int] = {}
        self.log_id = -1
        """The log that is being written; -1 before the first."""
        self.written_bytes = 0
        """Bytes that were ever appended to entry logs."""

    def append(self, ledger_id: int, entries: Sequence[bytes]) -> list[int]:
        """Write entries of one ledger in a row, in one log; their locations. Durable after `sync`. OSError.

        A new log is begun when these would make the current one larger than it should be."""
        if self._file is None or self._full(entries):
            self._roll()
        begin = self._position
        parts, starts = entry_log_format.encode_entries(entries, begin)
        for at in range(0, len(parts), PIECES_MAX):
            self._write(parts[at : at + PIECES_MAX])
        size = self._position - begin
        self._sizes_bytes[ledger_id] = self._sizes_bytes.get(ledger_id, 0) + size
        self.written_bytes += size
        base = self.log_id << 32
        return [base | start for start in starts]

    def sync(self) -> None:
        """Make everything that was appended durable. OSError."""
        if self._file is not None:
            self._file.sync()
            self._durable_position = self._position

    def abandon(self) -> None:
        """After an error: never append to this log again (a later sync would hide the failed one). The next append
        makes a new log. What was written since the last sync is given back: on a full disk every attempt would cost
        as much again."""
        if self._file is None:
            return
        path = self._directory / self._file_name(self.log_id)
        try:
            if self._durable_position:
                self._file.truncate(self._durable_position)
            else:
                self._disk.delete(path)
        except OSError as error:
            logger.warning("the unfinished end of %s stays: %s", path, error)
        self._let_go()

    def close(self) -> None:
        """Finish the current log with its ledgers map, durably. OSError: then `abandon`."""
        if self._file is None:
            return
        map_offset = self._position
        count = len(self._sizes_bytes)
        ledgers_map = entry_log_format.encode_ledgers_map(self._sizes_bytes)
        self._write([ledgers_map])
        # The map before the header that points to it: a crash in between leaves a log without a map.
        self._file.sync()
        write_all(self._file, entry_log_format.encode_header(map_offset, count, ledgers_map), 0)
        self._file.sync()
        self._let_go()

    def _full(self, entries: Sequence[bytes]) -> bool:
        if self._position <= entry_log_format.HEADER_BYTES:
            return False
        size = sum(map(len, entries)) + entry_log_format.SIZE_BYTES * len(entries)
        return self._position + size > self._size_bytes_max

    def _let_go(self) -> None:
        # Forgotten first: a descriptor whose closing failed is gone, and its number may be another file's by now.
        file, self._file = self._file, None
        self._sizes_bytes.clear()
        if file is not None:
            file.close()

    def _roll(self) -> None:
        self.close()
        self.log_id = self._allocate_log_id()
        self._file = self._disk.create(self._directory / self._file_name(self.log_id))
        self._position = self._durable_position = 0
        self._write([entry_log_format.encode_header()])
        self._disk.sync_directory(self._directory)

    def _write(self, parts: list[bytes]) -> None:
        assert self._file is not None
        written = self._file.pwritev(parts, self._position)
        self._position += written
        if written == sum(map(len, parts)):
            return
        # Cut short: write what is left, or hear from the disk why it cannot be.
        left = b"".join(parts)[written:]
        write_all(self._file, left, self._position)
        self._position += len(left)
