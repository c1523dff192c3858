"""Threads that wait for one mounted file system. A mount that hangs holds these, and none that others need: names of
hosts, for one, are looked up in the threads of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Final, TypeVar

from magnetar.core.errors import forget_frames
from magnetar.tiered.api import OffloadDamaged, OffloadedLedgerNotFound, OffloadRefused, OffloadUnavailable
from magnetar.wire.offload.errors import BadOffload

THREADS_MAX: Final = 8
"""Of one file system. What comes beyond them waits."""

CANCELLED_SECONDS_MAX: Final = 10.0
"""How long who is cancelled waits for its thread, which uses the files. A mount that hangs is given up then: a topic
must be able to go to another broker."""

T = TypeVar("T")


class FileThreads:
    """The threads of one file system. Each lives for one call, and keeps no process from its end: it may never end."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(THREADS_MAX)

    async def run(self, folder: Path, work: Callable[[], T], ledger_id: int = -1, entry_id: int = 0) -> T:
        """Run work on files in a thread; errors of the disk become ours. Even who is cancelled waits for it for a
        while. Its place is free when the thread ends: mounts that hang must not collect threads."""
        await self._places.acquire()
        try:
            return await _finished(_started(work, self._places.release))
        except BadOffload as error:
            raise OffloadDamaged((ledger_id, entry_id), f"{folder} is damaged: {error}") from None
        except FileNotFoundError as error:
            raise OffloadedLedgerNotFound(f"{folder}: {error}") from None
        except PermissionError as error:
            raise OffloadRefused(f"{folder}: {error}") from None
        except OSError as error:
            raise OffloadUnavailable(f"{folder}: {error}") from None


def _started(work: Callable[[], T], ended: Callable[[], None]) -> asyncio.Future[T]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def told(tell: Callable[[], None]) -> None:
        ended()
        if not answer.done():
            tell()

    def in_thread() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001  (raised where it is waited for)
            tell = partial(answer.set_exception, error)
        else:
            tell = partial(answer.set_result, result)
        with suppress(RuntimeError):  # The loop is closed, and nobody waits any more.
            loop.call_soon_threadsafe(told, tell)

    Thread(target=in_thread, name="offloaded-files", daemon=True).start()
    return answer


async def tidied(work: Awaitable[None]) -> None:
    """Clean up behind a failure, or let go, as far as a mount that may hang lets it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CANCELLED_SECONDS_MAX):
            await work


async def _finished(answer: asyncio.Future[T]) -> T:
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait((answer,), timeout=CANCELLED_SECONDS_MAX)
        if not done:
            answer.cancel()  # Nobody is told any more.
        elif not answer.cancelled():
            forget_frames(answer.exception())
        raise
