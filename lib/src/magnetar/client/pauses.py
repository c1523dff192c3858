"""The pauses of a client's producers and consumers that are on their way to a broker."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from magnetar.client.settings import ClientSettings
from magnetar.core.backoff import Backoff

LONGEST_SECONDS_MIN: Final = 1.0
"""The longest pause while few wait. A topic whose owner is back is missed by readers at other brokers, and a
subscription may be consumed in two places, until who follows the topic is back too."""


class Pauses:
    """Of one client. The more producers and consumers wait, the longer their pauses: a few are soon back after their
    broker is, and thousands ask no more often than brokers can answer."""

    def __init__(self, settings: ClientSettings, rng: Random) -> None:
        self._settings = settings
        self._rng = rng
        self._waiting = 0

    def backoff(self) -> Backoff:
        """For one producer or consumer."""
        return Backoff(self._settings.backoff_seconds_min, self._settings.backoff_seconds_max, self._rng)

    def line_seconds(self) -> float:
        """How long all that wait now take for one attempt each, at the pace of the settings."""
        settings = self._settings
        return min(self._waiting / settings.attempts_per_second_max, settings.backoff_seconds_max)

    def longest_seconds(self) -> float:
        """The longest pause, with those that wait now."""
        return min(max(LONGEST_SECONDS_MIN, self.line_seconds()), self._settings.backoff_seconds_max)

    async def wait(self, backoff: Backoff) -> None:
        """One pause, before the next attempt. When thousands are lost together, each goes behind those before it."""
        pause_seconds = max(backoff.next_seconds(self.longest_seconds()), self.line_seconds())
        self._waiting += 1
        try:
            await asyncio.sleep(pause_seconds)
        finally:
            self._waiting -= 1
