"""Decides when the loss of bookies calls for an audit. Pure; times are monotonic seconds.

A bookie that was there and is not any more is lost. Without a delay the audit is due at once. With one, a single lost
bookie has that long to come back, which cancels the audit; as soon as a second one is lost, there is no waiting any
more: the next failure might cost data (BookKeeper: replication/Auditor).
"""

from __future__ import annotations

from collections.abc import Collection


class LossWatch:
    """Follows who is there."""

    def __init__(self, known: Collection[str]) -> None:
        """`known` should be there: those with a cookie, up or not."""
        self._known = set(known)
        self.lost: set[str] = set()
        """Bookies whose loss no audit has looked into yet."""
        self.due_at_seconds: float | None = None
        """When the audit is due; None if nobody is lost."""
        self.delayed = 0
        """How many audits had to wait."""
        self.cancelled = 0
        """How many of them were not needed, or not wanted to wait, after all."""
        self._waiting = False

    @property
    def waiting(self) -> bool:
        """Whether an audit waits for its time, so that others should not tell of the loss before."""
        return self._waiting

    def observe(self, available: Collection[str], delay_seconds: float, now_seconds: float) -> None:
        """Note which bookies are registered now."""
        self._known.update(available)
        if self.lost and self.lost.issubset(self._known):
            self._cancel()
            self.lost.clear()
            self.due_at_seconds = None
        newly_lost = self._known.difference(available)
        self.lost |= newly_lost
        self._known -= newly_lost
        if not self.lost:
            return
        if delay_seconds <= 0 or len(self.lost) > 1:
            self._cancel()
            self.due_at_seconds = now_seconds
        elif self.due_at_seconds is None:
            self._wait_until(now_seconds + delay_seconds)

    def delay_written(self, delay_seconds: float, *, changed: bool, now_seconds: float) -> bool:
        """Somebody wrote the delay: the wait begins anew with it. True if an audit is due now, lost bookies or not:
        a delay of 0, or the same one again, asks for that."""
        waiting = self._waiting
        self._cancel()
        if delay_seconds <= 0 or not changed:
            return True
        if waiting:
            self._wait_until(now_seconds + delay_seconds)
        return False

    def due(self, now_seconds: float) -> bool:
        """Whether an audit should begin."""
        return self.due_at_seconds is not None and now_seconds >= self.due_at_seconds

    def audited(self) -> None:
        """An audit has looked into all losses up to now."""
        self.lost.clear()
        self.due_at_seconds = None
        self._waiting = False

    def _wait_until(self, due_at_seconds: float) -> None:
        self.due_at_seconds = due_at_seconds
        self._waiting = True
        self.delayed += 1

    def _cancel(self) -> None:
        if self._waiting:
            self._waiting = False
            self.cancelled += 1
