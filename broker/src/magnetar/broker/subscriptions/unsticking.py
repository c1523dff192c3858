"""The look at subscriptions that could send something and do not (`unblockStuckSubscriptionEnabled`). There should be
none: whoever has something for one wakes it. Whoever is not sure has them looked at, and reads in the log if there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.subscriptions.entry_reader import ReadState

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription


def unstick(subscription: Subscription) -> bool:
    """Have a subscription send what can be sent. True when that was anything, although nothing had happened to it."""
    _, pump = subscription.delivering
    if pump is None or not pump.idle:
        return False
    before = _entries_out(subscription)
    pump.run()
    return pump.reader.state is not ReadState.IDLE or _entries_out(subscription) != before


def _entries_out(subscription: Subscription) -> int:
    return sum(consumer.entries_out for consumer in subscription.consumers)
