"""A standalone cluster that does not come up leaves nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

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
