"""Properties of a cursor's position, few and many: what the next owner finds of them, ours or Apache's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST
from magnetar.managed.ack_state import AckState
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.info_codec import (
    POSITION_IN_NODE,
    PROPERTY_BYTES_IN_NODE_MAX,
    decode_cursor_info,
    decode_position,
    encode_cursor_info,
    encode_position,
    size_of_properties,
)
from magnetar.managed.ledger_list import LedgerList
from magnetar.managed.paths import cursor_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import append
from magnetar.metadata.faulty import RequestFate
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import LongProperty, ManagedCursorInfo

from lib.tests.managed_world import NAME, UNSURE, World

new_event_loop = VirtualTimeLoop

CURSOR = cursor_path(NAME, "sub")
FEW = {"p": 1, "q": -1}
MANY = {f"{number:06d}".rjust(100, "p"): number for number in range(10_000)}
"""Larger than a node may be."""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    world.fates.clear()
    await world.close()


async def persisted(cursor: Cursor) -> MagnetarError | None:
    outcome: asyncio.Future[MagnetarError | None] = asyncio.get_running_loop().create_future()
    cursor.persist(outcome.set_result)
    return await outcome


async def marked(world: World, properties: dict[str, int]) -> Cursor:
    """A cursor whose mark is acknowledged with these properties; nobody has been told yet that it is durable."""
    ledger = await world.owner()
    cursor = await ledger.open_cursor("sub", EARLIEST)
    position = await append(ledger, [b"0"])
    cursor.properties.update(properties)
    cursor.acknowledge_cumulative(position)
    return cursor


async def stored_node(world: World) -> ManagedCursorInfo:
    node = await world.store.get(CURSOR)
    assert node is not None
    return decode_cursor_info(node.value)


def pairs(properties: list[LongProperty]) -> dict[str, int]:
    return {each.name: each.value for each in properties}


async def as_apache_reads(world: World) -> dict[str, int]:
    """The rule of ManagedCursorImpl (`recover`, `recoverFromLedger`): a node that names a ledger is read for that only,
    then the last entry says all."""
    info = await stored_node(world)
    if info.cursorsLedgerId == POSITION_IN_NODE:
        return pairs(list(info.properties))
    entries = world.ledgers.stored[info.cursorsLedgerId].entries
    return pairs(list(decode_position(entries[-1]).properties)) if entries else {}


@pytest.mark.parametrize("properties", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("closed", [False, True], ids=["killed", "closed"])
async def test_the_next_owner_finds_all_properties_whoever_it_is(
    world: World, properties: dict[str, int], closed: bool
) -> None:
    cursor = await marked(world, properties)
    assert await persisted(cursor) is None
    if closed:
        await cursor.close()
    assert await as_apache_reads(world) == properties
    again = (await world.owner()).cursors["sub"]
    assert again.properties == properties
    assert again.mark_delete == cursor.mark_delete


@pytest.mark.parametrize("closed", [False, True], ids=["killed", "closed"])
async def test_what_apache_has_stored_is_found_and_stored_on(world: World, closed: bool) -> None:
    """Apache's broker writes all properties into the node, which are old ones where the node names a ledger; it closes
    a cursor with all that a node holds."""
    large = dict(list(MANY.items())[:5_000])
    cursor = await marked(world, large)
    assert await persisted(cursor) is None
    info, old = await stored_node(world), large
    if closed:
        info.cursorsLedgerId = POSITION_IN_NODE
    else:
        old = dict.fromkeys(large, -5)
    del info.properties[:]
    info.properties.extend(LongProperty(name=name, value=value) for name, value in old.items())
    node = await world.store.get(CURSOR)
    assert node is not None
    await world.store.put(CURSOR, info.SerializeToString(), node.stat.version)
    again = (await world.owner()).cursors["sub"]
    assert again.properties == large
    await again.set_properties(again.properties | {"new": 7})
    assert await as_apache_reads(world) == {**large, "new": 7}


async def test_a_cursor_that_was_never_written_is_closed_with_its_many_properties(world: World) -> None:
    cursor = await marked(world, MANY)
    await cursor.close()
    assert await as_apache_reads(world) == MANY
    assert (await world.owner()).cursors["sub"].properties == MANY


async def test_many_properties_are_in_the_ledger_and_not_in_the_node(world: World) -> None:
    cursor = await marked(world, MANY)
    assert await persisted(cursor) is None
    info = await stored_node(world)
    assert info.cursorsLedgerId != POSITION_IN_NODE
    assert not info.properties
    await cursor.set_cursor_properties({"k": "v"})
    assert await as_apache_reads(world) == MANY


async def test_few_properties_outlive_the_loss_of_the_ledger(world: World) -> None:
    cursor = await marked(world, FEW)
    assert await persisted(cursor) is None
    del world.ledgers.stored[(await stored_node(world)).cursorsLedgerId]
    assert (await world.owner()).cursors["sub"].properties == FEW


@pytest.mark.parametrize("fate", UNSURE)
async def test_many_properties_are_stored_after_the_first_ledger_came_to_be_in_doubt(
    world: World, fate: RequestFate
) -> None:
    """To point the node back at itself would take a node that is too large."""
    cursor = await marked(world, MANY)
    world.next_fates(CURSOR, fate)
    assert await persisted(cursor) is not None
    assert await persisted(cursor) is None
    assert (await world.copy().owner()).cursors["sub"].properties == MANY
    assert await world.nothing_left_over()


def test_properties_are_as_large_as_they_are_counted_at_the_most() -> None:
    names = ["", "p", "p" * 1_000, "ö" * 300, "p" * 60_000]
    properties = dict.fromkeys(names, -1)
    acks = AckState(LedgerList([]), (1, 1))
    record = encode_position(acks, properties, ManagedLedgerSettings())
    bare = encode_position(acks, {}, ManagedLedgerSettings())
    assert 0 < len(record) - len(bare) <= size_of_properties(properties) <= len(record) + 20 * len(names)


@pytest.mark.parametrize(("more", "in_node"), [(0, 1), (1, 0)])
def test_properties_stand_beside_a_ledger_up_to_their_bound(more: int, in_node: int) -> None:
    name = "p" * (PROPERTY_BYTES_IN_NODE_MAX - size_of_properties([""]) + more)
    acks, settings = AckState(LedgerList([]), (1, 1)), ManagedLedgerSettings()
    with_ledger = decode_cursor_info(encode_cursor_info(acks, {name: 5}, {}, settings, 1, 9))
    alone = decode_cursor_info(encode_cursor_info(acks, {name: 5}, {}, settings, 1))
    assert len(with_ledger.properties) == in_node
    assert pairs(list(alone.properties)) == {name: 5}
