"""What the proxy's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from magnetar.core.clock import Clock, SystemClock
from magnetar.metadata.store import MetadataStore
from magnetar.proxy.app import RunningProxy, start_proxy
from magnetar.proxy.settings import FixedBrokers, ProxySettings, TargetSettings

StartProxy = Callable[..., Awaitable[RunningProxy]]

LOCAL = ProxySettings(
    bind_address="127.0.0.1",
    service_port=0,
    web_service_port=None,
    targets=TargetSettings(ports=("*",)),
    drain_seconds=0,
)


@pytest.fixture
async def start() -> AsyncIterator[StartProxy]:
    """Starts proxies on free ports, without HTTP unless asked for; they are closed after the test."""
    started: list[RunningProxy] = []

    async def begin(
        broker: str = "", store: MetadataStore | None = None, clock: Clock | None = None, **changes: Any
    ) -> RunningProxy:
        settings = replace(LOCAL, fixed_brokers=FixedBrokers(service_url=broker))
        started.append(await start_proxy(replace(settings, **changes), clock or SystemClock(), store))
        return started[-1]

    yield begin
    for proxy in started:
        await proxy.close()
