"""What a seed decides about two clusters: which way topics are replicated, and what goes wrong between the two."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

SHARE: Final = 1 / 3
"""Of the runs without transactions, compaction and brokers that only read. All others are what they were before."""

EAST: Final = "east"
WEST: Final = "west"

LINK_FAULTS: Final = (
    "cut_link",
    "deafen_link",
    "name_remote_alone",
    "slow_link",
    "split_link",
)

FORGETTING: Final = "forget_remote"
"""This one only where replication begins at the beginning: so everything has to arrive in spite of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionsParameters:
    """Of one run."""

    both_ways: bool
    """Else only from east to west."""
    start_at: str
    """Where replication begins that is new: a cursor that is lost is noticed by it, or repeats everything."""
    producers: int
    """Of each topic and cluster: those of one topic count alike."""
    batch_messages_max: int
    distance_seconds: float
    """What every piece takes longer at most from one cluster to the other."""
    queue_entries: int
    """What a replicator sends without a receipt."""
    whole_address: bool
    """The record of a cluster names all of its brokers, else the first one alone."""
    fault_kinds: tuple[str, ...]
    """Between the two clusters; each of them has its own besides."""
    faults: int

    @property
    def forgets(self) -> bool:
        """Whether replication is taken back for a while, and its cursors go."""
        return FORGETTING in self.fault_kinds


def draw_regions(seed: int) -> RegionsParameters | None:
    """None in two of three runs that could have two clusters."""
    rng = random.Random(f"{seed} geography")
    if rng.random() >= SHARE:
        return None
    start_at = rng.choice(("latest", "latest", "earliest"))
    fault_kinds = tuple(rng.sample(LINK_FAULTS, rng.randint(1, 4)))
    if start_at == "earliest" and rng.random() < 0.5:
        fault_kinds += (FORGETTING,)
    return RegionsParameters(
        both_ways=rng.random() < 0.6,
        start_at=start_at,
        producers=rng.choice((1, 2, 3, 3)),
        batch_messages_max=rng.choice((1, 1, 1, 4)),
        distance_seconds=rng.choice((0.0, 0.01, 0.1)),
        queue_entries=rng.choice((1, 5, 20, 1_000)),
        whole_address=rng.random() < 0.7,
        fault_kinds=fault_kinds,
        faults=rng.choice((0, rng.randint(2, 6), rng.randint(6, 16))),
    )
