"""The journal: many adds, one durable write.

The event loop hands lists of records over with `Journal.append`; a worker (in production a thread) takes everything
that waits, makes one buffer of it, writes it durably and wakes the loop once. There is no timer: an idle journal costs
one disk write per add, a busy one grows its groups by itself while the disk works.

How the write is made durable was measured on ext4 (p50, µs, for 4 KiB / 64 KiB / 512 KiB / 2 MiB):
growing file and fdatasync 112 / 179 / 532 / 2400, preallocated and fdatasync 87 / 143 / 496 / 1580, preallocated and
RWF_DSYNC 93 / 143 / 513 / 1700. So: preallocate, and write with RWF_DSYNC, which is one system call and hence one
hand-over of the interpreter lock instead of two. Where the flag does not exist, write and fsync.

After a failed write the file is never written again: the kernel may have dropped the dirty pages and would report
the next sync of the same file as good. Everything of the group is answered with an error, and the next group goes to
a new file; if that cannot be made, it fails as well. Nothing is acknowledged that is not durable.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import queue
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal import header as journal_header
from magnetar.bookie.journal.note import NOTE_IDLE_SECONDS, NOTE_SECONDS, EndNote
from magnetar.bookie.journal.worker import JournalWorker, ended
from magnetar.bookie.outcomes import JournalCounters
from magnetar.bookie.settings import JournalSettings
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.disk import Disk, DiskFile
from magnetar.core.errors import Misuse
from magnetar.wire.bookkeeper.codes import BookieCode

logger: Final = logging.getLogger(__name__)

Mark: TypeAlias = tuple[int, int]
"""A place in the journal, (file id, offset): everything before it is durable."""

Context: TypeAlias = tuple[Callable[[int, int, Sequence[int]], None], int, Sequence[int]]
"""What a finished append is told with: the caller's callback, ledger id, entry ids."""

Done: TypeAlias = Callable[[int, Context], None]

_Item: TypeAlias = tuple[list[bytes], int, Done, Context]
"""What waits for the journal's thread: encoded records, their bytes, and whom to tell with what."""


class JournalFile:
    """One file that is being written. All calls from the journal's worker."""

    def __init__(
        self, disk: Disk, directory: Path, file_id: int, settings: JournalSettings, previous: Mark = (0, 0)
    ) -> None:
        """`previous`: the file before it, and up to where that was acknowledged."""
        self.file_id = file_id
        self.position = 0
        self._alignment_bytes = settings.alignment_bytes
        self._preallocate_bytes = settings.preallocate_bytes
        self._durable = settings.sync_data
        self._allocated = 0
        self._file: DiskFile = disk.create(directory / journal_format.file_name(file_id))
        try:
            preallocate_bytes = settings.preallocate_bytes if settings.sync_data else 0
            header = journal_header.encode_header(settings.format_version, previous, preallocate_bytes)
            self._write([header], journal_format.HEADER_BYTES)
            # Also without sync of the data: a start refuses when a file that it was told of is not there.
            disk.sync_directory(directory)
        except OSError:
            self._file.close()
            raise
        try:
            disk.replace_whole(directory / journal_header.NEWEST_FILE, journal_header.encode_newest(file_id))
        except OSError as error:
            # The file is good; only a start would not miss it.
            logger.warning("the newest journal file could not be noted in %s: %s", directory, error)

    def write_group(self, record_lists: list[list[bytes]]) -> None:
        """Write one group, durably if the settings say so. OSError: this file must not be used again."""
        parts, size = journal_format.encode_group(record_lists, self.position, self._alignment_bytes)
        self._write(parts, size)

    def _write(self, parts: list[bytes], size: int) -> None:
        while self.position + size > self._allocated:
            self._file.allocate(self._allocated, self._preallocate_bytes)
            self._allocated += self._preallocate_bytes
        written = self._file.pwritev(parts, self.position, durable=self._durable)
        if written != size:
            raise OSError(errno.ENOSPC, f"only {written} of {size} bytes were written")
        self.position += size

    def close(self) -> None:
        """Let go of the file; what it holds is as durable as its writes were."""
        self._file.close()


