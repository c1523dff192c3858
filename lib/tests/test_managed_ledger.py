"""Appending, reading, rolling over, trimming, reopening and owning a managed ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.ledger.api import EntryNotFound, NotEnoughBookies
from magnetar.managed.errors import (
    CursorNotFound,
    ManagedLedgerClosed,
    ManagedLedgerFenced,
    ManagedLedgerNotFound,
    ManagedLedgerTerminated,
    ManagedLedgerWriteFailed,
)
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.states import ManagedLedgerState
from magnetar.managed.testing import ManagedWorld, append, read_all
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

NAME = "public/default/persistent/topic"


@pytest.fixture
async def world() -> AsyncIterator[ManagedWorld]:
    world = ManagedWorld()
    yield world
    await world.close()


class Outcomes:
    """The callback of appends: remembers what it was told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[MagnetarError | None, int, int, object]] = []

    def __call__(self, error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
        self.told.append((error, ledger_id, first_entry_id, context))

    def positions(self) -> list[Position]:
        assert all(error is None for error, *_ in self.told)
        return [(ledger_id, entry_id) for _, ledger_id, entry_id, _ in self.told]


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def small_ledgers(entries: int = 10, **more: int) -> ManagedLedgerSettings:
    """Ledgers roll at once, and nothing is trimmed, unless `more` says otherwise."""
    policy = ManagedLedgerSettings(
        max_entries_per_ledger=entries, minimum_rollover_ms=0, retention_time_ms=-1, retention_size_bytes=-1
    )
    return replace(policy, **more)  # type: ignore[arg-type]


async def test_entries_are_read_in_the_order_of_appends(world: ManagedWorld) -> None:
    ledger = await world.factory().open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    outcomes = Outcomes()
    groups = 0

    def on_appended() -> None:
        nonlocal groups
        groups += 1

    ledger.appends.on_appended.append(on_appended)
    assert cursor.read_cached(10, 100) == []
    ledger.appends.append(numbered(0, 2), outcomes, "a")
    ledger.appends.append(numbered(3, 3), outcomes, "b")
    assert outcomes.told == []
    await world.settle()
    first = ledger.ledgers.first_position()
    assert outcomes.told == [(None, first[0], 0, "a"), (None, first[0], 3, "b")]
    assert groups == 1
    assert ledger.last_confirmed == (first[0], 3)
    entries = cursor.read_cached(3, 100)
    assert entries is not None
    assert [entry.data for entry in entries] == numbered(0, 2)
    assert [entry.position for entry in entries] == [(first[0], 0), (first[0], 1), (first[0], 2)]
    assert cursor.read_position == (first[0], 3)
    assert await read_all(cursor) == numbered(3, 3)
    assert cursor.read_cached(1, 100) == []
    assert world.ledgers.reads == 0


async def test_a_read_is_bounded_in_bytes_but_never_empty(world: ManagedWorld) -> None:
    ledger = await world.factory().open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    await append(ledger, [b"x" * 100] * 5)
    sizes = [len(cursor.read_cached(10, bound) or []) for bound in (250, 1, 1000)]
    assert sizes == [2, 1, 2]


@pytest.mark.parametrize("cache_bytes_max", [1 << 20, 0])
async def test_rollover_by_entries(world: ManagedWorld, cache_bytes_max: int) -> None:
    ledger = await world.factory(small_ledgers(10), cache_bytes_max).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    outcomes = Outcomes()
    for number in range(35):
        ledger.appends.append(numbered(number, number), outcomes, number)
    await world.settle()
    assert [each[3] for each in outcomes.told] == list(range(35))
    assert len(ledger.ledgers) == 4
    assert [record.entries for record in ledger.ledgers.records()] == [10, 10, 10, 5]
    assert ledger.ledgers.number_of_entries() == 35
    assert cursor.backlog_entries == 35
    assert await read_all(cursor) == numbered(0, 34)
    assert (world.ledgers.reads > 0) == (cache_bytes_max == 0)


@pytest.mark.parametrize("bound", ["max_entries_per_ledger", "max_size_per_ledger_bytes"])
async def test_with_a_bound_of_0_each_entry_fills_a_ledger_that_is_old_enough(world: ManagedWorld, bound: str) -> None:
    """As in Apache's `ManagedLedgerImpl.currentLedgerIsFull`."""
    ledger = await world.factory(small_ledgers(1000, minimum_rollover_ms=1000, **{bound: 0})).open(NAME)
    for _ in range(3):
        await append(ledger, [b"x"])
    assert len(ledger.ledgers) == 1
    for _ in range(2):
        world.clock.ms += 1000
        await append(ledger, [b"x"])
        await world.settle()
    assert [record.entries for record in ledger.ledgers.records()] == [4, 1, 0]


async def test_rollover_by_size_and_time(world: ManagedWorld) -> None:
    settings = small_ledgers(1000, max_size_per_ledger_bytes=100, maximum_rollover_ms=1000)
    ledger = await world.factory(settings).open(NAME)
    first = await append(ledger, [b"x" * 60])
    assert (await append(ledger, [b"x" * 60]))[0] == first[0]
    second = await append(ledger, [b"x"])
    assert second[0] > first[0]
    world.clock.ms += 1100
    assert (await append(ledger, [b"x"]))[0] == second[0]
    await world.settle()
    assert (await append(ledger, [b"x"]))[0] > second[0]


async def test_no_rollover_before_the_minimum_age(world: ManagedWorld) -> None:
    settings = small_ledgers(2, minimum_rollover_ms=1000)
    ledger = await world.factory(settings).open(NAME)
    for _ in range(5):
        await append(ledger, [b"x"])
    await world.settle()
    assert len(ledger.ledgers) == 1
    world.clock.ms += 1000
    await append(ledger, [b"x"])
    await world.settle()
    assert [record.entries for record in ledger.ledgers.records()] == [6, 0]


async def test_trim_follows_the_slowest_cursor(world: ManagedWorld) -> None:
    settings = ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0)
    ledger = await world.factory(settings).open(NAME)
    fast = await ledger.open_cursor("fast", EARLIEST)
    slow = await ledger.open_cursor("slow", EARLIEST)
    for number in range(35):
        await append(ledger, numbered(number, number))
    ids = list(ledger.ledgers.ids)
    fast.acknowledge_cumulative(ledger.last_confirmed)
    await world.settle()
    assert ledger.ledgers.ids == ids
    slow.acknowledge_cumulative((ids[1], 9))
    await world.settle()
    assert ledger.ledgers.ids == ids[2:]
    assert slow.mark_delete == (ids[2], -1)
    assert slow.backlog_entries == 15
    assert set(ids[:2]).isdisjoint(world.ledgers.stored)
    await ledger.delete_cursor("slow")
    await world.settle()
    assert ledger.ledgers.ids == ids[3:]
    with pytest.raises(CursorNotFound):
        await ledger.delete_cursor("slow")


