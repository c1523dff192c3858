"""What a windowed aggregation was told, taken apart: windows, groups and what is computed of each."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.spark.errors import BadOption

FUNCTIONS: Final = ("count", "sum", "avg", "min", "max", "distinct")
WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"

_DURATION: Final = re.compile(r"(\d+) ?([a-z]+)")
_UNITS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), ("milliseconds", 1)),
    **dict.fromkeys(("s", "sec", "second", "seconds"), ("seconds", 1_000)),
    **dict.fromkeys(("m", "min", "minute", "minutes"), ("minutes", 60_000)),
    **dict.fromkeys(("h", "hour", "hours"), ("hours", 3_600_000)),
    **dict.fromkeys(("d", "day", "days"), ("days", 86_400_000)),
}


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time as Spark takes it."""

    text: str
    milliseconds: int

    @staticmethod
    def parse(option: str, text: str, minimum_ms: int = 1) -> Duration:
        """The duration that a text like `30s`, `5min`, `1h` means; `option` is named in the error. Raises `BadOption`,
        also below `minimum_ms`."""
        match = _DURATION.fullmatch(text.strip())
        unit = _UNITS.get(match[2]) if match else None
        if match is None or unit is None or int(match[1]) * unit[1] < minimum_ms:
            raise BadOption(f"{option} {text!r} is not understood: a duration with its unit is accepted: 30s, 5min, 1h")
        return Duration(f"{int(match[1])} {unit[0]}", int(match[1]) * unit[1])


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One column of the result."""

    function: str
    column: str
    """What it is of; empty for the count of messages."""

    @property
    def name(self) -> str:
        """The name of the result's column: `count`, `sum_amount`."""
        return f"{self.function}_{plain(self.column)}" if self.column else self.function

    @staticmethod
    def parse(text: str) -> Aggregate:
        """The aggregate that a text like `count` or `sum:amount` means. Raises `BadOption`."""
        function, _, column = text.partition(":")
        if function not in FUNCTIONS or bool(column) != (function != "count"):
            wanted = ", ".join("count" if one == "count" else f"{one}:COLUMN" for one in FUNCTIONS)
            raise BadOption(f"--aggregate {text!r} is not understood: {wanted} are accepted")
        return Aggregate(function, column)


def plain(column: str) -> str:
    """A name that a value's column may have: of `__key` key, of `a.b` a_b."""
    return column.lstrip("_").replace(".", "_")


def parse_windows(window: str, slide: str) -> tuple[Duration, Duration]:
    """A window's length, and after how long the next one begins: as long, unless that is said. `BadOption`."""
    length = Duration.parse("--window", window)
    step = Duration.parse("--slide", slide) if slide else length
    if step.milliseconds > length.milliseconds:
        raise BadOption(
            f"--slide {slide} is longer than --window {window}: what comes between windows would be left out"
        )
    return length, step


def check_names(by: Sequence[str], aggregates: Sequence[Aggregate], columns: Collection[str]) -> None:
    """Check that columns which are named are there, and that those which come out have a name each. `BadOption`."""
    used = [*by, *(one.column for one in aggregates if one.column)]
    missing = [name for name in used if name not in columns and name.partition(".")[0] not in columns]
    if missing:
        raise BadOption(f"there is no column {', '.join(missing)}; there are {', '.join(columns)}")
    names = [WINDOW_START, WINDOW_END, *map(plain, by), *(one.name for one in aggregates)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadOption(f"two columns of the result would be called {', '.join(twice)}: leave out one of them")
