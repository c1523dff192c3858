"""Two clusters on one network, each with a metadata store, bookies and brokers of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from magnetar.broker.resources import Resources
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import NamespaceName

from e2e.broker_simulation.cluster import Cluster
from e2e.broker_simulation.drawn.regions import EAST, WEST
from e2e.broker_simulation.history import History
from e2e.broker_simulation.parameters import Parameters, draw_parameters
from e2e.broker_simulation.protocol import BROKER_PORT
from e2e.simulation.cluster import World
from e2e.simulation.metadata import SimulatedMetadata

NAMESPACE: Final = NamespaceName("public", "default")
RETRY_SECONDS: Final = 0.1
"""Until an administrator tries again what has failed."""


def parameters_of_regions(parameters: Parameters) -> tuple[Parameters, Parameters]:
    """Those of the eastern cluster are the run's; the western one has its own, with the same topics."""
    # Nobody runs negative seeds: they are those of the other cluster.
    drawn = draw_parameters(-1 - parameters.seed)
    storage = replace(
        drawn.storage,
        seed=parameters.seed,
        active_seconds=parameters.active_seconds,
        fault_kinds=tuple(kind for kind in drawn.storage.fault_kinds if "proxy" not in kind and "reading" not in kind),
    )
    if not storage.fault_kinds:
        storage = replace(storage, faults=0)
    west = replace(drawn, seed=parameters.seed, storage=storage, topics=parameters.topics, proxies=0)
    return _region(parameters, parameters, EAST), _region(west, parameters, WEST)


def _region(drawn: Parameters, parameters: Parameters, region: str) -> Parameters:
    regions = parameters.regions
    assert regions is not None
    entries = max(1, drawn.entries * drawn.producers // regions.producers)
    return replace(
        drawn,
        producers=regions.producers,
        entries=entries,
        batch_messages_max=regions.batch_messages_max,
        transactions=None,
        compaction=None,
        read_only=None,
        regions=regions,
        region=region,
        pause_seconds=parameters.active_seconds / entries / 1.5,
    )


class RegionCluster(Cluster):
    """One of the two."""

    def __init__(self, world: World, parameters: Parameters) -> None:
        super().__init__(world, parameters)
        self.history = History()
        self.region = parameters.region
        self.remote = WEST if parameters.region == EAST else EAST
        self.administrator = Administrator(world, f"{parameters.region}-administrator")
        assert parameters.regions is not None
        self.sends = parameters.region == EAST or parameters.regions.both_ways
        """Whether its topics are replicated to the other cluster."""
        self.remote_url = ""
        """Where the other cluster is; set before this one starts."""

    @property
    def url(self) -> str:
        """Where its brokers are."""
        regions = self.parameters.regions
        assert regions is not None
        names = self.broker_names if regions.whole_address else self.broker_names[:1]
        return "pulsar://" + ",".join(f"{name}:{BROKER_PORT}" for name in names)

    async def prepare(self) -> None:
        """See `Cluster.prepare`: it knows of the other cluster as well."""
        await super().prepare()
        self.administrator.start()
        self.administrator.do(self._introduce)
        self.name_clusters()
        await self.administrator.done()

    async def _introduce(self, resources: Resources) -> None:
        documents = resources.documents
        path = resources.cluster_path(self.remote)
        if await documents.get(path) is None:
            await documents.create(path, {"brokerServiceUrl": self.remote_url})
        both = sorted((self.region, self.remote))
        await documents.update(
            resources.tenant_path(NAMESPACE.tenant), lambda tenant: {**tenant, "allowedClusters": both}
        )

    def name_clusters(self) -> None:
        """The namespace is in both clusters. In a cluster that does not send it is in that one only, as before."""
        self._name(self.region, self.remote)

    def name_remote_alone(self) -> None:
        """Its list names the other cluster alone, as a configuration store that both share may: what is replicated
        goes on."""
        self._name(self.remote)

    def forget_remote(self) -> None:
        """It is not replicated any more."""
        self._name(self.region)

    def _name(self, *clusters: str) -> None:
        if self.sends:
            self.administrator.do(lambda resources: _name(resources, sorted(clusters)))


async def _name(resources: Resources, names: list[str]) -> None:
    path = resources.namespace_path(NAMESPACE)
    await resources.documents.update(path, lambda policies: {**policies, "replication_clusters": names})


class Administrator:
    """Who changes what the metadata store says, one thing after the other, until each is so."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._node = world.node(name)
        self._asked: list[Callable[[Resources], Coroutine[Any, Any, None]]] = []
        self._news = asyncio.Event()
        self._idle = asyncio.Event()

    def start(self) -> None:
        """Begin with what is asked for."""
        self._node.start()
        self._node.run(self._run())

    def do(self, change: Callable[[Resources], Coroutine[Any, Any, None]]) -> None:
        """Change something, when all before it is done."""
        self._asked.append(change)
        self._idle.clear()
        self._news.set()

    async def done(self) -> None:
        """Everything that was asked for is done."""
        await self._idle.wait()

    async def _run(self) -> None:
        process = self._node.process
        assert process is not None
        resources = Resources(SimulatedMetadata(self._world.service, self._node.name, lambda: process.alive))
        while True:
            while self._asked:
                try:
                    await self._asked[0](resources)
                except MagnetarError as error:
                    self._world.loop.trace.remark(self._node.name, f"{type(error).__name__}: {error}")
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    self._asked.pop(0)
            self._idle.set()
            self._news.clear()
            await self._news.wait()
