"""Bookies whose addresses are given: for those who read entries and have no metadata store to ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.core.clock import Clock, SystemClock
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookie, TcpBookieSettings
from magnetar.net.tls import ClientTls

_SYSTEM_CLOCK: Final = SystemClock()
_DEFAULT_SETTINGS: Final = TcpBookieSettings()


class AddressedBookies:
    """A `ReadOnlyBookies` over TCP. Asks nobody where bookies are, and so does not hear when they move."""

    def __init__(
        self,
        addresses: Mapping[str, tuple[str, int]] | None = None,
        clock: Clock = _SYSTEM_CLOCK,
        settings: TcpBookieSettings = _DEFAULT_SETTINGS,
        tls: ClientTls | None = None,
    ) -> None:
        """`addresses`: bookie id → (host, port); bookies that it leaves out are where their ids say. With `tls` every
        bookie is asked for TLS first."""
        self.tls = tls
        self._addresses = dict(addresses or {})
        self._clock = clock
        self._settings = settings
        # One entry per bookie that was ever spoken to; ensembles name a few dozen at most.
        self._bookies: dict[str, TcpBookie] = {}

    def add_addresses(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        """Learn of more bookies, or that some have moved; connections that stand stay."""
        self._addresses.update(addresses)

    def connection(self, bookie_id: str) -> TcpBookie:
        """The connection to a bookie, made on first use and shared."""
        bookie = self._bookies.get(bookie_id)
        if bookie is None:
            bookie = TcpBookie(bookie_id, self.address, self._clock, self._settings, self.tls)
            self._bookies[bookie_id] = bookie
        return bookie

    def address(self, bookie_id: str) -> tuple[str, int] | None:
        """Host and port of a bookie: as somebody has said, else as its id says; None if it is no address."""
        known = self._addresses.get(bookie_id)
        return known if known is not None else address_of_id(bookie_id)

    async def close(self) -> None:
        """Close all connections. Twice is no error."""
        bookies, self._bookies = self._bookies, {}
        for bookie in bookies.values():
            await bookie.close()


def address_of_id(bookie_id: str) -> tuple[str, int] | None:
    """Host and port of an id that is an address, as BookKeeper's are unless configured otherwise."""
    host, colon, port = bookie_id.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 0xFFFF:
        return None
    return host, int(port)
