"""`asyncio.gather` for many questions of which a bounded number is asked at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def bounded_gather(limit: asyncio.Semaphore, items: Iterable[T], ask: Callable[[T], Awaitable[R]]) -> list[R]:
    """The answers in the order of `items`; as many are asked at a time as `limit` lets through. The first error of
    `ask` is raised and cancels the others, which mostly would wait for the same."""

    async def one(item: T) -> R:
        async with limit:
            return await ask(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
