"""The shared cache: ranges, bounds, eviction."""

from __future__ import annotations

import gc
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from magnetar.managed.entry import Entry
from magnetar.managed.entry_cache import (
    CHUNK_ENTRIES_MAX,
    DELAYED_CHUNKS_MAX,
    ENTRY_OVERHEAD_BYTES,
    REPLAYED_PARTS,
    EntryCache,
)
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageMetadata


def put(
    cache: EntryCache,
    ledger_id: int,
    first: int,
    count: int,
    size: int = 10,
    now: float = 0.0,
    *,
    replayed: bool = False,
) -> None:
    entries = [Entry(ledger_id, entry_id, b"x" * size) for entry_id in range(first, first + count)]
    cache.add(ledger_id, entries, count * size, now, replayed=replayed)


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


ADDS = st.tuples(st.integers(0, 60), st.integers(1, 20), st.booleans())


@given(st.lists(ADDS, max_size=20), st.integers(0, 6000 * REPLAYED_PARTS))
def test_overlapping_adds_keep_each_entry_once(adds: list[tuple[int, int, bool]], bound: int) -> None:
    cache = EntryCache(bound)
    for first, count, replayed in adds:
        put(cache, 1, first, count, replayed=replayed)
        assert cache.size_bytes <= bound
        assert 0 <= cache.replayed_bytes <= min(bound // REPLAYED_PARTS, cache.size_bytes)
    held = [entry_id for entry_id in range(100) if cache.get(1, entry_id) is not None]
    assert cache.size_bytes == len(held) * (10 + ENTRY_OVERHEAD_BYTES)
    for entry_id in held:
        found = ids(cache.read(1, entry_id, 100, 1 << 20))
        assert found == list(range(entry_id, entry_id + len(found)))
        assert entry_id + len(found) not in held
    cache.evict_older_than(1.0)
    assert (cache.size_bytes, cache.replayed_bytes, cache.entries) == (0, 0, 0)


def test_what_is_read_again_has_its_part_and_pushes_out_nothing_else() -> None:
    part = 100 * (10 + ENTRY_OVERHEAD_BYTES)
    cache = EntryCache(REPLAYED_PARTS * part)
    put(cache, 1, 1_000, 600)
    for first in range(0, 1_000, 50):
        put(cache, 1, first, 50, replayed=True)
        assert cache.replayed_bytes <= part
    assert ids(cache.read(1, 900, 1_000, 1 << 20)) == list(range(900, 1_600))
    assert cache.get(1, 899) is None
    put(cache, 1, 1_600, 100)
    put(cache, 1, 1_700, 100, replayed=True)
    assert (cache.entries, cache.replayed_bytes) == (800, part), "they stay apart, though they are neighbours"
    assert ids(cache.read(1, 1_000, 1_000, 1 << 20)) == list(range(1_000, 1_800))
    put(cache, 1, 1_800, 50, replayed=True)
    assert ids(cache.read(1, 1_000, 1_000, 1 << 20)) == list(range(1_000, 1_700))
    cache.remove_ledger(1)
    assert cache.size_bytes == cache.replayed_bytes == 0


def test_a_smaller_cache_has_a_smaller_part_for_what_is_read_again() -> None:
    cache = EntryCache(REPLAYED_PARTS * 100 * (10 + ENTRY_OVERHEAD_BYTES))
    put(cache, 1, 0, 50, replayed=True)
    put(cache, 1, 100, 50, replayed=True)
    cache.resize(cache.size_bytes_max // 2)
    assert cache.get(1, 0) is None
    assert ids(cache.read(1, 100, 100, 1 << 20)) == list(range(100, 150))
    assert cache.evictions == 1


def stored(sequence_id: int, due_ms: int = 0) -> bytes:
    """A small message, as most delayed ones are."""
    metadata = MessageMetadata(producer_name="standalone-0-1", sequence_id=sequence_id)
    metadata.publish_time = 1_700_000_000_000 + sequence_id
    if due_ms:
        metadata.deliver_at_time = due_ms
    raw: bytes = metadata.SerializeToString()
    return len(raw).to_bytes(4, "big") + raw + b"x" * 100


def put_stored(
    cache: EntryCache, first: int, count: int, due_ms: int = 0, *, looked_at: bool = True, replayed: bool = False
) -> None:
    entries = [Entry(1, at, stored(at, due_ms)) for at in range(first, first + count)]
    if looked_at:
        for entry in entries:
            entry.metadata()
    cache.add(1, entries, sum(len(entry.data) for entry in entries), 0.0, replayed=replayed)


def test_small_entries_whose_metadata_was_looked_at_take_no_more_than_is_counted() -> None:
    cache = EntryCache(1 << 30)
    put_stored(cache, 0, 1)
    gc.collect()
    tracemalloc.start()
    try:
        before, counted = tracemalloc.get_traced_memory()[0], cache.size_bytes
        for first in range(1, 5_000, 100):
            put_stored(cache, first, 100, due_ms=1_800_000_000_000 + first)
        gc.collect()
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0 < took <= cache.size_bytes - counted


def test_very_many_that_are_read_again_once_take_a_part_of_the_cache() -> None:
    """As delayed messages do that fall due together: without a bound of their own these would take 2.6 MB."""
    cache = EntryCache(4 << 20)
    put_stored(cache, 0, 1, replayed=True)
    gc.collect()
    tracemalloc.start()
    try:
        for first in range(1, 4_000, 100):
            put_stored(cache, first, 100, due_ms=1_800_000_000_000, replayed=True)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1.2 * (4 << 20) / 8
    assert cache.entries > 500


def test_chunks_of_which_all_is_delivered_much_later_are_let_go_of() -> None:
    cache = EntryCache(1 << 20)
    put_stored(cache, 0, 100, due_ms=9_000)
    put_stored(cache, 100, 100, due_ms=5_000)
    put_stored(cache, 200, 99, due_ms=9_000)
    put_stored(cache, 299, 1)
    put_stored(cache, 300, 100, due_ms=9_000, looked_at=False)
    put_stored(cache, 400, 100, due_ms=9_000)
    put_stored(cache, 500, 100, due_ms=9_000)
    assert cache.let_go_of_delayed(1, 0, 550, 5_000) == 500
    held = [first for first in range(0, 600, 100) if cache.get(1, first) is not None]
    assert held == [100, 200, 300, 500]
    assert (
        cache.size_bytes
        == sum(
            len(stored(at, due_ms)) + ENTRY_OVERHEAD_BYTES
            for first, due_ms in ((100, 5_000), (200, 9_000), (300, 9_000), (500, 9_000))
            for at in range(first, first + 100)
            if at != 299
        )
        + len(stored(299))
        + ENTRY_OVERHEAD_BYTES
    )
    assert cache.evictions == 1
    assert cache.let_go_of_delayed(1, 500, 600, 5_000) == 600
    assert cache.get(1, 500) is None
    assert cache.let_go_of_delayed(2, 7, 600, 5_000) == 7


def test_few_chunks_are_let_go_of_at_once() -> None:
    cache = EntryCache(1 << 30)
    for first in range(0, 100 * CHUNK_ENTRIES_MAX, CHUNK_ENTRIES_MAX):
        put_stored(cache, first, CHUNK_ENTRIES_MAX, due_ms=9_000)
    at = cache.let_go_of_delayed(1, 0, 1 << 40, 5_000)
    assert at == DELAYED_CHUNKS_MAX * CHUNK_ENTRIES_MAX
    while (further := cache.let_go_of_delayed(1, at, 1 << 40, 5_000)) != at:
        at = further
    assert cache.entries == cache.size_bytes == 0
