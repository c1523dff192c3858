"""Entry logs on disk: one writer (the checkpoint thread), many readers (the read threads)."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from magnetar.bookie import entry_log_format
from magnetar.bookie.entry_log_format import DIGEST_UNKNOWN, SIZE_BYTES, EntryDamaged
from magnetar.bookie.journal import sync_directory

log = logging.getLogger(__name__)

LAST_ID_FILE: Final = "lastId"
OPEN_LOGS_MAX: Final = 64
"""Logs that stay open for reading; 64 GiB of the newest data at the default log size."""

DIGEST_KINDS_MAX: Final = 10_000
"""Ledgers whose digest is remembered; some 100 bytes each."""

READ_BYTES: Final = 8 * 1024
"""Read at once for one entry: most entries are smaller, and a page more costs nothing."""

RUN_BYTES_MAX: Final = 1024 * 1024
"""Read at once for entries that stand in a row."""

RUN_TAIL_BYTES: Final = 16 * 1024
"""Read behind the start of a run's last entry, whose size is not known before."""


def list_logs(directory: Path) -> list[int]:
    """Ids of the entry logs in a directory, ascending."""
    found = (entry_log_format.log_id_of(name) for name in os.listdir(directory))
    return sorted(log_id for log_id in found if log_id is not None)


PIECES_MAX: Final = 1024
"""Buffers of one `pwritev`: the kernel's IOV_MAX."""


class EntryLogWriter:
    """Appends entries to the current log; makes the next one when it is full. Used by one thread at a time.

    A start never appends to an old log: the next id is greater than every one seen (as BookKeeper does)."""

    def __init__(self, directory: Path, size_bytes_max: int) -> None:
        self._directory = directory
        self._size_bytes_max = size_bytes_max
        self._descriptor = -1
        self._position = 0
        self._durable_position = 0
        self._sizes_bytes: dict[int, int] = {}
        self.log_id = max(self._last_id(), *list_logs(directory), -1)

    def append(self, ledger_id: int, entries: Sequence[bytes]) -> list[int]:
        """Write entries of one ledger in a row; their locations. Durable after `sync`. OSError."""
        if self._descriptor < 0 or self._position >= self._size_bytes_max:
            self._roll()
        begin = self._position
        parts, starts = entry_log_format.encode_entries(entries, begin)
        for at in range(0, len(parts), PIECES_MAX):
            self._write(parts[at : at + PIECES_MAX])
        self._sizes_bytes[ledger_id] = self._sizes_bytes.get(ledger_id, 0) + self._position - begin
        base = self.log_id << 32
        return [base | start for start in starts]

    def sync(self) -> None:
        """Make everything that was appended durable. OSError."""
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)
            self._durable_position = self._position

    def abandon(self) -> None:
        """After an error: never append to this log again (a later sync would hide the failed one). The next append
        makes a new log. What was written since the last sync is given back: on a full disk every attempt would cost
        as much again."""
        if self._descriptor < 0:
            return
        path = self._directory / entry_log_format.file_name(self.log_id)
        try:
            if self._durable_position:
                os.ftruncate(self._descriptor, self._durable_position)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the unfinished end of %s stays: %s", path, error)
        self._let_go()

    def _let_go(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1
        self._sizes_bytes.clear()

    def close(self) -> None:
        """Finish the current log with its ledgers map."""
        if self._descriptor < 0:
            return
        map_offset = self._position
        count = len(self._sizes_bytes)
        self._write([entry_log_format.encode_ledgers_map(self._sizes_bytes)])
        os.pwrite(self._descriptor, entry_log_format.encode_header(map_offset, count), 0)
        os.fdatasync(self._descriptor)
        self._let_go()

    def _roll(self) -> None:
        self.close()
        self.log_id += 1
        path = self._directory / entry_log_format.file_name(self.log_id)
        self._descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644)
        self._position = self._durable_position = 0
        self._write([entry_log_format.encode_header()])
        write_small_file(self._directory / LAST_ID_FILE, f"{self.log_id:x}\n".encode())

    def _write(self, parts: list[bytes]) -> None:
        written = os.pwritev(self._descriptor, parts, self._position)
        self._position += written
        if written == sum(map(len, parts)):
            return
        # Cut short: write what is left, or hear from the disk why it cannot be.
        view = memoryview(b"".join(parts))[written:]
        while view:
            written = os.pwrite(self._descriptor, view, self._position)
            self._position += written
            view = view[written:]

    def _last_id(self) -> int:
        try:
            return int((self._directory / LAST_ID_FILE).read_text().strip() or "-1", 16)
        except FileNotFoundError:
            return -1


