"""The same work on many things, some at a time: a hundred thousand of them are never a hundred thousand tasks."""

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
