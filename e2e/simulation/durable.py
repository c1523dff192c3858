"""What a bookie would still have if its host lost power at this moment.

Read from the simulated disk alone: the journal's whole groups behind the marks, and what the index finds in the entry
logs, as far as contents and names are durable. What the bookie says of itself is not asked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal.format import FENCE_RECORD, MASTER_KEY_RECORD, JournalScan
from magnetar.bookie.journal.header import NotAJournal
from magnetar.bookie.journal.journal import Mark
from magnetar.bookie.ledger_state import decode_state
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.directories import CURRENT, LAST_MARK_FILE
from magnetar.sim.disk import Platter
from magnetar.sim.inode import Inode
from magnetar.wire.bookkeeper.entry import HEADER_BYTES

from bookie.tests.simulated_storage import INDEX_FILE, IndexContents

_MARK: Final = struct.Struct(">qq")
_SIZE: Final = struct.Struct(">I")

Kept: TypeAlias = tuple[int, int]
"""Ledger id and entry id; `FENCE_RECORD` or `MASTER_KEY_RECORD` instead of an entry's."""


class DiskEvents(Protocol):
    """Told of what durably happens on one bookie's disk."""

    def entry_stored(self, disk: BookieDisk, ledger_id: int, entry_id: int, entry: bytes, *, fenced: bool) -> None:
        """The journal has an entry; `fenced`: behind a fence of its ledger."""
        ...

    def stored_without_key(self, disk: BookieDisk, ledger_id: int) -> None:
        """The journal has an entry, and nobody could tell after a start whose ledger it is of."""
        ...

    def ledger_deleted(self, disk: BookieDisk, ledger_id: int) -> None:
        """The index has forgotten a ledger."""
        ...

    def forgotten(self, disk: BookieDisk, kept: Kept) -> None:
        """Something is gone that was to be kept."""
        ...


class _Index(IndexContents):
    """The durable part of one directory's index."""

    def __init__(self, deleted: Callable[[int], None]) -> None:
        super().__init__()
        self.inode: Inode | None = None
        self._read_to = 0
        self._deleted = deleted
        self._again = False

    def read_on(self, inode: Inode) -> None:
        """What has become durable since."""
        if self.inode is not inode:
            # Made anew by a start, out of what the last one had.
            self.inode, self._read_to, self._again = inode, 0, True
            self.places.clear()
            self.ledgers.clear()
        self._read_to += self.load(inode.read_durable(inode.size_bytes, self._read_to))
        self._again = False

    def delete(self, ledger_id: int) -> None:
        super().delete(ledger_id)
        if not self._again:
            self._deleted(ledger_id)


class _JournalFile:
    """A journal file, read as far as it is durable."""

    __slots__ = ("file_id", "inode", "read_to")

    def __init__(self, file_id: int, inode: Inode) -> None:
        self.file_id = file_id
        self.inode = inode
        self.read_to = 0


_Record: TypeAlias = tuple[_JournalFile, int, bytes]
"""The file, the position behind the record's group, and the record."""


