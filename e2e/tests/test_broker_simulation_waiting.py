"""Who is waited for, and how long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import cast

from magnetar.sim.loop import SimulatedLoop
from magnetar.sim.trace import Trace

from e2e.broker_simulation.clients import Host
from e2e.broker_simulation.history import History
from e2e.broker_simulation.waiting import until_done


class Node:
    """Of a host."""

    name = "slow"

    def kill(self) -> None:
        """It runs no more."""


class SlowHost:
    """Takes one thing every five seconds; done after so many, or never."""

    def __init__(self, count: int, until: int) -> None:
        self.node = Node()
        self.done = asyncio.Event()
        self.taken = 0
        self._count = count
        self._until = until

    async def run(self) -> None:
        """Until nothing is left."""
        for _ in range(self._count):
            await asyncio.sleep(5.0)
            self.taken += 1
        if self.taken == self._until:
            self.done.set()


def stuck(count: int, until: int, progress: Callable[[SlowHost], int]) -> tuple[list[str], float]:
    """What is complained of, and when it was known."""

    async def scenario() -> list[str]:
        host, history = SlowHost(count, until), History()
        running = asyncio.ensure_future(host.run())
        await until_done(history, [cast(Host, host)], "does not end", 12.0, lambda: progress(host))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return history.stuck

    loop = SimulatedLoop(random.Random(1), Trace(), steps_max=10_000, seconds_max=1_000.0)
    try:
        return loop.run(scenario()), round(loop.time(), 3)
    finally:
        loop.bury()


def test_who_comes_on_has_time_once_more() -> None:
    assert stuck(9, 9, lambda host: host.taken) == ([], 45.0)


def test_who_does_not_is_complained_of() -> None:
    assert stuck(9, 9, lambda host: 0) == (["slow does not end"], 12.0)
    assert stuck(3, 9, lambda host: host.taken) == (["slow does not end"], 36.0)
