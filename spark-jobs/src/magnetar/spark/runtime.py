"""One event loop for each Python process of Spark: Spark calls from plain threads, everything that waits runs here.

Workers are forked before any of this is imported and are used for many tasks, so that connections which are kept here
outlive the tasks that opened them."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator, Coroutine, Generator
from typing import Any, Final, TypeVar

T = TypeVar("T")

AHEAD_ITEMS_MAX: Final = 2
"""Batches (of some megabytes each) that are made while Spark takes the one before."""

_END: Final = object()


class EventLoopThread:
    """A loop in a thread of its own, which ends with the process."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="magnetar event loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result, waited for. An interrupt of the waiting thread cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Generator[T, None, None]:
        """The items, with a few made ahead. A caller that stops early stops the iterator."""
        ready: queue.Queue[Any] = queue.Queue()  # As many as there is room for.
        room = asyncio.Semaphore(AHEAD_ITEMS_MAX)
        pumping = asyncio.run_coroutine_threadsafe(_pump(items, ready, room), self._loop)
        try:
            while (item := ready.get()) is not _END:
                self._loop.call_soon_threadsafe(room.release)
                yield item
            pumping.result()
        finally:
            pumping.cancel()

    def stop(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _pump(items: AsyncIterator[T], ready: queue.Queue[Any], room: asyncio.Semaphore) -> None:
    try:
        async for item in items:
            ready.put(item)
            await room.acquire()
    finally:
        ready.put(_END)
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Not there for every platform that Spark runs on.
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_lock: Final = threading.Lock()
_thread: EventLoopThread | None = None


def event_loop_thread() -> EventLoopThread:
    """This process's; a child of a fork gets its own."""
    global _thread
    with _lock:
        if _thread is None or _thread.process_id != os.getpid():
            _thread = EventLoopThread()
        return _thread


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, from a plain thread."""
    return event_loop_thread().run(coroutine)
