"""Managed ledgers over the real ledger client and bookies in memory: takeover, failing bookies, unread data."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.testing import MemoryBookies
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import ManualClock, append, read_all
from magnetar.metadata.memory import MemoryMetadataStore

NAME = "public/default/persistent/topic"
POLICY = ManagedLedgerSettings(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    max_entries_per_ledger=40,
    minimum_rollover_ms=0,
    retention_time_ms=-1,
    retention_size_bytes=-1,
)


class BookKeeperWorld:
    """Bookies and metadata, and brokers on them, each with a client and a session of its own."""

    def __init__(self, **client_settings: float) -> None:
        self.bookies = MemoryBookies(3)
        self.store = MemoryMetadataStore()
        self.settings = replace(LedgerClientSettings(add_timeout_seconds=0.05), **client_settings)  # type: ignore[arg-type]
        self._opened: list[tuple[ManagedLedgerFactory, BookKeeperClient, MemoryMetadataStore]] = []

    def factory(self, cache_bytes_max: int = 1 << 20) -> ManagedLedgerFactory:
        store = self.store.another_session()
        client = BookKeeperClient(store, self.bookies, rng=random.Random(1), settings=self.settings)
        loop = asyncio.get_running_loop()
        factory = ManagedLedgerFactory(
            store, client, ManualClock(), loop, cache_bytes_max=cache_bytes_max, settings=POLICY
        )
        self._opened.append((factory, client, store))
        return factory

    async def close(self) -> None:
        for bookie in self.bookies.bookies.values():
            bookie.heal()
        for factory, client, store in self._opened:
            await factory.close()
            await client.close()
            await store.close()
        await self.store.close()


@pytest.fixture
async def world() -> AsyncIterator[BookKeeperWorld]:
    world = BookKeeperWorld()
    yield world
    await world.close()


async def append_all(ledger: ManagedLedger, first: int, count: int, batch: int = 5) -> None:
    """Batches in flight together; returns when all are confirmed, and checks that they were in order."""
    told: list[int] = []
    finished = asyncio.Event()
    wanted = list(range(first, first + count, batch))

    def done(error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
        assert error is None
        assert isinstance(context, int)
        told.append(context)
        if len(told) == len(wanted):
            finished.set()

    for number in wanted:
        ledger.appends.append([b"%d" % each for each in range(number, number + batch)], done, number)
    async with asyncio.timeout(30):
        await finished.wait()
    assert told == wanted


def numbers(payloads: list[bytes]) -> list[int]:
    return [int(payload) for payload in payloads]


@pytest.mark.parametrize("cache_bytes_max", [1 << 20, 0])
async def test_killed_owner(world: BookKeeperWorld, cache_bytes_max: int) -> None:
    first = await world.factory().open(NAME)
    cursor = await first.open_cursor("sub", EARLIEST)
    await append_all(first, 0, 100)
    cursor.acknowledge([first.ledgers.entry_at(index) for index in (0, 1, 2, 50)])
    durable = asyncio.Event()
    cursor.persist(lambda error: durable.set())
    await durable.wait()
    second = await world.factory(cache_bytes_max).open(NAME)
    assert second.ledgers.number_of_entries() == 100
    assert second.ledgers.total_size_bytes() == first.ledgers.total_size_bytes()
    await append_all(second, 100, 5)
    assert numbers(await read_all(second.cursors["sub"])) == [*range(3, 50), *range(51, 105)]
    with pytest.raises(ManagedLedgerFenced):
        await append(first, [b"lost"])


async def test_clean_reopening(world: BookKeeperWorld) -> None:
    for start in (0, 60):
        factory = world.factory(cache_bytes_max=0)
        ledger = await factory.open(NAME)
        await ledger.open_cursor("sub", EARLIEST)
        await append_all(ledger, start, 60)
        await factory.close()
    ledger = await world.factory().open(NAME)
    assert numbers(await read_all(ledger.cursors["sub"])) == list(range(120))


@pytest.mark.parametrize(
    "break_quorum",
    [lambda bookie: bookie.stop(), lambda bookie: bookie.hang(), lambda bookie: bookie.mute()],
    ids=["stopped", "hanging", "mute"],
)
async def test_without_a_quorum_batches_are_sent_again_in_order(
    world: BookKeeperWorld, break_quorum: Callable[[object], None]
) -> None:
    ledger = await world.factory().open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    await append_all(ledger, 0, 10)
    broken = list(world.bookies.bookies.values())[:2]
    for bookie in broken:
        break_quorum(bookie)
    for _ in range(3):
        world.bookies.add_bookie()
    await append_all(ledger, 10, 100)
    for bookie in broken:
        bookie.heal()
    await append_all(ledger, 110, 10)
    assert numbers(await read_all(cursor)) == list(range(120))
    again = await world.factory(cache_bytes_max=0).open(NAME)
    assert numbers(await read_all(again.cursors["sub"])) == list(range(120))


async def test_more_than_the_client_takes_waits_in_order() -> None:
    world = BookKeeperWorld(pending_bytes_max=500)
    ledger = await world.factory().open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    await append_all(ledger, 0, 100, batch=2)
    assert numbers(await read_all(cursor)) == list(range(100))
    await world.close()


async def test_a_small_batch_does_not_overtake_a_larger_one_that_waits() -> None:
    world = BookKeeperWorld(pending_bytes_max=1_000)
    ledger = await world.factory().open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    told: list[object] = []
    for number, size in enumerate((600, 600, 50)):
        ledger.appends.append(
            [bytes([number]) * size], lambda _error, _ledger, _entry, context: told.append(context), number
        )
    async with asyncio.timeout(30):
        while len(told) < 3:
            await asyncio.sleep(0.001)
    assert told == [0, 1, 2]
    assert [payload[0] for payload in await read_all(cursor)] == [0, 1, 2]
    await world.close()


async def test_delete(world: BookKeeperWorld) -> None:
    factory = world.factory()
    ledger = await factory.open(NAME)
    await ledger.open_cursor("sub", EARLIEST)
    await append_all(ledger, 0, 50)
    await factory.delete(NAME)
    assert await world.store.children("/managed-ledgers/public/default/persistent") == []
    assert not await factory.exists(NAME)
