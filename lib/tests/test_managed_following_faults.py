"""What goes wrong beside a follower of a managed ledger: crashes, owners, bookies and stores that are away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from magnetar.core.errors import Unavailable
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.managed.errors import ManagedLedgerFenced, ManagedLedgerIsShadow, ManagedLedgerNotFound
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.following.tail_follower import TailFollower
from magnetar.managed.info_codec import SHADOW_SOURCE_PROPERTY, encode_ledger_info
from magnetar.managed.paths import ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import append, read_all
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.following_world import NAME, FollowedWorld, texts

new_event_loop = VirtualTimeLoop


@pytest.fixture
async def world() -> AsyncIterator[FollowedWorld]:
    world = FollowedWorld()
    yield world
    await world.close()


async def test_the_follower_of_a_zombie_sees_what_the_new_owner_writes(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 3))
    second = await world.writer()  # The first one does not know it yet, and is asked all the same.
    for number in range(3, 6):
        await append(second, texts(number, 1))
    with pytest.raises(ManagedLedgerFenced):
        await append(writer, [b"lost"])
    assert await followed.read(cursor, 5) == texts(0, 5)
    followed.owner.writer = second
    assert await followed.read(cursor, 1) == texts(5, 1)


async def test_an_ensemble_change_is_followed(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 2))
    assert await followed.read(cursor, 2) == texts(0, 2)
    others = [world.bookies.add_bookie() for _ in range(3)]
    metadata = await world.described(writer.ledgers.ids[-1])
    for bookie_id in metadata.ensembles[-1][1]:
        world.bookies.bookies[bookie_id].stop()
    for bookie in others:
        assert not bookie.ledgers
    await append(writer, texts(2, 1))
    assert any(bookie.ledgers for bookie in others)
    assert await followed.read(cursor, 1) == texts(2, 1)


async def test_of_a_batch_that_fails_half_way_nothing_is_shown_twice(world: FollowedWorld) -> None:
    """The owner sends all of it again, to the next ledger. Bookies were told that its first half is confirmed, and the
    failed ledger was closed behind that."""
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 3))
    failing = writer.ledgers.ids[-1]
    for bookie in world.bookies.bookies.values():
        bookie.last_taken[failing] = 6
    half_way = asyncio.create_task(append(writer, texts(3, 10)))
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await append(writer, texts(13, 2))
        assert await half_way == (writer.ledgers.ids[-1], 0)
    assert (await world.described(failing)).last_entry_id == 2
    assert await followed.read(cursor, 15) == texts(0, 15)
    assert await read_all(cursor) == []


@pytest.mark.parametrize("hanging", [False, True])
async def test_a_bookie_that_is_away_costs_little(world: FollowedWorld, hanging: bool) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    for _ in range(2):
        world.bookies.add_bookie()
    for bookie in list(world.bookies.bookies.values()):
        (bookie.hang if hanging else bookie.stop)()
        began = asyncio.get_running_loop().time()
        await append(writer, texts(0, 3))
        assert await followed.read(cursor, 3) == texts(0, 3)
        assert asyncio.get_running_loop().time() - began < 2.0
        bookie.heal()


async def test_without_bookies_nothing_is_sure(world: FollowedWorld) -> None:
    writer = await world.writer()
    await append(writer, texts(0, 3))
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await followed.until(lambda: followed.ledger.lag.sure)
    for bookie in world.bookies.bookies.values():
        bookie.stop()
    await followed.until(lambda: not followed.ledger.lag.sure)
    followed.owner.away = True
    with pytest.raises(Unavailable):
        await followed.ledger.catch_up()
    for bookie in world.bookies.bookies.values():
        bookie.heal()
    await append(writer, texts(3, 2))
    await append(writer, texts(5, 1))
    assert not await followed.ledger.catch_up()
    assert await followed.read(cursor, 5) == texts(0, 5)
    assert await read_all(cursor) == []
    followed.owner.away = False
    assert await followed.read(cursor, 1) == texts(5, 1)
    await followed.until(lambda: followed.ledger.lag.sure)


async def test_a_store_that_is_away_does_not_stop_the_ledger_in_use(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    world.store_away = True
    await append(writer, texts(0, 3))
    assert await followed.read(cursor, 3) == texts(0, 3)
    await writer.roll()
    await append(writer, texts(3, 3))
    await followed.until(lambda: not followed.ledger.lag.sure)
    assert await read_all(cursor) == []
    world.store_away = False
    assert await followed.read(cursor, 3) == texts(3, 3)


async def test_what_changed_while_the_session_was_lost_is_read(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 1))
    assert await followed.read(cursor, 1) == texts(0, 1)
    followed.deaf.add(ledger_path(NAME))
    await writer.roll()
    await append(writer, texts(1, 1))
    await asyncio.sleep(1.0)
    assert await read_all(cursor) == []
    followed.deaf.clear()
    world.sessions[-1].expire_session()
    assert await followed.read(cursor, 1) == texts(1, 1)


async def test_a_topic_made_anew_is_another_one(world: FollowedWorld) -> None:
    writer = await world.writer()
    await append(writer, texts(0, 1))
    followed = await world.follower(writer)
    lost: list[Exception] = []
    followed.ledger.on_lost = lost.append
    world.store_away = True
    await writer.delete()
    await asyncio.sleep(1.0)
    await world.writer()
    world.store_away = False
    await followed.until(lambda: bool(lost))
    assert isinstance(lost[0], ManagedLedgerNotFound)
    with pytest.raises(ManagedLedgerFenced):
        await followed.ledger.open_cursor("sub", EARLIEST)


async def test_a_topic_without_ledgers_begins_with_its_first_one(world: FollowedWorld) -> None:
    await world.store.put(ledger_path(NAME), b"")
    followed = await world.follower(None)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    late = followed.ledger.new_non_durable_cursor("late", LATEST)
    assert await cursor.read(1, 1) == []
    assert followed.ledger.internal_stats().ledgers == []
    writer = followed.owner.writer = await world.writer()
    await append(writer, texts(0, 2))
    assert await followed.read(cursor, 2) == texts(0, 2)
    assert await followed.read(late, 2) == texts(0, 2)


async def test_a_batch_that_failed_half_way_is_taken_back(world: FollowedWorld) -> None:
    """The writer counts whole batches only. What bookies vouch for of the ledger's last one is sent again."""
    writer = await world.writer()
    await append(writer, texts(0, 5))
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    assert await followed.read(cursor, 5) == texts(0, 5)
    ledger_id = writer.ledgers.ids[-1]
    await writer.roll()
    await followed.until(lambda: len(followed.ledger.ledgers) == 2)
    await followed.rewrite_list(lambda records: setattr(records[0], "entries", 3))
    await followed.until(lambda: followed.ledger.ledgers.entries_in(ledger_id) == 3)
    assert followed.ledger.last_confirmed == (ledger_id, 2)
    assert cursor.backlog_entries == 3


