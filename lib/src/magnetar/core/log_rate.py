"""How often the log says the same: what a million clients can cause is no million lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

ALIKE_MAX: Final = 60
"""Warnings of one text in a period; with more, nobody reads them one by one."""

PERIOD_SECONDS: Final = 60.0

TEXTS_MAX: Final = 1_000
"""Texts that are counted; the code has fewer, but for libraries that put names into theirs."""


class AlikeFilter(logging.Filter):
    """For a handler: lets so many warnings and errors of one text through in a period, whatever names stand in it. The
    last one says that others are left out, and the first one of a later period how many were."""

    def __init__(self, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_seconds = clock_seconds
        self._counts: dict[tuple[str, str], tuple[float, int]] = {}
        """By logger and text: when the period began, and how many there were in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is logged. Called under the handler's lock."""
        if record.levelno < logging.WARNING:
            return True
        key = (record.name, str(record.msg))
        now_seconds = self._clock_seconds()
        begun_seconds, count = self._counts.get(key, (now_seconds, 0))
        if now_seconds - begun_seconds >= PERIOD_SECONDS:
            if count > ALIKE_MAX:
                _add(record, f"({count - ALIKE_MAX} more like this were left out before)")
            begun_seconds, count = now_seconds, 0
        count += 1
        if len(self._counts) >= TEXTS_MAX:
            self._counts.clear()
        self._counts[key] = begun_seconds, count
        if count == ALIKE_MAX:
            _add(record, "(more like this are left out for up to a minute)")
        return count <= ALIKE_MAX


def _add(record: logging.LogRecord, text: str) -> None:
    record.msg = f"{record.getMessage()} {text}"
    record.args = None
