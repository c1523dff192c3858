from __future__ import annotations

import asyncio
import dataclasses
import gc
import itertools
from collections.abc import AsyncIterator, Callable

import pytest
from magnetar.bookie.autorecovery.replication import worker as worker_module
from magnetar.bookie.autorecovery.replication.settings import ReplicationSettings
from magnetar.bookie.autorecovery.replication.worker import ReplicationWorker
from magnetar.bookie.autorecovery.testing import MemoryBookieCluster
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.bookie.drain.moves import LedgerMover
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.ledger_paths import ledger_path
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.wire.bookkeeper.ledger_metadata import LedgerState

WHOLE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
QUICK = ReplicationSettings(
    failure_backoff_seconds=0.01, failed_lock_seconds_max=0.64, open_ledger_grace_seconds=0.05, add_timeout_seconds=0.2
)

new_event_loop = VirtualTimeLoop


class WorkingCluster(MemoryBookieCluster):
    """A cluster with a worker in it, whose session of the store is another one than the tests'."""

    def __init__(self, bookies: int, settings: ReplicationSettings = QUICK) -> None:
        super().__init__(bookies, clock=LoopClock())
        assert isinstance(self.store, MemoryMetadataStore)
        self.session = self.store.another_session()
        self.marks = UnderreplicatedLedgers(self.session, "worker:3181", self.clock, self.rng)
        self.others = UnderreplicatedLedgers(self.store, "other:3181", self.clock, self.rng)
        self.paused = False
        self.worker = ReplicationWorker(self.marks, self.replicator(settings), LoopClock(), lambda: self.paused)
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.ensure_future(self.worker.run())

    async def stop_worker(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def marked_ledger(self, count: int = 20) -> tuple[int, str]:
        """A ledger with a lost bookie, marked; (id, bookie)."""
        ledger_id = await self.closed_ledger(WHOLE, [b"x" * 100] * count)
        lost = (await self.metadata(ledger_id)).ensembles[0][1][1]
        self.bookies.bookies[lost].stop()
        await self.others.mark(ledger_id, [lost])
        return ledger_id, lost

    async def close(self) -> None:
        await self.stop_worker()
        await self.marks.close()
        await self.others.close()
        await self.session.close()
        await super().close()


async def until(reached: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not reached():
            await asyncio.sleep(0.005)


async def until_unmarked(cluster: WorkingCluster) -> None:
    async with asyncio.timeout(5.0):
        while await cluster.others.count():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "LOOK_SECONDS", 0.02)


@pytest.fixture
async def cluster() -> AsyncIterator[WorkingCluster]:
    opened = WorkingCluster(6)
    yield opened
    await opened.close()


async def test_marked_ledgers_are_made_whole(cluster: WorkingCluster) -> None:
    ledgers = [await cluster.closed_ledger(WHOLE, [b"x"] * 10) for _ in range(12)]
    lost = "bookie-1:3181"
    cluster.bookies.bookies[lost].stop()
    for ledger_id in ledgers[:6]:
        await cluster.others.mark(ledger_id, [lost])
    cluster.start()
    await until_unmarked(cluster)
    # What is marked while it runs is found as well, and so is a ledger that is gone.
    for ledger_id in [*ledgers[6:], 4711]:
        await cluster.others.mark(ledger_id, [lost])
    await until_unmarked(cluster)
    # A ledger is done before its job ends, which releases the lock.
    await until(lambda: cluster.worker.progress().ledgers_done == 13 and not cluster.worker.progress().current)
    for ledger_id in ledgers:
        assert await cluster.lacking(ledger_id, [lost]) == []
    progress = cluster.worker.progress()
    assert (progress.ledgers_failed, progress.current, progress.waiting) == (0, (), ())
    assert progress.entries_copied % 10 == 0
    assert progress.entries_copied > 0
    assert progress.bytes_copied > 0
    assert progress.bytes_per_second > 0
    assert [await cluster.others.lock_holder(ledger_id) for ledger_id in ledgers] == [None] * 12


async def test_nothing_is_taken_while_paused(cluster: WorkingCluster) -> None:
    ledger_id, lost = await cluster.marked_ledger()
    cluster.paused = True
    cluster.start()
    await asyncio.sleep(0.06)
    assert await cluster.lacking(ledger_id, [lost]) != []
    cluster.paused = False
    await until_unmarked(cluster)
    assert await cluster.lacking(ledger_id, [lost]) == []


async def test_disabling_stops_what_is_under_way() -> None:
    slow = dataclasses.replace(QUICK, bytes_per_second=20_000, entry_batch_size=10)
    cluster = WorkingCluster(6, slow)
    ledger_id, lost = await cluster.marked_ledger(count=200)
    cluster.start()
    await until(lambda: cluster.worker.progress().entries_copied > 10)
    await cluster.others.disable()
    await until(lambda: not cluster.worker.progress().current, 1.0)
    async with asyncio.timeout(1.0):
        while await cluster.others.lock_holder(ledger_id) is not None:
            await asyncio.sleep(0.005)
    copied = cluster.worker.progress().entries_copied
    await asyncio.sleep(0.06)
    assert cluster.worker.progress().entries_copied == copied
    assert await cluster.lacking(ledger_id, [lost]) != []
    cluster.worker._replicator.throttle.set_rate(0)
    await cluster.others.enable()
    await until_unmarked(cluster)
    assert await cluster.lacking(ledger_id, [lost]) == []
    await cluster.close()


async def test_a_lost_session_stops_what_is_under_way() -> None:
    slow = dataclasses.replace(QUICK, bytes_per_second=20_000, entry_batch_size=10)
    cluster = WorkingCluster(6, slow)
    ledger_id, lost = await cluster.marked_ledger(count=200)
    cluster.start()
    await until(lambda: cluster.worker.progress().entries_copied > 10)
    assert await cluster.others.lock(ledger_id) is None
    cluster.paused = True
    cluster.session.expire_session()
    lock = None
    while lock is None:
        # News of the old lock's end may come late and be taken for the new one's.
        lock = await cluster.others.lock(ledger_id)
    await until(lambda: not cluster.worker.progress().current, 1.0)
    assert await cluster.lacking(ledger_id, [lost]) != []
    cluster.worker._replicator.throttle.set_rate(0)
    await lock.release()
    cluster.paused = False
    await until_unmarked(cluster)
    assert await cluster.lacking(ledger_id, [lost]) == []
    await cluster.close()


async def test_a_ledger_that_fails_is_left_locked_longer_each_time(cluster: WorkingCluster) -> None:
    ledger_id, _ = await cluster.marked_ledger()
    for bookie in cluster.bookies.bookies.values():
        if ledger_id in bookie.ledgers and 5 in bookie.ledgers[ledger_id].entries:
            cluster.damage(bookie.bookie_id, ledger_id, 5)
    cluster.start()
    times = []
    for attempt in range(1, 5):
        await until(lambda attempt=attempt: cluster.worker.progress().ledgers_failed == attempt)  # type: ignore[misc]
        times.append(cluster.clock.monotonic_seconds())
        progress = cluster.worker.progress()
        assert (progress.current, progress.waiting) == ((), (ledger_id,)), "what waits is not being copied"
        assert await cluster.others.lock_holder(ledger_id) is not None
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    for pause, expected in zip(pauses, [0.02, 0.04, 0.08], strict=True):
        assert expected - 0.005 <= pause < expected * 1.5
    # The next worker may take it at once when this one stops.
    await cluster.stop_worker()
    assert await cluster.others.lock_holder(ledger_id) is None
    assert await cluster.others.count() == 1


@pytest.mark.filterwarnings("error")
async def test_no_more_locks_are_kept_than_there_is_room_for(
    cluster: WorkingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beyond that may be taken at once, and nothing is left of its waiting."""
    monkeypatch.setattr(worker_module, "FAILED_LEDGERS_MAX", 1)
    ledger_ids = {(await cluster.marked_ledger())[0] for _ in range(3)}
    for bookie in cluster.bookies.bookies.values():
        for ledger_id in ledger_ids & set(bookie.ledgers):
            cluster.damage(bookie.bookie_id, ledger_id, 5)
    cluster.start()
    await until(lambda: cluster.worker.progress().ledgers_failed >= 3)
    assert len(cluster.worker.progress().waiting) <= 1
    await cluster.stop_worker()
    for ledger_id in ledger_ids:
        assert await cluster.others.lock_holder(ledger_id) is None
    gc.collect()


async def test_why_a_ledger_is_not_whole_is_told_to_all(cluster: WorkingCluster) -> None:
    """A drain that meets its lock says so. Before, it said that another replicates it now, for ever."""
    ledger_id, lost = await cluster.marked_ledger()
    for bookie in cluster.bookies.bookies.values():
        if ledger_id in bookie.ledgers and 5 in bookie.ledgers[ledger_id].entries:
            cluster.damage(bookie.bookie_id, ledger_id, 5)
    mover = LedgerMover(lost, cluster.client, cluster.bookies, cluster.others, cluster.replicator(QUICK), LoopClock())
    cluster.start()
    await until(lambda: cluster.worker.progress().waiting == (ledger_id,))
    await mover.move([ledger_id], lambda: None)
    why = f"worker:3181: no bookie gives these entries of ledger {ledger_id}: 5"
    assert mover.blockers[ledger_id].startswith(f"it is tried again, after it has failed at {why}")
    assert (await cluster.others.problem(ledger_id)).startswith(why)
    # It goes with the worker's session, and so does its lock.
    await cluster.stop_worker()
    cluster.session.expire_session()
    assert await cluster.others.problem(ledger_id) == ""


async def test_a_ledger_that_is_whole_again_has_no_problem() -> None:
    cluster = WorkingCluster(3)
    ledger_id, _ = await cluster.marked_ledger()
    cluster.start()
    await until(lambda: cluster.worker.progress().ledgers_failed >= 2)
    assert (await cluster.others.problem(ledger_id)).startswith("worker:3181: not enough bookies")
    cluster.bookies.add_bookie()
    await until_unmarked(cluster)
    assert await cluster.others.problem(ledger_id) == ""
    await cluster.close()


async def test_a_ledger_goes_on_as_soon_as_there_are_bookies() -> None:
    cluster = WorkingCluster(3)
    ledger_id, lost = await cluster.marked_ledger()
    cluster.start()
    await until(lambda: cluster.worker.progress().ledgers_failed >= 3)
    cluster.bookies.add_bookie()
    await until_unmarked(cluster)
    assert await cluster.lacking(ledger_id, [lost]) == []
    await cluster.close()


async def test_an_open_ledger_is_closed_after_its_writers_time(cluster: WorkingCluster) -> None:
    writer, _ = await cluster.open_ledger(WHOLE, [b"x"] * 10)
    ledger_id = writer.ledger_id
    lost = writer.metadata.ensembles[0][1][2]
    cluster.bookies.bookies[lost].stop()
    await cluster.others.mark(ledger_id, [lost])
    cluster.start()
    await until(lambda: cluster.worker.progress().ledgers_failed == 1)
    assert (await cluster.metadata(ledger_id)).state is LedgerState.OPEN
    await until_unmarked(cluster)
    metadata = await cluster.metadata(ledger_id)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 9)
    assert await cluster.lacking(ledger_id, [lost]) == []
    await writer.abandon()


@pytest.mark.parametrize("loss", ["damaged", "missing"])
async def test_an_open_ledger_of_which_a_bookie_has_lost_entries_is_closed_and_copied(
    cluster: WorkingCluster, loss: str
) -> None:
    """Before, it was called whole, and the mark was removed."""
    writer, listener = await cluster.open_ledger(WHOLE, [b"x"] * 10)
    writer.append([b"tells the bookies that those before are confirmed"])
    await listener.until_confirmed(10)
    ledger_id = writer.ledger_id
    bad = writer.metadata.ensembles[0][1][2]
    if loss == "damaged":
        cluster.damage(bad, ledger_id, 0)
    else:
        cluster.drop(bad, ledger_id, [0])
    await cluster.others.mark(ledger_id, [bad])
    cluster.start()
    await until(lambda: cluster.worker.progress().ledgers_failed == 1, 30.0)
    assert (await cluster.metadata(ledger_id)).state is LedgerState.OPEN
    assert await cluster.others.count() == 1
    await until(lambda: cluster.worker.progress().ledgers_done == 1, 30.0)
    await until_unmarked(cluster)
    metadata = await cluster.metadata(ledger_id)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 10)
    assert await cluster.lacking(ledger_id, []) == []
    await writer.abandon()


async def test_an_open_ledger_that_is_whole_is_left_open(cluster: WorkingCluster) -> None:
    writer, listener = await cluster.open_ledger(WHOLE, [b"x"] * 10)
    writer.append([b"tells the bookies that those before are confirmed"])
    await listener.until_confirmed(10)
    await cluster.others.mark(writer.ledger_id, [writer.metadata.ensembles[0][1][2]])
    cluster.start()
    await until_unmarked(cluster)
    assert cluster.worker.progress().ledgers_failed == 0
    writer.append([b"y"])
    await listener.until_confirmed(11)
    await writer.close()


async def test_a_writer_that_replaces_its_bookie_keeps_its_ledger(cluster: WorkingCluster) -> None:
    writer, listener = await cluster.open_ledger(WHOLE, [b"x"] * 10)
    lost = writer.metadata.ensembles[0][1][2]
    cluster.bookies.bookies[lost].stop()
    await cluster.others.mark(writer.ledger_id, [lost])
    cluster.start()
    await until(lambda: cluster.worker.progress().ledgers_failed == 1)
    writer.append([b"y"])
    await listener.until_confirmed(10)
    await until_unmarked(cluster)
    assert (await cluster.metadata(writer.ledger_id)).state is LedgerState.OPEN
    assert await cluster.lacking(writer.ledger_id, [lost]) == []
    writer.append([b"z"])
    await listener.until_confirmed(11)
    await writer.close()


async def test_metadata_that_nobody_can_read_holds_up_no_other_ledger(cluster: WorkingCluster) -> None:
    ledger_id, lost = await cluster.marked_ledger()
    await cluster.store.put(ledger_path(4711), b"nonsense")
    await cluster.others.mark(4711, [lost])
    cluster.start()
    async with asyncio.timeout(5.0):
        while await cluster.others.get(ledger_id) is not None:
            await asyncio.sleep(0.005)
    await until(lambda: cluster.worker.progress().waiting == (4711,))
    assert await cluster.others.get(4711) is not None


async def test_a_store_that_is_away_ends_nothing(cluster: WorkingCluster) -> None:
    ledger_id, lost = await cluster.marked_ledger()
    cluster.session.disconnect()
    cluster.start()
    await asyncio.sleep(0.05)
    cluster.session.reconnect()
    await until_unmarked(cluster)
    assert await cluster.lacking(ledger_id, [lost]) == []
