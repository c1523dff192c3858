"""Consistent hashing of consumers, as Pulsar's Failover and Key_Shared dispatchers do it."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from magnetar.core.hashing import murmur3_32

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer

POINTS_PER_CONSUMER: Final = 100
"""Points of each consumer on a ring, unless `subscriptionKeySharedConsistentHashingReplicaPoints` says another number
for Key_Shared."""

POSITIVE_MASK: Final = 0x7FFF_FFFF
"""Pulsar drops the sign bit of its Murmur3 hashes."""

KEY_HASH_RANGE: Final = 65_535
"""Slots of the consistent hashing selector: 1..65535, because 0 stands for "hash not known"."""

STICKY_HASH_RANGE: Final = 65_536
"""Slots of the sticky selector: 0..65535, the range that clients give their hash ranges in."""


def failover_index(topic_name: str, consumer_names: list[str]) -> int:
    """Which of the consumers is active on a topic without partitions (AbstractDispatcherSingleActiveConsumer).

    Points of equal hash belong to the later consumer; the ring is walked upwards from the topic's hash.
    """
    ring: dict[int, int] = {}
    for index, name in enumerate(consumer_names):
        for point in range(POINTS_PER_CONSUMER):
            ring[murmur3_32(f"{name}{point}".encode()) & POSITIVE_MASK] = index
    points = sorted(ring)
    at = bisect_left(points, murmur3_32(topic_name.encode()) & POSITIVE_MASK)
    return ring[points[at if at < len(points) else 0]]


def consistent_slot_of_hash(key_hash: int) -> int:
    """The slot on the consistent hash ring of a key with this Murmur3 hash."""
    return 1 + (key_hash & POSITIVE_MASK) % KEY_HASH_RANGE


def consistent_slot(key: bytes) -> int:
    """The slot of a key on the consistent hash ring."""
    return consistent_slot_of_hash(murmur3_32(key))


def sticky_slot_of_hash(key_hash: int) -> int:
    """The slot among sticky ranges of a key with this Murmur3 hash; 0 is not used."""
    return (key_hash & POSITIVE_MASK) % STICKY_HASH_RANGE or 1


def sticky_slot(key: bytes) -> int:
    """The slot of a key among sticky ranges."""
    return sticky_slot_of_hash(murmur3_32(key))


class ConsistentHashSelector:
    """The AUTO_SPLIT way of Key_Shared: each consumer owns the slots below its points on the ring.

    Consumers of one name get a number each, and a number that is free again is used first, so that a client that
    reconnects gets its slots back. Where two points fall together the consumer that came first keeps the slot.
    """

    def __init__(self, points_per_consumer: int = POINTS_PER_CONSUMER) -> None:
        self._points_per_consumer = points_per_consumer
        self._owners: dict[int, list[Consumer]] = {}
        self._points: list[int] = []
        self._numbers: dict[Consumer, int] = {}

    def slot(self, key: bytes) -> int:
        """The slot that a key falls into."""
        return consistent_slot(key)

    def slot_of_hash(self, key_hash: int) -> int:
        """The slot of a key by its Murmur3 hash."""
        return consistent_slot_of_hash(key_hash)

    def add(self, consumer: Consumer) -> None:
        """Put a consumer's points on the ring."""
        taken = {number for other, number in self._numbers.items() if other.name == consumer.name}
        number = 0
        while number in taken:
            number += 1
        self._numbers[consumer] = number
        for point in self._points_of(consumer, number):
            present = self._owners.setdefault(point, [])
            if consumer not in present:
                present.append(consumer)
        self._points = sorted(self._owners)

    def remove(self, consumer: Consumer) -> None:
        """Take a consumer's points off the ring."""
        number = self._numbers.pop(consumer)
        for point in self._points_of(consumer, number):
            present = self._owners.get(point)
            if present is None or consumer not in present:
                continue
            present.remove(consumer)
            if not present:
                del self._owners[point]
        self._points = sorted(self._owners)

    def owner(self, slot: int) -> Consumer | None:
        """Who gets the keys of a slot; None when nobody is connected."""
        points = self._points
        if not points:
            return None
        at = bisect_left(points, slot)
        return self._owners[points[at if at < len(points) else 0]][0]

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """The slots that a consumer owns, as inclusive ranges in order; for statistics."""
        found: list[tuple[int, int]] = []
        start = 1
        for point in self._points:
            if self._owners[point][0] is consumer:
                found.append((start, point))
            start = point + 1
        if self._points and start <= KEY_HASH_RANGE and self._owners[self._points[0]][0] is consumer:
            found.append((start, KEY_HASH_RANGE))
        return _joined(found)

    def _points_of(self, consumer: Consumer, number: int) -> list[int]:
        points = range(self._points_per_consumer)
        return [consistent_slot(f"{consumer.name}\0{number}\0{point}".encode()) for point in points]


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and joined[-1][1] + 1 == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
