"""What a seed decides about brokers that only read: how many there are, who consumes there, what goes wrong there."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from magnetar.broker.settings.read_only import ReadOnlySettings

NAME: Final = "reading"
"""How the names of their hosts begin."""

SHARE: Final = 1 / 4
"""Of the runs. The others are what they were before there were such brokers."""

READ_ONLY_FAULTS: Final = (
    "cut_off_reading_broker",
    "expire_reading_session",
    "kill_reading_broker",
    "pause_reading_broker",
    "restart_reading_broker",
    "split_reading_from_bookies",
    "split_reading_from_metadata",
    "split_reading_from_owners",
)

HARMLESS_FAULTS: Final = frozenset(
    {
        "cut_off_proxy",
        "kill_proxy",
        "pause_proxy",
        "restart_proxy",
        "slow_links",
    }
)
"""In spite of these a broker that only reads, the topics' owners and clients understand each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnlyParameters:
    """Of one run."""

    brokers: int
    share: float
    """Consumers and readers that begin there."""
    move_share: float
    """Attachments before which a client goes to the other kind of broker."""
    unsubscribe_share: float
    """Messages after which a consumer deletes its subscription."""
    leave_share: float
    """Messages after which a consumer leaves and subscribes again, beside what its subscription says."""
    calm: bool
    """Nothing goes wrong in this run: then more must hold."""
    fault_kinds: tuple[str, ...]
    settings: ReadOnlySettings


def draw_read_only(seed: int) -> ReadOnlyParameters | None:
    """None in three of four runs."""
    rng = random.Random(f"{seed} read-only")
    if rng.random() >= SHARE:
        return None
    return ReadOnlyParameters(
        brokers=rng.choice((1, 2, 3)),
        share=rng.choice((0.4, 0.7, 1.0)),
        move_share=rng.choice((0.0, 0.1, 0.4)),
        unsubscribe_share=rng.choice((0.0, 0.0, 0.0, 0.02)),
        fault_kinds=tuple(rng.sample(READ_ONLY_FAULTS, rng.randint(0, 3))),
        settings=ReadOnlySettings(
            enabled=True,
            position_interval_ms=rng.choice((20, 200, 1_000)),
            tail_interval_ms_min=rng.choice((1, 5, 50)),
            tail_interval_ms_max=rng.choice((50, 50, 500)),
        ),
        leave_share=rng.choice((0.0, 0.02, 0.1)),
        calm=rng.random() < 0.2,
    )
