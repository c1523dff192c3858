"""A bookie's entries: one `DirectoryStorage` per ledger directory, and which of them a ledger is in.

A ledger belongs to one directory for good, by its id (BookKeeper: storage/ldb/DbLedgerStorage).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from magnetar.bookie.loss import WHAT_TO_DO, Losses, OnLoss
from magnetar.bookie.settings import StorageSettings
from magnetar.bookie.storage.directories import BookieDirectories
from magnetar.bookie.storage.directory_storage import READ_BYTES_UNBOUNDED, DirectoryStorage, ReadResult, State
from magnetar.bookie.storage.entry_log_note import check_entry_logs, list_logs, read_note
from magnetar.bookie.storage.index import repair_rocksdb_index
from magnetar.bookie.storage.index_api import IndexDamaged, IndexMissing, LedgerIndex, OpenIndex
from magnetar.bookie.storage.index_database import IndexUnreadable
from magnetar.bookie.storage.write_cache import WriteCache
from magnetar.core.disk import Disk


class _OpenOne(Protocol):
    def __call__(self, path: Path, *, create: bool) -> LedgerIndex: ...


class LedgerStorage:
    """Routes to the directories. Methods run on the event loop unless they say otherwise."""

    def __init__(self, directories: Sequence[DirectoryStorage]) -> None:
        self.directories = list(directories)
        self.caches: list[WriteCache] = [directory.cache for directory in directories]
        """The write caches in the directories' order, for those who do the routing themselves."""

    def of(self, ledger_id: int) -> DirectoryStorage:
        """The directory that a ledger is in."""
        return self.directories[ledger_id % len(self.directories)]

    def load_state(self, ledger_id: int) -> bytes | None:
        """The encoded state of a ledger, from its index. OSError."""
        return self.of(ledger_id).index.ledger(ledger_id)

    def was_deleted(self, ledger_id: int) -> bool:
        """Whether a ledger is one of those that were deleted last. OSError."""
        return self.of(ledger_id).index.was_deleted(ledger_id)

    def greatest_ledger_id(self) -> int:
        """The greatest ledger id of all directories that has a state or any place, or was deleted; -1: none.
        OSError."""
        return max(directory.index.greatest_ledger_id() for directory in self.directories)

    @property
    def half_full(self) -> bool:
        """Whether a cache should be written out now."""
        return any(cache.half_full for cache in self.caches)

    def anything_cached(self) -> bool:
        """Whether any entry is not yet in an entry log."""
        return any(cache.flushing is not None or cache.active.ledgers for cache in self.caches)

    def cached_entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """An entry that is in memory."""
        return self.of(ledger_id).cached_entry(ledger_id, entry_id)

    async def read_many(
        self, wanted: Sequence[tuple[int, int]], size_bytes_max: int = READ_BYTES_UNBOUNDED
    ) -> list[ReadResult]:
        """(ledger id, entry id) → each entry, or its error (ENOENTRY, EIO). Entry id -1: the ledger's last entry.
        Ledgers of different directories are read at the same time; each directory stops at `size_bytes_max`."""
        count = len(self.directories)
        if count == 1:
            return await self.directories[0].read_many(wanted, size_bytes_max)
        slots: dict[int, list[int]] = {}
        for slot, (ledger_id, _) in enumerate(wanted):
            slots.setdefault(ledger_id % count, []).append(slot)
        if len(slots) == 1:
            return await self.directories[next(iter(slots))].read_many(wanted, size_bytes_max)
        found = await asyncio.gather(
            *(
                self.directories[index].read_many([wanted[slot] for slot in of], size_bytes_max)
                for index, of in slots.items()
            )
        )
        results: dict[int, ReadResult] = {}
        for of, some in zip(slots.values(), found, strict=True):
            results.update(zip(of, some, strict=True))
        return [results[slot] for slot in range(len(wanted))]

    async def read_run(self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int) -> list[bytes]:
        """Consecutive entries from the first one, to the first missing one or the bounds. At least one entry if the
        first exists, none otherwise. `BookieError` EIO when the first cannot be read."""
        return await self.of(ledger_id).read_run(ledger_id, first_entry_id, count_max, size_bytes_max)

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """All entry ids that are stored of a ledger, ascending."""
        return await self.of(ledger_id).entry_ids(ledger_id)

    async def flush(self, states: Sequence[State]) -> None:
        """Write every cache out and store the states, all directories at the same time. OSError, the first one; the
        other directories are finished all the same. What is written is settled before this waits for anything."""
        count = len(self.directories)
        for directory in self.directories:
            directory.begin_flush()
        of: list[list[State]] = [[] for _ in self.directories]
        for state in states:
            of[state[0] % count].append(state)
        if count == 1:
            await self.directories[0].finish_flush(of[0])
            return
        flushes = [directory.finish_flush(some) for directory, some in zip(self.directories, of, strict=True)]
        for result in await asyncio.gather(*flushes, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def forget_ledgers(self, ledger_ids: Collection[int]) -> None:
        """The ledgers were deleted: keep nothing of them in memory."""
        for ledger_id in ledger_ids:
            directory = self.of(ledger_id)
            directory.cache.forget(ledger_id)
            directory.read_ahead.forget(ledger_id)

    def close(self) -> None:
        """Close files and threads; what is only in the write caches stays in the journal."""
        for directory in self.directories:
            directory.close()


def open_storage(
    directories: BookieDirectories, settings: StorageSettings, open_index: OpenIndex, losses: Losses | None = None
) -> LedgerStorage:
    """Opens every directory's index and logs. OSError when one cannot be opened or another process holds it;
    `IndexMissing`, `IndexDamaged`, `EntryLogLost` unless losses are accepted. Blocks; a start that heals or accepts
    losses reads all of the indexes."""
    losses = losses or Losses(OnLoss.REFUSE)
    opened: list[DirectoryStorage] = []
    count = len(directories.ledgers)

    def open_one(path: Path, *, create: bool) -> LedgerIndex:
        return open_index(path, settings.block_cache_bytes // count, create=create)

    try:
        for ledgers, index_directory in zip(directories.ledgers, directories.indexes, strict=True):
            index = _open_checked(ledgers, index_directory, directories.disk, open_one, losses)
            try:
                opened.append(DirectoryStorage(ledgers, index, directories.disk, settings, count))
            except BaseException:
                index.close()
                raise
    except BaseException:
        for directory in opened:
            directory.close()
        raise
    return LedgerStorage(opened)


def _open_checked(ledgers: Path, index_directory: Path, disk: Disk, open_one: _OpenOne, losses: Losses) -> LedgerIndex:
    # The index of a new directory is made before its first log, so logs without one have lost it.
    empty = not list_logs(disk, ledgers) and not read_note(disk, ledgers)
    try:
        return _checked(open_one(index_directory, create=empty), ledgers, disk, losses)
    except (IndexMissing, IndexDamaged) as damage:
        losses.tell(damage)
    repair_rocksdb_index(index_directory)
    return _checked(open_one(index_directory, create=True), ledgers, disk, losses)


def _checked(index: LedgerIndex, ledgers: Path, disk: Disk, losses: Losses) -> LedgerIndex:
    try:
        check_entry_logs(disk, ledgers, index, losses)
    except IndexUnreadable as error:
        damage = f"the index of {ledgers} says no more where all entries are: {error}. {WHAT_TO_DO}"
    except BaseException:
        index.close()
        raise
    else:
        return index
    index.close()
    # Without the cause, whose frames hold a cursor: with one, RocksDB keeps the database locked, and nobody repairs it.
    raise IndexDamaged(damage)
