"""Managed ledgers that another process writes, over the real ledger client and bookies in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.core.errors import Unavailable
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.managed.errors import ManagedLedgerReadOnly
from magnetar.managed.following.follower import ManagedLedgerFollower
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import append
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.following_world import FollowedWorld, texts

new_event_loop = VirtualTimeLoop


@pytest.fixture
async def world() -> AsyncIterator[FollowedWorld]:
    world = FollowedWorld()
    yield world
    await world.close()


async def test_what_is_there_and_what_comes_is_read_in_order(world: FollowedWorld) -> None:
    writer = await world.writer()
    await append(writer, texts(0, 10))
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    assert await followed.read(cursor, 10) == texts(0, 10)
    for number in range(10, 30):
        await append(writer, texts(number, 1))
        assert await followed.read(cursor, 1) == texts(number, 1)
    assert followed.ledger.last_confirmed == writer.last_confirmed
    assert followed.ledger.ledgers.total_size_bytes() == writer.ledgers.total_size_bytes()
    assert followed.ledger.state.value == "Followed"


async def test_the_writer_goes_on_undisturbed(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    ledgers = list(writer.ledgers.ids)
    await append(writer, texts(0, 5))
    assert await followed.read(cursor, 5) == texts(0, 5)
    await append(writer, texts(5, 5))
    assert writer.ledgers.ids == ledgers


async def test_roll_overs(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    expected: list[bytes] = []
    found: list[bytes] = []
    for number in range(8):
        await append(writer, texts(number * 10, 7))
        expected += texts(number * 10, 7)
        await writer.roll()
        if number % 3 == 0:
            found += await followed.read(cursor, len(expected) - len(found))
            assert found == expected
    found += await followed.read(cursor, len(expected) - len(found))
    assert found == expected
    await followed.until(lambda: followed.ledger.ledgers.ids == writer.ledgers.ids)
    for mine, theirs in zip(followed.ledger.ledgers.records(), writer.ledgers.records(), strict=True):
        assert (mine.entries, mine.size_bytes, mine.closed_ms) == (theirs.entries, theirs.size_bytes, theirs.closed_ms)


async def test_what_is_noted_later_of_an_old_ledger_does_not_end_the_one_in_use(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 2))
    await writer.roll()
    await append(writer, texts(2, 1))
    assert await followed.read(cursor, 3) == texts(0, 3)
    closed_ms = followed.ledger.ledgers.records()[0].closed_ms + 1

    def close_later(records: list[LedgerRecord]) -> None:
        records[0].closed_ms = closed_ms

    await followed.rewrite_list(close_later)
    await followed.until(lambda: followed.ledger.ledgers.records()[0].closed_ms == closed_ms)
    await append(writer, texts(3, 4))
    assert await followed.read(cursor, 4) == texts(3, 4)


async def test_the_owner_is_asked_once_for_a_last_entry(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 1))
    assert await followed.read(cursor, 1) == texts(0, 1)
    asked = followed.owner.asked
    assert asked >= 1
    looks = followed.bookies.looks
    await followed.until(lambda: followed.bookies.looks > looks + 5)
    assert followed.owner.asked == asked


async def test_trims_leave_no_gap_and_no_error(world: FollowedWorld) -> None:
    policy = ManagedLedgerSettings(ensemble_size=3, write_quorum=3, ack_quorum=2, minimum_rollover_ms=0)
    writer = await world.writer(policy)
    slow = await writer.open_cursor("slow", EARLIEST)
    for number in range(4):
        await append(writer, texts(number * 5, 5))
        await writer.roll()
    followed = await world.follower(writer, cache_bytes_max=0)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    assert [entry.data for entry in await cursor.read(2, 1 << 20)] == texts(0, 2)
    slow.acknowledge_cumulative((writer.ledgers.ids[1], 4))
    await writer.trim()
    await followed.until(lambda: followed.ledger.ledgers.ids == writer.ledgers.ids)
    assert await followed.read(cursor, 10) == texts(10, 10)
    assert cursor.mark_delete == (writer.ledgers.ids[0], -1)


async def test_termination(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    told: list[Position] = []
    followed.ledger.on_terminated = lambda: told.append(followed.ledger.last_confirmed)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 3))
    assert not followed.ledger.terminated
    last = await writer.terminate()
    await followed.until(lambda: followed.ledger.terminated)
    assert told == [last]
    assert await followed.read(cursor, 3) == texts(0, 3)
    later = await world.follower(writer)
    assert later.ledger.terminated
    followed.owner.away = later.owner.away = True
    assert await followed.ledger.catch_up(), "nobody has to be asked for an end that is known"
    assert await later.ledger.catch_up()


async def test_nothing_is_asked_while_nobody_reads(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 1))
    assert await followed.read(cursor, 1) == texts(0, 1)
    await followed.until(lambda: followed.ledger.lag.sure)
    await cursor.close()
    await asyncio.sleep(0.02)
    assert not followed.ledger.lag.sure, "who does not look knows nothing"
    looks = followed.bookies.looks
    await append(writer, texts(1, 5))
    await asyncio.sleep(0.1)
    assert followed.bookies.looks == looks
    assert await followed.ledger.catch_up()
    late = followed.ledger.new_non_durable_cursor("late", LATEST)
    await append(writer, texts(6, 2))
    assert await followed.read(late, 2) == texts(6, 2)


async def test_one_read_of_a_bookie_serves_all_cursors(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursors = [followed.ledger.new_non_durable_cursor(f"reader-{number}", EARLIEST) for number in range(20)]
    for number in range(10):
        await append(writer, texts(number, 1))
        for cursor in cursors:
            assert await followed.read(cursor, 1) == texts(number, 1)
    assert followed.ledger.cache.missed_entries == 0


async def test_durable_cursors_are_kept_by_the_owner(world: FollowedWorld) -> None:
    writer = await world.writer()
    await append(writer, texts(0, 10))
    theirs = await writer.open_cursor("sub", EARLIEST)
    ledger_id = writer.ledgers.ids[0]
    theirs.acknowledge([(ledger_id, each) for each in (0, 1, 4, 5)])
    followed = await world.follower(writer)
    cursor = await followed.ledger.open_cursor("sub", EARLIEST)
    assert cursor is await followed.ledger.open_cursor("sub", EARLIEST)
    assert await followed.read(cursor, 6) == [b"2", b"3", b"6", b"7", b"8", b"9"]
    cursor.acknowledge([(ledger_id, 2), (ledger_id, 3), (ledger_id, 9)])
    await cursor.close()
    assert theirs.mark_delete == (ledger_id, 5)
    assert theirs.individually_acknowledged() == [((ledger_id, 8), (ledger_id, 9))]
    assert followed.ledger.cursors == {}
    again, same = await asyncio.gather(*(followed.ledger.open_cursor("sub", EARLIEST) for _ in range(2)))
    assert again is same
    assert await followed.read(again, 3) == [b"6", b"7", b"8"]
    await followed.ledger.delete_cursor("sub")
    assert writer.cursors == {}


async def test_a_cursor_whose_place_is_not_reached_is_not_opened(
    world: FollowedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await world.writer()
    await append(writer, texts(0, 3))
    followed = await world.follower(writer)

    async def nobody_tells(follower: ManagedLedgerFollower, position: Position) -> None:
        raise Unavailable("the owner is away")

    with monkeypatch.context() as patched:
        patched.setattr(ManagedLedgerFollower, "reach", nobody_tells)
        with pytest.raises(Unavailable, match="the owner is away"):
            await followed.ledger.open_cursor("sub", EARLIEST)
    assert followed.ledger.cursors == {}
    assert await followed.read(await followed.ledger.open_cursor("sub", EARLIEST), 3) == texts(0, 3)


async def test_a_mark_beyond_what_bookies_vouch_for_is_not_clamped(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    await append(writer, texts(0, 1))
    await writer.roll()
    await append(writer, texts(1, 2))
    theirs = await writer.open_cursor("sub", EARLIEST)
    theirs.acknowledge_cumulative(writer.last_confirmed)
    cursor = await followed.ledger.open_cursor("sub", EARLIEST)
    assert cursor.mark_delete == writer.last_confirmed
    assert cursor.backlog_entries == 0


async def test_every_write_is_refused(world: FollowedWorld) -> None:
    writer = await world.writer()
    ledger = (await world.follower(writer)).ledger
    with pytest.raises(ManagedLedgerReadOnly, match="use a broker of the cluster that writes it"):
        await append(ledger, [b"x"])
    for write in (
        ledger.terminate(),
        ledger.roll(),
        ledger.truncate(),
        ledger.trim(),
        ledger.set_property("a", "b"),
        ledger.delete(),
        ledger.offloads.offload_before((0, 0)),
        ledger.check_writable(),
        ledger.check_owner(),
        ledger.delete_others([1]),
    ):
        with pytest.raises(ManagedLedgerReadOnly):
            await write
    await ledger.roll_if_due()
    await ledger.trim_if_due()
    assert ledger.internal_stats().state == "Followed"


async def test_what_bookies_vouch_for_is_shown_before_anybody_reads(world: FollowedWorld) -> None:
    """An entry is confirmed to bookies by the next one. The owner knows of the last one, too."""
    writer = await world.writer()
    await append(writer, texts(0, 1))
    await append(writer, texts(1, 1))
    followed = await world.follower(writer)
    ledger_id = writer.ledgers.ids[-1]
    assert followed.ledger.last_confirmed == (ledger_id, 0)
    assert await followed.ledger.catch_up()
    assert followed.ledger.last_confirmed == (ledger_id, 1)
    assert followed.ledger.internal_stats().entries_added == 2
