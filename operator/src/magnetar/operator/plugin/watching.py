"""Draws the same thing again and again: in place on a terminal, else when it has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from magnetar.core.errors import Unavailable
from magnetar.operator.plugin.running import console

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH_SECONDS: Final = 2.0
"""Between two looks: five small requests each."""


async def watch(look: Callable[[], Awaitable[RenderableType]], *, every_seconds: float = REFRESH_SECONDS) -> None:
    """Until Ctrl-C. An API server that does not answer is said, and asked again; other errors end it."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    output = console()
    if not output.is_terminal:
        await _print_changes(look, every_seconds)
        return
    shown: RenderableType = Text("…")
    with Live(shown, console=output, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        while True:
            try:
                shown = await look()
                live.update(shown, refresh=True)
            except Unavailable as error:
                live.update(Group(shown, "", Text(f"{error}; trying again", style="red")), refresh=True)
            await asyncio.sleep(every_seconds)


async def _print_changes(look: Callable[[], Awaitable[RenderableType]], every_seconds: float) -> None:
    output, last = console(), ""
    while True:
        try:
            shown = await look()
        except Unavailable as error:
            shown = f"{error}; trying again"
        with output.capture() as captured:
            output.print(shown)
        if (text := captured.get()) != last:
            output.file.write(f"{text}\n")
            output.file.flush()
            last = text
        await asyncio.sleep(every_seconds)
