"""What a seed decides about frames of transactions that come late."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

SHARE: Final = 2 / 5
"""Of the runs with transactions. The others are what they were before there were such frames."""

STREAM: Final = "delayed sends after the end"
"""The name of their chance: one by which no seed that a test or a page names is among these runs."""

MOVES: Final = ("unload_bundle", "transfer_bundle", "unload_bundle", "transfer_bundle")
"""Added to the faults of these runs: a frame is late at an owner that has come since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateParameters:
    """Of one run."""

    stragglers: int
    frames: int
    """Of each straggler, while there are faults."""
    frames_at_the_end: int
    """Of each kind and topic, when all brokers have been started again."""
    at_once_share: float
    """Messages that are sent at once; the others wait until their producer is attached anew."""
    acknowledged_share: float
    """Frames that acknowledge, where transactors share their subscription; the others publish."""
    pause_seconds: float


def draw_late(seed: int) -> LateParameters | None:
    """None in three of five runs."""
    rng = random.Random(f"{seed} {STREAM}")
    if rng.random() >= SHARE:
        return None
    return LateParameters(
        stragglers=rng.choice((1, 1, 2)),
        frames=rng.choice((6, 15, 30)),
        frames_at_the_end=rng.choice((1, 2, 4)),
        at_once_share=rng.choice((0.0, 0.3, 0.6)),
        acknowledged_share=rng.choice((0.2, 0.5)),
        pause_seconds=rng.choice((0.05, 0.2, 0.5)),
    )
