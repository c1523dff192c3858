"""What subscriptions wait for: `subscription.py` is compiled and therefore holds no coroutine (docs/adr/0022)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from magnetar.broker.states import SubscriptionState
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.cursor import SubscriptionCursor
    from magnetar.broker.subscriptions.entry_reader import EntryReader
    from magnetar.core.ids import Position


class ResettableSubscription(Protocol):
    """The subscription, as a reset needs it."""

    cursor: SubscriptionCursor
    state: SubscriptionState

    def fence(self) -> None:
        """Let nobody in and send nothing."""
        ...

    def unfence(self) -> None:
        """Take `fence` back."""
        ...

    def disconnect_all(self) -> None:
        """Tell every client to subscribe again."""
        ...


async def reset_subscription(
    subscription: ResettableSubscription, reader: EntryReader | None, position: Position
) -> None:
    """Fence a subscription, disconnect its consumers, and store a position from which reading goes on.

    PulsarError(CONSUMER_BUSY) while another reset runs; MagnetarError when the position cannot be stored."""
    if subscription.state is not SubscriptionState.OPEN:
        raise PulsarError(ServerError.CONSUMER_BUSY, "Failed to fence subscription")
    subscription.fence()
    try:
        subscription.disconnect_all()
        if reader is not None:
            await reader.wait_until_idle()
        await subscription.cursor.reset(position)
    finally:
        subscription.unfence()


async def wait_until_idle(reader: EntryReader | None) -> None:
    """Until a read in the background is over, if there is one."""
    if reader is not None:
        await reader.wait_until_idle()


async def followed_by(work: Awaitable[None], then: Callable[[], None]) -> None:
    """Do `then` when the work is over, well or not."""
    try:
        await work
    finally:
        then()
