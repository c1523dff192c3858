"""Counters of one managed ledger for one period of statistics: its writes, and its reads from bookies.

Per batch there is one call: its entries have one latency, and small ones one size, that of their average. Bounds and
units are those of Apache's brokers (`ManagedLedgerMBeanImpl`, `StatsBuckets`): a value that is equal to a bound is
below it, and each value counts in one bucket only.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

LATENCY_BOUNDS_MICROSECONDS: Final[tuple[float, ...]] = (
    500.0,
    1_000.0,
    5_000.0,
    10_000.0,
    20_000.0,
    50_000.0,
    100_000.0,
    200_000.0,
    1_000_000.0,
)
"""Upper ends of the buckets of write latencies; one more is for what takes longer."""

SIZE_BOUNDS_BYTES: Final[tuple[float, ...]] = (
    128.0,
    512.0,
    1_024.0,
    2_048.0,
    4_096.0,
    16_384.0,
    102_400.0,
    1_232_896.0,
)
"""Upper ends of the buckets of entry sizes; one more is for larger ones."""

SMALL_BYTES: Final = 1_024
"""Entries of a batch that are smaller than this on average count with the average, all at once. To look at each would
cost more than all else that is done per entry here; what is larger takes longer anyway."""

MICROSECONDS: Final = 1_000_000.0


class WrittenEntries:
    """The entries that were confirmed within one period."""

    __slots__ = ("entries", "latencies", "latency_microseconds", "size_bytes", "sizes")

    def __init__(self) -> None:
        self.entries: int = 0
        self.size_bytes: int = 0
        self.latency_microseconds: float = 0.0
        """Of all entries together, from the append to the confirmation."""
        self.latencies: list[int] = [0] * (len(LATENCY_BOUNDS_MICROSECONDS) + 1)
        """Entries by latency, one number per bucket."""
        self.sizes: list[int] = [0] * (len(SIZE_BOUNDS_BYTES) + 1)
        """Entries by size, one number per bucket; small ones by the average of their batch."""

    def add(self, payloads: Sequence[bytes], size_bytes: int, seconds: float) -> None:
        """A batch was confirmed so long after it was appended; `size_bytes` is the sum of its payloads."""
        count = len(payloads)
        microseconds = seconds * MICROSECONDS
        self.entries += count
        self.size_bytes += size_bytes
        self.latency_microseconds += microseconds * count
        self.latencies[bisect_left(LATENCY_BOUNDS_MICROSECONDS, microseconds)] += count
        if count == 1 or size_bytes < SMALL_BYTES * count:
            self.sizes[bisect_left(SIZE_BOUNDS_BYTES, size_bytes / count)] += count
        else:
            for payload in payloads:
                self.sizes[bisect_left(SIZE_BOUNDS_BYTES, len(payload))] += 1


class ReadEntries:
    """Entries and bytes read from bookies within one period, because the cache did not have them."""

    __slots__ = ("entries", "size_bytes")

    def __init__(self) -> None:
        self.entries: int = 0
        self.size_bytes: int = 0

    def add(self, entries: int, size_bytes: int) -> None:
        """One read brought so many."""
        self.entries += entries
        self.size_bytes += size_bytes


NOTHING_WRITTEN: Final = WrittenEntries()
"""A period without a confirmation; never changed."""

NOTHING_READ: Final = ReadEntries()
"""A period without a read from bookies; never changed."""


class LedgerPeriods:
    """The running period of a managed ledger, and the one before, which is told. An idle one keeps no numbers."""

    __slots__ = ("_read", "_written", "read", "seconds", "written")

    def __init__(self) -> None:
        self._written: WrittenEntries | None = None
        self._read: ReadEntries | None = None
        self.written: WrittenEntries = NOTHING_WRITTEN
        """Of the last period that is over, as is `read`."""
        self.read: ReadEntries = NOTHING_READ
        self.seconds: float = 0.0
        """How long that was; 0: none is over yet."""

    def writing(self) -> WrittenEntries:
        """The counters of writes of the running period."""
        written = self._written
        if written is None:
            written = self._written = WrittenEntries()
        return written

    def reading(self) -> ReadEntries:
        """The counters of reads of the running period."""
        read = self._read
        if read is None:
            read = self._read = ReadEntries()
        return read

    def end(self, seconds: float) -> None:
        """A period of this length is over."""
        self.seconds = seconds
        self.written = NOTHING_WRITTEN if self._written is None else self._written
        self.read = NOTHING_READ if self._read is None else self._read
        self._written = None
        self._read = None

    def per_second(self, count: int) -> float:
        """A count of the last period as a rate; 0 before one is over."""
        return count / self.seconds if self.seconds > 0 else 0.0
