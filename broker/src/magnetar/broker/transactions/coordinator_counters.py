"""Counters of one transaction coordinator while it runs here (Pulsar: `TransactionMetadataStoreStats`). Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

LATENCY_BOUNDS_MS: Final[tuple[int, ...]] = (
    *(10, 20, 50, 100, 500, 1_000, 5_000),
    *(15_000, 30_000, 60_000, 300_000, 1_500_000, 3_000_000),
)
"""Upper ends of the buckets of how long transactions took; one more is for what takes longer."""

PERIOD_MS: Final = 60_000
"""Dashboards divide the buckets by a minute."""


class CoordinatorCounters:
    """Since the coordinator was opened; latencies are those of the last whole minute."""

    def __init__(self, now_ms: int) -> None:
        self.created = 0
        self.committed = 0
        self.aborted = 0
        self.timed_out = 0
        """Those whose abort was begun as they took too long."""
        self.appended = 0
        """Records that were written to its log."""
        self._begun_ms = now_ms
        self._running = _zeros()
        self._last = _zeros()

    def commit(self, now_ms: int, took_ms: int) -> None:
        """A transaction is committed, so long after it was begun."""
        self.committed += 1
        self._turn(now_ms)
        self._running[bisect_left(LATENCY_BOUNDS_MS, took_ms)] += 1

    def latencies(self, now_ms: int) -> tuple[int, ...]:
        """Commits of the last whole minute by how long they took: one number per bucket."""
        self._turn(now_ms)
        return tuple(self._last)

    def _turn(self, now_ms: int) -> None:
        periods = (now_ms - self._begun_ms) // PERIOD_MS
        if periods > 0:
            self._last = self._running if periods == 1 else _zeros()
            self._running = _zeros()
            self._begun_ms += periods * PERIOD_MS


def _zeros() -> list[int]:
    return [0] * (len(LATENCY_BOUNDS_MS) + 1)
