"""Reads a journal file, ours or Apache's, record by record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal import header as journal_header
from magnetar.bookie.journal.format import JournalScan
from magnetar.bookie.journal.replay import FileReading
from magnetar.bookie.storage import entry_log_format
from magnetar.cli.tools.errors import UnreadableFile
from magnetar.core.disk import SystemDisk

ENTRY: Final = "entry"
KINDS: Final = {
    journal_format.MASTER_KEY_RECORD: "master-key",
    journal_format.FENCE_RECORD: "fence",
    journal_format.FORCE_LEDGER_RECORD: "force",
    journal_format.EXPLICIT_LAC_RECORD: "explicit-lac",
}
UNKNOWN_KIND: Final = "unknown"
DIGESTS: Final = {
    entry_log_format.DIGEST_CRC32C: "CRC32C",
    entry_log_format.DIGEST_CRC32: "CRC32",
    entry_log_format.DIGEST_UNKNOWN: "",
}
"""Empty: another digest, none, or a damaged entry; only who knows the ledger's password can tell."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One record."""

    offset: int
    """Where its length word stands."""
    kind: str
    ledger_id: int
    entry_id: int
    """-1 for everything that is no entry."""
    record: bytes
    """Whole: an entry has its header and digest."""

    @property
    def digest(self) -> str:
        """The digest that an entry carries, if it is right; see `DIGESTS`."""
        return DIGESTS[entry_log_format.digest_kind(self.record)] if self.kind == ENTRY else ""


class JournalReading:
    """One pass over a file; how it ends (`scan`) and `damage` are known once `records` is used up."""

    def __init__(self, path: Path, start_offset: int = 0) -> None:
        """`UnreadableFile` when the file is no journal, OSError."""
        self._file = SystemDisk().open(path)
        try:
            self.scan = JournalScan(lambda at, size: self._file.pread(size, at), start_offset)
        except journal_header.NotAJournal as error:
            self._file.close()
            raise UnreadableFile(f"{path} is no journal file: {error}") from None
        self.damage = ""
        """What a start would refuse: something behind the last whole group was acknowledged. Empty when nothing was."""

    def records(self) -> Iterator[JournalRecord]:
        """All records of whole groups, in order."""
        proven = 0
        try:
            while (records := self.scan.next_group()) is not None:
                at = proven = self.scan.group_offset
                for record in records:
                    yield _described(at, record)
                    at += 4 + len(record)
            self.damage = FileReading(self._file).damage_behind(self.scan, proven)
        finally:
            self._file.close()


def _described(offset: int, record: bytes) -> JournalRecord:
    ledger_id, entry_id = journal_format.record_ids(record)
    if journal_format.is_entry(record):
        return JournalRecord(offset, ENTRY, ledger_id, entry_id, record)
    return JournalRecord(offset, KINDS.get(entry_id, UNKNOWN_KIND), ledger_id, -1, record)
