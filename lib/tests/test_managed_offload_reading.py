"""Reading what is offloaded: which copy is read, what happens when it fails, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.ledger.api import LedgerNotFound, LedgerUnavailable
from magnetar.managed.factory import TIERED_LOOK_SECONDS
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.offload.testing import MemoryObjects, MemoryStores
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.tiered.api import OffloadDamaged, OffloadedLedgerNotFound, OffloadUnavailable
from magnetar.tiered.offloaders import STORES_MAX
from magnetar.tiered.policy import NO_OFFLOAD, ReadFirst

from lib.tests.offload_world import HOUR_MS, OffloadWorld, keeping, until_done, with_policy

new_event_loop = VirtualTimeLoop


@pytest.fixture
async def world() -> AsyncIterator[OffloadWorld]:
    world = OffloadWorld()
    yield world
    world.offloader.hold.set()
    await world.close()


async def offloaded(world: OffloadWorld, *, at_bookies: bool = True) -> ManagedLedger:
    """A topic whose full ledger is in tiered storage, and perhaps at the bookies."""
    ledger = await world.filled(ledgers=1)
    await until_done(ledger)
    if not at_bookies:
        world.clock.ms += 5 * HOUR_MS
        await until_done(ledger)
        assert set(world.ledgers.stored) == {1}
    world.ledgers.reads = 0
    return ledger


async def test_tiered_storage_is_read_first(world: OffloadWorld) -> None:
    ledger = await offloaded(world)
    assert await world.read_all(ledger) == world.sent
    assert ledger.offloads.counters.read_bytes == sum(map(len, world.sent[:4]))


async def test_bookies_are_read_first_when_that_is_wanted(world: OffloadWorld) -> None:
    """Until their copy is gone."""
    ledger = await offloaded(world)
    ledger.settings = with_policy(keeping(), read_first=ReadFirst.BOOKKEEPER)
    assert await world.read_all(ledger) == world.sent
    assert ledger.offloads.counters.read_bytes == 0
    world.clock.ms += 5 * HOUR_MS
    await until_done(ledger)
    assert await world.read_all(ledger) == world.sent
    assert ledger.offloads.counters.read_bytes == sum(map(len, world.sent[:4]))


async def test_the_other_copy_is_read_when_bookies_fail(world: OffloadWorld) -> None:
    ledger = await offloaded(world)
    ledger.settings = with_policy(keeping(), read_first=ReadFirst.BOOKKEEPER)
    world.ledgers.away.add(0)
    assert await world.read_all(ledger) == world.sent


@pytest.mark.parametrize("step", ["open", "read"])
@pytest.mark.parametrize(
    "error", [OffloadDamaged((0, 0), "cut short"), OffloadedLedgerNotFound("gone"), OffloadUnavailable("no answer")]
)
async def test_bookies_help_out_while_they_have_it(world: OffloadWorld, step: str, error: LedgerUnavailable) -> None:
    ledger = await offloaded(world)
    world.offloader.fail_at[step] = error
    assert await world.read_all(ledger) == world.sent
    assert ledger.offloads.counters.read_errors == 1
    assert await world.read_all(ledger) == world.sent
    assert ledger.offloads.counters.read_errors == 1, "the copy that failed is not asked each time"


@pytest.mark.parametrize("step", ["open", "read"])
async def test_without_another_copy_the_error_is_told_and_the_next_read_asks_again(
    world: OffloadWorld, step: str
) -> None:
    ledger = await offloaded(world, at_bookies=False)
    world.offloader.fail_at[step] = OffloadUnavailable("no answer")
    for _ in range(2):
        with pytest.raises(OffloadUnavailable):
            await world.read_all(ledger)
    world.offloader.fail_at.clear()
    assert await world.read_all(ledger) == world.sent


async def test_an_error_that_may_pass_prevails(world: OffloadWorld) -> None:
    """Data must not count as lost while one of its copies is only out of reach."""
    ledger = await offloaded(world)
    world.offloader.fail_at["open"] = OffloadedLedgerNotFound("gone")
    world.ledgers.away.add(0)
    with pytest.raises(LedgerUnavailable):
        await world.read_all(ledger)
    world.ledgers.away.clear()
    world.ledgers.stored.pop(0)
    with pytest.raises(LedgerNotFound):
        await world.read_all(ledger)


async def test_without_a_store_it_is_said_what_is_missing(world: OffloadWorld) -> None:
    ledger = await offloaded(world, at_bookies=False)
    ledger.settings = keeping(NO_OFFLOAD)
    with pytest.raises(LedgerUnavailable, match="managedLedgerOffloadDriver"):
        await world.read_all(ledger)


@pytest.mark.parametrize("what", ["trim", "lag"])
async def test_a_deletion_waits_for_the_reads_under_way(world: OffloadWorld, what: str) -> None:
    """Who reads an entry gets it, though its ledger goes meanwhile."""
    ledger = await offloaded(world)
    ledger.cache.remove_ledger(0)
    world.offloader.hold.clear()
    reading = asyncio.create_task(ledger.read_entry((0, 1)))
    await world.settle()
    if what == "trim":
        working = asyncio.create_task(ledger.truncate())
    else:
        world.clock.ms += 5 * HOUR_MS
        ledger.offloads.later()
        working = asyncio.create_task(ledger.offloads.until_idle())
    await asyncio.sleep(10)
    assert not reading.done()
    assert 0 in world.ledgers.stored
    assert world.objects.objects
    world.offloader.hold.set()
    assert (await reading).data == world.sent[1]
    await working
    await until_done(ledger)
    assert 0 not in world.ledgers.stored


async def test_a_deletion_does_not_wait_for_ever(world: OffloadWorld, caplog: pytest.LogCaptureFixture) -> None:
    ledger = await offloaded(world)
    ledger.cache.remove_ledger(0)
    world.offloader.hold.clear()
    reading = asyncio.create_task(ledger.read_entry((0, 1)))
    await world.settle()
    await ledger.truncate()
    assert 0 not in world.ledgers.stored
    assert "reads are not over" in caplog.text
    world.offloader.hold.set()
    await asyncio.wait((reading,))


async def test_readers_that_nobody_uses_are_closed(world: OffloadWorld) -> None:
    """Each holds a buffer of the store's and its index."""
    ledger = await offloaded(world)
    opened = world.offloader.opened
    await world.read_all(ledger)
    world.clock.ms += 100_000
    await asyncio.sleep(TIERED_LOOK_SECONDS)
    await world.read_all(ledger)
    assert world.offloader.opened == opened + 1
    world.clock.ms += 601_000
    await asyncio.sleep(TIERED_LOOK_SECONDS)
    await world.read_all(ledger)
    assert world.offloader.opened == opened + 2


