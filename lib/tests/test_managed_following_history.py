"""Histories by chance: writers that crash, roll over and trim, bookies, owners and stores that are away, and followers
beside them. What a follower shows is what the topic is found to hold in the end, in order and without a gap."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace

import pytest
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed.append_path import AppendCallback
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.following_world import POLICY, Followed, FollowedWorld

new_event_loop = VirtualTimeLoop

STEPS = 120
SEEDS = 40


@pytest.fixture
async def world() -> AsyncIterator[FollowedWorld]:
    world = FollowedWorld()
    yield world
    await world.close()


class Reader:
    """A cursor at a follower, and what it was given."""

    def __init__(self, followed: Followed, rng: random.Random) -> None:
        self.followed = followed
        self.cursor: Cursor = followed.ledger.new_non_durable_cursor("reader", EARLIEST)
        self.found: list[tuple[Position, bytes]] = []
        self._rng = rng

    async def read_some(self) -> None:
        """What is there, as far as it can be had now."""
        try:
            entries = await self.cursor.read(self._rng.randint(1, 9), 1 << 20)
        except MagnetarError:
            return
        self.found += [(entry.position, entry.data) for entry in entries]


class History:
    """One of them."""

    def __init__(self, world: FollowedWorld, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.policy = replace(POLICY, max_entries_per_ledger=self.rng.choice((3, 10, 1000)))
        if seed % 4 == 3:
            self.policy = replace(self.policy, ensemble_size=4, write_quorum=2, ack_quorum=2)
        self.trims = seed % 3 == 2
        if self.trims:
            self.policy = replace(self.policy, retention_time_ms=0, retention_size_bytes=0)
        self.written = 0
        self.writer: ManagedLedger | None = None
        self.readers: list[Reader] = []
        self.truth: dict[Position, bytes] = {}
        """Every entry that an owner has confirmed, or that the last one has found."""
        self.slow: Cursor | None = None
        self.failure: Exception | None = None

    async def run(self) -> None:
        for _ in range(4):
            self.world.bookies.add_bookie()
        await self.open()
        following = FollowSettings(unconfirmed_bytes_max=self.rng.choice((1, 1 << 20)))
        for cache_bytes_max in (0, 1 << 20):
            followed = await self.world.follower(
                self.writer, following, cache_bytes_max=cache_bytes_max, policy=self.policy
            )
            self.readers.append(Reader(followed, self.rng))
        for _ in range(STEPS):
            await self.step()
        await self.end()

    async def step(self) -> None:
        action = self.rng.choices(
            ("append", "read", "wait", "roll", "crash", "owner", "store", "bookie", "heal", "trim", "session"),
            (30, 25, 15, 5, 3, 4, 3, 5, 6, 5, 1),
        )[0]
        await getattr(self, f"do_{action}")()

    async def do_read(self) -> None:
        await self.rng.choice(self.readers).read_some()

    async def do_wait(self) -> None:
        await asyncio.sleep(self.rng.choice((0, 0.001, 0.02, 0.5)))

    async def do_roll(self) -> None:
        if self.writer is not None:
            await self.attempt(self.writer.roll())

    async def do_crash(self) -> None:
        if self.writer is not None:
            await self.writer.abandon()
            self.own(None)
        await self.open()

    async def do_owner(self) -> None:
        for reader in self.readers:
            reader.followed.owner.away = self.rng.random() < 0.5

    async def do_store(self) -> None:
        self.world.store_away = self.rng.random() < 0.5

    async def do_bookie(self) -> None:
        bookie = self.rng.choice(list(self.world.bookies.bookies.values()))
        self.rng.choice((bookie.stop, bookie.hang, bookie.mute))()

    async def do_heal(self) -> None:
        for bookie in self.world.bookies.bookies.values():
            bookie.heal()

    async def do_trim(self) -> None:
        if self.writer is None or self.slow is None:
            return
        if not self.slow.closed:
            self.slow.acknowledge_cumulative(min(reader.cursor.read_position for reader in self.readers))
        await self.attempt(self.writer.trim())

    async def do_session(self) -> None:
        self.rng.choice(self.world.sessions).expire_session()

    async def attempt(self, work: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout(5):
                await work
        except (MagnetarError, TimeoutError):
            return

    async def open(self) -> None:
        try:
            async with asyncio.timeout(20):
                writer = await self.world.writer(self.policy)
                self.slow = await writer.open_cursor("slow", EARLIEST) if self.trims else None
        except (MagnetarError, TimeoutError) as error:
            self.failure = error
            return
        self.own(writer)
        await self.learn()

    def own(self, writer: ManagedLedger | None) -> None:
        self.writer = writer
        for reader in self.readers:
            reader.followed.owner.writer = writer

    async def learn(self) -> None:
        """What the owner has found is there for good."""
        assert self.writer is not None
        cursor = self.writer.new_non_durable_cursor("truth", EARLIEST)
        try:
            while entries := await cursor.read(100, 1 << 20):
                self.truth.update((entry.position, entry.data) for entry in entries)
        except MagnetarError:
            return
        finally:
            await cursor.close()

    async def do_append(self) -> None:
        writer = self.writer
        if writer is None or writer.appends.refusal() is not None:
            return
        payloads = [b"%d" % (self.written + each) for each in range(self.rng.choice((1, 1, 1, 2, 20)))]
        self.written += len(payloads)
        for payload in payloads:
            # One by one: of batches an owner shows whole ones only.
            writer.appends.append([payload], self.noting(payload), None)

    def noting(self, payload: bytes) -> AppendCallback:
        def done(error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
            if error is None:
                self.truth[ledger_id, first_entry_id] = payload

        return done

    async def end(self) -> None:
        """Everything is well again: all is read, and it is what there is."""
        await self.do_heal()
        self.world.store_away = False
        await asyncio.sleep(5)
        if self.writer is not None:
            await self.writer.abandon()
        self.own(None)
        for _ in range(5):
            if self.writer is None:
                await self.open()
        assert self.writer is not None, self.failure
        for reader in self.readers:
            reader.followed.owner.away = False
            last = self.writer.last_confirmed
            await reader.followed.until_shown(last)
            async with asyncio.timeout(60):
                while reader.cursor.read_position <= last:
                    await reader.read_some()
                    await asyncio.sleep(0.01)
        await self.learn()
        for reader in self.readers:
            self.check(reader)

    def check(self, reader: Reader) -> None:
        found = [position for position, _ in reader.found]
        assert found == sorted(set(found))
        for position, payload in reader.found:
            assert self.truth.get(position) == payload, f"{position} was shown and is not there"
        assert found == sorted(self.truth), "entries were passed over"
        ledger = reader.followed.ledger
        assert ledger.state.value == "Followed"
        assert self.writer is not None
        assert ledger.ledgers.ids == self.writer.ledgers.ids
        assert ledger.last_confirmed == self.writer.last_confirmed


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_history(world: FollowedWorld, seed: int) -> None:
    await History(world, seed).run()
