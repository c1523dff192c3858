"""Stretches of objects that were read, or are being read ahead: all readers of one store share one bound of memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, NamedTuple

from magnetar.core.errors import MagnetarError, forget_frames
from magnetar.tiered.api import OffloadUnavailable
from magnetar.tiered.object_store import ObjectStore
from magnetar.wire.offload.errors import BadOffload

READS_AT_ONCE: Final = 16
"""Requests of all readers of one store. Each holds a chunk; others wait."""


class ChunkedObject(NamedTuple):
    """An object that is read in chunks."""

    store: ObjectStore
    key: str
    size_bytes: int


class ChunkCache:
    """Chunks of one size by object and number; the longest unused ones go first. Each is asked for once, whoever wants
    it. Beyond the bound there are only chunks that somebody waits for."""

    __slots__ = ("_chunks", "_chunks_max", "_places", "chunk_bytes")

    def __init__(self, chunk_bytes: int, chunks_max: int) -> None:
        self.chunk_bytes = chunk_bytes
        self._chunks_max = chunks_max
        self._chunks: OrderedDict[tuple[str, str, int], asyncio.Task[bytes]] = OrderedDict()
        self._places = asyncio.Semaphore(READS_AT_ONCE)

    @property
    def chunk_count(self) -> int:
        """How many chunks are held or under way."""
        return len(self._chunks)

    async def read(self, source: ChunkedObject, number: int) -> bytes:
        """One chunk; the last of an object may be shorter. Raises what the store raises, `BadOffload` for less than
        there should be; then the next call asks again. `OffloadUnavailable` if the cache was closed meanwhile."""
        task = self._task(source, number)
        try:
            return await asyncio.shield(task)
        except MagnetarError:
            key = (source.store.place, source.key, number)
            if self._chunks.get(key) is task:
                del self._chunks[key]
            raise
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if task.cancelled() and (current is None or not current.cancelling()):
                raise OffloadUnavailable(f"{source.store.place} was closed while {source.key} was read") from None
            raise

    def read_ahead(self, source: ChunkedObject, number: int) -> None:
        """Begin to read a chunk, if there is one of this number and room for it."""
        if number * self.chunk_bytes < source.size_bytes and (len(self._chunks) < self._chunks_max or self._has_idle()):
            self._task(source, number)

    def forget(self, source: ChunkedObject) -> None:
        """A reader of this object is gone: what is held of it goes, what others wait for stays."""
        place = (source.store.place, source.key)
        for key in [key for key, task in self._chunks.items() if key[:2] == place and task.done()]:
            self._remove(key)

    async def close(self) -> None:
        """End what is under way."""
        tasks = list(self._chunks.values())
        self._chunks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _task(self, source: ChunkedObject, number: int) -> asyncio.Task[bytes]:
        key = (source.store.place, source.key, number)
        task = self._chunks.get(key)
        if task is not None and (not task.done() or (not task.cancelled() and task.exception() is None)):
            self._chunks.move_to_end(key)
            return task
        if task is not None:
            self._remove(key)
        while len(self._chunks) >= self._chunks_max and self._has_idle():
            self._remove(next(iter(self._chunks)))
        task = self._chunks[key] = asyncio.get_running_loop().create_task(self._fetch(source, number))
        return task

    async def _fetch(self, source: ChunkedObject, number: int) -> bytes:
        offset = number * self.chunk_bytes
        size_bytes = min(self.chunk_bytes, source.size_bytes - offset)
        async with self._places:
            data = await source.store.read_range(source.key, offset, size_bytes)
        if len(data) != size_bytes:
            raise BadOffload(f"{len(data)} bytes from {offset} on, where {size_bytes} should be")
        return data

    def _has_idle(self) -> bool:
        """Whether the longest unused chunk is one that nobody can be waiting for."""
        return next(iter(self._chunks.values())).done()

    def _remove(self, key: tuple[str, str, int]) -> None:
        task = self._chunks.pop(key)
        if not task.cancelled():
            forget_frames(task.exception())
