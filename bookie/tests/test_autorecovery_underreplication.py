from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from magnetar.bookie.autorecovery import paths
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.core.errors import PeerError
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore, NodeChange, Notification, Stat, StoreUnavailable
from magnetar.metadata.testing import ZookeeperServer
from magnetar.metadata.zookeeper import ZookeeperMetadataStore
from magnetar.wire.bookkeeper.under_replication import CheckKind

PATIENCE_SECONDS = 30.0
LOST = "127.0.0.1:23283"


class FixedClock:
    """A clock that stands at one of Apache's marks."""

    def now_ms(self) -> int:
        return 1795237571721

    def monotonic_seconds(self) -> float:
        return 0.0


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[tuple[MetadataStore, MetadataStore]]:
    """Two sessions on one empty tree."""
    first: MetadataStore
    second: MetadataStore
    if request.param == "memory":
        memory = MemoryMetadataStore()
        first, second = memory, memory.another_session()
    else:
        server: ZookeeperServer = request.getfixturevalue("zookeeper")
        url = f"zk:{server.address}/t{random.randrange(10**9)}"
        first = await ZookeeperMetadataStore.open(url)
        second = await ZookeeperMetadataStore.open(url)
    yield first, second
    await first.close()
    await second.close()


@pytest.fixture
def store(stores: tuple[MetadataStore, MetadataStore]) -> MetadataStore:
    return stores[0]


@pytest.fixture
async def ours(stores: tuple[MetadataStore, MetadataStore]) -> AsyncIterator[UnderreplicatedLedgers]:
    opened = UnderreplicatedLedgers(stores[0], "a:3181", FixedClock(), random.Random(1))
    yield opened
    await opened.close()


@pytest.fixture
async def others(stores: tuple[MetadataStore, MetadataStore]) -> AsyncIterator[UnderreplicatedLedgers]:
    opened = UnderreplicatedLedgers(stores[1], "b:3181", FixedClock(), random.Random(2))
    yield opened
    await opened.close()


async def value_at(store: MetadataStore, path: str) -> bytes | None:
    node = await store.get(path)
    return None if node is None else node.value


async def test_nodes_are_byte_for_byte_apaches(store: MetadataStore, ours: UnderreplicatedLedgers) -> None:
    """Against what Apache's auditors and workers (4.17.2, both drivers) left in a real cluster."""
    await ours.mark(0, [LOST])
    lock = await ours.lock(0)
    assert lock is not None
    await ours.set_lost_bookie_recovery_delay_seconds(300)
    await ours.set_last_check(CheckKind.ALL_LEDGERS, 1795237468018)
    await ours.disable()
    assert await value_at(store, "/ledgers/underreplication") == b""
    assert await value_at(store, "/ledgers/underreplication/LAYOUT") == b'type: "BASIC"\nversion: 1\n'
    assert await value_at(store, "/ledgers/underreplication/ledgers/0000/0000/0000/0000") == b""
    mark = "/ledgers/underreplication/ledgers/0000/0000/0000/0000/urL0000000000"
    assert await value_at(store, mark) == b'replica: "127.0.0.1:23283"\nctime: 1795237571721\n'
    locked = await store.get("/ledgers/underreplication/locks/urL0000000000")
    assert locked is not None
    assert locked.stat.ephemeral
    assert locked.value == b'bookieId: "a:3181"\n'
    assert await value_at(store, "/ledgers/underreplication/lostBookieRecoveryDelay") == b"300"
    assert await value_at(store, "/ledgers/underreplication/disable") == b""
    assert await value_at(store, "/ledgers/underreplication/checkallledgersctime") == b"\x08\xf2\xae\xf7\xe3\x9f4"


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0xCAFEBEEF0000FEED & 2**63 - 1, "4afe/beef/0000/feed/urL5403966536597700333"),
        (1234567, "0000/0000/0012/d687/urL0001234567"),
        (2**63 - 1, "7fff/ffff/ffff/ffff/urL9223372036854775807"),
    ],
)
def test_paths(ledger_id: int, path: str) -> None:
    found = paths.mark_path(ledger_id)
    assert found == f"/ledgers/underreplication/ledgers/{path}"
    assert paths.ledger_id_of_folder(found.rpartition("/")[0]) == ledger_id


@pytest.mark.parametrize("folder", ["0000/0000/0000", "0000/0000/0000/00zz", "ffff/0000/0000/0000", "0/0/0/1"])
def test_other_folders_are_no_marks(folder: str) -> None:
    assert paths.ledger_id_of_folder(f"{paths.MARKS}/{folder}") is None


async def test_marking_adds_replicas_and_versions(ours: UnderreplicatedLedgers, others: UnderreplicatedLedgers) -> None:
    await ours.mark(7, ["x:1", "y:1"])
    await others.mark(7, ["y:1"])
    first = await ours.get(7)
    assert first is not None
    assert (first.missing_replicas, first.version) == (("x:1", "y:1"), 0)
    await others.mark(7, ["z:1"])
    second = await ours.get(7)
    assert second is not None
    assert (second.missing_replicas, second.version) == (("x:1", "y:1", "z:1"), 1)


