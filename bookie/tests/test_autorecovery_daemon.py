from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Callable, Iterator
from operator import attrgetter

import pytest
from magnetar.bookie.autorecovery.app import start_autorecovery
from magnetar.bookie.autorecovery.auditor.auditor import Auditor
from magnetar.bookie.autorecovery.daemon import AutoRecoveryDaemon, AutoRecoveryDied
from magnetar.bookie.autorecovery.election import ElectionKind
from magnetar.bookie.autorecovery.replication.settings import ReplicationSettings
from magnetar.bookie.autorecovery.replication.worker import WorkerProgress
from magnetar.bookie.autorecovery.settings import AuditorSettings, AutoRecoverySettings
from magnetar.bookie.autorecovery.testing import QUICK, MemoryBookieCluster
from magnetar.core.clock import SystemClock
from magnetar.core.setting import rows_of
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.ledger_paths import AVAILABLE_PATH
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.testing import ZookeeperServer
from magnetar.metadata.zookeeper import ZookeeperMetadataStore

PATIENCE_SECONDS = 30.0
PAIR = LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2)
PAYLOADS = [b"payload %d" % number for number in range(20)]
SETTINGS = AutoRecoverySettings(
    auditor=AuditorSettings(all_ledgers_check_interval_seconds=0, election=ElectionKind.BOTH),
    replication=ReplicationSettings(failure_backoff_seconds=0.01, open_ledger_grace_seconds=0.01),
)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


