"""Rates per second, worked out from counters now and then, so that counting costs the hot path an addition only.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations


class CounterRate:
    """How fast a counter grows."""

    __slots__ = ("_before", "per_second")

    def __init__(self) -> None:
        self._before = 0
        self.per_second = 0.0

    def update(self, counter: int, seconds: float) -> None:
        """The counter's growth over the time since the last call."""
        self.per_second = (counter - self._before) / seconds if seconds > 0 else 0.0
        self._before = counter


class ConsumerRates:
    """The rates of one consumer."""

    __slots__ = ("bytes_out", "chunks_out", "messages_acknowledged", "messages_out", "messages_redelivered")

    def __init__(self) -> None:
        self.messages_out = CounterRate()
        self.bytes_out = CounterRate()
        self.messages_redelivered = CounterRate()
        self.messages_acknowledged = CounterRate()
        self.chunks_out = CounterRate()
