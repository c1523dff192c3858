"""The broker's own client of its cluster: made when something first needs it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from magnetar.core.clock import Clock

if TYPE_CHECKING:
    from magnetar.broker.peers.access import PeerAccess
    from magnetar.client.client import PulsarClient


class InternalClient:
    """For topics that brokers read and write themselves, wherever they are served.

    It goes through the network even to this broker's own topics, so that it does not matter where a bundle is."""

    def __init__(
        self,
        service_url: Callable[[], str],
        clock: Clock,
        version: str,
        access: PeerAccess | None = None,
        rng: Random | None = None,
    ) -> None:
        """`service_url` is this broker's own; `version` is what statistics show of who is connected; `access` is what
        is shown to brokers that want to know; `rng` is the client's."""
        self._access = access
        self._rng = rng
        self._service_url = service_url
        self._clock = clock
        self._version = version
        self._client: PulsarClient | None = None

    def get(self) -> PulsarClient:
        """The client; connected when it is used."""
        if self._client is None:
            # Here, not above: a broker without topic policies shall not pay for it.
            from magnetar.client.client import PulsarClient
            from magnetar.client.settings import ClientSettings

            # Its keep-alive is that of clients, as Apache's: keepAliveIntervalSeconds is about who connects here.
            settings = ClientSettings(client_version=self._version, receiver_queue_size=200)
            access = self._access
            self._client = PulsarClient(
                self._service_url,
                self._clock,
                settings,
                authentication=None if access is None else access.credentials.shown,
                connect_tls=None if access is None else access.connect_tls,
                rng=self._rng,
            )
        return self._client

    async def close(self) -> None:
        """Close it, if there is one. After everything that uses it."""
        if self._client is not None:
            await self._client.close()
