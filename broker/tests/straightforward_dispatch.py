"""Who gets what, worked out anew from all consumers each time: what the choosers have to come to with less work."""

from __future__ import annotations

from bisect import bisect_left

from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.dispatch.hash_ring import (
    KEY_HASH_RANGE,
    POINTS_PER_CONSUMER,
    POSITIVE_MASK,
    STICKY_HASH_RANGE,
    consistent_slot,
)
from magnetar.core.hashing import murmur3_32


def failover_index(topic_name: str, consumer_names: list[str]) -> int:
    """Which of the consumers a hash ring picks for a topic."""
    ring: dict[int, int] = {}
    for index, name in enumerate(consumer_names):
        for point in range(POINTS_PER_CONSUMER):
            ring[murmur3_32(f"{name}{point}".encode()) & POSITIVE_MASK] = index
    points = sorted(ring)
    at = bisect_left(points, murmur3_32(topic_name.encode()) & POSITIVE_MASK)
    return ring[points[at if at < len(points) else 0]]


def failover_active(topic_name: str, partition: int, consumers: list[Consumer]) -> Consumer | None:
    """Who receives of consumers that came in this order; a partition of -1 is none."""
    if not consumers:
        return None
    ordered = sorted(consumers, key=lambda one: (one.priority_level, one.name))
    candidates = [one for one in ordered if one.priority_level == ordered[0].priority_level]
    if partition >= 0:
        return candidates[partition % len(candidates)]
    return candidates[failover_index(topic_name, [one.name for one in candidates])]


class Ring:
    """Consistent hashing with all points sorted after each change."""

    def __init__(self, points_per_consumer: int) -> None:
        self._count = points_per_consumer
        self._numbers: dict[Consumer, int] = {}
        self._owners: dict[int, list[Consumer]] = {}

    def add(self, consumer: Consumer) -> None:
        """It takes the lowest number that is free among its namesakes."""
        taken = {number for other, number in self._numbers.items() if other.name == consumer.name}
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        self._numbers[consumer] = number
        for point in self._points(consumer, number):
            self._owners.setdefault(point, []).append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Who came after it has its points."""
        for point in self._points(consumer, self._numbers.pop(consumer)):
            self._owners[point].remove(consumer)
            if not self._owners[point]:
                del self._owners[point]

    def owner(self, slot: int) -> Consumer | None:
        """Who has the next point."""
        points = sorted(self._owners)
        if not points:
            return None
        at = bisect_left(points, slot)
        return self._owners[points[at if at < len(points) else 0]][0]

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """A walk along the whole ring."""
        points = sorted(self._owners)
        owners = [self._owners[point][0] for point in points]
        found = [(before + 1, point) for before, point in zip([0, *points], points, strict=False)]
        if points and points[-1] < KEY_HASH_RANGE:
            found.append((points[-1] + 1, KEY_HASH_RANGE))
            owners.append(owners[0])
        joined: list[tuple[int, int]] = []
        for (start, end), owner in zip(found, owners, strict=True):
            if owner is consumer and joined and joined[-1][1] + 1 == start:
                joined[-1] = (joined[-1][0], end)
            elif owner is consumer:
                joined.append((start, end))
        return joined

    def _points(self, consumer: Consumer, number: int) -> set[int]:
        return {consistent_slot(f"{consumer.name}\0{number}\0{point}".encode()) for point in range(self._count)}


class Halves:
    """Ranges in halves: the widest is looked for among all."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._owners: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        """It gets the lower half of the widest range."""
        if not self._ends:
            self._ends.append(STICKY_HASH_RANGE)
            self._owners.append(consumer)
            return
        starts = [0, *self._ends]
        widest = max(range(len(self._ends)), key=lambda index: self._ends[index] - starts[index])
        width = self._ends[widest] - starts[widest]
        self._ends.insert(widest, self._ends[widest] - width // 2)
        self._owners.insert(widest, consumer)

    def remove(self, consumer: Consumer) -> None:
        """The range above takes its slots."""
        index = self._owners.index(consumer)
        del self._owners[index]
        del self._ends[min(index, max(0, len(self._ends) - 2))]

    def owner(self, slot: int) -> Consumer | None:
        """Whose range the slot is in."""
        return self._owners[bisect_left(self._ends, slot)] if self._ends else None

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """A walk along all ends."""
        starts = [0, *(end + 1 for end in self._ends)]
        found = zip(self._owners, starts, self._ends, strict=False)
        return [(start, end) for owner, start, end in found if owner is consumer]


class Named:
    """Ranges that consumers name."""

    def __init__(self) -> None:
        self._ranges: dict[Consumer, list[tuple[int, int]]] = {}

    def add(self, consumer: Consumer) -> bool:
        """Whether it may have its ranges."""
        policy = consumer.identity.key_shared
        assert policy is not None
        slots = [slot for start, end in policy.ranges for slot in range(start, end + 1)]
        if len(slots) != len(set(slots)) or any(self.owner(slot) for slot in slots):
            return False
        self._ranges[consumer] = policy.ranges
        return True

    def remove(self, consumer: Consumer) -> None:
        """Nobody has its slots."""
        del self._ranges[consumer]

    def owner(self, slot: int) -> Consumer | None:
        """Who named the slot."""
        found = [one for one, ranges in self._ranges.items() for start, end in ranges if start <= slot <= end]
        return found[0] if found else None

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """What it named, in order."""
        return sorted(self._ranges.get(consumer, []))


class RoundRobin:
    """Turns of one entry, by priority: `None` where nobody has room."""

    def __init__(self) -> None:
        self._levels: dict[int, tuple[list[Consumer], list[int]]] = {}
        """By priority: the consumers, and where the next turn begins."""

    def add(self, consumer: Consumer) -> None:
        """It comes last."""
        self._levels.setdefault(consumer.priority_level, ([], [0]))[0].append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Those behind it move up; the turn stays where it is."""
        consumers, _ = self._levels[consumer.priority_level]
        consumers.remove(consumer)
        if not consumers:
            del self._levels[consumer.priority_level]

    def next(self, rooms: dict[Consumer, int]) -> Consumer | None:
        """Whose turn it is."""
        for priority in sorted(self._levels):
            consumers, turn = self._levels[priority]
            for offset in range(len(consumers)):
                index = (turn[0] + offset) % len(consumers)
                if rooms[consumers[index]] > 0:
                    turn[0] = (index + 1) % len(consumers)
                    return consumers[index]
        return None
