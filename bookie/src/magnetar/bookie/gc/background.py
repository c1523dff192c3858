"""Steps in a directory's background thread that survive the cancellation of whoever waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from magnetar.bookie.storage.directory_storage import DirectoryStorage

_Result = TypeVar("_Result")


async def step(storage: DirectoryStorage, function: Callable[[], _Result]) -> _Result:
    """Run a short function in the thread. A cancellation waits for its end: what it works on may then be closed."""
    running = asyncio.ensure_future(storage.run_in_background(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
