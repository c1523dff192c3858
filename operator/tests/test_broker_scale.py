from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.operator.plan.broker_scale import GROW_SECONDS, SILENT_SECONDS, wanted_brokers
from magnetar.operator.plan.conditions import timestamp
from magnetar.operator.plan.facts import BrokerFacts
from magnetar.operator.resources.cluster import BrokerLoadStatus, BrokerSpec

NOW = 1_760_000_000.0


def spec_of(**autoscaling: Any) -> BrokerSpec:
    return msgspec.convert({"autoscaling": {"maxReplicas": 10} | autoscaling}, BrokerSpec)


def brokers_of(*percents: int, bundles: int = 10, **facts: Any) -> list[BrokerFacts]:
    return [
        BrokerFacts(broker_id=f"broker-{at}:8080", registered=True, bundles=bundles, load_percent=percent, **facts)
        for at, percent in enumerate(percents)
    ]


def remembered(advice: str = "Keep", since: float = NOW, scaled_at: float | None = None) -> BrokerLoadStatus:
    return msgspec.convert(
        {
            "advice": advice,
            "since": timestamp(since),
            "scaledAt": None if scaled_at is None else timestamp(scaled_at),
        },
        BrokerLoadStatus,
    )


def test_load_that_is_as_it_should_be_changes_nothing() -> None:
    wanted, load, reason = wanted_brokers(spec_of(), 3, brokers_of(40, 50, 60), None, NOW)
    assert (wanted, load) == (3, BrokerLoadStatus(percent=50, since=timestamp(NOW)))
    assert reason == "the mean of 3 brokers' fullest resources is 50 %"
    # The time since when it has been so stays.
    assert wanted_brokers(spec_of(), 3, brokers_of(40, 50, 60), load, NOW + 600)[1] == load


def test_more_once_the_mean_has_been_too_high_for_a_minute() -> None:
    brokers = brokers_of(80, 90)
    wanted, load, reason = wanted_brokers(spec_of(), 2, brokers, remembered(since=NOW - 9999), NOW)
    assert (wanted, load.advice, load.since) == (2, "Grow", timestamp(NOW))
    assert reason == (
        "the mean of 2 brokers' fullest resources is 85 %, above 70 %; 3 brokers if it stays so for 60 s more"
    )
    assert wanted_brokers(spec_of(), 2, brokers, load, NOW + GROW_SECONDS - 1)[0] == 2
    wanted, after, reason = wanted_brokers(spec_of(), 2, brokers, load, NOW + GROW_SECONDS)
    assert (wanted, after.advice) == (3, "Keep")
    assert after.scaled_at == after.since == timestamp(NOW + GROW_SECONDS)
    assert reason == "the mean of 2 brokers' fullest resources is 85 %, above 70 %"
    # A look in between at which it was not begins anew.
    _, calm, _ = wanted_brokers(spec_of(), 2, brokers_of(60, 60), load, NOW + 30)
    assert wanted_brokers(spec_of(), 2, brokers, calm, NOW + GROW_SECONDS)[0] == 2


@pytest.mark.parametrize(
    ("current", "percent", "wanted"),
    [(2, 71, 3), (4, 90, 6), (4, 100, 6), (1, 100, 2), (10, 100, 10), (9, 100, 10)],
)
def test_as_many_more_as_bring_the_mean_below_the_maximum(current: int, percent: int, wanted: int) -> None:
    brokers = brokers_of(*[percent] * current)
    long_ago = remembered("Grow", since=NOW - 999)
    assert wanted_brokers(spec_of(minReplicas=1), current, brokers, long_ago, NOW)[0] == wanted


def test_at_most_twice_as_many_at_a_time() -> None:
    spec = spec_of(minReplicas=1, loadPercentMax=10, loadPercentMin=0)
    assert wanted_brokers(spec, 2, brokers_of(100, 100), remembered("Grow", since=NOW - 99), NOW)[0] == 4


