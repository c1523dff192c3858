"""How long a process that stops waits for a server that says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LOOK_SECONDS: Final = 0.1
"""How often a stopping process looks whether there was an answer."""


class SilenceLimit:
    """Ends when a server that is asked for something has said nothing for too long. Without a limit it never does.

    It is one patience for all requests: a stop of many steps waits once, and not once in each."""

    __slots__ = (
        "_answers",
        "_answers_seen",
        "_give_up",
        "_limit_seconds",
        "_look_due",
        "_silent_since",
        "ended",
        "requests",
    )

    def __init__(self, give_up: Callable[[], None]) -> None:
        """`give_up` is called on the loop when patience ends; those who still wait have to be told then."""
        self.ended = False
        self.requests = 0
        """Under way, those that wait for a connection included. Counted by whoever sends them."""
        self._give_up = give_up
        self._answers = 0
        self._answers_seen = 0
        self._limit_seconds = 0.0
        self._silent_since = 0.0
        self._look_due: asyncio.TimerHandle | None = None

    def answered(self) -> None:
        """The server has said something."""
        self._answers += 1

    def limit(self, seconds: float) -> None:
        """From now on silence is borne for so long. A second call sets the limit anew."""
        loop = asyncio.get_running_loop()
        self._limit_seconds = seconds
        self._silent_since = loop.time()
        if self._look_due is None and not self.ended:
            self._look_due = loop.call_later(LOOK_SECONDS, self._look, loop)

    def close(self) -> None:
        """Stop looking at the server."""
        if self._look_due is not None:
            self._look_due.cancel()
            self._look_due = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        if not self.requests or self._answers != self._answers_seen:
            self._answers_seen = self._answers
            self._silent_since = now
        if now - self._silent_since >= self._limit_seconds:
            self._look_due = None
            self.ended = True
            self._give_up()
            return
        self._look_due = loop.call_later(LOOK_SECONDS, self._look, loop)
