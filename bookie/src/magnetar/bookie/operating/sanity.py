"""Whether a bookie works: a ledger is written to it alone, over the network as any client would, and read back."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_connection import BookieConnection, BookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.metadata.store import MetadataStore

log = logging.getLogger(__name__)

ENTRIES: Final = 10
"""As `bookkeeper shell bookiesanity` writes by default."""
CONFIRMED_SECONDS_MAX: Final = 10.0


class OneBookie:
    """`BookieConnections` of a cluster that has one bookie only."""

    def __init__(self, connections: BookieConnections, bookie_id: str) -> None:
        self._connections = connections
        self._bookie_id = bookie_id

    def connection(self, bookie_id: str) -> BookieConnection:
        """As the others' connections."""
        return self._connections.connection(bookie_id)

    def writable_bookies(self) -> list[str]:
        """This one, whether it takes writes or not: that is what is tried."""
        return [self._bookie_id]

    def readable_bookies(self) -> list[str]:
        """This one."""
        return [self._bookie_id]


class _Confirmations:
    def __init__(self) -> None:
        self.settled = asyncio.Event()
        self.error: MagnetarError | None = None

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        del ledger_id
        if last_add_confirmed == ENTRIES - 1:
            self.settled.set()

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        del ledger_id
        self.error = error
        self.settled.set()


async def write_and_read_back(store: MetadataStore, connections: BookieConnections, bookie_id: str) -> bool:
    """Whether the bookie takes entries and gives them back. Raises `Unavailable` when the store cannot say."""
    client = BookKeeperClient(store, OneBookie(connections, bookie_id))
    payloads = [f"sanity {number}".encode() for number in range(ENTRIES)]
    listener = _Confirmations()
    try:
        writer = await client.create(LedgerOptions(), listener)
        try:
            writer.append(payloads)
            async with asyncio.timeout(CONFIRMED_SECONDS_MAX):
                await listener.settled.wait()
            if listener.error is not None:
                raise listener.error
            await writer.close()
            reader = await client.open(writer.ledger_id, recover=False)
            return await reader.read(0, ENTRIES - 1) == payloads
        finally:
            await client.delete(writer.ledger_id)
    except (MagnetarError, TimeoutError) as error:
        log.warning("bookie %s fails its sanity test: %s", bookie_id, error)
        return False
    finally:
        await client.close()
