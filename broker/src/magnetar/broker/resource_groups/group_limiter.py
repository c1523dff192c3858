"""The limiter of one group on one broker: what passes is counted, and those that wait go on in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.policies.limiter import NO_LIMIT, Pausable, RateLimiter, TokenBucket
from magnetar.broker.policies.model import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.core.clock import CallLater, Clock

BURST_SECONDS: Final = 0.25
"""How long tokens are saved up: over ten seconds that is 2.5 % of the limit, within the promised 5 %."""

BURST_TOKENS_MIN: Final = 1.5
"""One can be taken, whatever the rate, and what comes in until somebody takes it is not lost."""

MEAN_WEIGHT: Final = 0.2
"""Of the last batch in the mean size of batches."""


class GroupLimiter(RateLimiter):
    """As a `RateLimiter`, but for parts of a limit that need not be whole numbers and change every second.

    Connections that are held go on one after the other, as tokens allow: all at once, each would bring what one read
    holds, and a hundred of them the debt of seconds."""

    __slots__ = ("_lacked", "_mean_bytes", "_mean_messages", "bytes_total", "messages_total")

    def __init__(self, clock: Clock, call_later: CallLater, reason: str) -> None:
        self.messages_total = 0
        """Messages that have passed since the limiter was made."""
        self.bytes_total = 0
        self._mean_messages = 1.0
        self._mean_bytes = 1.0
        self._lacked = [False, False]
        super().__init__(UNLIMITED, clock, call_later, reason)

    def hold_to(self, messages: float, size_bytes: float) -> None:
        """So many messages and bytes per second may pass from now on; 0 or less: any number of them."""
        now = self._clock.monotonic_seconds()
        self._messages = _bucket(self._messages, messages, now)
        self._bytes = _bucket(self._bytes, size_bytes, now)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._tokens_back()

    def take(self, messages: int, size_bytes: int) -> bool:
        """So much passes. True when nothing more may pass now."""
        self.messages_total += messages
        self.bytes_total += size_bytes
        if messages:
            self._mean_messages += MEAN_WEIGHT * (messages - self._mean_messages)
            self._mean_bytes += MEAN_WEIGHT * (size_bytes - self._mean_bytes)
        return super().take(messages, size_bytes)

    def wait(self, waiter: Callable[[], None]) -> None:
        """Call once when something may pass again."""
        self._note_what_lacks()
        super().wait(waiter)

    def hold(self, connection: Pausable) -> None:
        """Read nothing from a connection until something may pass again."""
        self._note_what_lacks()
        super().hold(connection)

    def lacked(self) -> tuple[bool, bool]:
        """Whether anybody has waited for messages, and for bytes, since this was asked last."""
        if self._held or self._waiting:
            self._note_what_lacks()
        messages, size_bytes = self._lacked
        self._lacked = [False, False]
        return messages, size_bytes

    def _note_what_lacks(self) -> None:
        for index, bucket in enumerate((self._messages, self._bytes)):
            if bucket is not None and bucket.tokens < 1:
                self._lacked[index] = True

    def _let_go_of_held(self) -> None:
        turns = self._turns()
        while self._held and turns > 0:
            connection = next(iter(self._held))
            del self._held[connection]
            turns -= 1
            connection.resume_reading(self.reason)

    def _turns(self) -> int:
        """How many connections may bring a batch each, going by what batches were like."""
        messages, size_bytes = self.room()
        if min(messages, size_bytes) < 1:
            return 0
        if min(messages, size_bytes) >= NO_LIMIT:
            return len(self._held)
        return max(1, int(min(messages / max(self._mean_messages, 1.0), size_bytes / max(self._mean_bytes, 1.0))))


def _bucket(before: TokenBucket | None, per_second: float, now_seconds: float) -> TokenBucket | None:
    if per_second <= 0:
        return None
    count = max(BURST_TOKENS_MIN, per_second * BURST_SECONDS)
    if before is None:
        return TokenBucket(count, count / per_second, now_seconds)
    before.take(0, now_seconds)
    before.set_rate(count, count / per_second)
    return before
