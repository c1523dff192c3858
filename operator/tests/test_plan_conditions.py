from __future__ import annotations

import pytest
from magnetar.operator.plan.conditions import (
    MESSAGE_LENGTH_MAX,
    NewCondition,
    condition,
    conditions,
    holds,
    seconds,
    timestamp,
)

NOW = 1_760_000_000.7


def test_times_are_whole_seconds_of_utc_and_come_back() -> None:
    assert timestamp(NOW) == "2025-10-09T08:53:20Z"
    assert seconds(timestamp(NOW)) == int(NOW)


@pytest.mark.parametrize(("holds_now", "status"), [(True, "True"), (False, "False"), (None, "Unknown")])
def test_what_is_found_becomes_a_condition(holds_now: bool | None, status: str) -> None:
    (found,) = conditions([], [NewCondition("Ready", holds_now, "Why", "words")], 7, NOW)
    assert (found.type, found.status, found.reason, found.message) == ("Ready", status, "Why", "words")
    assert found.observed_generation == 7
    assert found.last_transition_time == timestamp(NOW)


def test_the_time_stays_while_the_status_does_though_words_change() -> None:
    first = conditions([], [NewCondition("Ready", False, "Starting", "one")], 1, NOW)
    second = conditions(first, [NewCondition("Ready", False, "Waiting", "two")], 2, NOW + 50)
    third = conditions(second, [NewCondition("Ready", True, "AllReady", "three")], 2, NOW + 90)
    assert second[0].last_transition_time == timestamp(NOW)
    assert (second[0].reason, second[0].observed_generation) == ("Waiting", 2)
    assert third[0].last_transition_time == timestamp(NOW + 90)


def test_the_order_is_that_of_the_new_ones_and_what_nobody_speaks_of_goes() -> None:
    first = conditions([], [NewCondition("B", True, "R", ""), NewCondition("A", True, "R", "")], 1, NOW)
    second = conditions(first, [NewCondition("A", True, "R", "")], 1, NOW)
    assert [found.type for found in first] == ["B", "A"]
    assert [found.type for found in second] == ["A"]
    assert holds(first, "B")
    assert not holds(second, "B")
    assert condition(second, "B") is None


def test_long_last_words_keep_their_beginning_and_their_end() -> None:
    (found,) = conditions([], [NewCondition("Ready", False, "R", "first " + "x" * 5000 + " last")], 1, NOW)
    assert len(found.message) <= MESSAGE_LENGTH_MAX
    assert found.message.startswith("first ")
    assert found.message.endswith(" last")
