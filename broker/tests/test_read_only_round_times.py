"""When the positions of many subscriptions are told to their owner."""

from __future__ import annotations

from collections import Counter

import pytest
from magnetar.broker.read_only.keep_settings import KeepSettings, RoundTimes

SETTINGS = KeepSettings(rate_seconds=1.0, rounds_per_second_max=100.0, beat_seconds=0.25)
NEVER_SECONDS = -1e9
"""When the last round of a subscription began that has had none."""


def test_rounds_of_different_subscriptions_begin_together() -> None:
    times = RoundTimes(SETTINGS)
    began = [10.0, 10.01, 10.1, 10.249]
    assert [each + times.wait_seconds(each, each, 4) for each in began] == pytest.approx([11.0, 11.25, 11.25, 11.25])


def test_a_round_begins_after_its_pause_and_at_once_when_that_is_over() -> None:
    assert RoundTimes(SETTINGS).wait_seconds(10.0, 10.5, 1) == pytest.approx(0.5)
    assert RoundTimes(SETTINGS).wait_seconds(10.0, 11.1, 1) == 0.0
    assert RoundTimes(SETTINGS).wait_seconds(10.0, 10.0, 400) == pytest.approx(4.0)


@pytest.mark.parametrize("rate_seconds", [0.01, 0.05, 0.1, 0.5, 60.0])
def test_beats_make_no_round_late_by_more_than_a_quarter(rate_seconds: float) -> None:
    settings = KeepSettings(rate_seconds=rate_seconds)
    for began_seconds in (10.0, 10.001, 10.06, 10.099):
        wait_seconds = RoundTimes(settings).wait_seconds(began_seconds, began_seconds, 0)
        assert rate_seconds <= wait_seconds + 1e-9 <= 1.25 * rate_seconds + 2e-9


def test_thousands_that_are_due_at_the_same_moment_have_their_rounds_one_after_the_other() -> None:
    times = RoundTimes(SETTINGS)
    first = [10.1 + times.wait_seconds(NEVER_SECONDS, 10.1, 2_000) for _ in range(2_000)]
    assert first[:25] == [10.1] * 25
    assert max(first) == pytest.approx(10.0 + 2_000 / 100.0, abs=0.5)
    second = [began + times.wait_seconds(began, began, 2_000) for began in first]
    a_beat = Counter(round(each, 6) for each in second)
    assert max(a_beat.values()) <= 25
    assert max(b - a for a, b in zip(first, second, strict=True)) <= 20.0 + 0.5


def test_one_that_is_due_does_not_wait_for_those_that_are_not() -> None:
    times = RoundTimes(SETTINGS)
    for _ in range(1_000):
        times.wait_seconds(10.0, 10.0, 1_000)
    assert times.wait_seconds(NEVER_SECONDS, 10.1, 1_000) == 0.0


def test_few_that_are_left_of_many_do_not_wait_as_many_would() -> None:
    times = RoundTimes(SETTINGS)
    for _ in range(5_000):
        times.wait_seconds(10.0, 10.0, 5_000)
    assert times.wait_seconds(12.0, 12.0, 3) == pytest.approx(1.0)
