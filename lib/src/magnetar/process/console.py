"""What processes print to their users: that they are ready, and where, on standard output, which programs may read;
all else on standard error, where the log goes.

Drawn by hand: rich, which draws the help pages, would cost a tenth of a second of every start.
"""

from __future__ import annotations

import os
import sys
from typing import Final, TextIO

BOLD: Final = "1"
DIM: Final = "2"
RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """The text in a style, or as it is when the stream (None: standard error) is no terminal, or the user wants none
    (no-color.org)."""
    stream = stream if stream is not None else sys.stderr
    if stream is None or not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{style}m{text}\x1b[0m"


def show_error(message: str, hint: str) -> None:
    """What went wrong and what to do; no hint where the message says it."""
    write_lines(sys.stderr, f"{styled('●', RED)} {message}", *([f"  {styled(hint, DIM)}"] if hint else []))


def write_lines(stream: TextIO | None, *lines: str) -> None:
    """Print to standard output or error, also where that is closed, or a pipe whose reader has left: neither may keep a
    process from serving, or from stopping cleanly. What its encoding does not have is written as escapes."""
    if stream is None or stream.closed:
        return
    encoding = stream.encoding or "utf-8"
    text = "".join(f"{line}\n" for line in lines).encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # What is left in the buffer would fail once more when the interpreter ends, and its exit code be 120.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
