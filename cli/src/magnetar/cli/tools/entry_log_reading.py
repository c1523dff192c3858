"""Reads an entry log, ours or Apache's, record by record, past damaged ones."""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.entry_log_format import (
    DIGEST_UNKNOWN,
    HEADER_BYTES,
    MAP_ENTRY_ID,
    MAP_LEDGER_ID,
    SIZE_BYTES,
)
from magnetar.cli.tools.errors import UnreadableFile
from magnetar.cli.tools.journal_reading import DIGESTS
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX
from magnetar.wire.bookkeeper.entry import HEADER_BYTES as ENTRY_HEADER_BYTES

SEARCHED_LEDGERS_MAX: Final = 1_000
"""Ledgers whose next entry is looked for behind a damaged place; each costs a pass over the rest of the log."""

ENTRY: Final = "entry"
LEDGERS_MAP: Final = "ledgers-map"
DAMAGED: Final = "damaged"

_SIZE: Final = struct.Struct(">I")
_IDS: Final = struct.Struct(">qq")
_LEDGER: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record, or one damaged stretch."""

    kind: str
    """What stands there: an entry, a ledgers-map, or damaged bytes."""
    position: int
    """The position of the entry's first byte, as in locations; of the first damaged byte."""
    size_bytes: int
    ledger_id: int = -1
    entry_id: int = -1
    entry: bytes = b""
    """Whole, with header and digest."""
    problem: str = ""


class EntryLogReading:
    """One entry log, open for reading. A context manager."""

    def __init__(self, path: Path) -> None:
        """`UnreadableFile` when it is no entry log, OSError."""
        self.path = path
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES)
            try:
                self.map_offset, self.ledgers_count = entry_log_format.decode_header(head)
            except entry_log_format.NotAnEntryLog as error:
                raise UnreadableFile(f"{path} is no entry log: {error}") from None
            self._data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._digest_kinds: dict[int, int] = {}

    def __enter__(self) -> EntryLogReading:
        """Nothing more to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the file."""
        self._data.close()

    @property
    def size_bytes(self) -> int:
        """How long the file is."""
        return len(self._data)

    def ledgers_map(self) -> dict[int, int]:
        """Ledger → bytes that it has in this log, as the log says; empty for one that was not closed.

        `UnreadableFile` when the map is damaged."""
        if not self.map_offset:
            return {}
        end = self.map_offset
        while end + SIZE_BYTES <= len(self._data) and (size := _SIZE.unpack_from(self._data, end)[0]):
            end += SIZE_BYTES + size
        try:
            return entry_log_format.decode_ledgers_map(self._data[self.map_offset : end])
        except entry_log_format.EntryDamaged as error:
            raise UnreadableFile(f"{self.path}: {error}") from None

    def records(self, start: int = HEADER_BYTES, end: int | None = None) -> Iterator[LogRecord]:
        """Everything from one file position to another, in order.

        A record that cannot be one is reported as damaged up to where a ledger's next entry is found whole. An entry
        whose digest is wrong, though the ledger's others carry one that is right, is reported as damaged as well."""
        at = max(start, HEADER_BYTES)
        last = len(self._data) if end is None else min(end, len(self._data))
        while at < last:
            record, following = self._record_at(at)
            if record is None:
                return
            yield record
            at = following

    def _record_at(self, at: int) -> tuple[LogRecord | None, int]:
        data = self._data
        size: int = _SIZE.unpack_from(data, at)[0] if at + SIZE_BYTES <= len(data) else 0
        position = at + SIZE_BYTES
        if size == 0 and self._only_zeros_from(at):
            return None, at
        if not 16 <= size <= BOOKKEEPER_FRAME_BYTES_MAX or position + size > len(data):
            return self._damaged(at, f"a size of {size} bytes that no record here can have")
        ledger_id, entry_id = _IDS.unpack_from(data, position)
        if (ledger_id, entry_id) == (MAP_LEDGER_ID, MAP_ENTRY_ID):
            return LogRecord(LEDGERS_MAP, position, size, ledger_id, entry_id), position + size
        if size < ENTRY_HEADER_BYTES or ledger_id < 0 or entry_id < 0:
            return self._damaged(at, f"ids {ledger_id}:{entry_id} and {size} bytes, which no entry has")
        return self._entry(position, size, ledger_id, entry_id), position + size

    def _entry(self, position: int, size: int, ledger_id: int, entry_id: int) -> LogRecord:
        entry = self._data[position : position + size]
        kind = entry_log_format.digest_kind(entry)
        expected = self._digest_kinds.setdefault(ledger_id, kind) if kind else self._digest_kinds.get(ledger_id)
        if kind == DIGEST_UNKNOWN and expected is not None:
            problem = f"the {DIGESTS[expected]} digest is wrong"
            return LogRecord(DAMAGED, position, size, ledger_id, entry_id, entry, problem)
        return LogRecord(ENTRY, position, size, ledger_id, entry_id, entry)

    def _damaged(self, at: int, problem: str) -> tuple[LogRecord, int]:
        following = self._next_whole_entry(at + 1)
        return LogRecord(DAMAGED, at, following - at, problem=problem), following

    def _next_whole_entry(self, start: int) -> int:
        """The size word of the first entry that is certainly one; else of the ledgers map; else the file's end."""
        known = dict.fromkeys(self._digest_kinds)
        # Without a map the ledgers that were seen must do.
        with contextlib.suppress(UnreadableFile):
            known.update(dict.fromkeys(self.ledgers_map()))
        best = self.map_offset if self.map_offset >= start else len(self._data)
        for ledger_id in list(known)[:SEARCHED_LEDGERS_MAX]:
            best = self._next_entry_of(ledger_id, start, best)
        return best

    def _next_entry_of(self, ledger_id: int, start: int, end: int) -> int:
        word = _LEDGER.pack(ledger_id)
        at = self._data.find(word, start + SIZE_BYTES, end)
        while at >= 0:
            size: int = _SIZE.unpack_from(self._data, at - SIZE_BYTES)[0]
            possible = ENTRY_HEADER_BYTES <= size <= min(BOOKKEEPER_FRAME_BYTES_MAX, len(self._data) - at)
            if possible and entry_log_format.digest_kind(self._data[at : at + size]) != DIGEST_UNKNOWN:
                return at - SIZE_BYTES
            at = self._data.find(word, at + 1, end)
        return end

    def _only_zeros_from(self, at: int) -> bool:
        # Apache's logs may be allocated in advance.
        step = 1 << 20
        return all(not any(self._data[offset : offset + step]) for offset in range(at, len(self._data), step))
