"""What consumers hold no more, because they left or it is acknowledged: some of it in each turn of the event loop.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.subscriptions.dispatch_turns import SLICE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from magnetar.broker.dispatch.consumer import Consumer
    from magnetar.broker.dispatch.entry_batch import Dispatcher
    from magnetar.broker.dispatch.pending_acknowledgements import PendingAcknowledgements
    from magnetar.broker.subscriptions.cursor import SubscriptionCursor
    from magnetar.broker.subscriptions.dispatch_turns import DispatchTurns
    from magnetar.broker.subscriptions.pump import Pump
    from magnetar.core.clock import CallLater
    from magnetar.core.ids import Position

LET_GO_ENTRIES_MAX: Final = 5_000
"""What consumers hold of entries that somebody else has acknowledged, given up in one turn of the event loop."""

GIVEN_BACK_AT_ONCE: Final = 250
"""Entries that are given back between two looks at whether the turn is over: below a millisecond."""


class LeftBehind:
    """What those consumers held that left while others stay: it is put among what waits to be sent, in the turns that
    all dispatch shares. Until that is done nothing is sent, for of each key it comes first."""

    __slots__ = ("_cursor", "_dispatcher", "_held", "_paused", "_pump", "_turns")

    def __init__(self, pump: Pump, dispatcher: Dispatcher, cursor: SubscriptionCursor, turns: DispatchTurns) -> None:
        self._pump = pump
        self._dispatcher = dispatcher
        self._cursor = cursor
        self._turns = turns
        self._held: deque[tuple[Iterator[Position], PendingAcknowledgements]] = deque()
        """Of each consumer, with what is left of it."""
        self._paused: bool = False

    def take(self, consumer: Consumer) -> None:
        """A consumer has left: give back what it held. It holds nothing any more, by all counts."""
        held = self._pump.acknowledger.leave(consumer)
        if len(held):
            self._held.append((iter(held.messages), held))
            if not self._paused:
                self._give_back()

    def turn(self) -> None:
        """DispatchTurns: more of it may be given back."""
        dispatcher = self._dispatcher
        if isinstance(dispatcher, KeySharedDispatcher):
            # Else all of it would find its places in one turn, at the end.
            dispatcher.settle()
        self._give_back()

    def forget(self) -> None:
        """Nobody stays: whoever comes next begins at the first unacknowledged entry."""
        self._held.clear()
        self._turns.leave(self)

    def _give_back(self) -> None:
        turns, spent_bytes = self._turns, 0
        while self._held and turns.left_bytes > 0 and (spent_bytes < SLICE_BYTES or not turns.waited_for):
            items = self._next()
            spent_bytes += turns.put_back(len(items))
            self._dispatcher.redeliver(items)
        if self._held:
            self._paused = self._pump.stopped = True
            turns.wait(self)
        elif self._paused:
            self._paused = self._pump.stopped = False
            turns.changed(self._pump)

    def _next(self) -> list[tuple[Position, int]]:
        """Some of it, each entry with its key hash (0 = not known)."""
        positions, held = self._held[0]
        some = list(islice(positions, GIVEN_BACK_AT_ONCE))
        if len(some) < GIVEN_BACK_AT_ONCE:
            self._held.popleft()
        self._pump.acknowledger.given_back(some)
        cursor, hashes = self._cursor, held.hashes
        # Others may have acknowledged it since.
        return [(one, hashes.get(one, 0)) for one in some if not cursor.is_acknowledged(one)]


class Delivering(Protocol):
    """The subscription, as letting go needs it."""

    @property
    def delivering(self) -> tuple[Dispatcher | None, Pump | None]:
        """Who chooses and who sends, while anybody is connected."""
        ...


def let_go_of_acknowledged(subscription: Delivering, call_later: CallLater) -> None:
    """Forget what consumers hold up to the mark: a part of it in each turn of the loop. What still waits is not sent:
    whoever reads it again leaves out what is acknowledged."""
    dispatcher, pump = subscription.delivering
    if pump is None:
        return
    more = False
    if dispatcher is not None and dispatcher.type.acknowledges_individually:
        more = pump.acknowledger.take_acknowledged(list(dispatcher.consumers), dispatcher, LET_GO_ENTRIES_MAX)
        pump.unblock()
    pump.wake()
    if more:
        call_later(0, partial(let_go_of_acknowledged, subscription, call_later))
