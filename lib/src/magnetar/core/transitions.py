"""A state machine's table: what it lacks is illegal, and is told where it happens."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

from magnetar.core.errors import Misuse

S = TypeVar("S", bound=enum.Enum)


class Transitions(Generic[S]):
    """Which state leads to which; to stay in one is a transition too."""

    __slots__ = ("_next", "_what")

    def __init__(self, what: str, table: Mapping[S, Collection[S]]) -> None:
        """`what` is in these states, for the text of an error. Every state has a row."""
        self._what = what
        self._next = {before: frozenset(after) for before, after in table.items()}
        assert all(set(type(before)) == set(self._next) for before in self._next)

    def step(self, before: S, after: S) -> S:
        """The new state; `Misuse` when the old one does not lead there."""
        if after not in self._next[before]:
            raise Misuse(f"{self._what} does not go from {before.name} to {after.name}")
        return after

    def allows(self, before: S, after: S) -> bool:
        """Whether the old state leads to the new one: for what others say, such as a log."""
        return after in self._next[before]
