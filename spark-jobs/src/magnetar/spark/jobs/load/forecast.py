"""What the coming week will be like, from hourly means of the past: statistics that can be followed by hand. Pure.

* Two weeks of history or more: each hour of the week is as it was, plus a linear growth. The growth is the median
  difference between the same hours of different weeks, which no weekly pattern disturbs, and counts only as far as it
  stands out from its own uncertainty.
* Two days or more: each hour of the day is as it was. Weeks cannot be told from growth then, so there is none.
* Less: the highest hour, all week long.

Intervals come from errors that were made: how far each hour was from what the others would have said of it. Where there
are three weeks, the last one is foretold from those before, and what that shows to be too narrow is widened."""

from __future__ import annotations

import enum
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.spark.jobs.load.model import HOURS_PER_DAY, HOURS_PER_WEEK

HOURS_FOR_DAYS_MIN: Final = 2 * HOURS_PER_DAY
HOURS_FOR_WEEKS_MIN: Final = 2 * HOURS_PER_WEEK
HOURS_FOR_BACKTEST_MIN: Final = 3 * HOURS_PER_WEEK
PRESENT_SHARE_MIN: Final = 0.8
"""How much of such a span must really be known."""

LOCAL_ERRORS_MIN: Final = 20
"""Fewer errors around an hour of the day tell nothing of it; then those of all hours count."""

WIDENING_MAX: Final = 5.0
"""A last week that was unlike all before says that, and not how wide an interval should be."""


class Method(enum.Enum):
    """How a peak was foretold."""

    WEEKS = "hour of the week and growth"
    DAYS = "hour of the day"
    PEAK = "highest hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """How the last week would have been foretold."""

    error_percent: float
    """The mean error, in percent of the mean load."""
    covered_percent: float
    """How many of its hours were inside of the interval, before that was widened."""
    widened: float
    """By which factor the intervals were widened after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One quantity for each hour from `first_hour` on."""

    first_hour: int
    expected: list[float]
    low: list[float]
    high: list[float]
    method: Method
    growth_per_week: float
    """In the quantity's own unit."""
    backtest: Backtest | None
    note: str
    """What it stands on, for people."""

    def peak(self) -> tuple[int, float]:
        """The hour with the highest upper bound, and that."""
        highest = max(range(len(self.high)), key=lambda index: self.high[index])
        return self.first_hour + highest, self.high[highest]


def forecast(
    history: Mapping[int, float],
    *,
    hours: int = HOURS_PER_WEEK,
    share: float = 0.9,
    growth_percent: float | None = None,
) -> Forecast:
    """The hours after the last one that is known. `share`: how many hours should end up between `low` and `high`.
    `growth_percent`: by how much it grows in a week, for who knows better. `history` must not be empty."""
    first, last = min(history), max(history)
    span = last - first + 1
    present = len(history) / span
    known = f"{len(history)} hour{'s' if len(history) > 1 else ''} of history"
    if len(history) < HOURS_FOR_DAYS_MIN:
        return _peak(history, hours, f"only {known}: the highest hour is taken for all of the week, without growth")
    weekly = span >= HOURS_FOR_WEEKS_MIN and present >= PRESENT_SHARE_MIN
    fit = _Fit(history, HOURS_PER_WEEK if weekly else HOURS_PER_DAY, share)
    backtest = None
    if weekly and span >= HOURS_FOR_BACKTEST_MIN:
        backtest = _backtest(history, share)
        fit.widened = backtest.widened
    if growth_percent is not None:
        fit.slope = 0.0
    expected, low, high = fit.hours(last + 1, hours)
    if growth_percent is not None:
        factors = [(1 + growth_percent / 100) ** ((index + 1) / HOURS_PER_WEEK) for index in range(hours)]
        expected, low, high = ([a * b for a, b in zip(one, factors, strict=True)] for one in (expected, low, high))
    note = f"{known}: each hour of the {'week as it was, plus growth' if weekly else 'day as it was, without growth'}"
    if not weekly:
        note += "; two weeks are needed to tell weekdays and growth apart"
    if backtest is not None:
        note += (
            f"; the last week would have been foretold with an error of {backtest.error_percent:.0f} %, "
            f"{backtest.covered_percent:.0f} % of its hours inside of the interval"
        )
    if growth_percent is not None:
        note += f"; grows by {growth_percent:g} % a week, as was said"
    growth = _mean(expected) * growth_percent / 100 if growth_percent is not None else fit.slope * HOURS_PER_WEEK
    return Forecast(
        first_hour=last + 1,
        expected=expected,
        low=low,
        high=high,
        method=Method.WEEKS if weekly else Method.DAYS,
        growth_per_week=growth,
        backtest=backtest,
        note=note,
    )


class PeakForecast:
    """How high the peak of a bundle will be in the coming week, from the peaks of its days."""

    __slots__ = ("expected", "growth_per_week", "high", "now")

    def __init__(self, days: Mapping[int, float], share: float) -> None:
        """`days` must not be empty. Under two weeks the highest peak is all that can be said."""
        last = max(days)
        lately = {day: value for day, value in days.items() if day > last - 7}
        self.now = max(lately.values())
        self.growth_per_week, spread = 0.0, 0.0
        if last - min(days) + 1 >= 14:
            self.growth_per_week, spread = _growth(days, 7)
            errors = [abs(one - self.growth_per_week) for one in _differences(days, 7)]
            spread = max(spread, quantile(errors, share))
        self.expected = max(0.0, self.now + self.growth_per_week)
        self.high = max(self.now, self.expected + spread)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many of them do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))] if ordered else 0.0


