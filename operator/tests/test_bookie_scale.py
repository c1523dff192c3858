from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.operator.plan.bookie_scale import (
    SAMPLE_SECONDS,
    SAMPLES_MAX,
    SAMPLES_MIN,
    SILENT_SECONDS,
    BookieAdvice,
    wanted_bookies,
)
from magnetar.operator.plan.conditions import READY, timestamp
from magnetar.operator.plan.facts import BookieFacts
from magnetar.operator.resources.bookie import BookieSpec, BookieStatus, UsageSample
from magnetar.operator.resources.common import Condition

NOW = 1_760_000_400.0
HOUR = 3600.0
GB = 10**9
DISK = 100 * GB


def spec_of(**autoscaling: Any) -> BookieSpec:
    return msgspec.convert({"clusterName": "blue", "autoscaling": {"maxReplicas": 10} | autoscaling}, BookieSpec)


def bookies_of(*percents: float, **facts: Any) -> list[BookieFacts]:
    usual: dict[str, Any] = {"writable": True, "total_bytes": DISK}
    return [
        BookieFacts(
            bookie_id=f"bookie-{at}",
            used_bytes=int(percent * DISK / 100),
            disk_usage_percent=round(percent),
            **(usual | facts),
        )
        for at, percent in enumerate(percents)
    ]


def history_of(used_gb: Sequence[float], until: float = NOW - 60) -> list[UsageSample]:
    """Half-hourly samples, the last one at a time."""
    return [
        UsageSample(
            time=timestamp(until - SAMPLE_SECONDS * (len(used_gb) - 1 - at)),
            used_bytes=int(used * GB),
            total_bytes=3 * DISK,
        )
        for at, used in enumerate(used_gb)
    ]


def status_of(history: Sequence[UsageSample] = (), **status: Any) -> BookieStatus:
    return BookieStatus(usage_history=list(history), **status)


def not_ready_since(since: float) -> list[Condition]:
    return [
        Condition(
            type=READY,
            status="False",
            reason="Down",
            message="",
            last_transition_time=timestamp(since),
            observed_generation=1,
        )
    ]


def advise(
    spec: BookieSpec,
    current: int,
    bookies: Sequence[BookieFacts],
    status: BookieStatus | None = None,
    *,
    ensemble_size: int = 2,
    elsewhere: int = 0,
    under_replicated: int | None = 0,
    now: float = NOW,
) -> BookieAdvice:
    return wanted_bookies(
        spec, ensemble_size, current, bookies, elsewhere, status or status_of(), under_replicated, now
    )


def test_without_autoscaling_nothing_is_kept() -> None:
    advice = advise(BookieSpec(cluster_name="blue"), 4, bookies_of(99), status_of(history_of([1] * 4)))
    assert advice == BookieAdvice(replicas=4, reason="", usage_history=[], scaled_at=None)


def test_disks_that_are_as_they_should_be_change_nothing() -> None:
    advice = advise(spec_of(), 3, bookies_of(40, 50, 79))
    assert (advice.replicas, advice.scaled_at) == (3, None)
    assert advice.reason == "the disks of 3 bookies are 40 to 79 % full"


def test_one_more_when_all_are_full() -> None:
    advice = advise(spec_of(), 3, bookies_of(81, 95, 83))
    assert (advice.replicas, advice.scaled_at) == (4, timestamp(NOW))
    assert advice.reason == "the disks of all 3 bookies are 81 % full or more, above 80 %"
    # What is written goes to the one that has room.
    assert advise(spec_of(), 3, bookies_of(95, 95, 80)).replicas == 3
    limited = advise(spec_of(maxReplicas=3), 3, bookies_of(90, 90, 90))
    assert (limited.replicas, limited.scaled_at) == (3, None)
    assert limited.reason.endswith("but autoscaling.maxReplicas is 3")


def test_after_a_change_the_pool_is_left_alone() -> None:
    status = status_of(scaled_at=timestamp(NOW - 100))
    advice = advise(spec_of(), 3, bookies_of(90, 90, 90), status)
    assert (advice.replicas, advice.scaled_at) == (3, timestamp(NOW - 100))
    assert advice.reason.endswith("the pool has just changed, it is looked at again in 200 s")
    assert advise(spec_of(), 3, bookies_of(90, 90, 90), status, now=NOW + 200).replicas == 4


