"""Turns of the event loop that took so long that everybody else had to wait: counted for `/metrics`.

`magnetar.process.turn_watch` finds them.
"""

from __future__ import annotations

from typing import Final

SLOW_SECONDS: Final = 0.1
"""A turn that takes longer is one that clients notice: twice what any work may take in one go."""


class SlowTurns:
    """The slow turns of one process."""

    def __init__(self) -> None:
        self.count: int = 0
        self.seconds: float = 0.0
        """Of all of them together."""
        self.longest_seconds: float = 0.0

    def happened(self, seconds: float) -> None:
        """Count a slow turn that took so long."""
        self.count += 1
        self.seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)

    def metrics(self) -> list[tuple[str, str, str, float]]:
        """(name, type, text, value) of each metric."""
        return [
            (
                "magnetar_event_loop_slow_turns_total",
                "counter",
                "Turns of the event loop that took over 100 ms; the log tells what ran.",
                self.count,
            ),
            (
                "magnetar_event_loop_slow_turns_seconds_total",
                "counter",
                "Seconds that the event loop spent in slow turns.",
                self.seconds,
            ),
            (
                "magnetar_event_loop_longest_turn_seconds",
                "gauge",
                "The longest of the slow turns since the process serves; 0: there was none.",
                self.longest_seconds,
            ),
        ]


SLOW_TURNS: Final = SlowTurns()
"""Those of this process."""
