"""One seed: builds the cluster, lets clients and faults loose on it, heals everything, looks, and judges."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import traceback
from dataclasses import dataclass, field
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.sim.loop import Deadlock, EndlessRun, SimulatedLoop
from magnetar.sim.trace import Trace

from e2e.collector import collector_off, freeze_modules
from e2e.simulation.actors import REPLICATION_SECONDS, Writer, count_replicas, look_at_the_end, tail, take_over
from e2e.simulation.checker import check
from e2e.simulation.cluster import PATIENCE_SECONDS, BookieDown, ClientHost, Cluster, World
from e2e.simulation.faults import Faults
from e2e.simulation.history import History
from e2e.simulation.mistakes import MISTAKES
from e2e.simulation.owners import Owner, look_at_the_topic
from e2e.simulation.parameters import Parameters, draw_parameters
from e2e.simulation.planting import Mistake, planted
from e2e.simulation.witness import Witness

STEPS_MAX: Final = 400_000
SECONDS_MAX: Final = 1_000.0


@dataclass(slots=True)
class Verdict:
    """What came of one seed."""

    seed: int
    violations: list[str]
    trace_digest: str
    trace_lines: list[str] = field(repr=False)
    """Empty unless the trace was to be kept."""
    steps: int = 0
    virtual_seconds: float = 0.0
    real_seconds: float = 0.0
    ledgers: int = 0
    confirmed_entries: int = 0


def run_seed(seed: int, *, mistake: Mistake | None = None, keep_trace: bool = False) -> Verdict:
    """The same verdict and the same trace, whenever and wherever it runs."""
    with collector_off():
        return _run_seed(seed, mistake, keep_trace)


def _run_seed(seed: int, mistake: Mistake | None, keep_trace: bool) -> Verdict:
    parameters = draw_parameters(seed)
    trace = Trace(keep=keep_trace)
    loop = SimulatedLoop(random.Random(f"{seed} loop"), trace, steps_max=STEPS_MAX, seconds_max=SECONDS_MAX)
    history = History(staleness_seconds=parameters.metadata_lag_seconds)
    witnesses: list[Witness] = []
    began = time.perf_counter()
    with planted(mistake), _LogToTrace(trace, loop.problems):
        try:
            loop.run(_scenario(loop, parameters, history, witnesses))
        except (Deadlock, EndlessRun, BookieDown) as error:
            history.stuck.append(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001  (of the scenario itself: the seed must be named)
            history.stuck.append(f"the scenario failed with {error!r}")
            trace.remark("scenario", traceback.format_exc())
        violations = [violation for witness in witnesses for violation in witness.violations]
        violations += check(history) + [f"unexpected: {problem}" for problem in loop.problems]
        digest = trace.digest
        loop.bury()
    confirmed = sum(witness.confirmed_entries for witness in witnesses)
    return Verdict(
        seed=seed,
        violations=violations,
        trace_digest=digest,
        trace_lines=trace.lines,
        steps=loop.steps,
        virtual_seconds=loop.time(),
        real_seconds=time.perf_counter() - began,
        ledgers=sum(witness.ledgers_created for witness in witnesses),
        confirmed_entries=confirmed,
    )


def run_batch(work: tuple[range, str | None]) -> list[Verdict]:
    """Some seeds in a row, with a planted mistake or none; for a pool of processes."""
    freeze_modules()
    seeds, mistake = work
    return [run_seed(seed, mistake=MISTAKES[mistake] if mistake else None) for seed in seeds]


def find_mistake(work: tuple[str, range]) -> tuple[str, Verdict | None]:
    """The mistake's name, and the first of some seeds that finds it; for a pool of processes."""
    name, seeds = work
    freeze_modules()
    for seed in seeds:
        verdict = run_seed(seed, mistake=MISTAKES[name])
        if verdict.violations:
            return name, verdict
    return name, None


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


class _LogToTrace(logging.Handler):
    """Log lines become remarks; an exception that production code has caught and could only log is a problem."""

    def __init__(self, trace: Trace, problems: list[str]) -> None:
        super().__init__(logging.INFO if trace.kept else logging.ERROR)
        self._trace = trace
        self._problems = problems
        self._root = logging.getLogger("magnetar")
        self._before = (self._root.level, self._root.propagate)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        self._trace.remark(record.name, record.getMessage())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, (MagnetarError, OSError)):
            self._problems.append(f"{record.getMessage()}: {error!r}")
            for line in traceback.format_exception(error):
                self._trace.remark(record.name, line.rstrip())

    def __enter__(self) -> None:
        self._root.addHandler(self)
        self._root.setLevel(self.level)
        self._root.propagate = False

    def __exit__(self, *_: object) -> None:
        self._root.removeHandler(self)
        self._root.setLevel(self._before[0])
        self._root.propagate = self._before[1]
