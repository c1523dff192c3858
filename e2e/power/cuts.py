"""Where to cut: before, during and after syncs and renames of each kind of file, so that rare ones have their turn."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.power.fates import Style
from e2e.power.recording import Event, Kind
from e2e.power.replaying import Beginning, Replay

_NUMBERS: Final = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")
_ANYWHERE_SHARE: Final = 0.2
_MARKED: Final = (Kind.SYNCED, Kind.RENAMED, Kind.OPENED, Kind.UNLINKED, Kind.MADE_DIRECTORY, Kind.TRUNCATED)


@dataclass(frozen=True, slots=True)
class Cut:
    """One moment, and what becomes of what was open then."""

    at: int
    style: Style
    reason: str


def choose_cuts(
    beginning: Beginning, events: Sequence[Event], first: int, count: int, rng: random.Random, focus: str = ""
) -> list[Cut]:
    """So many cuts behind the number `first`; with a focus only at changes whose kind contains that text."""
    kinds: dict[str, list[Event]] = {}
    paths = Replay(beginning).until(events, events[-1].end).followed if events else []
    for event, path in zip(events, paths, strict=True):
        if event.begin > first and (event.kind in _MARKED or event.durable):
            kinds.setdefault(_kind_of(event, path, beginning.root), []).append(event)
    kinds = {kind: found for kind, found in kinds.items() if focus in kind}
    cuts: list[Cut] = []
    last = max((event.end for event in events), default=first)
    waiting: list[str] = []
    styles: list[Style] = []
    while len(cuts) < count:
        if not styles:
            # Random ones differ each time, so they come more often.
            styles = [*Style, Style.RANDOM, Style.RANDOM, Style.TORN, Style.REORDERED]
            rng.shuffle(styles)
        style = styles.pop()
        if not kinds or (not focus and rng.random() < _ANYWHERE_SHARE):
            cuts.append(Cut(rng.randint(first, last), style, "anywhere"))
            continue
        if not waiting:
            waiting = sorted(kinds)
            rng.shuffle(waiting)
        kind = waiting.pop()
        event = rng.choice(kinds[kind])
        at, where = rng.choice(((event.begin - 1, "before"), (event.end - 1, "during"), (event.end, "after")))
        cuts.append(Cut(max(first, at), style, f"{where} {kind}"))
    return cuts


def _kind_of(event: Event, path: str, root: Path) -> str:
    what = "written through" if event.durable else event.kind.name.lower()
    return f"{what} {_NUMBERS.sub('#', path.removeprefix(f'{root}/'))}"
