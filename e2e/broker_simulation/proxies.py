"""Real proxies on simulated hosts."""

from __future__ import annotations

from typing import Final

from magnetar.proxy.app import RunningProxy, start_proxy
from magnetar.proxy.settings import BrokerClientSettings, ProxySettings

from e2e.broker_simulation.hosts import ServiceHost
from e2e.broker_simulation.protocol import BROKER_PORT
from e2e.simulation.cluster import World
from e2e.simulation.metadata import SimulatedMetadata

DRAIN_SECONDS: Final = 0.5
STOP_SECONDS_MAX: Final = 3


def proxy_settings(name: str) -> ProxySettings:
    return ProxySettings(
        cluster_name="simulated",
        bind_address=name,
        advertised_address=name,
        service_port=BROKER_PORT,
        web_service_port=None,
        broker_client=BrokerClientSettings(connect_timeout_ms=1_000, read_timeout_ms=6_000),
        keep_alive_seconds=3.0,
        drain_seconds=DRAIN_SECONDS,
    )


class SimulatedProxy(ServiceHost[RunningProxy]):
    """One proxy's host, and the proxy that runs there. Its orderly stop drains."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, STOP_SECONDS_MAX)
        self._settings = proxy_settings(name)

    async def started(self, store: SimulatedMetadata) -> RunningProxy:
        """See `ServiceHost.started`."""
        return await start_proxy(self._settings, self.node.clock, store)
