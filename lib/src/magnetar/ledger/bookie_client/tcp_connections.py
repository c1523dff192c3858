"""The bookies of a cluster: found in the metadata store, reached over TCP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import PeerError
from magnetar.ledger.bookie_client.addressed_bookies import AddressedBookies
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookieSettings
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_NAME, READ_ONLY_PATH
from magnetar.ledger.topology import PLACES_PATH, BookieTopology, decode_places
from magnetar.metadata.kept_current import KeptCurrent
from magnetar.metadata.store import MetadataStore, Notification
from magnetar.net.tls import ClientTls
from magnetar.wire.bookkeeper.service_info import BOOKIE_PROTOCOL, decode_service_info

logger: Final = logging.getLogger(__name__)

READS_AT_ONCE: Final = 100
"""Registrations of bookies asked for side by side; ZooKeeper answers them in order, without much memory."""

_SYSTEM_CLOCK: Final = SystemClock()
_DEFAULT_SETTINGS: Final = TcpBookieSettings()


class TcpBookieConnections(AddressedBookies):
    """A `BookieConnections` that keeps itself current. `start` before the first use."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock = _SYSTEM_CLOCK,
        settings: TcpBookieSettings = _DEFAULT_SETTINGS,
        tls: ClientTls | None = None,
    ) -> None:
        super().__init__(clock=clock, settings=settings, tls=tls)
        self._store = store
        self._writable: list[str] = []
        self._read_only: list[str] = []
        self._places = BookieTopology()
        self._looking = asyncio.Lock()
        self._looks_begun = 0
        self._newest_look = 0
        """The number of the last look that came to its end."""
        self._kept = KeptCurrent(store, "bookies", self.look_again, _concerns)

    async def start(self) -> None:
        """Learn which bookies are there and go on watching. Raises `StoreUnavailable`."""
        await self._kept.start()

    async def close(self) -> None:
        """Stop watching and close all connections."""
        await self._kept.stop()
        await super().close()

    def writable_bookies(self) -> list[str]:
        """Ids of the bookies that take writes now, sorted."""
        return self._writable

    def readable_bookies(self) -> list[str]:
        """Ids of all registered bookies, sorted."""
        return sorted({*self._writable, *self._read_only})

    def registrations(self, bookie_ids: Collection[str]) -> list[str]:
        """The nodes by which these bookies take writes."""
        return [f"{AVAILABLE_PATH}/{bookie_id}" for bookie_id in bookie_ids]

    async def look_again(self) -> None:
        """Return when the lists are not older than this call; however many ask at a time, two looks are enough. Raises
        `Unavailable`."""
        begun = self._looks_begun
        async with self._looking:
            if self._newest_look > begun:
                return
            self._looks_begun += 1
            await self._refresh()
            self._newest_look = self._looks_begun

    def places(self) -> BookieTopology:
        """Where bookies stand, as an administrator has said."""
        return self._places

    async def _refresh(self) -> None:
        # A bookie that changes its mode makes the new node before it removes the old one: one of three looks sees it.
        before = await self._store.children(AVAILABLE_PATH)
        read_only = await self._store.children(READ_ONLY_PATH)
        writable = {*before, *await self._store.children(AVAILABLE_PATH)} - {READ_ONLY_NAME}
        # Whoever takes no writes any more is not chosen from here on, however slowly the store answers the rest.
        self._writable = [name for name in self._writable if name in writable]
        self._addresses = await self._registered_addresses(
            [(AVAILABLE_PATH, name) for name in sorted(writable)] + [(READ_ONLY_PATH, name) for name in read_only]
        )
        self._writable = sorted(writable)
        self._read_only = sorted(read_only)
        await self._refresh_places()

    async def _refresh_places(self) -> None:
        node = await self._store.get(PLACES_PATH)
        try:
            self._places = decode_places(node.value) if node is not None else BookieTopology()
        except PeerError as error:
            # What was known before is better than nothing known.
            logger.error("racks and groups of bookies stay as they were: %s", error)  # noqa: TRY400

    async def _registered_addresses(self, registrations: list[tuple[str, str]]) -> dict[str, tuple[str, int]]:
        """By bookie id. Asked for side by side: one after the other, a slow store would make the list older with
        each bookie."""
        addresses: dict[str, tuple[str, int]] = {}
        for first in range(0, len(registrations), READS_AT_ONCE):
            some = registrations[first : first + READS_AT_ONCE]
            found = await asyncio.gather(*(self._registered_address(f"{folder}/{name}") for folder, name in some))
            addresses.update((name, address) for (_, name), address in zip(some, found, strict=True) if address)
        return addresses

    async def _registered_address(self, path: str) -> tuple[str, int] | None:
        node = await self._store.get(path)
        if node is None:
            return None
        for endpoint in decode_service_info(node.value):
            if endpoint.protocol == BOOKIE_PROTOCOL:
                return endpoint.host, endpoint.port
        return None


def _concerns(notification: Notification) -> bool:
    return notification.path.startswith(AVAILABLE_PATH) or notification.path == PLACES_PATH
