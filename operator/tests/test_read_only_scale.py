"""How many read-only brokers there should be, look by look."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.operator.plan.broker_scale import GROW_SECONDS, SILENT_SECONDS
from magnetar.operator.plan.conditions import timestamp
from magnetar.operator.plan.facts import ReadOnlyBrokerFacts
from magnetar.operator.plan.read_only_scale import wanted_read_only_brokers
from magnetar.operator.resources.read_only import ReadOnlyAutoscaling, ReadOnlyLoadStatus

NOW = 1_760_000_000.0


def limits(**given_: Any) -> ReadOnlyAutoscaling:
    usual = {"maxReplicas": 10, "connectionsPerBrokerMax": 100, "lagSecondsMax": 30}
    return msgspec.convert(usual | given_, ReadOnlyAutoscaling)


def brokers(*connections: int, lag_seconds: float = 0.0) -> list[ReadOnlyBrokerFacts]:
    return [ReadOnlyBrokerFacts(connections=each, lag_seconds=lag_seconds) for each in connections]


def remembered(advice: str = "Keep", since: float = NOW, scaled_at: float | None = None) -> ReadOnlyLoadStatus:
    found: dict[str, Any] = {"advice": advice, "since": timestamp(since)}
    if scaled_at is not None:
        found["scaledAt"] = timestamp(scaled_at)
    return msgspec.convert(found, ReadOnlyLoadStatus)


def test_as_many_as_are_needed_stay() -> None:
    wanted, load = wanted_read_only_brokers(limits(), 3, brokers(60, 70, 80, lag_seconds=2.4), None, NOW)
    assert (wanted, load.advice, load.connections, load.lag_seconds) == (3, "Keep", 210, 2)
    assert load.reason == "3 read-only brokers have 210 connections, and the worst topic is 2 s behind"
    # Nothing of it changes with the time: the status need not be written again.
    assert wanted_read_only_brokers(limits(), 3, brokers(60, 70, 80, lag_seconds=2.4), load, NOW + 600) == (3, load)


def test_more_once_there_have_been_too_many_connections_for_a_minute() -> None:
    many = brokers(240, 110)
    wanted, load = wanted_read_only_brokers(limits(), 2, many, remembered(since=NOW - 9999), NOW)
    assert (wanted, load.advice, load.since) == (2, "Grow", timestamp(NOW))
    assert load.reason == (
        "2 read-only brokers have 350 connections, and the worst topic is 0 s behind: more than 100 connections each; "
        f"4 read-only brokers if it stays so until {timestamp(NOW + GROW_SECONDS)}"
    )
    # The reason does not count down.
    assert wanted_read_only_brokers(limits(), 2, many, load, NOW + GROW_SECONDS - 1) == (2, load)
    wanted, after = wanted_read_only_brokers(limits(), 2, many, load, NOW + GROW_SECONDS)
    assert (wanted, after.advice, after.scaled_at) == (4, "Keep", timestamp(NOW + GROW_SECONDS))
    assert after.reason.endswith("more than 100 connections each")
    # A look in between at which it was not so begins anew.
    _, calm = wanted_read_only_brokers(limits(), 2, brokers(90, 90), load, NOW + 30)
    assert wanted_read_only_brokers(limits(), 2, many, calm, NOW + GROW_SECONDS)[0] == 2


def test_at_most_twice_as_many_at_a_time_and_never_above_the_maximum() -> None:
    long_ago = remembered("Grow", since=NOW - 999)
    assert wanted_read_only_brokers(limits(), 2, brokers(1000, 1000), long_ago, NOW)[0] == 4
    assert wanted_read_only_brokers(limits(maxReplicas=3), 2, brokers(1000, 1000), long_ago, NOW)[0] == 3
    wanted, load = wanted_read_only_brokers(limits(maxReplicas=2), 2, brokers(1000, 1000), long_ago, NOW)
    assert (wanted, load.advice) == (2, "Keep")
    assert load.reason.endswith("but autoscaling.maxReplicas is 2")


def test_one_more_for_its_lag_and_the_next_one_only_after_a_while() -> None:
    late = brokers(1, 1, lag_seconds=31)
    wanted, load = wanted_read_only_brokers(limits(), 2, late, remembered("Grow", since=NOW - 60), NOW)
    assert wanted == 3
    assert "the worst topic is 31 s behind, more than 30 s" in load.reason
    late = brokers(1, 1, 1, lag_seconds=31)
    _, load = wanted_read_only_brokers(limits(), 3, late, load, NOW + 15)
    assert load.advice == "Grow"
    assert wanted_read_only_brokers(limits(), 3, late, load, NOW + 299)[0] == 3
    assert wanted_read_only_brokers(limits(), 3, late, load, NOW + 300)[0] == 4
    # Connections do not wait for that.
    many = brokers(200, 200, 200)
    assert wanted_read_only_brokers(limits(), 3, many, remembered("Grow", NOW, scaled_at=NOW), NOW + 60)[0] == 6


def test_one_less_at_a_time_and_slowly() -> None:
    few = brokers(20, 20, 20, 20)
    wanted, load = wanted_read_only_brokers(limits(), 4, few, None, NOW)
    assert (wanted, load.advice) == (4, "Shrink")
    assert "with 3 it would be 27 connections each, of 100" in load.reason
    assert wanted_read_only_brokers(limits(), 4, few, load, NOW + 299)[0] == 4
    wanted, load = wanted_read_only_brokers(limits(), 4, few, load, NOW + 300)
    assert wanted == 3
    _, load = wanted_read_only_brokers(limits(), 3, few[:3], load, NOW + 302)
    assert wanted_read_only_brokers(limits(), 3, few[:3], load, NOW + 601)[0] == 3
    assert wanted_read_only_brokers(limits(), 3, few[:3], load, NOW + 602)[0] == 2
    assert wanted_read_only_brokers(limits(), 2, few[:2], remembered("Shrink", since=NOW - 9999), NOW)[0] == 2


@pytest.mark.parametrize(
    "found",
    [brokers(70, 70, 70), brokers(10, 10, 10, lag_seconds=16), brokers(10, 10), brokers()],
    ids=["the rest would be nearly full", "the lag is not small", "one does not answer", "none answers"],
)
def test_none_goes_when_the_rest_might_not_do(found: list[ReadOnlyBrokerFacts]) -> None:
    wanted, load = wanted_read_only_brokers(limits(), 3, found, remembered("Shrink", since=NOW - 9999), NOW)
    assert (wanted, load.advice) == (3, "Keep")


def test_those_that_do_not_answer_are_waited_for() -> None:
    """They were just added, perhaps: of the others' connections they would not take any."""
    load = remembered("Grow", since=NOW - SILENT_SECONDS + 1)
    assert wanted_read_only_brokers(limits(), 3, brokers(150, 150), load, NOW)[0] == 3
    assert wanted_read_only_brokers(limits(), 3, brokers(150, 150), load, NOW + 1)[0] == 5


