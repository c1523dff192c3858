"""Managed ledgers that show the entries of another one, over the real ledger client and bookies in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Final

import pytest
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.ledger_paths import ledger_path as metadata_path
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.errors import (
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerIsShadow,
    ManagedLedgerNotFound,
    ManagedLedgerReadOnly,
)
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.following.shadow_ledger import ShadowLedger
from magnetar.managed.following.testing import READS, WriterAsOwner
from magnetar.managed.info_codec import SHADOW_SOURCE_PROPERTY, decode_ledger_info, encode_ledger_info
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.paths import cursor_path, ledger_path
from magnetar.managed.testing import append, read_all
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.store import StoreUnavailable
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.following_world import NAME, PATIENCE_SECONDS, POLICY, DeafStore, FollowedWorld, texts

new_event_loop = VirtualTimeLoop

SHADOW: Final = "public/default/persistent/shadow"
NOTED: Final = {SHADOW_SOURCE_PROPERTY: "persistent://public/default/topic"}
SLOW: Final = FollowSettings(look_pause_seconds_min=3600.0, look_pause_seconds_max=3600.0)
"""So seldom that what is shown in time was told."""


class ShadowWorld(FollowedWorld):
    """A writer of the source, and processes that open its shadow: none of these may write anything of the source."""

    def __init__(self) -> None:
        super().__init__()
        self.source_ledgers: set[int] = set()
        self.lost_answers = False
        self.lost_deletions = False

    async def shadow(
        self, writer: ManagedLedger | None, following: FollowSettings = SLOW, *, away: bool = True
    ) -> ShadowLedger:
        """Another process opens it. `away`: the source's owner answers nothing."""
        factory = self.process()
        owner = WriterAsOwner(writer)
        owner.away = away
        return await factory.open_shadow(SHADOW, NAME, owner, following, NOTED, POLICY)

    def process(self) -> ManagedLedgerFactory:
        """Another process of those who may not touch the source."""
        session = self.store.another_session()
        store = FaultyStore(session, self._shadow_fate)
        client = BookKeeperClient(store, self.bookies, self.clock, random.Random(1), self.settings)
        factory = ManagedLedgerFactory(store, client, self.clock, asyncio.get_running_loop())
        self._opened.append((factory, client, session))
        return factory

    def _shadow_fate(self, verb: str, path: str) -> RequestFate:
        of_source = path == ledger_path(NAME) or path.startswith(ledger_path(NAME) + "/")
        of_source = of_source or path in map(metadata_path, self.source_ledgers)
        assert verb in READS or not of_source, f"a shadow asks the store to {verb} {path}"
        if self.lost_answers and verb == "put" and path == ledger_path(SHADOW):
            return RequestFate.LOST
        if self.lost_deletions and verb == "delete" and path.startswith(ledger_path(SHADOW)):
            return RequestFate.LOST
        return RequestFate.DONE

    async def fill(self, writer: ManagedLedger, first: int, count: int) -> Position:
        await append(writer, texts(first, count))
        self.source_ledgers.update(writer.ledgers.ids)
        return writer.last_confirmed


@pytest.fixture
async def world() -> AsyncIterator[ShadowWorld]:
    world = ShadowWorld()
    yield world
    await world.close()


async def until_shown(shadow: ShadowLedger, position: Position) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while shadow.last_confirmed < position:
            await asyncio.sleep(0.01)


