"""No look of the collector goes through everything, unless the process has grown; and then cycles are found."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator

import pytest
from magnetar.core.limits import MIB
from magnetar.process.collecting import (
    ALL_GENERATIONS,
    GROWTH_BYTES,
    LATER,
    LOOK_SECONDS,
    NEW_SECONDS,
    SELDOM_GROWTH_BYTES,
    SELDOM_SECONDS,
    SET_ASIDE_SECONDS,
    YOUNG_LOOK_SECONDS_MAX,
    YOUNG_LOOK_SECONDS_MIN,
    CycleCollection,
    due,
    next_young_look_seconds,
)
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

OBJECTS = 600_000
LOOKED_AT_MAX = 20_000
"""Two looks at the second generation, of seven at the first, of seven hundred each, are 10 000; and what stays."""

OBJECT_SECONDS = 0.2e-6
"""What it takes to look at one, in these tests."""

MANY = 2 * int(SET_ASIDE_SECONDS / OBJECT_SECONDS)
"""Are set aside, once they were looked at."""

WAIT_SECONDS = 30.0
"""For another thread."""


class Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.own = self


class Memory:
    """Of a process that grows when a test says so."""

    def __init__(self) -> None:
        self.size_bytes = 100 * MIB

    def now(self) -> int:
        return self.size_bytes


class Processor:
    """Whose time passes while objects are looked at: the same for each."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._looked_at: int | None = None

    def seconds(self) -> float:
        """Is asked when a look begins and when it ends, by turns."""
        if self._looked_at is None:
            self._looked_at = sum(len(gc.get_objects(generation=each)) for each in range(ALL_GENERATIONS + 1))
        else:
            self._seconds += self._looked_at * OBJECT_SECONDS
            self._looked_at = None
        return self._seconds


@pytest.fixture
async def memory() -> Memory:
    return Memory()


@pytest.fixture
async def collecting(memory: Memory) -> AsyncIterator[CycleCollection]:
    before = gc.get_threshold()
    collecting = CycleCollection(asyncio.get_running_loop(), memory.now, Processor().seconds, limit_bytes=0)
    collecting.start()
    yield collecting
    collecting.stop()
    collecting.stop()
    assert gc.get_threshold() == before


@pytest.mark.parametrize(
    ("grown_bytes", "seconds"), [(GROWTH_BYTES, 0.0), (SELDOM_GROWTH_BYTES, SELDOM_SECONDS), (-MIB, SELDOM_SECONDS)]
)
def test_everything_is_looked_at_after_much_growth_or_seldom(grown_bytes: int, seconds: float) -> None:
    assert not due(grown_bytes, seconds)
    assert due(max(grown_bytes, SELDOM_GROWTH_BYTES) + 1, SELDOM_SECONDS)
    assert not due(GROWTH_BYTES, SELDOM_SECONDS - 1)


