"""Settings of ledgers and their cache that change while a broker runs: what topics that are there do then."""

from __future__ import annotations

import time
from typing import Final

import pytest
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.ids import Position
from magnetar.managed.ledger_list import LedgerList, LedgerRecord
from magnetar.managed.settings import ManagedLedgerSettings

TOPIC: Final = "persistent://public/default/t"
SKEW: Final = "managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis"
CACHE_AGE: Final = "managedLedgerCacheEvictionTimeThresholdMillis"
HOUR_MS: Final = 3_600_000


def ledgers_of_a_day() -> LedgerList:
    """Ten entries were written in each of the hours 1, 2 and 3, and five in the ledger that is in use."""
    closed = [LedgerRecord(number, 10, 0, number * HOUR_MS) for number in (1, 2, 3)]
    return LedgerList([*closed, LedgerRecord(4, 5)])


@pytest.mark.parametrize(
    ("time_ms", "skew_ms", "expected"),
    [
        (0, 0, (0, 10)),
        (HOUR_MS - 1, 0, (0, 10)),
        (HOUR_MS, 0, (10, 20)),
        (HOUR_MS + 60_000, 60_000, (10, 20)),
        (HOUR_MS + 59_999, 60_000, (0, 20)),
        (HOUR_MS - 60_000, 60_000, (0, 20)),
        (HOUR_MS - 60_001, 60_000, (0, 10)),
        (3 * HOUR_MS, 0, (30, 35)),
        (9 * HOUR_MS, 60_000, (30, 35)),
        (2 * HOUR_MS, 9 * HOUR_MS, (0, 35)),
    ],
)
def test_between_which_ledgers_a_time_is(time_ms: int, skew_ms: int, expected: tuple[int, int]) -> None:
    assert ledgers_of_a_day().indexes_around(time_ms, skew_ms) == expected


async def test_a_seek_to_a_time_believes_the_ledgers_or_the_messages() -> None:
    """The publishers' clock is a day ahead of the brokers'."""
    ledgers = ManagedLedgerSettings(max_entries_per_ledger=4, minimum_rollover_ms=0)
    async with MemoryBroker(ledgers=ledgers) as broker:
        client = await broker.connect()
        await client.consumer(TOPIC)
        await client.producer(TOPIC)
        topic, dynamic = broker.service.topics[TOPIC], broker.running.context.dynamic
        now_ms = int(time.time() * 1000)
        for first, count in ((0, 4), (4, 4), (8, 2)):
            await client.publish(count, first=first, publish_time=now_ms + 24 * HOUR_MS)
        closed = [record.entries for record in topic.ledger.ledgers.records() if record.closed_ms]
        assert closed == [4, 4]

        async def found() -> int:
            """How many entries come before the one that reading would go on with."""
            position: Position = await topic.position_of_time(now_ms + 2 * HOUR_MS)
            return int(topic.ledger.ledgers.entries_between((-1, -1), position)) - 1

        assert await found() == 8, "the closed ledgers were written before that"
        await dynamic.set(SKEW, "-1")
        assert await found() == 0
        await dynamic.set(SKEW, str(3 * HOUR_MS))
        assert await found() == 0
        await dynamic.remove(SKEW)
        assert await found() == 8


async def test_what_cannot_be_read_now_is_given_up_by_force_at_once() -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        dynamic, topic = broker.running.context.dynamic, broker.service.topics[TOPIC]
        for switched in (True, False):
            for name in ("schemaLedgerForceRecovery", "managedLedgerForceRecovery"):
                await (dynamic.set(name, "true") if switched else dynamic.remove(name))
            assert broker.service.schemas.unreadable_is_lost is switched
            assert topic.ledger.settings.cursors_recovered_by_force is switched


async def test_entries_that_are_too_old_leave_the_cache() -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        await client.consumer(TOPIC)
        await client.producer(TOPIC)
        await client.publish(50)
        cache, dynamic = broker.service.ledgers.cache, broker.running.context.dynamic
        assert cache.size_bytes > 0
        await dynamic.set(CACHE_AGE, "3600000")
        assert cache.size_bytes > 0
        await dynamic.set(CACHE_AGE, "1")
        await until(lambda: cache.size_bytes == 0)
        assert cache.evicted_entries == 50
        await client.publish(50, first=50)
        await until(lambda: cache.size_bytes == 0)
        await dynamic.remove(CACHE_AGE)
        await client.publish(50, first=100)
        assert cache.size_bytes > 0
        await client.messages(150, permits=150)
