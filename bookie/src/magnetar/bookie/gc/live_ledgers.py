"""Which ledgers exist, asked of the metadata store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Protocol

from magnetar.bookie.cookie import COOKIES_PATH
from magnetar.bookie.registration import LAYOUT_PATH
from magnetar.core.errors import Unavailable
from magnetar.ledger.api import LedgerNotFound
from magnetar.ledger.ledger_paths import LEDGERS_ROOT, ledger_path
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.metadata.store import MetadataStore
from magnetar.wire.bookkeeper.ledger_metadata import LedgerState

LAST_COLLECTION_ROOT: Final = "/magnetar/garbage-collection"
"""One empty node for each bookie; its time of change says when garbage was collected last."""

_KNOWN_LAYOUTS: Final = (b"HierarchicalLedgerManagerFactory", b"PulsarLedgerManagerFactory")
"""The classes whose paths `ledger_paths` knows. With another layout every ledger would seem to be deleted."""


class LiveLedgers(Protocol):
    """What a collector asks. All methods raise `MagnetarError`s, upon which nothing is deleted."""

    async def catch_up(self) -> None:
        """After this, every answer knows all metadata that anybody wrote before the call."""
        ...

    def ledger_ids(self) -> AsyncIterator[int]:
        """All ledgers, ascending."""
        ...

    async def exists(self, ledger_id: int) -> bool:
        """Whether there is metadata of a ledger."""
        ...

    async def belongs_to(self, ledger_id: int, bookie_id: str) -> bool | None:
        """Whether any segment of a ledger names the bookie; None when that may change, because the ledger is open or
        in recovery, or when there is no such ledger."""
        ...


class HeldLock(Protocol):
    """A ledger is ours."""

    @property
    def lost(self) -> bool:
        """Whether it no longer is."""
        ...

    async def release(self) -> None:
        """Give it back."""
        ...


class LedgerLocks(Protocol):
    """The locks of AutoRecovery (`autorecovery.underreplication.UnderreplicatedLedgers`)."""

    async def lock(self, ledger_id: int) -> HeldLock | None:
        """Keeps replication workers away from a ledger; None when one is at work on it."""
        ...


class StoredLiveLedgers:
    """`LiveLedgers` of a metadata store."""

    def __init__(self, store: MetadataStore, bookie_id: str) -> None:
        self._store = store
        self._bookie_id = bookie_id
        self._metadata = LedgerMetadataOps(store)

    async def catch_up(self) -> None:
        """After this, every answer knows all metadata that anybody wrote before the call. `Unavailable` too when the
        store does not know this bookie or has its ledgers in an order of paths that we do not know: its listing would
        say nothing about ours. A write does it: the server that answers has then applied everything before it, even one
        that lags behind."""
        await self._store.put(f"{LAST_COLLECTION_ROOT}/{self._bookie_id}", b"")
        layout = await self._store.get(LAYOUT_PATH)
        if layout is not None and not _is_known(layout.value):
            raise Unavailable(f"{LAYOUT_PATH} names a layout that is not known here: {layout.value[:200]!r}")
        if not await self._store.exists(f"{COOKIES_PATH}/{self._bookie_id}"):
            raise Unavailable(f"the metadata store has no cookie of bookie {self._bookie_id}; is it the right one?")
        if not await self._store.exists(LEDGERS_ROOT):
            raise Unavailable(f"there is no {LEDGERS_ROOT} in the metadata store")

    def ledger_ids(self) -> AsyncIterator[int]:
        """All ledgers, ascending."""
        return self._metadata.ledger_ids()

    async def exists(self, ledger_id: int) -> bool:
        """Whether there is metadata of a ledger."""
        return await self._store.get(ledger_path(ledger_id), watch=False) is not None

    async def belongs_to(self, ledger_id: int, bookie_id: str) -> bool | None:
        """Whether any segment of a ledger names the bookie; None when that may change, because the ledger is open or in
        recovery, or when there is no such ledger."""
        try:
            metadata, _ = await self._metadata.read(ledger_id)
        except LedgerNotFound:
            return None
        if any(bookie_id in bookies for _, bookies in metadata.ensembles):
            return True
        return False if metadata.state is LedgerState.CLOSED else None


def _is_known(layout: bytes) -> bool:
    # "<format version>\n<class>:<version>"; the class with or without its package.
    lines = layout.split(b"\n")
    name = lines[1].partition(b":")[0].rpartition(b".")[2] if len(lines) > 1 else b""
    return name in _KNOWN_LAYOUTS
