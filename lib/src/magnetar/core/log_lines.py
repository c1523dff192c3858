"""Log lines that are what the code says, whatever names clients give to things."""

from __future__ import annotations

import logging
import re
from typing import Final

MESSAGE_CHARACTERS_MAX: Final = 4_000
"""Names of clients stand in messages, and a name may be as long as a frame."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class LineFormatter(logging.Formatter):
    """One message is one line of bounded length; a traceback follows it as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """The record as one line of the log."""
        record.message = one_line(record.message)
        return super().formatMessage(record)


def one_line(text: str) -> str:
    """With control characters written out, and no longer than a line may be."""
    if len(text) > MESSAGE_CHARACTERS_MAX:
        text = f"{text[:MESSAGE_CHARACTERS_MAX]}… ({len(text)} characters)"
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
