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


class RoundTimes:
    """When the subscriptions of one topic have their rounds. Where thousands become due at the same moment, no more of
    them begin on one beat than the owner is to have."""

    def __init__(self, settings: KeepSettings) -> None:
        self._settings = settings
        self._due = _Beats()
        """Of those that were due when they asked."""
        self._later = _Beats()

    def wait_seconds(self, began_seconds: float, now_seconds: float, subscriptions: int) -> float:
        """How long from now until the next round of one of so many subscriptions, whose last one began then."""
        settings = self._settings
        pause_seconds = max(settings.rate_seconds, subscriptions / settings.rounds_per_second_max)
        beat_seconds = min(settings.beat_seconds, pause_seconds / 4)
        due_seconds = began_seconds + pause_seconds
        is_due = due_seconds <= now_seconds
        beats = self._due if is_due else self._later
        first = math.floor(now_seconds / beat_seconds) if is_due else math.ceil(due_seconds / beat_seconds)
        beat = beats.take(first, first + pause_seconds / beat_seconds, settings.rounds_per_second_max * beat_seconds)
        return max(0.0, beat * beat_seconds - now_seconds)


class _Beats:
    """Who waits for which beat: those that ask later have later ones."""

    def __init__(self) -> None:
        self._last = 0
        self._waiting = 0
        """How many wait for it."""

    def take(self, first: int, last: float, waiting_max: float) -> int:
        """A beat between these, for which no more wait than may. One beyond them was given out when there were more
        subscriptions, and counts no more."""
        if not first <= self._last <= last:
            self._last, self._waiting = first, 0
        elif self._waiting >= waiting_max:
            self._last += 1
            self._waiting = 0
        self._waiting += 1
        return self._last
