"""What every simulator counts as broken, whatever its own judge says."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
from magnetar.core.errors import MagnetarError, Misuse, Unavailable
from magnetar.core.transitions import Transitions

from e2e.simulation_runner import command
from e2e.simulation_runner.running import Bounds, Verdict, run_seed

BOUNDS: Final = Bounds(steps_max=1_000, virtual_seconds_max=10.0)

LOGGER: Final = "magnetar.broker.session"


class Door(enum.Enum):
    OPEN = enum.auto()
    SHUT = enum.auto()


DOOR = Transitions("a door", {Door.OPEN: {Door.SHUT}, Door.SHUT: ()})


class OneScenario:
    """A run of one coroutine function, whose judge finds nothing."""

    def __init__(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.scenario = scenario

    def violations(self) -> list[str]:
        return []

    def counts(self) -> dict[str, int]:
        return {}


def verdict_of(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Verdict:
    return run_seed(1, lambda _: OneScenario(scenario), BOUNDS, planted=contextlib.nullcontext())


async def nothing() -> None:
    assert DOOR.step(Door.OPEN, Door.SHUT) is Door.SHUT


async def an_illegal_change_that_is_answered() -> None:
    with contextlib.suppress(MagnetarError):
        DOOR.step(Door.SHUT, Door.OPEN)


async def a_mistake_of_ours_that_is_logged() -> None:
    try:
        raise Misuse("the same id twice")
    except MagnetarError:
        logging.getLogger(LOGGER).exception("a command failed")


async def an_exception_that_is_logged() -> None:
    try:
        int("x")
    except ValueError:
        logging.getLogger(LOGGER).exception("a command failed")


async def the_world_that_fails() -> None:
    try:
        raise Unavailable("no bookie answers")
    except MagnetarError:
        logging.getLogger(LOGGER).exception("a command failed")


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        (an_illegal_change_that_is_answered, "unexpected: a door does not go from SHUT to OPEN"),
        (a_mistake_of_ours_that_is_logged, "the same id twice"),
        (an_exception_that_is_logged, "ValueError("),
    ],
)
def test_mistakes_of_the_code_are_seen(scenario: Callable[[], Coroutine[Any, Any, None]], said: str) -> None:
    violations = verdict_of(scenario).violations
    assert len(violations) == 1
    assert said in violations[0]


@pytest.mark.parametrize("scenario", [nothing, the_world_that_fails])
def test_what_the_world_does_is_no_mistake(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    assert verdict_of(scenario).violations == []


def test_what_is_watched_is_left_as_it_was() -> None:
    before = Transitions.step
    verdict_of(an_illegal_change_that_is_answered)
    assert Transitions.step is before


def process_of(number: int) -> tuple[int, int]:
    return number, os.getpid()


def test_seeds_go_on_in_new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BATCHES_OF_A_PROCESS", 2)
    monkeypatch.setattr(command, "START_METHOD", "fork")  # The other one leaves a server behind until this one ends.
    numbers, processes = zip(*command.in_processes(process_of, range(5), 1), strict=True)
    assert numbers == (0, 1, 2, 3, 4)
    assert processes[0] == processes[1] != processes[2] == processes[3] != processes[4]
