"""How many bookies a pool should have, by how full their disks are and will be, and by how many take writes.

More, one at a time, when every bookie is fuller than `diskUsagePercentMax` (while one is not, what is written goes
there), or when all disks together will be within `forecastHours`; and as many as are lacking when fewer than
`writableMin` take writes. One less, if `diskUsagePercentMin` allows that at all, when the rest would stay below it with
the share of the one that goes, by the most that was used in the time that is remembered, and nothing is amiss in the
cluster. After each change the pool is left alone for `stabilizationSeconds`.

It does not flap: whoever is to go must leave the rest `MARGIN_PERCENT` below what would call for more, now and within
the forecast.

The forecast is a line through the samples of one day by least squares; half-hourly ones keep the status small, and a
whole day has both its busy and its quiet hours. It counts only where it foresees more growth than the samples scatter
around it, for garbage collection makes usage go up and down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.operator.plan.conditions import READY, condition, seconds, timestamp
from magnetar.operator.plan.facts import BookieFacts
from magnetar.operator.resources.bookie import BookieAutoscaling, BookieSpec, BookieStatus, UsageSample

SAMPLE_SECONDS: Final = 1800.0
SAMPLES_MAX: Final = 48
"""Samples of one day; about 4 kB of the status."""

SAMPLES_MIN: Final = 6
"""Three hours: fewer tell nothing of the hours to come, nor that little is used."""

SCATTER_MIN: Final = 2.0
"""How many standard deviations of the samples around the line the foreseen growth must be."""

MARGIN_PERCENT: Final = 10
"""How far below the maximum the rest must stay where one goes."""

SILENT_SECONDS: Final = 300.0
"""How long bookies that do not answer are waited for, at least, before others are added in their place: longer than a
restart, an upgrade's step or a node that starts again takes."""

AHEAD_MAX: Final = 2.0
"""How many times as far as it was watched a pool is foreseen on its first day."""

