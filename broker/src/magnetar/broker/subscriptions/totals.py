"""What a subscription counts over all the consumers that it has had.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from magnetar.broker.dispatch.consumer import Consumer


class SubscriptionTotals:
    """What a subscription keeps of consumers that left, so that its counters never go back."""

    __slots__ = (
        "_bytes_out",
        "_expired_before",
        "_messages_out",
        "expired_per_second",
        "last_acknowledged_ms",
        "last_consumed_ms",
        "last_expired_ms",
        "last_flow_ms",
        "last_mark_delete_advanced_ms",
        "messages_expired",
    )

    def __init__(self) -> None:
        self.messages_expired = 0
        """Expired entries, which Pulsar counts as messages."""
        self.last_expired_ms = 0
        self.expired_per_second = 0.0
        self._expired_before = 0
        self.last_flow_ms = 0
        self.last_consumed_ms = 0
        self.last_acknowledged_ms = 0
        self.last_mark_delete_advanced_ms = 0
        self._messages_out = 0
        self._bytes_out = 0

    def expired(self, entries: int, now_ms: int) -> None:
        """Entries were too old to be kept."""
        self.messages_expired += entries
        self.last_expired_ms = now_ms

    def update_rates(self, seconds: float) -> None:
        """Turn counters into rates over the time since the last call."""
        if self.messages_expired != self._expired_before or self.expired_per_second:
            self.expired_per_second = (self.messages_expired - self._expired_before) / seconds
            self._expired_before = self.messages_expired

    def consumer_left(self, consumer: Consumer) -> None:
        """Take over its counters."""
        self._messages_out += consumer.messages_out
        self._bytes_out += consumer.bytes_out
        self.last_flow_ms = max(self.last_flow_ms, consumer.last_flow_ms)
        self.last_consumed_ms = max(self.last_consumed_ms, consumer.last_consumed_ms)
        self.last_acknowledged_ms = max(self.last_acknowledged_ms, consumer.last_acknowledged_ms)

    def messages_out(self, consumers: list[Consumer]) -> int:
        """Messages sent so far, to those connected and those that left."""
        return self._messages_out + sum([consumer.messages_out for consumer in consumers])

    def bytes_out(self, consumers: list[Consumer]) -> int:
        """Bytes sent so far, to those connected and those that left."""
        return self._bytes_out + sum([consumer.bytes_out for consumer in consumers])