class _Fit:
    """What the past says of each hour of a period."""

    def __init__(self, history: Mapping[int, float], period: int, share: float) -> None:
        self.period = period
        self.last = max(history)
        self.middle = (min(history) + self.last) / 2
        self.slope, self.slope_spread = 0.0, 0.0
        self.widened = 1.0
        if period == HOURS_PER_WEEK:
            growth, spread = _growth(history, period)
            self.slope, self.slope_spread = growth / period, spread / period
        bins: defaultdict[int, list[float]] = defaultdict(list)
        for hour, value in history.items():
            bins[hour % period].append(value - self.slope * (hour - self.last))
        self.season = _filled({place: _mean(values) for place, values in bins.items()}, period)
        self.spread = _spread(bins, share)

    def hours(self, first: int, count: int) -> tuple[list[float], list[float], list[float]]:
        """Expected, low, high."""
        expected: list[float] = []
        low: list[float] = []
        high: list[float] = []
        for hour in range(first, first + count):
            value = max(0.0, self.season[hour % self.period] + self.slope * (hour - self.last))
            half = self.widened * math.hypot(
                self.spread[hour % HOURS_PER_DAY], self.slope_spread * (hour - self.middle)
            )
            expected.append(value)
            low.append(max(0.0, value - half))
            high.append(value + half)
        return expected, low, high


def _backtest(history: Mapping[int, float], share: float) -> Backtest:
    last = max(history)
    before = {hour: value for hour, value in history.items() if hour <= last - HOURS_PER_WEEK}
    expected, _, high = _Fit(before, HOURS_PER_WEEK, share).hours(last - HOURS_PER_WEEK + 1, HOURS_PER_WEEK)
    ratios: list[float] = []
    errors = actual = 0.0
    for index, (value, upper) in enumerate(zip(expected, high, strict=True)):
        seen = history.get(last - HOURS_PER_WEEK + 1 + index)
        if seen is None:
            continue
        error = abs(seen - value)
        errors += error
        actual += seen
        ratios.append(error / (upper - value) if upper > value else (0.0 if error == 0 else WIDENING_MAX))
    covered = sum(ratio <= 1 for ratio in ratios)
    return Backtest(
        error_percent=100 * errors / actual if actual else 0.0,
        covered_percent=100 * covered / len(ratios) if ratios else 0.0,
        widened=min(WIDENING_MAX, max(1.0, quantile(ratios, share))),
    )


def _differences(history: Mapping[int, float], period: int) -> list[float]:
    """By how much it grew in a period, from each pair of the same places in two periods."""
    found: list[float] = []
    reach = (max(history) - min(history)) // period
    for place, value in history.items():
        for periods in range(1, reach + 1):
            later = history.get(place + periods * period)
            if later is not None:
                found.append((later - value) / periods)
    return found


def _growth(history: Mapping[int, float], period: int) -> tuple[float, float]:
    """Growth in a period and its uncertainty: the median, drawn towards 0 by how little it stands out."""
    differences = _differences(history, period)
    if not differences:
        return 0.0, 0.0
    median = statistics.median(differences)
    # Neighbouring hours rise and fall together: they are far from being so many witnesses.
    witnesses = max(1.0, len(differences) / HOURS_PER_DAY)
    spread = 1.5 * statistics.median(abs(one - median) for one in differences) / math.sqrt(witnesses)
    from_week_to_week = _steps(history, period)
    if len(from_week_to_week) > 1:
        spread = max(spread, statistics.stdev(from_week_to_week) / math.sqrt(len(from_week_to_week)))
    else:
        # One step may be growth, or happen once.
        spread = max(spread, abs(median) / 2)
    if median == 0:
        return 0.0, spread
    return median * max(0.0, 1 - (spread / median) ** 2), spread


def _steps(history: Mapping[int, float], period: int) -> list[float]:
    """By how much each period differs from the one before it."""
    first = min(history)
    steps: defaultdict[int, list[float]] = defaultdict(list)
    for place, value in history.items():
        later = history.get(place + period)
        if later is not None:
            steps[(place - first) // period].append(later - value)
    return [statistics.median(values) for _, values in sorted(steps.items())]


def _spread(bins: Mapping[int, Sequence[float]], share: float) -> list[float]:
    """By hour of the day: how far off it would be for so many hours, each foretold from the others of its place."""
    errors: defaultdict[int, list[float]] = defaultdict(list)
    for place, values in bins.items():
        if len(values) > 1:
            mean = _mean(values)
            left_out = len(values) / (len(values) - 1)
            errors[place % HOURS_PER_DAY].extend(abs(value - mean) * left_out for value in values)
    everywhere = quantile([error for some in errors.values() for error in some], share)
    found: list[float] = []
    for hour in range(HOURS_PER_DAY):
        near = [error for beside in (-1, 0, 1) for error in errors.get((hour + beside) % HOURS_PER_DAY, ())]
        found.append(quantile(near, share) if len(near) >= LOCAL_ERRORS_MIN else everywhere)
    return found


def _filled(season: Mapping[int, float], period: int) -> list[float]:
    """With the same hour of other days where a place was never seen, then with the mean."""
    by_hour: defaultdict[int, list[float]] = defaultdict(list)
    for place, value in season.items():
        by_hour[place % HOURS_PER_DAY].append(value)
    mean = _mean(list(season.values()))

    def of(place: int) -> float:
        same_hour = by_hour.get(place % HOURS_PER_DAY)
        return season.get(place, _mean(same_hour) if same_hour else mean)

    return [of(place) for place in range(period)]


def _peak(history: Mapping[int, float], hours: int, note: str) -> Forecast:
    highest, lowest = max(history.values()), min(history.values())
    return Forecast(
        first_hour=max(history) + 1,
        expected=[highest] * hours,
        low=[lowest] * hours,
        high=[highest] * hours,
        method=Method.PEAK,
        growth_per_week=0.0,
        backtest=None,
        note=note,
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
