"""Managed ledgers that another process writes, over the real ledger client and bookies in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pytest
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.ledger.bookie_client.bookie_connection import READ_FLAG_NONE, AddCallback
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.testing import MemoryBookie, MemoryBookies
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.errors import ManagedLedgerNotFound, ManagedLedgerReadOnly
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.following.followed_ledger import FollowedLedger
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.following.testing import READS, WriterAsOwner
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.paths import ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.testing import ManualClock, append, read_all
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.metadata.memory import MemoryMetadataStore

NAME = "public/default/persistent/topic"
POLICY = ManagedLedgerSettings(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    minimum_rollover_ms=0,
    retention_time_ms=-1,
    retention_size_bytes=-1,
)
FOLLOWING = FollowSettings(look_pause_seconds_min=0.001, look_pause_seconds_max=0.01, ask_pause_seconds_min=0.001)
PATIENCE_SECONDS = 20.0


class OnlyReadBookie(MemoryBookie):
    """The way of a follower to a bookie: whatever would change it fails the test."""

    def __init__(self, bookie: MemoryBookie) -> None:
        super().__init__(bookie.bookie_id)
        self._bookie = bookie
        self.looks = 0

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddCallback,
    ) -> None:
        raise AssertionError("a follower adds entries")

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = READ_FLAG_NONE, master_key: bytes = b""
    ) -> bytes:
        assert flags == READ_FLAG_NONE, "a follower fences"
        return await self._bookie.read_entry(ledger_id, entry_id)

    async def read_entries(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_bytes_max: int
    ) -> list[bytes]:
        self.looks += 1
        return await self._bookie.read_entries(ledger_id, first_entry_id, count_max, size_bytes_max)


class OnlyReadBookies(MemoryBookies):
    """All bookies, seen so."""

    def __init__(self, bookies: MemoryBookies) -> None:
        super().__init__(0)
        self._all = bookies
        self._seen: dict[str, OnlyReadBookie] = {}

    def connection(self, bookie_id: str) -> OnlyReadBookie:
        if bookie_id not in self._seen:
            self._seen[bookie_id] = OnlyReadBookie(self._all.connection(bookie_id))
        return self._seen[bookie_id]

    @property
    def looks(self) -> int:
        return sum(each.looks for each in self._seen.values())


@dataclass
class Followed:
    """A follower with what it stands on."""

    ledger: FollowedLedger
    owner: WriterAsOwner
    store: FaultyStore
    bookies: OnlyReadBookies

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not reached():
                await asyncio.sleep(0.001)

    async def until_shown(self, position: Position) -> None:
        await self.until(lambda: self.ledger.last_confirmed >= position)

    async def read(self, cursor: Cursor, count: int) -> list[bytes]:
        """So many payloads, waited for."""
        found: list[bytes] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(found) < count:
                found += await read_all(cursor)
                await asyncio.sleep(0.001)
        return found


Closing: TypeAlias = tuple[ManagedLedgerFactory, BookKeeperClient, MemoryMetadataStore]


class FollowedWorld:
    """Bookies and metadata, writers and followers, each with a client and a session of its own."""

    def __init__(self) -> None:
        self.bookies = MemoryBookies(3)
        self.store = MemoryMetadataStore()
        self.clock = ManualClock()
        self.settings = LedgerClientSettings(add_timeout_seconds=0.05, speculative_read_seconds=0.05)
        self.store_away = False
        self._opened: list[Closing] = []

    async def writer(self, policy: ManagedLedgerSettings = POLICY) -> ManagedLedger:
        store = self.store.another_session()
        client = BookKeeperClient(store, self.bookies, rng=random.Random(1), settings=self.settings)
        factory = ManagedLedgerFactory(store, client, self.clock, asyncio.get_running_loop())
        self._opened.append((factory, client, store))
        return await factory.open(NAME, policy)

    async def follower(
        self,
        writer: ManagedLedger,
        following: FollowSettings = FOLLOWING,
        *,
        cache_bytes_max: int = 1 << 20,
        policy: ManagedLedgerSettings = POLICY,
    ) -> Followed:
        session = self.store.another_session()
        store = FaultyStore(session, self._fate)
        bookies = OnlyReadBookies(self.bookies)
        client = BookKeeperClient(store, bookies, rng=random.Random(1), settings=self.settings)
        loop = asyncio.get_running_loop()
        factory = ManagedLedgerFactory(store, client, self.clock, loop, cache_bytes_max=cache_bytes_max)
        self._opened.append((factory, client, session))
        owner = WriterAsOwner(writer)
        return Followed(await factory.follow(NAME, owner, policy, following), owner, store, bookies)

    def _fate(self, verb: str, path: str) -> RequestFate:
        assert verb in READS, f"a follower asks the store to {verb} {path}"
        return RequestFate.REFUSED if self.store_away else RequestFate.DONE

    async def close(self) -> None:
        self.store_away = False
        for bookie in self.bookies.bookies.values():
            bookie.heal()
        for factory, client, store in reversed(self._opened):
            await factory.close()
            await client.close()
            await store.close()
        await self.store.close()


@pytest.fixture
async def world() -> AsyncIterator[FollowedWorld]:
    world = FollowedWorld()
    yield world
    await world.close()


def texts(first: int, count: int) -> list[bytes]:
    return [b"%d" % each for each in range(first, first + count)]


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


async def test_a_read_that_raced_a_trim_goes_on_behind_it(world: FollowedWorld) -> None:
    policy = ManagedLedgerSettings(ensemble_size=3, write_quorum=3, ack_quorum=2, minimum_rollover_ms=0)
    writer = await world.writer(policy)
    slow = await writer.open_cursor("slow", EARLIEST)
    for number in range(2):
        await append(writer, texts(number * 5, 5))
        await writer.roll()
    followed = await world.follower(writer, cache_bytes_max=0)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    world.store_away = True  # The follower does not hear of it in time.
    slow.acknowledge_cumulative((writer.ledgers.ids[0], 4))
    gone = writer.ledgers.ids[0]
    await writer.trim()
    for bookie in world.bookies.bookies.values():
        bookie.ledgers.pop(gone, None)
    assert gone in followed.ledger.ledgers.ids
    world.store_away = False
    assert await read_all(cursor) == texts(5, 5)


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
    assert (await world.follower(writer)).ledger.terminated


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


async def test_nothing_is_asked_while_nobody_reads(world: FollowedWorld) -> None:
    writer = await world.writer()
    followed = await world.follower(writer)
    cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
    await append(writer, texts(0, 1))
    assert await followed.read(cursor, 1) == texts(0, 1)
    await cursor.close()
    await asyncio.sleep(0.02)
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