async def test_a_last_ledger_that_is_gone_is_waited_for(world: FollowedWorld) -> None:
    writer = await world.writer()
    await append(writer, texts(0, 1))
    await world.delete_ledger(writer.ledgers.ids[-1])
    followed = await world.follower(writer)
    assert not followed.ledger.lag.sure
    second = followed.owner.writer = await world.writer()
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(second, texts(1, 1))
    assert await followed.read(cursor, 1) == texts(1, 1)


async def test_without_the_owner_only_what_bookies_vouch_for_is_shown(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    followed.owner.away = True
    for number in range(3):
        await append(writer, texts(number, 1))
    assert await followed.read(cursor, 2) == texts(0, 2)
    looks = followed.bookies.looks
    await followed.until(lambda: followed.bookies.looks > looks + 5)
    assert await read_all(cursor) == []
    lag = followed.ledger.lag
    assert lag.entries == 1
    assert not lag.sure
    followed.owner.away = False
    assert await followed.read(cursor, 1) == texts(2, 1)


async def test_without_the_owner_the_next_entry_brings_the_one_before(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    followed.owner.away = True
    await append(writer, texts(0, 1))
    await append(writer, texts(1, 1))
    assert await followed.read(cursor, 1) == texts(0, 1)
    await writer.roll()  # The ledger is closed: its end is known by that.
    assert await followed.read(cursor, 1) == texts(1, 1)


async def test_entries_that_recovery_drops_are_never_shown(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 3))
    assert await followed.read(cursor, 3) == texts(0, 3)
    # One bookie takes it and the others do not: it is not confirmed, and it can be seen.
    first, *others = world.bookies.bookies.values()
    world.bookies.add_bookie()
    for bookie in others:
        bookie.hang()
    appending = asyncio.ensure_future(append(writer, [b"dropped"]))
    ledger_id = writer.ledgers.ids[-1]
    await followed.until(lambda: 3 in first.ledgers[ledger_id].entries)
    looks = followed.bookies.looks
    await followed.until(lambda: followed.ledger.lag.entries == 1 or followed.bookies.looks > looks + 20)
    await writer.abandon()
    appending.cancel()
    await asyncio.gather(appending, return_exceptions=True)
    for bookie in others:
        bookie.stop()
        bookie.heal()
    first.stop()
    second = await world.writer()
    followed.owner.writer = second
    first.heal()
    assert second.ledgers.number_of_entries() == 3
    await append(second, [b"next"])
    assert await followed.read(cursor, 1) == [b"next"]
    assert await read_all(cursor) == []
    assert followed.ledger.last_confirmed == second.last_confirmed


async def test_crash_and_recovery_by_another_owner(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 4))
    followed.owner.away = True
    second = await world.writer()
    followed.owner.writer = second
    assert await followed.read(cursor, 4) == texts(0, 4)
    followed.owner.away = False
    await append(second, texts(4, 4))
    assert await followed.read(cursor, 4) == texts(4, 4)


