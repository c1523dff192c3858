"""Followers of topics whose ledgers are in tiered storage: what the owner has offloaded is read from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.core.ids import EARLIEST
from magnetar.managed.following.followed_ledger import FollowedLedger
from magnetar.managed.following.testing import WriterAsOwner
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.testing import read_all
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.managed_world import NAME
from lib.tests.offload_world import ASKED, OffloadWorld, keeping

new_event_loop = VirtualTimeLoop


@pytest.fixture
async def world() -> AsyncIterator[OffloadWorld]:
    world = OffloadWorld()
    yield world
    await world.close()


async def follower(world: OffloadWorld, writer: ManagedLedger) -> FollowedLedger:
    factory = world.factory(keeping(ASKED), 0, offloaders=world.stores.offloaders())
    return await factory.follow(NAME, WriterAsOwner(writer), keeping(ASKED))


async def offloaded(writer: ManagedLedger) -> None:
    await writer.offloads.offload_before((writer.ledgers.ids[-1], 0))
    await writer.offloads.until_idle()
    assert writer.offloads.status.status == "SUCCESS"


@pytest.mark.parametrize("before", [False, True])
async def test_offloaded_ledgers_are_read(world: OffloadWorld, before: bool) -> None:
    writer = await world.filled(keeping(ASKED))
    if before:
        await offloaded(writer)
    ledger = await follower(world, writer)
    assert await ledger.catch_up()
    cursor = ledger.new_non_durable_cursor("reader", EARLIEST)
    assert await read_all(cursor) == world.sent
    if not before:
        await offloaded(writer)
    for ledger_id in writer.ledgers.ids[:-1]:
        world.ledgers.stored[ledger_id].entries.clear()  # It has to come from the other copy.
    await asyncio.sleep(1.0)
    cursor.rewind()
    assert await read_all(cursor) == world.sent
    assert not ledger.offloads.due


async def test_the_bookies_copy_that_goes_is_not_missed(world: OffloadWorld) -> None:
    writer = await world.filled(keeping(ASKED))
    ledger = await follower(world, writer)
    assert await ledger.catch_up()
    cursor = ledger.new_non_durable_cursor("reader", EARLIEST)
    assert [entry.data for entry in await cursor.read(2, 1 << 20)] == world.sent[:2]
    await offloaded(writer)
    for ledger_id in writer.ledgers.ids[:-1]:
        await world.ledgers.delete(ledger_id)
    assert await read_all(cursor) == world.sent[2:]
