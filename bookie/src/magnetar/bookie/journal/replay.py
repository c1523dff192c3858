"""Reads a journal back at the start, and tells what is damaged or missing from what nobody was ever told is safe.

What proves that something was acknowledged: the checkpoint's mark (`lastMark`), the notes of the newest file and of the
durable end, the head of each file about the one before it, and within a file every whole group about all before it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from magnetar.bookie.journal import damage as journal_damage
from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal import header as journal_header
from magnetar.bookie.journal.files import JournalDamaged, list_files
from magnetar.bookie.journal.format import Ending, JournalScan
from magnetar.bookie.journal.header import JournalHeader, NotAJournal
from magnetar.bookie.journal.journal import Mark
from magnetar.bookie.journal.note import NOTE_FILE, read_note
from magnetar.bookie.loss import WHAT_TO_DO, Losses, OnLoss
from magnetar.core.disk import Disk, DiskFile

logger: Final = logging.getLogger(__name__)

REFUSING: Final = OnLoss.REFUSE
SECTOR_BYTES: Final = 512
ENTRY_ID_LIKELY_MAX: Final = 1 << 40
"""No ledger has so many entries; bytes of a payload, read as an id, are greater for the most part."""


class JournalReplay:
    """One pass over a journal's directory, in any thread. Bytes that are wrong although they were acknowledged go to
    `losses`; where the journal was written without sync a power failure may do that, and only the log hears of it.
    With losses that are not refused, whatever stands whole is read all the same."""

    def __init__(self, disk: Disk, directory: Path, mark: Mark, *, synced: bool, losses: Losses | None = None) -> None:
        """`mark`: up to where a checkpoint has everything; (0, 0): nowhere."""
        self._disk = disk
        self._directory = directory
        self._mark = mark
        self._synced = synced
        self._losses = losses or Losses(REFUSING)
        self._ends: dict[int, int] = {}
        self._damaged: set[int] = set()
        self._newest_id = 0
        self._noted: Mark = (0, 0)

    @property
    def damaged_files(self) -> list[Path]:
        """Those that are not what they were."""
        return [self._directory / journal_format.file_name(file_id) for file_id in sorted(self._damaged)]

    @property
    def end(self) -> Mark:
        """The last file that anything was written to, and where its whole groups end; once `groups` is used up."""
        written = [file_id for file_id, end in self._ends.items() if end]
        return (max(written), self._ends[max(written)]) if written else (0, 0)

    def groups(self) -> Iterator[list[bytes]]:
        """The records of every whole group from the mark on, in order. `JournalDamaged` unless losses are accepted,
        OSError."""
        file_ids = [file_id for file_id in list_files(self._disk, self._directory) if file_id >= self._mark[0]]
        if self._mark[0] > 0 and self._mark[0] not in file_ids:
            self._tell_missing(self._mark[0], "lastMark names it")
        self._newest_id = self._newest()
        if self._newest_id >= max(1, self._mark[0]) and self._newest_id not in file_ids:
            self._tell_missing(self._newest_id, "it was the newest one")
        self._noted = read_note(self._disk, self._directory)
        noted_id = self._noted[0]
        known = (*file_ids, self._mark[0], self._newest_id)
        if noted_id >= max(1, self._mark[0]) and noted_id not in known:
            self._tell_missing(noted_id, f"{NOTE_FILE} names it")
        for file_id in file_ids:
            yield from self._file_groups(file_id)

    def _newest(self) -> int:
        content = self._disk.read_whole(self._directory / journal_header.NEWEST_FILE)
        if content is None:
            return 0
        try:
            return journal_header.decode_newest(content)
        except ValueError as error:
            path = self._directory / journal_header.NEWEST_FILE
            logger.warning("%s is damaged and left out: %s", path, error)
            return 0

    def _file_groups(self, file_id: int) -> Iterator[list[bytes]]:
        path = self._directory / journal_format.file_name(file_id)
        file = self._disk.open(path)
        try:
            reading = FileReading(file)
            header = reading.header
            if isinstance(header, str):
                self._damaged.add(file_id)
                if reading.empty and file_id not in (self._newest_id, self._noted[0]):
                    logger.info("journal file %s was just being made; nothing in it", path.name)
                    self._damaged.discard(file_id)
                    self._ends[file_id] = 0
                    return
                problem = "it is empty, and was not when it was begun" if reading.empty else header
                self._tell(path, problem)
                header = journal_header.LOST_HEADER
            else:
                self._check_previous(path, header)
            start = self._start(reading, path, file_id, header)
            yield from self._read(reading, path, start, header)
        finally:
            file.close()

    def _start(self, reading: FileReading, path: Path, file_id: int, header: JournalHeader) -> int:
        """Where to begin: at the mark, if that can be one."""
        offset = self._mark[1] if file_id == self._mark[0] else 0
        if offset <= header.first_offset or file_id in self._damaged:
            return header.first_offset
        problem = ""
        if offset > reading.size_bytes:
            problem = f"lastMark names offset {offset}, and the file has {reading.size_bytes} bytes"
        elif not reading.may_begin(offset, header):
            problem = f"lastMark names offset {offset}, where nothing begins or ends"
        if not problem:
            return offset
        self._damaged.add(file_id)
        self._tell(path, problem)
        return header.first_offset

    def _check_previous(self, path: Path, header: JournalHeader) -> None:
        previous, end_offset = header.previous_file_id, header.previous_end_offset
        if previous == 0 or previous < self._mark[0]:
            return
        if previous not in self._ends:
            self._tell_missing(previous, f"{path.name} follows it")
        elif self._ends[previous] < end_offset and previous not in self._damaged:
            self._damaged.add(previous)
            before = self._directory / journal_format.file_name(previous)
            self._tell(before, f"it ends at {self._ends[previous]}, and was acknowledged up to {end_offset}")

    def _read(self, reading: FileReading, path: Path, start: int, header: JournalHeader) -> Iterator[list[bytes]]:
        file_id = int(path.stem, 16)
        begun = file_id in (self._newest_id, self._noted[0]) or start > header.first_offset
        while True:
            scan = JournalScan(reading.read_at, start, header)
            proven = start if begun else 0
            while (records := scan.next_group()) is not None:
                # Whatever stands before a group was durable before that was written.
                proven = scan.group_offset
                yield records
            self._ends[file_id] = scan.end_offset
            problem = reading.damage_behind(scan, proven)
            if not problem:
                break
            if file_id not in self._damaged:
                self._damaged.add(file_id)
                self._tell(path, problem, scan.end_offset)
            following = journal_damage.next_whole_group(reading.read_at, scan.end_offset + 1)
            if following is None or not header.has_marks:
                break
            logger.error("%s is read on at %d, the bytes from %d are lost", path, following, scan.end_offset)
            start = following
        if file_id == self._noted[0] and scan.end_offset < self._noted[1] and file_id not in self._damaged:
            self._damaged.add(file_id)
            self._tell(path, f"it ends at {scan.end_offset}, and was durable up to {self._noted[1]}", scan.end_offset)
        if scan.ending is not Ending.CLEAN and file_id not in self._damaged:
            logger.warning(
                "journal file %s ends at %d: %s; nobody was told it is safe", path.name, scan.end_offset, scan.problem
            )

    def _tell(self, path: Path, problem: str, offset: int = 0) -> None:
        damage = JournalDamaged(
            f"{path}: {problem}: the disk lost or changed entries that were acknowledged, from offset {offset} on. "
            f"{WHAT_TO_DO}"
        )
        if not self._synced:
            logger.error("%s; the journal is written without sync, so this goes on", damage)
            return
        self._losses.tell(damage)

    def _tell_missing(self, file_id: int, known_by: str) -> None:
        name = journal_format.file_name(file_id)
        self._losses.tell(
            JournalDamaged(
                f"journal file {name} is missing in {self._directory}: {known_by}. All that was acknowledged in it "
                f"may be lost. {WHAT_TO_DO}"
            )
        )


class FileReading:
    """One open journal file, and what is wrong in it."""

    def __init__(self, file: DiskFile) -> None:
        """Reads the head of the file. OSError."""
        self._file = file
        self.size_bytes = file.size_bytes()
        self.empty = False
        """Nothing was ever written to it but, maybe, a part of its head."""
        self.header = self._decode()
        """Or what is wrong with it."""

    def read_at(self, offset: int, size: int) -> bytes:
        """The bytes at an offset of the file; fewer at its end. OSError."""
        return self._file.pread(size, offset)

    def _decode(self) -> JournalHeader | str:
        head = self.read_at(0, journal_format.HEADER_BYTES)
        try:
            return journal_header.decode_header(head)
        except NotAJournal as error:
            self.empty = not self._anything_from(journal_format.HEADER_BYTES)
            return str(error) if any(head) else "its head is zeros"

    def _anything_from(self, offset: int) -> bool:
        while True:
            chunk = self.read_at(offset, journal_format.READ_WINDOW_BYTES)
            if chunk.strip(b"\0"):
                return True
            if len(chunk) < journal_format.READ_WINDOW_BYTES:
                return False
            offset += len(chunk)

    def may_begin(self, offset: int, header: JournalHeader) -> bool:
        """Whether a group or a record begins or ends at an offset, or a replay by BookKeeper may have ended there: it
        takes the length of 0 behind the last record for read, or all of a file."""
        if header.has_marks and journal_damage.is_group_end(self.read_at, offset):
            return True
        record = (JournalScan(self.read_at, offset, header).next_group() or [b""])[0]
        # Following all records costs seconds in a large file, and chance does not make ids.
        if record if header.has_marks else _is_record(record):
            return True
        first = header.first_offset
        if not any(self.read_at(offset - 4, 4)) and journal_damage.is_record_end(self.read_at, offset - 4, first):
            return True
        whole = not header.has_marks and offset == self.size_bytes
        return whole or journal_damage.is_record_end(self.read_at, offset, first)

    def damage_behind(self, scan: JournalScan, proven_offset: int) -> str:
        """What is wrong with acknowledged bytes behind the last group that could be read; empty: nothing.
        `proven_offset`: up to here all was durable, so that the file had room for it; 0: nothing was."""
        offset = scan.end_offset
        problem = scan.problem or f"nothing is at {offset}"
        if not scan.has_marks:
            # Without marks only this is sure: no file begins with zeros and goes on behind them.
            begins_empty = offset == scan.header.first_offset and not any(self.read_at(offset, 4))
            return "it begins with zeros, and bytes follow" if begins_empty and self._anything_from(offset) else ""
        if scan.ending is Ending.DAMAGED or journal_damage.whole_group_behind(self.read_at, offset):
            return f"{problem}, yet whole groups follow it"
        if scan.ending is Ending.TORN and journal_damage.was_written_whole(self.read_at, offset):
            return f"{problem}, yet all of it was written"
        step = scan.header.preallocate_bytes
        if not proven_offset and any(self.read_at(offset, SECTOR_BYTES)):
            proven_offset = offset
        if step and self.size_bytes < -(-proven_offset // step) * step:
            return f"it was cut to {self.size_bytes} bytes"
        return ""


def _is_record(record: bytes) -> bool:
    if len(record) < journal_format.META_RECORD_BYTES_MIN:
        return False
    ledger_id, entry_id = journal_format.record_ids(record)
    if entry_id in journal_format.META_RECORDS:
        return ledger_id >= 0
    return journal_format.is_entry(record) and ledger_id >= 0 and entry_id < ENTRY_ID_LIKELY_MAX
