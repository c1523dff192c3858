"""Mistakes that the suite must notice: syncs that count as never made, and code that does things in the wrong order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.storage.directories import Marks

from e2e.power.recording import Event

Forget = Callable[[Event, str], bool]


def journal_without_sync(event: Event, path: str) -> bool:
    """What is written to a journal file is not written through."""
    return path.endswith(".txn")


def names_without_sync(event: Event, path: str) -> bool:
    """Nobody syncs a directory of a bookie's own files: what is made or renamed there may be gone."""
    return path.endswith("/current")


def entry_logs_without_sync(event: Event, path: str) -> bool:
    """Checkpoints do not sync entry logs, and move the mark all the same."""
    return path.endswith(".log") and path.rpartition("/")[0].endswith("/current")


def index_without_sync(event: Event, path: str) -> bool:
    """Checkpoints do not sync where the entries are."""
    return "/locations/" in path and path.endswith(".log")


def metadata_without_sync(event: Event, path: str) -> bool:
    """Metadata is answered before its log is synced."""
    return "/metadata/rocksdb/" in path and path.endswith(".log")


FORGOTTEN: Final[dict[str, Forget]] = {
    "journal-without-sync": journal_without_sync,
    "names-without-sync": names_without_sync,
    "entry-logs-without-sync": entry_logs_without_sync,
    "index-without-sync": index_without_sync,
    "metadata-without-sync": metadata_without_sync,
}


def marks_first() -> None:
    """Checkpoints move the journals' mark before they write anything."""
    flush = Checkpointer.flush

    async def wrong(self: Checkpointer, marks: Marks) -> None:
        self._directories.write_last_marks(marks)
        await flush(self, marks)

    Checkpointer.flush = wrong  # type: ignore[method-assign]


CODE: Final[dict[str, Callable[[], None]]] = {"marks-first": marks_first}
OPTIONS: Final[dict[str, dict[str, list[str]]]] = {
    "no-sync": {"standalone": ["--no-sync"], "bookie": ["--set", "journalSyncData=false"]}
}
"""Mistakes that a user can make: options of the command, by who is under trial."""
