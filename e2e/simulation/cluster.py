"""Real bookies and real ledger clients on simulated hosts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from magnetar.bookie.app import BookieEnvironment, RunningBookie, start_bookie
from magnetar.bookie.autorecovery.daemon import AutoRecoveryDied
from magnetar.bookie.cookie import INSTANCE_ID_PATH
from magnetar.bookie.drain.paths import intention_path
from magnetar.bookie.drain.state import Phase, decode_intention
from magnetar.bookie.settings import BookieSettings, DiskSettings, JournalSettings, StorageSettings
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.limits import KIB, MIB
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookieSettings
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_PATH
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.tree import NO_OWNER, Outcome
from magnetar.sim.disk import Platter
from magnetar.sim.loop import SimulatedLoop
from magnetar.sim.process import current_process

from bookie.tests.simulated_storage import DiskIndexes, ExecutorJournalWorker
from e2e.simulation.durable import BookieDisk
from e2e.simulation.metadata import MetadataService, SimulatedMetadata, watch_sessions
from e2e.simulation.network import Network
from e2e.simulation.node import SimulatedClock, SimulatedHost
from e2e.simulation.parameters import Parameters
from e2e.simulation.topic_witness import TopicWitness
from e2e.simulation.upkeep import Recovery, Upkeep
from e2e.simulation.watched import WatchedClient, WatchedConnections
from e2e.simulation.witness import Witness
from e2e.simulation_runner.running import Stuck

BOOKIE_PORT: Final = 3181
RESTART_PAUSE_SECONDS: Final = 0.5
"""After a bookie that could not start, as a supervisor waits."""
PATIENCE_SECONDS: Final = 30.0
"""How long, when nothing is wrong any more, something may take that must happen."""

DRAIN_PATIENCE_SECONDS: Final = 90.0

CONNECTION_SETTINGS: Final = TcpBookieSettings(
    connect_timeout_seconds=0.5,
    add_timeout_seconds=1.0,
    read_timeout_seconds=1.0,
    backoff_seconds_min=0.02,
    backoff_seconds_max=0.3,
)


def client_settings(parameters: Parameters) -> LedgerClientSettings:
    return LedgerClientSettings(
        add_timeout_seconds=1.0,
        quarantine_seconds=1.0,
        speculative_read_seconds=0.2,
        read_batch_bytes_max=parameters.read_batch_bytes_max,
    )


class BookieDown(Stuck):
    """A bookie does not start although nothing is wrong any more."""


class World:
    """Loop, network, metadata service, and the seed's chance for each part of them."""

    def __init__(
        self, loop: SimulatedLoop, parameters: Parameters, region: str = "", beside: World | None = None
    ) -> None:
        """`region`: of a run with several clusters, which of them it is. `beside`: the world of another one, which has
        the network that both share; they have nothing else in common."""
        self.loop = loop
        self.parameters = parameters
        self.region = region
        self.network: Network = Network(loop, self.chance("network")) if beside is None else beside.network
        loop.wires = self.network
        self.clock = SimulatedClock(loop, 0)
        self.service = MetadataService(self.clock, self.chance("metadata"), self.network)
        self.service.followers[-1].lag_seconds_max = parameters.metadata_lag_seconds
        # Made beforehand: bookies would take a random one.
        self.service.apply(
            self.service.rules.put(INSTANCE_ID_PATH, b"simulated", None, NO_OWNER, ephemeral=False, sequential=False)
        )
        self.expiry = loop.create_task(watch_sessions(self.service))
        self.damaged: set[str] = set()
        """Ids of bookies that are lost for good, or whose disks have changed what they had."""
        self.witness = Witness(loop.time, self.damaged.__contains__)
        self.topic = TopicWitness(self.witness, self.service.table)
        self.service.on_applied = self._metadata_applied

    def _metadata_applied(self, outcome: Outcome, host: str) -> None:
        self.witness.metadata_applied(outcome, host)
        self.topic.metadata_applied(outcome)

    def chance(self, part: str) -> random.Random:
        """Chance for one part, so that what one draws does not shift what others get."""
        return random.Random(f"{self.parameters.seed} {self.region}{part}")

    def node(self, name: str) -> SimulatedHost:
        """A new host."""
        chance = self.chance(f"host {name}")
        skew_ms = chance.choice((0, 0, chance.randint(-100_000, 100_000)))
        platter = Platter(name, self.chance(f"disk {name}"), self.loop.trace)
        return SimulatedHost(name, self.loop, self.network, platter, skew_ms)


