"""Topics to which nobody publishes any more: what is not needed leaves the bookies all the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, ShiftedClock
from magnetar.broker.topics.sweep import WORK_AT_ONCE, Job, Sweeper
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.topics.upkeep import Upkeep, _roll, _trim
from magnetar.core.clock import SystemClock
from magnetar.core.ids import EARLIEST
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.states import ManagedLedgerState
from magnetar.managed.testing import ManagedWorld, append
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.subscription_stage import Timers

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
HOUR_SECONDS = 3_600
DAY_SECONDS = 24 * HOUR_SECONDS
OLD_SECONDS = 5 * HOUR_SECONDS
"""Older than a ledger may become."""


class World:
    def __init__(self, broker: MemoryBroker, client: ProtocolClient, clock: ShiftedClock) -> None:
        self.broker = broker
        self.client = client
        self.clock = clock

    @property
    def topic(self) -> PersistentTopic:
        found = self.broker.service.topics[TOPIC]
        assert isinstance(found, PersistentTopic)
        return found

    @property
    def entries(self) -> list[int]:
        """Of each ledger of the topic."""
        return [record.entries for record in self.topic.ledger.ledgers.records()]

    async def stored(self) -> set[int]:
        """The ledgers that bookies keep: those that have metadata."""
        assert self.broker.ledgers is not None
        return {ledger_id async for ledger_id in self.broker.ledgers.metadata.ledger_ids()}

    async def publish(self, count: int = 3, **fields: Any) -> int:
        """Messages of this moment, in one ledger; its id."""
        ids = await self.client.publish(count, publish_time=self.clock.now_ms(), **fields)
        (ledger_id,) = {each.ledgerId for each in ids}
        assert isinstance(ledger_id, int)
        return ledger_id

    async def consume(self, count: int = 3) -> None:
        """Take messages and acknowledge them."""
        ids = [each.body.message_id for each in await self.client.messages(count)]
        answer = await self.client.request(
            Command.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids
        )
        assert answer.name == "ACK_RESPONSE"

    async def look(self) -> None:
        """What the broker does now and then."""
        await self.broker.service.upkeep.check_now("rollover")
        await self.broker.service.upkeep.check_now("retention")


@asynccontextmanager
async def world(ledgers: ManagedLedgerSettings | None = None, **settings: Any) -> AsyncIterator[World]:
    clock = ShiftedClock()
    broker_settings = BrokerSettings(policies=PolicySettings(delete_inactive_topics=False, **settings))
    async with MemoryBroker(broker_settings, ledgers, clock) as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        await client.consumer(TOPIC, subType=1)
        yield World(broker, client, clock)


@pytest.mark.slow
async def test_what_was_consumed_leaves_the_bookies_though_nobody_publishes_any_more() -> None:
    """By the broker's own timer, and nothing but time."""
    async with world() as it:
        ledger_id = await it.publish()
        await it.consume()
        assert ledger_id in await it.stored()
        it.clock.advance(OLD_SECONDS)
        await until(lambda: it.entries == [0])
        async with asyncio.timeout(10):
            while ledger_id in await it.stored():
                await asyncio.sleep(0.01)
        last = await it.client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)
        assert last.name == "GET_LAST_MESSAGE_ID_RESPONSE"
        assert last.body.last_message_id.entryId == pb.MessageIdData(entryId=2**64 - 1).entryId
        await it.publish(1, first=3)
        await it.consume(1)


async def test_what_expired_leaves_as_well() -> None:
    async with world(message_ttl_seconds=60) as it:
        ledger_id = await it.publish()
        it.clock.advance(OLD_SECONDS)
        await it.broker.service.upkeep.check_now("message expiry")
        await it.look()
        assert it.entries == [0]
        assert ledger_id not in await it.stored()


async def test_what_is_not_consumed_stays_and_goes_with_the_last_acknowledgement() -> None:
    async with world() as it:
        ledger_id = await it.publish()
        it.clock.advance(OLD_SECONDS)
        await it.look()
        assert it.entries == [3, 0]
        assert ledger_id in await it.stored()
        await it.consume()
        await until(lambda: it.entries == [0])


