"""Turns of the event loop, shared by what subscriptions send: so much of it in each, and others come in between.

A publish wakes all subscriptions of its topic at once, and a second in which delayed entries fall due wakes as many.
Each has a slice of the turn. Who has more to send goes behind those that wait for theirs, in the next turn if this one
is used up. So a turn is as long with ten thousand subscriptions as with one.

Consumers come and go by the thousand, too. Each change has a subscription look at all of its consumers and at what
waits for them: it does so once in a turn.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from magnetar.core.limits import KIB, MIB

if TYPE_CHECKING:
    from magnetar.core.clock import CallLater

TURN_BYTES: Final = 8 * MIB
"""What subscriptions send in one turn, in bytes and in what counts as bytes: some 15 ms of work. It is also all that
connections hold before they can tell that their peers take no more."""

SLICE_BYTES: Final = 1 * MIB
"""What one subscription sends before those that wait have their slices; if nobody does, it goes on."""

PASS_BYTES: Final = 16 * KIB
"""What one pass through a subscription counts for (a look at the cursor, the choice of consumers, a write): it costs as
much as sending so many bytes."""

ENTRY_BYTES: Final = 4 * KIB
"""What each entry counts for beside its size."""

DUE_ENTRY_BYTES: Final = 3 * KIB
"""What each entry counts for that is put among those that wait to be sent: a delayed one whose time has come, or one
that a consumer held when it left."""

LOOK_BYTES: Final = 256
"""What each delayed entry counts for that is put in the order of time, or forgotten: half a microsecond."""

CONSUMER_BYTES: Final = 32
"""What each consumer counts for that is looked at for room: a twentieth of a microsecond."""

FEW_CONSUMERS: Final = 100
"""To look at so many counts for nothing beside a pass."""


class Dispatching(Protocol):
    """A subscription's dispatch, as its turn sees it."""

    def turn(self) -> None:
        """Send on; it may wait for its turn again."""
        ...


class Woken(Protocol):
    """A subscription's dispatch, as changes of its consumers see it."""

    def wake(self) -> None:
        """Consumers may have got room, if it has any."""
        ...


class DispatchTurns:
    """Shared by all subscriptions of a broker."""

    __slots__ = ("_begun", "_call_later", "_changed", "_changed_again", "_waiting", "left_bytes")

    def __init__(self, call_later: CallLater) -> None:
        self.left_bytes: int = TURN_BYTES
        """What may still be sent in this turn; below 0 after a pass that sent more than what was left."""
        self._begun: bool = False
        self._call_later = call_later
        self._waiting: dict[Dispatching, None] = {}
        self._changed: dict[Woken, None] = {}
        """Those that were woken in this turn, because their consumers changed."""
        self._changed_again: dict[Woken, None] = {}

    @property
    def waited_for(self) -> bool:
        """Whether subscriptions wait for their turn."""
        return bool(self._waiting)

    def take(self, size_bytes: int, entries: int) -> int:
        """A pass sent so many entries, put them aside, or has them read. Returns what it counts for, in bytes."""
        return self._take(PASS_BYTES + size_bytes + entries * ENTRY_BYTES)

    def take_due(self, entries: int, looks: int) -> int:
        """So many delayed entries are due, and so many looks were needed. Returns what this counts for, in bytes."""
        return self._take(PASS_BYTES + entries * DUE_ENTRY_BYTES + looks * LOOK_BYTES)

    def put_back(self, entries: int) -> int:
        """So many entries that were sent wait to be sent again. Returns what this counts for, in bytes."""
        return self._take(entries * DUE_ENTRY_BYTES)

    def look(self, consumers: int) -> int:
        """All its consumers are looked at, as after each FLOW. Returns what this counts for, in bytes."""
        return self._take(consumers * CONSUMER_BYTES) if consumers > FEW_CONSUMERS else 0

    def wait(self, pump: Dispatching) -> None:
        """Its slice or the turn is used up: `turn` is called, behind those that wait already."""
        self._waiting[pump] = None
        if not self._begun:
            self._begin()

    def leave(self, pump: Dispatching) -> None:
        """It has nothing to send any more."""
        self._waiting.pop(pump, None)

    def changed(self, pump: Woken) -> None:
        """A consumer came to it or left it: it is woken, now or, if it was in this turn, in the next one."""
        if pump in self._changed:
            self._changed_again[pump] = None
            return
        if not self._changed:
            self._call_later(0, self._wake_again)
        self._changed[pump] = None
        pump.wake()

    def freed(self, pump: Woken, *, at_once: bool) -> None:
        """It may send what it could not: now, or where a look at all of its consumers comes first, as `changed`."""
        if at_once:
            pump.wake()
        else:
            self.changed(pump)

    def _wake_again(self) -> None:
        self._changed.clear()
        # Should one fail, the others are woken in the next turn: it has asked for that before.
        for pump in list(self._changed_again):
            self._changed_again.pop(pump, None)
            self.changed(pump)

    def _take(self, cost_bytes: int) -> int:
        self.left_bytes -= cost_bytes
        if not self._begun:
            self._begin()
        return cost_bytes

    def _begin(self) -> None:
        self._begun = True
        self._call_later(0, self._next_turn)

    def _next_turn(self) -> None:
        self._begun = False
        self.left_bytes = TURN_BYTES
        waiting = self._waiting
        try:
            while waiting and self.left_bytes > 0:
                pump = next(iter(waiting))
                del waiting[pump]
                pump.turn()
        finally:
            # Also when the dispatch of one fails: the others would wait for ever.
            if waiting and not self._begun:
                self._begin()
