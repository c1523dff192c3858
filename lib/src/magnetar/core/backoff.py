"""How long to wait before the next attempt: twice as long after each failure, up to a maximum."""

from __future__ import annotations

import math
from random import Random
from typing import Final

DOUBLINGS_MAX: Final = 32
"""Beyond any maximum in use; powers without a bound become too large for a float."""


def doubled(seconds_min: float, seconds_max: float, failures: int) -> float:
    """The pause after a failure that so many others in a row came before."""
    return min(seconds_max, seconds_min * 2.0 ** min(failures, DOUBLINGS_MAX))


class Backoff:
    """Pauses that double up to a maximum; with a source of chance each is shortened by up to a half.

    By chance because all clients of a broker that stops come back at the same moment."""

    __slots__ = ("_failures", "_rng", "_seconds_max", "_seconds_min")

    def __init__(self, seconds_min: float, seconds_max: float, rng: Random | None = None) -> None:
        self._seconds_min = seconds_min
        self._seconds_max = seconds_max
        self._rng = rng
        self._failures = 0

    def reset(self) -> None:
        """The next failure is a first one again."""
        self._failures = 0

    def next_seconds(self, longest_seconds: float = math.inf) -> float:
        """The pause to make now; `longest_seconds`: a maximum for this one, beside that of all."""
        pause_seconds = doubled(self._seconds_min, min(self._seconds_max, longest_seconds), self._failures)
        self._failures += 1
        return pause_seconds if self._rng is None else pause_seconds * self._rng.uniform(0.5, 1.0)
