"""A question that many ask at the same time and that is asked once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from magnetar.core.errors import Unavailable

T = TypeVar("T")


class OneRequest(Generic[T]):
    """All who want an answer while none is asked for share the next one: one that was asked for after they wanted it.

    One is asked for at a time, and one more waits."""

    def __init__(self, name: str, ask: Callable[[], Awaitable[T]]) -> None:
        self._name = name
        self._ask = ask
        self._closed = False
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def answer(self) -> T:
        """The answer, or what came instead."""
        if self._over():
            raise Unavailable(f"{self._name}: nobody asks any more")
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._after(self._current), name=self._name)
            self._next.add_done_callback(_looked_at)
        asked = self._next
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            if self._over() and asked.cancelled():
                raise Unavailable(f"{self._name}: nobody asks any more") from None
            raise

    async def close(self) -> None:
        """Ask no more; who waits hears `Unavailable`."""
        self._closed = True
        tasks = [task for task in (self._current, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _over(self) -> bool:
        return self._closed

    async def _after(self, former: asyncio.Task[T] | None) -> T:
        if former is not None:
            await asyncio.wait([former])
        self._current, self._next = self._next, None
        try:
            return await self._ask()
        finally:
            self._current = None


def _looked_at(task: asyncio.Task[T]) -> None:
    """Those who wanted to know may all be gone."""
    if not task.cancelled():
        task.exception()