class World:
    """A cluster of memory bookies and the processes that AutoRecovery runs in."""

    def __init__(self, store: MetadataStore, others: list[MetadataStore]) -> None:
        self.cluster = MemoryBookieCluster(5, store)
        self.others = others
        self.daemons: list[AutoRecoveryDaemon] = []
        self._clients: list[BookKeeperClient] = []

    async def register_all(self) -> None:
        for bookie_id in self.cluster.bookies.bookies:
            await self.cluster.store.put(f"/ledgers/cookies/{bookie_id}", b"")
            await self.cluster.store.put(f"{AVAILABLE_PATH}/{bookie_id}", b"")

    def daemon(self, number: int, settings: AutoRecoverySettings = SETTINGS) -> AutoRecoveryDaemon:
        store = self.others[number]
        rng = random.Random(number)
        client = BookKeeperClient(store, self.cluster.bookies, rng=rng, settings=QUICK)
        self._clients.append(client)
        made = AutoRecoveryDaemon(
            store, client, self.cluster.bookies, f"recovery-{number}:3181", settings, SystemClock(), rng
        )
        self.daemons.append(made)
        return made

    async def go(self, bookie_id: str) -> None:
        self.cluster.bookies.bookies[bookie_id].stop()
        await self.cluster.store.delete(f"{AVAILABLE_PATH}/{bookie_id}")

    async def ledgers_without(self, count: int) -> tuple[str, list[int]]:
        """Some ledgers, and a bookie that holds most of them and is gone then."""
        ledgers = [await self.cluster.closed_ledger(PAIR, PAYLOADS) for _ in range(count)]
        lost = (await self.cluster.metadata(ledgers[0])).ensembles[0][1][0]
        await self.go(lost)
        return lost, ledgers

    async def until_whole(self, lost: str, ledgers: list[int]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for ledger_id in ledgers:
                while lost in (await self.cluster.metadata(ledger_id)).ensembles[0][1]:
                    await asyncio.sleep(0.005)
                assert await self.cluster.lacking(ledger_id) == []

    async def close(self) -> None:
        for made in self.daemons:
            await made.close()
        for client in self._clients:
            await client.close()
        await self.cluster.close()
        for store in self.others:
            await store.close()


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        store = MemoryMetadataStore()
        opened = World(store, [store.another_session() for _ in range(2)])
    else:
        server: ZookeeperServer = request.getfixturevalue("zookeeper")
        url = f"zk:{server.address}/t{random.randrange(10**9)}"
        sessions = [await ZookeeperMetadataStore.open(url) for _ in range(3)]
        opened = World(sessions[0], list(sessions[1:]))
    await opened.register_all()
    yield opened
    await opened.close()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def test_replicas_return_after_a_loss(world: World) -> None:
    for number in range(2):
        world.daemon(number).start()
    lost, ledgers = await world.ledgers_without(10)
    await world.until_whole(lost, ledgers)
    # A mark goes before the folders it stands in; then its lock, and at the very end its worker has done it.
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (
            await world.cluster.store.children("/ledgers/underreplication/ledgers")
            or await world.cluster.store.children("/ledgers/underreplication/locks")
            or any(daemon.progress().current_ledger_ids for daemon in world.daemons)
        ):
            await asyncio.sleep(0.005)
    progress = await world.daemons[0].refresh()
    assert progress.ledgers_left == 0
    assert progress.enabled
    assert progress.running_here
    other = world.daemons[1].progress()
    assert progress.is_auditor is not other.is_auditor
    auditor = 0 if progress.is_auditor else 1
    assert progress.auditor_bookie_id == f"recovery-{auditor}:3181"
    assert progress.ledgers_done + other.ledgers_done > 0
    assert progress.entries_copied + other.entries_copied > 0


async def test_the_next_auditor_takes_over(world: World) -> None:
    for number in range(2):
        world.daemon(number).start()
    await eventually(lambda: any(daemon.progress().is_auditor for daemon in world.daemons))
    leaver = next(daemon for daemon in world.daemons if daemon.progress().is_auditor)
    stayer = next(daemon for daemon in world.daemons if daemon is not leaver)
    await leaver.close()
    assert not leaver.progress().running_here
    await eventually(lambda: stayer.progress().is_auditor)
    lost, ledgers = await world.ledgers_without(3)
    await world.until_whole(lost, ledgers)


async def test_disabled_means_no_copies(world: World) -> None:
    daemon = world.daemon(0)
    await daemon.underreplicated.disable()
    daemon.start()
    lost, ledgers = await world.ledgers_without(3)
    await asyncio.sleep(0.05)
    assert lost in (await world.cluster.metadata(ledgers[0])).ensembles[0][1]
    assert not (await daemon.refresh()).enabled
    await daemon.underreplicated.enable()
    await world.until_whole(lost, ledgers)


@pytest.fixture
async def memory_world() -> AsyncIterator[World]:
    store = MemoryMetadataStore()
    opened = World(store, [store.another_session() for _ in range(2)])
    await opened.register_all()
    yield opened
    await opened.close()


async def test_a_lost_session_stops_the_auditor_before_another_begins(memory_world: World) -> None:
    first, second = memory_world.daemon(0), memory_world.daemon(1)
    first.start()
    await eventually(lambda: first.progress().is_auditor)
    second.start()
    store = memory_world.others[0]
    assert isinstance(store, MemoryMetadataStore)
    at_work: list[Auditor | None] = []
    store.expire_session()
    while not second.progress().is_auditor:
        await asyncio.sleep(0)
        at_work.append(first.elector.auditor)
    assert first.elector.auditor is None
    assert at_work[-1] is None
    assert first.elector.terms == second.elector.terms == 1
    assert first.running
    lost, ledgers = await memory_world.ledgers_without(3)
    await memory_world.until_whole(lost, ledgers)


async def test_a_worker_looks_as_closely_as_the_auditor(memory_world: World) -> None:
    """Or it would find nothing where that one has found an entry missing, and take the mark away."""
    cluster = memory_world.cluster
    ledger_id = await cluster.closed_ledger(PAIR, PAYLOADS)
    cluster.drop((await cluster.metadata(ledger_id)).ensembles[0][1][0], ledger_id, [len(PAYLOADS) // 2])
    closely = dataclasses.replace(SETTINGS, auditor=dataclasses.replace(SETTINGS.auditor, verification_percentage=100))
    assert (await memory_world.daemon(0, closely).replicator.replicate(ledger_id)).complete
    assert await cluster.lacking(ledger_id) == []


async def test_an_audit_is_asked_of_whoever_audits(memory_world: World) -> None:
    first, second = memory_world.daemon(0), memory_world.daemon(1)
    first.start()
    await eventually(lambda: first.progress().is_auditor)
    second.start()
    auditor = first.elector.auditor
    assert auditor is not None
    await eventually(lambda: auditor.audits == 1)
    await second.trigger_audit()
    await eventually(lambda: auditor.audits == 2)
    await first.trigger_audit()
    await eventually(lambda: auditor.audits == 3)


class DyingWorker:
    """Dies when it is told to."""

    def __init__(self, worker: Callable[[], WorkerProgress]) -> None:
        self.progress = worker
        self.die = asyncio.Event()

    async def run(self) -> None:
        await self.die.wait()
        raise ZeroDivisionError("as planned")


async def test_a_dead_worker_ends_all_of_it(memory_world: World) -> None:
    daemon, other = memory_world.daemon(0), memory_world.daemon(1)
    worker = DyingWorker(daemon.worker.progress)
    daemon.worker = worker
    daemon.start()
    await eventually(lambda: daemon.progress().is_auditor)
    other.start()
    worker.die.set()
    death = await daemon.died
    assert isinstance(death, AutoRecoveryDied)
    assert isinstance(death.__cause__, ZeroDivisionError)
    assert not daemon.running
    await eventually(lambda: other.progress().is_auditor)
    await daemon.close()


async def test_a_dead_auditor_ends_all_of_it(memory_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(_: Auditor) -> None:
        raise ZeroDivisionError("as planned")

    monkeypatch.setattr(Auditor, "run", die)
    daemon = memory_world.daemon(0)
    daemon.start()
    death = await daemon.died
    assert "auditor elector has died" in str(death)
    assert not daemon.running


async def test_the_store_may_be_away_at_the_start(memory_world: World) -> None:
    store = memory_world.others[0]
    assert isinstance(store, MemoryMetadataStore)
    daemon = memory_world.daemon(0)
    store.disconnect()
    daemon.start()
    await asyncio.sleep(0.02)
    assert daemon.running
    store.reconnect()
    await eventually(lambda: daemon.progress().is_auditor)


async def test_closing_twice_is_no_error(memory_world: World) -> None:
    daemon = memory_world.daemon(0)
    daemon.start()
    await daemon.close()
    await daemon.close()
    assert daemon.died.cancelled()


async def test_it_brings_its_own_connections() -> None:
    store = MemoryMetadataStore()
    running = await start_autorecovery(SETTINGS, store, SystemClock(), bookie_id="alone:1")
    await eventually(lambda: running.daemon.progress().is_auditor)
    waiter = asyncio.create_task(running.wait_until_died())
    await asyncio.sleep(0)
    assert not waiter.done()
    await running.close()
    await asyncio.wait([waiter])
    assert waiter.cancelled()
    await store.close()


def test_every_upstream_name_leads_to_a_setting() -> None:
    for row in rows_of(AutoRecoverySettings):
        assert isinstance(attrgetter(row.path)(AutoRecoverySettings()), bool | int | float)