@pytest.mark.parametrize("open_before", [False, True])
async def test_a_read_that_raced_a_trim_goes_on_behind_it(world: FollowedWorld, open_before: bool) -> None:
    policy = ManagedLedgerSettings(ensemble_size=3, write_quorum=3, ack_quorum=2, minimum_rollover_ms=0)
    writer = await world.writer(policy)
    slow = await writer.open_cursor("slow", EARLIEST)
    for number in range(2):
        await append(writer, texts(number * 5, 5))
        await writer.roll()
    followed = await world.follower(writer, cache_bytes_max=0)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    gone = writer.ledgers.ids[0]
    if open_before:
        assert (await followed.ledger.read_entry((gone, 0))).data == b"0"
    followed.deaf.add(ledger_path(NAME))  # The follower does not hear of it in time.
    slow.acknowledge_cumulative((gone, 4))
    await writer.trim()
    for bookie in world.bookies.bookies.values():
        bookie.ledgers.pop(gone, None)
    assert gone in followed.ledger.ledgers.ids
    assert await read_all(cursor) == texts(5, 5)


async def test_a_node_that_is_gone_is_told(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    lost: list[Exception] = []
    followed.ledger.on_lost = lost.append
    await writer.delete()
    await followed.until(lambda: bool(lost))
    assert isinstance(lost[0], ManagedLedgerNotFound)
    with pytest.raises(ManagedLedgerNotFound):
        await world.follower(writer)


async def test_a_node_that_is_damaged_is_named(world: FollowedWorld) -> None:
    writer = await world.writer()
    await append(writer, texts(0, 3))
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    node = await world.store.get(ledger_path(NAME))
    assert node is not None
    await world.store.put(ledger_path(NAME), b"\xff\xff\xff")
    await followed.until(lambda: not followed.ledger.lag.sure)
    assert await followed.read(cursor, 3) == texts(0, 3)
    with pytest.raises(Exception, match=ledger_path(NAME)):
        await world.follower(writer)
    await world.store.put(ledger_path(NAME), node.value)
    await followed.until(lambda: followed.ledger.lag.sure)


async def test_a_ledgers_own_end_is_enough(world: FollowedWorld) -> None:
    """Its list may come later, and its owner be away: what the ledger says of its end is final."""
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    followed.owner.away = True
    followed.deaf.add(ledger_path(NAME))
    await append(writer, texts(0, 1))
    await followed.until(lambda: followed.ledger.lag.entries == 1)
    assert await read_all(cursor) == []
    await writer.roll()
    assert await followed.read(cursor, 1) == texts(0, 1)
    assert followed.ledger.cache.missed_entries == 0


async def test_a_ledgers_own_end_is_read_once_the_store_is_back(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    followed.owner.away = True
    followed.deaf.add(ledger_path(NAME))
    await append(writer, texts(0, 1))
    await followed.until(lambda: followed.ledger.lag.entries == 1)
    world.store_away = True
    await writer.roll()
    await asyncio.sleep(1.0)
    assert await read_all(cursor) == []
    world.store_away = False
    assert await followed.read(cursor, 1) == texts(0, 1)


async def test_a_ledger_that_is_gone_makes_the_list_be_read(world: FollowedWorld) -> None:
    """Also by a follower that did not hear of the list."""
    policy = ManagedLedgerSettings(ensemble_size=3, write_quorum=3, ack_quorum=2, minimum_rollover_ms=0)
    writer = await world.writer(policy)
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 2))
    assert await followed.read(cursor, 2) == texts(0, 2)
    followed.deaf.add(ledger_path(NAME))
    gone = writer.ledgers.ids[-1]
    await writer.roll()
    await writer.trim()
    assert gone not in writer.ledgers.ids
    await followed.until(lambda: followed.ledger.ledgers.ids == writer.ledgers.ids)


