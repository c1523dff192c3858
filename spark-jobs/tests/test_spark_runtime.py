"""Spark's plain threads and the event loop beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from magnetar.spark.runtime import AHEAD_ITEMS_MAX, EventLoopThread, event_loop_thread, run


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    thread = EventLoopThread()
    yield thread
    thread.stop()


class Counting:
    """Numbers, and how many were asked for."""

    def __init__(self, count: int, fail_at: int = -1) -> None:
        self.count, self.fail_at = count, fail_at
        self.made = 0
        self.closed = threading.Event()

    async def items(self) -> AsyncIterator[int]:
        try:
            for number in range(self.count):
                if number == self.fail_at:
                    raise ValueError("broken")
                self.made += 1
                yield number
                await asyncio.sleep(0)
        finally:
            self.closed.set()


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_a_result_is_waited_for() -> None:
    assert run(double(21)) == 42
    assert event_loop_thread() is event_loop_thread()


def test_all_items_come_in_order(loop: EventLoopThread) -> None:
    assert list(loop.iterate(Counting(100).items())) == list(range(100))


def test_items_are_made_ahead_but_not_without_end(loop: EventLoopThread) -> None:
    source = Counting(100)
    items = loop.iterate(source.items())
    assert next(items) == 0
    loop.run(asyncio.sleep(0.05))
    assert source.made <= AHEAD_ITEMS_MAX + 2
    items.close()


def test_who_stops_early_stops_the_source(loop: EventLoopThread) -> None:
    source = Counting(100)
    items = loop.iterate(source.items())
    next(items)
    items.close()
    assert source.closed.wait(5)


def test_an_error_comes_after_what_was_made_before_it(loop: EventLoopThread) -> None:
    taken: list[int] = []
    with pytest.raises(ValueError, match="broken"):
        taken.extend(loop.iterate(Counting(10, fail_at=3).items()))
    items = loop.iterate(Counting(10, fail_at=3).items())
    assert [next(items), next(items), next(items)] == [0, 1, 2]
    with pytest.raises(ValueError, match="broken"):
        next(items)