@pytest.mark.parametrize("has_ledger", [False, True])
async def test_what_a_snapshot_tells_of_is_kept_until_the_snapshot_is_durable(
    world: ManagedWorld, has_ledger: bool
) -> None:
    """The snapshot of deduplication, and the ledger of a compaction: if the owner is killed before, the next one reads
    the entries again, or they are lost."""
    settings = ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0)
    ledger = await world.factory(settings).open(NAME)
    cursor = await ledger.open_cursor("pulsar.dedup", EARLIEST)
    for number in range(35):
        await append(ledger, numbered(number, number))
    await world.settle()
    ids = list(ledger.ledgers.ids)
    if has_ledger:
        await cursor.set_properties({"producer": -1})
        world.ledgers.fail_appends_after = 0
    world.ledgers.refuse_creation = NotEnoughBookies("no bookies")
    cursor.acknowledge_cumulative(ledger.last_confirmed)
    with pytest.raises(NotEnoughBookies):
        await cursor.set_properties({"producer": 34})
    await ledger.trim()
    assert ledger.ledgers.ids == ids
    world.ledgers.refuse_creation = None
    await cursor.set_properties({"producer": 34})
    await world.settle()
    assert ledger.ledgers.ids == ids[3:]
    assert cursor.needless_up_to == cursor.mark_delete
    reopened = await world.factory(settings).open(NAME)
    found = await reopened.open_cursor("pulsar.dedup", EARLIEST)
    assert (found.properties, await read_all(found)) == ({"producer": 34}, [])


