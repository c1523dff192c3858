"""The STICKY way of Key_Shared: each consumer names the slots whose keys it wants."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from magnetar.broker.dispatch.hash_ring import STICKY_HASH_RANGE, sticky_slot, sticky_slot_of_hash
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer


class StickyRangeSelector:
    """Inclusive ranges of slots and their consumers; ranges never overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, Consumer]] = []

    def slot(self, key: bytes) -> int:
        """The slot that a key falls into."""
        return sticky_slot(key)

    def slot_of_hash(self, key_hash: int) -> int:
        """The slot of a key by its Murmur3 hash."""
        return sticky_slot_of_hash(key_hash)

    def add(self, consumer: Consumer) -> None:
        """Give a consumer its ranges. Raises PulsarError(CONSUMER_ASSIGN_ERROR) for bad or overlapping ones."""
        policy = consumer.identity.key_shared
        wanted = sorted(policy.ranges) if policy is not None else []
        if not wanted:
            raise PulsarError(ServerError.CONSUMER_ASSIGN_ERROR, "Ranges for KeyShared policy must not be empty.")
        merged = sorted(
            [*self._ranges, *((start, end, consumer) for start, end in wanted)], key=lambda item: (item[0], item[1])
        )
        for start, end in wanted:
            if not 0 <= start <= end < STICKY_HASH_RANGE:
                raise PulsarError(
                    ServerError.CONSUMER_ASSIGN_ERROR, f"Range [{start}, {end}] does not lie within the hash slots"
                )
        for former, latter in pairwise(merged):
            if latter[0] <= former[1]:
                other = former[2] if former[2] is not consumer else latter[2]
                raise PulsarError(
                    ServerError.CONSUMER_ASSIGN_ERROR,
                    f"Range conflict with consumer {other.name}: [{former[0]}, {former[1]}] and "
                    f"[{latter[0]}, {latter[1]}]",
                )
        self._use(merged)

    def remove(self, consumer: Consumer) -> None:
        """Its slots have no consumer any more."""
        self._use([item for item in self._ranges if item[2] is not consumer])

    def owner(self, slot: int) -> Consumer | None:
        """Who gets the keys of a slot; None when nobody asked for it."""
        at = bisect_right(self._starts, slot) - 1
        if at < 0:
            return None
        _, end, consumer = self._ranges[at]
        return consumer if slot <= end else None

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """The ranges that a consumer asked for, in order."""
        return [(start, end) for start, end, owner in self._ranges if owner is consumer]

    def _use(self, ranges: list[tuple[int, int, Consumer]]) -> None:
        self._ranges = ranges
        self._starts = [item[0] for item in ranges]