async def read(cursor: Cursor, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            found += await read_all(cursor)
            await asyncio.sleep(0.01)
    return found


async def test_what_is_told_is_shown_and_the_source_is_written_on(world: ShadowWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 5)
    shadow = await world.shadow(writer)
    cursor = await shadow.open_cursor("s", EARLIEST)
    shadow.told(writer.last_confirmed)
    assert await read(cursor, 5) == texts(0, 5)
    ledgers = list(writer.ledgers.ids)
    for number in range(5, 25):
        shadow.told(await world.fill(writer, number, 1))
        assert await read(cursor, 1) == texts(number, 1)
    assert writer.ledgers.ids == ledgers
    assert shadow.last_confirmed == writer.last_confirmed


async def test_who_is_not_told_asks_the_bookies_and_the_owner(world: ShadowWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 3)
    shadow = await world.shadow(writer, FollowSettings(), away=False)
    cursor = await shadow.open_cursor("s", EARLIEST)
    assert await read(cursor, 3) == texts(0, 3)
    await world.fill(writer, 3, 1)
    assert await read(cursor, 1) == texts(3, 1)


@pytest.mark.parametrize("beyond", [-1000, 0, 10**12])
async def test_a_position_that_is_nowhere_shows_nothing(world: ShadowWorld, beyond: int) -> None:
    writer = await world.writer()
    end = await world.fill(writer, 0, 3)
    told = (end[0] + beyond, end[1] + 2)
    shadow = await world.shadow(writer)
    cursor = await shadow.open_cursor("s", EARLIEST)
    shadow.told(end)
    assert await read(cursor, 3) == texts(0, 3)
    shadow.told(told)
    await asyncio.sleep(1.0)
    assert shadow.last_confirmed == end
    # Nor does it keep what comes from being shown.
    for number in range(3, 6):
        shadow.told(await world.fill(writer, number, 1))
        assert await read(cursor, 1) == texts(number, 1)
    await writer.roll()
    shadow.told(await world.fill(writer, 6, 1))
    assert await read(cursor, 1) == texts(6, 1)


async def test_the_next_ledger_is_told_before_or_after_the_store_tells(world: ShadowWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 2)
    shadow = await world.shadow(writer)
    cursor = await shadow.open_cursor("s", EARLIEST)
    for number in range(2, 8):
        await writer.roll()
        shadow.told(await world.fill(writer, number, 1))
    assert await read(cursor, 8) == texts(0, 8)
    assert shadow.ledgers.ids == writer.ledgers.ids


async def test_positions_stay_over_owners_also_of_entries_that_bookies_do_not_vouch_for(world: ShadowWorld) -> None:
    writer = await world.writer()
    end = await world.fill(writer, 0, 10)
    first = await world.shadow(writer)
    cursor, holes = await first.open_cursor("s", EARLIEST), await first.open_cursor("holes", EARLIEST)
    first.told(end)
    assert await read(cursor, 10) == texts(0, 10)
    cursor.acknowledge_cumulative(end)
    holes.acknowledge([end, (end[0], 3)])
    await first.close()
    second = await world.shadow(None)
    assert second.cursors["s"].mark_delete == end
    assert second.cursors["s"].backlog_entries == 0
    assert second.cursors["holes"].backlog_entries == 8
    assert await read_all(second.cursors["holes"]) == [*texts(0, 3), *texts(4, 5)]


async def test_a_cursor_at_the_end_begins_behind_what_is_confirmed(world: ShadowWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 4)
    shadow = await world.shadow(writer, away=False)
    assert await shadow.catch_up()
    cursor = await shadow.open_cursor("s", LATEST)
    shadow.told(await world.fill(writer, 4, 1))
    assert await read(cursor, 1) == texts(4, 1)


async def test_what_the_source_trims_is_gone(world: ShadowWorld) -> None:
    policy = POLICY.__class__(ensemble_size=3, write_quorum=3, ack_quorum=2, minimum_rollover_ms=0)
    writer = await world.writer(policy)
    slow = await writer.open_cursor("slow", EARLIEST)
    for number in range(3):
        await world.fill(writer, number * 5, 5)
        await writer.roll()
    shadow = await world.shadow(writer)
    cursor = await shadow.open_cursor("s", EARLIEST)
    slow.acknowledge_cumulative((writer.ledgers.ids[1], 4))
    await writer.trim()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while shadow.ledgers.ids != writer.ledgers.ids:
            await asyncio.sleep(0.01)
    assert await read(cursor, 5) == texts(10, 5)
    await shadow.close()
    assert (await world.shadow(writer)).cursors["s"].backlog_entries == 5


async def test_the_later_owner_fences_the_former_one_and_nobody_fences_the_source(world: ShadowWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 2)
    first = await world.shadow(writer)
    await first.open_cursor("s", EARLIEST)
    second = await world.shadow(writer)
    with pytest.raises(ManagedLedgerFenced):
        await first.delete_cursor("s")
    with pytest.raises(ManagedLedgerFenced):
        await first.set_properties({"a": "b"})
    await second.set_properties({"a": "b"})
    assert second.properties == {**NOTED, "a": "b"}
    await world.fill(writer, 2, 1)


async def test_its_node_lists_no_ledgers_whatever_another_broker_has_listed(world: ShadowWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 2)
    await writer.roll()
    await world.fill(writer, 2, 2)
    records = [LedgerRecord(each.ledger_id, 1, 10, 5) for each in writer.ledgers.records()]
    await world.store.put(ledger_path(SHADOW), encode_ledger_info(records, None, NOTED))
    world.lost_answers = True
    with pytest.raises(StoreUnavailable):
        await world.shadow(writer)
    world.lost_answers = False
    shadow = await world.shadow(writer)
    node = await world.store.get(ledger_path(SHADOW))
    assert node is not None
    info = decode_ledger_info(node.value)
    assert (info.records, info.properties) == ([], NOTED)
    cursor = await shadow.open_cursor("s", EARLIEST)
    shadow.told(writer.last_confirmed)
    assert await read(cursor, 4) == texts(0, 4)


async def test_a_new_cursor_lists_no_ledgers_after_a_write_without_an_answer(world: ShadowWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 2)
    shadow = await world.shadow(writer)
    world.lost_answers = True
    with pytest.raises(StoreUnavailable):
        await shadow.set_property("a", "b")
    world.lost_answers = False
    await shadow.open_cursor("s", EARLIEST)
    node = await world.store.get(ledger_path(SHADOW))
    assert node is not None
    info = decode_ledger_info(node.value)
    assert (info.records, info.properties) == ([], NOTED)


async def test_what_another_broker_has_listed_is_not_deleted_after_a_write_without_an_answer(
    world: ShadowWorld,
) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 2)
    listed = encode_ledger_info(writer.ledgers.records(), None, NOTED)
    await world.store.put(ledger_path(SHADOW), listed)
    factory = world.process()
    world.lost_answers = True
    with pytest.raises(StoreUnavailable):
        await factory.open_shadow(SHADOW, NAME, WriterAsOwner(writer), SLOW, NOTED, POLICY)
    world.lost_answers = False
    await factory.delete(SHADOW)
    for ledger_id in writer.ledgers.ids:
        await world.described(ledger_id)
    again = writer.new_non_durable_cursor("look", EARLIEST)
    writer.cache.remove_ledger(writer.ledgers.ids[-1])
    assert await read(again, 2) == texts(0, 2)