def bookie_settings(name: str, parameters: Parameters) -> BookieSettings:
    root = Path("/", name)
    count = parameters.directories
    journal = JournalSettings(size_bytes_max=MIB, preallocate_bytes=MIB, backups_max=parameters.seed % 2)
    storage = StorageSettings(
        write_cache_bytes_max=24 * MIB,
        flush_interval_seconds=parameters.flush_interval_seconds,
        entry_log_bytes_max=MIB,
    )
    settings = BookieSettings(
        journal_directories=tuple(root / f"journal{number}" for number in range(count)),
        ledger_directories=tuple(root / f"ledgers{number}" for number in range(count)),
        advertised_host=name,
        bookie_id=f"{name}:{BOOKIE_PORT}",
        port=BOOKIE_PORT,
        journal=journal,
        storage=storage,
        disk=DiskSettings(check_interval_seconds=0.5, free_bytes_min=64 * KIB),
    )
    if parameters.tight_limits:
        _tighten(journal, size_bytes_max=128 * KIB, preallocate_bytes=32 * KIB, alignment_bytes=512)
        _tighten(journal, queue_bytes_max=16 * KIB, group_bytes_max=8 * KIB)
        _tighten(storage, write_cache_bytes_max=count * 64 * KIB, entry_log_bytes_max=32 * KIB)
    return settings


def _tighten(settings: object, **limits: int) -> None:
    """Set what a bookie would refuse: so small that what is rare in life happens all the time."""
    for name, value in limits.items():
        assert isinstance(getattr(settings, name), int)
        object.__setattr__(settings, name, value)


class SimulatedBookie:
    """One bookie's host, and the bookie that runs there."""

    def __init__(self, world: World, name: str) -> None:
        self.node = world.node(name)
        self.bookie_id = f"{name}:{BOOKIE_PORT}"
        self.running: RunningBookie | None = None
        self.recovery: Recovery | None = None
        self.leaving = False
        """Somebody has asked for its drain."""
        self.refusals: list[str] = []
        """Why it did not start, each time."""
        self._world = world
        self._settings = bookie_settings(name, world.parameters)
        self._lost = self._damaged = False
        witness = world.witness
        witness.disks[self.bookie_id] = BookieDisk(self.bookie_id, self.node.platter, self._settings, witness)

    @property
    def lost(self) -> bool:
        """For good: it must not come back."""
        return self._lost

    def lose(self) -> None:
        """The host burns down."""
        self._lost = True
        self._world.damaged.add(self.bookie_id)
        self.lose_power()

    @property
    def damaged(self) -> bool:
        """Bits of what it had stored were flipped."""
        return self._damaged

    def damage(self) -> None:
        """Bits of what it has stored are about to be flipped."""
        self._damaged = True
        self._world.damaged.add(self.bookie_id)

    def start(self) -> None:
        """Start it unless it runs; it is tried again until it does."""
        if self.node.running or self.lost or self.draining() is Phase.DONE:
            return
        self.node.start()
        self.running = self.recovery = None
        self.node.run(self._run())

    async def _run(self) -> None:
        node, world = self.node, self._world
        process = node.process
        assert process is not None
        disk = node.disk()
        environment = BookieEnvironment(
            disk=disk,
            open_index=DiskIndexes(disk).open,
            new_journal_worker=ExecutorJournalWorker,
        )
        store = SimulatedMetadata(world.service, node.name, lambda: process.alive and not process.paused)
        try:
            self.running = await start_bookie(self._settings, store, node.clock, environment)
        except (MagnetarError, OSError) as error:
            self.refusals.append(f"{type(error).__name__}: {error}")
            world.loop.trace.note(node.name, f"does not start: {type(error).__name__}")
            world.loop.trace.remark(node.name, str(error))
            self._start_again()
            node.kill()
        else:
            await self._look_after(self.running, store)

    async def _look_after(self, running: RunningBookie, store: SimulatedMetadata) -> None:
        parameters = self._world.parameters
        chance = self._world.chance(f"upkeep {self.node.name} {self.node.starts}")
        upkeep = Upkeep(running, store, self.node.clock, chance)
        locks = None
        if parameters.autorecovery:
            self.recovery = recovery = await upkeep.recover(
                client_settings(parameters), CONNECTION_SETTINGS, self._world.witness
            )
            locks = recovery.daemon.underreplicated
            recovery.daemon.died.add_done_callback(self._autorecovery_died)
        if parameters.collection:
            upkeep.collect(locks)

    def _autorecovery_died(self, death: asyncio.Future[AutoRecoveryDied]) -> None:
        if not death.cancelled():
            self._world.loop.problems.append(f"AutoRecovery of {self.bookie_id}: {death.result()!r}")

    def kill(self) -> None:
        """SIGKILL."""
        self.running = self.recovery = None
        self.node.kill()

    def stop(self) -> None:
        """An orderly stop."""
        if self.running is not None and self.node.running:
            self.node.run(self._stop(self.running), "stop")

    async def _stop(self, running: RunningBookie) -> None:
        if self.recovery is not None:
            await self.recovery.drain.close()
            await self.recovery.daemon.close()
        await running.close()
        self._start_again()
        self.kill()

    def _start_again(self) -> None:
        # On behalf of the scenario, for this process ends here.
        world = self._world
        world.loop.call_later(RESTART_PAUSE_SECONDS, self.start, context=world.service.context.copy())

    def lose_power(self) -> None:
        """The host goes off."""
        self.running = self.recovery = None
        self.node.lose_power()

    def draining(self) -> Phase | None:
        """How far its drain is; None when there is none."""
        record = self._world.service.table.load(intention_path(self.bookie_id))
        return None if record is None else decode_intention(record.value).phase