def test_the_bounds_hold_at_once() -> None:
    wanted, load = wanted_read_only_brokers(limits(minReplicas=4), 2, [], None, NOW)
    assert (wanted, load.reason) == (4, "autoscaling.minReplicas is 4; there were 2")
    wanted, load = wanted_read_only_brokers(limits(), 20, brokers(*[100] * 20), None, NOW)
    assert (wanted, load.reason) == (10, "autoscaling.maxReplicas is 10; there were 20")


@given(st.integers(0, 1500), st.floats(0, 100), st.integers(1, 10))
def test_steady_clients_come_to_a_steady_number(connections: int, lag_seconds: float, current: int) -> None:
    """Whatever it begins with: after a while it is one number, and stays that."""
    wish = limits(minReplicas=1)
    load: ReadOnlyLoadStatus | None = None
    now, changes = NOW, []
    for _ in range(600):
        each, rest = divmod(connections, current)
        # More brokers make it less, until the writer is what is slow.
        lag = max(lag_seconds / current, 0.0)
        found = [ReadOnlyBrokerFacts(connections=each + (at < rest), lag_seconds=lag) for at in range(current)]
        wanted, load = wanted_read_only_brokers(wish, current, found, load, now)
        assert 1 <= wanted <= 10
        if wanted != current:
            changes.append(now - NOW)
            current = wanted
        now += 15
    assert len(changes) <= 12
    assert not changes or changes[-1] < 6000