async def test_an_owner_that_does_not_answer_holds_up_no_other_ledger(
    world: FollowedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    asked: list[int] = []

    async def never() -> Position:
        asked.append(1)
        await asyncio.sleep(1_000)
        raise AssertionError

    monkeypatch.setattr(followed.owner, "last_confirmed", never)
    await append(writer, texts(0, 1))
    await followed.until(lambda: bool(asked))
    loop = asyncio.get_running_loop()
    began_seconds = loop.time()
    await writer.roll()
    await append(writer, texts(1, 1))
    await append(writer, texts(2, 1))
    assert await followed.read(cursor, 2) == texts(0, 2)
    assert loop.time() - began_seconds < 1.0


async def test_how_long_something_waits_is_told_in_milliseconds(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    followed.owner.away = True
    assert followed.ledger.lag.milliseconds == 0
    await append(writer, texts(0, 1))
    await asyncio.sleep(3.0)
    assert 2_900 <= followed.ledger.lag.milliseconds <= 3_000


# --- where the owner stands, and what the list says of it


async def test_without_the_owner_the_list_is_read_all_the_same(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    followed.deaf.add(ledger_path(NAME))
    await append(writer, texts(0, 1))
    await writer.roll()
    await append(writer, texts(1, 1))
    await append(writer, texts(2, 1))
    followed.owner.away = True
    assert not await followed.ledger.catch_up()
    assert followed.ledger.last_confirmed == (writer.ledgers.ids[-1], 0)


async def test_without_the_store_the_end_of_a_known_ledger_is_reached(world: FollowedWorld) -> None:
    writer = await world.writer()
    await append(writer, texts(0, 1))
    followed = await world.follower(writer)
    await append(writer, texts(1, 1))
    world.store_away = True
    assert await followed.ledger.catch_up()
    assert followed.ledger.last_confirmed == writer.last_confirmed


@pytest.mark.parametrize(("entry_id", "reached"), [(-1, True), (0, False)])
async def test_a_ledger_of_the_owners_that_the_store_does_not_name_is_waited_for_if_it_has_entries(
    world: FollowedWorld, monkeypatch: pytest.MonkeyPatch, entry_id: int, *, reached: bool
) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)

    async def ahead() -> Position:
        return (writer.ledgers.ids[-1] + 1, entry_id)

    monkeypatch.setattr(followed.owner, "last_confirmed", ahead)
    loop = asyncio.get_running_loop()
    began_seconds = loop.time()
    if reached:
        assert await followed.ledger.catch_up()
        assert loop.time() == began_seconds
        return
    with pytest.raises(Unavailable, match="does not name ledger"):
        await asyncio.wait_for(followed.ledger.catch_up(), 60)
    assert loop.time() - began_seconds >= FollowSettings().catch_up_seconds_max


async def test_a_list_that_may_be_another_one_is_not_sure(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await followed.until(lambda: followed.ledger.lag.sure)
    world.sessions[-1].disconnect()
    await asyncio.sleep(0.1)
    assert not followed.ledger.lag.sure
    world.sessions[-1].reconnect()
    await append(writer, texts(0, 1))
    await followed.until_shown(writer.last_confirmed)
    await followed.until(lambda: followed.ledger.lag.sure)
    world.store_away = True
    await writer.roll()
    await asyncio.sleep(1.0)
    assert not followed.ledger.lag.sure
    world.store_away = False
    await followed.until(lambda: followed.ledger.lag.sure)


async def test_a_list_that_cannot_be_read_is_read_later_also_behind_an_end(world: FollowedWorld) -> None:
    """Nothing else would wake who has come to its ledger's end."""
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    followed.deaf.add(ledger_path(NAME))
    await append(writer, texts(0, 1))
    await writer.roll()
    assert await followed.read(cursor, 1) == texts(0, 1)
    await append(writer, texts(1, 2))
    await asyncio.sleep(1.0)
    world.store_away = True
    world.sessions[-1].expire_session()
    await asyncio.sleep(5.0)
    world.store_away = False
    assert await followed.read(cursor, 2) == texts(1, 2)


async def test_a_follower_that_fails_says_so(world: FollowedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    lost: list[Exception] = []
    followed.ledger.on_lost = lost.append

    async def fails(tail: TailFollower) -> float:
        raise RuntimeError("staged")

    monkeypatch.setattr(TailFollower, "step", fails)
    followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await followed.until(lambda: bool(lost))
    assert "staged" in str(lost[0])
    assert not followed.ledger.lag.sure


async def test_a_list_that_goes_while_a_cursor_waits_for_it_is_told(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    lost: list[Exception] = []
    followed.ledger.on_lost = lost.append
    followed.deaf.add(ledger_path(NAME))
    followed.owner.away = True
    await writer.delete()
    with pytest.raises(ManagedLedgerNotFound):
        await followed.ledger.catch_up()
    await followed.until(lambda: bool(lost))


class Everything(set[str]):
    """Any path is in it."""

    def __contains__(self, path: object) -> bool:
        return True


async def test_who_hears_nothing_finds_the_next_ledger_by_its_owner(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    followed.store.deaf = Everything()
    followed.owner.away = True
    await append(writer, texts(0, 1))
    await followed.until(lambda: followed.ledger.lag.entries == 1)
    await writer.roll()
    await append(writer, texts(1, 1))
    await append(writer, texts(2, 1))
    followed.owner.away = False
    assert await followed.read(cursor, 3) == texts(0, 3)


async def test_a_shadow_is_not_followed_but_its_source(world: FollowedWorld) -> None:
    await world.store.put(ledger_path(NAME), encode_ledger_info([], None, {SHADOW_SOURCE_PROPERTY: "source"}))
    with pytest.raises(ManagedLedgerIsShadow):
        await world.follower(None)
