"""All of a run: bookies, brokers, and the hosts of clients."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.ledger.ledger_paths import AVAILABLE_PATH

from e2e.broker_simulation.brokers import SimulatedBroker, host_prefix, prepare_cluster
from e2e.broker_simulation.clients import Host, Program
from e2e.broker_simulation.drawn.read_only import NAME
from e2e.broker_simulation.parameters import Parameters
from e2e.broker_simulation.proxies import SimulatedProxy
from e2e.broker_simulation.read_only.brokers import SimulatedReadOnlyBroker
from e2e.simulation.cluster import BookieDown, SimulatedBookie, World
from e2e.simulation_runner.running import Stuck

START_SECONDS_MAX: Final = 30.0


class BrokerDown(Stuck):
    """A broker or proxy does not start although nothing is wrong any more."""


class Cluster:
    """All of it. Stands in for `e2e.simulation.cluster.Cluster` where faults are made."""

    def __init__(self, world: World, parameters: Parameters) -> None:
        self.world = world
        self.parameters = parameters
        prefix = host_prefix(parameters)
        self.bookies = [
            SimulatedBookie(world, f"{prefix}bookie{number}") for number in range(parameters.storage.bookies)
        ]
        self.brokers = [
            SimulatedBroker(world, f"{prefix}broker{number}", parameters) for number in range(parameters.brokers)
        ]
        self.proxies = [SimulatedProxy(world, f"proxy{number}") for number in range(parameters.proxies)]
        read_only = parameters.read_only
        self.reading = [
            SimulatedReadOnlyBroker(world, f"{NAME}{number}", parameters)
            for number in range(0 if read_only is None else read_only.brokers)
        ]
        """Brokers that only read."""
        self.clients: list[Host] = []

    async def start(self) -> None:
        """Start all servers, and wait until they serve."""
        for bookie in self.bookies:
            bookie.start()
        await self.until_bookies_run()
        await self.prepare()
        for broker in self.brokers:
            broker.start()
        await self.until_brokers_serve()
        for proxy in self.proxies:
            proxy.start()
        for broker in self.reading:
            broker.start()
        await self.until_brokers_serve()

    async def prepare(self) -> None:
        """Write into the metadata store what must stand there before brokers start."""
        await prepare_cluster(self.world, self.parameters)

    async def until_bookies_run(self) -> None:
        """`BookieDown`."""
        deadline = self.world.loop.time() + START_SECONDS_MAX
        while missing := [bookie for bookie in self.bookies if not self._registered(bookie)]:
            if self.world.loop.time() > deadline:
                raise BookieDown(f"{missing[0].bookie_id} does not come back: {missing[0].refusals[-1:]}")
            await asyncio.sleep(0.1)

    async def until_brokers_serve(self) -> None:
        """Brokers, and proxies that were started. `BrokerDown`."""
        deadline = self.world.loop.time() + START_SECONDS_MAX
        started = [proxy for proxy in self.proxies if proxy.node.starts]
        servers: list[SimulatedBroker | SimulatedProxy] = [*self.brokers, *started]
        servers += [broker for broker in self.reading if broker.node.starts]
        while missing := [server for server in servers if not server.serving]:
            if self.world.loop.time() > deadline:
                raise BrokerDown(f"{missing[0].node.name} does not come back: {missing[0].refusals[-1:]}")
            await asyncio.sleep(0.1)

    def _registered(self, bookie: SimulatedBookie) -> bool:
        node = self.world.service.table.load(f"{AVAILABLE_PATH}/{bookie.bookie_id}")
        return bookie.running is not None and node is not None

    def client(self, name: str, role: Program) -> Host:
        """A new host with a client's program, which begins."""
        host = Host(self.world, name, role)
        self.clients.append(host)
        host.start()
        return host

    def hosts(self) -> list[str]:
        """The names of all hosts but the metadata service's."""
        servers = [*(bookie.node for bookie in self.bookies), *(broker.node for broker in self.brokers)]
        servers += [proxy.node for proxy in self.proxies]
        servers += [broker.node for broker in self.reading]
        return [node.name for node in (*servers, *(client.node for client in self.clients))]

    @property
    def broker_names(self) -> list[str]:
        """The hosts of brokers that write."""
        return [broker.node.name for broker in self.brokers]

    @property
    def reading_names(self) -> list[str]:
        """The hosts of brokers that only read."""
        return [broker.node.name for broker in self.reading]

    @property
    def proxy_names(self) -> list[str]:
        """The hosts of proxies."""
        return [proxy.node.name for proxy in self.proxies]
