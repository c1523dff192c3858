"""Lines of logs with their pod in front. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from magnetar.operator.plugin.logs.merge import Line
from rich.text import Text

_COLOURS: Final = ("cyan", "green", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta", "bright_blue")
"""Red and yellow are for what goes wrong."""
_ERROR: Final = re.compile(r"\b(ERROR|FATAL|CRITICAL|Traceback|error|fatal|critical)\b")
_WARNING: Final = re.compile(r"\b(WARN|WARNING|warn|warning)\b")
_HEAD: Final = 160
"""The level stands near the beginning of a line."""


class LineDrawing:
    """Draws lines; each source has a colour, all texts begin in the same column."""

    def __init__(self, *, times: bool) -> None:
        self._times = times
        self._colours: dict[str, str] = {}
        self._width = 0

    def sources(self, names: Iterable[str]) -> None:
        """Who will speak."""
        for name in names:
            self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
            self._width = max(self._width, len(name))

    def draw(self, line: Line) -> Text:
        """One line."""
        self.sources([line.source])
        found = Text(line.source.ljust(self._width), style=self._colours[line.source])
        found.append("  ")
        if self._times:
            found.append(f"{line.time[:23]}Z  " if line.time else " " * 26, style="dim")
        head = line.text[:_HEAD]
        style = "red" if _ERROR.search(head) else "yellow" if _WARNING.search(head) else ""
        return found.append(line.text, style=style)