async def test_retention_by_time_is_kept_on_a_silent_topic() -> None:
    async with world(retention_minutes=24 * 60, retention_megabytes=-1) as it:
        ledger_id = await it.publish()
        await it.consume()
        it.clock.advance(OLD_SECONDS)
        await it.look()
        it.clock.advance(23 * HOUR_SECONDS)
        await it.look()
        assert (it.entries, ledger_id in await it.stored()) == ([3, 0], True)
        it.clock.advance(2 * HOUR_SECONDS)
        await it.look()
        assert (it.entries, ledger_id in await it.stored()) == ([0], False)


@pytest.mark.parametrize("restarted", [False, True])
async def test_retention_counts_from_when_a_delayed_message_was_due(restarted: bool) -> None:
    """Delivered after three days and kept for seven: it goes on the tenth day, and not on the seventh."""
    async with world(retention_minutes=7 * 24 * 60, retention_megabytes=-1) as it:
        due_ms = it.clock.now_ms() + 3 * DAY_SECONDS * 1_000
        it.client.send(Command.FLOW, consumer_id=1, messagePermits=10)
        ledger_id = await it.publish(1, deliver_at_time=due_ms)
        await until(lambda: it.topic.ledger.ledgers.last().due_ms == due_ms)
        it.clock.advance(OLD_SECONDS)
        await it.look()
        it.clock.advance(3 * DAY_SECONDS - OLD_SECONDS + 1)
        it.client.send(Command.CLOSE_CONSUMER, consumer_id=1, request_id=1_000)
        await it.client.consumer(TOPIC, consumer_id=2, subType=1)
        (received,) = await it.client.messages(1, consumer_id=2)
        ids = [received.body.message_id]
        answer = await it.client.request(Command.ACK, consumer_id=2, ack_type=0, message_id=ids)
        assert answer.name == "ACK_RESPONSE"
        if restarted:
            await it.broker.stop()
            await it.broker.start()
            it.client = await it.broker.connect()
            await it.client.producer(TOPIC)
        it.clock.advance(7 * DAY_SECONDS - 60)
        await it.look()
        assert (it.entries, ledger_id in await it.stored()) == ([1, 0], True)
        it.clock.advance(120)
        await it.look()
        assert (it.entries, ledger_id in await it.stored()) == ([0], False)


async def test_a_ledger_of_the_broker_that_is_no_topics_goes_the_same_way() -> None:
    async with world() as it:
        ledger = await it.broker.service.ledgers.open("public/default/persistent/log")
        cursor = await ledger.open_cursor("reader", EARLIEST)
        (before,) = ledger.ledgers.ids
        await append(ledger, [b"record"])
        await cursor.clear_backlog()
        it.clock.advance(OLD_SECONDS)
        await it.look()
        assert before not in await it.stored()


async def test_with_the_look_at_retention_switched_off_a_roll_still_lets_go() -> None:
    async with world(retention_check_seconds=0) as it:
        assert [job.name for job in it.broker.service.upkeep._ledgers.jobs] == ["rollover", "offload"]
        ledger_id = await it.publish()
        await it.consume()
        it.clock.advance(OLD_SECONDS)
        await it.broker.service.upkeep.check_now("rollover")
        await until(lambda: it.entries == [0])
        assert ledger_id not in it.topic.ledger.ledgers.ids


class CountedLedger:
    """What the sweeps ask of a managed ledger."""

    def __init__(self, *, due: bool = True) -> None:
        self.due_for_rollover = self.due_for_trimming = due
        self.rolled = self.trimmed = self.offloaded = 0
        self.offloads = self

    def later(self) -> None:
        """From the sweep: offload what is due."""
        self.offloaded += 1

    async def roll_if_due(self) -> None:
        self.rolled += 1

    async def trim_if_due(self) -> None:
        self.trimmed += 1


