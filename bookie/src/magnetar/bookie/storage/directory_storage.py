"""The storage of one ledger directory: its write cache, entry logs, index and threads.

Adds and cached reads are dict work on the event loop. A read that the cache does not answer goes to a small pool of
threads, one trip for a whole list of reads. BookKeeper: storage/ldb/SingleDirectoryDbLedgerStorage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from magnetar.bookie.settings import StorageSettings
from magnetar.bookie.storage.entry_log import EntryLogs
from magnetar.bookie.storage.entry_log_format import EntryDamaged
from magnetar.bookie.storage.index_api import LedgerIndex
from magnetar.bookie.storage.read_ahead import ReadAheadCache
from magnetar.bookie.storage.write_cache import WriteCache, WriteCacheHalf
from magnetar.core.disk import Disk
from magnetar.core.limits import MIB
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError

logger: Final = logging.getLogger(__name__)

READ_COUNT_MAX: Final = 1_000
"""Entries of one batch read, whatever the caller allows (BookKeeper's read-ahead of Pulsar's configuration)."""

APPEND_ENTRIES_MAX: Final = 256
"""Entries written to the log at once; bounds how long the checkpoint thread holds the interpreter lock."""

APPEND_BYTES_MAX: Final = 4 * MIB
"""Written to the log at once, unless it is one entry."""

ReadResult: TypeAlias = bytes | BookieError

NOT_READ: Final = BookieError(BookieCode.ETOOMANYREQUESTS, "not read yet")
"""The result for an entry that was left out, as those before it came to the size that was asked for."""

READ_BYTES_UNBOUNDED: Final = 1 << 62

_Missing: TypeAlias = tuple[int, int, int, int, int]
"""Place in the results, ledger id, entry id, the greatest cached entry id if the last one is wanted, and how many bytes
to read."""

_Run: TypeAlias = tuple[int, int, dict[int, bytes]]
"""Ledger id, entry id, and the entries that stood behind it."""

_Placed: TypeAlias = tuple[int, list[int], list[int]]
"""Entries that were written: ledger id, entry ids, and the location of each."""

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
        self.cache = WriteCache(settings.write_cache_share_bytes(directories_count))
        self.read_ahead = ReadAheadCache(
            settings.read_ahead_bytes_max // directories_count, settings.read_ahead_batch_bytes
        )
        self.write_cache_hits = 0
        """Entries that readers found in the write cache; those that they did not are looked for once each."""
        self.write_cache_misses = 0
        self._read_ahead_entries_max = settings.read_ahead_batch_entries
        readers = -(-settings.read_threads // directories_count)
        self.read_threads = ThreadPoolExecutor(readers, thread_name_prefix="bookie-read")
        self._placed: list[_Placed] = []
        self._flush_thread = ThreadPoolExecutor(1, thread_name_prefix="bookie-flush")
        self._background_thread = ThreadPoolExecutor(1, thread_name_prefix="bookie-background")

    async def run_in_background(self, function: Callable[[], _Result]) -> _Result:
        """Run something that takes its time, such as collecting garbage, in this directory's background thread; one
        at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._background_thread, function)

    # --- reads

    async def read_many(
        self, wanted: Sequence[tuple[int, int]], size_bytes_max: int = READ_BYTES_UNBOUNDED
    ) -> list[ReadResult]:
        """(ledger id, entry id) → each entry, or its error. Entry id -1: the ledger's last entry.

        Errors are ENOENTRY and EIO; whether the ledger exists at all is the caller's to say. Once the entries have
        `size_bytes_max`, which the last one may exceed, the others are `NOT_READ`."""
        found_bytes = 0
        results: list[ReadResult | None] = []
        missing: list[_Missing] = []
        read_ahead_hits = self.read_ahead.hits
        for ledger_id, entry_id in wanted:
            if found_bytes >= size_bytes_max:
                results.append(NOT_READ)
                continue
            if entry_id >= 0:
                entry = self.cached_entry(ledger_id, entry_id)
                if entry is not None:
                    found_bytes += len(entry)
                else:
                    read_bytes = self.read_ahead.plan(ledger_id, entry_id)
                    missing.append((len(results), ledger_id, entry_id, -1, read_bytes))
            else:
                # The last entry may stand in the index although the cache has some: a recovery writes older ones again.
                last_cached = self.cache.last_entry_id(ledger_id)
                entry = self.cache.get(ledger_id, last_cached)
                missing.append((len(results), ledger_id, entry_id, last_cached, 0))
            results.append(entry)
        self.write_cache_misses += len(missing)
        asked = len(wanted) - sum(result is NOT_READ for result in results)
        self.write_cache_hits += asked - len(missing) - (self.read_ahead.hits - read_ahead_hits)
        if missing:
            loop = asyncio.get_running_loop()
            forgotten = self.read_ahead.forgotten
            room_bytes = size_bytes_max - found_bytes
            found, runs = await loop.run_in_executor(self.read_threads, self._read_missing, missing, room_bytes)
            for slot, result in found:
                results[slot] = result
            if forgotten == self.read_ahead.forgotten:
                for run in runs:
                    self.read_ahead.put(*run)
        return [result for result in results if result is not None]

    def cached_entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """An entry that is in memory."""
        return self.cache.get(ledger_id, entry_id) or self.read_ahead.get(ledger_id, entry_id)

    async def read_run(self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int) -> list[bytes]:
        """Consecutive entries from the first one, to the first missing one or the bounds. At least one entry if the
        first exists, none otherwise. `BookieError` EIO when the first cannot be read."""
        count_max = min(count_max, READ_COUNT_MAX)
        entries: list[bytes] = []
        self._extend_from_cache(entries, ledger_id, first_entry_id, count_max, size_bytes_max)
        self.write_cache_hits += len(entries)
        if not entries:
            self.write_cache_misses += 1
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
        # There, too, they are sorted: a ledger may have millions.
        return await loop.run_in_executor(self.read_threads, self._all_entry_ids, ledger_id, cached)

    # --- checkpoints

    async def flush(self, states: Sequence[State]) -> None:
        """Write the cache out, or once more what could not be written before, and store states. OSError.

        All durable on return, in the flush thread; entries that are added meanwhile wait for the next time."""
        self.begin_flush()
        await self.finish_flush(states)

    def begin_flush(self) -> None:
        """Settle what the next `finish_flush` writes: what was added up to now, or what could not be written before."""
        if self.cache.flushing is None and self.cache.active.ledgers:
            self.cache.swap()

    async def finish_flush(self, states: Sequence[State]) -> None:
        """Write what `begin_flush` has settled, and store states; see `flush`."""
        half = self.cache.flushing
        if half is None and not states:
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._flush_thread, self._write, half, states)
        if half is not None:
            self.cache.release()
            await loop.run_in_executor(self._flush_thread, half.clear)

    def close(self) -> None:
        """Close files and threads; what is only in the write cache stays in the journal."""
        for threads in (self.read_threads, self._flush_thread, self._background_thread):
            threads.shutdown(wait=True)
        self.logs.close()
        try:
            self.index.close()
        except OSError as error:
            logger.warning("the index in %s could not be closed well: %s", self.directory, error)

    def _write(self, half: WriteCacheHalf | None, states: Sequence[State]) -> None:
        # In the flush thread. States come first, since they cost least to write once more. Entries come before places:
        # the index never names a place that is not there.
        self.index.put_ledgers(states)
        if half is not None:
            self._write_half(half)

    def _write_half(self, half: WriteCacheHalf) -> None:
        # A half whose places could not be stored is not written to the logs once more: on a full disk every attempt
        # would cost as much again.
        placed = self._placed or self._write_entries(half)
        self._placed = placed
        self.logs.note_written()
        for ledger_id, entry_ids, locations in placed:
            self.index.put_locations(ledger_id, entry_ids, locations)
        self.index.sync()
        self._placed = []
        self.logs.indexed()

    def _write_entries(self, half: WriteCacheHalf) -> list[_Placed]:
        placed: list[_Placed] = []
        writer = self.logs.writer
        try:
            for ledger_id in sorted(half.ledgers):
                ledger = half.ledgers[ledger_id]
                entry_ids = sorted(ledger)
                locations: list[int] = []
                for entries in _portions([ledger[entry_id] for entry_id in entry_ids]):
                    locations += writer.append(ledger_id, entries)
                placed.append((ledger_id, entry_ids, locations))
                self.logs.reader.learn_digest(ledger_id, ledger[entry_ids[-1]])
            writer.sync()
        except OSError:
            self.logs.abandon()
            raise
        return placed

    # --- in a read thread

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

    def _all_entry_ids(self, ledger_id: int, cached: set[int]) -> list[int]:
        cached.update(self.index.entry_ids(ledger_id))
        return sorted(cached)

    def _read_missing(
        self, missing: Sequence[_Missing], size_bytes_max: int
    ) -> tuple[list[tuple[int, ReadResult]], list[_Run]]:
        # Slots whose cached entry is the right one already are left out.
        results: list[tuple[int, ReadResult]] = []
        runs: list[_Run] = []
        fresh: dict[tuple[int, int], bytes] = {}
        size = 0
        for slot, ledger_id, entry_id, last_cached, read_bytes in missing:
            if size >= size_bytes_max:
                results.append((slot, NOT_READ))
                continue
            entry = fresh.get((ledger_id, entry_id))
            if entry is not None:
                results.append((slot, entry))
                continue
            try:
                if entry_id < 0:
                    entry_id = self.index.last_entry_id(ledger_id)
                    if last_cached >= 0 and last_cached >= entry_id:
                        continue
                found = self._read_from_log(ledger_id, entry_id, read_bytes) if entry_id >= 0 else None
            except (EntryDamaged, OSError) as error:
                results.append((slot, _unreadable(error, ledger_id, entry_id)))
                continue
            if found is None:
                results.append((slot, BookieError(BookieCode.ENOENTRY, f"{ledger_id}:{entry_id}")))
                continue
            entry, behind = found
            results.append((slot, entry))
            size += len(entry)
            if behind:
                # In memory all the same, until the cache of what was read ahead has it.
                size += sum(map(len, behind.values()))
                runs.append((ledger_id, entry_id, behind))
                fresh.update(((ledger_id, next_id), next_entry) for next_id, next_entry in behind.items())
        return results, runs

    def _read_from_log(self, ledger_id: int, entry_id: int, read_bytes: int) -> tuple[bytes, dict[int, bytes]] | None:
        """The entry and what follows it; None when the index does not know it. `EntryDamaged`, OSError."""
        location = self.index.location(ledger_id, entry_id)
        if location is None:
            return None
        try:
            return self._read_place(location, ledger_id, entry_id, read_bytes)
        except (EntryDamaged, OSError) as error:
            # A compaction may have moved the entry and deleted the log since the index was asked.
            moved = self.index.location(ledger_id, entry_id)
            if moved is None:
                return None
            if moved == location:
                where = f"{location >> 32:x}.log at {location & 0xFFFF_FFFF}"
                raise EntryDamaged(f"{where}: {error}") from error
            return self._read_place(moved, ledger_id, entry_id, read_bytes)

    def _read_place(
        self, location: int, ledger_id: int, entry_id: int, read_bytes: int
    ) -> tuple[bytes, dict[int, bytes]]:
        reader = self.logs.reader
        if not read_bytes:
            return reader.read(location, ledger_id, entry_id), {}
        return reader.read_ahead(location, ledger_id, entry_id, read_bytes, self._read_ahead_entries_max)

    def _read_disk_run(self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int) -> list[bytes]:
        entries: list[bytes] = []
        size = 0
        try:
            locations = self.index.locations(ledger_id, first_entry_id, count_max)
        except OSError as error:
            raise _unreadable(error, ledger_id, first_entry_id) from None
        while len(entries) < len(locations):
            at = len(entries)
            run = self._read_part(ledger_id, first_entry_id + at, locations[at:])
            if isinstance(run, BookieError):
                if not entries:
                    raise run
                return entries
            for entry in run:
                size += len(entry)
                if entries and size > size_bytes_max:
                    return entries
                entries.append(entry)
            if not run:
                return entries
        return entries

    def _read_part(self, ledger_id: int, entry_id: int, locations: Sequence[int]) -> list[bytes] | BookieError:
        """Entries that stand in a row; none when the first is no longer there."""
        try:
            return self.logs.reader.read_run(ledger_id, entry_id, locations)
        except (EntryDamaged, OSError):
            # As in `_read_from_log`; the first alone shows what became of it.
            try:
                found = self._read_from_log(ledger_id, entry_id, 0)
            except (EntryDamaged, OSError) as error:
                return _unreadable(error, ledger_id, entry_id)
            return [found[0]] if found is not None else []


def _portions(entries: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for at in range(0, len(entries), APPEND_ENTRIES_MAX):
        portion = entries[at : at + APPEND_ENTRIES_MAX]
        if sum(map(len, portion)) <= APPEND_BYTES_MAX:
            yield portion
            continue
        begin = size = 0
        for end, entry in enumerate(portion):
            if size and size + len(entry) > APPEND_BYTES_MAX:
                yield portion[begin:end]
                begin, size = end, 0
            size += len(entry)
        yield portion[begin:]


def _unreadable(error: Exception, ledger_id: int, entry_id: int) -> BookieError:
    logger.error("entry %d:%d cannot be read from %s", ledger_id, entry_id, error)
    return BookieError(BookieCode.EIO, f"{ledger_id}:{entry_id}: {error}")
