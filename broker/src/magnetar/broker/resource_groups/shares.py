"""How brokers share one limit: each computes its own part, from what all of them say that they use. Pure.

Among brokers of Magnetar the parts are max-min fair: who needs little gets that and some more, and those where somebody
waits share the rest evenly. Apache's brokers take parts in proportion to what they use (`ResourceQuotaCalculatorImpl`);
what they take by that is left to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

GROWTH: Final = 1.05
"""The factor by which a broker where nobody waits may exceed its use. When others want all of a limit, that much of it
is lost, so it is within the promised 5 %."""

IDLE_PART: Final = 0.01
"""Of the limit, for all brokers that use nothing together: their first messages need not wait for others' reports."""

FLOOR_PART: Final = 0.05
"""Of the limit, for all brokers together whatever Apache's brokers tell: who gets nothing could never tell of more."""


class Use(NamedTuple):
    """The use of one limit by one broker, per second."""

    used: float
    waits: bool = False
    """Somebody waits there because the part is used up."""
    proportional: bool = False
    """It takes a part in proportion to what it uses: one of Apache's."""


def share_of(limit: float, own: Use, others: Sequence[Use]) -> float:
    """The part of `limit` (messages or bytes per second, above 0) that a broker may use beside the others.

    What a broker claims to use beyond the whole limit does not count. The parts of brokers that go by the same reports
    add up to the limit."""
    count = len(others) + 1
    proportional = [min(use.used, limit) for use in others if use.proportional]
    left = limit - _taken_in_proportion(limit, own, others, proportional, count)
    demands = [_demand(limit, use, count) for use in others if not use.proportional]
    part = _max_min_part(left, _demand(limit, own, count), demands)
    return max(part, limit * FLOOR_PART / count)


def _taken_in_proportion(
    limit: float, own: Use, others: Sequence[Use], proportional: Sequence[float], count: int
) -> float:
    if not proportional:
        return 0.0
    total = min(own.used, limit) + sum([min(use.used, limit) for use in others])
    if total <= 0:
        return limit * len(proportional) / count
    return limit * sum(proportional) / total


def _demand(limit: float, use: Use, count: int) -> float:
    """The part that a broker gets if there is enough; a broker with waiters wants the whole limit."""
    return limit if use.waits else min(limit, use.used * GROWTH + limit * IDLE_PART / count)


def _max_min_part(limit: float, own: float, others: Sequence[float]) -> float:
    """Own part when small demands are met first and the rest is shared evenly, what nobody asks for included."""
    left = limit
    count = len(others) + 1
    for demand in sorted([own, *others]):
        even = left / count
        if demand >= even:
            # Nobody of those that are left gets what it asks for: neither does this broker, if it asks for as much.
            return min(own, even)
        left -= demand
        count -= 1
    return own + left / (len(others) + 1)
