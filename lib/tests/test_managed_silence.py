"""Managed ledgers to which nothing is appended any more: they roll by time, and what is not needed goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.managed.info_codec import decode_ledger_info
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.paths import ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.states import ManagedLedgerState
from magnetar.managed.testing import MemoryLedgers, append, read_all
from magnetar.metadata.faulty import RequestFate
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.managed_world import NAME, UNSURE, World

new_event_loop = VirtualTimeLoop

HOUR_MS = 3_600_000
HALF_DAY_MS = 12 * HOUR_MS
NOTHING_KEPT = ManagedLedgerSettings()
ALL_KEPT = ManagedLedgerSettings(retention_time_ms=-1, retention_size_bytes=-1)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    world.fates.clear()
    await world.close()


async def look(ledger: ManagedLedger) -> None:
    """What is done now and then with each that is open."""
    if ledger.due_for_rollover:
        await ledger.roll_if_due()
    if ledger.due_for_trimming:
        await ledger.trim_if_due()


async def filled(world: World, policy: ManagedLedgerSettings = NOTHING_KEPT) -> tuple[ManagedLedger, Cursor]:
    """A topic of three entries with a subscription."""
    ledger = await world.owner(policy)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    for number in range(3):
        await append(ledger, [b"%d" % number])
    return ledger, cursor


def entries(ledger: ManagedLedger) -> list[int]:
    return [record.entries for record in ledger.ledgers.records()]


async def test_what_was_consumed_goes_when_the_ledger_is_old(world: World) -> None:
    ledger, cursor = await filled(world)
    (first,) = ledger.ledgers.ids
    cursor.acknowledge_cumulative(ledger.last_confirmed)
    await look(ledger)
    assert entries(ledger) == [3]
    world.clock.ms += HALF_DAY_MS
    await look(ledger)
    await world.settle()
    assert entries(ledger) == [0]
    assert first not in world.ledgers.stored
    assert await world.nothing_left_over()
    assert cursor.backlog_entries == 0
    assert cursor.mark_delete == (ledger.ledgers.ids[0], -1)


async def test_without_a_subscription_it_goes_as_well(world: World) -> None:
    ledger = await world.owner(NOTHING_KEPT)
    await append(ledger, [b"a"])
    world.clock.ms += HALF_DAY_MS
    await look(ledger)
    await world.settle()
    assert entries(ledger) == [0]
    assert len(world.ledgers.stored) == 1


async def test_what_nobody_has_consumed_stays_and_goes_with_its_last_acknowledgement(world: World) -> None:
    ledger, cursor = await filled(world)
    (first,) = ledger.ledgers.ids
    world.clock.ms += HALF_DAY_MS
    await look(ledger)
    assert entries(ledger) == [3, 0]
    assert await read_all(cursor) == [b"0", b"1", b"2"]
    cursor.acknowledge_cumulative((first, 1))
    await world.settle()
    assert entries(ledger) == [3, 0]
    cursor.acknowledge([(first, 2)])
    await world.settle()
    assert entries(ledger) == [0]
    assert first not in world.ledgers.stored


@pytest.mark.parametrize("reverse", [False, True])
async def test_single_acknowledgements_up_to_the_very_end_let_a_ledger_go(world: World, reverse: bool) -> None:
    ledger, cursor = await filled(world)
    (first,) = ledger.ledgers.ids
    await ledger.roll()
    for entry_id in sorted(range(3), reverse=reverse):
        assert first in ledger.ledgers.ids
        cursor.acknowledge([(first, entry_id)])
    await world.settle()
    assert entries(ledger) == [0]
    assert await append(ledger, [b"next"]) == (ledger.ledgers.ids[0], 0)
    assert await read_all(cursor) == [b"next"]


async def test_what_is_acknowledged_while_a_trim_is_under_way_goes_as_well(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, cursor = await filled(world)
    await ledger.roll()
    at = await append(ledger, [b"3"])
    await ledger.roll()
    begun, goes_on = asyncio.Event(), asyncio.Event()
    delete = MemoryLedgers.delete

    async def slowly(ledgers: MemoryLedgers, ledger_id: int) -> None:
        begun.set()
        await goes_on.wait()
        await delete(ledgers, ledger_id)

    monkeypatch.setattr(MemoryLedgers, "delete", slowly)
    cursor.acknowledge_cumulative((ledger.ledgers.ids[0], 2))
    await begun.wait()
    cursor.acknowledge([at])
    goes_on.set()
    await world.settle()
    assert entries(ledger) == [0]
    assert len(world.ledgers.stored) == 1


async def test_an_empty_ledger_is_never_left(world: World) -> None:
    policy = replace(NOTHING_KEPT, inactive_rollover_ms=1_000)
    ledger = await world.owner(policy)
    await ledger.open_cursor("sub", LATEST)
    before = list(ledger.ledgers.ids)
    for _ in range(5):
        world.clock.ms += HALF_DAY_MS
        assert not ledger.due_for_rollover
        await ledger.roll_if_due()
        await look(ledger)
    assert ledger.ledgers.ids == before
    await append(ledger, [b"a"])
    world.clock.ms += 1_000
    for _ in range(5):
        await look(ledger)
        await world.settle()
    assert entries(ledger) == [1, 0], "left once, as the next one is empty"


async def test_a_silent_topic_answers_as_before(world: World) -> None:
    ledger, cursor = await filled(world, replace(ALL_KEPT, inactive_rollover_ms=5_000))
    last = ledger.last_confirmed
    world.clock.ms += 5_000
    await look(ledger)
    assert (entries(ledger), ledger.state) == ([3, 0], ManagedLedgerState.LEDGER_OPENED)
    assert ledger.last_confirmed == last
    stats = ledger.internal_stats()
    assert (stats.number_of_entries, stats.current_ledger_entries, stats.pending_entries) == (3, 0, 0)
    await cursor.reset((last[0], 1))
    assert await read_all(cursor) == [b"1", b"2"]
    assert (await append(ledger, [b"3"]))[0] > last[0]
    assert await read_all(cursor) == [b"3"]


async def test_a_topic_of_which_all_went_is_taken_over_and_used_again(world: World) -> None:
    ledger, cursor = await filled(world)
    last = ledger.last_confirmed
    late = ledger.new_non_durable_cursor("late", EARLIEST)
    cursor.acknowledge_cumulative(last)
    world.clock.ms += HALF_DAY_MS
    await look(ledger)
    await world.settle()
    assert await read_all(late) == [], "a reader that stood still has lost it, as it holds nothing back"
    at_end = await ledger.open_cursor("at end", LATEST)
    assert await read_all(at_end) == []
    assert (at_end.backlog_entries, late.backlog_entries) == (0, 0)
    assert ledger.start_of_reading(last) == ledger.start_of_reading(LATEST) == (ledger.ledgers.ids[0], 0)
    again = await world.owner(NOTHING_KEPT)
    at = await append(again, [b"next"])
    assert at[0] > last[0]
    for name in ("sub", "at end"):
        assert await read_all(again.cursors[name]) == [b"next"]
    assert await world.nothing_left_over()


async def test_retention_counts_from_the_roll_whoever_owns_the_topic(world: World) -> None:
    """The time of closing is stored with the roll: no takeover puts it off."""
    kept = replace(NOTHING_KEPT, retention_time_ms=24 * HOUR_MS, retention_size_bytes=-1)
    ledger, cursor = await filled(world, kept)
    await cursor.clear_backlog()
    world.clock.ms += HALF_DAY_MS
    await look(ledger)
    for _ in range(2):
        world.clock.ms += HALF_DAY_MS
        ledger = await world.owner(kept)
        await look(ledger)
        assert entries(ledger) == [3, 0]
    world.clock.ms += 1
    await look(ledger)
    await world.settle()
    assert entries(ledger) == [0]


async def test_what_a_roll_in_silence_leaves_is_what_any_roll_leaves(world: World) -> None:
    """The list that Apache's own roll writes (ManagedLedgerImpl.ledgerClosed): the closed ledger with entries, size and
    time, and behind it the next one with its id alone."""
    ledger, _ = await filled(world, ALL_KEPT)
    world.clock.ms += HALF_DAY_MS
    await look(ledger)
    node = await world.store.get(ledger_path(NAME))
    assert node is not None
    closed, current = decode_ledger_info(node.value).records
    assert (closed.entries, closed.size_bytes, closed.closed_ms) == (3, 3, world.clock.ms)
    assert current.ledger_id == ledger.ledgers.ids[1]
    assert (current.entries, current.size_bytes, current.closed_ms) == (0, 0, 0)
    assert world.ledgers.stored[closed.ledger_id].closed
    assert not world.ledgers.stored[current.ledger_id].closed


async def test_an_append_of_the_same_turn_goes_to_one_ledger_or_the_other(world: World) -> None:
    ledger, cursor = await filled(world, ALL_KEPT)
    world.clock.ms += HALF_DAY_MS
    assert ledger.due_for_rollover
    before = asyncio.create_task(append(ledger, [b"before"]))
    rolling = asyncio.create_task(ledger.roll_if_due())
    after = asyncio.create_task(append(ledger, [b"after"]))
    await asyncio.gather(before, rolling, after)
    assert await read_all(cursor) == [b"0", b"1", b"2", b"before", b"after"]
    await world.settle()
    assert sum(entries(ledger)) == 5
    assert await world.nothing_left_over()


async def test_what_is_on_its_way_is_no_silence(world: World) -> None:
    ledger, _ = await filled(world, replace(ALL_KEPT, inactive_rollover_ms=1_000))
    world.ledgers.hold = True
    sending = asyncio.create_task(append(ledger, [b"3"]))
    await asyncio.sleep(0)
    world.clock.ms += 2_000
    assert not ledger.due_for_rollover
    world.ledgers.release()
    await sending
    assert ledger.due_for_rollover


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_lost_answer_to_the_list_puts_the_roll_off(world: World, fate: RequestFate) -> None:
    ledger, cursor = await filled(world)
    cursor.acknowledge_cumulative(ledger.last_confirmed)
    world.clock.ms += HALF_DAY_MS
    world.next_fates(ledger_path(NAME), fate)
    await look(ledger)
    assert (ledger.state, entries(ledger)) == (ManagedLedgerState.CLOSED_LEDGER, [3])
    taken = await world.copy().owner()
    assert taken.ledgers.number_of_entries() == 3
    assert taken.cursors["sub"].backlog_entries in (0, 3)
    assert ledger.due_for_rollover
    await look(ledger)
    await asyncio.sleep(10.0)
    assert (ledger.state, entries(ledger)) == (ManagedLedgerState.LEDGER_OPENED, [0])
    assert await world.nothing_left_over()


async def test_without_bookies_the_roll_is_put_off_and_nothing_fails(world: World) -> None:
    ledger, cursor = await filled(world)
    cursor.acknowledge_cumulative(ledger.last_confirmed)
    world.clock.ms += HALF_DAY_MS
    world.ledgers.not_enough_bookies()
    for _ in range(3):
        assert ledger.due_for_rollover
        await look(ledger)
        assert ledger.state is ManagedLedgerState.CLOSED_LEDGER
    assert ledger.internal_stats().last_ledger_creation_error is not None
    world.ledgers.refuse_creation = None
    await look(ledger)
    await world.settle()
    assert entries(ledger) == [0]
    assert ledger.internal_stats().last_ledger_creation_error is None
    await ledger.check_writable()


@pytest.mark.parametrize("turns", range(12))
async def test_an_owner_that_is_lost_in_the_middle_takes_nothing_along(world: World, turns: int) -> None:
    ledger, _ = await filled(world)
    world.clock.ms += HALF_DAY_MS
    rolling = asyncio.create_task(ledger.roll_if_due())
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await ledger.abandon()
        await rolling
    again = await world.owner(NOTHING_KEPT)
    assert await read_all(again.cursors["sub"]) == [b"0", b"1", b"2"]
    await world.settle()
    assert set(world.ledgers.stored) == await world.named()


@pytest.mark.parametrize("turns", range(12))
async def test_an_owner_that_closes_in_the_middle_ends_in_order(world: World, turns: int) -> None:
    ledger, _ = await filled(world)
    world.clock.ms += HALF_DAY_MS
    rolling = asyncio.create_task(ledger.roll_if_due())
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await asyncio.gather(ledger.close(), rolling)
    assert ledger.state is ManagedLedgerState.CLOSED
    await look(ledger)
    again = await world.owner(NOTHING_KEPT)
    assert await read_all(again.cursors["sub"]) == [b"0", b"1", b"2"]
    assert await world.nothing_left_over()


async def test_who_has_lost_the_topic_learns_it_from_the_roll(world: World) -> None:
    ledger, _ = await filled(world)
    await world.owner(NOTHING_KEPT)
    world.clock.ms += HALF_DAY_MS
    await look(ledger)
    assert ledger.state is ManagedLedgerState.FENCED
    assert not ledger.due_for_rollover
    with pytest.raises(ManagedLedgerFenced):
        await append(ledger, [b"lost"])
    assert await world.nothing_left_over()


async def test_what_is_terminated_or_closed_is_left_alone(world: World) -> None:
    ledger, cursor = await filled(world)
    await ledger.terminate()
    cursor.acknowledge_cumulative(ledger.last_confirmed)
    world.clock.ms += HALF_DAY_MS
    await look(ledger)
    assert (ledger.state, entries(ledger)) == (ManagedLedgerState.TERMINATED, [3])
    await ledger.close()
    await look(ledger)
    assert ledger.state is ManagedLedgerState.CLOSED


async def test_a_ledger_of_a_cursor_outlasts_the_roll(world: World) -> None:
    ledger, cursor = await filled(world, ALL_KEPT)
    outcome: asyncio.Future[MagnetarError | None] = asyncio.get_running_loop().create_future()
    cursor.acknowledge([(ledger.ledgers.ids[0], 1)])
    cursor.persist(outcome.set_result)
    assert await outcome is None
    assert cursor.stats().cursor_ledger in world.ledgers.stored
    world.clock.ms += HALF_DAY_MS
    await look(ledger)
    assert cursor.stats().cursor_ledger in world.ledgers.stored
    again = (await world.owner(ALL_KEPT)).cursors["sub"]
    assert await read_all(again) == [b"0", b"2"]


DAY_MS = 24 * HOUR_MS
WEEK = replace(NOTHING_KEPT, retention_time_ms=7 * DAY_MS, retention_size_bytes=-1)


def due(ledger: ManagedLedger) -> bool:
    """Whether the next look does something."""
    return ledger.due_for_trimming


async def consumed_later(world: World) -> tuple[ManagedLedger, int]:
    """A topic of one old ledger, and its id; all of it is acknowledged, for sure."""
    ledger, cursor = await filled(world, WEEK)
    (first,) = ledger.ledgers.ids
    await cursor.clear_backlog()
    return ledger, first


async def goes_on_day_ten(world: World, ledger: ManagedLedger) -> None:
    """Not on the seventh."""
    world.clock.ms += 10 * DAY_MS - HOUR_MS
    await look(ledger)
    assert entries(ledger) == [3, 0]
    world.clock.ms += 2 * HOUR_MS
    await look(ledger)
    await world.settle()
    assert entries(ledger) == [0]


@pytest.mark.parametrize("by", ["nobody", "unload", "crash"])
async def test_retention_counts_from_when_messages_were_due(world: World, by: str) -> None:
    """What was noted while the ledger was in use is stored with the roll."""
    ledger, first = await consumed_later(world)
    ledger.ledgers.note_due(first, world.clock.ms + 3 * DAY_MS)
    await ledger.roll()
    if by == "unload":
        await ledger.close()
    if by != "nobody":
        ledger = await world.owner(WEEK)
    await goes_on_day_ten(world, ledger)


@pytest.mark.parametrize("by", ["unload", "crash"])
async def test_a_due_time_that_is_noted_later_is_stored_by_the_next_look_or_the_close(world: World, by: str) -> None:
    ledger, first = await consumed_later(world)
    await ledger.roll()
    assert not due(ledger)
    ledger.ledgers.note_due(first, world.clock.ms + 3 * DAY_MS)
    if by == "unload":
        await ledger.close()
    else:
        assert due(ledger)
        await look(ledger)
        assert not due(ledger), "stored once"
    await goes_on_day_ten(world, await world.owner(WEEK))


async def test_a_due_time_of_the_ledger_in_use_is_stored_by_the_close(world: World) -> None:
    ledger, first = await consumed_later(world)
    ledger.ledgers.note_due(first, world.clock.ms + 3 * DAY_MS)
    assert not due(ledger)
    await ledger.close()
    await goes_on_day_ten(world, await world.owner(WEEK))


async def test_a_close_writes_no_list_without_a_due_time_to_store(world: World) -> None:
    """An unload of 10 000 topics that keep messages for a week writes nothing for most of them."""
    ledger, _ = await consumed_later(world)
    await ledger.roll()
    before = await world.store.get(ledger_path(NAME))
    await ledger.close()
    assert await world.store.get(ledger_path(NAME)) == before


@pytest.mark.parametrize("fate", UNSURE)
async def test_a_due_time_whose_storing_had_no_answer_is_stored_again(world: World, fate: RequestFate) -> None:
    ledger, first = await consumed_later(world)
    await ledger.roll()
    ledger.ledgers.note_due(first, world.clock.ms + 3 * DAY_MS)
    world.next_fates(ledger_path(NAME), fate)
    await look(ledger)
    assert due(ledger)
    await look(ledger)
    assert not due(ledger)
    await asyncio.sleep(10.0)
    await goes_on_day_ten(world, await world.owner(WEEK))


@pytest.mark.parametrize("by", ["roll", "look"])
async def test_a_due_time_that_is_noted_while_the_list_is_written_is_stored_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    ledger, first = await consumed_later(world)
    if by == "look":
        await ledger.roll()
        ledger.ledgers.note_due(first, world.clock.ms + 1)
    put = MemoryMetadataStore.put
    due_ms = world.clock.ms + 3 * DAY_MS

    async def note_and_put(store: MemoryMetadataStore, path: str, *rest: Any, **more: Any) -> Any:
        outcome = await put(store, path, *rest, **more)
        if path == ledger_path(NAME):
            ledger.ledgers.note_due(first, due_ms)
        return outcome

    with monkeypatch.context() as patched:
        patched.setattr(MemoryMetadataStore, "put", note_and_put)
        await (ledger.roll() if by == "roll" else look(ledger))
    await world.settle()
    assert not due(ledger)
    await goes_on_day_ten(world, await world.owner(WEEK))


async def test_without_retention_by_time_no_due_time_is_stored(world: World) -> None:
    ledger, cursor = await filled(world, ALL_KEPT)
    (first,) = ledger.ledgers.ids
    await ledger.roll()
    ledger.ledgers.note_due(first, world.clock.ms + DAY_MS)
    assert not due(ledger)
    assert cursor.backlog_entries == 3
