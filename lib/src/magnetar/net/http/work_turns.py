"""Work of many connections, so much in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class WorkTurns:
    """Whoever comes has its turn at once while little was done in this one, then one after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work_max: int) -> None:
        self._loop = loop
        self._work_max = work_max
        self._waiting: deque[Callable[[], None]] = deque()
        self._done = 0
        """Work of this turn."""
        self._counting = False
        """Whether the turn's end is waited for."""

    @property
    def left(self) -> bool:
        """Whether more may be done in this turn."""
        return self._done < self._work_max

    def call(self, callback: Callable[[], None]) -> None:
        """Now or in a turn to come; it tells of its work by `worked`, and stops where nothing is `left`."""
        if not self.left or self._waiting:
            self._waiting.append(callback)
            return
        callback()

    def worked(self, work: int) -> None:
        """So much was done in this turn."""
        self._done += work
        if not self._counting:
            self._counting = True
            self._loop.call_soon(self._turn_over)

    def _turn_over(self) -> None:
        self._done = 0
        self._counting = False
        try:
            while self._waiting and self.left:
                self._waiting.popleft()()
        finally:
            # Also where one of them failed.
            if self._waiting and not self._counting:
                self._counting = True
                self._loop.call_soon(self._turn_over)
