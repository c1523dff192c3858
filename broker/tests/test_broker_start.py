"""A broker that cannot start leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit

import pytest
from magnetar.broker.admin import application
from magnetar.broker.app import start_broker
from magnetar.broker.broker_parts import BrokerParts
from magnetar.broker.settings.access import AccessSettings, PeerSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.clock import SystemClock
from magnetar.core.errors import SettingError
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.testing import MemoryBookies
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryMetadataStore


async def test_ports_are_free_again_after_a_start_that_failed() -> None:
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as found:
            ports.append(found.getsockname()[1])
    settings = BrokerSettings(
        bind_address="127.0.0.1",
        broker_service_port=ports[0],
        web_service_port=ports[1],
        access=AccessSettings(peers=PeerSettings(plugin="no.such.Plugin")),
    )
    store = MemoryMetadataStore()
    ledgers = BookKeeperClient(store, MemoryBookies(), SystemClock())
    with pytest.raises(SettingError):
        await start_broker(settings, BrokerParts(store, ledgers, SystemClock(), ManagedLedgerSettings()))
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()
    await ledgers.close()
    await store.close()


async def test_nobody_waits_for_an_admin_api_that_cannot_start(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(_: object) -> None:
        raise RuntimeError("out of something")

    monkeypatch.setattr(application, "make_runner", failing)
    port = urlsplit(memory_broker.admin_url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert "the admin API cannot start" in caplog.text