class EntryLogReader:
    """Reads entries by location. Any thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _OpenLog] = OrderedDict()
        self._digest_kinds: OrderedDict[int, int] = OrderedDict()

    def learn_digest(self, ledger_id: int, entry: bytes) -> None:
        """Remember which digest a ledger's entries carry, from one that is known to be good."""
        if ledger_id in self._digest_kinds:
            return
        kind = entry_log_format.digest_kind(entry)
        if kind == DIGEST_UNKNOWN:
            return
        with self._lock:
            self._digest_kinds[ledger_id] = kind
            if len(self._digest_kinds) > DIGEST_KINDS_MAX:
                self._digest_kinds.popitem(last=False)

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        """One entry. `EntryDamaged` when another thing stands there, OSError when the disk cannot read."""
        log_id, position = location >> 32, location & 0xFFFF_FFFF
        with self._opened(log_id) as descriptor:
            data = os.pread(descriptor, READ_BYTES, position - SIZE_BYTES)
            entry, size = entry_log_format.cut_entry(data, 0, ledger_id, entry_id)
            if len(entry) < size:
                entry = os.pread(descriptor, size, position)
        self._check(entry, size, ledger_id)
        return entry

    def read_run(self, ledger_id: int, first_entry_id: int, locations: Sequence[int]) -> list[bytes]:
        """Consecutive entries, fewest disk reads; stops early at about `RUN_BYTES_MAX`, after at least one entry.

        Entries of a ledger stand in a row when one checkpoint wrote them, so one read takes many of them."""
        first = locations[0]
        entries = [self.read(first, ledger_id, first_entry_id)]
        expected = first + len(entries[0]) + SIZE_BYTES
        last = 0
        while last + 1 < len(locations) and 0 < locations[last + 1] - first < RUN_BYTES_MAX:
            last += 1
        if last == 0 or locations[1] != expected:
            return entries
        with self._opened(first >> 32) as descriptor:
            start = (expected & 0xFFFF_FFFF) - SIZE_BYTES
            data = os.pread(descriptor, locations[last] - expected + RUN_TAIL_BYTES, start)
        at = 0
        for index in range(1, last + 1):
            if locations[index] != expected or len(data) - at < SIZE_BYTES + 16:
                break
            try:
                entry, size = entry_log_format.cut_entry(data, at, ledger_id, first_entry_id + index)
                self._check(entry, size, ledger_id)
            except EntryDamaged:
                # Damaged, or longer than what was read: whoever asks for it as the first one will know.
                break
            entries.append(entry)
            at += SIZE_BYTES + size
            expected += SIZE_BYTES + size
        return entries

    def close(self) -> None:
        """Close every log."""
        with self._lock:
            for opened in self._open.values():
                opened.close()
            self._open.clear()

    def _check(self, entry: bytes, size: int, ledger_id: int) -> None:
        if len(entry) < size:
            raise EntryDamaged(f"the log ends inside the entry: {len(entry)} of {size} bytes")
        expected = self._digest_kinds.get(ledger_id)
        if expected is None:
            self.learn_digest(ledger_id, entry)
        elif entry_log_format.digest_kind(entry) != expected:
            raise EntryDamaged("its digest is wrong")

    @contextmanager
    def _opened(self, log_id: int) -> Iterator[int]:
        with self._lock:
            opened = self._open.get(log_id)
            if opened is None:
                opened = self._open[log_id] = _OpenLog(self._directory / entry_log_format.file_name(log_id))
                self._evict()
            self._open.move_to_end(log_id)
            opened.users += 1
        try:
            yield opened.descriptor
        finally:
            with self._lock:
                opened.users -= 1
                if opened.evicted and opened.users == 0:
                    opened.close()

    def _evict(self) -> None:
        if len(self._open) <= OPEN_LOGS_MAX:
            return
        _, oldest = self._open.popitem(last=False)
        oldest.evicted = True
        if oldest.users == 0:
            oldest.close()


class _OpenLog:
    """A descriptor, and who is reading from it."""

    __slots__ = ("descriptor", "evicted", "users")

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.users = 0
        self.evicted = False

    def close(self) -> None:
        os.close(self.descriptor)


def write_small_file(path: Path, content: bytes) -> None:
    """Replace a small file, durably: after a crash there is the old content or the new one. OSError."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    sync_directory(path.parent)
