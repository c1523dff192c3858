"""What a client program is asked to do, and which combinations of it are tried."""

from __future__ import annotations

import itertools
import random
from dataclasses import asdict, dataclass
from enum import StrEnum


class SubscriptionType(StrEnum):
    """Pulsar's four, by their own names."""

    EXCLUSIVE = "Exclusive"
    FAILOVER = "Failover"
    SHARED = "Shared"
    KEY_SHARED = "Key_Shared"

    @property
    def ordered(self) -> bool:
        """Whether messages arrive in the order their producer sent them."""
        return self in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)

    @property
    def consumers(self) -> int:
        """How many consumers the workload attaches: one where only one is allowed, three elsewhere."""
        return 1 if self is SubscriptionType.EXCLUSIVE else 3


CLIENTS = ("python", "go", "java")
COMPRESSIONS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


@dataclass(frozen=True, slots=True)
class Workload:
    """One run of one client: produce `count` lines to a topic while consuming them in one subscription."""

    client: str
    subscription_type: SubscriptionType
    batched: bool
    compression: str
    keyed: bool
    partitions: int
    restart: bool
    count: int = 100_000
    producers: int = 2

    def __post_init__(self) -> None:
        assert self.client in CLIENTS, self.client
        assert self.compression in COMPRESSIONS, self.compression
        assert self.keyed or self.subscription_type is not SubscriptionType.KEY_SHARED, "Key_Shared needs keys"

    @property
    def name(self) -> str:
        """Short and unique within a matrix; becomes the topic's name."""
        parts = [
            self.client,
            self.subscription_type.value.lower().replace("_", ""),
            "batched" if self.batched else "unbatched",
            self.compression.lower(),
            *(["keyed"] if self.keyed else []),
            *([f"{self.partitions}partitions"] if self.partitions else []),
            *(["restart"] if self.restart else []),
        ]
        return "-".join(parts)

    def options(self) -> dict[str, object]:
        """What every client program gets, beside addresses and files."""
        return {**asdict(self), "consumers": self.subscription_type.consumers}


def matrix(count: int, seed: int = 1) -> list[Workload]:
    """A pairwise-covering set: any two values of any two dimensions meet in at least one workload.

    Greedy over a seeded shuffle of the full product, which is small; the same seed gives the same list.
    """
    dimensions: list[list[object]] = [
        list(CLIENTS),
        list(SubscriptionType),
        [True, False],
        list(COMPRESSIONS),
        [True, False],
        [0, 3],
        [True, False],
    ]
    candidates = [row for row in itertools.product(*dimensions) if _possible(row)]
    random.Random(seed).shuffle(candidates)
    missing = set().union(*(_pairs(row) for row in candidates))
    chosen: list[tuple[object, ...]] = []
    while missing:
        best = max(candidates, key=lambda row: len(_pairs(row) & missing))
        chosen.append(best)
        missing -= _pairs(best)
    return [Workload(*row, count=count) for row in sorted(chosen, key=str)]  # type: ignore[arg-type, misc]  # one per field


def _possible(row: tuple[object, ...]) -> bool:
    return not (row[1] is SubscriptionType.KEY_SHARED and row[4] is False)


def _pairs(row: tuple[object, ...]) -> set[tuple[int, object, int, object]]:
    return {(i, row[i], j, row[j]) for i in range(len(row)) for j in range(i + 1, len(row))}
