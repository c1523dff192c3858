"""How a standalone cluster comes up; one that does not leaves nothing behind."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import aiohttp
import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.metadata.store import MetadataStore, StoreUnavailable
from magnetar.standalone import cluster as standalone_cluster
from magnetar.standalone.settings import StandaloneSettings


async def test_a_broker_is_closed_when_what_follows_its_start_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[int] = []
    initialize = standalone_cluster.initialize

    async def fail_at_last(store: MetadataStore, settings: BrokerSettings) -> None:
        if settings.broker_service_port:
            ports.append(settings.broker_service_port)
            raise StoreUnavailable("gone")
        await initialize(store, settings)

    monkeypatch.setattr(standalone_cluster, "initialize", fail_at_last)
    settings = StandaloneSettings(data_directory=tmp_path / "data", broker_service_port=0, web_service_port=0)
    with pytest.raises(StoreUnavailable):
        await standalone_cluster.start_cluster(settings)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", ports[0])


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
async def test_both_ports_are_at_an_address_of_ipv6(tmp_path: Path) -> None:
    settings = StandaloneSettings(
        data_directory=tmp_path / "data",
        address="::1",
        broker_service_port=0,
        web_service_port=0,
        persistent_metadata=False,
    )
    cluster = await standalone_cluster.start_cluster(settings)
    try:
        assert cluster.service_url.startswith("pulsar://[::1]:")
        assert cluster.admin_url.startswith("http://[::1]:")
        health = f"{cluster.admin_url}/admin/v2/brokers/health"  # By a message that goes over the other port.
        async with aiohttp.ClientSession() as session, session.get(health) as answer:
            assert (answer.status, await answer.text()) == (200, "ok")
    finally:
        await cluster.close()
