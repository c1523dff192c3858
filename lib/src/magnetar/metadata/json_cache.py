"""A cache of typed JSON nodes that also changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from magnetar.core.errors import PeerError
from magnetar.metadata.node_cache import ENTRIES_MAX, NodeCache
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, Node, StoreUnavailable, VersionConflict

Value = TypeVar("Value")

_ATTEMPTS_MAX: Final = 20
"""How often an update starts again because another one came between."""


class JsonCache(NodeCache[Value]):
    """A `NodeCache` of one type. Reading raises `PeerError` where a node holds something else."""

    def __init__(self, store: MetadataStore, type_: type[Value], *, entries_max: int = ENTRIES_MAX) -> None:
        self._decoder: msgspec.json.Decoder[Value] = msgspec.json.Decoder(type_)
        super().__init__(store, self._decode_json, entries_max=entries_max)

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

    def _decode_json(self, path: str, node: Node) -> Value:
        try:
            return self._decoder.decode(node.value)
        except msgspec.DecodeError as error:
            raise PeerError(f"the metadata at {path} is not what it should be: {error}") from error

    async def _write(self, path: str, value: Value, version: int) -> None:
        try:
            await self._store.put(path, msgspec.json.encode(value), version)
        finally:
            self.forget(path)
