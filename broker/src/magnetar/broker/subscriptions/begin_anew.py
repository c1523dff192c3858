"""A subscription begins at another position, and so does its log of what transactions have acknowledged."""

from __future__ import annotations

from typing import Protocol

from magnetar.broker.server_errors import server_error_of
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.wire.pulsar.errors import PulsarError


class PendingAcks(Protocol):
    """What transactions have acknowledged on the subscriptions of a topic."""

    async def begin_anew(self, subscription: Subscription, /) -> None:
        """Forget it for one."""
        ...


async def begin_at(
    subscription: Subscription, pending_acks: PendingAcks | None, position: Position, remaining: list[int] | None
) -> None:
    """Make reading start at a position; `remaining` is the ack set of the batch there. PulsarError when it cannot."""
    try:
        if pending_acks is not None and subscription.durable:
            # Or a later replay would acknowledge again what is read again from here on.
            await pending_acks.begin_anew(subscription)
        await subscription.reset(position)
    except MagnetarError as error:
        if isinstance(error, PulsarError):
            raise
        raise PulsarError(server_error_of(error), f"Error when resetting subscription: {error}") from error
    if remaining:
        subscription.cursor.acknowledge_batch_indexes(position, remaining, 64 * len(remaining))  # Bits of words.
