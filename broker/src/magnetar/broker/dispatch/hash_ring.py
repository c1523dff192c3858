"""Consistent hashing of consumers, as Pulsar's Failover and Key_Shared dispatchers do it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from heapq import heappop, heappush
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


def failover_distance(topic_name: str, consumer_name: str) -> int:
    """How far it is on the ring, upwards, from a topic to the nearest point of a consumer.

    On a topic without partitions the nearest consumer is active (AbstractDispatcherSingleActiveConsumer). Nobody has to
    look at the points of the others for that.
    """
    topic = murmur3_32(topic_name.encode())
    points = range(POINTS_PER_CONSUMER)
    return min([(murmur3_32(f"{consumer_name}{point}".encode()) - topic) & POSITIVE_MASK for point in points])


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
        """By point, who has it, in the order in which they came. Empty until the points are settled."""
        self._points: list[int] = []
        self._unsorted = False
        self._emptied = False
        self._numbers = NameNumbers()
        self._places: dict[Consumer, tuple[int, array[int]]] = {}
        """Each consumer's number and points: to compute them again takes as long as all else of a removal."""

    def slot(self, key: bytes) -> int:
        """The slot that a key falls into."""
        return consistent_slot(key)

    def slot_of_hash(self, key_hash: int) -> int:
        """The slot of a key by its Murmur3 hash."""
        return consistent_slot_of_hash(key_hash)

    def add(self, consumer: Consumer) -> None:
        """Put a consumer's points on the ring."""
        number = self._numbers.take(consumer.name)
        points = self._points_of(consumer, number)
        self._places[consumer] = number, points
        for point in points:
            present = self._owners.get(point)
            if present is None:
                self._owners[point] = [consumer]
                self._points.append(point)
                self._unsorted = True
            else:
                present.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Take a consumer's points off the ring."""
        number, points = self._places.pop(consumer)
        self._numbers.give_back(consumer.name, number)
        for point in points:
            present = self._owners[point]
            present.remove(consumer)
            if not present:
                self._emptied = True

    def owner(self, slot: int) -> Consumer | None:
        """Who gets the keys of a slot; None when nobody is connected."""
        points = self._settled() if self._unsorted or self._emptied else self._points
        if not points:
            return None
        at = bisect_left(points, slot)
        return self._owners[points[at if at < len(points) else 0]][0]

    def owners(self) -> list[Consumer | None]:
        """The owner of each slot, by slot."""
        points, owners = self._settled(), self._owners
        if not points:
            return [None] * (KEY_HASH_RANGE + 1)
        table: list[Consumer | None] = [owners[points[0]][0]] * (KEY_HASH_RANGE + 1)
        before = points[0]
        for point in points:
            table[before + 1 : point + 1] = owners[point][:1] * (point - before)
            before = point
        return table

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """The slots that a consumer owns, as inclusive ranges in order; none once it has left. For statistics.

        Only its own points are looked at: there are up to 65 535 in all, too many for each of a thousand consumers.
        """
        if consumer not in self._places:
            return []
        found: list[tuple[int, int]] = []
        points, owners = self._settled(), self._owners
        for point in sorted(self._places[consumer][1]):
            if owners[point][0] is consumer:
                at = bisect_left(points, point)
                found.append((points[at - 1] + 1 if at else 1, point))
        if points[-1] < KEY_HASH_RANGE and owners[points[0]][0] is consumer:
            found.append((points[-1] + 1, KEY_HASH_RANGE))
        return _joined(found)

    def _settled(self) -> list[int]:
        """The points in order. They are put in order when somebody asks, not at each of a thousand changes."""
        owners = self._owners
        if self._emptied:
            self._emptied = False
            for point in [point for point in self._points if not owners[point]]:
                del owners[point]
            self._points = [point for point in self._points if point in owners]
        if self._unsorted:
            self._unsorted = False
            self._points.sort()
        return self._points

    def _points_of(self, consumer: Consumer, number: int) -> array[int]:
        """Each point once, in 16 bits."""
        points = range(self._points_per_consumer)
        return array("H", {consistent_slot(f"{consumer.name}\0{number}\0{point}".encode()) for point in points})


class NameNumbers:
    """Numbers for those who have the same name: always the lowest that is free."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, tuple[int, list[int]]] = {}
        """By name: how many numbers were given out, and a heap of those that came back."""

    def take(self, name: str) -> int:
        """A number that nobody else of this name has."""
        given, free = self._names.get(name, (0, []))
        if free:
            return heappop(free)
        self._names[name] = given + 1, free
        return given

    def give_back(self, name: str, number: int) -> None:
        """It is free again."""
        given, free = self._names[name]
        heappush(free, number)
        if len(free) == given:
            del self._names[name]


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and joined[-1][1] + 1 == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