class _Journal:
    """One journal directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark: Mark = (0, 0)
        self.files: dict[int, _JournalFile] = {}
        self.known: list[_JournalFile] = []
        """Also those that were deleted: a power failure may bring a name back."""
        self.unread: set[int] = set()
        self.records: dict[Kept, _Record] = {}
        """The newest of each."""

    def find(self, kept: Kept) -> bytes | None:
        """A record that a replay would come by."""
        found = self.records.get(kept)
        if found is None:
            return None
        file, behind, record = found
        alive = self.files.get(file.file_id) is file and (file.file_id, behind) > self.mark
        return record if alive else None


class BookieDisk:
    """A `PlatterWatcher` of one bookie's disk."""

    def __init__(self, bookie_id: str, platter: Platter, settings: BookieSettings, events: DiskEvents) -> None:
        self.bookie_id = bookie_id
        self.stored_unfenced: dict[int, set[int]] = {}
        """Ledger id → entries that came into the journal before any fence of the ledger did."""
        self._platter = platter
        self._events = events
        self._ledgers = [directory / CURRENT for directory in settings.ledger_directories]
        self._journals = [_Journal(directory / CURRENT) for directory in settings.journal_directories]
        self._by_directory = {journal.directory: journal for journal in self._journals}
        self._indexes = [_Index(self._ledger_deleted) for _ in self._ledgers]
        self._logs: set[tuple[int, str]] = set()
        self._fenced: set[int] = set()
        self._keyed: set[int] = set()
        self._kept_in_journal: dict[Kept, None] = {}
        self._kept_elsewhere: dict[Kept, None] = {}
        platter.watcher = self

    # --- what is there

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry as the next start would find it."""
        record = self._journal_of(ledger_id).find((ledger_id, entry_id))
        if record is not None:
            return record
        number = ledger_id % len(self._ledgers)
        location = self._indexes[number].places.get(ledger_id, {}).get(entry_id)
        return None if location is None else self._logged(self._ledgers[number], location)

    def fenced(self, ledger_id: int) -> bool:
        """Whether the next start would find a fence."""
        if self._journal_of(ledger_id).find((ledger_id, FENCE_RECORD)) is not None:
            return True
        state = self._indexes[ledger_id % len(self._ledgers)].ledgers.get(ledger_id)
        return state is not None and decode_state(ledger_id, state).fenced

    def master_key(self, ledger_id: int) -> bytes | None:
        """The master key that the next start would find; None when it knows nothing of the ledger."""
        record = self._journal_of(ledger_id).find((ledger_id, MASTER_KEY_RECORD))
        if record is not None:
            return journal_format.record_value(record)
        state = self._indexes[ledger_id % len(self._ledgers)].ledgers.get(ledger_id)
        return None if state is None else decode_state(ledger_id, state).master_key

    def has(self, kept: Kept) -> bool:
        """Whether the next start would find it."""
        ledger_id, entry_id = kept
        if entry_id == FENCE_RECORD:
            return self.fenced(ledger_id)
        if entry_id == MASTER_KEY_RECORD:
            # Of a ledger whose password is empty the key is no secret, but it is one.
            return bool(self.master_key(ledger_id))
        return self.entry(ledger_id, entry_id) is not None

    def keep(self, kept: Kept) -> None:
        """From now on it is an event when this is gone; it is there now."""
        if kept not in self._kept_elsewhere:
            self._kept_in_journal[kept] = None

    def let_go(self, ledger_id: int) -> None:
        """Of this ledger nothing need be kept any more."""
        for kept in (self._kept_in_journal, self._kept_elsewhere):
            for each in [each for each in kept if each[0] == ledger_id]:
                del kept[each]

    def read_on(self) -> None:
        """Look at everything that came since the last look."""
        for journal in self._journals:
            if journal.unread:
                self._read_journal(journal)

    def _journal_of(self, ledger_id: int) -> _Journal:
        journal = self._journals[ledger_id % len(self._journals)]
        if journal.unread:
            self._read_journal(journal)
        return journal

    def _logged(self, directory: Path, location: int) -> bytes | None:
        inode = self._platter.find_durable(directory / entry_log_format.file_name(location >> 32))
        if inode is None:
            return None
        position = location & 0xFFFF_FFFF
        head = inode.read_durable(_SIZE.size, position - _SIZE.size)
        if len(head) < _SIZE.size:
            return None
        size: int = _SIZE.unpack(head)[0]
        entry = inode.read_durable(size, position)
        return entry if len(entry) == size else None

    # --- what happens

    def content_settled(self, path: Path, inode: Inode) -> None:
        """See `PlatterWatcher.content_settled`."""
        name = path.name
        journal = self._by_directory.get(path.parent)
        if journal is not None and (file_id := journal_format.file_id_of(name)) is not None:
            journal.unread.add(file_id)
        elif name == INDEX_FILE:
            self._indexes[self._ledgers.index(path.parent)].read_on(inode)
        elif name.startswith(LAST_MARK_FILE) and self._read_marks():
            self._check_journal()

    def names_settled(self) -> None:
        """See `PlatterWatcher.names_settled`."""
        gone = False
        for journal in self._journals:
            gone |= self._list_journal(journal)
        logs = {
            (number, name)
            for number, directory in enumerate(self._ledgers)
            for name in self._platter.durable_names(directory)
            if entry_log_format.log_id_of(name) is not None
        }
        gone |= not self._logs <= logs
        self._logs = logs
        if gone:
            self._check_everything()

    def power_lost(self) -> None:
        """See `PlatterWatcher.power_lost`."""
        for journal in self._journals:
            self._list_journal(journal)
            journal.unread.update(journal.files)
        for index, directory in zip(self._indexes, self._ledgers, strict=True):
            inode = self._platter.find_durable(directory / INDEX_FILE)
            if inode is not None:
                index.read_on(inode)
        self._read_marks()
        self._check_everything()

    def _check_everything(self) -> None:
        self._check_journal()
        for kept in list(self._kept_elsewhere):
            if not self.has(kept):
                self._lose(self._kept_elsewhere, kept)

    def _check_journal(self) -> None:
        """What the journal no longer has must be elsewhere."""
        self.read_on()
        for kept in list(self._kept_in_journal):
            if self._journal_of(kept[0]).find(kept) is not None:
                continue
            if self.has(kept):
                del self._kept_in_journal[kept]
                self._kept_elsewhere[kept] = None
            else:
                self._lose(self._kept_in_journal, kept)

    def _lose(self, kept_there: dict[Kept, None], kept: Kept) -> None:
        del kept_there[kept]
        self._events.forgotten(self, kept)

    def _list_journal(self, journal: _Journal) -> bool:
        """Whether some file is gone."""
        there: dict[int, _JournalFile] = {}
        for name in self._platter.durable_names(journal.directory):
            file_id = journal_format.file_id_of(name)
            inode = self._platter.find_durable(journal.directory / name)
            if file_id is None or inode is None:
                continue
            file = next((known for known in journal.known if known.inode is inode), None)
            if file is None:
                file = _JournalFile(file_id, inode)
                journal.known.append(file)
                journal.unread.add(file_id)
            there[file_id] = file
        gone = any(there.get(file_id) is not file for file_id, file in journal.files.items())
        journal.files = there
        return gone

    def _read_journal(self, journal: _Journal) -> None:
        unread, journal.unread = journal.unread, set()
        for file_id in sorted(unread):
            file = journal.files.get(file_id)
            if file is not None:
                for behind, record in _records(file):
                    self._take(journal, (file, behind, record))

    def _take(self, journal: _Journal, found: _Record) -> None:
        record = found[2]
        ledger_id, entry_id = journal_format.record_ids(record)
        if entry_id >= 0 and len(record) < HEADER_BYTES:
            return
        journal.records[(ledger_id, entry_id)] = found
        if entry_id == FENCE_RECORD:
            self._fenced.add(ledger_id)
            self.keep((ledger_id, FENCE_RECORD))
        elif entry_id == MASTER_KEY_RECORD:
            self.keep((ledger_id, MASTER_KEY_RECORD))
        elif entry_id >= 0:
            if ledger_id not in self._keyed:
                if self.master_key(ledger_id) is None:
                    self._events.stored_without_key(self, ledger_id)
                self._keyed.add(ledger_id)
            fenced = ledger_id in self._fenced
            if not fenced:
                self.stored_unfenced.setdefault(ledger_id, set()).add(entry_id)
            self._events.entry_stored(self, ledger_id, entry_id, record, fenced=fenced)

    def _read_marks(self) -> bool:
        """Whether any has changed."""
        changed = False
        for number, journal in enumerate(self._journals):
            name = LAST_MARK_FILE if len(self._journals) == 1 else f"{LAST_MARK_FILE}.{number}"
            mark = max(self._mark(directory / name) for directory in self._ledgers)
            changed |= mark != journal.mark
            journal.mark = mark
        return changed

    def _mark(self, path: Path) -> Mark:
        inode = self._platter.find_durable(path)
        content = b"" if inode is None else inode.read_durable(_MARK.size, 0)
        if len(content) < _MARK.size:
            return (0, 0)
        file_id, offset = _MARK.unpack(content)
        return (file_id, offset)

    def _ledger_deleted(self, ledger_id: int) -> None:
        self._fenced.discard(ledger_id)
        self._keyed.discard(ledger_id)
        self.stored_unfenced.pop(ledger_id, None)
        self._events.ledger_deleted(self, ledger_id)
        self.let_go(ledger_id)


def _records(file: _JournalFile) -> Iterator[tuple[int, bytes]]:
    """(position behind its group, record) of everything that has come into a journal file."""
    inode = file.inode
    try:
        scan = JournalScan(lambda at, size: inode.read_durable(size, at), file.read_to)
    except NotAJournal:
        return
    while (group := scan.next_group()) is not None:
        for record in group:
            yield scan.end_offset, record
    file.read_to = scan.end_offset
