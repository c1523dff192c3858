"""How often the owners of topics are told positions."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepSettings:
    """How positions are told to owners."""

    rate_seconds: float = 1.0
    """Between the beginnings of two rounds for one subscription, unless somebody waits for it (Pulsar's own rate for a
    cursor: `managedLedgerDefaultMarkDeleteRateLimit`)."""
    rounds_per_second_max: float = 80.0
    """For all subscriptions of a topic together, so that thousands of them cost its owner no more than this."""
    beat_seconds: float = 0.1
    """Rounds of different subscriptions begin together, on these beats: their owner takes what comes in one read as one
    batch. Where rounds follow one another faster than that, beats do so too."""
    patience_seconds: float = 30.0
    """Without any progress, after which who waits for the owner is told that it does not answer."""
    close_seconds: float = 10.0
    """For the last round of a subscription that is let go of."""

    def wait_seconds(self, began_seconds: float, now_seconds: float, subscriptions: int) -> float:
        """How long from now until the next round of one of so many subscriptions, whose last one began then."""
        pause_seconds = max(self.rate_seconds, subscriptions / self.rounds_per_second_max)
        due_seconds = began_seconds + pause_seconds
        if due_seconds <= now_seconds:
            return 0.0
        beat_seconds = min(self.beat_seconds, pause_seconds / 4)
        return math.ceil(due_seconds / beat_seconds) * beat_seconds - now_seconds
