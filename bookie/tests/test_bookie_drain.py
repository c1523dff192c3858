from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, cast

import pytest
from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator
from magnetar.bookie.autorecovery.replication.settings import ReplicationSettings
from magnetar.bookie.autorecovery.testing import QUICK, MemoryBookieCluster
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.bookie.cookie import COOKIES_PATH
from magnetar.bookie.drain.drain import THE_BOOKIE, Drain, DrainParts
from magnetar.bookie.drain.paths import intention_path, lock_path
from magnetar.bookie.drain.service import DrainService
from magnetar.bookie.drain.state import Intention, Phase, decode_intention, encode_intention
from magnetar.bookie.operations import BookieDrainState, BookieDrainStep, OperationRefused
from magnetar.core.errors import PeerError
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.bookie_connection import READ_FLAG_NONE, AddCallback
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_PATH, ledger_path
from magnetar.ledger.testing import MemoryBookie, RecordingListener
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.metadata.coordination import ResourceLock
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import MetadataStore, Node, NodeChange, Notification, StoreUnavailable
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError

new_event_loop = VirtualTimeLoop

WHOLE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
STRIPED = LedgerOptions(ensemble_size=3, write_quorum=2, ack_quorum=2)
SETTINGS = ReplicationSettings(entry_batch_size=8, add_timeout_seconds=0.5)
LEAVING = "bookie-0:3181"
COOKIE = f"{COOKIES_PATH}/{LEAVING}"


class Death:
    """Cuts a process off from the world at its n-th operation: before it has an effect, or after."""

    def __init__(self, at: int | None = None, *, applied: bool = False) -> None:
        self.count = 0
        self.died = asyncio.Event()
        self._at = at
        self._applied = applied

    def enter(self) -> bool:
        """Whether the operation may have its effect."""
        if self.died.is_set():
            return False
        self.count += 1
        if self._at is not None and self.count > self._at:
            self.died.set()
            return self._applied
        return True


class MortalStore:
    """A session of the store that a death ends."""

    def __init__(self, session: MemoryMetadataStore, death: Death) -> None:
        self._session = session
        self._death = death

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._session, name)
        if name not in ("get", "put", "delete", "exists", "children", "delete_recursively"):
            return real

        async def mortal(*args: Any, **kwargs: Any) -> Any:
            result = await real(*args, **kwargs) if self._death.enter() else None
            if self._death.died.is_set():
                raise StoreUnavailable("dead")
            return result

        return mortal


class MortalBookie:
    """A connection that a death ends."""

    def __init__(self, bookie: MemoryBookie, death: Death) -> None:
        self._bookie = bookie
        self._death = death
        self.bookie_id = bookie.bookie_id

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddCallback,
    ) -> None:
        if self._death.enter():
            self._bookie.add_entries(ledger_id, master_key, entry_ids, entries, flags, done)

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = READ_FLAG_NONE, master_key: bytes = b""
    ) -> bytes:
        if not self._death.enter():
            raise BookieError(BookieCode.UNREACHABLE)
        return await self._bookie.read_entry(ledger_id, entry_id, flags, master_key)

    async def read_entries(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int
    ) -> list[bytes]:
        if not self._death.enter():
            raise BookieError(BookieCode.UNREACHABLE)
        return await self._bookie.read_entries(ledger_id, first_entry_id, count_max, size_bytes_max)

    async def close(self) -> None:
        return


