"""What holds though the metadata store does not answer: receipts, ownership, and that nothing is left over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.ledger.api import LedgerReader, LedgerUnauthorized, LedgerUnavailable
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.cursors.storage import CursorStorage
from magnetar.managed.errors import CursorNotFound, ManagedLedgerFenced
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.owned_node import UNSURE_WRITES_MAX
from magnetar.managed.paths import cursor_path, ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.states import ManagedLedgerState
from magnetar.managed.testing import append
from magnetar.metadata.faulty import RequestFate
from magnetar.metadata.store import StoreUnavailable
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.managed_world import NAME, POLICY, UNSURE, World

new_event_loop = VirtualTimeLoop

CURSOR = cursor_path(NAME, "sub")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    world.fates.clear()
    await world.close()


async def persisted(cursor: Cursor) -> MagnetarError | None:
    """Ask for everything acknowledged to be durable; the error that came instead of a receipt."""
    outcome: asyncio.Future[MagnetarError | None] = asyncio.get_running_loop().create_future()
    cursor.persist(outcome.set_result)
    return await outcome


async def with_receipts(world: World, *indexes: int) -> tuple[ManagedLedger, Cursor, list[Position]]:
    """A topic of 20 entries, of which these are acknowledged for sure, in a ledger of the cursor's."""
    ledger = await world.owner()
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = [await append(ledger, [b"%d" % number]) for number in range(20)]
    cursor.acknowledge([at[index] for index in indexes])
    assert await persisted(cursor) is None
    return ledger, cursor, at


def has(cursor: Cursor, at: list[Position], *indexes: int) -> bool:
    return all(cursor.is_acknowledged(at[index]) for index in indexes)


def age(world: World) -> None:
    """From now on the next write of a cursor makes another ledger."""
    world.clock.ms += 10**9


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_receipt_for_an_acknowledgement_holds_when_the_answer_to_the_switch_of_ledgers_is_lost(
    world: World, fate: RequestFate, times: int
) -> None:
    ledger, cursor, at = await with_receipts(world, 3, 5, 7)
    age(world)
    world.next_fates(CURSOR, *[fate] * times)
    receipts = [3, 5, 7]
    for index in range(9, 9 + times):
        cursor.acknowledge([at[index]])
        assert isinstance(await persisted(cursor), StoreUnavailable)
        assert len(world.ledgers.stored) <= 3, "more than one ledger is in doubt"
        assert has((await world.copy().owner()).cursors["sub"], at, *receipts)
    assert ledger.state is ManagedLedgerState.LEDGER_OPENED
    cursor.acknowledge([at[15]])
    assert await persisted(cursor) is None
    again = (await world.owner()).cursors["sub"]
    assert has(again, at, *receipts, *range(9, 9 + times), 15)
    assert not has(again, at, 16)


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_ledger_in_doubt_is_deleted_once_the_node_is_known_not_to_name_it(
    world: World, fate: RequestFate
) -> None:
    ledger, cursor, at = await with_receipts(world, 3)
    for index in range(5, 15):
        age(world)
        world.next_fates(CURSOR, fate)
        cursor.acknowledge([at[index]])
        assert isinstance(await persisted(cursor), StoreUnavailable)
        assert await persisted(cursor) is None
        assert await world.nothing_left_over()
    assert ledger.state is ManagedLedgerState.LEDGER_OPENED
    assert has((await world.owner()).cursors["sub"], at, 3, *range(5, 15))