@dataclass(slots=True)
class Client:
    """What one client process has."""

    name: str
    client: WatchedClient
    connections: WatchedConnections
    chance: random.Random
    store: MetadataStore
    clock: Clock


class ClientHost:
    """A host on which a client program runs."""

    def __init__(self, world: World, name: str) -> None:
        self.node = world.node(name)
        self.done = asyncio.Event()
        self._world = world

    def start(self, program: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        """Run a program; `done` is set when it has ended, by itself or by being killed."""
        self.node.start()
        self.node.run(self._run(program))

    def kill(self) -> None:
        """SIGKILL."""
        self.node.kill()
        self.done.set()

    async def _run(self, program: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        world, node = self._world, self.node
        process = current_process()
        assert process is not None
        store = SimulatedMetadata(world.service, node.name, lambda: process.alive and not process.paused)
        connections = TcpBookieConnections(store, node.clock, CONNECTION_SETTINGS)
        while True:
            try:
                await connections.start()
                break
            except Unavailable:
                await asyncio.sleep(0.2)
        chance = world.chance(f"client {node.name}")
        settings = client_settings(world.parameters)
        watched = WatchedConnections(connections, world.witness)
        client = BookKeeperClient(store, watched, node.clock, chance, settings, connections.places)
        try:
            seen = WatchedClient(node.name, client, world.witness)
            await program(Client(node.name, seen, watched, chance, store, node.clock))
        finally:
            self.done.set()


class Cluster:
    """All of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.bookies = [SimulatedBookie(world, f"bookie{number}") for number in range(world.parameters.bookies)]
        self.clients: list[ClientHost] = []

    async def start(self) -> None:
        """Start the bookies and wait until all are registered."""
        for bookie in self.bookies:
            bookie.start()
        await self.until_all_run()

    async def until_all_run(self) -> None:
        """Wait until every bookie that is not lost serves and is registered. `BookieDown`."""
        deadline = self.world.loop.time() + PATIENCE_SECONDS
        while missing := [bookie for bookie in self.bookies if not self._settled(bookie)]:
            if self.world.loop.time() > deadline:
                reason = missing[0].refusals[-1] if missing[0].refusals else "nobody knows why"
                raise BookieDown(f"{missing[0].bookie_id} does not come back: {reason}")
            await asyncio.sleep(0.1)

    async def until_drained(self) -> None:
        """Wait until those who are to leave have done it, and take them away for good. `BookieDown`."""
        deadline = self.world.loop.time() + DRAIN_PATIENCE_SECONDS
        leaving = [bookie for bookie in self.bookies if not bookie.lost and bookie.draining() is not None]
        while missing := [bookie for bookie in leaving if bookie.draining() is not Phase.DONE]:
            if self.world.loop.time() > deadline:
                recovery = missing[0].recovery
                progress = recovery.drain.drain() if recovery is not None else None
                raise BookieDown(f"the drain of {missing[0].bookie_id} does not end: {progress}")
            await asyncio.sleep(0.5)
        for bookie in leaving:
            bookie.lose()

    def _settled(self, bookie: SimulatedBookie) -> bool:
        return bookie.lost or bookie.draining() is Phase.DONE or self._registered(bookie)

    def _registered(self, bookie: SimulatedBookie) -> bool:
        table = self.world.service.table
        folders = (AVAILABLE_PATH, READ_ONLY_PATH) if bookie.draining() is not None else (AVAILABLE_PATH,)
        registered = any(table.load(f"{folder}/{bookie.bookie_id}") is not None for folder in folders)
        return bookie.running is not None and registered

    def client(self, name: str) -> ClientHost:
        """A new client host."""
        host = ClientHost(self.world, name)
        self.clients.append(host)
        return host

    def hosts(self) -> list[str]:
        """The names of all hosts but the metadata service's."""
        return [bookie.node.name for bookie in self.bookies] + [client.node.name for client in self.clients]
