"""The node of one managed ledger in the metadata store, changed only by compare-and-set, so that nobody watches it:
two watches for each loaded topic would be a tenth of its memory, and more at the server.

Its version is what makes this process the owner: if anyone else wrote, we are fenced and must stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.core.ids import Position
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.managed.info_codec import LedgerInfo, decode_ledger_info, encode_ledger_info
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.paths import ledger_path
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    MetadataStore,
    NodeHasChildren,
    NodeNotFound,
    StoreUnavailable,
    VersionConflict,
)

_ATTEMPTS_MAX: Final = 20
"""How often a deletion starts again because cursors were made meanwhile."""


class InfoNode:
    """Reads once, then writes. Hold `lock` from deciding on a change until the write has returned."""

    __slots__ = ("_name", "_store", "_unsure", "_version", "lock")

    def __init__(self, store: MetadataStore, name: str) -> None:
        self._store: MetadataStore = store
        self._name: str = name
        self._version: int = MUST_NOT_EXIST
        self._unsure: bytes | None = None
        """A write whose outcome is unknown: when the node holds this, it was our own."""
        self.lock: asyncio.Lock = asyncio.Lock()

    async def load(self) -> LedgerInfo | None:
        """What is stored, or None when there is no such managed ledger."""
        node = await self._store.get(ledger_path(self._name), watch=False)
        if node is None:
            return None
        self._version = node.stat.version
        return decode_ledger_info(node.value)

    async def write(
        self, records: Sequence[LedgerRecord], terminated_at: Position | None, properties: Mapping[str, str]
    ) -> None:
        """Replace what is stored. `ManagedLedgerFenced` when another owner wrote since."""
        assert self.lock.locked()
        value = encode_ledger_info(records, terminated_at, properties)
        try:
            stat = await self._store.put(ledger_path(self._name), value, self._version)
        except StoreUnavailable:
            self._unsure = value
            raise
        except (VersionConflict, NodeNotFound) as error:
            if not await self._own_write_happened():
                raise self._fenced() from error
            stat = await self._store.put(ledger_path(self._name), value, self._version)
        self._version = stat.version
        self._unsure = None

    async def _own_write_happened(self) -> bool:
        """Whether the unexpected version is only that of our write which seemed to fail."""
        unsure, self._unsure = self._unsure, None
        node = await self._store.get(ledger_path(self._name), watch=False)
        if unsure is None or node is None or node.value != unsure:
            return False
        self._version = node.stat.version
        return True

    async def check_owner(self) -> bool:
        """Whether there is a node. `ManagedLedgerFenced` when another owner wrote since."""
        assert self.lock.locked()
        node = await self._store.get(ledger_path(self._name), watch=False)
        if node is not None and node.stat.version != self._version and not await self._own_write_happened():
            raise self._fenced()
        return node is not None

    async def delete(self) -> None:
        """Remove the node and what stands below it; nothing there is no error. `ManagedLedgerFenced` as for a write."""
        assert self.lock.locked()
        path = ledger_path(self._name)
        for _ in range(_ATTEMPTS_MAX):
            for child in await self._store.children(path, watch=False):
                await self._store.delete_recursively(f"{path}/{child}")
            try:
                await self._store.delete(path, self._version)
            except NodeHasChildren:
                continue
            except VersionConflict as error:
                if not await self._own_write_happened():
                    raise self._fenced() from error
            except NodeNotFound:
                return
            else:
                return
        raise StoreUnavailable(f"{path} changed under {_ATTEMPTS_MAX} attempts to delete it")

    def _fenced(self) -> ManagedLedgerFenced:
        return ManagedLedgerFenced(f"{self._name} was changed by another owner")
