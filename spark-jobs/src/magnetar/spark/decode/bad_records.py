"""What is done with messages that cannot be read: the option `mode`."""

from __future__ import annotations

from magnetar.spark.errors import BadRecord
from magnetar.spark.options.reading import BadRecordMode


class BadRecordPolicy:
    """Decides about bad messages and counts them, for one task."""

    def __init__(self, mode: BadRecordMode, corrupt_record_column: str = "") -> None:
        self._mode = mode
        self.corrupt_record_column = corrupt_record_column
        """Gets the bytes of bad messages, if a table has it; empty: none does."""
        self.kept = 0
        """Messages that were gone past (PERMISSIVE): rows without values, if filters leave them in."""
        self.dropped = 0
        """Messages that gave no row (DROPMALFORMED)."""
        self.first_reason = ""
        """Topic, message and reason of the first one: what a log line wants to say beside the counts."""

    def keeps(self, topic: str, message_id: str, reason: str) -> bool:
        """Whether this message becomes a row without values. Raises `BadRecord` in FAILFAST."""
        text = f"{topic}: message {message_id} cannot be read: {reason}"
        if self._mode == "FAILFAST":
            raise BadRecord(f"{text}. With option mode=PERMISSIVE or mode=DROPMALFORMED the query goes on")
        self.first_reason = self.first_reason or text
        if self._mode == "DROPMALFORMED":
            self.dropped += 1
            return False
        self.kept += 1
        return True
