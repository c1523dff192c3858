"""When transactions are over that nobody ends: one timer for all of a coordinator.

Pulsar: `TransactionTimeoutTrackerImpl`, whose clock ticks every 100 ms.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

from magnetar.core.clock import Clock

TICK_MS: Final = 100
"""One that expires earlier than this is aborted at once."""

WAIT_SECONDS_MAX: Final = 3_600.0
"""A client may ask for centuries; event loops do not wait that long."""

EXPIRED_PER_TURN: Final = 200
"""Of thousands that expire at once: a turn of the event loop for so many."""

CallLater = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


PURGED_FROM: Final = 1_024
"""Times that are kept before those of transactions that are over are looked for."""


class Timeouts:
    """The times of one coordinator's transactions."""

    def __init__(
        self, clock: Clock, call_later: CallLater, expired: Callable[[int], None], is_open: Callable[[int], bool]
    ) -> None:
        """`expired` is told the id of a transaction whose time has come, whatever has become of it."""
        self._clock = clock
        self._call_later = call_later
        self._expired = expired
        self._is_open = is_open
        self._heap: list[tuple[int, int]] = []
        """With those that are over, at most as many as are open: a client may give each a day and end it at once."""
        self._purge_at = PURGED_FROM
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._stopped = False

    def add(self, expires_ms: int, sequence: int) -> None:
        """Tell when it is so late."""
        if self._stopped:
            return
        if len(self._heap) >= self._purge_at:
            self._purge()
        now_ms = self._clock.now_ms()
        heapq.heappush(self._heap, (now_ms if expires_ms < now_ms + TICK_MS else expires_ms, sequence))
        if self._timer is None or self._heap[0][0] < self._timer_ms:
            self._schedule()

    def __len__(self) -> int:
        return len(self._heap)

    def _purge(self) -> None:
        self._heap = [one for one in self._heap if self._is_open(one[1])]
        heapq.heapify(self._heap)
        self._purge_at = max(PURGED_FROM, 2 * len(self._heap))

    def stop(self) -> None:
        """Tell nothing more."""
        self._stopped = True
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._heap:
            return
        self._timer_ms = self._heap[0][0]
        left_ms = max(0, self._timer_ms - self._clock.now_ms())
        self._timer = self._call_later(min(left_ms / 1000, WAIT_SECONDS_MAX), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        for _ in range(EXPIRED_PER_TURN):
            if not self._heap or self._heap[0][0] > now_ms:
                break
            self._expired(heapq.heappop(self._heap)[1])
            if self._stopped:
                return
        self._schedule()
