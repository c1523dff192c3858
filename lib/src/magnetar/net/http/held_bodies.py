"""Whose request is given up when all that clients sent takes too much memory; no IO."""

from __future__ import annotations

from typing import Generic, TypeVar

Holder = TypeVar("Holder")


class HeldBodies(Generic[Holder]):
    """What is in memory of bodies, and of what came behind a request that is not answered yet."""

    def __init__(self, bytes_max: int, holders_max: int) -> None:
        self._bytes_max = bytes_max
        self._share_bytes = bytes_max // holders_max
        """Whoever holds no more cannot have brought about that all hold too much."""
        self._held: dict[Holder, int] = {}
        # Each is in the order in which they came to hold so much: to look through two thousand for each read of each
        # takes a second where all of them send at a time.
        self._much: dict[Holder, None] = {}
        self._little: dict[Holder, None] = {}
        self.held_bytes = 0
        """Of all."""

    def hold(self, holder: Holder, size_bytes: int, *, gives_way: bool) -> None:
        """It holds so much from now on. `gives_way`: it may be given up for others."""
        self.held_bytes += size_bytes - self._held.pop(holder, 0)
        if size_bytes:
            self._held[holder] = size_bytes
        _note(self._much, holder, belongs=gives_way and size_bytes > self._share_bytes)
        _note(self._little, holder, belongs=gives_way and 0 < size_bytes <= self._share_bytes)

    def next_to_go(self) -> Holder | None:
        """Who is given up, as all hold too much: of those with more than their share the oldest, else of the others."""
        if self.held_bytes <= self._bytes_max:
            return None
        oldest = next(iter(self._much), None)
        return next(iter(self._little), None) if oldest is None else oldest


def _note(among: dict[Holder, None], holder: Holder, *, belongs: bool) -> None:
    if belongs:
        among.setdefault(holder)
    else:
        among.pop(holder, None)