def test_a_hot_broker_alone_is_not_relieved_by_another_one() -> None:
    brokers = brokers_of(95, 20, 20)
    wanted, load, reason = wanted_brokers(spec_of(), 3, brokers, remembered(since=NOW - 9999), NOW)
    assert (wanted, load.advice) == (3, "Keep")
    assert "broker-0:8080 alone has 95 %: its bundles are to be moved or split" in reason


def test_more_for_their_bundles() -> None:
    brokers = brokers_of(10, 10, bundles=2500)
    wanted, _, reason = wanted_brokers(spec_of(), 2, brokers, remembered("Grow", since=NOW - 99), NOW)
    assert wanted == 3
    assert reason == "2 brokers have 2500 bundles each, more than the 2000 that bundlesPerBrokerMax allows"
    # And none less while the rest had nearly too many.
    brokers = brokers_of(10, 10, 10, bundles=1300)
    assert wanted_brokers(spec_of(), 3, brokers, remembered("Shrink", since=NOW - 9999), NOW)[0] == 3


def test_the_maximum_is_told_of() -> None:
    brokers = brokers_of(90, 90)
    wanted, load, reason = wanted_brokers(spec_of(maxReplicas=2), 2, brokers, remembered("Grow", since=NOW - 9999), NOW)
    assert (wanted, load.advice) == (2, "Keep")
    assert reason.endswith("above 70 %, but autoscaling.maxReplicas is 2")


def test_one_less_at_a_time_and_slowly() -> None:
    brokers = brokers_of(5, 5, 5, 5)
    wanted, load, reason = wanted_brokers(spec_of(), 4, brokers, None, NOW)
    assert (wanted, load.advice) == (4, "Shrink")
    assert "is 5 %, and with 3 it would be 7 %, below 35 %; 3 brokers if it stays so for 300 s more" in reason
    assert wanted_brokers(spec_of(), 4, brokers, load, NOW + 299)[0] == 4
    wanted, load, _ = wanted_brokers(spec_of(), 4, brokers, load, NOW + 300)
    assert wanted == 3
    wanted, load, _ = wanted_brokers(spec_of(), 3, brokers[:3], load, NOW + 302)
    assert (wanted, load.advice) == (3, "Shrink")
    assert wanted_brokers(spec_of(), 3, brokers[:3], load, NOW + 601)[0] == 3
    assert wanted_brokers(spec_of(), 3, brokers[:3], load, NOW + 602)[0] == 2
    # minReplicas.
    assert wanted_brokers(spec_of(), 2, brokers[:2], remembered("Shrink", since=NOW - 9999), NOW)[0] == 2


def test_none_less_when_the_rest_would_be_too_full() -> None:
    low = remembered("Shrink", since=NOW - 9999)
    assert wanted_brokers(spec_of(), 3, brokers_of(24, 24, 24), low, NOW)[0] == 3
    assert wanted_brokers(spec_of(), 3, brokers_of(23, 23, 23), low, NOW)[0] == 2
    # A minimum above the maximum would flap.
    odd = spec_of(loadPercentMax=40, loadPercentMin=90)
    assert wanted_brokers(odd, 3, brokers_of(20, 20, 20), low, NOW)[0] == 3
    assert wanted_brokers(odd, 3, brokers_of(19, 19, 19), low, NOW)[0] == 2


def test_none_less_while_one_does_not_answer_or_drains() -> None:
    low = remembered("Shrink", since=NOW - 9999)
    assert wanted_brokers(spec_of(), 4, brokers_of(5, 5, 5), low, NOW)[0] == 4
    draining = BrokerFacts(broker_id="going:8080", registered=False, load_percent=5, drain="Running")
    assert wanted_brokers(spec_of(), 3, [*brokers_of(5, 5, 5), draining], low, NOW)[0] == 3
    assert wanted_brokers(spec_of(), 3, [], low, NOW)[2] == "no broker answers"


def test_what_drains_still_has_its_load() -> None:
    draining = BrokerFacts(broker_id="going:8080", registered=False, load_percent=60, drain="Running")
    _, load, _ = wanted_brokers(spec_of(), 2, [*brokers_of(50, 50), draining], None, NOW)
    assert (load.percent, load.advice) == (80, "Grow")


