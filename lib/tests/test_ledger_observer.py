"""A ledger that somebody else writes, looked at from outside."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from magnetar.ledger.api import EntryNotFound, LedgerNotFound, LedgerOptions, LedgerUnauthorized, LedgerUnavailable
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.ledger.observer import OpenLedgerObserver
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.testing import MemoryBookies, RecordingListener
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop

new_event_loop = VirtualTimeLoop

WHOLE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
STRIPED = LedgerOptions(ensemble_size=3, write_quorum=2, ack_quorum=2)
MUCH = 1 << 20


class ObservedWorld:
    """A writer, bookies, and another client that observes."""

    def __init__(self) -> None:
        self.bookies = MemoryBookies(3)
        self.store = MemoryMetadataStore()
        self.listener = RecordingListener()
        settings = LedgerClientSettings(add_timeout_seconds=0.5, speculative_read_seconds=0.2)
        self.clients = [
            BookKeeperClient(self.store, self.bookies, LoopClock(), random.Random(1), settings) for _ in range(2)
        ]
        self.changes = 0

    async def writer(self, options: LedgerOptions) -> OpenLedgerWriter:
        return await self.clients[0].create(options, self.listener)

    async def append(self, writer: OpenLedgerWriter, *payloads: bytes) -> None:
        for payload in payloads:
            await self.listener.until_confirmed(writer.append([payload]))

    async def observe(self, ledger_id: int, password: bytes = b"") -> OpenLedgerObserver:
        def changed() -> None:
            self.changes += 1

        return await self.clients[1].observe(ledger_id, password=password, changed=changed)

    async def close(self) -> None:
        for bookie in self.bookies.bookies.values():
            bookie.heal()
        for client in self.clients:
            await client.close()
        await self.store.close()


@pytest.fixture
async def world() -> AsyncIterator[ObservedWorld]:
    world = ObservedWorld()
    yield world
    await world.close()


async def look_on(observer: OpenLedgerObserver, count: int) -> list[bytes]:
    """So many payloads from the first one on, by as many looks as it takes."""
    found: list[bytes] = []
    while len(found) < count:
        found += (await observer.look(len(found), MUCH)).payloads
    return found


@pytest.mark.parametrize("options", [WHOLE, STRIPED])
async def test_looks_bring_entries_and_what_they_say(world: ObservedWorld, options: LedgerOptions) -> None:
    writer = await world.writer(options)
    observer = await world.observe(writer.ledger_id)
    assert (observer.last_add_confirmed, observer.closed) == (-1, False)
    assert (await observer.look(0, MUCH)).payloads == []
    payloads = [b"%d" % number for number in range(100)]
    await world.append(writer, *payloads)
    assert await look_on(observer, 100) == payloads
    assert observer.last_add_confirmed == 98
    assert await observer.read(0, 98) == payloads[:99]
    with pytest.raises(EntryNotFound):
        await observer.read(0, 99)
    observer.vouch(99)
    assert await observer.read(99, 99) == [b"99"]
    seen = await observer.look(50, 1)
    assert seen.length_bytes == sum(map(len, payloads[:50]))
    assert all(not ledger.fenced for bookie in world.bookies.bookies.values() for ledger in bookie.ledgers.values())


@pytest.mark.parametrize("options", [WHOLE, STRIPED])
async def test_nothing_is_beyond_when_enough_bookies_say_so(world: ObservedWorld, options: LedgerOptions) -> None:
    writer = await world.writer(options)
    await world.append(writer, b"a")
    observer = await world.observe(writer.ledger_id)
    assert await look_on(observer, 1) == [b"a"]
    needed = options.write_quorum - options.ack_quorum + 1
    for number in range(needed):
        assert not observer.nothing_beyond
        assert (await observer.look(1, MUCH)).payloads == [], number
    assert observer.nothing_beyond
    await world.append(writer, b"b")
    assert (await observer.look(1, MUCH)).payloads == [b"b"]


async def test_an_entry_that_one_bookie_lacks_is_found_by_the_next_looks(world: ObservedWorld) -> None:
    writer = await world.writer(WHOLE)
    await world.append(writer, b"a", b"b")
    observer = await world.observe(writer.ledger_id)
    for bookie in list(world.bookies.bookies.values())[:2]:
        del bookie.ledgers[writer.ledger_id].entries[1]
    found: list[bytes] = []
    for _ in range(3):
        found += (await observer.look(1, MUCH)).payloads
    assert set(found) == {b"b"}
    for _ in range(3):
        assert (await observer.look(1, MUCH, told=True)).payloads == [b"b"]
    assert observer.last_add_confirmed == 0  # Whoever told may be wrong.
    observer.vouch(1)  # Known to be there: all bookies are asked at once.
    for _ in range(3):
        assert (await observer.look(1, MUCH)).payloads == [b"b"]


async def test_a_damaged_copy_is_passed_over(world: ObservedWorld) -> None:
    writer = await world.writer(WHOLE)
    await world.append(writer, b"a")
    observer = await world.observe(writer.ledger_id)
    copies = [bookie.ledgers[writer.ledger_id].entries for bookie in world.bookies.bookies.values()]
    for entries in copies[:2]:
        entries[0] = entries[0][:-1] + b"x"
    assert (await observer.look(0, MUCH)).payloads == [b"a"]
    copies[2][0] = copies[2][0][:-1] + b"x"
    with pytest.raises(LedgerUnavailable, match="damaged"):
        await observer.look(0, MUCH)


async def test_bookies_that_hang_and_are_gone(world: ObservedWorld) -> None:
    writer = await world.writer(WHOLE)
    await world.append(writer, b"a", b"b")
    observer = await world.observe(writer.ledger_id)
    first, second, third = world.bookies.bookies.values()
    first.hang()
    second.stop()
    began = asyncio.get_running_loop().time()
    assert await look_on(observer, 2) == [b"a", b"b"]
    assert asyncio.get_running_loop().time() - began < 1.0
    with pytest.raises(LedgerUnavailable, match="only 1 of"):
        await observer.ask()
    third.stop()
    with pytest.raises(LedgerUnavailable, match="no bookie tells"):
        await observer.look(2, MUCH)


@pytest.mark.parametrize("recovered", [False, True])
async def test_the_end_is_told(world: ObservedWorld, recovered: bool) -> None:
    writer = await world.writer(WHOLE)
    await world.append(writer, b"a", b"bc")
    observer = await world.observe(writer.ledger_id)
    await observer.ask()
    assert observer.last_add_confirmed == 0
    before = world.changes
    if recovered:
        await (await world.clients[0].open(writer.ledger_id, recover=True)).close()
    else:
        await writer.close()
    await asyncio.sleep(0)
    assert world.changes > before
    await observer.refresh()
    assert (observer.closed, observer.last_add_confirmed, observer.length_bytes) == (True, 1, 3)
    observer.vouch(7)
    assert observer.last_add_confirmed == 1
    assert (await observer.look(2, MUCH)).payloads == []
    assert await observer.read(0, 1) == [b"a", b"bc"]
    await observer.close()
    before = world.changes
    await LedgerMetadataOps(world.store).delete(writer.ledger_id)
    await asyncio.sleep(0)
    assert world.changes == before


async def test_who_may_not_observe(world: ObservedWorld) -> None:
    writer = await world.writer(WHOLE)
    with pytest.raises(LedgerNotFound):
        await world.observe(999)
    with pytest.raises(LedgerUnauthorized):
        await world.observe(writer.ledger_id, b"secret")
