"""Token buckets, and limiters of messages and bytes that somebody waits at.

A bucket is arithmetic done once per batch. It may be overdrawn: a batch that was taken is served, and the next one
waits for as long as the debt takes to be paid (Pulsar: `AsyncTokenBucket`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from magnetar.broker.policies.model import Rate
    from magnetar.core.clock import CallLater, Clock, TimerHandle

NO_LIMIT: Final = 1 << 62

PAUSE_SECONDS_MIN: Final = 0.01
"""Tokens for less than this are not waited for: a timer per token would cost more than it smooths
(`topicPublisherThrottlingTickTimeMillis`)."""

PAUSE_SECONDS_MAX: Final = 60.0
"""A timer is set no further ahead, so that a rate that is raised takes effect."""


class TokenBucket:
    """So many tokens per second, of which those of one period can be saved up."""

    __slots__ = ("_capacity", "_per_second", "_refilled_seconds", "tokens")

    def __init__(self, count: float, period_seconds: float, now_seconds: float) -> None:
        self._capacity = float(count)
        self._per_second = count / period_seconds
        self._refilled_seconds = now_seconds
        self.tokens = float(count)

    def take(self, count: float, now_seconds: float) -> float:
        """Take tokens, also more than there are; returns what is left then."""
        tokens = self.tokens + (now_seconds - self._refilled_seconds) * self._per_second
        if tokens > self._capacity:
            tokens = self._capacity
        self._refilled_seconds = now_seconds
        self.tokens = tokens - count
        return self.tokens

    def set_rate(self, count: float, period_seconds: float) -> None:
        """Another rate; debts stay."""
        self._capacity = float(count)
        self._per_second = count / period_seconds
        if self.tokens > count:
            self.tokens = float(count)

    @property
    def seconds_until_token(self) -> float:
        """How long until one token is there, as of the last `take`."""
        return 0.0 if self.tokens >= 1 else (1 - self.tokens) / self._per_second


class Pausable(Protocol):
    """A connection whose reading a rate limiter may stop."""

    def pause_reading(self, reason: str) -> None:
        """Stop until every reason is gone."""
        ...

    def resume_reading(self, reason: str) -> None:
        """Take one reason back."""
        ...


class RateLimiter:
    """Messages and bytes per period, and those who wait for more, in their order."""

    __slots__ = (
        "_bytes",
        "_call_later",
        "_clock",
        "_held",
        "_messages",
        "_rate",
        "_timer",
        "_waiting",
        "reason",
        "times",
    )

    def __init__(self, rate: Rate, clock: Clock, call_later: CallLater, reason: str) -> None:
        """`reason` is what connections are held for; no other limiter may use the same."""
        self.reason = reason
        self.times = 0
        """How often it made somebody wait."""
        self._rate = rate
        self._clock = clock
        self._call_later = call_later
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self._waiting: dict[Callable[[], None], None] = {}
        self._held: dict[Pausable, None] = {}
        self._timer: TimerHandle | None = None
        self.set_rate(rate)

    @property
    def rate(self) -> Rate:
        """What it was told to hold to."""
        return self._rate

    def set_rate(self, rate: Rate, extra_messages: float = 0.0, extra_bytes: float = 0.0) -> None:
        """Hold to another rate from now on; what comes on top is per second."""
        self._rate = rate
        now = self._clock.monotonic_seconds()
        period = rate.period_seconds
        self._messages = _bucket(self._messages, rate.messages, extra_messages, period, now)
        self._bytes = _bucket(self._bytes, rate.size_bytes, extra_bytes, period, now)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._tokens_back()

    def take(self, messages: int, size_bytes: int) -> bool:
        """So much passes. True when nothing more may pass now."""
        now = self._clock.monotonic_seconds()
        empty = self._messages is not None and self._messages.take(messages, now) < 1
        return (self._bytes is not None and self._bytes.take(size_bytes, now) < 1) or empty

    def room(self) -> tuple[int, int]:
        """Messages and bytes that may pass now; 0 or less when one has to wait."""
        now = self._clock.monotonic_seconds()
        messages = NO_LIMIT if self._messages is None else int(self._messages.take(0, now))
        return messages, NO_LIMIT if self._bytes is None else int(self._bytes.take(0, now))

    def wait(self, waiter: Callable[[], None]) -> None:
        """Call once when something may pass again; the same waiter only once."""
        self.times += 1
        self._waiting[waiter] = None
        self._arm()

    def forget(self, waiter: Callable[[], None]) -> None:
        """It waits no more."""
        self._waiting.pop(waiter, None)

    def hold(self, connection: Pausable) -> None:
        """Read nothing from a connection until something may pass again."""
        if connection not in self._held:
            self.times += 1
            self._held[connection] = None
            connection.pause_reading(self.reason)
        self._arm()

    def release(self) -> None:
        """The limit is lifted: nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._messages = self._bytes = None
        self._tokens_back()

    def _arm(self) -> None:
        if self._timer is None:
            pauses = [bucket.seconds_until_token for bucket in (self._messages, self._bytes) if bucket is not None]
            pause = min(max(PAUSE_SECONDS_MIN, *pauses, 0.0), PAUSE_SECONDS_MAX)
            self._timer = self._call_later(pause, self._fired)

    def _fired(self) -> None:
        self._timer = None
        self._tokens_back()

    def _let_go_of_held(self) -> None:
        """Something may pass again, perhaps: then connections are read again."""
        if min(self.room()) >= 1:
            held, self._held = self._held, {}
            for connection in held:
                connection.resume_reading(self.reason)

    def _tokens_back(self) -> None:
        if self._held:
            self._let_go_of_held()
        # Each takes what it needs before the next one's turn; one that finds too little waits again, at the end.
        turns = len(self._waiting)
        while turns and min(self.room()) >= 1:
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            turns -= 1
            waiter()
        if self._waiting or self._held:
            self._arm()


def allowance(limiters: tuple[RateLimiter, ...], waiter: Callable[[], None]) -> tuple[int, int]:
    """Messages and bytes that all of the limiters let pass now. Without any, `waiter` is called when there are some."""
    messages, size_bytes = NO_LIMIT, NO_LIMIT
    for limiter in limiters:
        its_messages, its_bytes = limiter.room()
        if its_messages <= 0 or its_bytes <= 0:
            limiter.wait(waiter)
            return 0, 0
        messages = min(messages, its_messages)
        size_bytes = min(size_bytes, its_bytes)
    return messages, size_bytes


def _bucket(before: TokenBucket | None, count: int, extra: float, period: float, now: float) -> TokenBucket | None:
    if count <= 0:
        return None
    total = count + extra * period
    if before is None:
        return TokenBucket(total, period, now)
    before.take(0, now)
    before.set_rate(total, period)
    return before


NO_LIMITERS: Final[tuple[RateLimiter, ...]] = ()
"""The limiters of those who are not limited: one tuple for all of them."""


def limiter_for(
    rate: Rate, before: RateLimiter | None, clock: Clock, call_later: CallLater, reason: str
) -> RateLimiter | None:
    """The limiter that holds to a rate, None when there is nothing to hold to; `before` goes on if it can."""
    if not rate.limited:
        if before is not None:
            before.release()
        return None
    if before is None:
        return RateLimiter(rate, clock, call_later, reason)
    if before.rate != rate:
        before.set_rate(rate)
    return before
