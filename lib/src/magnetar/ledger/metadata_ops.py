"""Ledger metadata in the metadata store: ids, create, read, compare and set, delete, list."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

from magnetar.ledger.api import Announce, LedgerNotFound, LedgerUnavailable
from magnetar.ledger.ledger_paths import (
    ID_PREFIX,
    LEDGERS_ROOT,
    LONG_ID_PATH,
    SHORT_ID_LIMIT,
    is_ledger_folder,
    ledger_id_of,
    ledger_path,
)
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, NodeNotFound, StoreUnavailable, VersionConflict
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, decode_ledger_metadata, encode_ledger_metadata

CREATE_ATTEMPTS_MAX: Final = 100
"""Ids that may turn out to be taken, one after the other: after a restored backup the counter may lag behind."""

UNSURE_CREATIONS_MAX: Final = 1_000
"""Creations without an answer that are remembered for removal. One that is forgotten leaves a node without entries."""


class LedgerMetadataOps:
    """What the ledger client asks of the store. All methods may raise `StoreUnavailable`; `PeerError` for damaged
    metadata."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._short_ids_used_up = False
        self._unsure_creations: deque[int] = deque(maxlen=UNSURE_CREATIONS_MAX)

    async def create(
        self, metadata: LedgerMetadata, registrations: Sequence[str] = (), announce: Announce | None = None
    ) -> tuple[int, int]:
        """Give it a new id and write it; returns (ledger id, version). `NodeNotFound` as by `write`.

        `announce` is told the id before that."""
        data = encode_ledger_metadata(metadata)
        if self._unsure_creations:
            await self.remove_unsure()
        for _ in range(CREATE_ATTEMPTS_MAX):
            ledger_id, used_up = await self._next_id()
            if announce is not None:
                await announce(ledger_id)
            try:
                version, _ = await asyncio.gather(
                    self._put(ledger_id, data, MUST_NOT_EXIST, registrations), self._remove(used_up)
                )
            except VersionConflict:
                continue
            except NodeNotFound:
                raise
            except BaseException:
                self._unsure_creations.append(ledger_id)
                raise
            return ledger_id, version
        raise LedgerUnavailable(f"{CREATE_ATTEMPTS_MAX} ledger ids in a row are taken")

    @property
    def unsure_creations(self) -> list[int]:
        """Ids of ledgers of which nobody knows whether they were made."""
        return list(self._unsure_creations)

    async def remove_unsure(self) -> None:
        """Remove what creations without an answer may have left: nobody uses it, and nobody else knows of it."""
        while self._unsure_creations:
            ledger_id = self._unsure_creations[0]
            await self.delete(ledger_id)
            if self._unsure_creations and self._unsure_creations[0] == ledger_id:
                self._unsure_creations.popleft()

    async def read(self, ledger_id: int, *, watch: bool = False) -> tuple[LedgerMetadata, int]:
        """The metadata and its version. Raises `LedgerNotFound`.

        `watch` is for whoever listens to this ledger. An audit reads more ledgers than a session can watch."""
        node = await self._store.get(ledger_path(ledger_id), watch=watch)
        if node is None:
            raise LedgerNotFound(f"there is no ledger {ledger_id}")
        return decode_ledger_metadata(node.value), node.stat.version

    async def write(
        self, ledger_id: int, metadata: LedgerMetadata, version: int, registrations: Sequence[str] = ()
    ) -> int:
        """Replace that version; returns the new one. Raises `VersionConflict`, also when the ledger is gone.

        `registrations` are those of the bookies that get a place by this write: `NodeNotFound` names one that is not
        there any more, and nothing is written. Whoever drains a bookie may have seen already that no ledger names it
        (docs/adr/0028)."""
        return await self._put(ledger_id, encode_ledger_metadata(metadata), version, registrations)

    async def _put(self, ledger_id: int, data: bytes, version: int, registrations: Sequence[str]) -> int:
        if registrations:
            return await self._store.put_while_there(ledger_path(ledger_id), data, version, registrations)
        return (await self._store.put(ledger_path(ledger_id), data, version)).version

    async def delete(self, ledger_id: int) -> None:
        """Remove the metadata; a missing ledger is no error."""
        try:
            await self._store.delete(ledger_path(ledger_id))
        except NodeNotFound:
            return

    async def ledger_ids(self) -> AsyncIterator[int]:
        """The ids of all ledgers, ascending within the short and within the long ones."""
        names = [name for name in await self._store.children(LEDGERS_ROOT) if is_ledger_folder(name)]
        for name in sorted(names, key=lambda name: (len(name), name)):
            async for ledger_id in self._ids_below(f"{LEDGERS_ROOT}/{name}", levels=1 if len(name) == 2 else 3):
                yield ledger_id

    async def _ids_below(self, path: str, levels: int) -> AsyncIterator[int]:
        for name in await self._store.children(path):
            child = f"{path}/{name}"
            if levels:
                async for ledger_id in self._ids_below(child, levels - 1):
                    yield ledger_id
                continue
            found = ledger_id_of(child)
            if found is not None:
                yield found

    async def _next_id(self) -> tuple[int, str]:
        """An id, and the node that has done its work by that."""
        if not self._short_ids_used_up:
            number, path = await self._sequence_number(ID_PREFIX)
            if number < SHORT_ID_LIMIT:
                return number, path
            self._short_ids_used_up = True
            await self._remove(path)
        return await self._next_long_id()

    async def _next_long_id(self) -> tuple[int, str]:
        # The high half comes from the newest HOB node; a new one is made when the low half is used up. The first
        # is 1, so that long ids never meet short ones (BookKeeper: meta/LongZkLedgerIdGenerator).
        names = [name for name in await self._store.children(LONG_ID_PATH) if name.startswith("HOB-")]
        high = max((int(name[4:]) for name in names), default=1)
        low, path = await self._sequence_number(f"{LONG_ID_PATH}/HOB-{high:010d}/ID-")
        if low >= SHORT_ID_LIMIT:
            high += 1
            await self._remove(path)
            low, path = await self._sequence_number(f"{LONG_ID_PATH}/HOB-{high:010d}/ID-")
        return high << 32 | low, path

    async def _sequence_number(self, prefix: str) -> tuple[int, str]:
        """The number that a sequential node below `prefix` got, and the node."""
        stat = await self._store.put(prefix, b"", ephemeral=True, sequential=True)
        number = int(stat.path[len(prefix) :])
        return number if number >= 0 else SHORT_ID_LIMIT, stat.path

    async def _remove(self, used_up: str) -> None:
        """Beside other work, so that nobody waits for it. A node that stays here goes with the session."""
        try:
            await self._store.delete(used_up)
        except (NodeNotFound, StoreUnavailable):
            return
