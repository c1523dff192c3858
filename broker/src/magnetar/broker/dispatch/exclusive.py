"""Exclusive: the one consumer that is connected receives.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.dispatch.single_active import SingleActive
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer


class ExclusiveDispatcher(SingleActive):
    """At most one consumer."""

    def __init__(self) -> None:
        super().__init__()
        self.type = SubscriptionType.EXCLUSIVE

    def add(self, consumer: Consumer) -> None:
        """Let the first one in; raises PulsarError(CONSUMER_BUSY) for a second."""
        if self.consumers:
            raise PulsarError(ServerError.CONSUMER_BUSY, "Exclusive consumer is already connected")
        self.consumers[consumer] = 0
        self._active = consumer

    def remove(self, consumer: Consumer) -> None:
        """Nobody is connected afterwards."""
        del self.consumers[consumer]
        self._active = None
