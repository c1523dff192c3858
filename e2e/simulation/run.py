"""One seed: builds the cluster, lets clients and faults loose on it, heals everything, looks, and judges."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.sim.loop import SimulatedLoop

from e2e.simulation.actors import REPLICATION_SECONDS, Writer, count_replicas, look_at_the_end, tail, take_over
from e2e.simulation.checker import check
from e2e.simulation.cluster import PATIENCE_SECONDS, ClientHost, Cluster, World
from e2e.simulation.faults import Faults
from e2e.simulation.history import History
from e2e.simulation.owners import Owner, look_at_the_topic
from e2e.simulation.parameters import Parameters, draw_parameters
from e2e.simulation.planting import Mistake, planted
from e2e.simulation.witness import Witness
from e2e.simulation_runner import running
from e2e.simulation_runner.running import Verdict

BOUNDS: Final = running.Bounds(steps_max=400_000, virtual_seconds_max=1_000.0)


class StorageRun:
    """Of one seed."""

    def __init__(self, loop: SimulatedLoop, parameters: Parameters) -> None:
        self._loop = loop
        self._parameters = parameters
        self._history = History(staleness_seconds=parameters.metadata_lag_seconds)
        self._witnesses: list[Witness] = []

    async def scenario(self) -> None:
        """See `Run.scenario`."""
        await _scenario(self._loop, self._parameters, self._history, self._witnesses)

    def violations(self) -> list[str]:
        """See `Run.violations`."""
        seen = [violation for witness in self._witnesses for violation in witness.violations]
        return seen + check(self._history)

    def counts(self) -> dict[str, int]:
        """See `Run.counts`."""
        return {
            "ledgers": sum(witness.ledgers_created for witness in self._witnesses),
            "confirmed entries": sum(witness.confirmed_entries for witness in self._witnesses),
        }


def run_seed(seed: int, *, mistake: Mistake | None = None, keep_trace: bool = False) -> Verdict:
    """The same verdict and the same trace, whenever and wherever it runs."""
    return running.run_seed(
        seed,
        lambda loop: StorageRun(loop, draw_parameters(seed)),
        BOUNDS,
        planted=planted(mistake),
        keep_trace=keep_trace,
    )


async def _scenario(loop: SimulatedLoop, parameters: Parameters, history: History, witnesses: list[Witness]) -> None:
    world = World(loop, parameters)
    witnesses.append(world.witness)
    world.loop.trace.remark("scenario", repr(parameters))
    cluster = Cluster(world)
    await cluster.start()
    writers = _start_clients(cluster, history)
    faults = Faults(cluster, history)
    await faults.run()
    faults.heal()
    await _until_done(writers, history, PATIENCE_SECONDS)
    await cluster.until_all_run()
    await cluster.until_drained()
    await _look(cluster, history)


def _start_clients(cluster: Cluster, history: History) -> list[ClientHost]:
    parameters = cluster.world.parameters
    until = cluster.world.loop.time() + parameters.active_seconds
    hosts: list[ClientHost] = []
    for number in range(parameters.writers):
        host = cluster.client(f"writer{number}")
        host.start(lambda client: Writer(client, history, parameters, until).run())
        hosts.append(host)
    for number in range(parameters.readers):
        host = cluster.client(f"reader{number}")
        host.start(lambda client: tail(client, history, parameters, until))
        hosts.append(host)
    for number in range(parameters.recoverers):
        host = cluster.client(f"recoverer{number}")
        host.start(lambda client: take_over(client, history, parameters, until))
        hosts.append(host)
    for number in range(parameters.topic.owners):
        host = cluster.client(f"owner{number}")
        host.start(lambda client: Owner(client, cluster.world.topic, parameters, until).run())
        hosts.append(host)
    return hosts


async def _until_done(hosts: list[ClientHost], history: History, patience_seconds: float) -> None:
    """Nothing is wrong any more: everybody must come to an end."""
    for host in hosts:
        try:
            async with asyncio.timeout(patience_seconds):
                await host.done.wait()
        except TimeoutError:
            history.stuck.append(f"{host.node.name} does not come to an end")


async def _look(cluster: Cluster, history: History) -> None:
    parameters = cluster.world.parameters
    for name, recover in (("final0", True), ("final1", False)):
        # Whoever looks at the end shall not be shown an older state.
        await asyncio.sleep(parameters.metadata_lag_seconds)
        host = cluster.client(name)
        host.start(lambda client, recover=recover: look_at_the_end(client, history, parameters, recover=recover))  # type: ignore[misc]
        await _until_done([host], history, PATIENCE_SECONDS)
    if parameters.topic.owners:
        host = cluster.client("final owner")
        host.start(lambda client: look_at_the_topic(client, cluster.world.topic, history, parameters))
        await _until_done([host], history, 2 * PATIENCE_SECONDS)
    if parameters.autorecovery:
        host = cluster.client("counter")
        host.start(lambda client: count_replicas(client, history))
        await _until_done([host], history, 2 * REPLICATION_SECONDS)
