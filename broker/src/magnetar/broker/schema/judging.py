"""Where schemas are judged: on the event loop while they are small, else in a thread, one after the other.

Taking a schema of the largest size apart and comparing it takes up to a second of the processor; the event loop goes on
meanwhile. One at a time, so that what a few clients ask for takes no more than a part of the processor and of memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from magnetar.core.limits import KIB

INLINE_BYTES_MAX: Final = 4 * KIB
"""Schemas of so many bytes together are judged within 20 ms whatever they are, and usually within one."""

Result = TypeVar("Result")


class SchemaJudging:
    """Compares schemas outside the event loop, one comparison of the broker at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    async def run(self, size_bytes: int, work: Callable[[], Result]) -> Result:
        """Do the work on schemas that have so many bytes together; what it raises is raised."""
        if size_bytes <= INLINE_BYTES_MAX:
            return work()
        async with self._turn:
            return await asyncio.to_thread(work)
