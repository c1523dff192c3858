"""What one replicator has sent."""

from __future__ import annotations


class Counters:
    """What one replicator has sent, in total and per second."""

    __slots__ = (
        "_before",
        "bytes_out",
        "drop_rate",
        "dropped",
        "expired",
        "messages_out",
        "rates",
        "watchdog_restarts",
    )

    def __init__(self) -> None:
        self.messages_out = 0
        self.bytes_out = 0
        self.expired = 0
        self.dropped = 0
        """What a replicator that keeps nothing could not send."""
        self.watchdog_restarts = 0
        self.rates = (0.0, 0.0, 0.0)
        """Messages, bytes and expired messages per second."""
        self.drop_rate = 0.0
        self._before = (0, 0, 0, 0)

    def update_rates(self, seconds: float) -> None:
        """Turn what was added since the last call into rates."""
        now = (self.messages_out, self.bytes_out, self.expired, self.dropped)
        was = self._before
        self.rates = ((now[0] - was[0]) / seconds, (now[1] - was[1]) / seconds, (now[2] - was[2]) / seconds)
        self.drop_rate = (now[3] - was[3]) / seconds
        self._before = now
