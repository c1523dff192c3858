"""What subscriptions wait for: `subscription.py` is compiled and therefore holds no coroutine (docs/adr/0022)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from magnetar.broker.states import SubscriptionState
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.dispatch.entry_batch import Dispatcher
    from magnetar.broker.subscriptions.cursor import SubscriptionCursor
    from magnetar.broker.subscriptions.disconnections import Disconnections
    from magnetar.broker.subscriptions.entry_reader import EntryReader
    from magnetar.broker.subscriptions.pump import Pump
    from magnetar.core.ids import Position


class ResettableSubscription(Protocol):
    """The subscription, as a reset needs it."""

    cursor: SubscriptionCursor
    state: SubscriptionState
    disconnections: Disconnections | None
    """Once it had to tell clients that they have to subscribe again."""

    def fence(self) -> None:
        """Let nobody in and send nothing."""
        ...

    def unfence(self) -> None:
        """Take `fence` back."""
        ...

    def disconnect_all(self) -> None:
        """Close every consumer, and have the clients subscribe again."""
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
        # Clients take it that a seek is over when their consumers are. That takes some turns.
        while subscription.disconnections is not None and not subscription.disconnections.over:  # noqa: ASYNC110
            await asyncio.sleep(0)
    finally:
        subscription.unfence()


class ReadingSubscription(Protocol):
    """The subscription, as waiting for its read needs it."""

    @property
    def delivering(self) -> tuple[Dispatcher | None, Pump | None]:
        """Who chooses and who sends."""
        ...


async def wait_until_read(subscription: ReadingSubscription) -> None:
    """Until a read is over that consumers which have left began, if there is one."""
    _, pump = subscription.delivering
    if pump is not None:
        await pump.reader.wait_until_idle()


class SkippedSubscription(Protocol):
    """The subscription, as skipping needs it."""

    cursor: SubscriptionCursor

    def acknowledged_by_broker(self) -> None:
        """The mark was moved on."""
        ...


async def skip(subscription: SkippedSubscription, count: int | None = None) -> None:
    """Acknowledge the next `count` entries that are not, or all of them, whoever holds them. Durable on return."""
    cursor = subscription.cursor
    try:
        await (cursor.clear_backlog() if count is None else cursor.skip_entries(count))
    finally:
        # The mark moves also when that cannot be stored.
        subscription.acknowledged_by_broker()