async def test_who_lets_go_before_the_next_ledger_is_named_leaves_none(world: World) -> None:
    """Between its creation and its naming: no node can name it, whoever owns the topic next."""
    ledger = await world.owner()
    await append(ledger, [b"0"])
    before = set(world.ledgers.stored)
    async with ledger._node.lock:
        rolling = asyncio.create_task(ledger.roll())
        while set(world.ledgers.stored) == before:
            await asyncio.sleep(0)
        await ledger.abandon()
        await asyncio.sleep(1)
    await rolling
    assert await world.nothing_left_over()
    assert (await world.owner()).ledgers.number_of_entries() == 1


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("seconds", [0.5, 1.5, 10.0], ids=["asking", "asked", "told that nobody knows"])
async def test_who_lets_go_while_a_naming_is_in_doubt_deletes_nothing_and_finds_out_when_it_comes_again(
    world: World, fate: RequestFate, seconds: float
) -> None:
    factory = world.another()
    ledger = await factory.open(NAME, POLICY)
    await append(ledger, [b"0"])
    before = set(world.ledgers.stored)
    world.next_fates(ledger_path(NAME), fate)
    world.sessions[-1]._delay_seconds = lambda: 1.0
    rolling = asyncio.create_task(ledger.roll())
    while set(world.ledgers.stored) == before:
        await asyncio.sleep(0.1)
    await asyncio.sleep(seconds)
    await ledger.abandon()
    await rolling
    await asyncio.sleep(20)
    assert await world.named() <= set(world.ledgers.stored)
    assert set(world.ledgers.stored) > before
    world.fates.clear()
    again = await factory.open(NAME, POLICY)
    assert again.ledgers.number_of_entries() == 1
    assert await world.nothing_left_over()


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("seconds", [0.5, 1.5, 1.9], ids=["asking", "asked", "nearly told"])
async def test_who_lets_go_while_a_cursor_is_in_doubt_deletes_nothing_and_finds_out_when_it_comes_again(
    world: World, fate: RequestFate, seconds: float
) -> None:
    factory = world.another()
    ledger = await factory.open(NAME, POLICY)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = [await append(ledger, [b"%d" % number]) for number in range(3)]
    before = set(world.ledgers.stored)
    world.next_fates(CURSOR, fate)
    world.sessions[-1]._delay_seconds = lambda: 1.0
    cursor.acknowledge([at[1]])
    persisting = asyncio.create_task(persisted(cursor))
    while set(world.ledgers.stored) == before:
        await asyncio.sleep(0.1)
    await asyncio.sleep(seconds)
    await ledger.abandon()
    assert await persisting is not None
    await asyncio.sleep(20)
    assert await world.named() <= set(world.ledgers.stored)
    world.fates.clear()
    await factory.open(NAME, POLICY)
    assert await world.nothing_left_over()


async def test_who_was_replaced_leaves_the_ledger_in_doubt_that_the_next_owner_reads(world: World) -> None:
    """The former owner does not know that the node names it; the next one lives on it."""
    _, cursor, at = await with_receipts(world, 3)
    age(world)
    world.next_fates(CURSOR, RequestFate.LOST)
    cursor.acknowledge([at[5]])
    assert isinstance(await persisted(cursor), StoreUnavailable)
    other = await world.owner()
    await other.cursors["sub"].set_cursor_properties({"k": "v"})
    assert isinstance(await persisted(cursor), ManagedLedgerFenced)
    await world.settle()
    assert await world.named() <= set(world.ledgers.stored)
    assert has((await world.owner()).cursors["sub"], at, 3, 5)


