"""Python's own event loop with a clock that jumps, for tests of what waits but touches nothing outside its process.

Unlike `magnetar.sim.loop` it takes the order of things as it is; what it takes away is the machine's speed: however
slow or busy that is, a second passes when nothing else is left to do, and no sooner.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from types import ModuleType
from typing import Final

EPOCH_MS: Final = 1_800_000_000_000
"""A moment in 2027, which `LoopClock` begins at."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Sleeps cost nothing. Not for threads or sockets: while one of those works, timers would run ahead of it."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now_seconds


class _JumpingSelector(selectors.DefaultSelector):
    """Has time pass instead of waiting."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; without anything ready and with a timer, the clock is at that timer afterwards."""
        if timeout is None:
            return super().select(None)
        events = super().select(0)
        if not events and timeout > 0:
            self._loop.now_seconds += timeout
        return events


class LoopClock:
    """The time of the running loop, as a `Clock`."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, beginning in 2027."""
        return EPOCH_MS + int(self.monotonic_seconds() * 1000)

    def monotonic_seconds(self) -> float:
        """The loop's own."""
        return asyncio.get_running_loop().time()


def loop_factories(module: ModuleType) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """For pytest-asyncio: a test module that sets `new_event_loop` has its tests run on such loops."""
    return {"loop": getattr(module, "new_event_loop", asyncio.new_event_loop)}
