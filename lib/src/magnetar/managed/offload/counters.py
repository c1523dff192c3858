"""Counters of one managed ledger's offloads, for metrics and statistics."""

from __future__ import annotations

from typing import Final


class OffloadCounters:
    """Counts since the managed ledger was opened; rates are of the last period of statistics that is over."""

    __slots__ = (
        "_last_offloaded_bytes",
        "_last_read_bytes",
        "deletions",
        "deletions_failed",
        "last_error",
        "last_failure_ms",
        "last_ledger_id",
        "last_success_ms",
        "ledger_read_seconds",
        "ledger_reads",
        "offload_bytes_per_second",
        "offload_errors",
        "offloaded_bytes",
        "read_bytes",
        "read_bytes_per_second",
        "read_errors",
        "write_errors",
    )

    def __init__(self) -> None:
        self.offloaded_bytes: int = 0
        self.offload_errors: int = 0
        """Offloads that failed, for whatever reason."""
        self.write_errors: int = 0
        """Those that failed because the store did."""
        self.ledger_reads: int = 0
        """Reads at the bookies of what was offloaded."""
        self.ledger_read_seconds: float = 0.0
        self.read_bytes: int = 0
        self.read_errors: int = 0
        """Copies that could not be opened or read; BookKeeper's was read instead where there was one."""
        self.deletions: int = 0
        """Offloads whose objects were deleted."""
        self.deletions_failed: int = 0
        self.last_ledger_id: int = 0
        """The ledger that was offloaded last; 0: none was."""
        self.last_success_ms: int = 0
        self.last_failure_ms: int = 0
        self.last_error: str = ""
        self.offload_bytes_per_second: float = 0.0
        self.read_bytes_per_second: float = 0.0
        self._last_offloaded_bytes: int = 0
        self._last_read_bytes: int = 0

    def offloaded(self, ledger_id: int, size_bytes: int, now_ms: int) -> None:
        """A ledger is in tiered storage, whole."""
        self.offloaded_bytes += size_bytes
        self.last_ledger_id = ledger_id
        self.last_success_ms = now_ms

    def failed(self, error: BaseException, now_ms: int, *, by_store: bool) -> None:
        """An offload failed."""
        self.offload_errors += 1
        self.write_errors += by_store
        self.last_failure_ms = now_ms
        self.last_error = str(error) or repr(error)

    def end_period(self, seconds: float) -> None:
        """A period of this length is over."""
        if seconds > 0:
            self.offload_bytes_per_second = (self.offloaded_bytes - self._last_offloaded_bytes) / seconds
            self.read_bytes_per_second = (self.read_bytes - self._last_read_bytes) / seconds
        self._last_offloaded_bytes = self.offloaded_bytes
        self._last_read_bytes = self.read_bytes


NOTHING_OFFLOADED: Final = OffloadCounters()
"""Of managed ledgers that have nothing to do with tiered storage; never changed."""
