"""The cache of entries that all managed ledgers of a process share, bounded in bytes.

Entries come and go by the batch: a chunk is what one append group (or one read from bookies) brought, small neighbours
are put together. The oldest chunks leave first; nothing is kept per message and a read is a list slice.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final

from magnetar.managed.entry import Entry

CHUNK_ENTRIES_MAX: Final = 128
"""Neighbours are joined up to here: few enough that evicting a chunk is a small step, many enough for long slices."""

ENTRY_OVERHEAD_BYTES: Final = 544
"""Bytes of an entry beside its payload, so that the bound is honest for small messages: 140 of the object, the head of
`bytes` and list slots, 400 of the metadata, which is parsed once an entry is dispatched, and stays."""

REPLAYED_PARTS: Final = 8
"""Entries that are read again have one part of so many: 8 MiB of 64. What one subscription reads again the others of
its topic soon do as well, if it was delayed; after that nobody does. Of a million that fall due together all would
stay, until they push out what is read at the end of topics. It is more than one read may bring
(`dispatcherMaxReadSizeBytes`), and 13 000 small entries."""

DELAYED_CHUNKS_MAX: Final = 16
"""Chunks that are looked at in one go for entries that are delivered much later: 2 048 entries, a quarter of a
millisecond."""


class CacheChunk:
    """Consecutive entries of one ledger. Empty = evicted."""

    __slots__ = ("added_seconds", "entries", "first_entry_id", "ledger_id", "replayed", "size_bytes")

    def __init__(
        self,
        ledger_id: int,
        first_entry_id: int,
        entries: list[Entry],
        size_bytes: int,
        added_seconds: float,
        *,
        replayed: bool,
    ) -> None:
        self.ledger_id: int = ledger_id
        self.first_entry_id: int = first_entry_id
        self.entries: list[Entry] = entries
        self.size_bytes: int = size_bytes
        """Bytes of the entries' payloads alone."""
        self.added_seconds: float = added_seconds
        self.replayed: bool = replayed
        """Whether they were read again."""

    @property
    def cost_bytes(self) -> int:
        """What the chunk counts for in the cache's bound."""
        return self.size_bytes + len(self.entries) * ENTRY_OVERHEAD_BYTES


