"""What a seed decides about compaction: when topics are compacted, and who reads them so."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

SHARE: Final = 1 / 4
"""Of the runs. The others are what they were before there was compaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionParameters:
    """Of one run: all of its topics are compacted."""

    threshold_bytes: int
    """0: only when somebody asks."""
    pause_seconds: float
    """Mean between two requests to compact a topic."""
    insistent_share: float
    """Requests that are made twice in a row."""
    keeps_without_key: bool
    readers: int
    """Of each topic, with `readCompacted`."""
    permits: int
    scan_pause_seconds: float
    """Between two readings of a topic."""


def draw_compaction(seed: int) -> CompactionParameters | None:
    """None in three of four runs."""
    rng = random.Random(f"{seed} compaction")
    if rng.random() >= SHARE:
        return None
    return CompactionParameters(
        threshold_bytes=rng.choice((0, 0, 300, 1_500)),
        pause_seconds=rng.choice((0.2, 0.5, 1.0)),
        insistent_share=rng.choice((0.0, 0.5)),
        keeps_without_key=rng.random() < 0.75,
        readers=rng.choice((1, 2)),
        permits=rng.choice((2, 20)),
        scan_pause_seconds=rng.choice((0.5, 2.0)),
    )
