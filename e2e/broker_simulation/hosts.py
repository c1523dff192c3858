"""Hosts of brokers and proxies: a process of ours that is started, stopped, killed, and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from magnetar.core.errors import MagnetarError, Unavailable

from e2e.simulation.cluster import RESTART_PAUSE_SECONDS, World
from e2e.simulation.metadata import SimulatedMetadata


class Closable(Protocol):
    """A service that runs."""

    async def close(self) -> None:
        """Stop in order."""
        ...


Running = TypeVar("Running", bound=Closable)


class ServiceHost(Generic[Running]):
    """One host, and the service that runs there. A subclass says how the service is started."""

    def __init__(self, world: World, name: str, stop_seconds_max: float) -> None:
        """`stop_seconds_max`: what its supervisor gives an orderly stop; then it is killed."""
        self.node = world.node(name)
        self.running: Running | None = None
        self.store: SimulatedMetadata | None = None
        self.refusals: list[str] = []
        """Why it did not start, each time."""
        self._world = world
        self._stop_seconds_max = stop_seconds_max
        self._stopping = False

    async def started(self, store: SimulatedMetadata) -> Running:
        """Start the service in the host's process. Raises what keeps it from starting."""
        raise NotImplementedError

    @property
    def serving(self) -> bool:
        """Whether it has started, and neither stops nor stands still."""
        process = self.node.process
        return self.running is not None and process is not None and not process.paused and not self._stopping

    def start(self) -> None:
        """Start it unless it runs; it is tried again until it does."""
        if not self.node.running:
            self.node.start()
            self.running = self.store = None
            self._stopping = False
            self.node.run(self._run())

    async def _run(self) -> None:
        world, node = self._world, self.node
        process = node.process
        assert process is not None
        self.store = SimulatedMetadata(world.service, node.name, lambda: process.alive and not process.paused)
        try:
            self.running = await self.started(self.store)
        except (MagnetarError, OSError) as error:
            self.refusals.append(f"{type(error).__name__}: {error}")
            world.loop.trace.note(node.name, f"does not start: {type(error).__name__}")
            world.loop.trace.remark(node.name, str(error))
            self._start_again()
            node.kill()

    def kill(self) -> None:
        """SIGKILL."""
        self.running = self.store = None
        self.node.kill()

    def lose_power(self) -> None:
        """The host goes off; nobody is told."""
        self.running = self.store = None
        self.node.lose_power()

    def stop(self, *, again: bool = True) -> None:
        """An orderly stop, and a start afterwards."""
        if self.running is not None and self.node.running and not self._stopping:
            self._stopping = True
            self.node.run(self._stop(self.running, again=again), "stop")

    async def _stop(self, running: Running, *, again: bool) -> None:
        store = self.store
        try:
            async with asyncio.timeout(self._stop_seconds_max):
                await running.close()
                if store is not None:
                    await store.close()
        except (TimeoutError, Unavailable) as error:
            self._world.loop.trace.note(self.node.name, f"is killed as it stops: {type(error).__name__}")
        if again:
            self._start_again()
        self.kill()

    def _start_again(self) -> None:
        # On behalf of the scenario, for this process ends here.
        self.later(RESTART_PAUSE_SECONDS, self.start)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """On behalf of the scenario, whatever becomes of the process."""
        self._world.loop.call_later(seconds, act, context=self._world.service.context.copy())
