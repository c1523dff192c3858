"""What the standalone tells its user: that it is ready, and where; that it stops."""

from __future__ import annotations

import sys
from pathlib import Path

from magnetar.process.console import BOLD, DIM, GREEN, YELLOW, styled, write_lines


def show_ready(service_url: str, admin_url: str, data_directory: Path, seconds: float) -> None:
    """Where everything is, and two lines to try it with."""
    example = (
        f'import pulsar; client = pulsar.Client("{service_url}")',
        'client.create_producer("greetings").send(b"hello"); client.close()',
    )

    def shown(text: str, style: str) -> str:
        return styled(text, style, sys.stdout)

    write_lines(
        sys.stdout,
        f"{shown('●', GREEN)} {shown('Magnetar is ready', BOLD)} {shown(f'in {seconds:.2f} s', DIM)}",
        "",
        f"  {shown('service URL', DIM)}  {shown(service_url, BOLD)}",
        f"  {shown('admin URL', DIM)}    {shown(admin_url, BOLD)}",
        f"  {shown('data', DIM)}         {data_directory}",
        "",
        f"  {shown('Try it (pip install pulsar-client):', DIM)}",
        *(f"    {line}" for line in example),
        "",
        f"  {shown('Ctrl-C stops it.', DIM)}",
    )


def show_stopping() -> None:
    """The answer to the first Ctrl-C."""
    write_lines(sys.stderr, f"{styled('●', YELLOW)} Stopping… {styled('(Ctrl-C again leaves at once)', DIM)}")


def show_stopped() -> None:
    """The last line of a clean stop."""
    write_lines(sys.stderr, f"{styled('●', GREEN)} Stopped. Everything is on disk.")