async def test_who_was_replaced_deletes_the_ledger_in_doubt_of_a_cursor_that_is_gone(world: World) -> None:
    _, cursor, at = await with_receipts(world, 3)
    age(world)
    world.next_fates(CURSOR, RequestFate.REFUSED)
    cursor.acknowledge([at[5]])
    assert isinstance(await persisted(cursor), StoreUnavailable)
    await (await world.owner()).delete_cursor("sub")
    assert isinstance(await persisted(cursor), ManagedLedgerFenced)
    assert await world.nothing_left_over()


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("closing", [True, False])
async def test_a_cursor_in_doubt_is_closed_with_all_that_it_holds(
    world: World, fate: RequestFate, closing: bool
) -> None:
    ledger, cursor, at = await with_receipts(world, 3)
    age(world)
    world.next_fates(CURSOR, fate, *[fate] * closing)
    cursor.acknowledge([at[5]])
    assert await persisted(cursor) is not None
    await ledger.close()
    assert await world.nothing_left_over()
    assert has((await world.owner()).cursors["sub"], at, 3, 5)


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_closed_cursor_whose_last_write_had_no_answer_opens_again(world: World, fate: RequestFate) -> None:
    ledger, cursor, at = await with_receipts(world, 3)
    world.next_fates(CURSOR, fate, fate, fate)
    cursor.acknowledge([at[5]])
    with pytest.raises(StoreUnavailable):
        await cursor.close()
    again = await ledger.open_cursor("sub", LATEST)
    assert has(again, at, 3)
    again.acknowledge([at[7]])
    assert await persisted(again) is None
    assert ledger.state is ManagedLedgerState.LEDGER_OPENED
    assert await world.nothing_left_over()
    assert has((await world.owner()).cursors["sub"], at, 3, 7)


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", [1, 2, UNSURE_WRITES_MAX + 5])
async def test_writes_of_the_list_without_an_answer_do_not_fence_their_own_owner(
    world: World, fate: RequestFate, times: int
) -> None:
    ledger = await world.owner()
    world.next_fates(ledger_path(NAME), *[fate] * times)
    for number in range(times):
        with pytest.raises(StoreUnavailable):
            await ledger.set_property("k", str(number))
        await asyncio.sleep(1.0)
    await ledger.set_property("k", "sure")
    assert (await world.owner()).properties == {"k": "sure"}
    with pytest.raises(ManagedLedgerFenced):
        await ledger.set_property("k", "of a former owner")


@pytest.mark.parametrize("fate", UNSURE)
async def test_who_was_replaced_is_fenced_whatever_it_waits_for(world: World, fate: RequestFate) -> None:
    ledger = await world.owner()
    world.next_fates(ledger_path(NAME), fate)
    with pytest.raises(StoreUnavailable):
        await ledger.set_property("k", "unsure")
    other = await world.owner()
    with pytest.raises(ManagedLedgerFenced):
        await ledger.set_property("k", "mine")
    assert ledger.state is ManagedLedgerState.FENCED
    await other.set_property("k", "theirs")
    assert (await world.owner()).properties["k"] == "theirs"


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_ledger_whose_naming_had_no_answer_is_used_or_deleted(world: World, fate: RequestFate) -> None:
    ledger = await world.owner()
    await append(ledger, [b"0"])
    for _ in range(3):
        world.next_fates(ledger_path(NAME), fate)
        await ledger.roll()
        ledger.appends.ready_to_create_ledger()
        await append(ledger, [b"x"])
        assert await world.nothing_left_over()
    assert (await world.owner()).ledgers.number_of_entries() == 4


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_ledger_that_the_list_may_name_is_there(world: World, fate: RequestFate) -> None:
    """What an answer would have settled that is lost is nothing to delete by."""
    ledger = await world.owner()
    await append(ledger, [b"0"])
    world.next_fates(ledger_path(NAME), fate)
    await ledger.roll()
    await asyncio.sleep(10)
    assert await world.named() <= set(world.ledgers.stored)


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_topic_that_is_closed_leaves_no_ledger_in_doubt(world: World, fate: RequestFate) -> None:
    ledger = await world.owner()
    await append(ledger, [b"0"])
    world.next_fates(ledger_path(NAME), fate)
    await ledger.roll()
    await ledger.close()
    assert await world.nothing_left_over()
    assert (await world.owner()).ledgers.number_of_entries() == 1


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_subscriber_may_come_again_when_the_answer_to_a_cursors_creation_is_lost(
    world: World, fate: RequestFate, times: int
) -> None:
    ledger = await world.owner()
    world.next_fates(CURSOR, *[fate] * times)
    for _ in range(times):
        with pytest.raises(StoreUnavailable):
            await ledger.open_cursor("sub", EARLIEST)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await append(ledger, [b"x"])
    cursor.acknowledge([at])
    assert await persisted(cursor) is None
    assert (await world.owner()).cursors["sub"].is_acknowledged(at)


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_cursor_whose_creation_had_no_answer_can_be_deleted(world: World, fate: RequestFate) -> None:
    ledger = await world.owner()
    world.next_fates(CURSOR, fate)
    with pytest.raises(StoreUnavailable):
        await ledger.open_cursor("sub", EARLIEST)
    await ledger.delete_cursor("sub")
    assert await world.store.get(CURSOR) is None
    with pytest.raises(CursorNotFound):
        await ledger.delete_cursor("sub")
    assert not (await ledger.open_cursor("sub", EARLIEST)).closed


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("then", ["delete", "open"])
async def test_a_deletion_of_a_cursor_without_an_answer_is_finished_by_whoever_comes_next(
    world: World, fate: RequestFate, then: str
) -> None:
    ledger, cursor, at = await with_receipts(world, 3)
    world.next_fates(CURSOR, fate, verb="delete")
    waiting = asyncio.ensure_future(persisted(cursor))
    with pytest.raises(StoreUnavailable):
        await ledger.delete_cursor("sub")
    assert cursor.closed
    await waiting
    if then == "delete":
        await ledger.delete_cursor("sub")
        assert await world.store.get(CURSOR) is None
    else:
        again = await ledger.open_cursor("sub", LATEST)
        assert again.mark_delete == at[-1]
        await asyncio.sleep(10)
        again.acknowledge([await append(ledger, [b"x"])])
        assert await persisted(again) is None
    assert ledger.state is ManagedLedgerState.LEDGER_OPENED
    assert await world.nothing_left_over()


