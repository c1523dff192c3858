"""The broker's ports: taken early, open late."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from magnetar.broker.policies.broker_limits import ConnectionLimits
from magnetar.broker.service_ports import open_service_ports
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.shared_ports import SharedPortSettings
from magnetar.net.connection import Connection
from magnetar.net.descriptors import HANDSHAKES_MIN
from magnetar.net.handlers import Handler
from magnetar.net.refused_connections import LimitKind, RefusedConnections
from magnetar.net.testing import TestAuthority, until
from magnetar.net.tls import TlsSettings
from magnetar.wire.haproxy import ProxiedConnection, encode_v2


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


@pytest.mark.parametrize(("proxy_protocol", "cut"), [(False, 4), (True, 0)])
async def test_the_limit_of_an_address_counts_tls_handshakes(tmp_path: Path, *, proxy_protocol: bool, cut: int) -> None:
    """Unless the address is that of a load balancer, which names its clients later."""
    own = TestAuthority(tmp_path).issue("broker")
    settings = BrokerSettings(
        broker_service_port=0,
        broker_service_port_tls=0,
        tls=TlsSettings(certificate_file=own.certificate_file, key_file=own.key_file),
        proxy_protocol=proxy_protocol,
    )
    limits = ConnectionLimits(100, 2, asyncio.get_running_loop().call_later)
    ports, settings = await open_service_ports(settings, lambda _: Silent(), limits.left_of)
    await ports.serve(limits.refused)
    halves = [await asyncio.open_connection("127.0.0.1", settings.broker_service_port_tls) for _ in range(6)]
    await until(lambda: ports.arriving + limits.refused.counts[LimitKind.HANDSHAKES_OF_ADDRESS] == 6)
    assert ports.arriving == 6 - cut
    for reader, _ in halves[:cut]:
        assert await reader.read() == b""
    for _, writer in halves:
        writer.close()
    await until(lambda: not ports.arriving)
    await ports.close()


async def test_headers_that_do_not_end_take_nobodys_connection() -> None:
    """They hold next to nothing, and the oldest go when the broker has as many connections as it may have."""
    seen: list[str] = []

    def make_handler(connection: Connection) -> Handler:
        seen.append(connection.peer_address)
        return Silent()

    header = bytearray(encode_v2(ProxiedConnection("10.0.0.1", 7, "10.0.0.2", 8)))
    header[14:16] = b"\xff\xff"
    limits = ConnectionLimits(1, 0, asyncio.get_running_loop().call_later)
    settings = BrokerSettings(broker_service_port=0, proxy_protocol=True)
    ports, settings = await open_service_ports(settings, make_handler, limits.left_of, limits.left)
    await ports.serve(limits.refused)
    halves = []
    for _ in range(HANDSHAKES_MIN + 5):
        halves.append(await asyncio.open_connection("127.0.0.1", settings.broker_service_port))
        halves[-1][1].write(bytes(header) + bytes(60_000))
        await until(lambda: len(halves) == len(ports.connections) + limits.refused.counts[LimitKind.PREAMBLES])
    assert len(ports.connections) == HANDSHAKES_MIN
    _, writer = halves[-1]
    writer.write(bytes(0xFFFF - 60_000 - 12))
    await until(lambda: seen == ["/10.0.0.1:7"])
    for _, writer in halves:
        writer.close()
    await until(lambda: not ports.connections)
    await ports.close()


async def test_ports_that_never_served_can_be_closed() -> None:
    ports, _ = await open_service_ports(BrokerSettings(broker_service_port=0), lambda _: Silent())
    await ports.close()


async def test_the_connections_of_all_ports_share_what_they_hold_and_their_outboxes(tmp_path: Path) -> None:
    """A journal in the same process sends them all early."""
    own = TestAuthority(tmp_path).issue("broker")
    settings = BrokerSettings(
        broker_service_port=0,
        broker_service_port_tls=0,
        tls=TlsSettings(certificate_file=own.certificate_file, key_file=own.key_file),
        shared_ports=SharedPortSettings(service_port=0, service_port_tls=0),
    )
    ports, _ = await open_service_ports(settings, lambda _: Silent())
    assert len(ports._listeners) == 4
    assert {listener.outboxes for listener in ports._listeners} == {ports.outboxes}
    assert {listener.held for listener in ports._listeners} == {ports.held}
    await ports.close()
