"""What a bookie does for the whole cluster through a client of its own: `ClusterOperations`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final

from magnetar.bookie.autorecovery.registered_bookies import known_bookies
from magnetar.bookie.operations import BookieSpace
from magnetar.core.errors import Unavailable
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.bookie_client.v3_query import V3Queries
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_NAME, READ_ONLY_PATH
from magnetar.metadata.store import MetadataStore
from magnetar.wire.bookkeeper.codes import BookieError
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

logger: Final = logging.getLogger(__name__)

READ_ENTRIES_AT_ONCE: Final = 100
"""Entries of one read: 500 MB if each is of the largest size, which the client's own bound on a read's bytes
prevents."""

SPACES_AT_ONCE: Final = 16
"""Bookies that are asked for their disks at the same time."""


class ClusterClient:
    """A `ClusterOperations`; owns none of what it is given."""

    def __init__(
        self, store: MetadataStore, client: BookKeeperClient, connections: TcpBookieConnections, queries: V3Queries
    ) -> None:
        """`client` is over `store` and `connections`."""
        self._store = store
        self._client = client
        self._connections = connections
        self._queries = queries

    async def ledger_ids(self) -> AsyncIterator[int]:
        """All ledgers of the cluster, ascending."""
        async for ledger_id in self._client.metadata.ledger_ids():
            yield ledger_id

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """The metadata of a ledger, as the store has it. `LedgerNotFound`."""
        metadata, _ = await self._client.metadata.read(ledger_id)
        return metadata

    async def delete_ledger(self, ledger_id: int) -> None:
        """Remove a ledger for good. `LedgerNotFound`. A missing ledger is no error."""
        await self._client.delete(ledger_id)

    async def read_entries(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int
    ) -> AsyncIterator[tuple[int, bytes]]:
        """(entry id, payload) of a ledger, ascending, opened without recovery; last -1: to its last one.
        `LedgerNotFound`. The password is the metadata's own: whoever may read that may read the ledger."""
        metadata, _ = await self._client.metadata.read(ledger_id)
        reader = await self._client.open(ledger_id, password=metadata.password, recover=False)
        try:
            last = reader.last_add_confirmed if last_entry_id < 0 else min(last_entry_id, reader.last_add_confirmed)
            entry_id = first_entry_id
            while entry_id <= last:
                for payload in await reader.read(entry_id, min(last, entry_id + READ_ENTRIES_AT_ONCE - 1)):
                    yield entry_id, payload
                    entry_id += 1
        finally:
            await reader.close()

    async def bookie_ids(self) -> tuple[Sequence[str], Sequence[str]]:
        """(writable, read-only) bookies that are up."""
        writable = [name for name in await self._store.children(AVAILABLE_PATH) if name != READ_ONLY_NAME]
        return sorted(writable), sorted(await self._store.children(READ_ONLY_PATH))

    async def all_bookie_ids(self) -> Sequence[str]:
        """Every bookie that has a cookie, up or not."""
        return sorted(await known_bookies(self._store))

    async def bookie_host(self, bookie_id: str) -> str:
        """The host at which a bookie serves. `Unavailable` when it is not registered."""
        address = self._connections.address(bookie_id)
        if address is None:
            raise Unavailable(f"nobody knows where {bookie_id} is: it is not registered")
        return address[0]

    async def bookie_spaces(self) -> Sequence[BookieSpace]:
        """Disks of the bookies that are up and answer."""
        bookie_ids = [bookie_id for some in await self.bookie_ids() for bookie_id in some]
        turns = asyncio.Semaphore(SPACES_AT_ONCE)

        async def ask(bookie_id: str) -> BookieSpace | None:
            async with turns:
                try:
                    total, free = await self._queries.disk_space(bookie_id)
                except BookieError as error:
                    logger.info("bookie %s does not tell of its disks: %s", bookie_id, error)
                    return None
            return BookieSpace(bookie_id=bookie_id, total_bytes=total, free_bytes=free)

        spaces = await asyncio.gather(*map(ask, bookie_ids))
        return [space for space in spaces if space is not None]