@pytest.mark.parametrize("interval_seconds", [7, 500])
async def test_the_setting_says_how_often_retention_is_looked_at(interval_seconds: int) -> None:
    timers, ledger, tasks = Timers(), CountedLedger(), list[asyncio.Task[None]]()
    service: Any = SimpleNamespace(
        settings=BrokerSettings(policies=PolicySettings(retention_check_seconds=interval_seconds)),
        clock=timers,
        policies=SimpleNamespace(watch=lambda _: lambda: None, retry=lambda: None),
        topics={},
        ledgers=SimpleNamespace(opened=lambda: [ledger], cache_rates=SimpleNamespace(end_period=lambda seconds: None)),
        spawn=lambda work: tasks.append(asyncio.get_running_loop().create_task(work)),
    )
    upkeep = Upkeep(service, timers.call_later)
    upkeep.start()
    for _ in range(1_010):
        timers.advance(1_000)
        await asyncio.sleep(0)
    upkeep.stop()
    await asyncio.gather(*tasks)
    assert 1_000 // interval_seconds * 7 // 8 <= ledger.trimmed <= 1_010 // interval_seconds
    assert 14 <= ledger.rolled <= 16, "each minute"
    assert 14 <= ledger.offloaded <= 16, "each minute, too"


async def test_very_many_silent_topics_are_rolled_a_few_at_a_time() -> None:
    it = ManagedWorld()
    factory = it.factory(ManagedLedgerSettings(retention_time_ms=-1, retention_size_bytes=-1))
    ledgers = [await factory.open(f"public/default/persistent/{number}") for number in range(100)]
    for ledger in ledgers:
        await append(ledger, [b"a"])
    it.clock.ms += OLD_SECONDS * 1_000
    tasks: list[asyncio.Task[None]] = []
    timers = Timers()
    sweeper: Sweeper[ManagedLedger] = Sweeper(
        factory.opened,
        timers,
        timers.call_later,
        lambda work: tasks.append(asyncio.get_running_loop().create_task(work)),
    )
    sweeper.add(Job("rollover", 1, _roll))
    sweeper.start()
    timers.advance(2_000)
    most = 0
    while not all(task.done() for task in tasks):
        rolling = [one for one in ledgers if one.state is not ManagedLedgerState.LEDGER_OPENED]
        most = max(most, len(rolling))
        await asyncio.sleep(0)
    sweeper.stop()
    assert 1 < most <= WORK_AT_ONCE
    assert {tuple(record.entries for record in one.ledgers.records()) for one in ledgers} == {(1, 0)}
    await it.close()


def longest_turn_seconds(ledger: ManagedLedger, times: int) -> float:
    """Of the sweeps, by the processor's time, over so many ledgers."""
    turns: list[Callable[[], None]] = []
    ended: list[str] = []

    def call_later(_seconds: float, turn: Callable[[], None]) -> Any:
        turns.append(turn)
        return SimpleNamespace(cancel=lambda: None)

    sweeper: Sweeper[ManagedLedger] = Sweeper(
        lambda: [ledger] * times, SystemClock(), call_later, lambda work: work.close()
    )
    sweeper.run_once(Job("rollover", 0, _roll, lambda: ended.append("rollover")))
    sweeper.run_once(Job("retention", 0, _trim, lambda: ended.append("retention")))
    sweeper.start()
    longest = 0.0
    while len(ended) < 2:
        began = time.process_time()
        turns.pop()()
        longest = max(longest, time.process_time() - began)
    sweeper.stop()
    return longest


@pytest.mark.slow
async def test_no_turn_is_long_with_a_hundred_thousand_silent_topics() -> None:
    it = ManagedWorld()
    factory = it.factory(ManagedLedgerSettings(retention_time_ms=-1, retention_size_bytes=-1))
    ledger = await factory.open("public/default/persistent/topic")
    for name in ("one", "two", "three"):
        await ledger.open_cursor(name, EARLIEST)
    for _ in range(3):
        await append(ledger, [b"a"])
        await ledger.roll()
    await append(ledger, [b"a"])
    assert min(longest_turn_seconds(ledger, 100_000) for _ in range(3)) < 0.05
    await it.close()