def test_the_silent_are_waited_for_before_more_are_added() -> None:
    brokers = brokers_of(90, 90)
    load = remembered("Grow", since=NOW)
    assert wanted_brokers(spec_of(), 3, brokers, load, NOW + GROW_SECONDS + 1)[0] == 3
    assert wanted_brokers(spec_of(), 3, brokers, load, NOW + SILENT_SECONDS)[0] == 4


def test_the_bounds_count_at_once() -> None:
    wanted, load, reason = wanted_brokers(spec_of(minReplicas=3), 1, brokers_of(10), None, NOW)
    assert (wanted, load.scaled_at, reason) == (
        3,
        timestamp(NOW),
        "autoscaling.minReplicas is 3; there were 1",
    )
    assert wanted_brokers(spec_of(maxReplicas=4), 7, brokers_of(*[60] * 7), None, NOW)[0] == 4


def test_a_number_that_is_set_stays() -> None:
    load = remembered()
    assert wanted_brokers(msgspec.convert({"replicas": 5}, BrokerSpec), 3, [], load, NOW)[:2] == (5, load)
    assert wanted_brokers(BrokerSpec(), 3, [], None, NOW)[0] == 3


def test_at_once_without_a_time_to_stabilize() -> None:
    spec = spec_of(stabilizationSeconds=0)
    assert wanted_brokers(spec, 2, brokers_of(90, 90), None, NOW)[0] == 3
    assert wanted_brokers(spec, 3, brokers_of(5, 5, 5), None, NOW)[0] == 2


@given(
    work=st.floats(0, 1500),
    idle=st.one_of(st.just(0.0), st.floats(0, 8)),
    start=st.integers(1, 12),
    limits=st.tuples(st.integers(10, 95), st.integers(0, 90)),
    bundles=st.integers(0, 9000),
    tick=st.sampled_from([20.0, 60.0, 400.0]),
)
def test_a_constant_load_never_turns_it_back(
    work: float, idle: float, start: int, limits: tuple[int, int], bundles: int, tick: float
) -> None:
    """Constant work in percent of a broker, what an idle one uses, and bundles: the number goes one way and rests.
    Without saturation, and if brokers use nothing by themselves, more come in one step, as far as twice as many do."""
    load_max, load_min = limits
    spec = spec_of(minReplicas=1, maxReplicas=12, loadPercentMax=load_max, loadPercentMin=load_min)
    count, load, now = start, None, NOW
    numbers = [start]
    for _ in range(1_000):
        percent = min(100, math.ceil(work / count + idle))
        brokers = brokers_of(*[percent] * count, bundles=math.ceil(bundles / count))
        count, load, _ = wanted_brokers(spec, count, brokers, load, now)
        if count != numbers[-1]:
            numbers.append(count)
        elif load.advice == "Keep":
            # Nothing can be different in the next look.
            break
        now += tick
    steps = [after - before for before, after in itertools.pairwise(numbers)]
    assert all(step > 0 for step in steps) or all(step == -1 for step in steps)
    if steps and steps[0] > 0 and not idle and work / start <= 99 and numbers[-1] < 2 * start:
        assert len(steps) == 1
    assert load is not None
    assert load.advice == "Keep"


@given(
    percents=st.lists(st.lists(st.integers(0, 100), max_size=6), min_size=1, max_size=40),
    drains=st.sampled_from(["None", "Running", "Done"]),
)
def test_whatever_is_seen_it_stays_within_its_bounds_and_shrinks_one_by_one(
    percents: list[list[int]], drains: str
) -> None:
    spec = spec_of(minReplicas=2, maxReplicas=6)
    count, load, now = 2, None, NOW
    changed = NOW - 9999
    for seen in percents:
        before = count
        facts = brokers_of(*seen)
        if facts:
            facts[-1] = msgspec.convert(
                {"broker_id": "x", "registered": True, "load_percent": seen[-1], "drain": drains}, BrokerFacts
            )
        count, load, reason = wanted_brokers(spec, count, facts, load, now)
        assert 2 <= count <= 6
        assert count >= before - 1
        assert reason
        if count < before:
            assert now - changed >= 300
        if count != before:
            changed = now
        now += 45