@pytest.mark.parametrize("single", [False, True])
async def test_who_keeps_ledgers_until_its_mark_is_durable_has_them_trimmed_then(
    world: ManagedWorld, single: bool
) -> None:
    """As a replicated subscription does, whose properties say so."""
    settings = ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0)
    ledger = await world.factory(settings).open(NAME)
    cursor = await ledger.open_cursor("replicated", EARLIEST, {"replicated": 1})
    for number in range(35):
        await append(ledger, numbered(number, number))
    await world.settle()
    ids = list(ledger.ledgers.ids)
    if single:
        cursor.acknowledge([(ledger_id, entry_id) for ledger_id in ids[:3] for entry_id in range(10)])
    else:
        cursor.acknowledge_cumulative(ledger.last_confirmed)
    await world.settle()
    assert ledger.ledgers.ids == ids[3:]
    await ledger.close()


async def test_a_ledger_that_comes_to_be_an_older_one_is_trimmed_once_the_mark_is_durable(world: ManagedWorld) -> None:
    settings = ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0)
    ledger = await world.factory(settings).open(NAME)
    cursor = await ledger.open_cursor("replicated", EARLIEST, {"replicated": 1})
    await append(ledger, numbered(0, 4))
    cursor.acknowledge_cumulative(ledger.last_confirmed)
    (before,) = ledger.ledgers.ids
    await ledger.roll()
    await world.settle()
    assert before not in ledger.ledgers.ids
    await ledger.close()


async def test_a_seek_back_that_is_not_stored_yet_needs_what_is_read_again(world: ManagedWorld) -> None:
    settings = ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0, cursor_ledger_entries_max=1)
    ledger = await world.factory(settings).open(NAME)
    cursor, slow = [await ledger.open_cursor(name, EARLIEST) for name in ("replicated", "slow")]
    for number in range(35):
        await append(ledger, numbered(number, number))
    cursor.acknowledge_cumulative(ledger.last_confirmed)
    await cursor.set_properties({"replicated": 1})
    world.ledgers.refuse_creation = NotEnoughBookies("no bookies")
    ids = list(ledger.ledgers.ids)
    with pytest.raises(NotEnoughBookies):
        await cursor.reset(EARLIEST)
    slow.acknowledge_cumulative(ledger.last_confirmed)
    await world.settle()
    assert ledger.ledgers.ids == ids
    assert len(await read_all(cursor)) == 35


async def test_without_cursors_everything_but_the_current_ledger_goes(world: ManagedWorld) -> None:
    ledger = await world.factory(ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0)).open(NAME)
    reader = ledger.new_non_durable_cursor("reader", EARLIEST)
    for number in range(35):
        await append(ledger, numbered(number, number))
    await world.settle()
    assert len(ledger.ledgers) == 1
    assert await read_all(reader) == numbered(30, 34)


async def test_retention_by_time_and_size_keeps_ledgers(world: ManagedWorld) -> None:
    settings = ManagedLedgerSettings(
        max_entries_per_ledger=10, minimum_rollover_ms=0, retention_time_ms=60_000, retention_size_bytes=-1
    )
    ledger = await world.factory(settings).open(NAME)
    for _ in range(35):
        await append(ledger, [b"x" * 10])
    await world.settle()
    assert len(ledger.ledgers) == 4
    world.clock.ms += 60_001
    ledger.settings.retention_time_ms = -1
    ledger.settings.retention_size_bytes = 200
    await ledger.trim()
    assert ledger.ledgers.total_size_bytes() == 150
    ledger.settings.retention_time_ms = 60_000
    await ledger.trim()
    assert len(ledger.ledgers) == 1


