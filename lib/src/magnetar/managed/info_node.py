"""The node of one managed ledger in the metadata store, changed only by compare-and-set, so that nobody watches it:
two watches for each loaded topic would be a tenth of its memory, and more at the server.

Its version is what makes this process the owner: if anyone else wrote, we are fenced and must stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from magnetar.core.ids import Position
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.managed.info_codec import BrokenMetadata, LedgerInfo, decode_ledger_info, encode_ledger_info
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.owned_node import NodeTaken, OwnedNode
from magnetar.metadata.store import MetadataStore, NodeHasChildren, StoreUnavailable

_ATTEMPTS_MAX: Final = 20
"""How often a deletion starts again because cursors were made meanwhile."""


class InfoNode:
    """Reads once, then writes. Hold `lock` from deciding on a change until the write has returned.

    `on_unnamed` is told of ledgers that a write without an answer may have named, once the node surely does not."""

    __slots__ = ("_kept", "_name", "_named", "_node", "_store", "on_unnamed")

    def __init__(self, store: MetadataStore, name: str, on_unnamed: Callable[[int], None]) -> None:
        self._store: MetadataStore = store
        self._name: str = name
        self._node: OwnedNode = OwnedNode(store, name)
        self.on_unnamed: Callable[[int], None] = on_unnamed
        self._named: tuple[int, ...] = ()
        """The ledgers that the node named when that was last known for sure."""
        self._kept: frozenset[int] | None = None
        """While nobody knows what it names: what it names in any case."""

    @property
    def lock(self) -> asyncio.Lock:
        """Changes take turns."""
        return self._node.lock

    @property
    def unsure(self) -> bool:
        """Whether a write had no answer, and none has come since that was sure: what is stored may be what that said,
        also if it is known by now that it happened."""
        return self._node.unsure or self._kept is not None

    @property
    def ledgers_in_doubt(self) -> frozenset[int]:
        """Ids of ledgers that the node may name or not, depending on what became of writes without an answer."""
        return self._node.ledgers_in_doubt.difference(self._kept or ())

    async def load(self) -> LedgerInfo | None:
        """The stored record, or None when there is no such managed ledger."""
        node = await self._node.load()
        if node is None:
            return None
        info = decode_ledger_info(node.value)
        self._named = tuple(record.ledger_id for record in info.records)
        return info

    async def write(
        self, records: Sequence[LedgerRecord], terminated_at: Position | None, properties: Mapping[str, str]
    ) -> None:
        """Replace what is stored. `ManagedLedgerFenced` when another owner wrote since; after any other error it may
        have happened or not, and the next write settles that."""
        value = encode_ledger_info(records, terminated_at, properties)
        named = tuple(record.ledger_id for record in records)
        try:
            unnamed = await self._node.put(value, named)
        except NodeTaken as taken:
            raise self._fenced(taken) from taken
        except BaseException:
            # What this write drops may be dropped as well.
            self._node.doubt(self._named)
            self._kept = frozenset(self._named if self._kept is None else self._kept).intersection(named)
            raise
        self._named, self._kept = named, None
        self._tell(unnamed)

    async def check_owner(self) -> bool:
        """Whether there is a node. `ManagedLedgerFenced` when another owner wrote since."""
        assert self.lock.locked()
        try:
            return await self._node.look() is not None
        except NodeTaken as taken:
            raise self._fenced(taken) from taken

    async def delete(self) -> None:
        """Remove the node and what stands below it; nothing there is no error. `ManagedLedgerFenced` as for a write."""
        path = self._node.path
        for _ in range(_ATTEMPTS_MAX):
            for child in await self._store.children(path, watch=False):
                await self._store.delete_recursively(f"{path}/{child}")
            try:
                self._tell(await self._node.delete())
            except NodeHasChildren:
                continue
            except NodeTaken as taken:
                raise self._fenced(taken) from taken
            return
        raise StoreUnavailable(f"{path} changed under {_ATTEMPTS_MAX} attempts to delete it")

    def _fenced(self, taken: NodeTaken) -> ManagedLedgerFenced:
        """No write of ours can happen any more: what the other owner does not name, nobody names."""
        named: set[int] = set()
        if taken.value is not None:
            try:
                named = {record.ledger_id for record in decode_ledger_info(taken.value).records}
            except BrokenMetadata:
                named = set(self._node.ledgers_in_doubt)
        self._tell(self._node.ledgers_in_doubt - named)
        return ManagedLedgerFenced(f"{self._name} was changed by another owner")

    def _tell(self, unnamed: Iterable[int]) -> None:
        for ledger_id in unnamed:
            self.on_unnamed(ledger_id)