async def test_a_ledger_that_is_told_of_first_is_looked_for_in_the_list(world: ShadowWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 1)
    session = world.store.another_session()
    store = DeafStore(session, lambda verb, path: RequestFate.DONE)
    client = BookKeeperClient(store, world.bookies, world.clock, random.Random(1), world.settings)
    factory = ManagedLedgerFactory(store, client, world.clock, asyncio.get_running_loop())
    world._opened.append((factory, client, session))
    owner = WriterAsOwner(writer)
    owner.away = True
    shadow = await factory.open_shadow(SHADOW, NAME, owner, SLOW, NOTED, POLICY)
    cursor = await shadow.open_cursor("s", EARLIEST)
    store.deaf.add(ledger_path(NAME))
    await writer.roll()
    await world.fill(writer, 1, 1)
    shadow.told(writer.last_confirmed)
    assert await read(cursor, 2) == texts(0, 2)


@pytest.mark.parametrize("loaded", [True, False])
async def test_a_deletion_leaves_the_source(world: ShadowWorld, loaded: bool) -> None:
    writer = await world.writer()
    end = await world.fill(writer, 0, 3)
    factory = world.process()
    owner = WriterAsOwner(writer)
    shadow = await factory.open_shadow(SHADOW, NAME, owner, SLOW, NOTED, POLICY)
    cursor = await shadow.open_cursor("s", EARLIEST)
    shadow.told(end)
    await read(cursor, 3)
    cursor.acknowledge([(end[0], 1)])
    assert cursor.storage is not None
    await cursor.storage.flush()
    own = cursor.storage.ledger_id
    assert own >= 0
    if not loaded:
        await shadow.close()
    await factory.delete(SHADOW)
    assert await world.store.get(ledger_path(SHADOW)) is None
    assert await world.store.get(cursor_path(SHADOW, "s")) is None
    assert owner.closed
    with pytest.raises(ManagedLedgerNotFound):
        await world.process().open(SHADOW, create=False)
    again = writer.new_non_durable_cursor("look", EARLIEST)
    assert await read(again, 3) == texts(0, 3)
    await world.fill(writer, 3, 1)


