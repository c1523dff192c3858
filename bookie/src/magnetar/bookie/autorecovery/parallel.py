"""Many small pieces of work, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def for_each(items: AsyncIterator[T], work: Callable[[T], Awaitable[None]], in_flight_max: int) -> None:
    """Do the work on every item. The first error ends it: what is under way is cancelled, the error raised."""
    running: set[asyncio.Task[None]] = set()

    async def one(item: T) -> None:
        await work(item)

    try:
        async for item in items:
            running.add(asyncio.create_task(one(item)))
            if len(running) >= in_flight_max:
                running = await _some_done(running)
        while running:
            running = await _some_done(running)
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


async def batches(items: AsyncIterator[T], size_max: int) -> AsyncIterator[list[T]]:
    """The items in lists of this size; the last one may be shorter."""
    batch: list[T] = []
    async for item in items:
        batch.append(item)
        if len(batch) == size_max:
            yield batch
            batch = []
    if batch:
        yield batch


async def _some_done(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    done, pending = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return pending