async def test_a_store_that_is_changed_is_let_go_of(world: OffloadWorld) -> None:
    """The next read goes to the new one, and says what it lacks."""
    ledger = await offloaded(world, at_bookies=False)
    before = world.offloader
    ledger.settings = with_policy(keeping(), store="another-bucket")
    await ledger.readers.close()
    with pytest.raises(OffloadedLedgerNotFound):
        await world.read_all(ledger)
    assert before.closed


async def test_there_is_a_bound_on_stores() -> None:
    stores = MemoryStores(MemoryObjects())
    offloaders = stores.offloaders()
    leases = [offloaders.lease(f"bucket-{number}") for number in range(STORES_MAX)]
    with pytest.raises(LedgerUnavailable, match="stores are in use"):
        offloaders.lease("one-more")
    assert offloaders.lease("bucket-0").offloader is leases[0].offloader
    await leases[1].give_back()
    offloaders.lease("one-more")
    await offloaders.close()
    assert all(made.closed for made in stores.made)


async def test_who_waits_for_a_turn_and_is_cancelled_takes_none() -> None:
    offloaders = MemoryStores(MemoryObjects()).offloaders()
    lease = offloaders.lease("a-bucket")
    await lease.runs.enter(1)
    waiting = [asyncio.create_task(lease.runs.enter(1)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    lease.runs.leave()
    waiting[1].cancel()
    await asyncio.wait_for(waiting[2], 5)
    assert waiting[0].cancelled()
    assert waiting[1].cancelled()
    lease.runs.leave()
    await offloaders.close()
