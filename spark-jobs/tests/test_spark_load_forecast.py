"""Forecasts of the coming week: season, growth, intervals that hold what they say, and little history."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.spark.jobs.load.forecast import Method, PeakForecast, forecast, quantile
from magnetar.spark.jobs.load.model import HOURS_PER_WEEK

FIRST = 480_000


def season(hour: int) -> float:
    weekend = (hour // 24) % 7 in (1, 2)
    return 100 + 40 * math.cos(2 * math.pi * (hour % 24) / 24) - (30 if weekend else 0)


def lived(hours: int, growth: float = 0.0, noise: float = 0.0, seed: int = 1) -> dict[int, float]:
    random = Random(seed)
    return {
        FIRST + hour: season(FIRST + hour) + growth * hour / HOURS_PER_WEEK + random.gauss(0, noise)
        for hour in range(hours)
    }


def test_a_week_repeats() -> None:
    found = forecast(lived(4 * HOURS_PER_WEEK))
    assert found.method is Method.WEEKS
    assert found.first_hour == FIRST + 4 * HOURS_PER_WEEK
    for index, value in enumerate(found.expected):
        assert value == pytest.approx(season(found.first_hour + index), abs=1e-6)
    assert found.growth_per_week == 0
    assert found.backtest is not None
    assert found.backtest.error_percent < 1e-6


def test_growth_goes_on() -> None:
    found = forecast(lived(4 * HOURS_PER_WEEK, growth=10, noise=2))
    assert found.growth_per_week == pytest.approx(10, rel=0.15)
    middle = found.expected[84]
    assert middle == pytest.approx(season(found.first_hour + 84) + 45, rel=0.05)


def test_growth_that_is_noise_is_none() -> None:
    growths = [forecast(lived(3 * HOURS_PER_WEEK, noise=20, seed=seed)).growth_per_week for seed in range(10)]
    assert max(map(abs, growths)) < 3


def test_one_step_between_two_weeks_is_growth_only_in_part() -> None:
    history = lived(2 * HOURS_PER_WEEK, growth=10, noise=1)
    found = forecast(history)
    assert found.method is Method.WEEKS
    assert found.backtest is None
    assert 5 < found.growth_per_week < 10
    # Both are within the interval: that it grows on, and that it stays.
    assert found.high[100] > season(found.first_hour + 100) + 20


@pytest.mark.parametrize("share", [0.8, 0.95])
def test_intervals_hold_what_they_say(share: float) -> None:
    inside = count = 0
    for seed in range(6):
        history = lived(5 * HOURS_PER_WEEK, growth=5, noise=8, seed=seed)
        week = {hour: value for hour, value in history.items() if hour >= FIRST + 4 * HOURS_PER_WEEK}
        before = {hour: value for hour, value in history.items() if hour not in week}
        found = forecast(before, share=share)
        for index in range(HOURS_PER_WEEK):
            inside += found.low[index] <= week[found.first_hour + index] <= found.high[index]
            count += 1
    assert share - 0.06 < inside / count < share + 0.12


def test_a_last_week_unlike_the_others_widens_the_interval() -> None:
    calm = forecast(lived(4 * HOURS_PER_WEEK, noise=3))
    history = lived(4 * HOURS_PER_WEEK, noise=3)
    wild = forecast(
        {hour: value + (30 if hour >= FIRST + 3 * HOURS_PER_WEEK else 0) for hour, value in history.items()}
    )
    assert wild.backtest is not None
    assert wild.backtest.widened > 2
    assert wild.high[0] - wild.low[0] > 2 * (calm.high[0] - calm.low[0])


def test_under_two_weeks_days_repeat_without_growth() -> None:
    found = forecast(lived(9 * 24, growth=50))
    assert found.method is Method.DAYS
    assert found.growth_per_week == 0
    assert "two weeks are needed" in found.note
    assert found.expected[:24] == found.expected[24:48]


def test_under_two_days_the_peak_is_taken_and_said() -> None:
    history = lived(47)
    found = forecast(history)
    assert found.method is Method.PEAK
    assert set(found.high) == set(found.expected) == {max(history.values())}
    assert found.note.startswith("only 47 hours of history")
    assert forecast({FIRST: 3.0}).expected == [3.0] * HOURS_PER_WEEK


def test_holes_are_filled_from_the_same_hours() -> None:
    history = {hour: value for hour, value in lived(4 * HOURS_PER_WEEK).items() if hour % 10}
    found = forecast(history)
    assert found.method is Method.WEEKS
    for index, value in enumerate(found.expected):
        assert value == pytest.approx(season(found.first_hour + index), abs=12)
    mostly_missing = {hour: value for hour, value in lived(4 * HOURS_PER_WEEK).items() if hour % 3 == 0}
    assert forecast(mostly_missing).method is Method.DAYS


def test_somebody_may_know_better_how_it_grows() -> None:
    plain, told = (forecast(lived(3 * HOURS_PER_WEEK), growth_percent=growth) for growth in (None, 20.0))
    assert told.expected[-1] == pytest.approx(1.2 * plain.expected[-1], rel=1e-3)
    assert "as was said" in told.note


@given(st.dictionaries(st.integers(0, 1_500), st.floats(0, 1e9), min_size=1, max_size=200), st.floats(0.5, 0.99))
def test_whatever_the_history_is_bounds_are_in_order(history: dict[int, float], share: float) -> None:
    found = forecast(history, share=share)
    assert len(found.expected) == HOURS_PER_WEEK
    for low, expected, high in zip(found.low, found.expected, found.high, strict=True):
        assert 0 <= low <= expected <= high
        assert math.isfinite(high)


def test_quantiles() -> None:
    assert quantile([], 0.9) == 0
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile(list(range(1, 11)), 0.9) == 9


def test_peaks_of_days_grow() -> None:
    grown = PeakForecast({day: 100.0 + 5 * day for day in range(28)}, 0.9)
    assert grown.now == 235
    assert grown.growth_per_week == pytest.approx(35)
    assert grown.expected == pytest.approx(270)
    young = PeakForecast({day: 100.0 + 5 * day for day in range(5)}, 0.9)
    assert (young.now, young.expected, young.high) == (120, 120, 120)
