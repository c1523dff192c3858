"""What a bookie counts, and the quantiles that are read out of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.bookie.counters import BookieCounters
from magnetar.core.histogram import Histogram

ZERO = (0,) * len(Histogram().counts)


class HandClock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic_seconds(self) -> float:
        return self.seconds


@given(st.lists(st.floats(0.000011, 90), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_right_to_a_bucket(values: list[float], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    true = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    shown = histogram.quantile(share, ZERO, histogram.greatest)
    assert true / 1.34 <= shown <= true * 1.34
    assert histogram.count == len(values)
    assert histogram.total == pytest.approx(sum(values))


def test_quantiles_of_nothing_and_of_a_window() -> None:
    histogram = Histogram()
    assert math.isnan(histogram.quantile(0.5, ZERO, 0.0))
    histogram.record(50.0, 1000)
    window = tuple(histogram.counts)
    assert math.isnan(histogram.quantile(0.5, window, 0.0))
    histogram.record(0.001, 10)
    assert histogram.quantile(0.99, window, 0.001) == pytest.approx(0.001, rel=0.34)


def test_longer_than_the_last_bucket() -> None:
    histogram = Histogram()
    histogram.record(1000.0)
    assert histogram.quantile(0.5, ZERO, 1000.0) <= 1000.0
    assert histogram.quantile(1.0, ZERO, 1000.0) == 1000.0


def test_a_batch_of_adds_counts_each_entry_and_its_bytes() -> None:
    clock = HandClock()
    counters = BookieCounters(clock)
    answers: list[tuple[int, int, Sequence[int]]] = []

    def answered(code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        answers.append((code, ledger_id, entry_ids))

    good = counters.timed_add(answered, 3, 300, recovery=False)
    bad = counters.timed_add(answered, 2, 50, recovery=False)
    recovery = counters.timed_add(answered, 1, 10, recovery=True)
    assert counters.adds_in_progress == 6
    clock.seconds = 0.004
    good(0, 7, (1, 2, 3))
    bad(101, 7, (4, 5))
    recovery(0, 8, (1,))
    assert answers == [(0, 7, (1, 2, 3)), (101, 7, (4, 5)), (0, 8, (1,))]
    assert counters.adds_in_progress == 0
    assert (counters.add.success.count, counters.add.failure.count, counters.recovery_add.success.count) == (3, 2, 1)
    assert counters.add.success.total == pytest.approx(0.012)
    assert counters.added_bytes == 310


def test_a_batch_of_reads_counts_what_was_found_and_what_not() -> None:
    clock = HandClock()
    counters = BookieCounters(clock)
    started = counters.read_started(5)
    assert counters.reads_in_progress == 5
    clock.seconds = 0.002
    counters.read_ended(started, 5, 4, 4000)
    assert counters.reads_in_progress == 0
    assert (counters.read.success.count, counters.read.failure.count) == (4, 1)
    assert counters.read_bytes == 4000
