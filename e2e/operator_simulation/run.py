"""One seed: a cluster is made, people and accidents are let loose on it, all is well again, and all is judged."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from magnetar.sim.loop import SimulatedLoop

from e2e.operator_simulation.api_server import WRITES
from e2e.operator_simulation.disturbances import EXTRA_POOL, Disturbances
from e2e.operator_simulation.goal import left_over, unmet
from e2e.operator_simulation.mistakes import Mistake
from e2e.operator_simulation.operators import PASSES_MAX, Operators
from e2e.operator_simulation.parameters import Parameters, draw_parameters
from e2e.operator_simulation.world import CLUSTER, NAMESPACE, World
from e2e.simulation.planting import planted
from e2e.simulation_runner import running
from e2e.simulation_runner.running import Verdict

BOUNDS: Final = running.Bounds(steps_max=5_000_000, virtual_seconds_max=20_000.0, log_level=logging.DEBUG)

CONVERGED_SECONDS_MAX: Final = 1_800.0
"""Within so long everything must be as wished, once nothing goes wrong any more."""
READY_SECONDS_MAX: Final = 600.0
GONE_SECONDS_MAX: Final = 600.0
REST_SECONDS: Final = 130.0
"""Between being as wished and being quiet."""
BALANCE_SECONDS: Final = 2_700.0
"""The same where the operator moves bundles until they are even: what was moved stays where it is for half an hour, and
may have to move once more then."""
LOOK_SECONDS: Final = 5.0
IDLE_READS_PER_MINUTE_MAX: Final = 30
"""Calls to the API server while nothing happens, for each resource; twice as many where something stands still."""
CALLS_PER_MINUTE_MAX: Final = 3_000
"""While something does."""


def run_seed(seed: int, *, mistake: Mistake | None = None, keep_trace: bool = False) -> Verdict:
    """The same verdict and the same trace, whenever and wherever it runs. With a mistake the run is one in which that
    one is met, and is not gone on with once a promise is broken."""
    if mistake is None:
        return run_parameters(draw_parameters(seed), keep_trace=keep_trace)
    return run_parameters(mistake.where(draw_parameters(seed)), mistake=mistake, keep_trace=keep_trace)


def run_parameters(parameters: Parameters, *, mistake: Mistake | None = None, keep_trace: bool = False) -> Verdict:
    """As `run_seed`."""
    return running.run_seed(
        parameters.seed,
        lambda loop: _Run(loop, parameters, hasty=mistake is not None),
        BOUNDS,
        planted=planted(mistake.patches if mistake is not None else None),
        keep_trace=keep_trace,
    )


class _Run:
    def __init__(self, loop: SimulatedLoop, parameters: Parameters, *, hasty: bool) -> None:
        self._loop = loop
        self._hasty = hasty
        self._parameters = parameters
        self.world: World | None = None
        self.operators: Operators | None = None
        self.converged_seconds = 0.0

    def violations(self) -> list[str]:
        """See `Run.violations`."""
        return [] if self.world is None else self.world.promises.violations

    def counts(self) -> dict[str, int]:
        """See `Run.counts`."""
        return {
            "passes": 0 if self.operators is None else self.operators.passes,
            "calls": 0 if self.world is None else self.world.network.calls,
            "seconds until all was as wished": int(self.converged_seconds),
        }

    async def scenario(self) -> None:
        """From the first resource to the last look."""
        self._loop.trace.remark("scenario", repr(self._parameters))
        world = self.world = World(self._loop, self._parameters)
        operators = self.operators = Operators(world)
        disturbances = Disturbances(world, operators)
        world.start()
        world.make_cluster()
        operators.start()
        if self._parameters.begins_ready:
            await self._is_ready(world)
        await disturbances.run()
        if self._hasty and world.promises.violations:
            return
        disturbances.settle()
        if await self._converges(world, operators, grown_too_far=disturbances.grown_too_far):
            await self._rests(world, operators, grown_too_far=disturbances.grown_too_far)
        if self._parameters.deleted_at_the_end and not world.promises.violations:
            await self._goes(world)

    async def _is_ready(self, world: World) -> None:
        """A cluster is made before it is disturbed, mostly. That takes long when many calls fail."""
        for _ in range(int(READY_SECONDS_MAX / LOOK_SECONDS)):
            await asyncio.sleep(LOOK_SECONDS)
            if not unmet(world):
                return

    async def _converges(self, world: World, operators: Operators, *, grown_too_far: bool) -> bool:
        began = self._loop.time()
        problems: list[str] = []
        calls = _api_calls(world)
        while self._loop.time() - began < CONVERGED_SECONDS_MAX:
            await asyncio.sleep(LOOK_SECONDS)
            problems = unmet(world, grown_too_far=grown_too_far)
            if self._hasty and world.promises.violations:
                return False
            if not problems:
                self.converged_seconds = self._loop.time() - began
                return True
            if operators.passes > PASSES_MAX:
                world.promises.broken(f"{operators.passes} passes are too many")
                return False
        minutes = CONVERGED_SECONDS_MAX / 60
        world.promises.broken(f"not as wished after {minutes:.0f} minutes: {'; '.join(problems[:4])}")
        if _api_calls(world) - calls > CALLS_PER_MINUTE_MAX * minutes:
            world.promises.broken("too many calls")
        return False

    async def _rests(self, world: World, operators: Operators, *, grown_too_far: bool) -> None:
        """What still moves by itself does so; then nothing may."""
        world.software.storage.clients_write = lambda: False
        await asyncio.sleep(BALANCE_SECONDS if self._parameters.driver == "Operator" else REST_SECONDS)
        world.rests = True
        before = dict(world.server.calls)
        await asyncio.sleep(self._parameters.idle_seconds)
        made = {what: count - before.get(what, 0) for what, count in world.server.calls.items()}
        writes = {what: count for what, count in made.items() if count and what.partition(" ")[0] in WRITES}
        if writes:
            world.promises.broken(f"not quiet while nothing happens: {writes}")
        minutes = self._parameters.idle_seconds / 60
        reads = sum(count for what, count in made.items() if what != "pods")
        resources = (1 + len(world.pools())) * (2 if grown_too_far else 1)
        if reads > IDLE_READS_PER_MINUTE_MAX * minutes * resources:
            world.promises.broken(f"{reads} calls in {minutes:.0f} minutes in which nothing happens")
        world.rests = False
        if problems := unmet(world, grown_too_far=grown_too_far):
            world.promises.broken(f"not as wished any more: {'; '.join(problems[:4])}")

    async def _goes(self, world: World) -> None:
        """The cluster is deleted for good."""
        cluster = world.cluster()
        assert cluster is not None
        volumes = cluster["spec"]["deletionPolicy"] == "Retain"
        world.store.delete(("PulsarCluster", NAMESPACE, CLUSTER))
        # A pool that a person has made is the person's to delete.
        world.store.delete(("Bookie", NAMESPACE, EXTRA_POOL))
        began = self._loop.time()
        problems = left_over(world, volumes=volumes)
        while problems and self._loop.time() - began < GONE_SECONDS_MAX:
            await asyncio.sleep(LOOK_SECONDS)
            problems = left_over(world, volumes=volumes)
        if problems:
            world.promises.broken(f"not gone after {GONE_SECONDS_MAX / 60:.0f} minutes: {'; '.join(problems[:4])}")
        if volumes and not world.store.all("PersistentVolumeClaim"):
            world.promises.broken("the volumes are gone, which were to stay")


def _api_calls(world: World) -> int:
    return sum(count for what, count in world.server.calls.items() if what != "pods")
