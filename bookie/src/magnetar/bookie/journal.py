"""The journal: many adds, one durable write.

The event loop hands lists of records over with `Journal.append`; one thread takes everything that waits, makes one
buffer of it, writes it durably and wakes the loop once. There is no timer: an idle journal costs one disk write per
add, a busy one grows its groups by itself while the disk works.

How the write is made durable was measured on ext4 (p50, µs, for 4 KiB / 64 KiB / 512 KiB / 2 MiB):
growing file and fdatasync 112 / 179 / 532 / 2400, preallocated and fdatasync 87 / 143 / 496 / 1580, preallocated and
RWF_DSYNC 93 / 143 / 513 / 1700. So: preallocate, and write with RWF_DSYNC, which is one system call and hence one
hand-over of the interpreter lock instead of two. Where the flag does not exist, write and fsync.

After a failed write the file is never written again: the kernel may have dropped the dirty pages and would report
the next sync of the same file as good. Everything of the group is answered with an error, and the next group goes to
a new file; if that cannot be made, it fails as well. Nothing is acknowledged that is not durable.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from magnetar.bookie import journal_format
from magnetar.bookie.settings import JournalSettings
from magnetar.core.errors import Misuse
from magnetar.wire.bookkeeper.codes import BookieCode

log = logging.getLogger(__name__)

Mark: TypeAlias = tuple[int, int]
"""(file id, offset): everything before it is durable."""

Context: TypeAlias = tuple[Callable[[int, int, Sequence[int]], None], int, Sequence[int]]
"""What a finished append is told with: the caller's callback, ledger id, entry ids."""

Done: TypeAlias = Callable[[int, Context], None]

_Item: TypeAlias = tuple[list[bytes], int, Done, Context]

_WRITE_FLAGS: Final[int] = getattr(os, "RWF_DSYNC", 0)


class JournalFile:
    """One file that is being written. All calls from the journal thread."""

    def __init__(self, directory: Path, file_id: int, settings: JournalSettings) -> None:
        self.file_id = file_id
        self.position = 0
        self._settings = settings
        self._allocated = 0
        self._descriptor = os.open(
            directory / journal_format.file_name(file_id), os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644
        )
        try:
            self._write([journal_format.encode_header()], journal_format.HEADER_BYTES)
            if settings.sync_data:
                os.fsync(self._descriptor)
                sync_directory(directory)
        except OSError:
            os.close(self._descriptor)
            raise

    def write_group(self, record_lists: list[list[bytes]]) -> None:
        """Write one group, durably if the settings say so. OSError: this file must not be used again."""
        body, padding = journal_format.encode_group(record_lists, self.position, self._settings.alignment_bytes)
        self._write([body, padding], len(body) + len(padding))

    def _write(self, parts: list[bytes], size: int) -> None:
        while self.position + size > self._allocated:
            os.posix_fallocate(self._descriptor, self._allocated, self._settings.preallocate_bytes)
            self._allocated += self._settings.preallocate_bytes
        if not self._settings.sync_data:
            written = os.pwritev(self._descriptor, parts, self.position)
        elif _WRITE_FLAGS:
            written = os.pwritev(self._descriptor, parts, self.position, _WRITE_FLAGS)
        else:
            written = os.pwritev(self._descriptor, parts, self.position)
            os.fsync(self._descriptor)
        if written != size:
            raise OSError(errno.ENOSPC, f"only {written} of {size} bytes were written")
        self.position += size

    def close(self) -> None:
        """Let go of the file; what it holds is as durable as its writes were."""
        os.close(self._descriptor)


class Journal:
    """The journal as the event loop sees it, and its thread."""

    def __init__(
        self,
        directory: Path,
        first_file_id: int,
        settings: JournalSettings,
        on_progress: Callable[[], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        """`first_file_id` must be greater than that of every file in the directory. `on_progress` is called after
        every group, `on_failure` after a group that could not be written; both on the loop."""
        self._directory = directory
        self._settings = settings
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._file: JournalFile | None = JournalFile(directory, first_file_id, settings)
        self._next_file_id = first_file_id + 1
        self._closed = False
        self.queued_bytes = 0
        self.groups = 0
        self.written_bytes = 0
        self.mark: Mark = (first_file_id, self._file.position)
        """Behind the last durable group. One tuple, so that both threads see a pair that belongs together."""
        self._writing_thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._writing_thread.start()

    @property
    def full(self) -> bool:
        """Whether the caller should hold adds back until the next `on_progress`."""
        return self.queued_bytes >= self._settings.queue_bytes_max

    def append(self, records: list[bytes], size_bytes: int, done: Done, context: Context) -> None:
        """Make the records durable, in the order of the calls; then `done(code, context)` on the loop.

        Records of one call are never split over two groups. The list belongs to the journal from here on."""
        if self._closed:
            raise Misuse("the journal is closed")
        self.queued_bytes += size_bytes
        self._items.put((records, size_bytes, done, context))

    async def close(self) -> None:
        """Write what was appended, then stop. Closing twice is no error."""
        if not self._closed:
            self._closed = True
            self._items.put(None)
        while self._writing_thread.is_alive():
            await self._loop.run_in_executor(None, self._writing_thread.join, 1.0)
        # The last group's completion is in the loop's queue behind us or before us; one turn settles it.
        await asyncio.sleep(0)

    def _run(self) -> None:
        take = self._items.get
        group_bytes_max = self._settings.group_bytes_max
        while True:
            first = take()
            group: list[_Item] = []
            size = 0
            item = first
            while item is not None:
                group.append(item)
                size += item[1]
                if size >= group_bytes_max or self._items.empty():
                    break
                item = take()
            if group:
                self._write_group(group, size)
            if item is None:
                break
        if self._file is not None:
            self._file.close()

    def _write_group(self, group: list[_Item], size: int) -> None:
        error: OSError | None = None
        try:
            self._writable_file().write_group([item[0] for item in group])
        except OSError as failure:
            error = failure
            self._give_up_file()
        if self._file is not None:
            self.mark = (self._file.file_id, self._file.position)
        try:
            self._loop.call_soon_threadsafe(self._complete, group, size, error)
        except RuntimeError:
            # The loop is gone (a process that ends without close): nobody is left to be told.
            log.warning("journal group of %d appends finished after the event loop's end", len(group))

    def _writable_file(self) -> JournalFile:
        current = self._file
        if current is not None and current.position < self._settings.size_bytes_max:
            return current
        self._give_up_file()
        file_id = self._next_file_id
        self._next_file_id += 1
        try:
            self._file = JournalFile(self._directory, file_id, self._settings)
        except OSError:
            (self._directory / journal_format.file_name(file_id)).unlink(missing_ok=True)
            raise
        return self._file

    def _give_up_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _complete(self, group: list[_Item], size: int, error: OSError | None) -> None:
        self.queued_bytes -= size
        code = int(BookieCode.EOK)
        if error is None:
            self.groups += 1
            self.written_bytes += size
        else:
            code = int(BookieCode.EIO)
            log.error("journal write of %d bytes failed, %d appends refused: %s", size, len(group), error)
            self._on_failure(error)
        for _, _, done, context in group:
            done(code, context)
        self._on_progress()


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
