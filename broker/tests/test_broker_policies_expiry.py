"""Messages expire, also beside entries that nobody can read."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, ShiftedClock
from magnetar.broker.topics.backlog import FAILED_READS_MAX, ExpirySearch
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.entry import Entry
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
TEN = ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0)
TTL_SECONDS = 60


class World:
    """A topic with a subscription that nobody uses, in ledgers of ten entries."""

    def __init__(self, broker: MemoryBroker, client: ProtocolClient, clock: ShiftedClock) -> None:
        self.broker = broker
        self.client = client
        self.clock = clock
        self.published = 0

    @property
    def topic(self) -> PersistentTopic:
        found = self.broker.service.topics[TOPIC]
        assert isinstance(found, PersistentTopic)
        return found

    @property
    def backlog(self) -> int:
        return self.topic.subscriptions["s"].backlog

    async def publish(self, count: int) -> None:
        """Messages of this moment, one entry each."""
        for _ in range(count):
            await self.client.publish(1, first=self.published, publish_time=self.clock.now_ms())
            self.published += 1

    async def expire(self) -> int:
        """One check; what is left of the backlog."""
        await self.broker.service.upkeep.check_now("message expiry")
        return self.backlog

    def positions(self) -> list[Position]:
        return [
            (record.ledger_id, at) for record in self.topic.ledger.ledgers.records() for at in range(record.entries)
        ]

    def lose(self, indexes: Collection[int]) -> None:
        """No bookie has these entries, and no cache."""
        positions = self.positions()
        for index in indexes:
            ledger_id, entry_id = positions[index]
            for bookie in self.broker.bookies.bookies.values():
                if ledger_id in bookie.ledgers:
                    bookie.ledgers[ledger_id].entries.pop(entry_id, None)
        for record in self.topic.ledger.ledgers.records():
            self.topic.ledger.cache.remove_ledger(record.ledger_id)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    clock = ShiftedClock()
    settings = BrokerSettings(policies=PolicySettings(message_ttl_seconds=TTL_SECONDS))
    async with MemoryBroker(settings, TEN, clock) as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        await client.consumer(TOPIC, "s", 1, subType=1)
        await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
        yield World(broker, client, clock)


@pytest.mark.parametrize("lost", [[0], [7], [12], [19], [0, 5, 12], [5, 6, 7]])
async def test_entries_that_nobody_can_read_expire_with_those_behind_them(lost: list[int]) -> None:
    async with world() as it:
        await it.publish(25)
        it.clock.advance(TTL_SECONDS / 2)
        await it.publish(5)
        it.lose(lost)
        assert await it.expire() == 30
        it.clock.advance(TTL_SECONDS / 2 + 1)
        assert await it.expire() == 5


async def test_ledgers_that_nobody_can_read_expire_by_the_time_of_their_close() -> None:
    async with world() as it:
        await it.publish(20)
        it.clock.advance(TTL_SECONDS / 2)
        await it.publish(15)
        it.lose(range(30))
        assert await it.expire() == 35
        it.clock.advance(TTL_SECONDS / 2 + 1)
        assert await it.expire() == 15
        it.clock.advance(TTL_SECONDS / 2 + 1)
        assert await it.expire() == 0


async def test_what_was_closed_too_late_to_tell_stays_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """The ledger in use, or one that was closed since: an entry without a reader may be of this moment."""
    async with world() as it:
        await it.publish(14)
        it.clock.advance(TTL_SECONDS + 1)
        await it.publish(2)
        it.lose(range(10, 16))
        with caplog.at_level(logging.WARNING):
            assert await it.expire() == 6
        ledger_id = it.topic.ledger.ledgers.ids[-1]
        assert f"expire no further than to entry {ledger_id}:0, whose age nobody can tell" in caplog.text
        await it.publish(6)
        it.clock.advance(TTL_SECONDS + 1)
        await it.publish(1)
        assert await it.expire() == 1


async def test_the_first_entry_that_nobody_can_read_lets_nothing_fresh_expire() -> None:
    async with world() as it:
        await it.publish(25)
        it.lose([0, 12, 24])
        assert await it.expire() == 25


async def test_nothing_expires_behind_a_message_that_is_fresh() -> None:
    """Also what a client with a wrong clock has published: everything waits for the oldest one."""
    async with world() as it:
        await it.publish(1)
        it.clock.advance(-2 * TTL_SECONDS)
        await it.publish(3)
        it.clock.advance(2 * TTL_SECONDS)
        assert await it.expire() == 4
        it.clock.advance(TTL_SECONDS + 1)
        assert await it.expire() == 0


async def test_a_topic_that_nobody_can_read_costs_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as it:
        await it.publish(45)
        it.lose(range(45))
        reads = 0
        read = ExpirySearch.is_fresh

        async def counted(self: ExpirySearch, position: Position) -> bool | None:
            nonlocal reads
            failed = self._failed_reads
            fresh = await read(self, position)
            reads += self._failed_reads - failed
            return fresh

        monkeypatch.setattr(ExpirySearch, "is_fresh", counted)
        it.clock.advance(TTL_SECONDS + 1)
        assert await it.expire() == 5
        assert reads == FAILED_READS_MAX


async def test_entries_that_nobody_can_read_are_asked_for_once_in_a_search() -> None:
    """Four of the five failures that a search may meet, and the one behind them tells of them all."""
    async with world() as it:
        await it.publish(9)
        it.lose([4, 5, 6, 7])
        it.clock.advance(TTL_SECONDS + 1)
        assert await it.expire() == 0


async def test_what_the_compactor_has_not_seen_does_not_expire() -> None:
    async with world() as it:
        compactor = await it.topic.create_subscription(COMPACTION_CURSOR, EARLIEST)
        await it.publish(10)
        it.clock.advance(TTL_SECONDS + 1)
        assert await it.expire() == 0
        assert compactor.backlog == 10


async def test_a_search_begins_anew_when_the_topic_is_trimmed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as it:
        await it.publish(30)
        it.clock.advance(TTL_SECONDS + 1)
        await it.publish(5)
        ledger = it.topic.ledger
        read = ledger.read_entry
        trimmed = False

        async def trimming(self: ManagedLedger, position: Position) -> Entry:
            nonlocal trimmed
            found = await read(position)
            if not trimmed:
                trimmed = True
                it.topic.subscriptions["s"].cursor.acknowledge_cumulative((ledger.ledgers.ids[1], 9))
                await ledger.trim(retain=False)
            return found

        monkeypatch.setattr(ManagedLedger, "read_entry", trimming)
        search = ExpirySearch(ledger, it.clock.now_ms() - 1000 * TTL_SECONDS)
        first = ledger.ledgers.ids[0]
        assert await search.last_expired() == (ledger.ledgers.ids[0], 9)
        assert ledger.ledgers.ids[0] != first