class Process:
    """A process that drains: with the leaving bookie in it, or an operator's."""

    number = 0

    def __init__(
        self,
        cluster: MemoryBookieCluster,
        *,
        own: bool,
        death: Death | None = None,
        pace_seconds: float = 0.01,
    ) -> None:
        Process.number += 1
        assert isinstance(cluster.store, MemoryMetadataStore)
        self.death = death or Death()
        self.session = cluster.store.another_session()
        self._cluster = cluster
        store = cast("MetadataStore", MortalStore(self.session, self.death))
        client = BookKeeperClient(store, self, clock=cluster.clock, rng=cluster.rng, settings=QUICK)
        self.marks = UnderreplicatedLedgers(store, LEAVING, cluster.clock, cluster.rng)
        settings = dataclasses.replace(SETTINGS, open_ledger_grace_seconds=3 * pace_seconds)
        self.parts = DrainParts(
            store=store,
            client=client,
            connections=self,
            underreplicated=self.marks,
            replicator=LedgerReplicator(client, self, cluster.clock, cluster.rng, settings),
            holder=f"process {Process.number}",
            clock=cluster.clock,
            settle_seconds=pace_seconds,
            retry_seconds=pace_seconds,
        )
        self.drain = Drain(self.parts, LEAVING, self if own else None)
        self._registering: list[asyncio.Future[None]] = []

    # --- a `BookieConnections`

    def connection(self, bookie_id: str) -> MortalBookie:
        return MortalBookie(self._cluster.bookies.bookies[bookie_id], self.death)

    def writable_bookies(self) -> list[str]:
        return self._cluster.bookies.writable_bookies()

    def readable_bookies(self) -> list[str]:
        return self._cluster.bookies.readable_bookies()

    def registrations(self, bookie_ids: Collection[str]) -> list[str]:
        return []

    async def look_again(self) -> None:
        pass

    # --- a `BookieSwitch`

    async def boot(self) -> None:
        """The bookie registers, writable unless it is drained."""
        self.set_draining(await self.drain.wanted())
        await asyncio.gather(*self._registering)

    def set_draining(self, draining: bool) -> None:
        self._registering.append(asyncio.ensure_future(self._register(read_only=draining)))

    async def _register(self, *, read_only: bool) -> None:
        await asyncio.sleep(0.001)
        if self.death.died.is_set():
            return
        here, there = (READ_ONLY_PATH, AVAILABLE_PATH) if read_only else (AVAILABLE_PATH, READ_ONLY_PATH)
        if not await self.session.exists(f"{here}/{LEAVING}"):
            await self.session.put(f"{here}/{LEAVING}", b"", ephemeral=True)
        if await self.session.exists(f"{there}/{LEAVING}"):
            await self.session.delete(f"{there}/{LEAVING}")
        self._cluster.bookies.bookies[LEAVING].writable = not read_only

    async def end(self) -> None:
        await asyncio.gather(*self._registering, return_exceptions=True)
        await self.marks.close()
        await self.session.close()


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryBookieCluster]:
    opened = await new_cluster()
    yield opened
    await opened.close()


async def new_cluster(bookies: int = 4) -> MemoryBookieCluster:
    cluster = MemoryBookieCluster(bookies, clock=LoopClock())
    await cluster.store.put(COOKIE, b"cookie")
    return cluster


async def ledgers_on_it(
    cluster: MemoryBookieCluster, count: int, options: LedgerOptions = WHOLE, entries: int = 5
) -> list[int]:
    """So many closed ledgers that name the leaving bookie."""
    found: list[int] = []
    while len(found) < count:
        ledger_id = await cluster.closed_ledger(options, [b"x%d" % number for number in range(entries)])
        if LEAVING in (await cluster.metadata(ledger_id)).ensembles[0][1]:
            found.append(ledger_id)
    return found


async def assert_gone(cluster: MemoryBookieCluster, *, cookie: bool = False) -> None:
    """No ledger names the bookie, every ledger has its replicas elsewhere, the cookie is gone, no lock is left."""
    async for ledger_id in cluster.client.metadata.ledger_ids():
        metadata = await cluster.metadata(ledger_id)
        assert all(LEAVING not in ensemble for _, ensemble in metadata.ensembles)
        assert await cluster.lacking(ledger_id, [LEAVING]) == []
    assert await cluster.store.exists(COOKIE) == cookie
    assert await cluster.store.children("/ledgers/underreplication/locks") == []
    assert not await cluster.store.exists(lock_path(LEAVING))
    node = await cluster.store.get(intention_path(LEAVING))
    assert node is not None
    assert decode_intention(node.value).phase is Phase.DONE


async def run(process: Process) -> BookieDrainState:
    async with asyncio.timeout(10.0):
        return await process.drain.run()


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not reached():
            await asyncio.sleep(0.002)