async def test_auditors_may_mark_at_the_same_time(ours: UnderreplicatedLedgers, others: UnderreplicatedLedgers) -> None:
    await asyncio.gather(*(who.mark(7, [f"{n}:1"]) for n in range(8) for who in (ours, others)))
    found = await ours.get(7)
    assert found is not None
    assert sorted(found.missing_replicas) == [f"{n}:1" for n in range(8)]


async def test_an_apache_mark_without_a_time_is_read(store: MetadataStore, ours: UnderreplicatedLedgers) -> None:
    stat = await store.put(paths.mark_path(5), b'replica: "x:1"\n')
    found = await ours.get(5)
    assert found is not None
    assert found.created_ms == stat.modified_ms


async def test_all_are_found_in_order(store: MetadataStore, ours: UnderreplicatedLedgers) -> None:
    ids = [3, 1, 70_000, 2**40 + 5, 2**31]
    for ledger_id in ids:
        await ours.mark(ledger_id, [LOST])
    await store.put(paths.mark_path(9), b"damaged")
    assert [mark.ledger_id async for mark in ours.all()] == sorted(ids)
    assert await ours.count() == len(ids)


async def test_no_two_hold_a_lock(ours: UnderreplicatedLedgers, others: UnderreplicatedLedgers) -> None:
    locks = await asyncio.gather(*(who.lock(7) for who in (ours, others, ours, others)))
    held = [lock for lock in locks if lock is not None]
    assert len(held) == 1
    assert await ours.lock_holder(7) in ("a:3181", "b:3181")
    await held[0].release()
    await held[0].release()
    again = await others.lock(7)
    assert again is not None
    assert not again.lost
    assert not held[0].lost
    assert await ours.lock(7) is None


async def test_one_bookie_id_in_two_sessions_is_two_holders(stores: tuple[MetadataStore, MetadataStore]) -> None:
    first, second = (UnderreplicatedLedgers(store, "same:1") for store in stores)
    lock = await first.lock(1)
    assert lock is not None
    assert await second.lock(1) is None
    await first.close()
    await second.close()


async def test_work_is_taken_once_each(ours: UnderreplicatedLedgers, others: UnderreplicatedLedgers) -> None:
    for ledger_id in range(20):
        await ours.mark(ledger_id, [LOST])
    taken: list[int] = []
    for turn in range(21):
        found = await (ours, others)[turn % 2].lock_any()
        if found is not None:
            taken.append(found[0].ledger_id)
    assert sorted(taken) == list(range(20))
    assert taken != sorted(taken)
    assert await ours.lock_any() is None
    await ours.mark(50, [LOST])
    later = await ours.lock_any()
    assert later is not None
    assert later[0].ledger_id == 50


async def test_done_removes_mark_lock_and_folders(store: MetadataStore, ours: UnderreplicatedLedgers) -> None:
    await ours.mark(1, [LOST])
    await ours.mark(2**20, [LOST])
    lock = await ours.lock(1)
    task = await ours.get(1)
    assert lock is not None
    assert task is not None
    await ours.replicated(task, lock)
    assert await ours.get(1) is None
    assert await store.children(paths.LOCKS) == []
    assert await store.children(f"{paths.MARKS}/0000/0000") == ["0010"]
    found = await ours.lock_any()
    assert found is not None
    await ours.replicated(*found)
    assert await store.children(paths.MARKS) == []


async def test_marked_again_meanwhile_stays_marked(
    ours: UnderreplicatedLedgers, others: UnderreplicatedLedgers
) -> None:
    await ours.mark(1, ["x:1"])
    found = await ours.lock_any()
    assert found is not None
    await others.mark(1, ["y:1"])
    await ours.replicated(*found)
    left = await others.lock_any()
    assert left is not None
    assert left[0].missing_replicas == ("x:1", "y:1")


async def test_folders_that_others_left_are_cleared(store: MetadataStore, ours: UnderreplicatedLedgers) -> None:
    await store.put(paths.mark_folder(77), b"")
    assert await ours.lock_any() is None
    assert await store.children(paths.MARKS) == []


async def test_switching_off_and_on(ours: UnderreplicatedLedgers, others: UnderreplicatedLedgers) -> None:
    assert await ours.enabled()
    assert await ours.disable()
    assert not await others.disable()
    assert not await others.enabled()
    with others.watch_changes() as changes:
        assert await ours.enable()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await changes.wait()
    assert not await ours.enable()
    assert await others.enabled()


async def test_waiters_hear_of_marks_and_released_locks(
    ours: UnderreplicatedLedgers, others: UnderreplicatedLedgers
) -> None:
    with ours.watch_changes() as changes:
        assert await ours.lock_any() is None
        await others.mark(5, [LOST])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await changes.wait()
        found = await others.lock_any()
        assert found is not None
        assert await ours.lock_any() is None
        await found[1].release()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await ours.lock_any() is None:
                await changes.wait()


