"""What becomes of one call over the network: how long it takes, whether it arrives, whether its answer does."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from magnetar.sim.loop import SimulatedLoop

T = TypeVar("T")

ANSWER_SECONDS_MAX: Final = 10.0
"""A client waits no longer for an answer."""

READS_SHARE: Final = 0.2
"""A pass reads much and writes little: one that reads in vain finds out nothing about the operator."""

pass_began: Final[contextvars.ContextVar[float]] = contextvars.ContextVar("pass_began", default=0.0)
"""When the pass began on whose behalf a call is made."""


@dataclass(slots=True, kw_only=True)
class Rates:
    """How likely what is, for each call."""

    fails: float = 0.0
    loses_answer: float = 0.0
    slow: float = 0.0
    stale: float = 0.0
    kills: float = 0.0
    stale_seconds_max: float = 0.0
    slow_seconds_max: float = 0.0
    """How late a call arrives, or its answer: also when who has made it has long given up, or is no more."""


class Network:
    """Between the operator and everybody else."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, rates: Rates) -> None:
        self._loop = loop
        self._rng = rng
        self._outside = contextvars.copy_context()
        self._held: dict[str, float] = {}
        self.rates = rates
        self.calls = 0

    def heal(self) -> None:
        """From now on everything arrives."""
        self.rates = Rates()
        self._held.clear()

    def hold_back(self, what: str, seconds: float) -> None:
        """The next call of this name arrives so late."""
        self._held[what] = seconds

    def age_seconds(self) -> float:
        """How old what a call reads is."""
        if self._rng.random() < self.rates.stale:
            return self._rng.uniform(0.0, self.rates.stale_seconds_max)
        return 0.0

    async def call(
        self,
        work: Callable[[], T],
        unavailable: Callable[[str], Exception],
        kill: Callable[[], None],
        *,
        what: str = "",
        patience_seconds: float = ANSWER_SECONDS_MAX,
        share: float = 1.0,
    ) -> T:
        """Have `work` done elsewhere, and give what it gives or raises. What has been sent is carried out even if the
        caller is no more, or has given up. `what`: its name. `share`: how likely something goes wrong with it, of what
        usually is."""
        self.calls += 1
        rng, rates = self._rng, self.rates
        answer: asyncio.Future[T] = self._loop.create_future()
        fails, loses = rng.random() < rates.fails * share, rng.random() < rates.loses_answer * share
        there = rng.uniform(0.001, 0.02)
        back = rng.uniform(0.001, 0.02)
        if rng.random() < rates.slow * share:
            there += rng.uniform(0.5, rates.slow_seconds_max) * (rng.random() < 0.5)
            back += rng.uniform(0.5, ANSWER_SECONDS_MAX)
        there += self._held.pop(what, 0.0)
        if rng.random() < rates.kills:
            self._loop.call_later(rng.uniform(0.0, there + back), kill, context=self._outside)
        self._loop.call_later(
            there, self._carry_out, work, unavailable, answer, fails, loses, back, context=self._outside
        )
        if there + back >= patience_seconds:
            self._loop.call_later(patience_seconds, _give_up, answer, unavailable, context=self._outside)
        return await answer

    def _carry_out(
        self,
        work: Callable[[], T],
        unavailable: Callable[[str], Exception],
        answer: asyncio.Future[T],
        fails: bool,
        loses: bool,
        back: float,
    ) -> None:
        result: T | None = None
        error: Exception | None = None
        if fails:
            error = unavailable("the connection was refused")
        else:
            try:
                result = work()
            except Exception as raised:  # noqa: BLE001  (it is the caller's)
                error = raised
        if loses:
            error = unavailable("the connection was reset")
        self._loop.call_later(back, _finish, answer, result, error, context=self._outside)


def _finish(answer: asyncio.Future[T], result: T, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)


def _give_up(answer: asyncio.Future[T], unavailable: Callable[[str], Exception]) -> None:
    if not answer.done():
        answer.set_exception(unavailable("no answer in time"))
