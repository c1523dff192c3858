"""A queue that is left one by one at a pace, or quickly while there is no need for one.

Groups take turns, each in its own order. So where addresses are groups, a thousand clients of one address are one turn
to all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

GO_ON_IN_TURN_MAX: Final = 16
"""In one turn of the loop while there is no pace: each may read a quarter of a megabyte."""


class PacedQueue:
    """Whoever waits goes on in its group's order; each key waits once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pace_seconds: Callable[[], float]) -> None:
        """`pace_seconds` is asked again each time; 0: they go on as fast as turns come."""
        self._loop = loop
        self._pace_seconds = pace_seconds
        self._group_of: dict[object, str] = {}
        """Of each key that waits."""
        self._groups: dict[str, dict[object, Callable[[], None]]] = {}
        """The next one to have a turn first; none is empty."""
        self._going_on = False

    def __contains__(self, key: object) -> bool:
        return key in self._group_of

    def __len__(self) -> int:
        return len(self._group_of)

    def waiting_beside(self, key: object) -> int:
        """How many of this key's group wait, itself included; 0 for one that does not wait."""
        group = self._group_of.get(key)
        return 0 if group is None else len(self._groups[group])

    def wait(self, key: object, group: str, go_on: Callable[[], None]) -> None:
        """`go_on` is called when it is this key's turn. Instead of the one before, if this key waits already."""
        group = self._group_of.setdefault(key, group)
        self._groups.setdefault(group, {})[key] = go_on
        if not self._going_on:
            self._going_on = True
            self._go_on_later(self._pace_seconds())

    def forget(self, key: object) -> None:
        """This key waits no more, if it did."""
        group = self._group_of.pop(key, None)
        if group is not None:
            waiting = self._groups[group]
            del waiting[key]
            if not waiting:
                del self._groups[group]

    def _take(self) -> Callable[[], None]:
        """The next one in line, which waits no more; its group goes to the end of the line."""
        group = next(iter(self._groups))
        waiting = self._groups.pop(group)
        key = next(iter(waiting))
        go_on = waiting.pop(key)
        del self._group_of[key]
        if waiting:
            self._groups[group] = waiting
        return go_on

    def _go_on_later(self, pace_seconds: float) -> None:
        if pace_seconds:
            self._loop.call_later(pace_seconds, self._go_on)
        else:
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        pace_seconds = self._pace_seconds()
        try:
            # Who waits again meanwhile is not in this turn's number.
            for _ in range(min(len(self._group_of), 1 if pace_seconds else GO_ON_IN_TURN_MAX)):
                if self._group_of:
                    self._take()()
        finally:
            # Also when one of them fails: the others would wait for ever.
            self._going_on = bool(self._group_of)
            if self._going_on:
                self._go_on_later(pace_seconds)