async def test_a_cursor_that_is_deleted_while_it_changes_ledgers_does_not_come_back(world: World) -> None:
    ledger, cursor, at = await with_receipts(world, 3)
    for turns in range(12):
        age(world)
        cursor.acknowledge([at[5]])
        writing = asyncio.ensure_future(persisted(cursor))
        for _ in range(turns):
            await asyncio.sleep(0)
        await ledger.delete_cursor("sub")
        await writing
        await world.settle()
        assert await world.store.get(CURSOR) is None
        assert ledger.state is ManagedLedgerState.LEDGER_OPENED
        assert await world.nothing_left_over()
        cursor = await ledger.open_cursor("sub", EARLIEST)
        cursor.acknowledge([at[3]])
        assert await persisted(cursor) is None


async def test_properties_that_are_set_while_a_cursor_changes_ledgers_do_not_fence(world: World) -> None:
    ledger, cursor, at = await with_receipts(world, 3)
    for turns in range(12):
        age(world)
        cursor.acknowledge([at[5 + turns]])
        writing = asyncio.ensure_future(persisted(cursor))
        for _ in range(turns):
            await asyncio.sleep(0)
        await cursor.set_cursor_properties({"turns": str(turns)})
        assert await writing is None
        assert ledger.state is ManagedLedgerState.LEDGER_OPENED
    again = (await world.owner()).cursors["sub"]
    assert again.cursor_properties == {"turns": "11"}
    assert has(again, at, 3, *range(5, 17))


@pytest.mark.parametrize("fate", UNSURE)
async def test_properties_of_a_cursor_without_an_answer_may_be_set_again(world: World, fate: RequestFate) -> None:
    ledger, cursor, at = await with_receipts(world, 3)
    world.next_fates(CURSOR, fate, fate)
    for value in ("1", "2"):
        with pytest.raises(StoreUnavailable):
            await cursor.set_cursor_properties({"k": value})
    cursor.acknowledge([at[5]])
    assert await persisted(cursor) is None
    await cursor.set_cursor_properties({"k": "3"})
    assert ledger.state is ManagedLedgerState.LEDGER_OPENED
    again = (await world.owner()).cursors["sub"]
    assert (again.cursor_properties, has(again, at, 3, 5)) == ({"k": "3"}, True)
    assert await world.nothing_left_over()


