"""How long things took, or how large they were, in fixed buckets: one operation per batch, quantiles when asked for.

Quantiles are read out of the buckets, so they are right to about a seventh of their value.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

BUCKETS_PER_DECADE: Final = 8
_FIRST_EXPONENT: Final = -5
_DECADES: Final = 7
BUCKET_BOUNDS_SECONDS: Final[tuple[float, ...]] = tuple(
    [10 ** (_FIRST_EXPONENT + step / BUCKETS_PER_DECADE) for step in range(_DECADES * BUCKETS_PER_DECADE + 1)]
)
"""Upper ends of the buckets, 10 µs to 100 s; a last bucket takes what is longer."""

WINDOW_SECONDS: Final = 60.0
"""Seconds that latency quantiles go back: BookKeeper's default of prometheusStatsLatencyRolloverSeconds."""

QUANTILES: Final = (
    ("0.5", 0.5),
    ("0.75", 0.75),
    ("0.95", 0.95),
    ("0.99", 0.99),
    ("0.999", 0.999),
    ("0.9999", 0.9999),
    ("1.0", 1.0),
)


class Histogram:
    """How long something took, or how large it was, in fixed buckets."""

    def __init__(self, unit: float = 1.0) -> None:
        """`unit` scales the buckets: 1.0 for seconds."""
        self.counts: list[int] = [0] * (len(BUCKET_BOUNDS_SECONDS) + 1)
        self.count: int = 0
        self.total: float = 0.0
        self.greatest: float = 0.0
        """Since somebody has set it back to 0."""
        self.unit: float = unit

    def record(self, value: float, count: int = 1) -> None:
        """`count` events of this value each."""
        self.counts[bisect_left(BUCKET_BOUNDS_SECONDS, value / self.unit)] += count
        self.count += count
        self.total += value * count
        if value > self.greatest:
            self.greatest = value

    def quantile(self, share: float, since: Sequence[int], greatest: float) -> float:
        """The value below which this share (0 to 1) of the events lies that came after `since`, an earlier copy of
        `counts`, the greatest of which is known; NaN if there were none."""
        counts = [now - before for now, before in zip(self.counts, since, strict=True)]
        events = sum(counts)
        if not events:
            return math.nan
        if share >= 1.0:
            return greatest
        wanted = share * events
        below = 0
        for bucket, count in enumerate(counts):
            if count and below + count >= wanted:
                low = BUCKET_BOUNDS_SECONDS[bucket - 1] if bucket else 0.0
                high = BUCKET_BOUNDS_SECONDS[min(bucket, len(BUCKET_BOUNDS_SECONDS) - 1)]
                return min((low + (high - low) * (wanted - below) / count) * self.unit, greatest)
            below += count
        return greatest


class Windows:
    """Where each histogram stood when the window was last turned, and the one before."""

    def __init__(self) -> None:
        self._turned_seconds: float = -math.inf
        # One entry per histogram of the process, a few dozen: counts at the turn, the greatest value before it.
        self._before: dict[Histogram, tuple[Sequence[int], float]] = {}
        self._now: dict[Histogram, tuple[Sequence[int], float]] = {}

    def begin(self, now_seconds: float) -> None:
        """A scrape begins."""
        if now_seconds - self._turned_seconds >= WINDOW_SECONDS:
            self._turned_seconds = now_seconds
            self._before, self._now = self._now, {}

    def since(self, histogram: Histogram) -> tuple[Sequence[int], float]:
        """(counts at the begin of what is to be shown, which is between one and two windows ago; the greatest value
        since then)."""
        if histogram not in self._now:
            self._now[histogram] = (tuple(histogram.counts), histogram.greatest)
            histogram.greatest = 0.0
        greatest = max(histogram.greatest, self._now[histogram][1])
        counts, _ = self._before.get(histogram) or ((0,) * len(histogram.counts), 0.0)
        return counts, greatest