class LedgerChunks:
    """The chunks of one ledger, ascending and without overlap."""

    __slots__ = ("chunks", "firsts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.chunks: list[CacheChunk] = []


class EntryCache:
    """By ledger and entry id. `size_bytes` never stays over `size_bytes_max`, nor what was read again over its part."""

    def __init__(self, size_bytes_max: int) -> None:
        assert size_bytes_max >= 0
        self.size_bytes_max: int = size_bytes_max
        self.size_bytes: int = 0
        self.replayed_bytes: int = 0
        """Of these, those of entries that were read again."""
        self.hits: int = 0
        """Entries that the cache has served."""
        self.hit_bytes: int = 0
        """Of those; a part of a chunk counts with the chunk's mean size."""
        self.misses: int = 0
        """Reads for which the cache had no entry."""
        self.missed_entries: int = 0
        """Entries that had to come from bookies."""
        self.missed_bytes: int = 0
        self.inserted_entries: int = 0
        self.evicted_entries: int = 0
        self.removed_entries: int = 0
        """Those that went with their ledger, not for room or age."""
        self.evictions: int = 0
        """How often something had to go, for room or for age."""
        self._ledgers: dict[int, LedgerChunks] = {}
        self._oldest: deque[CacheChunk] = deque()
        self._oldest_replayed: deque[CacheChunk] = deque()

    def add(
        self, ledger_id: int, entries: list[Entry], size_bytes: int, now_seconds: float, *, replayed: bool = False
    ) -> None:
        """Keep consecutive entries whose payloads sum up to `size_bytes`; what is there already is left alone.

        `replayed`: they are read again, so those leave first. The list is taken over: the caller must not change it
        afterwards."""
        if not entries:
            return
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._ledgers[ledger_id] = LedgerChunks()
        first = entries[0].entry_id
        firsts = ledger.firsts
        chunks = ledger.chunks
        index = bisect_right(firsts, first)
        if index:
            before = chunks[index - 1]
            end = before.first_entry_id + len(before.entries)
            if end > first or (index < len(firsts) and firsts[index] < first + len(entries)):
                self._add_missing(ledger_id, entries, now_seconds, replayed=replayed)
                return
            fits = before.replayed == replayed and len(before.entries) + len(entries) <= CHUNK_ENTRIES_MAX
            if end == first and fits:
                before.entries += entries
                before.size_bytes += size_bytes
                self.inserted_entries += len(entries)
                self._grow(size_bytes + len(entries) * ENTRY_OVERHEAD_BYTES, replayed=replayed)
                return
        elif firsts and firsts[0] < first + len(entries):
            self._add_missing(ledger_id, entries, now_seconds, replayed=replayed)
            return
        chunk = CacheChunk(ledger_id, first, entries, size_bytes, now_seconds, replayed=replayed)
        firsts.insert(index, first)
        chunks.insert(index, chunk)
        (self._oldest_replayed if replayed else self._oldest).append(chunk)
        self.inserted_entries += len(entries)
        self._grow(chunk.cost_bytes, replayed=replayed)

    def read(self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int) -> list[Entry]:
        """Consecutive entries from the first one; empty when that is not here.

        At least one entry is returned when it is here, whatever its size."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            self.misses += 1
            return []
        index = bisect_right(ledger.firsts, first_entry_id) - 1
        found: list[Entry] = []
        chunks = ledger.chunks
        wanted = first_entry_id
        budget = size_bytes_max
        while 0 <= index < len(chunks) and count_max > 0:
            chunk = chunks[index]
            start = wanted - chunk.first_entry_id
            entries = chunk.entries
            if start < 0 or start >= len(entries):
                break
            part = entries[start : start + count_max] if start or len(entries) > count_max else entries
            whole = len(entries)
            if chunk.size_bytes > budget:
                part, fits = _within(part, budget, not found)
                found += part
                self.hit_bytes += chunk.size_bytes * len(part) // whole
                if not fits:
                    break
                budget -= sum([len(entry.data) for entry in part])
            else:
                found += part
                self.hit_bytes += chunk.size_bytes * len(part) // whole
                budget -= chunk.size_bytes
            count_max -= len(part)
            wanted += len(part)
            index += 1
        if found:
            self.hits += len(found)
        else:
            self.misses += 1
        return found

    def served(self, entries: list[Entry]) -> None:
        """Count entries that `get` has given."""
        self.hits += len(entries)
        self.hit_bytes += sum([len(entry.data) for entry in entries])

    def missed(self, entries: int, size_bytes: int) -> None:
        """Count entries that had to be read from bookies."""
        self.missed_entries += entries
        self.missed_bytes += size_bytes

    @property
    def entries(self) -> int:
        """How many are here."""
        return self.inserted_entries - self.evicted_entries - self.removed_entries

    def get(self, ledger_id: int, entry_id: int) -> Entry | None:
        """One entry, or None when it is not here."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return None
        index = bisect_right(ledger.firsts, entry_id) - 1
        if index < 0:
            return None
        chunk = ledger.chunks[index]
        offset = entry_id - chunk.first_entry_id
        return chunk.entries[offset] if offset < len(chunk.entries) else None

    def remove_ledger(self, ledger_id: int) -> None:
        """Forget all entries of a ledger (it was deleted, or its owner closed)."""
        ledger = self._ledgers.pop(ledger_id, None)
        if ledger is not None:
            for chunk in ledger.chunks:
                self.removed_entries += len(chunk.entries)
                self._empty(chunk)

    def let_go_of_delayed(self, ledger_id: int, first_entry_id: int, end_entry_id: int, after_ms: int) -> int:
        """Drop the chunks between two entries of which every entry is known to be delivered after a time.

        Returns the entry to begin at the next time: there may be more of them, and one chunk may still grow."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return first_entry_id
        index = max(0, bisect_right(ledger.firsts, first_entry_id) - 1)
        before = self.evicted_entries
        for _ in range(DELAYED_CHUNKS_MAX):
            if index >= len(ledger.chunks):
                break
            chunk = ledger.chunks[index]
            end = chunk.first_entry_id + len(chunk.entries)
            if end > end_entry_id:
                break
            first_entry_id = end
            if min([entry.known_due_ms for entry in chunk.entries]) > after_ms:
                self._evict(chunk)
            else:
                index += 1
        if self.evicted_entries > before:
            self.evictions += 1
        return first_entry_id

    def resize(self, size_bytes_max: int) -> None:
        """Keep so much at most from now on; what is too much goes in this call."""
        assert size_bytes_max >= 0
        self.size_bytes_max = size_bytes_max
        self._grow(0, replayed=False)

    def evict_older_than(self, before_seconds: float) -> None:
        """Drop the chunks that were begun before this moment of the monotonic clock."""
        before = self.evicted_entries
        for oldest in (self._oldest, self._oldest_replayed):
            while oldest and (oldest[0].added_seconds < before_seconds or not oldest[0].entries):
                self._evict(oldest.popleft())
        if self.evicted_entries > before:
            self.evictions += 1

    def _grow(self, size_bytes: int, *, replayed: bool) -> None:
        self.size_bytes += size_bytes
        if replayed:
            self.replayed_bytes += size_bytes
        before = self.evicted_entries
        while self.replayed_bytes > self.size_bytes_max // REPLAYED_PARTS:
            self._evict(self._oldest_replayed.popleft())
        # What was read again is less than all, so this has an end.
        while self.size_bytes > self.size_bytes_max:
            self._evict(self._oldest.popleft())
        if self.evicted_entries > before:
            self.evictions += 1

    def _evict(self, chunk: CacheChunk) -> None:
        if not chunk.entries:
            return
        ledger = self._ledgers[chunk.ledger_id]
        index = bisect_right(ledger.firsts, chunk.first_entry_id) - 1
        assert ledger.chunks[index] is chunk
        del ledger.firsts[index]
        del ledger.chunks[index]
        if not ledger.firsts:
            del self._ledgers[chunk.ledger_id]
        self.evicted_entries += len(chunk.entries)
        self._empty(chunk)

    def _empty(self, chunk: CacheChunk) -> None:
        self.size_bytes -= chunk.cost_bytes
        if chunk.replayed:
            self.replayed_bytes -= chunk.cost_bytes
        chunk.entries = []

    def _add_missing(self, ledger_id: int, entries: list[Entry], now_seconds: float, *, replayed: bool) -> None:
        """Two readers brought overlapping ranges: add only the stretches that are not here."""
        stretch: list[Entry] = []
        for entry in entries:
            if self.get(ledger_id, entry.entry_id) is None:
                stretch.append(entry)
            elif stretch:
                self._add_stretch(ledger_id, stretch, now_seconds, replayed=replayed)
                stretch = []
        if stretch:
            self._add_stretch(ledger_id, stretch, now_seconds, replayed=replayed)

    def _add_stretch(self, ledger_id: int, entries: list[Entry], now_seconds: float, *, replayed: bool) -> None:
        self.add(ledger_id, entries, sum([len(entry.data) for entry in entries]), now_seconds, replayed=replayed)


def _within(entries: list[Entry], size_bytes_max: int, at_least_one: bool) -> tuple[list[Entry], bool]:
    """The entries from the start that fit, and whether those are all of them."""
    size = 0
    for index, entry in enumerate(entries):
        size += len(entry.data)
        if size > size_bytes_max and (index or not at_least_one):
            return entries[:index], False
    return entries, True


class CacheRates:
    """Rates of a cache per second, in the last period of statistics (`ManagedLedgerFactoryMBeanImpl`); `end_period` is
    called in regular intervals."""

    def __init__(self, cache: EntryCache) -> None:
        self._cache = cache
        self._before = _counts(cache)
        self.hits_per_second = 0.0
        """Entries that the cache has served, as are the bytes."""
        self.hit_bytes_per_second = 0.0
        self.misses_per_second = 0.0
        """Entries that came from bookies, as did the bytes."""
        self.missed_bytes_per_second = 0.0
        self.evictions = 0
        """How often something had to go in the last period."""

    def end_period(self, seconds: float) -> None:
        """A period of this length is over."""
        now = _counts(self._cache)
        before, self._before = self._before, now
        hits, hit_bytes, misses, missed_bytes, evictions = [now[index] - before[index] for index in range(len(now))]
        self.hits_per_second = hits / seconds
        self.hit_bytes_per_second = hit_bytes / seconds
        self.misses_per_second = misses / seconds
        self.missed_bytes_per_second = missed_bytes / seconds
        self.evictions = evictions


def _counts(cache: EntryCache) -> tuple[int, int, int, int, int]:
    return cache.hits, cache.hit_bytes, cache.missed_entries, cache.missed_bytes, cache.evictions