async def test_a_live_bookie_leaves(cluster: MemoryBookieCluster) -> None:
    moved = [*await ledgers_on_it(cluster, 6), *await ledgers_on_it(cluster, 3, STRIPED)]
    await ledgers_on_it(cluster, 1, WHOLE, entries=0)
    process = Process(cluster, own=True)
    await process.boot()
    assert not await process.drain.wanted()
    await process.drain.start()
    assert await process.drain.wanted()
    state = await run(process)
    assert (state.step, state.ledgers_left, state.blockers) == (BookieDrainStep.DONE, 0, ())
    assert state.ledgers_total >= len(moved)
    assert state.bytes_copied > 0
    await assert_gone(cluster)
    # Once more is no error, nor is a late cancel of what never was.
    assert (await run(process)).step is BookieDrainStep.DONE
    assert await cluster.store.exists(f"{READ_ONLY_PATH}/{LEAVING}")
    await process.end()


async def test_a_dead_bookie_is_taken_out(cluster: MemoryBookieCluster) -> None:
    await ledgers_on_it(cluster, 3)
    cluster.bookies.bookies[LEAVING].stop()
    process = Process(cluster, own=False)
    await process.drain.start()
    assert (await run(process)).step is BookieDrainStep.DONE
    await assert_gone(cluster)
    await process.end()


async def test_the_cookie_may_stay(cluster: MemoryBookieCluster) -> None:
    await ledgers_on_it(cluster, 2)
    cluster.bookies.bookies[LEAVING].stop()
    process = Process(cluster, own=False)
    await process.drain.start(remove_cookie=False)
    assert (await run(process)).step is BookieDrainStep.DONE
    await assert_gone(cluster, cookie=True)
    # It may be drained again, for good this time.
    await process.drain.start()
    assert (await run(process)).step is BookieDrainStep.DONE
    await assert_gone(cluster)
    await process.end()


async def test_who_asks_for_the_cookie_later_gets_it(cluster: MemoryBookieCluster) -> None:
    (ledger_id,) = await ledgers_on_it(cluster, 1)
    cluster.bookies.bookies[LEAVING].stop()
    first, second = Process(cluster, own=False), Process(cluster, own=False)
    lock = await second.marks.lock(ledger_id)
    assert lock is not None
    await first.drain.start(remove_cookie=False)
    draining = asyncio.ensure_future(run(first))
    await until(lambda: bool(first.drain.progress().blockers))
    await second.drain.start(remove_cookie=True)
    await first.drain.start(remove_cookie=False)
    await lock.release()
    assert (await draining).step is BookieDrainStep.DONE
    await assert_gone(cluster)
    await first.end()
    await second.end()


async def test_a_bookie_of_another_process_is_refused_while_it_takes_writes(cluster: MemoryBookieCluster) -> None:
    await ledgers_on_it(cluster, 2)
    bookie = Process(cluster, own=True)
    await bookie.boot()
    operator = Process(cluster, own=False)
    with pytest.raises(OperationRefused, match="takes writes"):
        await operator.drain.start()
    assert not await operator.drain.wanted()
    bookie.set_draining(True)
    await asyncio.sleep(0.01)
    await operator.drain.start()
    draining = asyncio.ensure_future(run(operator))
    await until(lambda: operator.drain.progress().step is not BookieDrainStep.NONE)
    # It becomes writable in between: named, and waited for.
    bookie.set_draining(False)
    with pytest.raises(OperationRefused, match="another process"):
        await bookie.drain.run()
    bookie.set_draining(True)
    assert (await draining).step is BookieDrainStep.DONE
    await assert_gone(cluster)
    await operator.end()
    await bookie.end()


async def test_it_waits_while_the_bookie_takes_writes(cluster: MemoryBookieCluster) -> None:
    await ledgers_on_it(cluster, 2)
    operator = Process(cluster, own=False)
    await operator.drain.start()
    bookie = Process(cluster, own=True)
    await bookie._register(read_only=False)
    draining = asyncio.ensure_future(run(operator))
    await until(lambda: bool(operator.drain.progress().blockers))
    progress = operator.drain.progress()
    assert progress.step is BookieDrainStep.READ_ONLY
    assert progress.blockers[0][0] == THE_BOOKIE
    assert "takes writes" in progress.blockers[0][1]
    await bookie.end()
    assert (await draining).step is BookieDrainStep.DONE
    await operator.end()


