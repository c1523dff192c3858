"""Reads an entry log from its beginning, in steps small enough to leave the interpreter to others in between.

Tolerates what crashes leave behind: a log without header, an end that is cut off or reads as zeros; and the padding of
BookKeeper's direct entry logger (bytes of 0xF0). Anything else that is not an entry is damage: the scan ends there and
says so, because what stands behind cannot be trusted to be in step.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, TypeAlias

from magnetar.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    LEDGER_IN_MAP_BYTES_MAX,
    MAP_BATCH_LEDGERS_MAX,
    MAP_LEDGER_ID,
    SIZE_BYTES,
    EntryDamaged,
    NotAnEntryLog,
    check_ledgers_map,
    decode_header,
    decode_ledgers_map,
    is_emptied,
)
from magnetar.core.disk import Disk, DiskFile
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX
from magnetar.wire.bookkeeper.entry import HEADER_BYTES as ENTRY_HEADER_BYTES

STEP_RECORDS: Final = 256
"""Entries of one step: about half a millisecond of work."""

STEP_BYTES: Final = 1024 * 1024
"""Read at once; a larger entry is read by itself."""

_RECORD: Final = struct.Struct(">Iqq")
_PADDING: Final = 0xF0
_MAP_RECORD_BYTES_MAX: Final = 20 + 16 * MAP_BATCH_LEDGERS_MAX

Record: TypeAlias = tuple[int, int, int, bytes]
"""Ledger id, entry id, position of the entry's first byte in the log, the entry."""


class LogScan:
    """One pass. In one thread at a time; methods raise OSError. Close it."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Opens the log; FileNotFoundError."""
        self._file: DiskFile = disk.open(path)
        self._closed = False
        self.size_bytes = 0
        self.ledgers_map_offset = 0
        """0: the log was not closed, or its header is damaged."""
        self.ledgers_count = 0
        self.emptied = False
        """It has no entries because garbage collection has taken them out."""
        self.damage = ""
        """Why the scan ended before the log's end; empty if it did not."""
        self.ended = False
        self.position = HEADER_BYTES
        """Where the next record is; at the end, up to where records stand."""
        self._head = b""
        self._window = b""
        self._window_at = 0
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    @property
    def whole(self) -> bool:
        """Whether every byte of the log was accounted for: no damage, and no unfinished end."""
        position = self.position
        return self.ended and not self.damage and position >= self.size_bytes and position >= self.ledgers_map_offset

    def read_map(self) -> dict[int, int]:
        """The ledgers map: bytes of each ledger, size words included. `EntryDamaged` when there is none or it is not
        the whole one."""
        if self.damage or not self.ledgers_map_offset or not self.ledgers_count:
            raise EntryDamaged(self.damage or "there is no ledgers map")
        if not HEADER_BYTES <= self.ledgers_map_offset < self.size_bytes:
            raise EntryDamaged(f"the ledgers map should be at {self.ledgers_map_offset}, outside of the log")
        # A damaged header may point anywhere, and the log may be larger than the memory.
        map_bytes = min(self.size_bytes - self.ledgers_map_offset, self.ledgers_count * LEDGER_IN_MAP_BYTES_MAX)
        data = self._file.pread(map_bytes, self.ledgers_map_offset)
        end = 0
        while end + SIZE_BYTES <= len(data):
            size = int.from_bytes(data[end : end + SIZE_BYTES], "big")
            if size == 0 or size >> 31:
                break  # Padding behind the last record.
            end += SIZE_BYTES + size
        check_ledgers_map(self._head, data[:end])
        sizes_bytes = decode_ledgers_map(data[:end])
        if len(sizes_bytes) != self.ledgers_count:
            raise EntryDamaged(f"the ledgers map has {len(sizes_bytes)} of {self.ledgers_count} ledgers")
        if min(sizes_bytes.values()) <= 0:
            raise EntryDamaged("the ledgers map names a ledger that has nothing in the log")
        return sizes_bytes

    def next_records(self) -> list[Record]:
        """Up to `STEP_RECORDS` entries, maybe none before the end; `ended` tells that there are no more."""
        records: list[Record] = []
        for _ in range(STEP_RECORDS):
            if self.ended:
                break
            left = len(self._window) - (self.position - self._window_at)
            if left < _RECORD.size and (records or not self._fill(STEP_BYTES, _RECORD.size)):
                break
            at = self.position - self._window_at
            size, ledger_id, entry_id = _RECORD.unpack_from(self._window, at)
            if not self._acceptable(size, ledger_id, entry_id):
                continue
            end = at + SIZE_BYTES + size
            if end > len(self._window):
                if self.position + SIZE_BYTES + size > self.size_bytes:
                    self.ended = True  # Cut off while it was being written.
                    break
                if records or not self._fill(max(STEP_BYTES, SIZE_BYTES + size), SIZE_BYTES + size):
                    break
                continue
            if ledger_id != MAP_LEDGER_ID:
                entry = self._window[at + SIZE_BYTES : end]
                records.append((ledger_id, entry_id, self.position + SIZE_BYTES, entry))
            self.position += SIZE_BYTES + size
        return records

    def close(self) -> None:
        """Close the log. Closing twice is no error."""
        if not self._closed:
            self._closed = True
            self._file.close()

    def _read_header(self) -> None:
        self.size_bytes = self._file.size_bytes()
        if self.size_bytes <= HEADER_BYTES:
            # No entry can stand in it; whether one ever did, the index may know.
            self.emptied = is_emptied(self._file.pread(HEADER_BYTES, 0), self.size_bytes)
            self.position = self.size_bytes
            self.ended = True
            return
        try:
            self._head = self._file.pread(HEADER_BYTES, 0)
            self.ledgers_map_offset, self.ledgers_count = decode_header(self._head)
        except NotAnEntryLog as error:
            self._damaged(str(error))

    def _fill(self, size_bytes: int, wanted_bytes: int) -> bool:
        """Read from `position` on; False when the log ends before the bytes that are wanted at least."""
        self._window = self._file.pread(size_bytes, self.position)
        self._window_at = self.position
        if len(self._window) >= wanted_bytes:
            return True
        self.ended = True
        if not self._window.strip(bytes([_PADDING])):
            self.position = max(self.position, self.size_bytes)
        return False

    def _acceptable(self, size: int, ledger_id: int, entry_id: int) -> bool:
        """Whether a record begins at `position`. If not, padding was skipped or the scan is over."""
        if ledger_id >= 0 and entry_id >= 0 and ENTRY_HEADER_BYTES <= size <= BOOKKEEPER_FRAME_BYTES_MAX:
            return True
        if ledger_id == MAP_LEDGER_ID and 0 < size <= _MAP_RECORD_BYTES_MAX:
            return True
        if size >> 24 == _PADDING:
            left = self._window[self.position - self._window_at :]
            self.position += len(left) - len(left.lstrip(bytes([_PADDING])))
        elif size == 0 and self._only_zeros():
            self.ended = True
        else:
            self._damaged(f"found {size} bytes of entry {ledger_id}:{entry_id} at {self.position}")
        return False

    def _only_zeros(self) -> bool:
        at = self.position
        while at < self.size_bytes:
            data = self._file.pread(STEP_BYTES, at)
            if not data:
                break
            if data.count(0) != len(data):
                return False
            at += len(data)
        return True

    def _damaged(self, reason: str) -> None:
        self.damage = reason
        self.ended = True