@pytest.mark.parametrize("clean", [True, False])
async def test_reopen(world: ManagedWorld, clean: bool) -> None:
    first = world.factory(small_ledgers(10))
    ledger = await first.open(NAME)
    cursor = await ledger.open_cursor("sub ~1", EARLIEST, {"n": 7}, {"k": "v"})
    for number in range(25):
        await append(ledger, numbered(number, number))
    cursor.acknowledge_cumulative(ledger.ledgers.entry_at(11))
    await ledger.set_property("index", "24")
    done: list[MagnetarError | None] = []
    cursor.persist(done.append)
    await world.settle()
    assert done == [None]
    if clean:
        await first.close()
    again = await world.factory(small_ledgers(10)).open(NAME, create=False)
    assert again.properties == {"index": "24"}
    assert again.ledgers.number_of_entries() == 25
    cursor = again.cursors["sub ~1"]
    assert (cursor.properties, cursor.cursor_properties) == ({"n": 7}, {"k": "v"})
    assert cursor.backlog_entries == 13
    assert await append(again, [b"25"]) > again.ledgers.entry_at(24)
    assert await read_all(cursor) == numbered(12, 25)
    if not clean:
        with pytest.raises(ManagedLedgerFenced):
            await append(ledger, [b"lost"])
        with pytest.raises(ManagedLedgerFenced):
            await ledger.set_property("a", "b")


async def test_an_empty_ledger_is_not_kept(world: ManagedWorld) -> None:
    for _ in range(3):
        factory = world.factory()
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", LATEST)
        assert len(ledger.ledgers) == 1
        await factory.close()
    assert len(world.ledgers.stored) == 1
    ledger = await world.factory().open(NAME)
    cursor = ledger.cursors["sub"]
    await append(ledger, [b"x"])
    assert await read_all(cursor) == [b"x"]


@pytest.mark.parametrize("confirmed_first", [0, 1, 4, 7])
async def test_a_failed_ledger_is_replaced_and_batches_are_sent_again_in_order(
    world: ManagedWorld, confirmed_first: int
) -> None:
    ledger = await world.factory(small_ledgers(1000)).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    outcomes = Outcomes()
    world.ledgers.fail_appends_after = confirmed_first
    for number in range(0, 9, 3):
        ledger.appends.append(numbered(number, number + 2), outcomes, number)
    await asyncio.sleep(0)
    ledger.appends.append(numbered(9, 11), outcomes, 9)
    async with asyncio.timeout(30):
        while len(outcomes.told) < 4:
            await asyncio.sleep(0.01)
    assert [each[3] for each in outcomes.told] == [0, 3, 6, 9]
    positions = outcomes.positions()
    assert positions == sorted(positions)
    assert await read_all(cursor) == numbered(0, 11)
    again = await world.factory(small_ledgers(1000)).open(NAME)
    assert await read_all(again.cursors["sub"]) == numbered(0, 11)


async def test_ledgers_that_fail_now_and_then_are_replaced_at_once(world: ManagedWorld) -> None:
    """Only while nothing is confirmed in between are the pauses before the next one longer and longer."""
    ledger = await world.factory(small_ledgers(1000)).open(NAME)
    loop = asyncio.get_running_loop()
    for _ in range(10):
        began = loop.time()
        world.ledgers.fail_appends_after = 0
        await append(ledger, [b"x"])
        assert loop.time() - began < 0.2


