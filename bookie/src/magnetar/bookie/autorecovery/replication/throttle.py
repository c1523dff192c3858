"""How fast bytes may be copied, and how fast they are."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from magnetar.core.clock import Clock

BURST_SECONDS: Final = 0.25
"""What was not used in this time before may be used at once."""

WINDOW_SECONDS: Final = 10.0
"""Over how long the measured rate is taken: short enough to see a stop, long enough to bridge a batch."""

_SLICES_MAX: Final = 100
"""Points in time that the meter keeps for its window."""


class ReplicationThrottle:
    """Holds takers back so that all of them together keep to a rate.

    Whoever takes goes ahead at once and the next ones wait for it: sizes are known only after a read, and any size is
    let through, also one above the rate."""

    def __init__(self, clock: Clock, bytes_per_second: int = 0) -> None:
        """0 or less: no limit [replicationRateByBytes]."""
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._free_at_seconds = float("-inf")

    def set_rate(self, bytes_per_second: int) -> None:
        """Another rate from the next take on; 0 or less: no limit."""
        self._bytes_per_second = bytes_per_second
        if bytes_per_second <= 0:
            self._free_at_seconds = float("-inf")

    async def take(self, size_bytes: int) -> None:
        """Wait until so many bytes may be copied."""
        if self._bytes_per_second <= 0:
            return
        now = self._clock.monotonic_seconds()
        start = max(self._free_at_seconds, now - BURST_SECONDS)
        self._free_at_seconds = start + size_bytes / self._bytes_per_second
        if start > now:
            await asyncio.sleep(start - now)


class RateMeter:
    """Bytes per second over the last seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slices: deque[tuple[float, int]] = deque()
        self._started_seconds = float("inf")
        self.total_bytes = 0

    def add(self, size_bytes: int) -> None:
        """So many bytes were copied just now."""
        now = self._clock.monotonic_seconds()
        self.total_bytes += size_bytes
        self._drop(now)
        if not self._slices:
            self._started_seconds = now
        elif now - self._slices[-1][0] < WINDOW_SECONDS / _SLICES_MAX:
            at, size = self._slices.pop()
            self._slices.append((at, size + size_bytes))
            return
        self._slices.append((now, size_bytes))

    def bytes_per_second(self) -> float:
        """0 when nothing was copied within the window."""
        now = self._clock.monotonic_seconds()
        self._drop(now)
        if not self._slices:
            return 0.0
        # A copy that began just now has no rate yet; a whole second evens out its first batches.
        elapsed = min(WINDOW_SECONDS, max(1.0, now - self._started_seconds))
        return sum(size for _, size in self._slices) / elapsed

    def _drop(self, now: float) -> None:
        while self._slices and self._slices[0][0] < now - WINDOW_SECONDS:
            self._slices.popleft()