async def test_the_delay_is_kept_as_text(ours: UnderreplicatedLedgers, others: UnderreplicatedLedgers) -> None:
    assert await ours.lost_bookie_recovery_delay_seconds() is None
    assert await ours.initialize_lost_bookie_recovery_delay(60) == 60
    assert await others.initialize_lost_bookie_recovery_delay(5) == 60
    await others.request_audit()
    assert await ours.lost_bookie_recovery_delay_seconds() == 60


async def test_last_checks(ours: UnderreplicatedLedgers, others: UnderreplicatedLedgers) -> None:
    for number, kind in enumerate(CheckKind):
        assert await ours.last_check(kind) is None
        await ours.set_last_check(kind, number)
        assert await others.last_check(kind) == number


async def test_an_unknown_layout_is_refused(store: MetadataStore, ours: UnderreplicatedLedgers) -> None:
    await store.put(paths.LAYOUT, b'type: "FANCY"\nversion: 2\n')
    with pytest.raises(PeerError, match="unknown kind"):
        await ours.mark(1, [])


async def test_a_lock_that_somebody_removes_is_lost(store: MetadataStore, ours: UnderreplicatedLedgers) -> None:
    lock = await ours.lock(3)
    assert lock is not None
    await store.delete(paths.lock_path(3))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await lock.wait_until_lost()
    await lock.release()


async def test_locks_are_lost_with_the_session() -> None:
    store = MemoryMetadataStore()
    ours = UnderreplicatedLedgers(store, "a:1")
    await ours.mark(1, [LOST])
    found = await ours.lock_any()
    assert found is not None
    task, lock = found
    store.expire_session()
    await asyncio.sleep(0)
    assert lock.lost
    await ours.replicated(task, lock)
    assert await ours.get(1) is not None, "the mark is the next holder's"
    again = await ours.lock(1)
    assert again is not None
    await lock.release()
    assert not again.lost
    assert await ours.lock(1) is None
    await ours.close()
    await store.close()


async def test_a_lost_connection_alone_costs_no_lock() -> None:
    store = MemoryMetadataStore()
    ours = UnderreplicatedLedgers(store, "a:1")
    lock = await ours.lock(1)
    assert lock is not None
    store.disconnect()
    await asyncio.sleep(0)
    store.reconnect()
    await asyncio.sleep(0)
    assert not lock.lost
    await ours.close()
    assert await store.children(paths.LOCKS) == []
    await store.close()


async def test_a_lock_that_could_not_be_released_is_released_later() -> None:
    store = MemoryMetadataStore()
    other = store.another_session()
    ours, others = UnderreplicatedLedgers(store, "a:1"), UnderreplicatedLedgers(other, "b:1")
    lock = await ours.lock(1)
    assert lock is not None
    store.disconnect()
    await lock.release()
    with pytest.raises(StoreUnavailable):
        await ours.lock(2)
    store.reconnect()
    assert await others.lock(1) is None
    assert await ours.lock(2) is not None
    assert await others.lock(1) is not None
    await ours.close()
    await others.close()
    await store.close()
    await other.close()


class LateNewsStore(MemoryMetadataStore):
    """Hears of the end of a lock's earlier node while it makes its own, as a server that lags behind tells it."""

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Stat:
        """See `MetadataStore.put`."""
        stat = await super().put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential)
        if path.startswith(paths.LOCKS + "/"):
            self.changes.tell([Notification(NodeChange.DELETED, path)])
            await asyncio.sleep(0)
        return stat


async def test_late_news_of_a_lock_before_ours_do_not_cost_ours() -> None:
    store = LateNewsStore()
    ours = UnderreplicatedLedgers(store, "a:1")
    lock = await ours.lock(1)
    assert lock is not None
    assert not lock.lost
    await lock.release()
    assert await store.children(paths.LOCKS) == []
    await ours.close()
    await store.close()


async def test_a_lock_that_seemed_lost_leaves_no_node_behind() -> None:
    """Found by the simulator: where no other ledger was marked nobody removed the node, and a drain waited for ever."""
    store = MemoryMetadataStore()
    ours = UnderreplicatedLedgers(store, "a:1")
    lock = await ours.lock(1)
    assert lock is not None
    store.changes.tell([Notification(NodeChange.DELETED, paths.lock_path(1))])
    await lock.wait_until_lost()
    assert await store.exists(paths.lock_path(1))
    await lock.release()
    assert await store.children(paths.LOCKS) == []
    await ours.close()
    await store.close()


@pytest.mark.zookeeper
@pytest.mark.slow
async def test_a_paused_zookeeper_costs_the_locks(tmp_path: Path) -> None:
    with ZookeeperServer(tmp_path) as server:
        store = await ZookeeperMetadataStore.open(server.address, session_timeout_ms=2000)
        ours = UnderreplicatedLedgers(store, "a:1")
        lock = await ours.lock(1)
        assert lock is not None
        server.pause()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await lock.wait_until_lost()
        server.resume()
        await ours.close()
        await store.close()
