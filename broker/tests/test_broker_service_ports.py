"""The broker's ports: taken early, open late."""

from __future__ import annotations

import asyncio

import pytest
from magnetar.broker.service_ports import open_service_ports
from magnetar.broker.settings import BrokerSettings
from magnetar.net.connection import Connection, Handler
from magnetar.net.refused_connections import RefusedConnections


class Silent:
    """A handler that does nothing."""

    def connection_made(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        pass

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass


async def test_nobody_is_let_in_before_somebody_serves() -> None:
    """Clients of the broker that had the port before come back at once, when this one is still being put together."""
    seen: list[str] = []

    def make_handler(connection: Connection) -> Handler:
        seen.append(connection.peer_address)
        return Silent()

    ports, settings = await open_service_ports(BrokerSettings(broker_service_port=0), make_handler)
    assert settings.broker_service_port
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", settings.broker_service_port)
    await ports.serve(RefusedConnections())
    _, writer = await asyncio.open_connection("127.0.0.1", settings.broker_service_port)
    while not seen:
        await asyncio.sleep(0.001)
    writer.close()
    await writer.wait_closed()
    await ports.close()


async def test_ports_that_never_served_can_be_closed() -> None:
    ports, _ = await open_service_ports(BrokerSettings(broker_service_port=0), lambda _: Silent())
    await ports.close()
