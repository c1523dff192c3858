"""Follows something that goes on by itself: a bar on a terminal, else lines."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Final

from magnetar.operator.plugin.drawing import RemainingTime, age
from magnetar.operator.plugin.progress import Progress
from magnetar.operator.plugin.running import console, note

LINE_SECONDS: Final = 10.0
"""Between two lines that differ in numbers only."""


async def follow(title: str, steps: AsyncIterator[Progress], *, goes_on: str) -> Progress:
    """The last one. `goes_on` is said to whoever presses Ctrl-C."""
    pace = RemainingTime()
    last = Progress(text="")
    try:
        if sys.stderr.isatty():
            last = await _draw(title, steps, pace)
        else:
            last = await _print(title, steps, pace)
    except asyncio.CancelledError:
        note(goes_on)
        raise
    return last


def _remaining(pace: RemainingTime, step: Progress) -> str:
    if not step.total or step.done >= step.total:
        return ""
    seconds = pace.remaining_seconds("", step.total - step.done, time.monotonic())
    return f", about {age(seconds)} more" if seconds is not None else ""


async def _draw(title: str, steps: AsyncIterator[Progress], pace: RemainingTime) -> Progress:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    last = Progress(text="")
    with Bars(*columns, TextColumn("{task.fields[detail]}", markup=False), console=console(error=True)) as bars:
        task = bars.add_task(title, total=None, detail="")
        async for last in steps:
            bars.update(task, completed=last.done, total=last.total or None, detail=last.text + _remaining(pace, last))
            if last.finished:
                break
    return last


async def _print(title: str, steps: AsyncIterator[Progress], pace: RemainingTime) -> Progress:
    last, said, said_at, kind = Progress(text=""), "", 0.0, ""
    async for last in steps:
        text = last.text + _remaining(pace, last)
        now = time.monotonic()
        words = "".join(letter for letter in last.text if not letter.isdigit())
        if text != said and (words != kind or now - said_at >= LINE_SECONDS or last.finished):
            note(f"{title}: {text}")
            said, said_at, kind = text, now, words
        if last.finished:
            break
    return last