def test_a_new_bookie_that_is_not_up_yet_is_waited_for() -> None:
    full = bookies_of(90, 90, 90)
    assert advise(spec_of(), 4, full).replicas == 4
    assert advise(spec_of(), 4, full, status_of(conditions=not_ready_since(NOW - 60))).replicas == 4
    # One that is dead for long is no reason to let the others fill up.
    assert advise(spec_of(), 4, full, status_of(conditions=not_ready_since(NOW - SILENT_SECONDS))).replicas == 5
    assert advise(spec_of(), 5, full, status_of(conditions=not_ready_since(NOW - SILENT_SECONDS))).replicas == 5


def test_as_many_as_lack_for_writers() -> None:
    read_only = bookies_of(95, 95, writable=False)
    advice = advise(spec_of(), 3, [*read_only, *bookies_of(50)])
    assert (advice.replicas, advice.reason) == (4, "1 bookies take writes, fewer than 2")
    assert advise(spec_of(), 3, [*read_only, *bookies_of(50)], elsewhere=1).replicas == 3
    assert advise(spec_of(writableMin=4), 3, [*read_only, *bookies_of(50)]).replicas == 6
    assert advise(spec_of(writableMin=0), 3, [*read_only, *bookies_of(50)]).replicas == 3


def test_a_restart_is_no_reason_for_more() -> None:
    two = bookies_of(50, 50)
    advice = advise(spec_of(), 3, two, ensemble_size=3)
    assert (advice.replicas, advice.reason) == (
        3,
        "2 bookies take writes, fewer than 3; 1 do not answer, which they are given time for",
    )
    early = status_of(conditions=not_ready_since(NOW - 299))
    late = status_of(conditions=not_ready_since(NOW - 300))
    rollout = status_of(conditions=not_ready_since(NOW - 9999), replicas=3, updated_replicas=2)
    assert advise(spec_of(), 3, two, early, ensemble_size=3).replicas == 3
    assert advise(spec_of(), 3, two, late, ensemble_size=3).replicas == 4
    assert advise(spec_of(), 3, two, rollout, ensemble_size=3).replicas == 3
    # The one that was added for it does not come up: more would not either.
    assert advise(spec_of(), 4, two, late, ensemble_size=3).replicas == 4


def test_disks_that_will_be_full_are_foreseen() -> None:
    # 2 GB an hour for nearly twelve hours: 153 GB of 300 GB now, 199 GB in twice that time.
    growing = status_of(history_of([130 + at for at in range(24)]))
    assert advise(spec_of(diskUsagePercentMax=70), 3, bookies_of(51, 51, 51), growing).replicas == 3
    advice = advise(spec_of(diskUsagePercentMax=60), 3, bookies_of(51, 51, 51), growing)
    assert advice.replicas == 4
    assert advice.reason == "the disks are 51 % full, and will be 66 % in 23 hours, above 60 %"
    assert advise(spec_of(diskUsagePercentMax=60, forecastHours=0), 3, bookies_of(51, 51, 51), growing).replicas == 3
    assert advise(spec_of(diskUsagePercentMax=60, forecastHours=4), 3, bookies_of(51, 51, 51), growing).replicas == 3
    # With the disks of another one it is enough.
    assert advise(spec_of(diskUsagePercentMax=60), 4, bookies_of(51, 51, 51, 0), growing).replicas == 4


def test_a_day_is_enough_to_look_far_ahead() -> None:
    growing = status_of(history_of([100 + at / 2 for at in range(SAMPLES_MAX)]))
    advice = advise(spec_of(forecastHours=240), 3, bookies_of(41, 41, 41), growing)
    assert (advice.replicas, advice.reason) == (
        4,
        "the disks are 41 % full, and will be 121 % in 240 hours, above 80 %",
    )


@pytest.mark.parametrize(
    "used",
    [
        [130.0 + at for at in range(SAMPLES_MIN - 2)],
        [170.0 - at for at in range(24)],
        # Garbage collection: up and down by much, and hardly upwards.
        [150.0 + 20 * (at % 2) + 0.2 * at for at in range(24)],
    ],
)
def test_what_does_not_grow_is_not_foreseen(used: list[float]) -> None:
    advice = advise(spec_of(diskUsagePercentMax=56), 3, bookies_of(50, 50, 50), status_of(history_of(used)))
    assert advice.replicas == 3


