"""Followed ledgers whose owner tells of their end by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.paths import ledger_path
from magnetar.managed.testing import append
from magnetar.metadata.faulty import RequestFate
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.following_world import NAME, Followed, FollowedWorld, texts

new_event_loop = VirtualTimeLoop

NOTICES = FollowSettings(wants_notices=True)


@pytest.fixture
async def world() -> AsyncIterator[FollowedWorld]:
    world = FollowedWorld()
    yield world
    await world.close()


def give_notices(writer: ManagedLedger, followed: Followed) -> None:
    """From now on the writer tells its follower."""
    followed.owner.has_notices = True
    writer.appends.on_appended.append(lambda: followed.owner.heard(writer.last_confirmed))


async def test_a_silent_ledger_costs_one_look_a_second(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer, NOTICES)
    give_notices(writer, followed)
    followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await asyncio.sleep(1.0)
    looks, asked = followed.bookies.looks, followed.owner.asked
    await asyncio.sleep(100.0)
    assert 90 <= followed.bookies.looks - looks <= 110
    assert followed.owner.asked == asked == 0


async def test_what_is_told_is_shown_at_once_and_not_asked_about(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer, NOTICES)
    give_notices(writer, followed)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await asyncio.sleep(1.0)
    asked = followed.owner.asked
    loop = asyncio.get_running_loop()
    for number in range(20):
        await append(writer, texts(number, 1))
        began_seconds = loop.time()
        assert await followed.read(cursor, 1) == texts(number, 1)
        assert loop.time() - began_seconds <= 0.03
        await asyncio.sleep(0.3)
    assert followed.owner.asked == asked


async def test_the_next_ledger_is_told_of_too(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer, NOTICES)
    give_notices(writer, followed)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    for number in range(4):
        await append(writer, texts(number, 1))
        assert await followed.read(cursor, 1) == texts(number, 1)
        await writer.roll()


async def test_an_owner_that_tells_no_more_is_asked(world: FollowedWorld) -> None:
    """It is another one, which gives no notices, or it says that it is lost."""
    writer = await world.writer()
    followed = await world.follower(writer, NOTICES)
    give_notices(writer, followed)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 1))
    assert await followed.read(cursor, 1) == texts(0, 1)
    writer.appends.on_appended.clear()
    followed.owner.has_notices = False
    followed.owner.heard(None)
    await asyncio.sleep(0.1)
    loop = asyncio.get_running_loop()
    began_seconds = loop.time()
    await append(writer, texts(1, 1))
    assert await followed.read(cursor, 1) == texts(1, 1)
    assert loop.time() - began_seconds <= 0.1


async def test_a_notice_that_never_comes_is_made_up_for(world: FollowedWorld) -> None:
    """The owner says that it gives notices, and is dead on a connection that nobody has found broken yet."""
    writer = await world.writer()
    followed = await world.follower(writer, NOTICES)
    followed.owner.has_notices = True
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await asyncio.sleep(1.0)
    loop = asyncio.get_running_loop()
    began_seconds = loop.time()
    await append(writer, texts(0, 1))
    assert await followed.read(cursor, 1) == texts(0, 1)
    assert (
        loop.time() - began_seconds
        <= NOTICES.look_pause_seconds_max * NOTICES.rarer_with_notices + NOTICES.notice_seconds_max + 0.1
    )


async def test_a_notice_shows_nothing_that_bookies_do_not_have(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer, NOTICES)
    followed.owner.has_notices = True
    followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 2))
    ledger_id, last = writer.last_confirmed
    beyond: Position = (ledger_id, last + 3)
    followed.owner.heard(beyond)
    await asyncio.sleep(5.0)
    assert followed.ledger.last_confirmed == (ledger_id, last)


async def test_a_notice_that_is_overtaken_takes_nothing_back(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer, NOTICES)
    followed.owner.has_notices = True
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await asyncio.sleep(1.0)
    loop = asyncio.get_running_loop()
    began_seconds = loop.time()
    await append(writer, texts(0, 2))
    followed.owner.heard(writer.last_confirmed)
    followed.owner.heard((writer.last_confirmed[0], 0))
    assert await followed.read(cursor, 2) == texts(0, 2)
    assert loop.time() - began_seconds <= 0.1


async def test_a_ledger_that_is_told_of_before_the_list_names_it_is_looked_for_once(
    world: FollowedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    fate = world._fate

    def counting(verb: str, path: str) -> RequestFate:
        if path == ledger_path(NAME):
            reads.append(verb)
        return fate(verb, path)

    monkeypatch.setattr(world, "_fate", counting)
    writer = await world.writer()
    followed = await world.follower(writer, NOTICES)
    followed.owner.has_notices = True
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await asyncio.sleep(1.0)
    ahead = writer.ledgers.ids[-1] + 1
    before = len(reads)
    for entry_id in range(9):
        followed.owner.heard((ahead, entry_id))
        await asyncio.sleep(0.1)
    assert len(reads) - before <= 1
    # As soon as it is there, what was told of it is shown without a question.
    asked = followed.owner.asked
    await append(writer, texts(0, 1))
    await writer.roll()
    await append(writer, texts(1, 1))
    followed.owner.heard(writer.last_confirmed)
    loop = asyncio.get_running_loop()
    began_seconds = loop.time()
    assert await followed.read(cursor, 2) == texts(0, 2)
    assert loop.time() - began_seconds <= 0.1
    assert followed.owner.asked == asked


MANY_TOPICS = replace(NOTICES, longest_pause_seconds=lambda: 1.0)
"""As with four thousand of them: looks are 5 s apart while the owner tells of its end."""


async def seconds_until_shown(writer: ManagedLedger, followed: Followed, number: int) -> float:
    """For one more entry."""
    loop = asyncio.get_running_loop()
    await append(writer, texts(number, 1))
    began_seconds = loop.time()
    async with asyncio.timeout(100.0):
        while followed.ledger.last_confirmed < writer.last_confirmed:
            await asyncio.sleep(0.01)
    return loop.time() - began_seconds


async def test_an_owner_whose_notices_fail_to_come_is_not_relied_on(world: FollowedWorld) -> None:
    """It has said that it gives them, and answers questions."""
    writer = await world.writer()
    followed = await world.follower(writer, MANY_TOPICS)
    followed.owner.has_notices = True
    followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    assert await seconds_until_shown(writer, followed, 0) <= 7.0
    for number in range(1, 6):
        await asyncio.sleep(3.0)
        assert await seconds_until_shown(writer, followed, number) <= 1.2
    give_notices(writer, followed)
    assert await seconds_until_shown(writer, followed, 6) <= 0.05
    await asyncio.sleep(3.0)
    looks = followed.bookies.looks
    await asyncio.sleep(100.0)
    assert followed.bookies.looks - looks <= 21


async def test_an_owner_that_does_not_answer_is_not_relied_on_to_give_notices(world: FollowedWorld) -> None:
    """Its connection is dead, and nobody has found that yet. The next one's entries are shown as others come."""
    writer = await world.writer()
    followed = await world.follower(writer, MANY_TOPICS)
    followed.owner.has_notices = True
    followed.owner.away = True
    followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 1))
    await asyncio.sleep(22.0)
    for number in range(1, 30):
        shown_before = writer.last_confirmed
        await append(writer, texts(number, 1))
        await asyncio.sleep(1.1)
        assert followed.ledger.last_confirmed >= shown_before
