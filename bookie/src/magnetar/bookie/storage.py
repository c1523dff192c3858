"""A bookie's entries: the write cache in front, entry logs and index behind.

Adds and cached reads are dict work on the event loop. A read that the cache does not answer goes to a small pool of
threads, one trip for a whole list of reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

from magnetar.bookie.directories import BookieDirectories
from magnetar.bookie.entry_log import EntryLogReader, EntryLogWriter
from magnetar.bookie.entry_log_format import EntryDamaged
from magnetar.bookie.index import Index
from magnetar.bookie.settings import StorageSettings
from magnetar.bookie.write_cache import WriteCache, WriteCacheHalf
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError

log = logging.getLogger(__name__)

READ_COUNT_MAX: Final = 1_000
"""Entries of one batch read, whatever the caller allows (BookKeeper's read-ahead of Pulsar's configuration)."""

APPEND_ENTRIES_MAX: Final = 256
"""Entries written to the log at once; bounds how long the checkpoint thread holds the interpreter lock."""

ReadResult: TypeAlias = bytes | BookieError


class LedgerStorage:
    """Stores and finds entries. Methods run on the event loop unless they say otherwise."""

    def __init__(self, directories: BookieDirectories, settings: StorageSettings) -> None:
        """Opens the index; OSError or RocksDB's error when another process holds it."""
        self.cache = WriteCache(settings.write_cache_bytes_max)
        self.index = Index(directories.ledgers, settings.block_cache_bytes)
        self._writer = EntryLogWriter(directories.ledgers, settings.entry_log_bytes_max)
        self._reader = EntryLogReader(directories.ledgers)
        self._read_threads = ThreadPoolExecutor(settings.read_threads, thread_name_prefix="bookie-read")

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
            for slot, result in await loop.run_in_executor(self._read_threads, self._read_missing, missing):
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
                self._read_threads, self._read_disk_run, ledger_id, first_entry_id, count_max, size_bytes_max
            )
            if entries:
                self._extend_from_cache(entries, ledger_id, first_entry_id, count_max, size_bytes_max)
        return entries

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """All entry ids that are stored of a ledger, ascending."""
        cached = self.cache.entry_ids(ledger_id)
        loop = asyncio.get_running_loop()
        stored = await loop.run_in_executor(self._read_threads, self.index.entry_ids, ledger_id)
        return sorted(cached.union(stored))

    def write_half(self, half: WriteCacheHalf) -> None:
        """Write a half of the cache to the entry log, then its places to the index; all durable on return.

        In the checkpoint thread. The index comes last: it never names a place that is not there. OSError."""
        placed: list[tuple[int, list[int], list[int]]] = []
        try:
            for ledger_id in sorted(half.ledgers):
                ledger = half.ledgers[ledger_id]
                entry_ids = sorted(ledger)
                locations: list[int] = []
                for at in range(0, len(entry_ids), APPEND_ENTRIES_MAX):
                    entries = [ledger[entry_id] for entry_id in entry_ids[at : at + APPEND_ENTRIES_MAX]]
                    locations += self._writer.append(ledger_id, entries)
                placed.append((ledger_id, entry_ids, locations))
                self._reader.learn_digest(ledger_id, ledger[entry_ids[-1]])
            self._writer.sync()
        except OSError:
            self._writer.abandon()
            raise
        for ledger_id, entry_ids, locations in placed:
            self.index.put_locations(ledger_id, entry_ids, locations)
        self.index.sync()

    def close(self) -> None:
        """Close files and threads; what is only in the write cache stays in the journal."""
        self._read_threads.shutdown(wait=True)
        try:
            self._writer.close()
        except OSError as error:
            # Its entries were synced by the checkpoint; only the ledgers map is missing, which a scan replaces.
            log.warning("the current entry log could not be closed well: %s", error)
            self._writer.abandon()
        self._reader.close()
        try:
            self.index.close()
        except OSError as error:
            log.warning("the index could not be closed well: %s", error)

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
            return self._reader.read(location, ledger_id, entry_id)
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
                run = self._reader.read_run(ledger_id, first_entry_id + at, locations[at:])
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