def test_a_small_container_is_looked_through_before_it_is_full() -> None:
    limit_bytes = 512 * MIB
    assert not due(limit_bytes // 2, 0.0, limit_bytes)
    assert due(limit_bytes // 2 + 1, 0.0, limit_bytes)
    assert not due(SELDOM_GROWTH_BYTES, SELDOM_SECONDS, limit_bytes)
    assert due(65 * MIB, SELDOM_SECONDS, 128 * MIB)
    assert not due(GROWTH_BYTES, 0.0, 64 * GROWTH_BYTES)


@pytest.mark.parametrize(("limit_bytes", "complete"), [(100 * MIB, 1), (0, 0)])
async def test_a_process_heeds_the_limit_of_its_container(memory: Memory, limit_bytes: int, complete: int) -> None:
    limited = CycleCollection(asyncio.get_running_loop(), memory.now, Processor().seconds, limit_bytes=limit_bytes)
    limited.start()
    try:
        memory.size_bytes += 51 * MIB
        assert limited._timer is not None
        limited._timer.cancel()
        limited._look()
        assert limited.complete == complete
    finally:
        limited.stop()


async def test_what_an_automatic_look_goes_through_does_not_grow_with_the_process(collecting: CycleCollection) -> None:
    looked_at: list[int] = []

    def count(phase: str, told: dict[str, int]) -> None:
        if phase == "start" and told["generation"] == ALL_GENERATIONS:
            looked_at.append(len(gc.get_objects(generation=ALL_GENERATIONS)))

    gc.callbacks.append(count)
    try:
        kept = [[number] for number in range(OBJECTS)]
    finally:
        gc.callbacks.remove(count)
    assert len(kept) == OBJECTS
    assert len(looked_at) >= OBJECTS // LOOKED_AT_MAX
    assert max(looked_at) < LOOKED_AT_MAX


async def test_young_objects_do_not_gather_while_as_many_old_ones_end(collecting: CycleCollection) -> None:
    in_a_round, rounds = 2_000, 50
    kept = [[number] for number in range(in_a_round * rounds)]
    gc.collect()  # Sets them aside.
    looked_at: list[int] = []

    def count(phase: str, told: dict[str, int]) -> None:
        if phase == "start":
            looked_at.append(sum(len(gc.get_objects(generation=young)) for young in range(told["generation"] + 1)))

    gc.callbacks.append(count)
    try:
        for first in range(0, len(kept), in_a_round):
            for number in range(first, first + in_a_round):
                kept[number] = [number]
            await asyncio.sleep(YOUNG_LOOK_SECONDS_MAX)
    finally:
        gc.callbacks.remove(count)
    assert len(looked_at) >= rounds - 1
    assert max(looked_at) < in_a_round * rounds / 5


def test_looks_come_as_often_as_there_is_much_new() -> None:
    pause_seconds = next_young_look_seconds(YOUNG_LOOK_SECONDS_MAX, 4 * NEW_SECONDS)
    assert pause_seconds == YOUNG_LOOK_SECONDS_MAX / 4, "at once what fits"
    assert next_young_look_seconds(pause_seconds, NEW_SECONDS) == pause_seconds
    assert next_young_look_seconds(pause_seconds, NEW_SECONDS / 4) == pytest.approx(LATER * pause_seconds), "by and by"
    assert next_young_look_seconds(pause_seconds, 1.0) == YOUNG_LOOK_SECONDS_MIN
    assert next_young_look_seconds(YOUNG_LOOK_SECONDS_MAX, 0.0) == YOUNG_LOOK_SECONDS_MAX
    assert next_young_look_seconds(YOUNG_LOOK_SECONDS_MAX, -NEW_SECONDS) == YOUNG_LOOK_SECONDS_MAX


async def test_what_was_looked_at_before_is_not_new(collecting: CycleCollection) -> None:
    kept = [[number] for number in range(int(1.2 * NEW_SECONDS / OBJECT_SECONDS))]
    looks_before, looks = gc.get_stats()[ALL_GENERATIONS]["collections"], 100
    await asyncio.sleep(looks * YOUNG_LOOK_SECONDS_MAX)
    assert gc.get_stats()[ALL_GENERATIONS]["collections"] - looks_before < 1.2 * looks
    assert len(gc.get_objects(generation=ALL_GENERATIONS)) > len(kept), "none is set aside"


async def test_cycles_are_found_soon_however_long_they_were_in_use_while_little_is_made(
    collecting: CycleCollection,
) -> None:
    cycle, others = Cycle(), []
    seen = weakref.ref(cycle)
    for _ in range(3):
        await asyncio.sleep(SELDOM_SECONDS / 3)
        others.append([[number] for number in range(1_000)])  # CPython looks, too.
    del cycle
    await asyncio.sleep(2 * YOUNG_LOOK_SECONDS_MAX)
    assert seen() is None
    assert collecting.complete == 0


async def test_what_is_freed_is_not_counted_when_what_is_left_is_set_aside(collecting: CycleCollection) -> None:
    cycle = Cycle()
    seen = weakref.ref(cycle)
    gc.disable()
    try:
        for _ in range(MANY):
            Cycle()
    finally:
        gc.enable()
    gc.collect()
    del cycle
    gc.collect()
    assert seen() is None


async def test_cycles_that_were_set_aside_are_found_when_the_process_has_grown(
    collecting: CycleCollection, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    cycle, kept = Cycle(), [[number] for number in range(MANY)]
    seen = weakref.ref(cycle)
    gc.collect()
    del cycle
    gc.collect()
    assert seen() is not None, "it was set aside"
    assert len(kept) == MANY
    await asyncio.sleep(3 * LOOK_SECONDS)
    assert seen() is not None
    memory.size_bytes = 101 * MIB + GROWTH_BYTES
    with caplog.at_level(logging.INFO):
        await asyncio.sleep(2 * LOOK_SECONDS)
    assert seen() is None
    assert collecting.complete == 1, "once, until it has grown again"
    assert "the process grew to 1125 MiB" in caplog.text
    memory.size_bytes += GROWTH_BYTES + 1
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert collecting.complete == 2


async def test_a_look_that_another_thread_stood_in_the_way_of_comes_later(
    collecting: CycleCollection, memory: Memory
) -> None:
    class Slow(Cycle):
        def __del__(self) -> None:
            begun.set()
            over.wait(WAIT_SECONDS)

    begun, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=gc.collect)
    gc.disable()
    try:
        Slow()
        thread.start()
        assert begun.wait(WAIT_SECONDS)
        memory.size_bytes += GROWTH_BYTES + 1
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert collecting.complete == 0
        assert gc.get_freeze_count(), "what was set aside is so still"
    finally:
        over.set()
        thread.join(WAIT_SECONDS)
        gc.enable()
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert collecting.complete == 1


async def test_where_the_size_is_not_known_nothing_is_set_aside() -> None:
    collecting = CycleCollection(asyncio.get_running_loop(), lambda: 0)
    collecting.start()
    cycle = Cycle()
    seen = weakref.ref(cycle)
    gc.collect()
    del cycle
    gc.collect()
    assert seen() is None
    collecting.stop()


async def test_a_process_that_grows_slowly_is_looked_at_seldom(collecting: CycleCollection, memory: Memory) -> None:
    memory.size_bytes += SELDOM_GROWTH_BYTES + 1
    await asyncio.sleep(SELDOM_SECONDS - 2 * LOOK_SECONDS)
    assert collecting.complete == 0
    await asyncio.sleep(4 * LOOK_SECONDS)
    assert collecting.complete == 1


async def test_growth_counts_from_where_the_process_was_smallest(collecting: CycleCollection, memory: Memory) -> None:
    """After a flood it shrinks; it may not grow by so much again on top of what it had then."""
    memory.size_bytes += GROWTH_BYTES + 1
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert collecting.complete == 1
    memory.size_bytes -= GROWTH_BYTES
    await asyncio.sleep(2 * LOOK_SECONDS)
    memory.size_bytes += GROWTH_BYTES + 1
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert collecting.complete == 2


async def test_a_size_that_cannot_be_read_once_is_no_growth(collecting: CycleCollection, memory: Memory) -> None:
    before, memory.size_bytes = memory.size_bytes, 0
    await asyncio.sleep(2 * LOOK_SECONDS)
    memory.size_bytes = before + SELDOM_GROWTH_BYTES // 2
    await asyncio.sleep(2 * SELDOM_SECONDS)
    assert collecting.complete == 0
