"""What cursors promise: reading, acknowledging, seeking, and what of it survives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.ledger.api import LedgerNotFound
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.managed.info_codec import decode_cursor_info
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.paths import cursor_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.states import ManagedLedgerState
from magnetar.managed.testing import ManagedWorld, append, read_all

NAME = "public/default/persistent/topic"


@pytest.fixture
async def world() -> AsyncIterator[ManagedWorld]:
    world = ManagedWorld()
    yield world
    await world.close()


def keeping(**more: object) -> ManagedLedgerSettings:
    policy = ManagedLedgerSettings(
        max_entries_per_ledger=10, minimum_rollover_ms=0, retention_time_ms=-1, retention_size_bytes=-1
    )
    for name, value in more.items():
        setattr(policy, name, value)
    return policy


async def filled(ledger: ManagedLedger, count: int = 25) -> list[Position]:
    """Entries 0, 1, ... and their positions."""
    return [await append(ledger, [b"%d" % number]) for number in range(count)]


async def durable(cursor: Cursor) -> None:
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None) -> None:
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)

    cursor.persist(done)
    await outcome


def numbers(payloads: list[bytes]) -> list[int]:
    return [int(payload) for payload in payloads]


async def test_reading_leaves_out_what_is_acknowledged_and_rewind_reads_the_rest_again(world: ManagedWorld) -> None:
    ledger = await world.factory(keeping()).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger)
    cursor.acknowledge([at[3], at[4], at[12]])
    assert numbers(await read_all(cursor)) == [each for each in range(25) if each not in (3, 4, 12)]
    cursor.acknowledge([at[0], at[1], at[2], at[24]])
    assert cursor.mark_delete == at[4]
    assert cursor.individually_acknowledged() == [((at[12][0], 1), at[12]), ((at[24][0], 3), at[24])]
    assert cursor.backlog_entries == 18
    cursor.rewind()
    assert numbers(await read_all(cursor)) == [each for each in range(5, 24) if each != 12]
    cursor.skip_to(at[20])
    assert numbers(await read_all(cursor)) == [20, 21, 22, 23]
    cursor.acknowledge_cumulative(at[24])
    assert (cursor.mark_delete, cursor.backlog_entries, cursor.read_cached(1, 100)) == (at[24], 0, [])


async def test_cumulative_acknowledgement_moves_reading_forward(world: ManagedWorld) -> None:
    ledger = await world.factory(keeping()).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger)
    cursor.acknowledge_cumulative(at[14])
    assert cursor.read_position == at[15]
    cursor.acknowledge_cumulative((at[0][0], 10_000))
    assert cursor.mark_delete == at[14]


@pytest.mark.parametrize("cache_bytes_max", [1 << 20, 0])
async def test_replay(world: ManagedWorld, cache_bytes_max: int) -> None:
    ledger = await world.factory(keeping(), cache_bytes_max).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger)
    cursor.acknowledge([at[8]])
    before = cursor.read_position
    wanted = [at[9], at[7], at[8], at[15], at[14], (at[9][0], 99), (999, 0)]
    found = await cursor.read_positions(wanted)
    assert sorted(entry.position for entry in found) == [at[7], at[9], at[14], at[15]]
    assert cursor.read_position == before


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("as_long_array", [True, False])
async def test_acknowledgements_survive(world: ManagedWorld, clean: bool, as_long_array: bool) -> None:
    factory = world.factory(keeping(persist_acks_as_long_array=as_long_array))
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger)
    cursor.acknowledge([at[0], at[1], at[3], at[4], at[19], at[20]])
    cursor.acknowledge_batch_indexes(at[7], [0b101], 3)
    cursor.properties["producer"] = 5
    await durable(cursor)
    if clean:
        await factory.close()
    again = (await world.factory(keeping()).open(NAME)).cursors["sub"]
    assert again.mark_delete == at[1]
    assert again.individually_acknowledged() == cursor.individually_acknowledged()
    assert again.remaining_ack_set(at[7]) == [0b101]
    assert again.properties == {"producer": 5}
    node = await world.store.get(cursor_path(NAME, "sub"))
    assert node is not None
    assert (decode_cursor_info(node.value).cursorsLedgerId == -1) == clean
    again.acknowledge([at[2]])
    await durable(again)
    await world.settle()
    labels = [stored.options.custom_metadata.get("pulsar/cursor") for stored in world.ledgers.stored.values()]
    assert labels.count(b"sub") == 1


async def test_a_closing_cursor_with_many_ranges_keeps_its_ledger(world: ManagedWorld) -> None:
    policy = keeping(unacked_ranges_in_metadata_max=2)
    factory = world.factory(policy)
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger)
    cursor.acknowledge([at[1], at[3], at[5]])
    await factory.close()
    node = await world.store.get(cursor_path(NAME, "sub"))
    assert node is not None
    assert decode_cursor_info(node.value).cursorsLedgerId >= 0
    again = (await world.factory(policy).open(NAME)).cursors["sub"]
    assert len(again.individually_acknowledged()) == 3


async def test_persist_groups_and_the_timer_writes_at_its_rate(world: ManagedWorld) -> None:
    ledger = await world.factory(keeping(max_entries_per_ledger=1000)).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger, 100)
    told: list[MagnetarError | None] = []
    cursor.persist(told.append)
    assert told == []
    await world.settle()
    assert told == [None]
    for position in at[:50]:
        cursor.acknowledge([position])
        cursor.persist(told.append)
    await world.settle()
    assert told == [None] * 51
    storage = cursor._storage
    assert storage is not None
    stored = world.ledgers.stored[storage.ledger_id].entries
    assert len(stored) == 2
    for step in range(40):
        cursor.acknowledge([at[50 + step]])
        world.clock.ms += 250
        ledger._shared._flush()
        await world.settle()
    assert 8 <= len(stored) <= 14
    assert not storage.dirty or len(ledger._shared._changed) == 1


async def test_without_a_rate_each_look_of_the_timer_writes(world: ManagedWorld) -> None:
    """As in Apache a limit of 0 is none."""
    ledger = await world.factory(keeping(max_entries_per_ledger=1000, mark_delete_rate=0.0)).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger, 10)
    cursor.persist(lambda _: None)
    await world.settle()
    storage = cursor._storage
    assert storage is not None
    for position in at:
        cursor.acknowledge([position])
        ledger._shared._flush()
        await world.settle()
    assert len(world.ledgers.stored[storage.ledger_id].entries) == 10
    assert not storage.dirty


async def test_a_receipt_comes_when_the_first_entry_of_a_cursors_ledger_is_durable_and_not_before(
    world: ManagedWorld,
) -> None:
    policy = keeping(max_entries_per_ledger=100)
    ledger = await world.factory(policy).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger, 5)
    world.ledgers.hold = True
    cursor.acknowledge([at[0]])
    told: list[MagnetarError | None] = []
    cursor.persist(told.append)
    await world.settle()
    assert told == []
    world.ledgers.release()
    await world.settle()
    assert told == [None]
    assert (await world.factory(policy).open(NAME)).cursors["sub"].mark_delete == at[0]


async def test_the_cursor_ledger_rolls_and_is_replaced_when_it_fails(world: ManagedWorld) -> None:
    policy = keeping(max_entries_per_ledger=1000, cursor_ledger_entries_max=3)
    ledger = await world.factory(policy).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger, 20)
    used = set()
    for position in at[:8]:
        cursor.acknowledge([position])
        await durable(cursor)
        used.add(cursor.stats().cursor_ledger)
    assert len(used) == 3
    world.ledgers.fail_appends_after = 0
    cursor.acknowledge([at[8], at[9]])
    await durable(cursor)
    await world.settle()
    assert len(world.ledgers.stored) == 2
    world.ledgers.not_enough_bookies()
    world.ledgers.fail_appends_after = 0
    cursor.acknowledge([at[10]])
    with pytest.raises(MagnetarError):
        await durable(cursor)
    world.ledgers.refuse_creation = None
    await durable(cursor)
    assert (await world.factory(policy).open(NAME)).cursors["sub"].mark_delete == at[10]


async def test_seek(world: ManagedWorld) -> None:
    ledger = await world.factory(keeping()).open(NAME)
    cursor = await ledger.open_cursor("sub", LATEST)
    at = await filled(ledger)
    cursor.acknowledge([at[5], at[20]])
    for target, rest in ((at[10], 15), (EARLIEST, 25), (LATEST, 0), ((at[9][0], 99), 15), (at[24], 1)):
        await cursor.reset(target)
        assert cursor.backlog_entries == rest
        assert numbers(await read_all(cursor)) == list(range(25 - rest, 25))
    await cursor.reset(at[3])
    again = (await world.factory(keeping()).open(NAME)).cursors["sub"]
    assert again.mark_delete == at[2]


async def test_a_seek_during_a_read_wins(world: ManagedWorld) -> None:
    ledger = await world.factory(keeping(max_entries_per_ledger=100), cache_bytes_max=0).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger)
    reading = asyncio.get_running_loop().create_task(cursor.read(5, 1 << 20))
    await asyncio.sleep(0)
    cursor.skip_to(at[20])
    assert [entry.position for entry in await reading] == at[20:25]


async def test_skip_and_clear(world: ManagedWorld) -> None:
    ledger = await world.factory(keeping()).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger)
    await cursor.skip_entries(12)
    assert cursor.mark_delete == at[11]
    cursor.acknowledge([at[13]])
    await cursor.skip_entries(2)
    assert cursor.mark_delete == at[14]
    assert cursor.read_position == at[15]
    await cursor.clear_backlog()
    assert cursor.backlog_entries == 0
    await cursor.skip_entries(5)
    assert cursor.mark_delete == at[24]


async def test_non_durable_cursors_hold_nothing_back_and_leave_no_trace(world: ManagedWorld) -> None:
    ledger = await world.factory(keeping()).open(NAME)
    at = await filled(ledger)
    reader = ledger.new_non_durable_cursor("reader", at[12])
    late = ledger.new_non_durable_cursor("late", LATEST)
    assert not reader.durable
    assert numbers(await read_all(reader)) == list(range(12, 25))
    assert await read_all(late) == []
    reader.acknowledge(at[12:14])
    await durable(reader)
    await reader.reset(EARLIEST)
    ledger.settings.retention_size_bytes = 0
    await ledger.trim()
    assert numbers(await read_all(reader)) == list(range(20, 25))
    await reader.close()
    assert await world.store.children(f"/managed-ledgers/{NAME}") == []


async def test_lost_data_stops_reading_unless_it_is_to_be_skipped(world: ManagedWorld) -> None:
    ledger = await world.factory(keeping(), cache_bytes_max=0).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger)
    assert numbers([entry.data for entry in await cursor.read(10, 1 << 20)]) == list(range(10))
    del world.ledgers.stored[at[10][0]]
    with pytest.raises(LedgerNotFound):
        await cursor.read(10, 1 << 20)
    assert cursor.read_position == (at[9][0], 10) or cursor.read_position == at[10]
    ledger.settings.skip_lost_data = True
    assert numbers(await read_all(cursor)) == list(range(20, 25))


async def test_a_second_owner_fences_the_cursor_too(world: ManagedWorld) -> None:
    ledger = await world.factory(keeping()).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger)
    other = (await world.factory(keeping()).open(NAME)).cursors["sub"]
    other.acknowledge([at[0]])
    await durable(other)
    cursor.acknowledge([at[0], at[1]])
    with pytest.raises(ManagedLedgerFenced):
        await durable(cursor)
    with pytest.raises(ManagedLedgerFenced):
        await append(ledger, [b"x"])
    assert (await world.factory(keeping()).open(NAME)).cursors["sub"].mark_delete == at[0]


async def test_an_owner_stops_whose_cursor_another_has_changed(world: ManagedWorld) -> None:
    """Whoever writes the cursor owns the topic, or is about to: the former owner gives no receipt any more."""
    ledger = await world.factory(keeping()).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger)
    node = await world.store.get(cursor_path(NAME, "sub"))
    assert node is not None
    await world.store.put(cursor_path(NAME, "sub"), node.value, node.stat.version)
    cursor.acknowledge([at[0]])
    with pytest.raises(ManagedLedgerFenced):
        await durable(cursor)
    assert ledger.state is ManagedLedgerState.FENCED
    with pytest.raises(ManagedLedgerFenced):
        await append(ledger, [b"x"])


async def test_properties_of_cursors(world: ManagedWorld) -> None:
    ledger = await world.factory(keeping()).open(NAME)
    cursor = await ledger.open_cursor("a/b c~*", EARLIEST, {}, {"x": "1"})
    assert await ledger.open_cursor("a/b c~*", LATEST) is cursor
    await cursor.set_cursor_properties({"y": "2"})
    await cursor.set_properties({"n": 3})
    assert await world.store.children(f"/managed-ledgers/{NAME}") == ["a%2Fb+c%7E*"]
    again = (await world.factory(keeping()).open(NAME)).cursors["a/b c~*"]
    assert (again.cursor_properties, again.properties) == ({"y": "2"}, {"n": 3})


async def test_a_closed_durable_cursor_holds_back_trimming_and_opens_again(world: ManagedWorld) -> None:
    ledger = await world.factory(keeping(retention_size_bytes=0)).open(NAME)
    cursor = await ledger.open_cursor("sub", EARLIEST)
    at = await filled(ledger)
    cursor.acknowledge([at[0]])
    await cursor.close()
    await ledger.trim()
    assert ledger.ledgers.number_of_entries() == 25
    again = await ledger.open_cursor("sub", LATEST)
    assert again is not cursor
    assert again.mark_delete == at[0]


async def test_whether_all_that_is_acknowledged_is_stored(world: ManagedWorld) -> None:
    ledger = await world.factory(keeping(unacked_ranges_max=2)).open(NAME)
    positions = await filled(ledger)
    kept, passing = await ledger.open_cursor("a", EARLIEST), ledger.new_non_durable_cursor("b", EARLIEST)
    for cursor in (kept, passing):
        cursor.acknowledge([positions[number] for number in (1, 2, 3, 12)])
        assert cursor.state_fits, "four entries in two stretches"
        cursor.acknowledge([positions[20]])
    assert (kept.state_fits, passing.state_fits) == (False, True), "of the latter nothing is stored at all"
    kept.acknowledge([positions[0]])
    assert kept.state_fits
    ledger.settings.unacked_ranges_max = 1
    assert not kept.state_fits
