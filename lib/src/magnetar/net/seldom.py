"""Lines of the log about what may happen a million times."""

from __future__ import annotations

from typing import Final

TOLD_SECONDS: Final = 60.0
"""Between two lines about the same."""


class Seldom:
    """Counts something and says when it is time to tell of it."""

    __slots__ = ("_count", "_told_seconds")

    def __init__(self) -> None:
        self._count = 0
        self._told_seconds: float | None = None

    def happened(self, now_seconds: float, count: int = 1) -> int:
        """It happened, so many times. 0: say nothing now; else how often it happened since it was told last."""
        self._count += count
        if self._told_seconds is not None and now_seconds - self._told_seconds < TOLD_SECONDS:
            return 0
        self._told_seconds = now_seconds
        told, self._count = self._count, 0
        return told
