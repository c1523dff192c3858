"""A cache of decoded JSON nodes that is never older than what its store has told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec
from magnetar.core.errors import PeerError
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    MetadataStore,
    Notification,
    SessionEvent,
    StoreUnavailable,
    VersionConflict,
)

Value = TypeVar("Value")

ENTRIES_MAX: Final = 10_000
"""Policies and owners of as many namespaces and bundles as one broker serves; some kilobytes each."""

_ATTEMPTS_MAX: Final = 20
"""How often an update starts again because another one came between."""


class _Load:
    """A read under way, which a change makes worthless for keeping."""

    __slots__ = ("readers", "stale")

    def __init__(self) -> None:
        self.readers = 0
        self.stale = False


class JsonCache(Generic[Value]):
    """Nodes of one type. Both what is there and what is not is kept until the store tells of a change there.

    Values that are handed out are shared: treat them as immutable. While the store is out of reach, what was read
    before is still handed out."""

    def __init__(self, store: MetadataStore, type_: type[Value], *, entries_max: int = ENTRIES_MAX) -> None:
        self._store = store
        self._decoder: msgspec.json.Decoder[Value] = msgspec.json.Decoder(type_)
        self._entries_max = entries_max
        self._entries: dict[str, tuple[Value, int] | None] = {}
        self._loads: dict[str, _Load] = {}
        self._stops = [store.watch(self._take_notification), store.watch_session(self._take_session_event)]

    async def get(self, path: str) -> Value | None:
        """The decoded value, None when there is no node. `PeerError` if the node holds something else."""
        versioned = await self.get_with_version(path)
        return None if versioned is None else versioned[0]

    async def get_with_version(self, path: str) -> tuple[Value, int] | None:
        """The decoded value and its node's version."""
        if path in self._entries:
            # The newest are at the end.
            entry = self._entries[path] = self._entries.pop(path)
            return entry
        load = self._loads.setdefault(path, _Load())
        load.readers += 1
        try:
            versioned = await self._read(path)
        finally:
            load.readers -= 1
            if load.readers == 0 and self._loads.get(path) is load:
                del self._loads[path]
        if not load.stale:
            self._keep(path, versioned)
        return versioned

    def peek(self, path: str) -> Value | None:
        """What is kept, without asking the store; None if there is no node or nothing is kept."""
        entry = self._entries.get(path)
        return None if entry is None else entry[0]

    async def create(self, path: str, value: Value) -> None:
        """Make the node; `VersionConflict` if it is there."""
        await self._write(path, value, MUST_NOT_EXIST)

    async def update(self, path: str, change: Callable[[Value | None], Value]) -> Value:
        """Read, change and write until nobody came between; `change` gets None when there is no node.

        It may be called more than once and must return a new value. What it raises comes through."""
        for _ in range(_ATTEMPTS_MAX):
            versioned = await self.get_with_version(path)
            before, version = (None, MUST_NOT_EXIST) if versioned is None else versioned
            after = change(before)
            try:
                await self._write(path, after, version)
            except VersionConflict:
                continue
            return after
        raise StoreUnavailable(f"{path} changed under {_ATTEMPTS_MAX} attempts to update it")

    def close(self) -> None:
        """Forget everything and stop listening."""
        for stop in self._stops:
            stop()
        self._forget_everything()

    async def _read(self, path: str) -> tuple[Value, int] | None:
        node = await self._store.get(path)
        if node is None:
            return None
        try:
            return self._decoder.decode(node.value), node.stat.version
        except msgspec.DecodeError as error:
            raise PeerError(f"the metadata at {path} is not what it should be: {error}") from error

    async def _write(self, path: str, value: Value, version: int) -> None:
        try:
            await self._store.put(path, msgspec.json.encode(value), version)
        finally:
            self._forget(path)

    def _keep(self, path: str, versioned: tuple[Value, int] | None) -> None:
        self._entries.pop(path, None)
        self._entries[path] = versioned
        if len(self._entries) > self._entries_max:
            del self._entries[next(iter(self._entries))]

    def _forget(self, path: str) -> None:
        self._entries.pop(path, None)
        load = self._loads.pop(path, None)
        if load is not None:
            load.stale = True

    def _forget_everything(self) -> None:
        self._entries.clear()
        for load in self._loads.values():
            load.stale = True
        self._loads.clear()

    def _take_notification(self, notification: Notification) -> None:
        self._forget(notification.path)

    def _take_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            # Changes may have been missed.
            self._forget_everything()
