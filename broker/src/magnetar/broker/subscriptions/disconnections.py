"""Consumers that the broker disconnects together: some of their clients are told in each turn of the event loop.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from magnetar.broker.states import ConsumerState

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer
    from magnetar.broker.subscriptions.totals import SubscriptionTotals
    from magnetar.core.clock import CallLater

TOLD_AT_ONCE: Final = 500
"""Consumers whose clients are told in one turn: some ten milliseconds. A subscription may have ten thousand."""


class Disconnections:
    """Those of one subscription. Who is not told yet has been closed all the same, and nothing of it is taken."""

    __slots__ = ("_call_later", "_gone", "_totals")

    def __init__(self, totals: SubscriptionTotals, call_later: CallLater | None) -> None:
        """Without `call_later` all are told in one turn."""
        self._totals = totals
        self._call_later: CallLater | None = call_later
        self._gone: deque[Consumer] = deque()

    @property
    def over(self) -> bool:
        """Whether all are told."""
        return not self._gone

    def close(self, consumers: list[Consumer]) -> None:
        """Close these, and have their clients subscribe again."""
        for consumer in consumers:
            consumer.become(ConsumerState.CLOSED)
            self._totals.consumer_left(consumer)
        under_way = bool(self._gone)
        self._gone.extend(consumers)
        if not under_way:
            self._go_on()

    def _go_on(self) -> None:
        gone = self._gone
        for _ in range(len(gone) if self._call_later is None else min(len(gone), TOLD_AT_ONCE)):
            consumer = gone[0]
            consumer.connection.consumer_disconnected(consumer)
            gone.popleft()
        if gone and self._call_later is not None:
            self._call_later(0, self._go_on)