async def test_it_is_refused_when_nobody_could_take_the_places() -> None:
    cluster = await new_cluster(3)
    await ledgers_on_it(cluster, 4)
    process = Process(cluster, own=True)
    await process.boot()
    with pytest.raises(OperationRefused, match=r"4 of the 4 ledgers .* up to 3 bookies, .* only 2 bookies take writes"):
        await process.drain.start()
    assert not await process.drain.wanted()
    assert cluster.bookies.bookies[LEAVING].writable
    await process.end()
    await cluster.close()


async def test_what_holds_it_up_is_named_and_waited_for(cluster: MemoryBookieCluster) -> None:
    first, second, third = await ledgers_on_it(cluster, 3)
    for bookie in cluster.bookies.bookies.values():
        if second in bookie.ledgers:
            cluster.damage(bookie.bookie_id, second, 1)
    others = UnderreplicatedLedgers(cluster.store, "other:3181", cluster.clock)
    lock = await others.lock(third)
    assert lock is not None
    await cluster.store.put(ledger_path(4711), b"nonsense")
    process = Process(cluster, own=True)
    await process.boot()
    await process.drain.start()
    draining = asyncio.ensure_future(run(process))
    await until(lambda: len(process.drain.progress().blockers) == 3)
    progress = process.drain.progress()
    reasons = dict(progress.blockers)
    assert sorted(reasons) == [second, third, 4711]
    assert f"ledger {second}: 1" in reasons[second]
    assert "another" in reasons[third]
    assert "format version" in reasons[4711]
    assert (progress.step, progress.ledgers_left) == (BookieDrainStep.REPLICATE, 3)
    assert await cluster.lacking(first, [LEAVING]) == []
    await lock.release()
    await cluster.client.delete(4711)
    await cluster.client.delete(second)
    assert (await draining).step is BookieDrainStep.DONE
    await assert_gone(cluster)
    await others.close()
    await process.end()


async def test_an_idle_open_ledger_is_closed_and_a_busy_one_goes_on(cluster: MemoryBookieCluster) -> None:
    writers: list[tuple[OpenLedgerWriter, RecordingListener]] = []
    while len(writers) < 2:
        writer, listener = await cluster.open_ledger(WHOLE, [b"x"] * 3)
        if LEAVING in writer.metadata.ensembles[0][1]:
            writers.append((writer, listener))
    (idle, _), (busy, listener) = writers
    process = Process(cluster, own=True)
    await process.boot()
    await process.drain.start()
    draining = asyncio.ensure_future(run(process))
    await until(lambda: not cluster.bookies.bookies[LEAVING].writable)
    busy.append([b"y"])
    await listener.until_confirmed(3)
    assert (await draining).step is BookieDrainStep.DONE
    busy.append([b"z"])
    await listener.until_confirmed(4)
    await busy.close()
    await idle.abandon()
    reader = await cluster.client.open(idle.ledger_id, recover=False)
    assert (reader.closed, reader.last_add_confirmed) == (True, 2)
    await assert_gone(cluster)
    await process.end()


async def test_ledgers_that_come_to_name_it_late_are_moved_too(cluster: MemoryBookieCluster) -> None:
    await ledgers_on_it(cluster, 2)
    process = Process(cluster, own=True)
    await process.boot()
    await process.drain.start()
    draining = asyncio.ensure_future(run(process))
    await until(lambda: process.drain.progress().step in (BookieDrainStep.REPLICATE, BookieDrainStep.VERIFY))
    # From a list of bookies that was read before it turned read-only.
    template = await cluster.metadata((await ledgers_on_it(cluster, 0) or [0])[0])
    late = dataclasses.replace(
        template, ensembles=[(0, [LEAVING, *list(cluster.bookies.bookies)[1:3]])], last_entry_id=-1
    )
    await cluster.client.metadata.create(late)
    assert (await draining).step is BookieDrainStep.DONE
    await assert_gone(cluster)
    await process.end()


