"""What clients call things does not become lines of the log."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.core.log_lines import MESSAGE_CHARACTERS_MAX, LineFormatter, one_line


def logged(*arguments: object, error: Exception | None = None) -> str:
    into = io.StringIO()
    handler = logging.StreamHandler(into)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    record = logging.LogRecord("test", logging.WARNING, "", 0, "refused: %s", arguments, None)
    if error is not None:
        record.exc_info = (type(error), error, None)
    handler.emit(record)
    return into.getvalue()


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x0c", "\x1b[2K", "\x85", "\u2028", "\x00"])
def test_a_name_does_not_begin_a_line(end: str) -> None:
    line = logged(f"topic{end}CRITICAL all is lost")
    assert line.splitlines() == [line[:-1]]
    assert "\x1b" not in line
    assert "CRITICAL all is lost" in line


def test_a_long_name_is_cut_and_says_so() -> None:
    line = logged("x" * 5_000_000)
    assert len(line) < MESSAGE_CHARACTERS_MAX + 100
    assert "(5000009 characters)" in line


def test_a_traceback_is_what_it_is() -> None:
    assert logged("this", error=ValueError("why")) == "WARNING refused: this\nValueError: why\n"


@given(st.text())
def test_any_text_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1
    one_line(text).encode()
