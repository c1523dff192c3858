"""Time comes in through a constructor: production passes `SystemClock`, tests and the simulator their own."""

from __future__ import annotations

import time
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

    def monotonic_seconds(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
