"""A cache of decoded nodes that is never older than what its store has told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from magnetar.metadata.store import MetadataStore, Node, Notification, SessionEvent

Value = TypeVar("Value")

ENTRIES_MAX: Final = 10_000
"""Policies and owners of as many namespaces and bundles as one broker serves; some kilobytes each."""


class NodeCache(Generic[Value]):
    """Nodes of one kind. Both what is there and what is not is kept until the store tells of a change there.

    Values that are handed out are shared: treat them as immutable. While the store is out of reach, what was read
    before is still handed out. Whoever asks for what is being read just now waits for the same read."""

    def __init__(
        self,
        store: MetadataStore,
        decode: Callable[[str, Node], Value],
        *,
        entries_max: int = ENTRIES_MAX,
        often_missing: bool = False,
    ) -> None:
        """`often_missing`: a watched read of a node that is not there takes ZooKeeper two requests; one that looks
        whether it is there first takes one, and two for a node that is."""
        self._store = store
        self._often_missing = often_missing
        self._decode = decode
        self._entries_max = entries_max
        self._entries: dict[str, tuple[Value, int] | None] = {}
        self._reads: dict[str, asyncio.Task[tuple[Value, int] | None]] = {}
        """What may be kept once it is read; a change takes it out."""
        self._stops = [store.watch(self._take_notification), store.watch_session(self._take_session_event)]

    async def get(self, path: str) -> Value | None:
        """The decoded value, None when there is no node. Raises what the store and `decode` raise."""
        versioned = await self.get_with_version(path)
        return None if versioned is None else versioned[0]

    async def get_with_version(self, path: str) -> tuple[Value, int] | None:
        """The decoded value and its node's version."""
        if path in self._entries:
            # The newest are at the end.
            entry = self._entries[path] = self._entries.pop(path)
            return entry
        read = self._reads.get(path)
        if read is None:
            read = self._reads[path] = asyncio.get_running_loop().create_task(self._read(path))
            read.add_done_callback(partial(self._take_read, path))
        # One reader that gives up must not take the read away from the others.
        return await asyncio.shield(read)

    def peek(self, path: str) -> Value | None:
        """What is kept, without asking the store; None if there is no node or nothing is kept."""
        entry = self._entries.get(path)
        return None if entry is None else entry[0]

    def knows(self, path: str) -> bool:
        """Whether it is kept what there is at a path, be it nothing."""
        return path in self._entries

    def forget(self, path: str) -> None:
        """Ask the store the next time."""
        self._entries.pop(path, None)
        self._reads.pop(path, None)

    def close(self) -> None:
        """Forget everything and stop listening."""
        for stop in self._stops:
            stop()
        self._forget_everything()

    async def _read(self, path: str) -> tuple[Value, int] | None:
        if self._often_missing and not await self._store.exists(path):
            return None
        node = await self._store.get(path)
        return None if node is None else (self._decode(path, node), node.stat.version)

    def _take_read(self, path: str, read: asyncio.Task[tuple[Value, int] | None]) -> None:
        fresh = self._reads.get(path) is read
        if fresh:
            del self._reads[path]
        # Looking at the error is enough: whoever waits gets it too, and nobody else may be left.
        if read.cancelled() or read.exception() is not None or not fresh:
            return
        self._entries[path] = read.result()
        if len(self._entries) > self._entries_max:
            del self._entries[next(iter(self._entries))]

    def _forget_everything(self) -> None:
        self._entries.clear()
        self._reads.clear()

    def _take_notification(self, notification: Notification) -> None:
        self.forget(notification.path)

    def _take_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            # Changes may have been missed.
            self._forget_everything()
