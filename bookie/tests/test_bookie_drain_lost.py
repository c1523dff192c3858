"""Bookies whose disks are lost are forgotten, by whoever is asked, whatever dies in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator
from magnetar.bookie.autorecovery.replication.settings import ReplicationSettings
from magnetar.bookie.autorecovery.replication.worker import ReplicationWorker
from magnetar.bookie.autorecovery.testing import QUICK, MemoryBookieCluster
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.bookie.cookie import COOKIES_PATH
from magnetar.bookie.drain.drain import DrainParts, is_leaving
from magnetar.bookie.drain.lost import LOOKS_AT_ONCE, LostBookies
from magnetar.bookie.drain.paths import intention_path, lock_path
from magnetar.bookie.drain.state import Intention, Phase, encode_intention
from magnetar.bookie.operations import LostBookie, OperationRefused
from magnetar.core.errors import Unavailable
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_PATH, ledger_path
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore, StoreUnavailable
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop

new_event_loop = VirtualTimeLoop

WHOLE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
LOST = "bookie-0:3181"
COOKIE = f"{COOKIES_PATH}/{LOST}"
CHANGES = ("put", "delete")
READS = ("get", "exists", "children")


class Death:
    """Ends a process at its n-th operation of the store: before that has an effect, or after."""

    def __init__(self, at: int | None = None, *, applied: bool = False) -> None:
        self.count = 0
        self.dead = False
        self._at = at
        self._applied = applied

    def enter(self) -> bool:
        """Whether the operation may have its effect."""
        if self.dead:
            return False
        self.count += 1
        self.dead = self._at is not None and self.count > self._at
        return not self.dead or self._applied


class StoreOfAProcess:
    """A session that a death ends, and that tests may look into: `before` is called ahead of each change."""

    def __init__(self, session: MemoryMetadataStore, death: Death) -> None:
        self._session = session
        self._death = death
        self.before: dict[tuple[str, str], Any] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._session, name)
        if name not in (*CHANGES, *READS):
            return real

        async def mortal(path: str, *arguments: Any, **options: Any) -> Any:
            happens = self.before.pop((name, path), None)
            if happens is not None:
                await happens()
            result = await real(path, *arguments, **options) if self._death.enter() else None
            if self._death.dead:
                raise StoreUnavailable("dead")
            return result

        return mortal


class Asked:
    """A bookie that runs and is asked about the lost one."""

    number = 0

    def __init__(self, cluster: MemoryBookieCluster, death: Death | None = None, settle_seconds: float = 0.0) -> None:
        Asked.number += 1
        assert isinstance(cluster.store, MemoryMetadataStore)
        self.session = cluster.store.another_session()
        self.store = StoreOfAProcess(self.session, death or Death())
        store = cast("MetadataStore", self.store)
        self.client = BookKeeperClient(store, cluster.bookies, clock=cluster.clock, rng=cluster.rng, settings=QUICK)
        self.marks = UnderreplicatedLedgers(store, f"asked {Asked.number}", cluster.clock, cluster.rng)
        replicator = LedgerReplicator(self.client, cluster.bookies, cluster.clock, cluster.rng)
        self.lost = LostBookies(
            DrainParts(
                store=store,
                client=self.client,
                connections=cluster.bookies,
                underreplicated=self.marks,
                replicator=replicator,
                holder=f"asked {Asked.number}",
                clock=cluster.clock,
                settle_seconds=settle_seconds,
            )
        )

    async def end(self) -> None:
        await self.lost.close()
        await self.marks.close()
        await self.client.close()
        await self.session.close()


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryBookieCluster]:
    opened = MemoryBookieCluster(4, clock=LoopClock())
    await opened.store.put(COOKIE, b"cookie")
    yield opened
    await opened.close()


@pytest.fixture
async def asked(cluster: MemoryBookieCluster) -> AsyncIterator[Asked]:
    started = Asked(cluster)
    yield started
    await started.end()


async def ledgers_on_it(cluster: MemoryBookieCluster, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        ledger_id = await cluster.closed_ledger(WHOLE, [b"x%d" % number for number in range(5)])
        if LOST in (await cluster.metadata(ledger_id)).ensembles[0][1]:
            found.append(ledger_id)
    return found


async def copy_what_is_marked(cluster: MemoryBookieCluster) -> None:
    """As the workers of the cluster do."""
    marks = UnderreplicatedLedgers(cluster.store, "worker", cluster.clock)
    replicator = cluster.replicator(ReplicationSettings(open_ledger_grace_seconds=0.01))
    worker = ReplicationWorker(marks, replicator, cluster.clock)
    running = asyncio.ensure_future(worker.run())
    async with asyncio.timeout(5.0):
        while await marks.count():
            await asyncio.sleep(0.002)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await marks.close()


async def named_by(cluster: MemoryBookieCluster) -> int:
    ids = [ledger_id async for ledger_id in cluster.client.metadata.ledger_ids()]
    found = [await cluster.metadata(ledger_id) for ledger_id in ids]
    return sum(any(LOST in ensemble for _, ensemble in metadata.ensembles) for metadata in found)


def gone(waits_for: str = "") -> LostBookie:
    return LostBookie(bookie_id=LOST, registered=False, has_cookie=False, ledgers_left=0, waits_for=waits_for)


async def test_its_ledgers_are_marked_at_once_and_the_cookie_goes_when_all_are_copied(
    cluster: MemoryBookieCluster, asked: Asked
) -> None:
    ledgers = await ledgers_on_it(cluster, 5)
    cluster.bookies.bookies[LOST].stop()
    await asked.marks.set_lost_bookie_recovery_delay_seconds(3600)
    before = await asked.lost.state(LOST)
    assert before == LostBookie(bookie_id=LOST, registered=False, has_cookie=True, ledgers_left=5)
    assert await asked.marks.count() == 0
    state = await asked.lost.retire(LOST)
    assert (state.has_cookie, state.ledgers_left) == (True, 5)
    assert state.waits_for == "AutoRecovery copies 5 ledgers that name it"
    marked = [(mark.ledger_id, mark.missing_replicas) async for mark in asked.marks.all()]
    assert marked == [(ledger_id, (LOST,)) for ledger_id in ledgers]
    assert (await asked.lost.retire(LOST)).ledgers_left == 5
    await copy_what_is_marked(cluster)
    assert await asked.lost.retire(LOST) == gone()
    assert not await cluster.store.exists(COOKIE)
    for ledger_id in ledgers:
        assert await cluster.lacking(ledger_id, [LOST]) == []
    # Once more is no error.
    assert await asked.lost.retire(LOST) == gone()
    assert await asked.lost.state(LOST) == gone()


@pytest.mark.parametrize("folder", [AVAILABLE_PATH, READ_ONLY_PATH])
async def test_a_bookie_that_is_registered_is_left_alone(
    cluster: MemoryBookieCluster, asked: Asked, folder: str
) -> None:
    await ledgers_on_it(cluster, 1)
    await cluster.store.put(f"{folder}/{LOST}", b"", ephemeral=True)
    with pytest.raises(OperationRefused, match=r"is registered: it runs, or was killed"):
        await asked.lost.retire(LOST)
    assert (await asked.lost.state(LOST)).registered
    assert await asked.marks.count() == 0
    await cluster.store.delete(f"{folder}/{LOST}")
    assert not (await asked.lost.retire(LOST)).registered


async def test_clients_have_time_to_hear_that_it_is_gone(cluster: MemoryBookieCluster) -> None:
    asked = Asked(cluster, settle_seconds=0.05)
    waits = (await asked.lost.retire(LOST)).waits_for
    assert waits.startswith("no ledger names it; clients may not have heard for 0.")
    await asyncio.sleep(0.06)
    # It was there in between, if only for a moment: once more from the beginning.
    await cluster.store.put(f"{AVAILABLE_PATH}/{LOST}", b"")
    await cluster.store.delete(f"{AVAILABLE_PATH}/{LOST}")
    await asyncio.sleep(0.01)
    assert (await asked.lost.retire(LOST)).has_cookie
    await asyncio.sleep(0.06)
    # A ledger that somebody created meanwhile is seen.
    (late,) = await ledgers_on_it(cluster, 1)
    assert (await asked.lost.retire(LOST)).ledgers_left == 1
    await cluster.client.delete(late)
    assert await asked.lost.retire(LOST) == gone()
    await asked.end()


async def test_it_says_what_holds_it_up(asked: Asked, cluster: MemoryBookieCluster) -> None:
    (ledger_id,) = await ledgers_on_it(cluster, 1)
    cluster.bookies.bookies[LOST].stop()
    await asked.marks.disable()
    assert "AutoRecovery is disabled in this cluster" in (await asked.lost.retire(LOST)).waits_for
    await asked.marks.enable()
    cluster.bookies.bookies["bookie-3:3181"].stop()
    cluster.bookies.bookies["bookie-2:3181"].writable = False
    assert "nobody could take its place; add bookies first" in (await asked.lost.retire(LOST)).waits_for
    await cluster.client.delete(ledger_id)
    await cluster.store.put(ledger_path(4711), b"nonsense")
    state = await asked.lost.retire(LOST)
    assert (state.has_cookie, state.ledgers_left) == (True, 1)
    assert "ledger 4711: nobody can tell" in state.waits_for


async def test_what_its_drain_has_left_goes_first(cluster: MemoryBookieCluster, asked: Asked) -> None:
    await cluster.store.put(
        intention_path(LOST),
        encode_intention(Intention(bookie_id=LOST, phase=Phase.DRAINING, started_ms=1, cookie_created_ms=1)),
    )
    lock = await cluster.store.put(lock_path(LOST), b"another", ephemeral=True)
    assert lock is not None
    assert "another process drains it" in (await asked.lost.retire(LOST)).waits_for
    assert await cluster.store.exists(COOKIE)
    await cluster.store.delete(lock_path(LOST))
    assert await asked.lost.retire(LOST) == gone()
    assert not await is_leaving(cluster.store, LOST)
    assert not await cluster.store.exists(intention_path(LOST))
    assert not await cluster.store.exists(lock_path(LOST))


async def test_one_that_comes_back_in_the_last_moment_keeps_its_cookie(
    cluster: MemoryBookieCluster, asked: Asked
) -> None:
    async def come_back() -> None:
        await cluster.store.put(f"{AVAILABLE_PATH}/{LOST}", b"", ephemeral=True)

    asked.store.before["delete", COOKIE] = come_back
    with pytest.raises(OperationRefused, match="is registered"):
        await asked.lost.retire(LOST)
    node = await cluster.store.get(COOKIE)
    assert node is not None
    assert node.value == b"cookie"


async def test_one_that_was_set_up_anew_meanwhile_keeps_its_cookie(cluster: MemoryBookieCluster, asked: Asked) -> None:
    async def set_up_anew() -> None:
        await cluster.store.delete(COOKIE)
        await asyncio.sleep(0.002)
        await cluster.store.put(COOKIE, b"new")

    asked.store.before["put", lock_path(LOST)] = set_up_anew
    assert (await asked.lost.retire(LOST)).waits_for == "it has been set up anew"
    assert await cluster.store.exists(COOKIE)


async def test_several_may_be_asked_at_once(cluster: MemoryBookieCluster) -> None:
    await ledgers_on_it(cluster, 3)
    cluster.bookies.bookies[LOST].stop()
    processes = [Asked(cluster) for _ in range(3)]
    states = await asyncio.gather(*(process.lost.retire(LOST) for process in processes for _ in range(2)))
    assert {state.ledgers_left for state in states} == {3}
    await copy_what_is_marked(cluster)
    states = await asyncio.gather(
        *(process.lost.retire(LOST) for process in processes for _ in range(2)), return_exceptions=False
    )
    assert not await cluster.store.exists(COOKIE)
    assert gone() in states
    for process in processes:
        await process.end()


async def test_who_does_not_wait_has_the_answer_later(cluster: MemoryBookieCluster, asked: Asked) -> None:
    async def hold_up() -> None:
        held.set()
        await go_on.wait()

    held, go_on = asyncio.Event(), asyncio.Event()
    asked.store.before["get", COOKIE] = hold_up
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await asked.lost.retire(LOST)
    assert held.is_set()
    joined = asyncio.ensure_future(asked.lost.retire(LOST))
    await asyncio.sleep(0)
    go_on.set()
    assert await joined == gone()
    # One that nobody waited for.
    held.clear()
    go_on.clear()
    asked.store.before["exists", COOKIE] = hold_up
    impatient = asyncio.ensure_future(asked.lost.state(LOST))
    await held.wait()
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    go_on.set()
    await asyncio.sleep(0.01)
    reads = asked.store._death.count
    assert await asked.lost.state(LOST) == gone()
    assert asked.store._death.count == reads


async def test_looks_are_bounded(cluster: MemoryBookieCluster, asked: Asked) -> None:
    async def hold_up() -> None:
        await asyncio.Event().wait()

    for number in range(LOOKS_AT_ONCE):
        asked.store.before["get", f"{COOKIES_PATH}/other-{number}"] = hold_up
    looking = [asyncio.ensure_future(asked.lost.retire(f"other-{number}")) for number in range(LOOKS_AT_ONCE)]
    await asyncio.sleep(0.01)
    with pytest.raises(Unavailable, match="ask again later"):
        await asked.lost.retire(LOST)
    for task in looking:
        task.cancel()
    await asyncio.gather(*looking, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize("applied", [False, True])
async def test_any_death_leaves_what_another_goes_on_with(cluster: MemoryBookieCluster, applied: bool) -> None:
    """Every operation of the store once as the last one of a process; then another one is asked."""
    leaving = Intention(bookie_id=LOST, phase=Phase.DRAINING, started_ms=1)
    deaths = 0
    for at in range(1_000):
        cluster.bookies.bookies[LOST].heal()
        await ledgers_on_it(cluster, 2)
        cluster.bookies.bookies[LOST].stop()
        await cluster.store.put(COOKIE, b"cookie")
        await cluster.store.put(intention_path(LOST), encode_intention(leaving))
        death = Death(at, applied=applied)
        mortal = Asked(cluster, death)
        try:
            await mortal.lost.retire(LOST)
            assert await named_by(cluster) == 2
            await copy_what_is_marked(cluster)
            await mortal.lost.retire(LOST)
        except Unavailable:
            deaths += 1
        assert await cluster.store.exists(COOKIE) or await named_by(cluster) == 0
        await mortal.end()
        other = Asked(cluster)
        async with asyncio.timeout(5.0):
            while (await other.lost.retire(LOST)) != gone():
                await copy_what_is_marked(cluster)
        assert not await cluster.store.exists(intention_path(LOST))
        assert not await cluster.store.exists(lock_path(LOST))
        assert await named_by(cluster) == 0
        await other.end()
        for ledger_id in [ledger_id async for ledger_id in cluster.client.metadata.ledger_ids()]:
            await cluster.client.delete(ledger_id)
        if not death.dead:
            break
    assert deaths > 20
