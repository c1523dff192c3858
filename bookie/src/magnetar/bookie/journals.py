"""All journals of a bookie: a ledger belongs to one of them for good, by its id (BookKeeper: BookieImpl.getJournal)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magnetar.bookie.journal import files as journal_files
from magnetar.bookie.journal.journal import Journal, Mark
from magnetar.bookie.journal.worker import JournalWorker
from magnetar.bookie.settings import JournalSettings
from magnetar.bookie.storage.directories import BookieDirectories, Marks


class Journals:
    """One `Journal` per journal directory. On the event loop."""

    def __init__(self, journals: Sequence[Journal]) -> None:
        self.all = list(journals)

    def start(self, on_progress: Callable[[float], None], on_failure: Callable[[OSError], None]) -> None:
        """Begin to write; see `Journal.start`."""
        for journal in self.all:
            journal.start(on_progress, on_failure)

    def when_told(self, call: Callable[[], None]) -> None:
        """Call this whenever a group of appends was answered to all who wait for it."""
        for journal in self.all:
            journal.when_told(call)

    def marks(self) -> Marks:
        """Up to where each journal is durable now; everything before it is in the write caches or further."""
        return tuple(journal.mark for journal in self.all)

    async def close(self) -> None:
        """Write what was appended, then stop."""
        for journal in self.all:
            await journal.close()


def open_journals(
    directories: BookieDirectories,
    settings: JournalSettings,
    now_ms: int,
    new_worker: Callable[[], JournalWorker],
    ends: Sequence[Mark],
) -> Journals:
    """A new file in every journal directory; its id is the time, or one more than the greatest there. `ends`: where
    the replay has found each journal to end. OSError."""
    disk = directories.disk
    journals = Journals([])
    try:
        for directory, end in zip(directories.journals, ends, strict=True):
            last_file_id = max(journal_files.list_files(disk, directory), default=0)
            first_file_id = max(now_ms, last_file_id + 1)
            journals.all.append(Journal(directory, first_file_id, settings, disk, new_worker(), end))
    except OSError:
        for journal in journals.all:
            journal.abandon()
        raise
    return journals
