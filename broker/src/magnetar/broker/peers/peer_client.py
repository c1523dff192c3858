"""Calls brokers of the cluster by the admin API, as Apache's brokers call each other.

A request goes to this broker's own port, or to whom it asks, unless an address is given. It follows redirects to
whoever is responsible: to brokers of this cluster only, as its credentials go with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from magnetar.admin_client.client import AdminAnswer, AdminClient, AdminLimits

if TYPE_CHECKING:
    from magnetar.broker.peers.access import PeerAccess
    from magnetar.broker.peers.addresses import BrokerAddresses

CALL_SECONDS_MAX: Final = 60.0
"""Apache's time for one request between brokers (`metadataStoreOperationTimeoutSeconds` and unloads are below it)."""

CONNECTIONS_MAX: Final = 64
"""At a time; namespace-wide operations ask for many bundles at once."""


class PeerClient:
    """HTTP to the brokers of this cluster."""

    def __init__(
        self,
        web_service_url: Callable[[], str],
        access: PeerAccess | None = None,
        make_client: Callable[..., AdminClient] = AdminClient,
    ) -> None:
        """`web_service_url` says who is asked, each time. `access`: what is shown to brokers that want to know who
        asks; with its TLS they are reached by HTTPS.
        `make_client` takes what `AdminClient` takes."""
        self._web_service_url = web_service_url
        self._tls = None if access is None else access.tls
        self.admin: Final = make_client(
            AdminLimits(connections_max=CONNECTIONS_MAX, call_seconds=CALL_SECONDS_MAX),
            None if access is None else access.credentials,
            self._tls,
        )
        """Follows redirects to whom was asked only, until it knows the brokers."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        base_url: str | None = None,
    ) -> AdminAnswer:
        """One request to a path that is encoded; `body` is sent as JSON unless None. `AdminRefused`,
        `AdminUnreachable`."""
        return await self.admin.call(method, (base_url or self._web_service_url()) + path, query=query, body=body)

    def url_of(self, broker: BrokerAddresses) -> str | None:
        """Where a broker's admin API is, for `base_url`; None when it has none, or none with TLS where that is meant:
        others would see the credentials."""
        plain, tls = broker.web_service_url, broker.web_service_url_tls
        return tls if self._tls is not None else (plain or tls)

    async def close(self) -> None:
        """Drop all connections."""
        await self.admin.close()
