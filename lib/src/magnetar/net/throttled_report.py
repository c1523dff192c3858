"""Lines of the log about what may happen a million times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

BURST_SECONDS: Final = 1.0
"""How long repetitions are gathered before the first line about them."""
TOLD_SECONDS: Final = 15.0
"""How far two lines about the same are apart."""

CallLater: TypeAlias = Callable[[float, Callable[[], None]], object]
"""Sets a timer: the function is called after so many seconds."""


class ThrottledReport:
    """Counts something and has it told: all that a first second brings, then what has come since every so often."""

    __slots__ = ("_call_later", "_count", "_tell", "_waits")

    def __init__(self, tell: Callable[[int], None], call_later: CallLater | None = None) -> None:
        """`tell` gets how often it happened since it was told last. None: by the loop that runs then."""
        self._tell = tell
        self._call_later = call_later
        self._count = 0
        self._waits = False

    def happened(self, count: int = 1) -> None:
        """Count something that happened, so many times."""
        self._count += count
        if not self._waits:
            self._wait(BURST_SECONDS)

    def _wait(self, seconds: float) -> None:
        self._waits = True
        call_later = self._call_later if self._call_later is not None else asyncio.get_running_loop().call_later
        call_later(seconds, self._over)

    def _over(self) -> None:
        self._waits = False
        if self._count:
            told, self._count = self._count, 0
            self._wait(TOLD_SECONDS)
            self._tell(told)


def connections(count: int) -> str:
    """So many of them, in words."""
    return "1 connection" if count == 1 else f"{count} connections"
