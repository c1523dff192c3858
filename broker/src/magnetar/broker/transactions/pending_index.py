"""How far a log of pending acknowledgements may be trimmed (Pulsar: `MLPendingAckStore.handleMetadataEntry`). Pure.

From time to time a point is noted: when the subscription has acknowledged everything up to here, durably, nobody needs
the log up to there. The more points there are, the further they are apart: a subscription that stands still for a
million records has some sixty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from magnetar.broker.transactions.pending_records import PendingAckRecord
from magnetar.core.ids import EARLIEST, Position


class TrimPoints:
    """The points of one log, ascending on both sides."""

    __slots__ = ("_highest", "_lag", "_lag_max", "_lag_min", "points")

    def __init__(self, lag_min: int) -> None:
        self._lag_min = lag_min
        self._lag_max = lag_min
        self._lag = 0
        self._highest = EARLIEST
        self.points: deque[tuple[Position, Position]] = deque()
        """(position in the topic, position in the log)."""

    def appended(self, records: Iterable[PendingAckRecord], log_position: Position) -> None:
        """An entry with these records stands in the log."""
        acknowledged = [entry.position for record in records for entry in record.entries]
        self._lag += 1
        if not acknowledged:
            return
        self._highest = max(self._highest, *acknowledged)
        if self._lag < self._lag_max:
            return
        if self.points and self.points[-1][0] == self._highest:
            self.points.pop()
        self.points.append((self._highest, log_position))
        self._lag = 0
        self._lag_max = self._next_lag()

    def due(self, mark_delete: Position) -> bool:
        """Whether something can be trimmed once this mark is durable."""
        return bool(self.points) and self.points[0][0] <= mark_delete

    def trimmed_up_to(self, mark_delete: Position) -> Position | None:
        """This mark is durable: the last position of the log that is not needed any more, once."""
        found: Position | None = None
        while self.points and self.points[0][0] <= mark_delete:
            found = self.points.popleft()[1]
        if found is not None:
            self._lag_max = self._next_lag()
        return found

    def _next_lag(self) -> int:
        return self._lag_min * max(1, len(self.points))
