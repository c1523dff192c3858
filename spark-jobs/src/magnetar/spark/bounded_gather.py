"""Asking about many topics at a time, but not about all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def side_by_side(gate: asyncio.Semaphore, items: Iterable[T], ask: Callable[[T], Awaitable[R]]) -> list[R]:
    """The answers, in order; as many are asked at a time as `gate` lets through. The first error ends it: nobody waits
    for the others, which mostly would wait for the same."""

    async def one(item: T) -> R:
        async with gate:
            return await ask(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
