"""What the standalone prints to its user, on standard error.

Drawn by hand: rich, which draws the help pages, would cost a tenth of a second of every start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

BOLD: Final = "1"
DIM: Final = "2"
RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"


def styled(text: str, style: str) -> str:
    """The text in a style, or as it is when it goes to no terminal, or the user wants none (no-color.org)."""
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{style}m{text}\x1b[0m"


def show_ready(service_url: str, admin_url: str, data_directory: Path, seconds: float) -> None:
    """Where everything is, and two lines to try it with."""
    example = (
        f'import pulsar; client = pulsar.Client("{service_url}")',
        'client.create_producer("greetings").send(b"hello"); client.close()',
    )
    _print(
        f"{styled('●', GREEN)} {styled('Magnetar is ready', BOLD)} {styled(f'in {seconds:.2f} s', DIM)}",
        "",
        f"  {styled('service URL', DIM)}  {styled(service_url, BOLD)}",
        f"  {styled('admin URL', DIM)}    {styled(admin_url, BOLD)}",
        f"  {styled('data', DIM)}         {data_directory}",
        "",
        f"  {styled('Try it (pip install pulsar-client):', DIM)}",
        *(f"    {line}" for line in example),
        "",
        f"  {styled('Ctrl-C stops it.', DIM)}",
    )


def show_stopping() -> None:
    """The answer to the first Ctrl-C."""
    _print(f"{styled('●', YELLOW)} Stopping… {styled('(Ctrl-C again leaves at once)', DIM)}")


def show_stopped() -> None:
    """The last line of a clean stop."""
    _print(f"{styled('●', GREEN)} Stopped. Everything is on disk.")


def show_error(message: str, hint: str) -> None:
    """What went wrong and what to do; no hint where the message says it."""
    _print(f"{styled('●', RED)} {message}", *([f"  {styled(hint, DIM)}"] if hint else []))


def _print(*lines: str) -> None:
    # Our standard error may be gone: a pipe whose reader has left must not keep the cluster from stopping cleanly.
    try:
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):
        return
