"""Connections to brokers: one per broker, opened when first needed."""

from __future__ import annotations

import asyncio
from typing import Protocol

from magnetar.client.addresses import BrokerAddress
from magnetar.client.connection import Authentication, BrokerConnection
from magnetar.client.errors import ClientClosed, ConnectionFailed, TooManyRequests
from magnetar.client.settings import ClientSettings
from magnetar.net.connection import Connection, HandlerFactory
from magnetar.net.handlers import Handler


class Connector(Protocol):
    """Opens a TCP connection, as `magnetar.net.endpoints.connect` does; one for TLS has its certificates bound."""

    async def __call__(
        self, host: str, port: int, make_handler: HandlerFactory, timeout_seconds: float, /
    ) -> Connection:
        """Raises OSError or TimeoutError."""
        ...


class ConnectionPool:
    """One connection per broker address; a lost one is opened again by whoever asks next.

    Pauses between attempts are the business of those who ask."""

    def __init__(
        self,
        settings: ClientSettings,
        connect: Connector,
        connect_tls: Connector | None,
        authentication: Authentication | None,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._connect_tls = connect_tls
        self._authentication = authentication
        self._connections: dict[BrokerAddress, BrokerConnection] = {}
        self._opening: dict[BrokerAddress, asyncio.Task[BrokerConnection]] = {}
        self._closed = False

    async def get(self, address: BrokerAddress) -> BrokerConnection:
        """An open connection. Raises `ConnectionFailed`, `TimedOut`, or `PulsarError` when the broker refuses us;
        `ClientClosed` also when that happens meanwhile."""
        if self._closed:
            raise ClientClosed("the client is closed")
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(address), name=f"connect to {address.host}")
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._opened(address, task))
        # One who gives up must not take the connection away from the others that wait for it; and who waits for one
        # that `close` gives up was not cancelled himself.
        await asyncio.wait([opening])
        if opening.cancelled():
            raise ClientClosed("the client was closed meanwhile")
        return opening.result()

    def _opened(self, address: BrokerAddress, task: asyncio.Task[BrokerConnection]) -> None:
        del self._opening[address]
        if not task.cancelled():
            task.exception()  # Looked at: nobody may be left to wait for it.

    async def _open(self, address: BrokerAddress) -> BrokerConnection:
        self._make_room()
        connect = self._connect_tls if address.connect_to.tls else self._connect
        if connect is None:
            raise ConnectionFailed(f"{address.host_and_port} wants TLS and this client has no settings for it")
        made: list[BrokerConnection] = []

        def make_handler(connection: Connection) -> Handler:
            made.append(BrokerConnection(address, connection, self._settings, self._authentication))
            return made[0]

        place = address.connect_to
        try:
            await connect(place.host, place.port, make_handler, self._settings.connect_timeout_seconds)
        except (OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise ConnectionFailed(f"{place.host_and_port} cannot be reached: {reason}") from error
        connection = made[0]
        self._connections[address] = connection
        await connection.ready()
        return connection

    def _make_room(self) -> None:
        for address in [address for address, connection in self._connections.items() if connection.closed]:
            del self._connections[address]
        if len(self._connections) >= self._settings.connections_max:
            raise TooManyRequests(f"{len(self._connections)} connections are open")

    async def close(self) -> None:
        """Close all; nothing can be had afterwards."""
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(connection.close() for connection in connections))
