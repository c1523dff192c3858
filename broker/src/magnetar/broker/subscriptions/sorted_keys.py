"""Whole numbers in order, each once, in short lists: putting one among a million others moves a few hundred of them.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final

LIST_KEYS_MAX: Final = 512
"""A longer list is cut in two. Longer ones are slow to move, more of them slow to search."""


class SortedKeys:
    """The keys; `count` of them."""

    __slots__ = ("_firsts", "_lists", "count")

    def __init__(self) -> None:
        self.count = 0
        self._lists: list[list[int]] = []
        self._firsts: list[int] = []
        """The first key of each list."""

    def add(self, key: int) -> None:
        """Put in what is not there."""
        self.count += 1
        if not self._lists:
            self._lists.append([key])
            self._firsts.append(key)
            return
        at = max(0, bisect_right(self._firsts, key) - 1)
        keys = self._lists[at]
        insort(keys, key)
        self._firsts[at] = keys[0]
        if len(keys) > LIST_KEYS_MAX:
            half = len(keys) >> 1
            self._lists.insert(at + 1, keys[half:])
            self._firsts.insert(at + 1, keys[half])
            del keys[half:]

    def first_from(self, key: int) -> int:
        """The first one at or behind a key; -1 when there is none."""
        at = bisect_right(self._firsts, key) - 1
        if at >= 0:
            keys = self._lists[at]
            index = bisect_left(keys, key)
            if index < len(keys):
                return keys[index]
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else -1

    def take_before(self, key: int) -> list[int]:
        """Take out all before a key, in order."""
        taken: list[int] = []
        whole = 0
        while whole < len(self._lists) and self._lists[whole][-1] < key:
            taken += self._lists[whole]
            whole += 1
        if whole:
            del self._lists[:whole], self._firsts[:whole]
        if self._lists and self._firsts[0] < key:
            keys = self._lists[0]
            index = bisect_left(keys, key)
            taken += keys[:index]
            del keys[:index]
            self._firsts[0] = keys[0]
        self.count -= len(taken)
        return taken
