"""The small parts of what is drawn: signs, bars, ages, rates. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.text import Text

GOOD: Final = "green"
BUSY: Final = "yellow"
BAD: Final = "red"
QUIET: Final = "dim"

_FULL_PERCENT: Final = 90
"""Bookies turn read-only soon after that (`diskUsageThreshold` is 95)."""
_HIGH_PERCENT: Final = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What the terminal can show."""

    good: str
    busy: str
    bad: str
    none: str
    full: str
    empty: str


UNICODE: Final = Signs(good="●", busy="◐", bad="✗", none="○", full="█", empty="░")
ASCII: Final = Signs(good="+", busy="~", bad="x", none="o", full="#", empty=".")


def signs_for(encoding: str) -> Signs:
    """By what the output is written in."""
    return UNICODE if encoding.lower().replace("-", "").startswith("utf") else ASCII


def sign(signs: Signs, colour: str) -> Text:
    """The mark in front of a line."""
    letters = {GOOD: signs.good, BUSY: signs.busy, BAD: signs.bad}
    return Text(letters.get(colour, signs.none), style=colour)


def bar(signs: Signs, percent: float, width: int = 10, colour: str = "") -> Text:
    """How much of something there is: █████░░░░░. A colour that is not given warns of what is full."""
    if not colour:
        colour = BAD if percent >= _FULL_PERCENT else BUSY if percent >= _HIGH_PERCENT else GOOD
    filled = max(0, min(width, round(percent * width / 100)))
    return Text(signs.full * filled, style=colour) + Text(signs.empty * (width - filled), style=QUIET)


def age(seconds: float) -> str:
    """A span as kubectl writes it, to two parts at most: 45s, 3m20s, 5h12m, 9d."""
    count = max(0, int(seconds))
    if count < 120:
        return f"{count}s"
    if count < 600:
        return f"{count // 60}m{count % 60}s" if count % 60 else f"{count // 60}m"
    if count < 3 * 3600:
        return f"{count // 60}m"
    if count < 8 * 3600:
        return f"{count // 3600}h{count % 3600 // 60}m"
    return f"{count // 3600}h" if count < 48 * 3600 else f"{count // 86400}d"


def rate_text(count: float) -> str:
    """A number per second: 0, 0.4, 12, 12.3k, 1.2M."""
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if count >= limit:
            return f"{count / (1e6 if unit == 'M' else 1e3):.1f}{unit}"
    return f"{count:.1f}" if 0 < count < 10 else f"{count:.0f}"


class RemainingTime:
    """How long something that is counted down will take, by what it took so far."""

    WINDOW_SECONDS: Final = 120.0
    """What was earlier says little: ledgers differ in size."""

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[float, int]]] = {}

    def remaining_seconds(self, name: str, left: int, now_seconds: float) -> float | None:
        """With this observation; None while nobody can say."""
        samples = self._samples.setdefault(name, [])
        if samples and left > samples[-1][1]:
            samples.clear()
        samples.append((now_seconds, left))
        while len(samples) > 2 and samples[0][0] < now_seconds - self.WINDOW_SECONDS:
            del samples[0]
        began, had = samples[0]
        if left == had or now_seconds <= began:
            return None
        return left * (now_seconds - began) / (had - left)
