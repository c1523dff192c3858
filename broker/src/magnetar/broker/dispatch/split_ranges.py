"""The AUTO_SPLIT way of Key_Shared without consistent hashing: who joins gets half of the widest range."""

from __future__ import annotations

from bisect import bisect_left
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
            return
        starts = [0, *self._ends]
        # Of equally wide ones the first.
        widest = max(range(len(self._ends)), key=lambda index: self._ends[index] - starts[index])
        width = self._ends[widest] - starts[widest]
        if width <= 1:
            raise PulsarError(
                ServerError.CONSUMER_ASSIGN_ERROR,
                f"No more range can assigned to new consumer, assigned consumers {len(self._ends)}",
            )
        self._ends.insert(widest, self._ends[widest] - width // 2)
        self._owners.insert(widest, consumer)

    def remove(self, consumer: Consumer) -> None:
        """The range above takes its slots over; there is none above the last one, which the one below takes."""
        index = self._owners.index(consumer)
        del self._owners[index]
        del self._ends[min(index, max(0, len(self._ends) - 2))]

    def owner(self, slot: int) -> Consumer | None:
        """Who gets the keys of a slot; None when nobody is connected."""
        if not self._ends:
            return None
        return self._owners[bisect_left(self._ends, slot)]

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """The slots that a consumer owns, as one inclusive range; for statistics."""
        index = self._owners.index(consumer)
        return [(self._ends[index - 1] + 1 if index else 0, self._ends[index])]