HOUR_SECONDS: Final = 3600.0
DAY_HOURS: Final = (SAMPLES_MAX - 2) * SAMPLE_SECONDS / HOUR_SECONDS
"""A day but for what a late sample or two take off it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieAdvice:
    """What autoscaling makes of a look at a pool."""

    replicas: int
    reason: str
    """In a sentence with numbers, also where nothing changes."""
    usage_history: list[UsageSample]
    scaled_at: str | None
    """These two are the status's."""
    needs_count: bool = False
    """One could go, if somebody counted the ledgers that lack replicas and found none."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """What a decision goes by."""

    limits: BookieAutoscaling
    ensemble_size: int
    current: int
    bookies: Sequence[BookieFacts]
    """That answer and do not leave."""
    draining: int
    elsewhere: int
    """Writable bookies of other pools."""
    history: Sequence[UsageSample]
    not_ready_seconds: float
    """How long the pool has not been ready; 0: it is, or a rollout is under way."""
    now_seconds: float

    @property
    def silent(self) -> int:
        return max(0, self.current - len(self.bookies))

    @property
    def seen_hours(self) -> float:
        if not self.history:
            return 0.0
        return (seconds(self.history[-1].time) - seconds(self.history[0].time)) / HOUR_SECONDS

    @property
    def used_bytes(self) -> int:
        return sum(bookie.used_bytes for bookie in self.bookies)

    @property
    def total_bytes(self) -> int:
        return sum(bookie.total_bytes for bookie in self.bookies)


@dataclass(frozen=True, slots=True)
class _Wish:
    replicas: int
    reason: str


def wanted_bookies(
    spec: BookieSpec,
    ensemble_size: int,
    current: int,
    bookies: Sequence[BookieFacts],
    writable_elsewhere: int,
    status: BookieStatus,
    under_replicated: int | None,
    now_seconds: float,
) -> BookieAdvice:
    """How many there should be.

    `current`: how many are wanted now. `bookies`: those of the pool that answer. `status`: as it was written last.
    `under_replicated`: how many ledgers lack replicas; None: not counted. No sample is lost if what this returns is
    not written: the next look takes it."""
    limits = spec.autoscaling
    if limits is None:
        return BookieAdvice(replicas=current, reason="", usage_history=[], scaled_at=status.scaled_at)
    staying = [bookie for bookie in bookies if bookie.drain == "None"]
    history = _sampled(status.usage_history, staying, current, len(bookies) - len(staying), now_seconds)
    pool = _Pool(
        limits=limits,
        ensemble_size=ensemble_size,
        current=current,
        bookies=staying,
        draining=len(bookies) - len(staying),
        elsewhere=writable_elsewhere,
        history=history,
        not_ready_seconds=_not_ready_seconds(status, now_seconds),
        now_seconds=now_seconds,
    )
    bounded = min(max(current, limits.min_replicas), limits.max_replicas)
    needs_count = False
    if bounded != current:
        bound = "minReplicas" if bounded > current else "maxReplicas"
        wish = _Wish(bounded, f"autoscaling.{bound} is {bounded}; there were {current}")
    else:
        wish = _more(pool) or _less(pool) or _Wish(current, _as_it_is(pool))
        rest_seconds = _rest_seconds(limits, status, now_seconds)
        if wish.replicas != current and rest_seconds > 0:
            again = f"the pool has just changed, it is looked at again in {math.ceil(rest_seconds)} s"
            wish = _Wish(current, f"{wish.reason}; {again}")
        elif wish.replicas < current and under_replicated != 0:
            needs_count = under_replicated is None
            left = "have not been counted" if under_replicated is None else f"are {under_replicated}"
            wish = _Wish(current, f"{wish.reason}; ledgers that lack replicas {left}: none goes before there are none")
    return BookieAdvice(
        replicas=wish.replicas,
        reason=wish.reason,
        usage_history=history,
        scaled_at=status.scaled_at if wish.replicas == current else timestamp(now_seconds),
        needs_count=needs_count,
    )


def _more(pool: _Pool) -> _Wish | None:
    """More bookies, if anything calls for them."""
    limits, current = pool.limits, pool.current
    found = _for_writers(pool) or _for_space(pool)
    if found is None or found.replicas == current:
        return found
    wanted = min(found.replicas, limits.max_replicas)
    if wanted > current:
        return _Wish(wanted, found.reason)
    return _Wish(current, f"{found.reason}, but autoscaling.maxReplicas is {limits.max_replicas}")


def _for_writers(pool: _Pool) -> _Wish | None:
    wanted = pool.limits.writable_min if pool.limits.writable_min is not None else pool.ensemble_size
    writable = sum(bookie.writable for bookie in pool.bookies) + pool.elsewhere
    lacking = wanted - writable
    if lacking <= 0:
        return None
    what = f"{writable} bookies take writes, fewer than {wanted}"
    if pool.silent == 0:
        return _Wish(pool.current + lacking, what)
    patience = max(SILENT_SECONDS, pool.limits.stabilization_seconds)
    # With more of them silent than are lacking, some were added for this and have not come up: more would not either.
    if pool.silent <= lacking and pool.not_ready_seconds >= patience:
        minutes = pool.not_ready_seconds / 60
        return _Wish(pool.current + lacking, f"{what}, and {pool.silent} have not answered for {minutes:.0f} minutes")
    return _Wish(pool.current, f"{what}; {pool.silent} do not answer, which they are given time for")


def _for_space(pool: _Pool) -> _Wish | None:
    limits = pool.limits
    if not pool.bookies or pool.total_bytes <= 0 or pool.draining:
        return None
    # A new one that has not come up yet has its disks empty; one that is gone for long has none.
    if pool.silent > 1 or (pool.silent == 1 and pool.not_ready_seconds < SILENT_SECONDS):
        return None
    emptiest = min(bookie.disk_usage_percent for bookie in pool.bookies)
    if emptiest > limits.disk_usage_percent_max:
        reason = f"the disks of all {len(pool.bookies)} bookies are {emptiest} % full or more, above"
        return _Wish(pool.current + 1, f"{reason} {limits.disk_usage_percent_max} %")
    foreseen = _foreseen(pool)
    if foreseen is None:
        return None
    foreseen_bytes, hours = foreseen
    percent = 100 * foreseen_bytes / pool.total_bytes
    if percent <= limits.disk_usage_percent_max:
        return None
    now = 100 * pool.used_bytes / pool.total_bytes
    reason = (
        f"the disks are {now:.0f} % full, and will be {percent:.0f} % in {hours:.0f} hours, above "
        f"{limits.disk_usage_percent_max} %"
    )
    return _Wish(pool.current + 1, reason)


def _less(pool: _Pool) -> _Wish | None:
    """One bookie less, if the rest would have room enough."""
    limits, current = pool.limits, pool.current
    limit = min(limits.disk_usage_percent_min, limits.disk_usage_percent_max - MARGIN_PERCENT)
    floor = max(1, limits.min_replicas, pool.ensemble_size - pool.elsewhere)
    writable_min = max(pool.ensemble_size, limits.writable_min or 0)
    if limit <= 0 or current <= floor or pool.draining or len(pool.bookies) != current:
        return None
    if not all(bookie.writable for bookie in pool.bookies) or current - 1 + pool.elsewhere < writable_min:
        return None
    if len(pool.history) < SAMPLES_MIN or min(bookie.total_bytes for bookie in pool.bookies) <= 0:
        return None
    rest = _percent_without_one(pool)
    if rest >= limit:
        return None
    foreseen_bytes, _ = _foreseen(pool) or (0.0, 0.0)
    rest_bytes = pool.total_bytes - max(bookie.total_bytes for bookie in pool.bookies)
    if 100 * foreseen_bytes / rest_bytes > limits.disk_usage_percent_max - MARGIN_PERCENT:
        return None
    return _Wish(current - 1, f"with {current - 1} bookies the disks would be {rest:.0f} % full, below {limit} %")


def _percent_without_one(pool: _Pool) -> float:
    """How full the fullest of the rest would be, whoever goes: with as much as was used at most in the time that is
    remembered, and the largest share."""
    bookies = pool.bookies
    used = pool.used_bytes
    peak = max(1.0, max(sample.used_bytes for sample in pool.history) / used) if used else 1.0
    fullest = max(bookie.disk_usage_percent for bookie in bookies)
    share = max(bookie.used_bytes for bookie in bookies) / (len(bookies) - 1)
    smallest = min(bookie.total_bytes for bookie in bookies)
    return peak * (fullest + 100 * share / smallest)


def _as_it_is(pool: _Pool) -> str:
    if pool.total_bytes <= 0:
        return "no bookie tells of its disks"
    percents = [bookie.disk_usage_percent for bookie in pool.bookies]
    return f"the disks of {len(percents)} bookies are {min(percents)} to {max(percents)} % full"


def _rest_seconds(limits: BookieAutoscaling, status: BookieStatus, now_seconds: float) -> float:
    """How long the pool is left alone still."""
    if status.scaled_at is None:
        return 0.0
    return seconds(status.scaled_at) + limits.stabilization_seconds - now_seconds


def _not_ready_seconds(status: BookieStatus, now_seconds: float) -> float:
    ready = condition(status.conditions, READY)
    if ready is None or ready.status != "False" or status.updated_replicas < status.replicas:
        return 0.0
    return max(0.0, now_seconds - seconds(ready.last_transition_time))


def _sampled(
    history: Sequence[UsageSample], bookies: Sequence[BookieFacts], current: int, draining: int, now_seconds: float
) -> list[UsageSample]:
    """The history of a day with one more sample, if it is time for one and all bookies can be seen. While one drains
    what it has is counted twice."""
    oldest = now_seconds - SAMPLES_MAX * SAMPLE_SECONDS
    kept = [sample for sample in history if oldest < seconds(sample.time) <= now_seconds][-SAMPLES_MAX:]
    due = not kept or now_seconds - seconds(kept[-1].time) >= SAMPLE_SECONDS
    total_bytes = sum(bookie.total_bytes for bookie in bookies)
    if not due or draining or len(bookies) != current or total_bytes <= 0:
        return kept
    used_bytes = sum(bookie.used_bytes for bookie in bookies)
    sample = UsageSample(time=timestamp(now_seconds), used_bytes=used_bytes, total_bytes=total_bytes)
    return [*kept, sample][-SAMPLES_MAX:]


def _foreseen(pool: _Pool) -> tuple[float, float] | None:
    """(bytes, hours): what will be used in `forecastHours`, at least what is used now; None: nobody can tell, or it
    does not grow. Of a pool that is new, whose disks fill until the first ledgers go, less far ahead."""
    limits, history = pool.limits, pool.history
    if limits.forecast_hours <= 0 or len(history) < SAMPLES_MIN:
        return None
    times = [seconds(sample.time) - pool.now_seconds for sample in history]
    used = [float(sample.used_bytes) for sample in history]
    slope, level, scatter = _line(times, used)
    hours: float = limits.forecast_hours
    if pool.seen_hours < DAY_HOURS:
        hours = min(hours, AHEAD_MAX * pool.seen_hours)
    growth = slope * hours * HOUR_SECONDS
    if growth <= 0 or growth < SCATTER_MIN * scatter:
        return None
    return max(level + growth, float(pool.used_bytes)), hours


def _line(at: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """(slope, value at 0, standard deviation around it) of the line with the least squares."""
    count = len(at)
    at_mean, mean = sum(at) / count, sum(values) / count
    spread = sum((x - at_mean) ** 2 for x in at)
    if spread <= 0:
        return 0.0, mean, 0.0
    slope = sum((x - at_mean) * (y - mean) for x, y in zip(at, values, strict=True)) / spread
    level = mean - slope * at_mean
    squares = sum((y - level - slope * x) ** 2 for x, y in zip(at, values, strict=True))
    return slope, level, math.sqrt(squares / count)