def test_samples_are_taken_every_half_hour_and_kept_for_a_day() -> None:
    bookies = bookies_of(50, 40, 30)
    first = advise(spec_of(), 3, bookies).usage_history
    assert first == [UsageSample(time=timestamp(NOW), used_bytes=120 * GB, total_bytes=300 * GB)]
    assert advise(spec_of(), 3, bookies, status_of(first), now=NOW + 1799).usage_history == first
    second = advise(spec_of(), 3, bookies, status_of(first), now=NOW + 1800).usage_history
    assert [sample.time for sample in second] == [timestamp(NOW), timestamp(NOW + 1800)]
    full = history_of([1.0] * SAMPLES_MAX, until=NOW - 1800)
    after = advise(spec_of(), 3, bookies, status_of(full)).usage_history
    assert len(after) == SAMPLES_MAX
    assert after[:-1] == full[1:]
    assert len(msgspec.json.encode(after)) < 6_000
    # What is older than a day is of no use, nor is what comes from the future.
    later = advise(spec_of(), 3, bookies, status_of(full), now=NOW + 48 * HOUR).usage_history
    assert [sample.time for sample in later] == [timestamp(NOW + 48 * HOUR)]
    assert advise(spec_of(), 3, bookies, status_of(full), now=NOW - 48 * HOUR).usage_history[:-1] == []


def test_no_sample_while_not_all_can_be_seen() -> None:
    assert advise(spec_of(), 4, bookies_of(50, 50, 50)).usage_history == []
    draining = BookieFacts(bookie_id="going", writable=False, used_bytes=GB, total_bytes=DISK, drain="Replicate")
    assert advise(spec_of(), 3, [*bookies_of(50, 50, 50), draining]).usage_history == []


LOW = history_of([40.0] * 12)
SHRINKS = spec_of(diskUsagePercentMin=30)


def test_one_less_when_the_rest_has_room() -> None:
    advice = advise(SHRINKS, 5, bookies_of(8, 8, 8, 8, 8), status_of(LOW))
    assert (advice.replicas, advice.scaled_at) == (4, timestamp(NOW))
    assert advice.reason == "with 4 bookies the disks would be 10 % full, below 30 %"
    # By default never.
    assert advise(spec_of(), 5, bookies_of(8, 8, 8, 8, 8), status_of(LOW)).replicas == 5


def test_none_goes_before_the_ledgers_that_lack_replicas_were_counted() -> None:
    advice = advise(SHRINKS, 5, bookies_of(8, 8, 8, 8, 8), status_of(LOW), under_replicated=None)
    assert (advice.replicas, advice.needs_count) == (5, True)
    assert advice.reason.endswith("ledgers that lack replicas have not been counted: none goes before there are none")
    advice = advise(SHRINKS, 5, bookies_of(8, 8, 8, 8, 8), status_of(LOW), under_replicated=7)
    assert (advice.replicas, advice.needs_count) == (5, False)
    assert "ledgers that lack replicas are 7" in advice.reason
    # Nobody has to count while none would go.
    assert not advise(SHRINKS, 5, bookies_of(70, 70, 70, 70, 70), status_of(LOW), under_replicated=None).needs_count
    recent = status_of(LOW, scaled_at=timestamp(NOW - 10))
    assert not advise(SHRINKS, 5, bookies_of(8, 8, 8, 8, 8), recent, under_replicated=None).needs_count


@pytest.mark.parametrize(
    ("current", "bookies", "options"),
    [
        (3, bookies_of(8, 8, 8), {}),  # minReplicas
        (5, bookies_of(8, 8, 8, 8, 8), {"ensemble_size": 5}),
        (5, bookies_of(8, 8, 8, 8, 40), {}),  # the fullest
        (5, bookies_of(8, 8, 8, 8), {}),  # one does not answer
        (5, [*bookies_of(8, 8, 8, 8), *bookies_of(8, writable=False)], {}),
        (5, bookies_of(8, 8, 8, 8, 8), {"status": status_of(LOW[:4])}),  # too new
        # So much was used half a day ago.
        (5, bookies_of(8, 8, 8, 8, 8), {"status": status_of([*history_of([140.0], NOW - 12 * HOUR), *LOW])}),
        # And so much will be.
        (5, bookies_of(8, 8, 8, 8, 8), {"status": status_of(history_of([20.0 + 9 * at for at in range(12)]))}),
    ],
)
def test_none_less_where_it_would_be_missed(current: int, bookies: list[BookieFacts], options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"status": status_of(LOW)} | options
    assert advise(SHRINKS, current, bookies, **given).replicas >= current


