"""Measurements of a topic's compactions (Pulsar: `CompactionRecord`)."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

LATENCY_MS: Final[tuple[float, ...]] = (0.5, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 1000.0)
"""Upper ends of the buckets of write latencies, in milliseconds; one more is for what takes longer."""


class CompactionRecord:
    """Counters since the topic was loaded, and how the last run went. Times are in ms, since 1970 or as durations."""

    __slots__ = (
        "_rated_read",
        "_rated_written",
        "_started_ms",
        "bytes_read",
        "bytes_written",
        "duration_ms",
        "entries",
        "failed",
        "last_duration_ms",
        "last_failed_ms",
        "last_removed",
        "last_succeeded_ms",
        "latencies",
        "read_rate",
        "removed",
        "size_bytes",
        "succeeded",
        "write_rate",
    )

    def __init__(self) -> None:
        self._started_ms = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.duration_ms = 0
        self.entries = 0
        """Of the ledger that the last run wrote, as are `size_bytes`."""
        self.failed = 0
        self.last_duration_ms = 0
        self.last_failed_ms = 0
        self.last_removed = 0
        self.last_succeeded_ms = 0
        self.latencies = [0] * (len(LATENCY_MS) + 1)
        self.read_rate = 0.0
        """Bytes per second, as is `write_rate`."""
        self.removed = 0
        self.size_bytes = 0
        self.succeeded = 0
        self.write_rate = 0.0
        self._rated_read = 0
        self._rated_written = 0

    def started(self, now_ms: int) -> None:
        """A run begins."""
        self._started_ms = now_ms
        self.last_removed = 0

    def ended(self, now_ms: int, removed: int, *, well: bool) -> None:
        """A run is over, in which so many messages were found to be of no use."""
        self.last_duration_ms = now_ms - self._started_ms
        self.duration_ms += self.last_duration_ms
        self.last_removed = removed
        self.removed += removed
        if well:
            self.succeeded += 1
            self.last_succeeded_ms = now_ms
        else:
            self.failed += 1
            self.last_failed_ms = now_ms

    def stored(self, entries: int, seconds: float) -> None:
        """So many entries were stored after such a time."""
        self.latencies[bisect_left(LATENCY_MS, seconds * 1000)] += entries

    def update_rates(self, seconds: float) -> None:
        """Turn counters into rates over the time since the last call."""
        self.read_rate = (self.bytes_read - self._rated_read) / seconds
        self.write_rate = (self.bytes_written - self._rated_written) / seconds
        self._rated_read, self._rated_written = self.bytes_read, self.bytes_written

    def statistics(self) -> dict[str, int]:
        """In the shape of the admin API (Pulsar: `CompactionStats`)."""
        return {
            "lastCompactionRemovedEventCount": self.last_removed,
            "lastCompactionSucceedTimestamp": self.last_succeeded_ms,
            "lastCompactionFailedTimestamp": self.last_failed_ms,
            "lastCompactionDurationTimeInMills": self.last_duration_ms,
        }
