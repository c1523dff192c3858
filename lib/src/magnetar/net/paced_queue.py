"""A queue that is left one by one at a pace, or quickly while there is no need for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

GO_ON_IN_TURN_MAX: Final = 16
"""In one turn of the loop while there is no pace: each may read a quarter of a megabyte."""


class PacedQueue:
    """Whoever waits goes on in order; each key waits once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pace_seconds: Callable[[], float]) -> None:
        """`pace_seconds` is asked again each time; 0: they go on as fast as turns come."""
        self._loop = loop
        self._pace_seconds = pace_seconds
        self._waiting: dict[object, Callable[[], None]] = {}
        self._going_on = False

    def __contains__(self, key: object) -> bool:
        return key in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, key: object, go_on: Callable[[], None]) -> None:
        """`go_on` is called when it is this key's turn. Instead of the one before, if this key waits already."""
        self._waiting[key] = go_on
        if not self._going_on:
            self._going_on = True
            self._go_on_later(self._pace_seconds())

    def forget(self, key: object) -> None:
        """This key waits no more, if it did."""
        self._waiting.pop(key, None)

    def _go_on_later(self, pace_seconds: float) -> None:
        if pace_seconds:
            self._loop.call_later(pace_seconds, self._go_on)
        else:
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        pace_seconds = self._pace_seconds()
        try:
            for key in list(islice(self._waiting, 1 if pace_seconds else GO_ON_IN_TURN_MAX)):
                go_on = self._waiting.pop(key, None)
                if go_on is not None:
                    go_on()
        finally:
            # Also when one of them fails: the others would wait for ever.
            self._going_on = bool(self._waiting)
            if self._going_on:
                self._go_on_later(pace_seconds)