async def test_write_failed_until_the_producers_are_gone(world: ManagedWorld) -> None:
    ledger = await world.factory(small_ledgers(1)).open(NAME)
    world.ledgers.not_enough_bookies()
    await append(ledger, [b"0"])
    await world.settle()
    states = [ledger.state]
    for _ in range(2):
        with pytest.raises(ManagedLedgerWriteFailed):
            await append(ledger, [b"x"])
        states.append(ledger.state)
    assert states == [
        ManagedLedgerState.CLOSED_LEDGER,
        ManagedLedgerState.WRITE_FAILED,
        ManagedLedgerState.WRITE_FAILED,
    ]
    world.ledgers.refuse_creation = None
    with pytest.raises(Unavailable):
        await append(ledger, [b"x"])
    ledger.appends.ready_to_create_ledger()
    await append(ledger, [b"1"])
    assert ledger.ledgers.number_of_entries() == 2


async def test_terminate(world: ManagedWorld) -> None:
    factory = world.factory()
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    outcomes = Outcomes()
    ledger.appends.append(numbered(0, 1), outcomes, None)
    last = await ledger.terminate()
    assert outcomes.positions() == [(last[0], 0)]
    assert last[1] == 1
    assert ledger.terminated
    assert await ledger.terminate() == last
    with pytest.raises(ManagedLedgerTerminated):
        await append(ledger, [b"x"])
    assert await read_all(cursor) == numbered(0, 1)
    await factory.close()
    again = await world.factory().open(NAME)
    assert again.terminated
    assert again.last_confirmed == last
    assert await read_all(again.cursors["sub"]) == numbered(0, 1)


async def test_close_confirms_what_was_sent_and_refuses_more(world: ManagedWorld) -> None:
    factory = world.factory()
    ledger = await factory.open(NAME)
    outcomes = Outcomes()
    ledger.appends.append(numbered(0, 1), outcomes, None)
    await ledger.close()
    assert len(outcomes.positions()) == 1
    with pytest.raises(ManagedLedgerClosed):
        await append(ledger, [b"x"])
    assert (await factory.open(NAME)) is not ledger


async def test_delete_leaves_nothing(world: ManagedWorld) -> None:
    factory = world.factory(small_ledgers(2))
    with pytest.raises(ManagedLedgerNotFound):
        await factory.open(NAME, create=False)
    for owner in ("at work", "gone", "killed"):
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub/1", EARLIEST)
        for _ in range(5):
            await append(ledger, [b"x"])
        cursor.acknowledge([ledger.ledgers.entry_at(1)])
        cursor.persist(lambda error: None)
        await world.settle()
        assert await factory.exists(NAME)
        if owner == "gone":
            await ledger.close()
        if owner == "killed":
            factory = world.factory()
        await factory.delete(NAME)
        assert not await factory.exists(NAME)
        assert world.ledgers.stored == {}


async def test_who_was_replaced_deletes_nothing(world: ManagedWorld) -> None:
    former = await world.factory().open(NAME)
    await former.open_cursor("sub", EARLIEST)
    await append(former, [b"x"])
    ledger = await world.factory().open(NAME)
    for deletion in (former.delete_cursor("sub"), former.delete()):
        with pytest.raises(ManagedLedgerFenced):
            await deletion
    assert former.state is ManagedLedgerState.FENCED
    again = await world.factory().open(NAME)
    assert (again.ledgers.number_of_entries(), list(again.cursors)) == (1, ["sub"])
    assert ledger is not again


async def test_a_broker_that_was_replaced_opens_the_topic_anew(world: ManagedWorld) -> None:
    """What was fenced takes nothing any more; a bundle may come back before it is closed."""
    factory = world.factory()
    former = await factory.open(NAME)
    await append(former, [b"1"])
    await append(await world.factory().open(NAME), [b"2"])
    with pytest.raises(ManagedLedgerFenced):
        await append(former, [b"lost"])
    again = await factory.open(NAME)
    assert again is not former
    assert await append(again, [b"3"]) > former.last_confirmed