@pytest.mark.parametrize("fate", UNSURE)
@pytest.mark.parametrize("lost", [("delete", ledger_path(NAME)), ("delete", CURSOR)])
@pytest.mark.parametrize("then", ["delete", "open"])
async def test_a_topic_whose_deletion_had_no_answer_leaves_no_ledger(
    world: World, fate: RequestFate, lost: tuple[str, str], then: str
) -> None:
    factory = world.another()
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    for _ in range(3):
        at = await append(ledger, [b"x"])
        await ledger.roll()
    cursor.acknowledge([at])
    assert await persisted(cursor) is None
    world.next_fates(lost[1], fate, verb=lost[0])
    with pytest.raises(StoreUnavailable):
        await factory.delete(NAME)
    if then == "open":
        with contextlib.suppress(ManagedLedgerFenced):  # By the deletion, which comes late.
            await factory.open(NAME)
        again = await factory.open(NAME)
        await append(again, [b"x"])
        assert await world.nothing_left_over()
    await factory.delete(NAME)
    await world.settle()
    assert world.ledgers.stored == {}
    assert not await factory.exists(NAME)


async def away(world: World, change: Callable[[], None], error: type[MagnetarError]) -> None:
    """The next owner does not get the cursor while the ledger cannot be read, and gets all of it afterwards."""
    _, cursor, at = await with_receipts(world, 3, 5, 7)
    change()
    with pytest.raises(error):
        await world.owner()
    with pytest.raises(error):
        await world.owner()
    world.ledgers.unreachable = False
    assert has((await world.owner()).cursors["sub"], at, 3, 5, 7)
    del cursor


async def test_a_cursor_does_not_fall_back_because_bookies_are_away_for_a_moment(world: World) -> None:
    await away(world, lambda: setattr(world.ledgers, "unreachable", True), LedgerUnavailable)


async def test_a_cursor_does_not_fall_back_because_bookies_do_not_give_its_last_entry(world: World) -> None:
    ledger, cursor, at = await with_receipts(world, 3)
    storage = cursor.storage
    assert storage is not None
    # Its ledgers are closed, so that opening them needs no bookie; reading does.
    for stored in world.ledgers.stored.values():
        stored.closed = True
    world.ledgers.unreachable = True
    with pytest.raises(LedgerUnavailable, match=r"of cursor sub of .* cannot be read now"):
        await ledger.load_cursors(["sub"])
    world.ledgers.unreachable = False
    await ledger.load_cursors(["sub"])
    assert has(ledger.cursors["sub"], at, 3)


