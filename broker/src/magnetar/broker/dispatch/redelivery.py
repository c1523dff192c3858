"""Entries that have to be sent again, in their order.

They are bounded by what consumers may hold unacknowledged and by the look-ahead limits of the dispatchers.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.core.ids import Position


class RedeliveryQueue:
    """Positions, each once, smallest first; each with the key hash that it was sent under (0 = not known)."""

    __slots__ = ("_hashes", "_heap")

    def __init__(self) -> None:
        self._hashes: dict[Position, int] = {}
        self._heap: list[Position] = []

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, position: Position) -> bool:
        return position in self._hashes

    def add(self, position: Position, key_hash: int) -> bool:
        """Put a position in; False when it is there already."""
        hashes = self._hashes
        before = len(hashes)
        hashes.setdefault(position, key_hash)
        if len(hashes) == before:
            return False
        heappush(self._heap, position)
        return True

    def discard(self, position: Position) -> int | None:
        """Take a position out wherever it stands; returns its key hash, None when it is not there."""
        key_hash = self._hashes.pop(position, None)
        # Places in the heap are given up lazily, but not so many that they outweigh what is waiting.
        if key_hash is not None and len(self._heap) > 64 + 2 * len(self._hashes):
            self._heap = list(self._hashes)
            heapify(self._heap)
        return key_hash

    def take_first(self) -> tuple[Position, int] | None:
        """Take the smallest position out, with its key hash; None when there is none."""
        heap, hashes = self._heap, self._hashes
        while heap:
            position = heappop(heap)
            key_hash = hashes.pop(position, None)
            if key_hash is not None:
                return position, key_hash
        return None

    def take(self, count_max: int) -> list[tuple[Position, int]]:
        """Take the smallest positions out, with their key hashes."""
        taken: list[tuple[Position, int]] = []
        while self._heap and len(taken) < count_max:
            position = heappop(self._heap)
            key_hash = self._hashes.pop(position, None)
            if key_hash is not None:
                taken.append((position, key_hash))
        return taken

    def take_all(self) -> list[tuple[Position, int]]:
        """Empty the queue, in order."""
        return self.take(len(self._hashes))

    def clear(self) -> None:
        """Forget all entries that wait for redelivery."""
        self._hashes.clear()
        self._heap.clear()