async def test_who_was_replaced_deletes_no_cursor_that_was_made_since(world: ManagedWorld) -> None:
    former = await world.factory().open(NAME)
    await append(former, [b"x"])
    await (await world.factory().open(NAME)).open_cursor("theirs", EARLIEST)
    with pytest.raises(ManagedLedgerFenced):
        await former.delete()
    assert list((await world.factory().open(NAME)).cursors) == ["theirs"]


async def test_find_first_and_read_entry(world: ManagedWorld) -> None:
    ledger = await world.factory(small_ledgers(10), cache_bytes_max=0).open(NAME)
    assert await ledger.find_first(lambda entry: True) is None
    for number in range(35):
        await append(ledger, numbered(number, number))
    for wanted in (0, 9, 10, 11, 34):
        found = await ledger.find_first(lambda entry, wanted=wanted: int(entry.data) >= wanted)  # type: ignore[misc]
        assert found == ledger.ledgers.entry_at(wanted)
        assert (await ledger.read_entry(found)).data == b"%d" % wanted
    assert await ledger.find_first(lambda entry: int(entry.data) >= 35) is None
    with pytest.raises(EntryNotFound):
        await ledger.read_entry((ledger.last_confirmed[0], 99))


async def test_internal_stats(world: ManagedWorld) -> None:
    ledger = await world.factory(small_ledgers(10)).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    for number in range(15):
        await append(ledger, numbered(number, number))
    cursor.acknowledge([ledger.ledgers.entry_at(2)])
    stats = ledger.internal_stats()
    assert (stats.state, stats.number_of_entries, stats.entries_added) == ("LedgerOpened", 15, 15)
    assert [each.entries for each in stats.ledgers] == [10, 5]
    first = ledger.ledgers.ids[0]
    assert stats.cursors["sub"].individually_acknowledged == f"[({first}:1..{first}:2]]"
    assert stats.cursors["sub"].backlog_entries == 14


async def test_trimming_while_a_ledger_is_made_keeps_the_list_right(world: ManagedWorld) -> None:
    ledger = await world.factory(small_ledgers(10, retention_size_bytes=0)).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    for number in range(0, 200, 10):
        await append(ledger, numbered(number, number + 9))
        cursor.acknowledge_cumulative(ledger.last_confirmed)
    await world.settle()
    assert set(world.ledgers.stored) == set(ledger.ledgers.ids)
    await append(ledger, [b"x"])
    again = await world.factory(small_ledgers(10)).open(NAME)
    assert again.ledgers.number_of_entries() == ledger.ledgers.number_of_entries()


async def test_truncate_leaves_nothing_to_anybody(world: ManagedWorld) -> None:
    ledger = await world.factory(small_ledgers(10)).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    for number in range(15):
        await append(ledger, numbered(number, number))
    await ledger.truncate()
    assert (ledger.ledgers.number_of_entries(), cursor.backlog_entries) == (0, 0)
    await append(ledger, [b"x"])
    assert cursor.backlog_entries == 1


async def test_a_made_ledger_is_opened_like_any_other(world: ManagedWorld) -> None:
    factory = world.factory(small_ledgers(10))
    assert await factory.create(NAME)
    assert not await factory.create(NAME)
    ledger = await factory.open(NAME, create=False)
    await append(ledger, [b"x"])
    assert ledger.ledgers.number_of_entries() == 1


async def test_who_is_fenced_in_the_pause_before_the_next_ledger_makes_none(world: ManagedWorld) -> None:
    ledger = await world.factory().open("tenant/ns/persistent/pausing")
    await append(ledger, [b"a"])
    appends, rollover = ledger.appends, ledger._rollover
    appends.failed_in_a_row = 3
    appends.start_rollover()
    task = rollover._task
    assert task is not None
    while appends.writer is not None:
        await asyncio.sleep(0)
    appends.fence(ManagedLedgerFenced("another owner"))
    await task
    assert appends.state is ManagedLedgerState.FENCED