async def test_a_cursor_falls_back_by_force_while_bookies_do_not_give_its_last_entry(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, cursor, at = await with_receipts(world, 3)
    assert cursor.storage is not None
    for stored in world.ledgers.stored.values():
        stored.closed = True
    world.ledgers.unreachable = True
    ledger.settings.cursors_recovered_by_force = True
    await ledger.load_cursors(["sub"])
    assert "managedLedgerForceRecovery" in caplog.text
    assert not has(ledger.cursors["sub"], at, 3), "it is delivered again"
    world.ledgers.unreachable = False
    await ledger.load_cursors(["sub"])
    assert has(ledger.cursors["sub"], at, 3)


async def test_a_cursor_does_not_fall_back_because_of_a_wrong_password(world: World) -> None:
    ledger, cursor, at = await with_receipts(world, 3)
    storage = cursor.storage
    assert storage is not None
    ledger.settings.password = b"another"
    with pytest.raises(LedgerUnauthorized):
        await ledger.load_cursors(["sub"])
    ledger.settings.password = b""
    await ledger.load_cursors(["sub"])
    assert has(ledger.cursors["sub"], at, 3)


async def test_a_cursor_whose_ledger_is_gone_has_the_position_of_its_node(world: World) -> None:
    _, cursor, at = await with_receipts(world, 0, 1, 3)
    storage = cursor.storage
    assert storage is not None
    del world.ledgers.stored[storage.ledger_id]
    again = (await world.owner()).cursors["sub"]
    assert (again.mark_delete, again.is_acknowledged(at[3])) == (at[1], False)


async def test_bookies_that_are_away_while_a_cursor_is_written_cost_no_receipt_that_was_given(world: World) -> None:
    _, cursor, at = await with_receipts(world, 3)
    world.ledgers.unreachable = True
    for index in (5, 7):
        cursor.acknowledge([at[index]])
        assert isinstance(await persisted(cursor), MagnetarError)
    world.ledgers.unreachable = False
    assert has((await world.owner()).cursors["sub"], at, 3)
    assert await persisted(cursor) is None
    assert has((await world.owner()).cursors["sub"], at, 3, 5, 7)


async def test_a_former_owner_that_changes_ledgers_while_the_cursor_is_loaded_costs_nothing(world: World) -> None:
    for turns in range(25):
        world.ledgers.stored.clear()
        await world.store.delete_recursively("/managed-ledgers")
        _, cursor, at = await with_receipts(world, 3, 5)
        age(world)
        cursor.acknowledge([at[7]])
        writing = asyncio.ensure_future(persisted(cursor))
        for _ in range(turns):
            await asyncio.sleep(0)
        other = await world.owner()
        receipt = await writing is None
        found = other.cursors["sub"]
        assert has(found, at, 3, 5)
        found.acknowledge([at[9]])
        if await persisted(found) is None:
            assert has((await world.owner()).cursors["sub"], at, 3, 5, 9, *[7] * receipt)


async def test_a_cursor_that_gets_another_ledger_while_it_is_loaded_is_read_from_that_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its former owner is still at work: the ledger that the node has just named is gone when it is opened."""
    _, cursor, at = await with_receipts(world, 3, 5)
    assert cursor.storage is not None
    before = cursor.storage.ledger_id
    opened = world.ledgers.open

    async def open_late(ledger_id: int, **more: Any) -> LedgerReader:
        if ledger_id == before:
            monkeypatch.setattr(world.ledgers, "open", opened)
            age(world)
            cursor.acknowledge([at[7]])
            assert await persisted(cursor) is None
            await asyncio.sleep(1)
        return await opened(ledger_id, **more)

    monkeypatch.setattr(world.ledgers, "open", open_late)
    again = (await world.owner()).cursors["sub"]
    assert before not in world.ledgers.stored
    assert has(again, at, 3, 5, 7)


async def test_a_cursors_ledger_that_fails_while_another_takes_its_place_is_no_second_reason(world: World) -> None:
    for turns in range(12):
        world.ledgers.stored.clear()
        await world.store.delete_recursively("/managed-ledgers")
        _, cursor, at = await with_receipts(world, 3)
        assert isinstance(cursor.storage, CursorStorage)
        before = cursor.storage.ledger_id
        age(world)
        cursor.acknowledge([at[5]])
        writing = asyncio.ensure_future(persisted(cursor))
        for _ in range(turns):
            await asyncio.sleep(0)
        cursor.storage.failed(before, LedgerUnavailable("its bookies are away"))
        assert await writing is None
        assert await world.nothing_left_over()


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_cursor_that_is_closed_leaves_no_write_that_comes_later(world: World, fate: RequestFate) -> None:
    """Also when its state stays in its ledger: what is late would look like another owner to the next one."""
    policy = replace(POLICY, unacked_ranges_in_metadata_max=1)
    ledger = await world.owner(policy)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = [await append(ledger, [b"%d" % number]) for number in range(10)]
    cursor.acknowledge([at[index] for index in (3, 5, 7)])
    assert await persisted(cursor) is None
    world.next_fates(CURSOR, fate)
    with pytest.raises(StoreUnavailable):
        await cursor.set_cursor_properties({"k": "v"})
    await ledger.close()
    again = (await world.owner(policy)).cursors["sub"]
    await asyncio.sleep(10)
    age(world)
    again.acknowledge([at[9]])
    assert await persisted(again) is None
    assert has((await world.owner(policy)).cursors["sub"], at, 3, 5, 7, 9)


@pytest.mark.parametrize("fate", [None, *UNSURE])
async def test_a_cursor_that_cannot_be_stored_when_it_is_closed_writes_nothing_later(
    world: World, fate: RequestFate | None
) -> None:
    """Its bookies or the store may be back when somebody else has the topic, who would be fenced."""
    policy = replace(POLICY, unacked_ranges_in_metadata_max=1)
    ledger = await world.owner(policy)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = [await append(ledger, [b"%d" % number]) for number in range(10)]
    cursor.acknowledge([at[index] for index in (3, 5, 7)])
    if fate is None:
        world.ledgers.not_enough_bookies()
    else:
        world.next_fates(CURSOR, fate)
    await ledger.close()
    world.ledgers.refuse_creation = None
    again = (await world.owner(policy)).cursors["sub"]
    age(world)
    await asyncio.sleep(10)
    again.acknowledge([at[9]])
    assert await persisted(again) is None
    assert has((await world.owner(policy)).cursors["sub"], at, 9)
    assert await world.nothing_left_over()


async def test_a_cursor_that_is_closed_while_bookies_refuse_is_stored_in_its_node_if_it_fits(world: World) -> None:
    ledger = await world.owner()
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = [await append(ledger, [b"%d" % number]) for number in range(10)]
    cursor.acknowledge([at[0]])
    waiting = [asyncio.ensure_future(persisted(cursor))]
    await asyncio.sleep(0)
    world.ledgers.not_enough_bookies()
    cursor.acknowledge([at[3]])
    waiting.append(asyncio.ensure_future(persisted(cursor)))
    await ledger.close()
    assert None not in [await each for each in waiting]
    world.ledgers.refuse_creation = None
    assert has((await world.owner()).cursors["sub"], at, 0, 3)


async def test_a_cursor_whose_deletion_had_no_answer_needs_what_it_never_stored(world: World) -> None:
    """It may be there for the next owner, with the snapshot before."""
    settings = ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0)
    ledger = await world.owner(settings)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    for number in range(35):
        await append(ledger, [b"%d" % number])
    await cursor.set_properties({"producer": -1})
    world.ledgers.hold = True
    cursor.properties["producer"] = 34
    cursor.acknowledge_cumulative(ledger.last_confirmed)
    writing = asyncio.ensure_future(persisted(cursor))
    await world.settle()
    world.next_fates(CURSOR, RequestFate.REFUSED, verb="delete")
    deleting = asyncio.ensure_future(ledger.delete_cursor("sub"))
    await world.settle()
    world.ledgers.unreachable = True
    world.ledgers.release()
    with pytest.raises(StoreUnavailable):
        await deleting
    assert await writing is not None
    world.ledgers.unreachable = False
    await ledger.trim()
    found = (await world.owner(settings)).cursors["sub"]
    assert (found.properties, found.backlog_entries) == ({"producer": -1}, 35)


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("fate", UNSURE)
async def test_a_new_cursor_begins_with_what_the_next_owner_has_too(
    world: World, fate: RequestFate, *, looked: bool
) -> None:
    """Also when it has been found since that the write which had no answer has happened."""
    settings = replace(POLICY, max_entries_per_ledger=10, minimum_rollover_ms=0)
    ledger = await world.owner(settings)
    for number in range(25):
        await append(ledger, [b"%d" % number])
    world.next_fates(ledger_path(NAME), fate)
    with pytest.raises(StoreUnavailable):
        await ledger.trim(retain=False)
    if looked:
        await ledger.check_owner()
    cursor = await ledger.open_cursor("sub", EARLIEST)
    assert cursor.backlog_entries == 25
    await ledger.abandon()
    await asyncio.sleep(10)
    assert (await world.owner(settings)).cursors["sub"].backlog_entries == 25


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_topic_that_is_closed_names_what_a_trim_without_an_answer_took_out(
    world: World, fate: RequestFate
) -> None:
    """It was not deleted, and the next owner would not know of it."""
    ledger = await world.owner(replace(POLICY, max_entries_per_ledger=10, minimum_rollover_ms=0))
    for number in range(25):
        await append(ledger, [b"%d" % number])
    world.next_fates(ledger_path(NAME), fate)
    with pytest.raises(StoreUnavailable):
        await ledger.trim(retain=False)
    await ledger.check_owner()
    await ledger.close()
    await asyncio.sleep(10)
    assert await world.nothing_left_over()
