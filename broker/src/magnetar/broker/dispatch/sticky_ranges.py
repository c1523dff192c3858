"""The STICKY way of Key_Shared: each consumer names the slots whose keys it wants."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
        self._of_consumers: dict[Consumer, list[tuple[int, int]]] = {}

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
        for start, end in wanted:
            if not 0 <= start <= end < STICKY_HASH_RANGE:
                raise PulsarError(
                    ServerError.CONSUMER_ASSIGN_ERROR, f"Range [{start}, {end}] does not lie within the hash slots"
                )
        for start, end in wanted:
            self._check_free(consumer, start, end)
        for former, latter in pairwise(wanted):
            if latter[0] <= former[1]:
                raise _conflict(consumer, former, latter)
        for start, end in wanted:
            at = bisect_left(self._starts, start)
            self._starts.insert(at, start)
            self._ranges.insert(at, (start, end, consumer))
        self._of_consumers[consumer] = wanted

    def remove(self, consumer: Consumer) -> None:
        """Its slots have no consumer any more."""
        for start, _ in self._of_consumers.pop(consumer):
            at = bisect_left(self._starts, start)
            del self._starts[at]
            del self._ranges[at]

    def owner(self, slot: int) -> Consumer | None:
        """Who gets the keys of a slot; None when nobody asked for it."""
        at = bisect_right(self._starts, slot) - 1
        if at < 0:
            return None
        _, end, consumer = self._ranges[at]
        return consumer if slot <= end else None

    def owners(self) -> list[Consumer | None]:
        """The owner of each slot, by slot."""
        table: list[Consumer | None] = [None] * STICKY_HASH_RANGE
        for start, end, owner in self._ranges:
            table[start : end + 1] = [owner] * (end + 1 - start)
        return table

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """The ranges that a consumer asked for, in order."""
        return list(self._of_consumers.get(consumer, ()))

    def _check_free(self, consumer: Consumer, start: int, end: int) -> None:
        """Only the ranges before and behind can be in the way of one: those that are there do not overlap."""
        at = bisect_right(self._starts, start)
        for other_start, other_end, other in self._ranges[max(0, at - 1) : at + 1]:
            if other_start <= end and start <= other_end:
                first, second = sorted([(other_start, other_end), (start, end)])
                raise _conflict(other, first, second)


def _conflict(other: Consumer, former: tuple[int, int], latter: tuple[int, int]) -> PulsarError:
    return PulsarError(
        ServerError.CONSUMER_ASSIGN_ERROR,
        f"Range conflict with consumer {other.name}: [{former[0]}, {former[1]}] and [{latter[0]}, {latter[1]}]",
    )
