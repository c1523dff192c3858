"""What goes wrong between two clusters; what goes wrong within each is `broker_simulation.faults`'s."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Final

from e2e.broker_simulation.drawn.regions import RegionsParameters
from e2e.broker_simulation.regions.clusters import RegionCluster

ARMED_SHARE: Final = 0.5
ON_ITS_WAY_SECONDS: Final = 0.01
"""About what a message takes until the other cluster has it, where that is near."""


class LinkFaults:
    """Makes them happen, and undoes them at the end."""

    def __init__(self, east: RegionCluster, west: RegionCluster, parameters: RegionsParameters) -> None:
        """To be made after the faults of each cluster."""
        self._clusters = (east, west)
        self._parameters = parameters
        self._world = east.world
        self._chance = east.world.chance("links")
        self._active_seconds = east.parameters.active_seconds
        self._armed: list[str] = []
        """Faults that wait for a client to do something."""
        self._running = True
        self._context = contextvars.copy_context()
        for cluster in self._clusters:
            self._listen(cluster)
        self._slow_down(east, west, 0.0)
        self._slow_down(west, east, 0.0)

    def _listen(self, cluster: RegionCluster) -> None:
        before = cluster.history.on_moment

        def on_moment() -> None:
            before()
            self._moment()

        cluster.history.on_moment = on_moment

    async def run(self) -> None:
        """All faults of the schedule; returns when the time for them is over."""
        chance, loop, active_seconds = self._chance, self._world.loop, self._active_seconds
        begin = loop.time()
        for moment in sorted(chance.uniform(0, active_seconds) for _ in range(self._parameters.faults)):
            await asyncio.sleep(max(0.0, begin + moment - loop.time()))
            kind = chance.choice(self._parameters.fault_kinds)
            if chance.random() < ARMED_SHARE:
                self._armed.append(kind)
            else:
                self._make(kind)
        await asyncio.sleep(max(0.0, begin + active_seconds - loop.time()))

    def heal(self) -> None:
        """From here on nothing goes wrong. The network is healed by others."""
        self._running = False
        for cluster in self._clusters:
            cluster.name_clusters()

    def _moment(self) -> None:
        if self._armed and self._running:
            kind = self._armed.pop(0)
            # On behalf of the scenario, not of the client.
            seconds = self._chance.uniform(0.0, ON_ITS_WAY_SECONDS + 2 * self._parameters.distance_seconds)
            self._world.loop.call_later(seconds, self._make, kind, context=self._context.copy())

    def _make(self, kind: str) -> None:
        if self._running:
            self._world.loop.trace.note("fault", kind)
            getattr(self, kind)()

    def cut_link(self) -> None:
        """All connections between the two clusters break, or those of one broker."""
        east, west = (cluster.broker_names for cluster in self._clusters)
        if self._chance.random() < 0.5:
            east = [self._chance.choice(east)]
        for one in east:
            for other in west:
                self._world.network.reset(one, other)

    def split_link(self) -> None:
        """The two clusters do not hear each other for a while."""
        east, west = (cluster.broker_names for cluster in self._clusters)
        self._later(self._duration(), self._world.network.partition(east, west))

    def deafen_link(self) -> None:
        """One of the two is not heard by the other, and hears."""
        source, target = self._chance.sample(self._clusters, 2)
        self._later(self._duration(), self._world.network.block(source.broker_names, target.broker_names))

    def slow_link(self) -> None:
        """Everything takes longer between the two, in one direction."""
        source, target = self._chance.sample(self._clusters, 2)
        self._slow_down(source, target, self._chance.choice((0.02, 0.2, 1.0)))
        self._later(self._duration(), lambda: self._slow_down(source, target, 0.0))

    def _slow_down(self, source: RegionCluster, target: RegionCluster, seconds: float) -> None:
        for one in source.broker_names:
            for other in target.broker_names:
                self._world.network.slow_down(one, other, self._parameters.distance_seconds + seconds)

    def name_remote_alone(self) -> None:
        """For a while the list of the namespace names the other cluster alone."""
        cluster = self._chance.choice(self._clusters)
        cluster.name_remote_alone()
        self._later(self._duration(), cluster.name_clusters)

    def forget_remote(self) -> None:
        """For a while, perhaps for no longer than a moment, the other cluster is not in the list."""
        cluster = self._chance.choice(self._clusters)
        cluster.forget_remote()
        self._later(self._chance.choice((0.0, 0.002, self._duration())), cluster.name_clusters)

    def _duration(self) -> float:
        return self._chance.choice((0.05, 0.3, 1.0, 3.0)) * (0.5 + self._chance.random())

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        def unless_healed() -> None:
            if self._running:
                act()

        self._world.loop.call_later(seconds, unless_healed, context=self._context.copy())
