"""The shared cache: ranges, bounds, eviction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from magnetar.managed.entry import Entry
from magnetar.managed.entry_cache import ENTRY_OVERHEAD_BYTES, EntryCache


def put(cache: EntryCache, ledger_id: int, first: int, count: int, size: int = 10, now: float = 0.0) -> None:
    entries = [Entry(ledger_id, entry_id, b"x" * size) for entry_id in range(first, first + count)]
    cache.add(ledger_id, entries, count * size, now)


def ids(entries: list[Entry]) -> list[int]:
    return [entry.entry_id for entry in entries]


def test_reads_go_over_chunks_and_stop_at_gaps() -> None:
    cache = EntryCache(1 << 20)
    put(cache, 1, 0, 100)
    put(cache, 1, 100, 100)
    put(cache, 1, 300, 10)
    assert ids(cache.read(1, 90, 50, 1 << 20)) == list(range(90, 140))
    assert ids(cache.read(1, 190, 50, 1 << 20)) == list(range(190, 200))
    assert cache.read(1, 200, 50, 1 << 20) == []
    assert cache.read(2, 0, 50, 1 << 20) == []
    assert ids(cache.read(1, 95, 50, 95)) == list(range(95, 104))
    assert ids(cache.read(1, 95, 50, 1)) == [95]
    assert (cache.get(1, 305) or Entry(0, 0, b"")).entry_id == 305
    assert cache.get(1, 200) is None


def test_the_oldest_leave_over_the_bound() -> None:
    cache = EntryCache(100 * (10 + ENTRY_OVERHEAD_BYTES))
    for start in range(0, 1000, 50):
        put(cache, start // 500, start, 50)
        assert cache.size_bytes <= cache.size_bytes_max
    assert cache.read(0, 0, 1, 100) == []
    assert ids(cache.read(1, 950, 100, 1 << 20)) == list(range(950, 1000))
    put(cache, 2, 0, 1, size=1 << 20)
    assert cache.size_bytes == 0


def test_age_and_removal() -> None:
    cache = EntryCache(1 << 20)
    put(cache, 1, 0, 100, now=1.0)
    put(cache, 1, 100, 100, now=5.0)
    put(cache, 2, 0, 10, now=5.0)
    cache.evict_older_than(5.0)
    assert cache.get(1, 0) is None
    assert cache.get(1, 100) is not None
    cache.remove_ledger(1)
    cache.remove_ledger(1)
    assert cache.size_bytes == 10 * (10 + ENTRY_OVERHEAD_BYTES)
    cache.evict_older_than(6.0)
    assert cache.size_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=20), st.integers(0, 6000))
def test_overlapping_adds_keep_each_entry_once(adds: list[tuple[int, int]], bound: int) -> None:
    cache = EntryCache(bound)
    for first, count in adds:
        put(cache, 1, first, count)
        assert cache.size_bytes <= bound
    held = [entry_id for entry_id in range(100) if cache.get(1, entry_id) is not None]
    assert cache.size_bytes == len(held) * (10 + ENTRY_OVERHEAD_BYTES)
    for entry_id in held:
        found = ids(cache.read(1, entry_id, 100, 1 << 20))
        assert found == list(range(entry_id, entry_id + len(found)))
        assert entry_id + len(found) not in held
