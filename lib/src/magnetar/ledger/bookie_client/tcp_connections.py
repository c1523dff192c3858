"""The bookies of a cluster: found in the metadata store, reached over TCP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import PeerError
from magnetar.ledger.bookie_client.addressed_bookies import AddressedBookies
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookieSettings
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_NAME, READ_ONLY_PATH
from magnetar.ledger.topology import PLACES_PATH, BookieTopology, decode_places
from magnetar.metadata.kept_current import KeptCurrent
from magnetar.metadata.store import MetadataStore, Node, Notification
from magnetar.net.tls import ClientTls
from magnetar.wire.bookkeeper.service_info import BOOKIE_PROTOCOL, decode_service_info, machine_of

logger: Final = logging.getLogger(__name__)

READS_AT_ONCE: Final = 100
"""Registrations of bookies asked for side by side; ZooKeeper answers them in order, without much memory."""

MACHINES_KEPT_MAX: Final = 10_000
"""Bookies that are gone and whose machine is still known: far more than a cluster has, at some 100 bytes each."""

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
        # Of those that are gone, too: a bookie that is down may come back beside what was put onto its machine.
        self._machines: dict[str, str] = {}
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
        """Where bookies stand, as an administrator has said and as they have registered."""
        return self._places

    async def _refresh(self) -> None:
        # A bookie that changes its mode makes the new node before it removes the old one: one of three looks sees it.
        before = await self._store.children(AVAILABLE_PATH)
        read_only = await self._store.children(READ_ONLY_PATH)
        writable = {*before, *await self._store.children(AVAILABLE_PATH)} - {READ_ONLY_NAME}
        # Whoever takes no writes any more is not chosen from here on, however slowly the store answers the rest.
        self._writable = [name for name in self._writable if name in writable]
        registered = await self._registered(
            [(AVAILABLE_PATH, name) for name in sorted(writable)] + [(READ_ONLY_PATH, name) for name in read_only]
        )
        placed = await self._store.get(PLACES_PATH)
        # All at once from here on: nobody is chosen whose machine is not known yet.
        self._addresses = {name: address for name, value in registered.items() if (address := _address_of(value))}
        self._learn_machines(registered)
        self._learn_places(placed)
        self._writable = sorted(writable)
        self._read_only = sorted(read_only)

    def _learn_places(self, node: Node | None) -> None:
        places = self._places
        try:
            places = decode_places(node.value) if node is not None else BookieTopology()
        except PeerError as error:
            # What was known before is better than nothing known.
            logger.error("racks and groups of bookies stay as they were: %s", error)  # noqa: TRY400
        self._places = places.with_machines(dict(self._machines))

    def _learn_machines(self, registered: Mapping[str, bytes]) -> None:
        for name, value in registered.items():
            self._machines.pop(name, None)
            if machine := machine_of(value):
                self._machines[name] = machine
        while len(self._machines) > MACHINES_KEPT_MAX + len(registered):
            del self._machines[next(iter(self._machines))]

    async def _registered(self, registrations: list[tuple[str, str]]) -> dict[str, bytes]:
        """The registrations by bookie id. Asked for side by side: one after the other, a slow store would make the
        list older with each bookie."""
        values: dict[str, bytes] = {}
        for first in range(0, len(registrations), READS_AT_ONCE):
            some = registrations[first : first + READS_AT_ONCE]
            found = await asyncio.gather(*(self._store.get(f"{folder}/{name}") for folder, name in some))
            values.update((name, node.value) for (_, name), node in zip(some, found, strict=True) if node is not None)
        return values


def _address_of(registration: bytes) -> tuple[str, int] | None:
    for endpoint in decode_service_info(registration):
        if endpoint.protocol == BOOKIE_PROTOCOL:
            return endpoint.host, endpoint.port
    return None


def _concerns(notification: Notification) -> bool:
    return notification.path.startswith(AVAILABLE_PATH) or notification.path == PLACES_PATH
