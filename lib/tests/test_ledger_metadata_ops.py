from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

import pytest
from magnetar.ledger.api import LedgerNotFound, LedgerUnavailable
from magnetar.ledger.ledger_paths import ledger_path
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import Node, Stat, StoreUnavailable, VersionConflict
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

METADATA = LedgerMetadata(ensemble_size=1, write_quorum=1, ack_quorum=1, ensembles=[(0, ["b:1"])])


class UsedUpStore(MemoryMetadataStore):
    """A store whose sequence of short ids stands at its end, or has run over as ZooKeeper's does."""

    next_short_id = "2147483647"

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Stat:
        if path == "/ledgers/idgen/ID-":
            path = f"/ledgers/idgen/ID-{self.next_short_id}"
            return await super().put(path, value, expected_version, ephemeral=ephemeral)
        return await super().put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential)


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    opened = MemoryMetadataStore()
    yield opened
    await opened.close()


async def test_create_read_write_delete(store: MemoryMetadataStore) -> None:
    ops = LedgerMetadataOps(store)
    ledger_id, version = await ops.create(METADATA)
    assert await ops.read(ledger_id) == (METADATA, version)
    changed = METADATA.with_ensemble(5, ["c:1"])
    newer = await ops.write(ledger_id, changed, version)
    assert await ops.read(ledger_id) == (changed, newer)
    with pytest.raises(VersionConflict):
        await ops.write(ledger_id, METADATA, version)
    await ops.delete(ledger_id)
    await ops.delete(ledger_id)
    with pytest.raises(LedgerNotFound):
        await ops.read(ledger_id)


async def test_an_id_is_announced_before_there_is_a_ledger(store: MemoryMetadataStore) -> None:
    ops = LedgerMetadataOps(store)
    taken = (await ops.create(METADATA))[0] + 1
    await store.put(ledger_path(taken), b"")
    told: list[tuple[int, bool]] = []

    async def announce(ledger_id: int) -> None:
        told.append((ledger_id, await store.exists(ledger_path(ledger_id))))

    ledger_id, _ = await ops.create(METADATA, (), announce)
    assert told == [(taken, True), (ledger_id, False)]

    async def refuse(_: int) -> None:
        raise StoreUnavailable("not noted")

    with pytest.raises(StoreUnavailable):
        await ops.create(METADATA, (), refuse)
    assert ops.unsure_creations == []


async def test_ids_are_new_and_leave_nothing_behind(store: MemoryMetadataStore) -> None:
    ops = LedgerMetadataOps(store)
    ids = [(await ops.create(METADATA))[0] for _ in range(3)]
    assert ids == sorted(set(ids))
    assert await store.children("/ledgers/idgen") == []


async def test_a_taken_id_is_passed_over(store: MemoryMetadataStore) -> None:
    ops = LedgerMetadataOps(store)
    first, _ = await ops.create(METADATA)
    await store.put(ledger_path(first + 1), b"taken")
    assert (await ops.create(METADATA))[0] == first + 2


@pytest.mark.parametrize("next_short_id", ["2147483647", "-2147483648"])
async def test_long_ids_follow_the_short_ones(next_short_id: str) -> None:
    store = UsedUpStore()
    store.next_short_id = next_short_id
    ops = LedgerMetadataOps(store)
    assert [(await ops.create(METADATA))[0] for _ in range(2)] == [1 << 32, (1 << 32) + 1]
    assert await store.children("/ledgers/idgen-long") == ["HOB-0000000001"]
    assert [ledger_id async for ledger_id in ops.ledger_ids()] == [1 << 32, (1 << 32) + 1]
    await store.close()


async def test_all_ledgers_are_listed(store: MemoryMetadataStore) -> None:
    ops = LedgerMetadataOps(store)
    wanted = [3, 12345, 2**31 - 2, 2**31 - 1, 1 << 40]
    for ledger_id in wanted:
        await store.put(ledger_path(ledger_id), b"")
    await store.put("/ledgers/available/b:1", b"")
    await store.put("/ledgers/LAYOUT", b"")
    assert [ledger_id async for ledger_id in ops.ledger_ids()] == wanted


async def test_reads_of_ledgers_are_not_watched() -> None:
    """An audit reads more of them than a session with ZooKeeper can watch: its real watches would go."""

    class WatchedStore(MemoryMetadataStore):
        watched: ClassVar[list[str]] = []

        async def get(self, path: str, *, watch: bool = True) -> Node | None:
            if watch:
                self.watched.append(path)
            return await super().get(path, watch=watch)

    store = WatchedStore()
    ops = LedgerMetadataOps(store)
    ledger_id, _ = await ops.create(METADATA)
    await ops.read(ledger_id)
    with pytest.raises(LedgerNotFound):
        await ops.read(ledger_id + 1)
    assert store.watched == []
    await store.close()


@pytest.mark.parametrize("fate", [RequestFate.REFUSED, RequestFate.LOST, RequestFate.LATE])
async def test_what_a_creation_without_an_answer_left_is_removed(store: MemoryMetadataStore, fate: RequestFate) -> None:
    fates: dict[str, RequestFate] = {ledger_path(0): fate, ledger_path(1): fate}
    ops = LedgerMetadataOps(FaultyStore(store, lambda verb, path: fates.pop(path, RequestFate.DONE)))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await ops.create(METADATA)
    ledger_id, _ = await ops.create(METADATA)
    assert ledger_id == 2
    assert [each async for each in LedgerMetadataOps(store).ledger_ids()] == [2]


async def test_ids_that_are_all_taken_are_an_error_that_may_be_repeated() -> None:
    """As after a backup was restored: the counter lags far behind."""

    class TakenStore(MemoryMetadataStore):
        async def put(
            self,
            path: str,
            value: bytes,
            expected_version: int | None = None,
            *,
            ephemeral: bool = False,
            sequential: bool = False,
        ) -> Stat:
            if not sequential:
                raise VersionConflict(path)
            return await super().put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential)

    store = TakenStore()
    with pytest.raises(LedgerUnavailable, match="are taken"):
        await LedgerMetadataOps(store).create(METADATA)
    await store.close()
