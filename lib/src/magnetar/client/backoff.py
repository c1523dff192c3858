"""How long to wait before the next attempt."""

from __future__ import annotations

from random import Random


class Backoff:
    """Pauses that double up to a maximum, each shortened by up to a half at random.

    At random because all clients of a broker that stops come back at the same moment."""

    def __init__(self, seconds_min: float, seconds_max: float, rng: Random) -> None:
        self._seconds_min = seconds_min
        self._seconds_max = seconds_max
        self._rng = rng
        self._next_seconds = seconds_min

    def reset(self) -> None:
        """The next failure is a first one again."""
        self._next_seconds = self._seconds_min

    def next_seconds(self) -> float:
        """The pause to make now."""
        pause = self._next_seconds
        self._next_seconds = min(2 * pause, self._seconds_max)
        return pause * (0.5 + 0.5 * self._rng.random())
