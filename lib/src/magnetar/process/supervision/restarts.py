"""When a process that has ended is started again. Pure."""

from __future__ import annotations

from typing import Final

FIRST_PAUSE_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 30.0
"""Longer than a broker's session lasts, so that the metadata store has forgotten the process by then."""
CALM_SECONDS: Final = 60.0
"""A process that has served for so long begins with the first pause again."""


class Restarts:
    """Of one process. The pause doubles with each end that comes soon after a start."""

    def __init__(self) -> None:
        self.count = 0
        """How often the process was started again."""
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def ended(self, served_seconds: float) -> float:
        """The process has ended, after it served for so long (0: never). How many seconds to wait before the start."""
        if served_seconds >= CALM_SECONDS:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        self.count += 1
        pause_seconds = self._pause_seconds
        self._pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)
        return pause_seconds
