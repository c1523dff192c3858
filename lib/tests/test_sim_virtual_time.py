"""Python's loop with a clock that jumps."""

from __future__ import annotations

import asyncio
import time

import pytest
from magnetar.sim.virtual_time import EPOCH_MS, LoopClock, VirtualTimeLoop

new_event_loop = VirtualTimeLoop


async def test_an_hour_takes_no_time() -> None:
    began, clock = time.monotonic(), LoopClock()
    order: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append((name, round(clock.monotonic_seconds(), 6)))

    await asyncio.gather(sleeper("slow", 3_600), sleeper("quick", 0.5), sleeper("also quick", 0.5))
    assert order == [("quick", 0.5), ("also quick", 0.5), ("slow", 3_600.0)]
    assert clock.now_ms() - EPOCH_MS == pytest.approx(3_600_000, abs=1)
    assert time.monotonic() - began < 60


async def test_work_takes_no_virtual_time() -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(0.001) as deadline:
        for _ in range(1_000):
            await asyncio.sleep(0)
        time.sleep(0.01)
        assert loop.time() == 0
    assert not deadline.expired()


async def test_deadlines_pass_when_nothing_else_is_left_to_do() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await asyncio.Event().wait()
    assert asyncio.get_running_loop().time() == pytest.approx(5)
