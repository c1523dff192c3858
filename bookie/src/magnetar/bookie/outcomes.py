"""How operations of one kind went, and the groups of one journal: recorded for each group, and so for each batch.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from magnetar.core.histogram import Histogram


class Outcomes:
    """One kind of operation: those that worked and those that did not."""

    def __init__(self, unit: float = 1.0) -> None:
        self.success = Histogram(unit)
        self.failure = Histogram(unit)

    def record(self, value: float, count: int, *, success: bool) -> None:
        """`count` operations of this duration (or size)."""
        (self.success if success else self.failure).record(value, count)


class JournalCounters:
    """What one journal counts."""

    def __init__(self) -> None:
        self.add = Outcomes()
        """From the hand-over to durable; a group counts with its oldest record's time for all of them."""
        self.sync = Outcomes()
        """Durable writes of the journal, each with its time; exact."""
        self.group_bytes = Histogram(unit=1e6)
        """Bytes of the journal's groups; exact."""
        self.group_records = Histogram(unit=1e3)
        """Records of the journal's groups; exact."""
        self.written_bytes = 0

    def group_written(
        self, sync_seconds: float, add_seconds: float, records: int, size_bytes: int, *, success: bool
    ) -> None:
        """One group has been written, or could not be: how long that took, and how long it is since the hand-over of
        its oldest record."""
        self.sync.record(sync_seconds, 1, success=success)
        self.add.record(add_seconds, records, success=success)
        if success:
            self.group_bytes.record(size_bytes)
            self.group_records.record(records)
            self.written_bytes += size_bytes