def test_other_pools_count_for_the_ensemble() -> None:
    spec = spec_of(diskUsagePercentMin=30, minReplicas=1)
    bookies = bookies_of(8, 8, 8)
    assert advise(spec, 3, bookies, status_of(LOW), ensemble_size=3).replicas == 3
    assert advise(spec, 3, bookies, status_of(LOW), ensemble_size=3, elsewhere=1).replicas == 2


def test_none_goes_that_would_be_lacking_for_writers() -> None:
    spec = spec_of(diskUsagePercentMin=30, minReplicas=1, writableMin=5)
    bookies = bookies_of(8, 8, 8, 8, 8)
    assert advise(spec, 5, bookies, status_of(LOW)).replicas == 5
    assert advise(spec, 5, bookies, status_of(LOW), elsewhere=1).replicas == 4


def test_the_bounds_count_at_once() -> None:
    recent = status_of(scaled_at=timestamp(NOW - 1))
    advice = advise(spec_of(minReplicas=5), 3, bookies_of(50, 50, 50), recent)
    assert (advice.replicas, advice.reason) == (5, "autoscaling.minReplicas is 5; there were 3")
    assert advise(spec_of(maxReplicas=4), 6, bookies_of(*[50] * 6), under_replicated=None).replicas == 4


@pytest.mark.slow
@settings(deadline=None)
@given(
    used=st.floats(0, 1100),
    start=st.integers(1, 10),
    percent_max=st.integers(10, 95),
    percent_min=st.integers(0, 90),
    spreads=st.booleans(),
    elsewhere=st.integers(0, 2),
)
def test_what_stays_as_it_is_never_turns_it_back(
    used: float, start: int, percent_max: int, percent_min: int, spreads: bool, elsewhere: int
) -> None:
    """So many GB that neither grow nor shrink, evenly spread at once or left where they are but for those that a
    leaving bookie hands over: the number goes one way and rests."""
    spec = spec_of(minReplicas=1, maxReplicas=10, diskUsagePercentMax=percent_max, diskUsagePercentMin=percent_min)
    places = [min(99.0, used / start)] * start
    status, now = status_of(), NOW
    numbers = [start]
    for _ in range(40):
        bookies = bookies_of(*places)
        advice = advise(spec, len(places), bookies, status, elsewhere=elsewhere, now=now)
        status = status_of(advice.usage_history, scaled_at=advice.scaled_at)
        before = len(places)
        assert advice.replicas >= max(1, 2 - elsewhere) or advice.replicas == before
        if advice.replicas != before:
            numbers.append(advice.replicas)
            left = places[: advice.replicas] + [0.0] * (advice.replicas - before)
            handed_over = (sum(places) - sum(left)) / len(left)
            places = [sum(places) / len(left)] * len(left) if spreads else [place + handed_over for place in left]
        now += 1800
    steps = [after - before for before, after in itertools.pairwise(numbers)]
    assert all(step > 0 for step in steps) or all(step == -1 for step in steps)


@pytest.mark.slow
@settings(deadline=None)
@given(
    per_hour=st.floats(0, 30),
    start_gb=st.floats(0, 250),
    keeps_hours=st.integers(1, 60),
    wave=st.floats(0, 20),
)
def test_growth_that_comes_to_rest_is_followed_without_flapping(
    per_hour: float, start_gb: float, keeps_hours: int, wave: float
) -> None:
    """Writes at a constant rate until retention lets go of as many, with the waves that garbage collection makes. What
    was foreseen and did not come may be taken back, once and for all."""
    spec = spec_of(minReplicas=3, maxReplicas=40, diskUsagePercentMin=40)
    status, now, count = status_of(), NOW, 3
    numbers = [3]
    for step in range(160):
        used = start_gb + per_hour * min(step / 2, keeps_hours) + wave * (step % 5) / 5
        advice = advise(spec, count, bookies_of(*[used / count] * count), status, now=now)
        status, count = status_of(advice.usage_history, scaled_at=advice.scaled_at), advice.replicas
        if count != numbers[-1]:
            numbers.append(count)
        now += 1800
    steps = [after - before for before, after in itertools.pairwise(numbers)]
    assert all(step == 1 for step in itertools.takewhile(lambda step: step > 0, steps))
    assert all(step == -1 for step in itertools.dropwhile(lambda step: step > 0, steps))
