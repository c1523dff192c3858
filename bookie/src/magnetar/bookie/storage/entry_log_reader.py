"""Reads entries from entry logs by location. Any thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.entry_log_format import DIGEST_UNKNOWN, SIZE_BYTES, EntryDamaged
from magnetar.core.disk import Disk, DiskFile

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


class EntryLogReader:
    """Reads entries by location. Any thread."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
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
        with self._opened(log_id) as file:
            data = file.pread(READ_BYTES, position - SIZE_BYTES)
            entry, size = entry_log_format.cut_entry(data, 0, ledger_id, entry_id)
            if len(entry) < size:
                entry = file.pread(size, position)
        self._check(entry, size, ledger_id)
        return entry

    def read_ahead(
        self, location: int, ledger_id: int, entry_id: int, read_bytes: int, count_max: int
    ) -> tuple[bytes, dict[int, bytes]]:
        """One entry, as `read`, and those of the same ledger that stand behind it within `read_bytes`, by their ids,
        ascending; at most `count_max` of them. None of a ledger whose digest nobody here can verify: the index does not
        vouch for them, and a crash may have left a torn end whose entries stand elsewhere by now."""
        log_id, position = location >> 32, location & 0xFFFF_FFFF
        with self._opened(log_id) as file:
            data = file.pread(read_bytes, position - SIZE_BYTES)
            entry, size = entry_log_format.cut_entry(data, 0, ledger_id, entry_id)
            if len(entry) < size:
                entry = file.pread(size, position)
        self._check(entry, size, ledger_id)
        behind: dict[int, bytes] = {}
        if ledger_id not in self._digest_kinds:
            return entry, behind
        at = SIZE_BYTES + size
        last_id = entry_id
        while len(behind) < count_max:
            found = entry_log_format.next_entry(data, at, ledger_id)
            if found is None or found[0] <= last_id:
                break
            last_id, next_entry = found
            try:
                self._check(next_entry, len(next_entry), ledger_id)
            except EntryDamaged:
                # Whoever asks for it will know.
                break
            behind[last_id] = next_entry
            at += SIZE_BYTES + len(next_entry)
        return entry, behind

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
        with self._opened(first >> 32) as file:
            start = (expected & 0xFFFF_FFFF) - SIZE_BYTES
            data = file.pread(locations[last] - expected + RUN_TAIL_BYTES, start)
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

    def forget(self, log_id: int) -> None:
        """Close a log that is about to be deleted, as soon as nobody reads from it."""
        with self._lock:
            opened = self._open.pop(log_id, None)
            if opened is not None:
                self._retire(opened)

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
    def _opened(self, log_id: int) -> Iterator[DiskFile]:
        with self._lock:
            opened = self._open.get(log_id)
            if opened is None:
                path = self._directory / entry_log_format.file_name(log_id)
                opened = self._open[log_id] = _OpenLog(self._disk.open(path))
                self._evict()
            self._open.move_to_end(log_id)
            opened.users += 1
        try:
            yield opened.file
        finally:
            with self._lock:
                opened.users -= 1
                if opened.evicted and opened.users == 0:
                    opened.close()

    def _evict(self) -> None:
        if len(self._open) <= OPEN_LOGS_MAX:
            return
        _, oldest = self._open.popitem(last=False)
        self._retire(oldest)

    def _retire(self, opened: _OpenLog) -> None:
        opened.evicted = True
        if opened.users == 0:
            opened.close()


class _OpenLog:
    """A file, and who is reading from it."""

    __slots__ = ("evicted", "file", "users")

    def __init__(self, file: DiskFile) -> None:
        self.file = file
        self.users = 0
        self.evicted = False

    def close(self) -> None:
        self.file.close()
