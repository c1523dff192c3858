"""Time comes in through a constructor: production passes `SystemClock`, tests and the simulator their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Where a component gets its time from."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, as stored and sent."""
        ...

    def monotonic_seconds(self) -> float:
        """Seconds that never go back; for intervals only."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    monotonic_seconds = staticmethod(time.monotonic)
    """Seconds that never go back; asked for several times a batch, so without a function of ours around it."""


class TimerHandle(Protocol):
    """A timer that was set."""

    def cancel(self) -> None:
        """Keep the timer from firing."""
        ...


class CallLater(Protocol):
    """How timers are set; `loop.call_later` is one."""

    def __call__(self, delay: float, callback: Callable[[], None], /) -> TimerHandle:
        """Call back once, after so many seconds."""
        ...
