"""A cache with a budget."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WeightedCache(Generic[K, V]):
    """Keeps what was used last, as long as all weights together stay within the budget."""

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._weight = 0
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The value kept for a key, None when there is none."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Keep a value, unless it alone is beyond the budget."""
        self.discard(key)
        if weight > self._weight_max:
            return
        self._kept[key] = (value, weight)
        self._weight += weight
        while self._weight > self._weight_max:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._weight -= dropped

    def discard(self, key: K) -> None:
        """Forget a key; an unknown one is no error."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._weight -= found[1]

    def clear(self) -> None:
        """Forget all that is kept."""
        self._kept.clear()
        self._weight = 0
