"""Periodic work over many topics, a little at a time."""

from __future__ import annotations

import asyncio

from magnetar.broker.topics.sweep import (
    PAUSE_SECONDS,
    VISITS_PER_LOOK,
    WORK_AT_ONCE,
    WORK_WAITING_MAX,
    Job,
    Sweeper,
    Work,
)
from magnetar.core.errors import MagnetarError

from broker.tests.subscription_stage import Timers


class Clock(Timers):
    """Each look at it takes a millisecond, so that a slice has few visits."""

    def monotonic_seconds(self) -> float:
        self.time_ms += 1
        return super().monotonic_seconds()


def sweeper(timers: Timers, count: int) -> Sweeper[int]:
    made: Sweeper[int] = Sweeper(lambda: range(count), timers, timers.call_later, lambda _: None)
    return made


def test_a_sweep_is_cut_into_slices_and_visits_each_item_once() -> None:
    timers = Clock()
    visited: list[int] = []
    ended: list[int] = []

    def visit(item: int) -> None:
        visited.append(item)

    sweeps = sweeper(timers, 1_000)
    sweeps.add(Job("j", 10, visit, lambda: ended.append(len(visited))))
    sweeps.start()
    timers.advance(9_000)
    assert not visited
    timers.advance(2_000)
    longest = 0
    before = len(visited)
    while len(visited) < 1_000:
        timers.advance(PAUSE_SECONDS * 1_000)
        longest = max(longest, len(visited) - before)
        before = len(visited)
    assert longest <= 3 * VISITS_PER_LOOK
    assert visited == list(range(1_000))
    assert ended == [1_000]
    sweeps.stop()
    assert timers.pending == 0


def test_jobs_run_one_after_another_each_at_its_interval() -> None:
    timers = Timers()
    order: list[str] = []
    sweeps = sweeper(timers, 1)
    sweeps.add(Job("often", 2, lambda _: order.append("often")))
    sweeps.add(Job("seldom", 4, lambda _: order.append("seldom")))
    sweeps.start()
    timers.advance(9_500)
    assert sorted(order) == ["often"] * 4 + ["seldom"] * 2
    once: Job[int] = Job("once", 0, lambda _: order.append("once"))
    sweeps.run_once(once)
    sweeps.run_once(once)
    timers.advance(10)
    assert order.count("once") == 1
    sweeps.stop()


def test_an_item_that_fails_stops_nothing() -> None:
    timers = Timers()
    visited: list[int] = []

    def visit(item: int) -> None:
        visited.append(item)
        if item == 1:
            raise MagnetarError("staged")

    sweeps = sweeper(timers, 3)
    sweeps.add(Job("j", 1, visit))
    sweeps.start()
    timers.advance(1_500)
    assert visited == [0, 1, 2]
    sweeps.stop()


async def test_work_that_takes_longer_runs_side_by_side_within_a_bound() -> None:
    timers = Timers()
    tasks: list[asyncio.Task[None]] = []
    running = most = done = 0

    async def work() -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running -= 1
        done += 1
        raise MagnetarError("staged")

    def visit(item: int) -> Work:
        del item
        return work

    sweeps: Sweeper[int] = Sweeper(
        lambda: range(100),
        timers,
        timers.call_later,
        lambda coroutine: tasks.append(asyncio.get_running_loop().create_task(coroutine)),
    )
    sweeps.add(Job("j", 1, visit))
    sweeps.start()
    timers.advance(1_100)
    await asyncio.gather(*tasks)
    assert done == 100
    assert most == WORK_AT_ONCE
    sweeps.stop()


async def test_work_is_done_after_each_sweep() -> None:
    """Whoever has done the last of it gives its place back."""
    timers = Timers()
    tasks: list[asyncio.Task[None]] = []
    done = 0

    async def work() -> None:
        nonlocal done
        done += 1

    sweeps: Sweeper[int] = Sweeper(
        lambda: range(2 * WORK_AT_ONCE),
        timers,
        timers.call_later,
        lambda coroutine: tasks.append(asyncio.get_running_loop().create_task(coroutine)),
    )
    sweeps.add(Job("j", 1, lambda _: work))
    sweeps.start()
    for sweep in range(1, 4):
        timers.advance(1_100)
        await asyncio.gather(*tasks)
        assert done == sweep * 2 * WORK_AT_ONCE
    sweeps.stop()


def test_work_that_nobody_gets_to_is_not_heaped_up() -> None:
    timers = Timers()

    async def work() -> None:
        """Never run here."""

    sweeps: Sweeper[int] = Sweeper(
        lambda: range(WORK_WAITING_MAX // 2 + 1), timers, timers.call_later, lambda coroutine: coroutine.close()
    )
    sweeps.add(Job("j", 1, lambda _: work))
    sweeps.start()
    timers.advance(5_000)
    assert len(sweeps._work) == WORK_WAITING_MAX
    sweeps.stop()
