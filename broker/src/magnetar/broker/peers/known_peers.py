"""Whose redirects a broker follows: it shows its credentials, a super user's, to brokers of its cluster alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from magnetar.admin_client.client import origin
from magnetar.broker.peers.addresses import BrokerAddresses


class KnownPeers:
    """The brokers of this cluster by where they serve the admin API."""

    def __init__(
        self,
        listed: Callable[[], Iterable[BrokerAddresses]],
        read_again: Callable[[], Awaitable[Iterable[BrokerAddresses]]],
    ) -> None:
        """`listed`: as known now; `read_again`: as they are now, with those that leave and still serve."""
        self._listed = listed
        self._read_again = read_again

    async def serves(self, url: str) -> bool:
        """Whether one of them serves there. `Unavailable` when that cannot be found out."""
        return _among(url, self._listed()) or _among(url, await self._read_again())


def _among(url: str, brokers: Iterable[BrokerAddresses]) -> bool:
    wanted = origin(url)
    return wanted is not None and any(
        origin(known) == wanted
        for broker in brokers
        for known in (broker.web_service_url, broker.web_service_url_tls)
        if known
    )
