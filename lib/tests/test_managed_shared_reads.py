"""Cursors that want the same entries at a time have them read once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.core.errors import Unavailable
from magnetar.core.ids import EARLIEST
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.entry import Entry
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import ManagedWorld, append

CURSORS = 10
PAYLOADS = [b"%d" % number for number in range(40)]


class HeldReads:
    """Reads of bookies wait until they are let through."""

    def __init__(self, world: ManagedWorld) -> None:
        self.begun = 0
        self.error: Unavailable | None = None
        self._through = asyncio.Event()
        self._read = world.ledgers.payloads

    async def payloads(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        self.begun += 1
        await self._through.wait()
        if self.error is not None:
            raise self.error
        return await self._read(ledger_id, first, last)

    def let_through(self) -> None:
        self._through.set()


@pytest.fixture
async def world() -> AsyncIterator[ManagedWorld]:
    world = ManagedWorld()
    yield world
    await world.close()


@pytest.fixture
def held(world: ManagedWorld, monkeypatch: pytest.MonkeyPatch) -> HeldReads:
    held = HeldReads(world)
    monkeypatch.setattr(world.ledgers, "payloads", held.payloads)
    return held


async def opened(world: ManagedWorld, cache_bytes_max: int = 0) -> tuple[ManagedLedger, list[Cursor]]:
    """A ledger of which nothing is in the cache, and cursors at its first entry."""
    ledger = await world.factory(ManagedLedgerSettings(), cache_bytes_max).open("tenant/namespace/persistent/topic")
    cursors = [await ledger.open_cursor(f"sub{number}", EARLIEST) for number in range(CURSORS)]
    await append(ledger, PAYLOADS)
    return ledger, cursors


async def begin(cursors: list[Cursor]) -> list[asyncio.Task[list[Entry]]]:
    """Each reads; all have asked by now."""
    reads = [asyncio.create_task(cursor.read(20, 10_000)) for cursor in cursors]
    for _ in range(5):
        await asyncio.sleep(0)
    return reads


async def test_cursors_at_one_place_share_a_read(world: ManagedWorld, held: HeldReads) -> None:
    ledger, cursors = await opened(world)
    reads = await begin(cursors)
    assert held.begun == 1
    held.let_through()
    found = await asyncio.gather(*reads)
    assert [[entry.data for entry in entries] for entries in found] == [PAYLOADS[:20]] * CURSORS
    # Each has a list of its own.
    found[0].clear()
    assert len(found[1]) == 20
    # What is read ahead counts, too.
    assert (ledger.cache.missed_entries, ledger.cache.hits) == (len(PAYLOADS), len(PAYLOADS) * (CURSORS - 1))
    # It is over: who asks now has it read.
    assert len(await ledger.readers.read(*cursors[0].read_position, cursors[0].read_position[1])) == 1
    assert held.begun == 2


async def test_positions_that_fall_due_together_are_read_once(world: ManagedWorld, held: HeldReads) -> None:
    ledger, cursors = await opened(world)
    ledger_id = ledger.ledgers.first_position()[0]
    due = [(ledger_id, entry_id) for entry_id in (3, 4, 5, 9, 10)]
    reads = [asyncio.create_task(cursor.read_positions(due)) for cursor in cursors]
    held.let_through()
    found = await asyncio.gather(*reads)
    assert [[entry.position for entry in entries] for entries in found] == [due] * CURSORS
    assert held.begun == 2  # Two stretches.


async def test_the_cache_knows_what_is_read_again(world: ManagedWorld, held: HeldReads) -> None:
    ledger, cursors = await opened(world, 1 << 20)
    ledger_id = ledger.ledgers.first_position()[0]
    ledger.cache.remove_ledger(ledger_id)
    held.let_through()
    await cursors[0].read_positions([(ledger_id, 3), (ledger_id, 4)])
    assert ledger.cache.replayed_bytes == ledger.cache.size_bytes > 0
    await cursors[0].read(20, 10_000)
    assert ledger.cache.replayed_bytes < ledger.cache.size_bytes


async def test_an_error_is_everybodys_and_the_next_read_tries_again(world: ManagedWorld, held: HeldReads) -> None:
    _, cursors = await opened(world)
    held.error = Unavailable("no bookie answers")
    reads = await begin(cursors)
    held.let_through()
    found = await asyncio.gather(*reads, return_exceptions=True)
    assert found == [held.error] * CURSORS
    held.error = None
    assert [entry.data for entry in await cursors[0].read(20, 10_000)] == PAYLOADS[:20]
    assert held.begun == 2


async def test_others_go_on_when_who_reads_is_cancelled(world: ManagedWorld, held: HeldReads) -> None:
    _, cursors = await opened(world)
    reads = await begin(cursors)
    for read in reads[:2]:  # The first reads, the second waits for it.
        read.cancel()
    held.let_through()
    found = await asyncio.gather(*reads[2:])
    assert [[entry.data for entry in entries] for entries in found] == [PAYLOADS[:20]] * (CURSORS - 2)
    assert held.begun == 2
    assert all(read.cancelled() for read in reads[:2])
