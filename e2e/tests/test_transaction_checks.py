"""The checker of clients' transactions finds each broken promise, and nothing where none is broken."""

from __future__ import annotations

import pytest

from e2e.transactions import checks
from e2e.transactions.checks import Began, Ended, Flood, Given

TOPICS = ("a", "b")
EVENTS = [Began(number, 10 + number, 0) for number in range(5)] + [
    Ended(number=0, input=10, asked="commit", time_ms=1),
    Ended(number=1, input=11, asked="abort", time_ms=1),
    Ended(number=2, input=12, asked="commit", error="TimeoutException: End", time_ms=1),
    Ended(number=3, input=13, asked="nothing", time_ms=1),
    Ended(number=4, input=14, asked="commit", error="InvalidTxnStatus: ABORTING", time_ms=1),
]


def problems(end: dict[str, list[int]], along: dict[str, list[int]] | None = None, inputs: range = range(0)) -> str:
    return "; ".join(checks.check(EVENTS, Given(at_the_end=end, all_along=along or end), inputs))


@pytest.mark.parametrize("shown", [[0], [0, 2]])
def test_what_is_unknown_may_be_either(shown: list[int]) -> None:
    assert problems(dict.fromkeys(TOPICS, shown), inputs=range(10, 11)) == ""


@pytest.mark.parametrize(
    ("end", "along", "problem"),
    [
        ({"a": [0, 2], "b": [0]}, None, "b has 2 of transactions that others have not"),
        ({"a": [0, 0], "b": [0]}, None, "a has 0 twice"),
        ({"a": [], "b": []}, None, "committed and never shown: 0"),
        ({"a": [0, 1], "b": [0, 1]}, None, "never committed and shown: 1"),
        ({"a": [0, 3], "b": [0, 3]}, None, "never committed and shown: 3"),
        ({"a": [0, 4], "b": [0, 4]}, None, "commit refused for good, and shown: 4"),
        ({"a": [0, 9], "b": [0, 9]}, None, "of no transaction that anybody began, and shown: 9"),
        ({"a": [0], "b": [0]}, {"a": [0, 1], "b": [0]}, "a subscriber of a was given 1 that are not there"),
        ({"a": [0], "b": [0]}, {"a": [], "b": [0]}, "a subscriber of a was not given 0"),
    ],
)
def test_each_broken_promise_is_told(
    end: dict[str, list[int]], along: dict[str, list[int]] | None, problem: str
) -> None:
    assert problem in problems(end, along)


def test_inputs_are_acknowledged_by_one_commit_each() -> None:
    twice: list[checks.Event] = [Began(0, 10, 0), Began(1, 10, 0)]
    twice += [Ended(number=number, input=10, asked="commit", time_ms=1) for number in range(2)]
    both = {topic: [0, 1] for topic in TOPICS}
    found = checks.check(twice, Given(at_the_end=both, all_along=both), {10, 11})
    assert found == ["input messages acknowledged by two commits: 10", "input messages gone without a commit: 11"]


def test_a_call_that_never_ended_is_told() -> None:
    none: dict[str, list[int]] = {"a": []}
    found = checks.check([Began(0, 1, 0)], Given(at_the_end=none, all_along=none), ())
    assert found == ["clients' calls never ended, of transactions 0 of 1"]


@pytest.mark.parametrize(
    ("flood", "fine"),
    [
        (Flood(640, "TooManyRequests: UnknownError", 12, 0), True),
        (Flood(641, "", 12, 0), False),
        (Flood(640, "TooManyRequests", 20_000, 0), False),
        (Flood(640, "TimeoutException", 12, 0), False),
    ],
)
def test_one_transaction_too_many_is_refused_soon_and_in_words(flood: Flood, *, fine: bool) -> None:
    assert (checks.check_flood(flood, 640, 5_000) == []) is fine