class Journal:
    """The journal as the event loop sees it, and what its worker runs."""

    def __init__(
        self,
        directory: Path,
        first_file_id: int,
        settings: JournalSettings,
        disk: Disk,
        worker: JournalWorker,
        previous: Mark = (0, 0),
    ) -> None:
        """Makes the first file. `first_file_id` must be greater than that of every file in the directory; `previous`
        is the end of the one before. OSError."""
        self._directory = directory
        self._settings = settings
        self._disk = disk
        self._worker = worker
        self._wakes = worker.needs_waking
        self._on_progress: Callable[[float], None] = _nothing
        self._on_failure: Callable[[OSError], None] = _nobody
        self._when_told: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        # Without syncs nothing is known to be durable.
        self._note = EndNote(disk, directory) if settings.sync_data else None
        self._noted_seconds = 0.0
        try:
            self._file: JournalFile | None = JournalFile(disk, directory, first_file_id, settings, previous)
        except OSError:
            if self._note is not None:
                self._note.close()
            raise
        self._next_file_id = first_file_id + 1
        self._queue_bytes_max = settings.queue_bytes_max
        self._closed = False
        self.takes_explicit_lac = settings.format_version >= journal_format.EXPLICIT_LAC_VERSION
        """Whether its format has a record for it."""
        self._clock: Clock = SystemClock()
        self._oldest_seconds = 0.0
        """No append that waits came before this."""
        self.counters = JournalCounters()
        self.queued_records = 0
        self.queued_bytes = 0
        self.groups = 0
        self.written_bytes = 0
        self.mark: Mark = (first_file_id, self._file.position)
        """Behind the last durable group. One tuple, so that both threads see a pair that belongs together."""
        self._noted = self.mark

    def start(self, on_progress: Callable[[float], None], on_failure: Callable[[OSError], None]) -> None:
        """Begin to write. `on_progress` is called after every group, with the seconds since its oldest append;
        `on_failure` before it after a group that could not be written; both on the loop."""
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._worker.start(self.run_group)

    def count(self, counters: JournalCounters, clock: Clock) -> None:
        """Count here from now on; before `start`."""
        self.counters = counters
        self._clock = clock

    def when_told(self, call: Callable[[], None]) -> None:
        """Call this after each group, once everybody has been told of it."""
        self._when_told.append(call)

    @property
    def full(self) -> bool:
        """Whether the caller should hold adds back until the next `on_progress`."""
        return self.queued_bytes >= self._queue_bytes_max

    def append(self, records: list[bytes], size_bytes: int, done: Done, context: Context) -> None:
        """Make the records durable, in the order of the calls; then `done(code, context)` on the loop.

        Records of one call are never split over two groups. The list belongs to the journal from here on."""
        if self._closed:
            raise Misuse("the journal is closed")
        if not self.queued_records:
            self._oldest_seconds = self._clock.monotonic_seconds()
        self.queued_bytes += size_bytes
        self.queued_records += len(records)
        self._items.put((records, size_bytes, done, context))
        if self._wakes:
            self._worker.wake()

    def close(self) -> Coroutine[Any, Any, None]:
        """Write what was appended, then stop. Closing twice is no error."""
        if not self._closed:
            self._closed = True
            self._items.put(None)
            self._worker.wake()
        return ended(self._worker)

    def abandon(self) -> None:
        """Close the file of a journal that was never started."""
        self._closed = True
        self._give_up_file()
        self._close_note()

    def _close_note(self) -> None:
        if self._note is not None:
            self._note_end(0.0)
            self._note.close()

    def run_group(self, wait: bool) -> bool:
        """The worker's part: write what was appended. Answers False once the journal is closed and all is written.

        With `wait` one group, blocking until there is something; without it all that is there, returning at once."""
        if wait:
            return self._next_group(self._awaited_item())
        while not self._items.empty():
            if not self._next_group(self._items.get()):
                return False
        self._note_end(self._clock.monotonic_seconds())
        return True

    def _awaited_item(self) -> _Item | None:
        if self._note is not None and self._noted != self.mark:
            try:
                return self._items.get(timeout=NOTE_IDLE_SECONDS)
            except queue.Empty:
                self._note_end(self._clock.monotonic_seconds())
        return self._items.get()

    def _note_end(self, now_seconds: float) -> None:
        if self._note is not None and self._noted != self.mark:
            self._note.note(self.mark)
            self._noted = self.mark
            self._noted_seconds = now_seconds

    def _next_group(self, item: _Item | None) -> bool:
        group: list[_Item] = []
        size = 0
        group_bytes_max = self._settings.group_bytes_max
        while item is not None:
            group.append(item)
            size += item[1]
            if size >= group_bytes_max or self._items.empty():
                break
            item = self._items.get()
        if group:
            self._write_group(group, size)
        if item is None:
            self._give_up_file()
            self._close_note()
        return item is not None

    def _write_group(self, group: list[_Item], size: int) -> None:
        error: OSError | None = None
        started = self._clock.monotonic_seconds()
        try:
            self._writable_file().write_group([item[0] for item in group])
        except OSError as failure:
            error = failure
            self._give_up_file()
        if self._file is not None:
            self.mark = (self._file.file_id, self._file.position)
        ended = self._clock.monotonic_seconds()
        try:
            self._loop.call_soon_threadsafe(self._complete, group, size, error, (started, ended))
        except RuntimeError:
            # The loop is gone (a process that ends without close): nobody is left to be told.
            logger.warning("journal group of %d appends finished after the event loop's end", len(group))
        if error is None and ended - self._noted_seconds >= NOTE_SECONDS:
            self._note_end(ended)

    def _writable_file(self) -> JournalFile:
        current = self._file
        if current is not None and current.position < self._settings.size_bytes_max:
            return current
        self._give_up_file()
        file_id = self._next_file_id
        self._next_file_id += 1
        try:
            self._file = JournalFile(self._disk, self._directory, file_id, self._settings, self.mark)
        except OSError:
            self._disk.delete(self._directory / journal_format.file_name(file_id))
            raise
        return self._file

    def _give_up_file(self) -> None:
        # Forgotten first: a descriptor whose closing failed is gone, and its number may be another file's by now.
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            logger.warning("journal file %x could not be closed well: %s", file.file_id, error)

    def _complete(self, group: list[_Item], size: int, error: OSError | None, times: tuple[float, float]) -> None:
        self.queued_bytes -= size
        records = sum([len(item[0]) for item in group])
        self.queued_records -= records
        started, ended = times
        waited = self._clock.monotonic_seconds() - self._oldest_seconds
        # What waits now came after this group was taken.
        self._oldest_seconds = started
        self.counters.group_written(ended - started, waited, records, size, success=error is None)
        code = int(BookieCode.EOK)
        if error is None:
            self.groups += 1
            self.written_bytes += size
        else:
            code = int(BookieCode.EIO)
            logger.error("journal write of %d bytes failed, %d appends refused: %s", size, len(group), error)
            self._on_failure(error)
        for _, _, done, context in group:
            try:
                done(code, context)
            except Exception:  # One listener's mistake must not leave the others, and what is held back, unanswered.
                logger.exception("telling of an append to the journal failed")
        self._on_progress(waited)
        for call in self._when_told:
            call()


def _nothing(waited_seconds: float) -> None:
    """Until `start` says who is to be told."""
    del waited_seconds


def _nobody(error: OSError) -> None:
    del error
