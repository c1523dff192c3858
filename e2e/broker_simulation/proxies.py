"""Real proxies on simulated hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.proxy.app import RunningProxy, start_proxy
from magnetar.proxy.settings import BrokerClientSettings, ProxySettings

from e2e.broker_simulation.protocol import BROKER_PORT
from e2e.simulation.cluster import RESTART_PAUSE_SECONDS, World
from e2e.simulation.metadata import SimulatedMetadata

DRAIN_SECONDS: Final = 0.5
STOP_SECONDS_MAX: Final = 3
"""What an orderly stop is given, by its supervisor; then it is killed."""


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


class SimulatedProxy:
    """One proxy's host, and the proxy that runs there."""

    def __init__(self, world: World, name: str) -> None:
        self.node = world.node(name)
        self.running: RunningProxy | None = None
        self.refusals: list[str] = []
        """Why it did not start, each time."""
        self._world = world
        self._settings = proxy_settings(name)
        self._store: SimulatedMetadata | None = None
        self._stopping = False

    @property
    def serving(self) -> bool:
        """Whether it has started, and neither stops nor stands still."""
        process = self.node.process
        return self.running is not None and process is not None and not process.paused and not self._stopping

    def start(self) -> None:
        """Start it unless it runs; it is tried again until it does."""
        if not self.node.running:
            self.node.start()
            self.running = self._store = None
            self._stopping = False
            self.node.run(self._run())

    async def _run(self) -> None:
        world, node = self._world, self.node
        process = node.process
        assert process is not None
        self._store = SimulatedMetadata(world.service, node.name, lambda: process.alive and not process.paused)
        try:
            self.running = await start_proxy(self._settings, node.clock, self._store)
        except (MagnetarError, OSError) as error:
            self.refusals.append(f"{type(error).__name__}: {error}")
            world.loop.trace.note(node.name, f"does not start: {type(error).__name__}")
            world.loop.trace.remark(node.name, str(error))
            self._start_again()
            node.kill()

    def kill(self) -> None:
        """SIGKILL."""
        self.running = self._store = None
        self.node.kill()

    def stop(self) -> None:
        """An orderly stop, which drains, and a start afterwards."""
        if self.running is not None and self.node.running and not self._stopping:
            self._stopping = True
            self.node.run(self._stop(self.running), "stop")

    async def _stop(self, running: RunningProxy) -> None:
        store = self._store
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await running.close()
                if store is not None:
                    await store.close()
        except (TimeoutError, Unavailable) as error:
            self._world.loop.trace.note(self.node.name, f"is killed as it stops: {type(error).__name__}")
        self._start_again()
        self.kill()

    def _start_again(self) -> None:
        # On behalf of the scenario, for this process ends here.
        self.later(RESTART_PAUSE_SECONDS, self.start)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """On behalf of the scenario, whatever becomes of the process."""
        self._world.loop.call_later(seconds, act, context=self._world.service.context.copy())
