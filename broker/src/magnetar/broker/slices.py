"""Work on many things, some at a time: a hundred thousand of them are never as many tasks, nor one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

CALLS_AT_ONCE: Final = 100
"""Partitions asked side by side; the client of other brokers has a bound of its own."""


async def in_slices(
    work: Callable[[Item], Awaitable[Result]], items: Sequence[Item], at_once: int = CALLS_AT_ONCE
) -> list[Result]:
    """What the work on each came to, in order. The first error is raised when its slice is through, and none begins."""
    results: list[Result] = []
    for first in range(0, len(items), at_once):
        tasks = [asyncio.ensure_future(work(item)) for item in items[first : first + at_once]]
        await asyncio.gather(*tasks, return_exceptions=True)
        # Results may be errors, too, if the work returns them.
        results += [task.result() for task in tasks]
    return results


TURN_SECONDS_MAX: Final = 0.005
"""Work in one go on behalf of one client: ten of these in a row are still no pause that others would notice."""


class TimeSlice:
    """One turn of the loop, for work that grows with what clients ask for: `if turn.over: await turn.pause()`."""

    __slots__ = ("_ends_seconds",)

    def __init__(self) -> None:
        self._ends_seconds = asyncio.get_running_loop().time() + TURN_SECONDS_MAX

    @property
    def over(self) -> bool:
        """Whether it is others' turn now."""
        return asyncio.get_running_loop().time() >= self._ends_seconds

    async def pause(self) -> None:
        """Let the others go on; then it is the next turn."""
        await asyncio.sleep(0)
        self._ends_seconds = asyncio.get_running_loop().time() + TURN_SECONDS_MAX