@pytest.mark.parametrize("told", [NodeChange.CREATED, NodeChange.MODIFIED])
async def test_a_bookie_that_took_writes_during_the_last_look_is_looked_at_again(
    cluster: MemoryBookieCluster, told: NodeChange
) -> None:
    """After a reconnection the store tells only that something may have changed."""

    class RetellingStore(MemoryMetadataStore):
        def watch(self, listener: Callable[[Notification], None]) -> Callable[[], None]:
            def retell(heard: Notification) -> None:
                changed = heard.change is NodeChange.CREATED and heard.path == f"{AVAILABLE_PATH}/{LEAVING}"
                listener(Notification(told, heard.path) if changed else heard)

            return super().watch(retell)

        def another_session(self) -> MemoryMetadataStore:
            return RetellingStore(self._memory_tree)

    await cluster.close()
    cluster = MemoryBookieCluster(4, RetellingStore(), clock=LoopClock())
    await cluster.store.put(COOKIE, b"cookie")
    await ledgers_on_it(cluster, 1)
    leaving = cluster.bookies.bookies[LEAVING]
    leaving.stop()
    process = Process(cluster, own=False)
    await process.drain.start()
    ops, late = process.parts.client.metadata, list[int]()
    every_id = ops.ledger_ids

    async def ids_and_a_late_one() -> AsyncIterator[int]:
        async for ledger_id in every_id():
            yield ledger_id
        if process.drain.progress().step is BookieDrainStep.VERIFY and not late:
            leaving.heal()
            stat = await cluster.store.put(f"{AVAILABLE_PATH}/{LEAVING}", b"", ephemeral=True)
            late.extend(await ledgers_on_it(cluster, 1))
            await cluster.store.delete(stat.path)
            leaving.stop()

    ops.ledger_ids = ids_and_a_late_one  # type: ignore[method-assign]
    assert (await run(process)).step is BookieDrainStep.DONE
    assert late
    await assert_gone(cluster)
    await process.end()
    await cluster.close()


async def test_a_cancelled_drain_leaves_the_bookie_as_it_was(cluster: MemoryBookieCluster) -> None:
    ledgers = await ledgers_on_it(cluster, 2)
    for bookie in cluster.bookies.bookies.values():
        if ledgers[1] in bookie.ledgers:
            cluster.damage(bookie.bookie_id, ledgers[1], 1)
    process = Process(cluster, own=True)
    await process.boot()
    await process.drain.start()
    draining = asyncio.ensure_future(run(process))
    await until(lambda: bool(process.drain.progress().blockers))
    # From another process: the one that drains hears of it.
    operator = Process(cluster, own=False)
    await operator.drain.cancel()
    assert (await draining).step is BookieDrainStep.NONE
    await until(lambda: cluster.bookies.bookies[LEAVING].writable)
    assert await cluster.store.exists(COOKIE)
    assert LEAVING in (await cluster.metadata(ledgers[1])).ensembles[0][1]
    await operator.drain.cancel()
    await operator.end()
    await process.end()


async def test_a_drain_that_nobody_runs_yet_is_cancelled_all_the_same(cluster: MemoryBookieCluster) -> None:
    process = Process(cluster, own=True)
    await process.drain.start()
    await process.boot()
    assert not cluster.bookies.bookies[LEAVING].writable
    await process.drain.cancel()
    await until(lambda: cluster.bookies.bookies[LEAVING].writable)
    await process.end()


