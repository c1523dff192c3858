"""Entries that are to be delivered later, of one Shared or Key_Shared subscription.

Kept in memory only: after a restart or a change of owner the backlog is read again, which finds them again.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.core.clock import CallLater, Clock, TimerHandle
    from magnetar.core.ids import Position

DELAYED_ENTRIES_MAX: Final = 1_000_000
"""Entries that may wait for their time before the subscription reads no further; some 200 bytes of memory each."""

FAR_FUTURE_MS: Final = 1 << 63

DELAY_SECONDS_MAX: Final = 10.0
"""A timer is set no further ahead than this: entries come so much too late at most after a clock has jumped forward, or
was put right again. A look costs microseconds."""

AT_ONCE_MAX: Final = 10_000
"""Entries that are taken out, or looked at, in one turn of the event loop; a million may be due at the same time."""


class DelayedEntries:
    """Positions by time, and one timer for the first of them."""

    __slots__ = (
        "_call_later",
        "_clock",
        "_due",
        "_heap",
        "_hurried",
        "_positions",
        "_sifted",
        "_timer",
        "_timer_ms",
    )

    def __init__(self, clock: Clock, call_later: CallLater, due: Callable[[], None]) -> None:
        self._clock = clock
        self._call_later = call_later
        self._due = due
        self._heap: list[tuple[int, Position, int]] = []
        self._positions: dict[Position, None] = {}
        self._hurried = False
        """All that there is, is due."""
        self._sifted: list[tuple[int, Position, int]] = []
        """Taken from the heap, still to be compared with the mark."""
        self._timer: TimerHandle | None = None
        self._timer_ms = 0

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def full(self) -> bool:
        """Reading on has to wait."""
        return len(self._positions) >= DELAYED_ENTRIES_MAX

    def add(self, deliver_at_ms: int, position: Position, key_hash: int) -> None:
        """Keep an entry until its time; call `arm` when all of a batch are added."""
        if position not in self._positions:
            self._positions[position] = None
            heappush(self._heap, (deliver_at_ms, position, key_hash))

    def discard(self, position: Position) -> bool:
        """The entry is acknowledged (an operator skipped it). True when it was here."""
        if position not in self._positions:
            return False
        del self._positions[position]
        if len(self._heap) > 64 + 2 * len(self._positions):
            self._heap = [item for item in self._heap if item[1] in self._positions]
            heapify(self._heap)
        return True

    def take_due(self, now_ms: int) -> list[tuple[Position, int]]:
        """Take out what is to be delivered by now, with the key hashes; of very many those that come first, and `arm`
        sets the timer for the others at once."""
        taken: list[tuple[Position, int]] = []
        until_ms = FAR_FUTURE_MS if self._hurried else now_ms
        heap = self._heap
        for _ in range(min(AT_ONCE_MAX, len(heap))):
            if heap[0][0] > until_ms:
                break
            _, position, key_hash = heappop(heap)
            if position in self._positions:
                del self._positions[position]
                taken.append((position, key_hash))
        if not self._positions:
            self._hurried = False
        return taken

    def hurry(self) -> None:
        """All that is here now is due."""
        self._hurried = bool(self._positions)

    def begin_discarding(self) -> None:
        """A mark was moved on (entries expired, or were skipped): `discard_up_to` looks at all that there is."""
        self._sifted += self._heap
        self._heap = []

    def discard_up_to(self, mark_delete: Position) -> bool:
        """Forget what is acknowledged up to the mark, of a part of what there is to look at. True when it is to be
        called again, in another turn of the loop."""
        sifted = self._sifted
        for _ in range(min(AT_ONCE_MAX, len(sifted))):
            item = sifted.pop()
            if item[1] <= mark_delete:
                self._positions.pop(item[1], None)
            elif item[1] in self._positions:
                heappush(self._heap, item)
        self.arm(self._clock.now_ms())
        return bool(sifted)

    def arm(self, now_ms: int) -> None:
        """Have the timer stand at the first entry's time."""
        if not self._heap:
            self._disarm()
            return
        first_ms = now_ms if self._hurried else self._heap[0][0]
        if self._timer is not None:
            if self._timer_ms <= first_ms:
                return
            self._disarm()
        self._timer_ms = first_ms
        delay = min(max(0, first_ms - now_ms) / 1000, DELAY_SECONDS_MAX)
        self._timer = self._call_later(delay, self._fired)

    def clear(self) -> None:
        """Forget everything and set no timer."""
        self._heap = []
        self._sifted = []
        self._positions = {}
        self._hurried = False
        self._disarm()

    def let_go(self) -> None:
        """Whoever is told what is due is gone: it refers to this object, and would wait for the collector of cycles."""
        self.clear()
        self._due = _nothing

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fired(self) -> None:
        self._timer = None
        # A timer may fire a little before the clock reads its time; then it is set again.
        if self._heap and not self._hurried and self._heap[0][0] > self._clock.now_ms():
            self.arm(self._clock.now_ms())
        else:
            self._due()


def _nothing() -> None:
    """Nobody is left to be told."""
