"""The AUTO_SPLIT way of Key_Shared without consistent hashing: who joins gets half of the widest range."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from magnetar.broker.dispatch.hash_ring import STICKY_HASH_RANGE, sticky_slot, sticky_slot_of_hash
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer


class SplitRangeSelector:
    """Ranges of slots that follow one another, each with its consumer; together they are all slots.

    As Pulsar's brokers cut them with `subscriptionKeySharedUseConsistentHashing=false`, so that a key keeps its
    consumer when the broker changes (`HashRangeAutoSplitStickyKeyConsumerSelector`).
    """

    def __init__(self) -> None:
        self._ends: list[int] = []
        """The last slot of each range, ascending. The last of them is beyond any key's slot."""
        self._owners: list[Consumer] = []
        self._ends_of: dict[Consumer, int] = {}
        self._widest: list[tuple[int, int]] = []
        """A heap of ranges: less than nothing by their width, and their ends. Some are there no more."""

    def slot(self, key: bytes) -> int:
        """The slot that a key falls into."""
        return sticky_slot(key)

    def slot_of_hash(self, key_hash: int) -> int:
        """The slot of a key by its Murmur3 hash."""
        return sticky_slot_of_hash(key_hash)

    def add(self, consumer: Consumer) -> None:
        """Give a consumer the lower half of the widest range. Raises PulsarError(CONSUMER_ASSIGN_ERROR) when no range
        has two slots."""
        if not self._ends:
            self._ends.append(STICKY_HASH_RANGE)
            self._owners.append(consumer)
            self._ends_of[consumer] = STICKY_HASH_RANGE
            self._note(0)
            return
        # Of equally wide ones the first.
        widest, width = self._find_widest()
        if width <= 1:
            raise PulsarError(
                ServerError.CONSUMER_ASSIGN_ERROR,
                f"No more range can assigned to new consumer, assigned consumers {len(self._ends)}",
            )
        end = self._ends[widest] - width // 2
        self._ends.insert(widest, end)
        self._owners.insert(widest, consumer)
        self._ends_of[consumer] = end
        self._note(widest)
        self._note(widest + 1)

    def remove(self, consumer: Consumer) -> None:
        """The range above takes its slots over; there is none above the last one, which the one below takes."""
        index = bisect_left(self._ends, self._ends_of.pop(consumer))
        del self._owners[index]
        if index and index == len(self._owners):
            index -= 1
            self._ends_of[self._owners[index]] = self._ends[-1]
        del self._ends[index]
        if self._ends:
            self._note(index)
        else:
            self._widest.clear()

    def owner(self, slot: int) -> Consumer | None:
        """Who gets the keys of a slot; None when nobody is connected."""
        if not self._ends:
            return None
        return self._owners[bisect_left(self._ends, slot)]

    def owners(self) -> list[Consumer | None]:
        """The owner of each slot, by slot."""
        table: list[Consumer | None] = []
        for end, owner in zip(self._ends, self._owners, strict=True):
            table += [owner] * (end + 1 - len(table))
        return table or [None] * (STICKY_HASH_RANGE + 1)

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """The slots that a consumer owns, as one inclusive range; none once it has left. For statistics."""
        if consumer not in self._ends_of:
            return []
        index = bisect_left(self._ends, self._ends_of[consumer])
        return [(self._ends[index - 1] + 1 if index else 0, self._ends[index])]

    def _width(self, index: int) -> int:
        return self._ends[index] - (self._ends[index - 1] if index else 0)

    def _note(self, index: int) -> None:
        """This range is as wide as it was not before."""
        ends = self._ends
        heappush(self._widest, (-self._width(index), ends[index]))
        # Those that are there no more are given up lazily, but not so many that they outweigh the others.
        if len(self._widest) > 64 + 2 * len(ends):
            self._widest = [(-self._width(at), end) for at, end in enumerate(ends)]
            heapify(self._widest)

    def _find_widest(self) -> tuple[int, int]:
        """Its index and its width."""
        while True:
            negative_width, end = self._widest[0]
            index = bisect_left(self._ends, end)
            if index < len(self._ends) and self._ends[index] == end and self._width(index) == -negative_width:
                return index, -negative_width
            heappop(self._widest)