async def test_a_deletion_without_an_answer_leaves_no_ledger_to_whoever_opens_it_again(world: ShadowWorld) -> None:
    writer = await world.writer()
    end = await world.fill(writer, 0, 3)
    factory = world.process()
    shadow = await factory.open_shadow(SHADOW, NAME, WriterAsOwner(writer), SLOW, NOTED, POLICY)
    cursor = await shadow.open_cursor("s", EARLIEST)
    shadow.told(end)
    await read(cursor, 3)
    cursor.acknowledge([(end[0], 1)])
    assert cursor.storage is not None
    await cursor.storage.flush()
    own = cursor.storage.ledger_id
    world.lost_deletions = True
    with pytest.raises(StoreUnavailable):
        await shadow.delete()
    world.lost_deletions = False
    assert await world.store.get(cursor_path(SHADOW, "s")) is None
    again = await factory.open_shadow(SHADOW, NAME, WriterAsOwner(writer), SLOW, NOTED, POLICY)
    assert not again.cursors
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await world.store.get(metadata_path(own)) is not None:
            await asyncio.sleep(0.01)
    assert texts(0, 3) == await read(writer.new_non_durable_cursor("look", EARLIEST), 3)


async def test_a_source_that_is_deleted_is_told(world: ShadowWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 3)
    shadow = await world.shadow(writer)
    told: list[object] = []
    shadow.on_lost = told.append
    await writer.delete()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not told:
            await asyncio.sleep(0.01)
    await shadow.close()
    with pytest.raises(ManagedLedgerNotFound, match="is not there"):
        await world.shadow(None)


async def test_it_is_not_opened_as_a_managed_ledger_of_its_own(world: ShadowWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 1)
    factory = world.process()
    assert await factory.create(SHADOW, NOTED)
    with pytest.raises(ManagedLedgerIsShadow) as refused:
        await factory.open(SHADOW)
    assert refused.value.source == NOTED[SHADOW_SOURCE_PROPERTY]


async def test_nothing_is_written_into_it(world: ShadowWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 1)
    shadow = await world.shadow(writer)
    failures: list[object] = []

    def done(error: Exception | None, ledger_id: int, first_entry_id: int, context: object) -> None:
        failures.append(error)

    shadow.appends.append([b"x"], done, None)
    await asyncio.sleep(0)
    assert isinstance(failures[0], ManagedLedgerReadOnly)
    refused: Sequence[object] = (shadow.terminate, shadow.roll, shadow.truncate, shadow.trim)
    for each in refused:
        assert callable(each)
        with pytest.raises(ManagedLedgerError):
            await each()
    assert not shadow.due_for_trimming
    assert not shadow.due_for_rollover


async def test_termination_of_the_source(world: ShadowWorld) -> None:
    writer = await world.writer()
    await world.fill(writer, 0, 3)
    shadow = await world.shadow(writer)
    cursor = await shadow.open_cursor("s", EARLIEST)
    told: list[bool] = []
    shadow.on_terminated = lambda: told.append(True)
    await writer.terminate()
    assert await read(cursor, 3) == texts(0, 3)
    assert told
    assert shadow.terminated
    cursor.acknowledge_cumulative(writer.last_confirmed)
    await shadow.close()
    again = await world.shadow(None)
    assert again.terminated
    assert again.cursors["s"].backlog_entries == 0