async def test_a_late_answer_turns_no_bookie_read_only_whose_drain_is_cancelled(
    cluster: MemoryBookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The intention was read before it was deleted, and is acted upon afterwards."""
    (ledger_id,) = await ledgers_on_it(cluster, 1)
    others = UnderreplicatedLedgers(cluster.store, "other:3181", cluster.clock)
    lock = await others.lock(ledger_id)
    process = Process(cluster, own=True)
    await process.boot()
    service = DrainService(process.parts, LEAVING, process)
    await service.start_drain()
    await until(lambda: bool(service.drain().blockers))
    drain, canceller = service._drain, asyncio.current_task()
    intention, switch = drain._intention, process.set_draining
    held, cancelled = asyncio.Event(), asyncio.Event()
    switched: list[bool] = []

    async def late() -> Intention | None:
        found = await intention()
        if asyncio.current_task() is not canceller:
            held.set()
            await cancelled.wait()
        return found

    def set_draining(draining: bool) -> None:
        switched.append(draining)
        switch(draining)
        if not draining:
            cancelled.set()

    monkeypatch.setattr(drain, "_intention", late)
    monkeypatch.setattr(process, "set_draining", set_draining)
    await held.wait()
    assert (await service.cancel_drain()).step is BookieDrainStep.NONE
    assert switched == [False, True, False]
    await until(lambda: cluster.bookies.bookies[LEAVING].writable)
    assert lock is not None
    await lock.release()
    await others.close()
    await process.end()


async def test_no_cancel_once_the_cookie_goes(cluster: MemoryBookieCluster) -> None:
    intention = Intention(bookie_id=LEAVING, phase=Phase.REMOVING, started_ms=1)
    await cluster.store.put(intention_path(LEAVING), encode_intention(intention))
    process = Process(cluster, own=False)
    with pytest.raises(OperationRefused, match="too late"):
        await process.drain.cancel()
    await process.end()


async def test_a_cookie_made_anew_is_not_removed(cluster: MemoryBookieCluster) -> None:
    cluster.bookies.bookies[LEAVING].stop()
    process = Process(cluster, own=False)
    await process.drain.start()
    await cluster.store.delete(COOKIE)
    await asyncio.sleep(0.005)
    await cluster.store.put(COOKIE, b"cookie")
    draining = asyncio.ensure_future(run(process))
    await until(lambda: bool(process.drain.progress().blockers))
    assert "set up anew" in process.drain.progress().blockers[0][1]
    await process.drain.cancel()
    assert (await draining).step is BookieDrainStep.NONE
    assert await cluster.store.exists(COOKIE)
    await process.end()


class RevisionStore(MemoryMetadataStore):
    """Keeps no times, as etcd."""

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        node = await super().get(path, watch=watch)
        if node is None:
            return None
        revision = node.stat.created_ms
        return Node(node.value, dataclasses.replace(node.stat, created_ms=0, modified_ms=0, revision=revision))

    def another_session(self) -> MemoryMetadataStore:
        return RevisionStore(self._memory_tree)


async def test_a_cookie_made_anew_is_not_removed_where_the_store_keeps_no_times() -> None:
    clock = LoopClock()
    without_times = MemoryBookieCluster(4, RevisionStore(MemoryTree(clock)), clock=clock)
    await without_times.store.put(COOKIE, b"cookie")
    await test_a_cookie_made_anew_is_not_removed(without_times)
    intention = Intention(bookie_id=LEAVING, phase=Phase.REMOVING, started_ms=1, cookie_created_ms=1)
    await without_times.store.put(intention_path(LEAVING), encode_intention(intention))
    process = Process(without_times, own=False)
    assert (await run(process)).step is BookieDrainStep.DONE
    assert await without_times.store.exists(COOKIE)
    await process.end()
    await without_times.close()


async def test_a_drain_whose_cookie_went_is_done_though_there_is_a_new_one(cluster: MemoryBookieCluster) -> None:
    """It was killed after the removal, and a new bookie of this name has made its own. No drain could be cancelled."""
    intention = Intention(bookie_id=LEAVING, phase=Phase.REMOVING, started_ms=1, cookie_created_ms=1)
    await cluster.store.put(intention_path(LEAVING), encode_intention(intention))
    process = Process(cluster, own=False)
    assert (await run(process)).step is BookieDrainStep.DONE
    assert await cluster.store.exists(COOKIE)
    assert cluster.bookies.bookies[LEAVING].writable
    await process.end()


async def test_a_copy_that_went_bad_is_repaired_before_the_cookie_goes(cluster: MemoryBookieCluster) -> None:
    (ledger_id,) = await ledgers_on_it(cluster, 1)
    before = set((await cluster.metadata(ledger_id)).ensembles[0][1])
    cluster.bookies.bookies[LEAVING].stop()
    process = Process(cluster, own=False)
    process.parts.settle_seconds = 0.05
    await process.drain.start()
    draining = asyncio.ensure_future(run(process))
    await until(lambda: process.drain.progress().step is BookieDrainStep.VERIFY)
    (new,) = set((await cluster.metadata(ledger_id)).ensembles[0][1]) - before
    cluster.drop(new, ledger_id, [0, 4])
    assert (await draining).step is BookieDrainStep.DONE
    await assert_gone(cluster)
    await process.end()


async def test_the_cookie_stays_while_a_moved_copy_is_bad_and_cannot_be_repaired(cluster: MemoryBookieCluster) -> None:
    """Nobody else has those entries any more: the leaving bookie may be the last that could give them back."""
    (ledger_id,) = await ledgers_on_it(cluster, 1)
    before = set((await cluster.metadata(ledger_id)).ensembles[0][1])
    cluster.bookies.bookies[LEAVING].stop()
    process = Process(cluster, own=False)
    process.parts.settle_seconds = 0.05
    await process.drain.start()
    draining = asyncio.ensure_future(run(process))
    await until(lambda: process.drain.progress().step is BookieDrainStep.VERIFY)
    (new,) = set((await cluster.metadata(ledger_id)).ensembles[0][1]) - before
    for bookie_id in {new, *before} - {LEAVING}:
        cluster.drop(bookie_id, ledger_id, [0, 4])
    await until(lambda: bool(process.drain.progress().blockers))
    assert process.drain.progress().blockers[0][0] == ledger_id
    assert await cluster.store.exists(COOKIE)
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    await process.end()


async def test_a_lost_session_is_survived(cluster: MemoryBookieCluster) -> None:
    ledgers = await ledgers_on_it(cluster, 2)
    others = UnderreplicatedLedgers(cluster.store, "other:3181", cluster.clock)
    lock = await others.lock(ledgers[0])
    process = Process(cluster, own=False)
    cluster.bookies.bookies[LEAVING].stop()
    await process.drain.start()
    draining = asyncio.ensure_future(run(process))
    await until(lambda: bool(process.drain.progress().blockers))
    process.session.expire_session()
    await asyncio.sleep(0.02)
    assert lock is not None
    await lock.release()
    assert (await draining).step is BookieDrainStep.DONE
    await assert_gone(cluster)
    await others.close()
    await process.end()


async def test_the_service_goes_on_after_a_restart(cluster: MemoryBookieCluster) -> None:
    (ledger_id,) = await ledgers_on_it(cluster, 1)
    others = UnderreplicatedLedgers(cluster.store, "other:3181", cluster.clock)
    lock = await others.lock(ledger_id)
    first = Process(cluster, own=True)
    await first.boot()
    service = DrainService(first.parts, LEAVING, first)
    await service.start()
    assert service.drain().step is BookieDrainStep.NONE
    await service.start_drain()
    await service.start_drain()
    await until(lambda: bool(service.drain().blockers))
    await service.close()
    await service.close()
    await first.end()
    second = Process(cluster, own=True)
    service = DrainService(second.parts, LEAVING, second)
    await service.start()
    await until(lambda: bool(service.drain().blockers))
    assert not cluster.bookies.bookies[LEAVING].writable
    assert (await service.cancel_drain()).step is BookieDrainStep.NONE
    await until(lambda: cluster.bookies.bookies[LEAVING].writable)
    assert lock is not None
    await lock.release()
    await service.start_drain()
    await until(lambda: service.drain().step is BookieDrainStep.DONE)
    with pytest.raises(OperationRefused):
        await service.cancel_drain()
    await service.close()
    await assert_gone(cluster)
    await others.close()
    await second.end()


async def test_a_drain_that_goes_on_after_a_restart_is_never_shown_as_none(cluster: MemoryBookieCluster) -> None:
    """Also while the lock of the run before stands: watches would end, and a refused start would take it back."""
    await ledgers_on_it(cluster, 1)
    first = Process(cluster, own=True)
    await first.boot()
    others = ResourceLock(first.session, lock_path(LEAVING), b"the run before", lambda _: None)
    await others.acquire()
    service = DrainService(first.parts, LEAVING, first)
    assert (await service.start_drain()).step is BookieDrainStep.READ_ONLY
    await service.close()
    second = Process(cluster, own=True)
    await second.boot()
    service = DrainService(second.parts, LEAVING, second)
    await service.start()
    assert service.drain().step is BookieDrainStep.READ_ONLY
    await asyncio.sleep(3)
    assert service.drain().step is BookieDrainStep.READ_ONLY
    await others.release()
    await until(lambda: service.drain().step is BookieDrainStep.DONE)
    await service.close()
    await first.end()
    await second.end()


async def test_the_service_drains_though_the_answer_to_the_intention_is_lost(
    cluster: MemoryBookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked does not know whether the bookie leaves; it stands in the store that it does."""
    await ledgers_on_it(cluster, 1)
    process = Process(cluster, own=True)
    await process.boot()
    service = DrainService(process.parts, LEAVING, process)
    start = service._drain.start

    async def unanswered() -> None:
        await start()
        raise StoreUnavailable("the answer is lost")

    monkeypatch.setattr(service._drain, "start", unanswered)
    with pytest.raises(StoreUnavailable):
        await service.start_drain()
    await until(lambda: service.drain().step is BookieDrainStep.DONE)
    await service.close()
    await assert_gone(cluster)
    await process.end()


async def test_the_service_waits_for_the_store(cluster: MemoryBookieCluster) -> None:
    await ledgers_on_it(cluster, 1)
    process = Process(cluster, own=True)
    await process.boot()
    service = DrainService(process.parts, LEAVING, process)
    await service.start_drain()
    process.session.disconnect()
    await asyncio.sleep(0.03)
    process.session.reconnect()
    await until(lambda: service.drain().step is BookieDrainStep.DONE)
    await service.close()
    await process.end()


async def test_the_service_waits_until_its_intention_can_be_read(cluster: MemoryBookieCluster) -> None:
    (ledger_id,) = await ledgers_on_it(cluster, 1)
    process = Process(cluster, own=True)
    await process.boot()
    lock = await process.marks.lock(ledger_id)
    service = DrainService(process.parts, LEAVING, process)
    await service.start_drain()
    await until(lambda: bool(service.drain().blockers))
    kept = await cluster.store.get(intention_path(LEAVING))
    await cluster.store.put(intention_path(LEAVING), b"nonsense")
    await asyncio.sleep(0.03)
    assert kept is not None
    await cluster.store.put(intention_path(LEAVING), kept.value)
    assert lock is not None
    await lock.release()
    await until(lambda: service.drain().step is BookieDrainStep.DONE)
    await service.close()
    await assert_gone(cluster)
    await process.end()


def test_intentions_as_they_are_kept() -> None:
    intention = Intention(
        bookie_id="b:1", phase=Phase.DONE, started_ms=5, remove_cookie=False, cookie_created_ms=3, finished_ms=9
    )
    assert decode_intention(encode_intention(intention)) == intention
    assert decode_intention(b'{"bookieId":"b","phase":"DRAINING","startedMs":1,"later":2}') == Intention(
        bookie_id="b", phase=Phase.DRAINING, started_ms=1
    )
    for damaged in (b"", b"[]", b'{"bookieId":"b","phase":"GONE","startedMs":1}'):
        with pytest.raises(PeerError):
            decode_intention(damaged)


async def killed_run(cluster: MemoryBookieCluster, death: Death, *, own: bool) -> None:
    """A process that starts a drain and runs it until it is done or dies."""
    process = Process(cluster, own=own, death=death, pace_seconds=0.002)

    async def work() -> None:
        if own:
            await process.boot()
        await process.drain.start()
        await process.drain.run()

    task = asyncio.ensure_future(work())
    died = asyncio.ensure_future(death.died.wait())
    await asyncio.wait([task, died], return_when=asyncio.FIRST_COMPLETED)
    died.cancel()
    task.cancel()
    await asyncio.gather(task, died, return_exceptions=True)
    await process.end()


@pytest.mark.slow
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("own", [True, False], ids=["live", "dead"])
async def test_a_kill_at_any_operation_is_gone_on_from(*, own: bool, applied: bool) -> None:
    async def prepared() -> MemoryBookieCluster:
        cluster = await new_cluster()
        await ledgers_on_it(cluster, 2, WHOLE, entries=3)
        writer, _ = await cluster.open_ledger(STRIPED, [b"x"] * 3)
        await writer.abandon()
        if not own:
            cluster.bookies.bookies[LEAVING].stop()
        return cluster

    cluster = await prepared()
    whole = Death()
    await killed_run(cluster, whole, own=own)
    await assert_gone(cluster)
    await cluster.close()
    assert whole.count > 50
    for at in range(whole.count + 5):
        cluster = await prepared()
        await killed_run(cluster, Death(at, applied=applied), own=own)
        if own:
            cluster.bookies.bookies[LEAVING].writable = True
        after = Process(cluster, own=own, pace_seconds=0.002)
        if own and await cluster.store.exists(COOKIE):
            await after.boot()
        await after.drain.start()
        assert (await run(after)).step is BookieDrainStep.DONE, at
        await assert_gone(cluster)
        await after.end()
        await cluster.close()
