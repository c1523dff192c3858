"""What a seed decides about compaction: when topics are compacted, who reads them so, and what producers send then.

Who sends a message, and its number, say its key and whether it has a value: so each judge knows of any entry what is in
it, wherever it was read. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from zlib import crc32

SHARE: Final = 1 / 4
"""Of the runs. The others are what they were before there was compaction."""
TRIMS_SHARE: Final = 1 / 2
"""Of the runs that may trim."""
SLOW_SHARE: Final = 1 / 2
"""Of those that do."""
KEYED: Final = "keyed"
"""How the names of these producers begin; the seed follows, so that each run has other keys."""
KEYS: Final = 4
WITHOUT_KEY_OF_16: Final = 2
TOMBSTONES_OF_16: Final = 3


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
    trims: bool
    """Whether ledgers that all subscriptions and the last compaction have gone through are trimmed."""
    slow: bool
    """Readers give permits a while after they have used them: compactions and trims go past them."""


def draw_compaction(seed: int, *, alone: bool) -> CompactionParameters | None:
    """None in three of four runs. `alone`: without transactions and brokers that only read, which are not simulated on
    trimmed topics."""
    rng = random.Random(f"{seed} compaction")
    if rng.random() >= SHARE:
        return None
    drawn = CompactionParameters(
        threshold_bytes=rng.choice((0, 0, 300, 1_500)),
        pause_seconds=rng.choice((0.2, 0.5, 1.0)),
        insistent_share=rng.choice((0.0, 0.5)),
        keeps_without_key=rng.random() < 0.75,
        readers=rng.choice((1, 2)),
        permits=rng.choice((2, 20)),
        scan_pause_seconds=rng.choice((0.5, 2.0)),
        trims=alone and rng.random() < TRIMS_SHARE,
        slow=False,
    )
    return replace(drawn, slow=True, permits=2) if drawn.trims and rng.random() < SLOW_SHARE else drawn


class Message(NamedTuple):
    """One message."""

    key: str | None
    has_value: bool
    """Without one it deletes its key: a tombstone."""


def is_keyed(producer: str) -> bool:
    """Whether each of its messages has a key of its own, or none."""
    return producer.startswith(KEYED)


def message_of(producer: str, sequence_id: int) -> Message:
    """What a producer sends under a sequence id."""
    if not is_keyed(producer):
        return Message(None, True)
    drawn = crc32(b"%s %d" % (producer.encode(), sequence_id))
    kind, number = drawn % 16, drawn // 16 % KEYS
    if kind < WITHOUT_KEY_OF_16:
        return Message(None, True)
    return Message(f"key{number}", kind >= WITHOUT_KEY_OF_16 + TOMBSTONES_OF_16)
