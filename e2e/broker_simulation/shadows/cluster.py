"""A cluster with a namespace for shadows, in which nobody makes topics by using them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from magnetar.broker.resources import Resources, new_policies

from e2e.broker_simulation.brokers import CLUSTER, SimulatedBroker
from e2e.broker_simulation.clients import Client
from e2e.broker_simulation.cluster import Cluster
from e2e.broker_simulation.protocol import BROKER_PORT
from e2e.broker_simulation.shadows.administrator import Administrator
from e2e.broker_simulation.shadows.parameters import NAMESPACE, ShadowParameters
from e2e.simulation.cluster import World
from e2e.simulation.metadata import SimulatedMetadata

ADMINISTRATOR: Final = "administrator"


class ShadowCluster(Cluster):
    """With an administrator."""

    def __init__(
        self, world: World, parameters: ShadowParameters, new_client: Callable[[Cluster, str], Client]
    ) -> None:
        super().__init__(world, parameters.cluster)
        self.shadows = parameters
        self.administrator = Administrator(new_client(self, ADMINISTRATOR), self.broker_names)

    async def start(self) -> None:
        """See `Cluster.start`; then sources and shadows are made, perhaps while clients come."""
        await super().start()
        self.client(ADMINISTRATOR, self.administrator)
        for source, shadows in self.shadows.sources.items():
            self.administrator.make_source(source)
            for shadow in shadows:
                self.administrator.make_shadow(source, shadow)
            self.administrator.tell(source, shadows)
        while self.shadows.made_first and self.administrator.left:  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0.1)

    async def prepare(self) -> None:
        """See `Cluster.prepare`."""
        await super().prepare()
        node = self.world.node("setup of shadows")
        process = node.start()
        done = asyncio.Event()

        async def prepare() -> None:
            store = SimulatedMetadata(self.world.service, node.name, lambda: process.alive)
            documents = Resources(store).documents
            policies = new_policies(CLUSTER, self.parameters.bundles)
            policies["autoTopicCreationOverride"] = {"allowAutoTopicCreation": False}
            await documents.create(Resources.namespace_path(NAMESPACE), policies)
            if self.shadows.whole_address:
                url = "pulsar://" + ",".join(f"{name}:{BROKER_PORT}" for name in self.broker_names)
                await documents.update(Resources.cluster_path(CLUSTER), lambda data: {**data, "brokerServiceUrl": url})
            await store.close()
            done.set()

        node.run(prepare())
        await done.wait()
        node.kill()

    def owners(self, topic: str) -> list[SimulatedBroker]:
        """Brokers that have a topic loaded."""
        return [
            broker
            for broker in self.brokers
            if broker.serving and broker.running is not None and topic in broker.running.context.service.topics
        ]
