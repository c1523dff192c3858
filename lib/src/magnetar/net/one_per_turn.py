"""Work that many begin together: one of them in each turn of the event loop.

A loop reads thousands of connections in one turn, and each request that is answered from memory would be answered in
the next one, all before anything else runs.
"""

from __future__ import annotations

import asyncio
from collections import deque


class OnePerTurn:
    """Whoever begins first goes on at once, the others in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False
        """Whether somebody has begun in this turn."""

    async def begin(self) -> None:
        """Wait for a turn in which nobody else begins."""
        if not self._taken:
            self._taken = True
            self._loop.call_soon(self._turn_over)
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        await turn

    def _turn_over(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # Else it was cancelled.
                turn.set_result(None)
                # What waits for it runs in the next turn, before this.
                self._loop.call_soon(self._turn_over)
                return
        self._taken = False
