"""The storage of one ledger directory: its write cache, entry logs, index and threads.

Adds and cached reads are dict work on the event loop. A read that the cache does not answer goes to a small pool of
threads, one trip for a whole list of reads. BookKeeper: storage/ldb/SingleDirectoryDbLedgerStorage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from magnetar.bookie.entry_log import EntryLogs
from magnetar.bookie.entry_log_format import EntryDamaged
from magnetar.bookie.index_api import LedgerIndex
from magnetar.bookie.settings import StorageSettings
from magnetar.bookie.write_cache import WriteCache, WriteCacheHalf
from magnetar.core.disk import Disk
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError

log = logging.getLogger(__name__)

READ_COUNT_MAX: Final = 1_000
"""Entries of one batch read, whatever the caller allows (BookKeeper's read-ahead of Pulsar's configuration)."""

APPEND_ENTRIES_MAX: Final = 256
"""Entries written to the log at once; bounds how long the checkpoint thread holds the interpreter lock."""

ReadResult: TypeAlias = bytes | BookieError

State: TypeAlias = tuple[int, bytes]
"""A ledger's id and its encoded state."""

_Result = TypeVar("_Result")


class DirectoryStorage:
    """Stores and finds the entries of the ledgers that belong to one directory. On the event loop unless a method
    says otherwise."""

    def __init__(
        self, directory: Path, index: LedgerIndex, disk: Disk, settings: StorageSettings, directories_count: int = 1
    ) -> None:
        """`directory` is `…/current`; the directory gets its share of caches and threads. Owns the index from here
        on. OSError."""
        self.directory = directory
        self.index = index
        self.disk = disk
        self.logs = EntryLogs(disk, directory, settings.entry_log_bytes_max)
        self.cache = WriteCache(settings.write_cache_bytes_max // directories_count)
        readers = -(-settings.read_threads // directories_count)
        self.read_threads = ThreadPoolExecutor(readers, thread_name_prefix="bookie-read")
        self._flush_thread = ThreadPoolExecutor(1, thread_name_prefix="bookie-flush")
        self._background_thread = ThreadPoolExecutor(1, thread_name_prefix="bookie-background")

    async def run_in_background(self, function: Callable[[], _Result]) -> _Result:
        """Run something that takes its time, such as collecting garbage, in this directory's background thread; one
        at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._background_thread, function)

    # Reads.

    async def read_many(self, wanted: Sequence[tuple[int, int]]) -> list[ReadResult]:
        """(ledger id, entry id) → each entry, or its error. Entry id -1: the ledger's last entry.

        Errors are ENOENTRY and EIO; whether the ledger exists at all is the caller's to say."""
        results: list[ReadResult | None] = []
        missing: list[tuple[int, int, int, int]] = []
        for ledger_id, entry_id in wanted:
            last_cached = self.cache.last_entry_id(ledger_id) if entry_id < 0 else -1
            entry = self.cache.get(ledger_id, entry_id if entry_id >= 0 else last_cached)
            # The last entry may stand in the index although the cache has some: a recovery writes older ones again.
            if entry is None or entry_id < 0:
                missing.append((len(results), ledger_id, entry_id, last_cached))
            results.append(entry)
        if missing:
            loop = asyncio.get_running_loop()
            for slot, result in await loop.run_in_executor(self.read_threads, self._read_missing, missing):
                results[slot] = result
        return [result for result in results if result is not None]

    async def read_run(self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int) -> list[bytes]:
        """Consecutive entries from the first one, to the first missing one or the bounds. At least one entry if the
        first exists, none otherwise. `BookieError` EIO when the first cannot be read."""
        count_max = min(count_max, READ_COUNT_MAX)
        entries: list[bytes] = []
        self._extend_from_cache(entries, ledger_id, first_entry_id, count_max, size_bytes_max)
        if not entries:
            loop = asyncio.get_running_loop()
            entries = await loop.run_in_executor(
                self.read_threads, self._read_disk_run, ledger_id, first_entry_id, count_max, size_bytes_max
            )
            if entries:
                self._extend_from_cache(entries, ledger_id, first_entry_id, count_max, size_bytes_max)
        return entries

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """All entry ids that are stored of a ledger, ascending."""
        cached = self.cache.entry_ids(ledger_id)
        loop = asyncio.get_running_loop()
        stored = await loop.run_in_executor(self.read_threads, self.index.entry_ids, ledger_id)
        return sorted(cached.union(stored))

    # Checkpoints.

    async def flush(self, states: Sequence[State]) -> None:
        """Write the cache out, or once more what could not be written before, and store states. OSError.

        All durable on return, in the flush thread; entries that are added meanwhile wait for the next time."""
        if self.cache.flushing is None and self.cache.active.ledgers:
            self.cache.swap()
        half = self.cache.flushing
        if half is None and not states:
            return
        await asyncio.get_running_loop().run_in_executor(self._flush_thread, self._write, half, states)
        if half is not None:
            self.cache.release()

    def close(self) -> None:
        """Close files and threads; what is only in the write cache stays in the journal."""
        for threads in (self.read_threads, self._flush_thread, self._background_thread):
            threads.shutdown(wait=True)
        self.logs.close()
        try:
            self.index.close()
        except OSError as error:
            log.warning("the index in %s could not be closed well: %s", self.directory, error)

    def _write(self, half: WriteCacheHalf | None, states: Sequence[State]) -> None:
        # In the flush thread. Entries come before places: the index never names a place that is not there.
        if half is not None:
            self._write_half(half)
        self.index.put_ledgers(states)

    def _write_half(self, half: WriteCacheHalf) -> None:
        placed: list[tuple[int, list[int], list[int]]] = []
        writer = self.logs.writer
        try:
            for ledger_id in sorted(half.ledgers):
                ledger = half.ledgers[ledger_id]
                entry_ids = sorted(ledger)
                locations: list[int] = []
                for at in range(0, len(entry_ids), APPEND_ENTRIES_MAX):
                    entries = [ledger[entry_id] for entry_id in entry_ids[at : at + APPEND_ENTRIES_MAX]]
                    locations += writer.append(ledger_id, entries)
                placed.append((ledger_id, entry_ids, locations))
                self.logs.reader.learn_digest(ledger_id, ledger[entry_ids[-1]])
            writer.sync()
        except OSError:
            self.logs.abandon()
            raise
        for ledger_id, entry_ids, locations in placed:
            self.index.put_locations(ledger_id, entry_ids, locations)
        self.index.sync()
        self.logs.indexed()

    # In a read thread.

    def _extend_from_cache(
        self, entries: list[bytes], ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int
    ) -> None:
        size = sum(map(len, entries))
        while len(entries) < count_max:
            entry = self.cache.get(ledger_id, first_entry_id + len(entries))
            if entry is None:
                return
            size += len(entry)
            if entries and size > size_bytes_max:
                return
            entries.append(entry)

    def _read_missing(self, missing: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, ReadResult]]:
        # In a read thread. Slots whose cached entry is the right one already are left out.
        results: list[tuple[int, ReadResult]] = []
        for slot, ledger_id, entry_id, last_cached in missing:
            try:
                if entry_id < 0:
                    entry_id = self.index.last_entry_id(ledger_id)
                    if last_cached >= 0 and last_cached >= entry_id:
                        continue
                location = self.index.location(ledger_id, entry_id) if entry_id >= 0 else None
            except OSError as error:
                results.append((slot, _unreadable(error, 0, ledger_id, entry_id)))
                continue
            if location is None:
                results.append((slot, BookieError(BookieCode.ENOENTRY, f"{ledger_id}:{entry_id}")))
            else:
                results.append((slot, self._read_at(location, ledger_id, entry_id)))
        return results

    def _read_at(self, location: int, ledger_id: int, entry_id: int) -> ReadResult:
        try:
            return self.logs.reader.read(location, ledger_id, entry_id)
        except (EntryDamaged, OSError) as error:
            return _unreadable(error, location, ledger_id, entry_id)

    def _read_disk_run(self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int) -> list[bytes]:
        # In a read thread.
        entries: list[bytes] = []
        size = 0
        try:
            locations = self.index.locations(ledger_id, first_entry_id, count_max)
        except OSError as error:
            raise _unreadable(error, 0, ledger_id, first_entry_id) from None
        while len(entries) < len(locations):
            at = len(entries)
            try:
                run = self.logs.reader.read_run(ledger_id, first_entry_id + at, locations[at:])
            except (EntryDamaged, OSError) as error:
                unreadable = _unreadable(error, locations[at], ledger_id, first_entry_id + at)
                if not entries:
                    raise unreadable from None
                return entries
            for entry in run:
                size += len(entry)
                if entries and size > size_bytes_max:
                    return entries
                entries.append(entry)
        return entries


def _unreadable(error: Exception, location: int, ledger_id: int, entry_id: int) -> BookieError:
    where = f"{location >> 32:x}.log at {location & 0xFFFF_FFFF}"
    log.error("entry %d:%d cannot be read from %s: %s", ledger_id, entry_id, where, error)
    return BookieError(BookieCode.EIO, f"{ledger_id}:{entry_id} in {where}")
