"""Which transactions may have ended without this broker knowing it: before a topic came here, or long ago. Pure.

Coordinators count upwards. Whatever has a larger number than the newest one after the topic came here began since: its
end is told to this owner, and to none before. Of the others nothing is known but by the coordinator.
"""

from __future__ import annotations

from magnetar.broker.subscriptions.visibility import TransactionBits


class EarlierTransactions:
    """As one topic, or one subscription, sees it."""

    __slots__ = ("_up_to",)

    def __init__(self) -> None:
        self._up_to: dict[int, int] = {}
        """By coordinator, of those that there are: up to here it has to be asked."""

    def includes(self, transaction: TransactionBits) -> bool:
        """Whether it may have ended, unless something else is known of it."""
        number = self._up_to.get(transaction[0])
        return number is None or transaction[1] <= number

    def began_since(self, coordinator: int, newest: int) -> None:
        """After the topic came here this was the coordinator's newest number: larger ones began since."""
        self._up_to[coordinator] = max(newest, self._up_to.get(coordinator, newest))

    def forget(self, transaction: TransactionBits) -> None:
        """It has ended, which is not remembered any more."""
        coordinator, number = transaction
        known = self._up_to.get(coordinator)
        if known is not None and known < number:
            self._up_to[coordinator] = number
