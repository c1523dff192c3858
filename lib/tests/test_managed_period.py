"""What is measured of a managed ledger's writes and reads, and of the cache: exact, period by period."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.histogram import Histogram
from magnetar.core.ids import EARLIEST
from magnetar.managed.append_path import AppendPath
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.period import (
    LATENCY_BOUNDS_MICROSECONDS,
    NOTHING_WRITTEN,
    SIZE_BOUNDS_BYTES,
    SMALL_BYTES,
    LedgerPeriods,
    WrittenEntries,
)
from magnetar.managed.testing import ManagedWorld, append, read_all
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

NAME = "public/default/persistent/topic"


@pytest.fixture
async def world() -> AsyncIterator[ManagedWorld]:
    world = ManagedWorld()
    yield world
    await world.close()


def periods_of(ledger: ManagedLedger) -> LedgerPeriods:
    appends: AppendPath = ledger.appends
    assert appends.periods is not None
    return appends.periods


@pytest.mark.parametrize(
    ("milliseconds", "bucket"), [(0.0, 0), (0.5, 0), (0.501, 1), (1, 1), (5, 2), (1_000, 8), (1_001, 9), (60_000, 9)]
)
def test_a_latency_counts_in_one_bucket_whose_end_is_inside(milliseconds: float, bucket: int) -> None:
    written = WrittenEntries()
    written.add([b"x"] * 3, 3, milliseconds / 1_000)
    assert [index for index, count in enumerate(written.latencies) if count] == [bucket]
    assert written.latencies[bucket] == 3
    assert written.latency_microseconds == pytest.approx(3_000 * milliseconds)
    assert len(written.latencies) == len(LATENCY_BOUNDS_MICROSECONDS) + 1


@given(st.lists(st.lists(st.integers(0, 5_000), min_size=1, max_size=20), max_size=10))
def test_sizes_are_counted_entry_by_entry_but_for_small_ones(batches: list[list[int]]) -> None:
    written = WrittenEntries()
    expected = [0] * (len(SIZE_BOUNDS_BYTES) + 1)
    for batch in batches:
        written.add([b"x" * size for size in batch], sum(batch), 0.001)
        mean = sum(batch) / len(batch)
        for size in batch:
            expected[bisect_left(SIZE_BOUNDS_BYTES, mean if mean < SMALL_BYTES else size)] += 1
    assert written.sizes == expected
    assert written.entries == sum(map(len, batches))
    assert written.size_bytes == sum(map(sum, batches))


def test_what_is_larger_than_all_ends_counts_too() -> None:
    written = WrittenEntries()
    for size in (1_232_896, 1_232_897):
        written.add([b"x" * size], size, 0.0)
    assert written.sizes[-2:] == [1, 1]


def test_only_a_period_that_is_over_is_told() -> None:
    periods = LedgerPeriods()
    periods.writing().add([b"xx"] * 6, 12, 0.002)
    periods.reading().add(3, 30)
    assert periods.written is NOTHING_WRITTEN
    assert periods.per_second(5) == 0.0
    periods.end(60)
    assert (periods.written.entries, periods.read.entries, periods.read.size_bytes) == (6, 3, 30)
    assert periods.per_second(periods.written.entries) == 0.1
    periods.end(60)
    assert periods.written is NOTHING_WRITTEN
    assert periods.read.entries == 0
    assert NOTHING_WRITTEN.entries == 0


async def test_latency_is_from_append_to_confirmation(world: ManagedWorld) -> None:
    ledger = await world.factory().open(NAME)
    assert ledger.appends.periods is None
    ledger.appends.latencies = Histogram()
    world.ledgers.hold = True
    appending = asyncio.ensure_future(append(ledger, [b"a" * 100, b"b" * 200]))
    await world.settle()
    world.clock.ms += 7
    world.ledgers.release()
    await appending
    periods = periods_of(ledger)
    periods.end(10)
    assert periods.written.latencies[bisect_left(LATENCY_BOUNDS_MICROSECONDS, 7_000)] == 2
    assert periods.written.sizes[:2] == [0, 2]
    assert periods.written.size_bytes == 300
    assert ledger.appends.latencies.count == 2
    assert ledger.appends.latencies.total == pytest.approx(0.014, rel=1e-4)


async def test_waiting_for_the_next_ledger_counts_as_latency(world: ManagedWorld) -> None:
    ledger = await world.factory().open(NAME)
    world.ledgers.fail_appends_after = 0
    world.ledgers.hold = True
    appending = asyncio.ensure_future(append(ledger, [b"a"]))
    await world.settle()
    world.clock.ms += 300
    world.ledgers.release()
    await appending
    periods_of(ledger).end(1)
    assert periods_of(ledger).written.latencies[-2] == 1


async def test_the_cache_tells_hits_and_misses_in_entries_and_bytes(world: ManagedWorld) -> None:
    factory = world.factory()
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("s", EARLIEST)
    await append(ledger, [b"x" * 10] * 20)
    factory.cache_rates.end_period(60)
    assert len(await read_all(cursor)) == 20
    factory.cache_rates.end_period(2)
    rates = factory.cache_rates
    assert (rates.hits_per_second, rates.hit_bytes_per_second) == (10, 100)
    assert (rates.misses_per_second, rates.missed_bytes_per_second) == (0, 0)
    factory.cache.evict_older_than(world.clock.monotonic_seconds() + 1)
    cursor.rewind()
    assert len(await read_all(cursor)) == 20
    factory.cache_rates.end_period(2)
    assert (rates.misses_per_second, rates.missed_bytes_per_second) == (10, 100)
    assert rates.evictions == 1
    assert (factory.cache.inserted_entries, factory.cache.evicted_entries, factory.cache.entries) == (40, 20, 20)
    periods_of(ledger).end(2)
    assert periods_of(ledger).read.entries == 20
    await ledger.close()
    assert (factory.cache.entries, factory.cache.removed_entries) == (0, 20)


async def test_what_is_read_by_position_is_counted_too(world: ManagedWorld) -> None:
    factory = world.factory()
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("s", EARLIEST)
    ledger_id, _ = await append(ledger, [b"x" * 10] * 5)
    assert len(await cursor.read_positions([(ledger_id, 1), (ledger_id, 3)])) == 2
    assert (await ledger.read_entry((ledger_id, 0))).data == b"x" * 10
    assert (factory.cache.hits, factory.cache.hit_bytes) == (3, 30)
