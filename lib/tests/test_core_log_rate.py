"""The log says the same a few times, and then how often."""

from __future__ import annotations

import io
import logging

import pytest
from magnetar.core.log_rate import ALIKE_MAX, PERIOD_SECONDS, TEXTS_MAX, AlikeFilter


class Log:
    """A handler's lines, at times of our own."""

    def __init__(self) -> None:
        self.now_seconds = 100.0
        self._into = io.StringIO()
        self._handler = logging.StreamHandler(self._into)
        self._handler.addFilter(AlikeFilter(lambda: self.now_seconds))

    def tell(self, message: str, *arguments: object, level: int = logging.WARNING) -> None:
        self._handler.handle(logging.LogRecord("test", level, "", 0, message, arguments, None))

    def lines(self) -> list[str]:
        text = self._into.getvalue()
        self._into.truncate(0)
        self._into.seek(0)
        return text.splitlines()


@pytest.fixture
def log() -> Log:
    return Log()


def test_many_lines_of_one_text_are_left_out_and_counted(log: Log) -> None:
    for number in range(ALIKE_MAX + 1_000):
        log.tell("closing connection of %s", number)
    lines = log.lines()
    assert len(lines) == ALIKE_MAX
    assert lines[0] == "closing connection of 0"
    assert lines[-1] == f"closing connection of {ALIKE_MAX - 1} (more like this are left out for up to a minute)"
    log.now_seconds += PERIOD_SECONDS
    log.tell("closing connection of %s", "a")
    log.tell("closing connection of %s", "b")
    assert log.lines() == [
        "closing connection of a (1000 more like this were left out before)",
        "closing connection of b",
    ]


def test_other_texts_and_what_is_no_warning_are_told(log: Log) -> None:
    for _ in range(2 * ALIKE_MAX):
        log.tell("one")
        log.tell("topic %s is loaded", "t", level=logging.INFO)
    log.tell("another")
    lines = log.lines()
    assert lines.count("topic t is loaded") == 2 * ALIKE_MAX
    assert lines[-1] == "another"


def test_a_few_in_each_period_are_all_told(log: Log) -> None:
    for _ in range(3):
        for _ in range(ALIKE_MAX - 1):
            log.tell("one")
        log.now_seconds += PERIOD_SECONDS
    assert log.lines() == ["one"] * 3 * (ALIKE_MAX - 1)


def test_texts_without_number_are_bounded(log: Log) -> None:
    for number in range(5 * TEXTS_MAX):
        log.tell(f"text {number}")
    assert len(log.lines()) == 5 * TEXTS_MAX
    (alike,) = log._handler.filters
    assert isinstance(alike, AlikeFilter)
    assert len(alike._counts) <= TEXTS_MAX
