"""Who starts a compaction: thresholds, brokers for their own topics, administrators; and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from magnetar.broker.compaction.compacted_topic import compaction_of
from magnetar.broker.compaction.record import LATENCY_MS, CompactionRecord
from magnetar.broker.compaction.topic_compaction import (
    RETRY_SECONDS_FIRST,
    RUNS_AT_ONCE,
    AlreadyCompacting,
    TopicCompaction,
)
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import BacklogQuotaPolicy, CompactionOrder, PolicySettings
from magnetar.broker.testing.sessions import MemoryBroker, ShiftedClock
from magnetar.client.consumer import ConsumerOptions
from magnetar.core.settings_file import GivenSettings
from magnetar.core.topic_name import TopicName
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.wire.pulsar.errors import PulsarError

from broker.tests.compaction_world import TOPIC, CompactionWorld, until

PATH = "/admin/v2/persistent/public/default/t"
PARTS = "/admin/v2/persistent/public/default/parts"


@pytest.fixture
async def world(memory_broker: MemoryBroker) -> AsyncIterator[CompactionWorld]:
    world = CompactionWorld(memory_broker)
    yield world
    await world.close()


def with_threshold(size_bytes: int, **settings: Any) -> BrokerSettings:
    return BrokerSettings(policies=PolicySettings(compaction_threshold_bytes=size_bytes, **settings))


# --- by itself


async def test_a_threshold_keeps_what_is_not_compacted() -> None:
    async with MemoryBroker(with_threshold(1 << 40)) as broker:
        world = CompactionWorld(broker)
        await world.publish(("a", "1"), ("a", "2"))
        assert COMPACTION_CURSOR in (await world.ledger()).cursors
        await world.trim()
        assert (await world.ledger()).ledgers.number_of_entries() == 2
        await world.close()


async def test_more_than_a_threshold_is_compacted() -> None:
    clock = ShiftedClock()
    async with MemoryBroker(with_threshold(1_000), clock=clock) as broker:
        world = CompactionWorld(broker)
        await world.publish(("a", "1"), ("a", "2"))
        await broker.service.upkeep.check_now("compaction")
        assert (await world.topic()).compaction is None
        await world.publish(*(("b", "x" * 100) for _ in range(10)))
        await broker.service.upkeep.check_now("compaction")
        compaction = await world.compaction()
        await until(lambda: compaction.status["status"] == "SUCCESS")
        assert await world.read() == [("a", "2"), ("b", "x" * 100)]
        await broker.service.upkeep.check_now("compaction")
        assert compaction.record.succeeded == 1
        await world.publish(*(("b", "y" * 100) for _ in range(10)))
        await broker.service.upkeep.check_now("compaction")
        await until(lambda: compaction.record.succeeded == 2)
        await world.close()


async def test_a_threshold_that_is_set_later(world: CompactionWorld, admin: Any) -> None:
    await world.publish(("a", "1"))
    assert COMPACTION_CURSOR not in (await world.ledger()).cursors
    await admin.check(("PUT", "/admin/v2/namespaces/public/default/compactionThreshold", 10, 204, None))
    ledger = await world.ledger()
    await until(lambda: COMPACTION_CURSOR in ledger.cursors)


async def test_no_limit_of_subscriptions_concerns_it() -> None:
    async with MemoryBroker(with_threshold(0, subscriptions_per_topic_max=1)) as broker:
        world = CompactionWorld(broker)
        await world.client.consumer(TOPIC, ConsumerOptions(subscription="s"))
        await world.publish(("a", "1"))
        assert (await world.compact())["status"] == "SUCCESS"
        await world.close()


async def test_topics_of_brokers_are_compacted_always(world: CompactionWorld, admin: Any) -> None:
    """Topic policies: a message for each change, of which the last one counts."""
    await admin.check(("PUT", PATH, None, 204, None))
    for size in (1, 2, 3):
        await admin.check(("POST", PATH + "/maxProducers", size, 204, None))
    name = TopicName.parse("persistent://public/default/__change_events")
    events = await world.broker.service.topic(name, create=False)
    assert events.ledger.ledgers.number_of_entries() == 3
    await world.broker.service.upkeep.check_now("compaction")
    await until(lambda: events.compaction is not None and events.compaction.record.succeeded == 1)
    found = compaction_of(events.ledger)
    assert found is not None
    assert events.compaction.record.removed == 2
    await world.broker.service.unload(TOPIC)
    await admin.check(("GET", PATH + "/maxProducers", None, 200, 3))


async def test_what_failed_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ShiftedClock()
    async with MemoryBroker(with_threshold(10, compaction_keys_max=1), clock=clock) as broker:
        world = CompactionWorld(broker)
        await world.publish(("a", "1"), ("b", "1"))
        compaction = await world.compaction()
        for seconds in (0.0, 1.0, RETRY_SECONDS_FIRST, RETRY_SECONDS_FIRST, RETRY_SECONDS_FIRST):
            clock.advance(seconds)
            await broker.service.upkeep.check_now("compaction")
            await until(lambda: compaction.status["status"] == "ERROR")
        assert compaction.record.failed == 3
        assert "more than 1 keys" in compaction.status["lastError"]
        assert await world.compacted_ledgers() == set()
        await world.close()


# --- one at a time


async def test_so_many_at_once(world: CompactionWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[TopicCompaction] = set()
    highest = 0
    go_on = asyncio.Event()
    whole = TopicCompaction._run

    async def held(compaction: TopicCompaction, run: Any) -> None:
        nonlocal highest
        running.add(compaction)
        highest = max(highest, len(running))
        await go_on.wait()
        await whole(compaction, run)
        running.discard(compaction)

    monkeypatch.setattr(TopicCompaction, "_run", held)
    compactions = []
    for number in range(RUNS_AT_ONCE + 3):
        name = TopicName.parse(f"persistent://public/default/t{number}")
        compactions.append(world.broker.service.compaction(await world.broker.service.topic(name, create=True)))
        compactions[-1].start()
    await until(lambda: len(running) == RUNS_AT_ONCE)
    assert {compaction.status["status"] for compaction in compactions} == {"RUNNING"}
    with pytest.raises(AlreadyCompacting):
        compactions[-1].start()
    go_on.set()
    await until(lambda: all(compaction.status["status"] == "SUCCESS" for compaction in compactions))
    assert highest == RUNS_AT_ONCE


async def test_clients_do_not_compact(world: CompactionWorld) -> None:
    """`pulsar compact-topic` subscribes so, and acknowledges what it has read."""
    await world.publish(("a", "1"))
    with pytest.raises(PulsarError, match="by their brokers"):
        await world.client.consumer(TOPIC, ConsumerOptions(subscription=COMPACTION_CURSOR, read_compacted=True))
    assert compaction_of(await world.ledger()) is None


# --- by administrators


async def test_by_request(world: CompactionWorld, admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.publish(("a", "1"), ("a", "2"), ("b", "1"))
    go_on = asyncio.Event()
    whole = TopicCompaction._run

    async def held(compaction: TopicCompaction, run: Any) -> None:
        await go_on.wait()
        await whole(compaction, run)

    monkeypatch.setattr(TopicCompaction, "_run", held)
    await admin.check(
        ("GET", PATH + "/compaction", None, 200, {"status": "NOT_RUN", "lastError": ""}),
        ("PUT", PATH + "/compaction", None, 204, None),
        ("GET", PATH + "/compaction", None, 200, {"status": "RUNNING", "lastError": ""}),
        ("PUT", PATH + "/compaction", None, 409, "Compaction already in progress"),
    )
    go_on.set()
    compaction = await world.compaction()
    await until(lambda: compaction.status["status"] != "RUNNING")
    await admin.check(("GET", PATH + "/compaction", None, 200, {"status": "SUCCESS", "lastError": ""}))
    _, stats = await admin("GET", PATH + "/stats")
    assert stats["compaction"]["lastCompactionRemovedEventCount"] == 1
    assert stats["compaction"]["lastCompactionSucceedTimestamp"] > stats["compaction"]["lastCompactionFailedTimestamp"]
    _, stats = await admin("GET", PATH + "/internalStats")
    found = await world.compacted()
    ledger = stats["compactedLedger"]
    assert (ledger["ledgerId"], ledger["entries"], ledger["offloaded"]) == (found.ledger_id, 2, False)
    assert ledger["size"] > 0


async def test_of_partitions(world: CompactionWorld, admin: Any) -> None:
    await admin.check(
        ("PUT", PARTS + "/partitions", 2, 204, None),
        ("PUT", PARTS + "/compaction", None, 204, None),
        ("GET", PARTS + "/compaction", None, 404, "not found"),
        ("PUT", "/admin/v2/persistent/public/default/none/compaction", None, 404, "not found"),
        ("PUT", "/admin/v2/non-persistent/public/default/t/compaction", None, 405, "non-persistent"),
    )
    for index in range(2):
        name = TopicName.parse(f"persistent://public/default/parts-partition-{index}")
        topic = await world.broker.service.topic(name, create=False)
        compaction: TopicCompaction = topic.compaction
        while compaction.record.succeeded == 0:
            await asyncio.sleep(0.001)


async def test_metrics(world: CompactionWorld, admin: Any) -> None:
    await world.publish(("a", "1"), ("a", "2"))
    _, text = await admin("GET", "/metrics")
    assert "pulsar_compaction_succeed_count{" not in text
    await world.compact()
    _, text = await admin("GET", "/metrics")
    rows = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("pulsar_compaction_"))
    labels = '{cluster="standalone",namespace="public/default",topic="persistent://public/default/t"}'
    values = {name.removesuffix(labels).removeprefix("pulsar_compaction_"): float(rows[name]) for name in rows}
    assert values["succeed_count"] == values["removed_event_count"] == values["compacted_entries_count"] == 1
    assert values["failed_count"] == 0
    assert values["compacted_entries_size"] > 0
    buckets = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000", "overflow")
    assert sum(values[f"latency_le_{bucket}"] for bucket in buckets) == 1
    assert set(values) == {
        *(f"latency_le_{bucket}" for bucket in buckets),
        *("removed_event_count", "succeed_count", "failed_count", "duration_time_in_mills", "read_throughput"),
        *("write_throughput", "compacted_entries_count", "compacted_entries_size"),
    }


def test_what_is_measured() -> None:
    record = CompactionRecord()
    record.started(1_000)
    record.stored(3, 0.0005)
    record.stored(2, 0.0006)
    record.stored(1, 5.0)
    record.bytes_read = 100
    record.update_rates(10.0)
    record.ended(1_500, 7, well=True)
    record.started(2_000)
    record.ended(2_100, 1, well=False)
    assert record.latencies == [3, 2, *[0] * (len(LATENCY_MS) - 2), 1]
    assert (record.read_rate, record.write_rate, record.removed, record.duration_ms) == (10.0, 0.0, 8, 600)
    assert record.statistics() == {
        "lastCompactionRemovedEventCount": 1,
        "lastCompactionSucceedTimestamp": 1_500,
        "lastCompactionFailedTimestamp": 2_100,
        "lastCompactionDurationTimeInMills": 100,
    }


def test_rates_are_of_the_time_since_they_were_computed_last() -> None:
    record = CompactionRecord()
    for rate in (10.0, 0.0):
        record.bytes_read += int(rate * 10)
        record.bytes_written += int(rate * 20)
        record.update_rates(10.0)
        assert (record.read_rate, record.write_rate) == (rate, 2 * rate)


def test_settings() -> None:
    texts = {
        "brokerServiceCompactionMonitorIntervalInSeconds": "5",
        "brokerServiceCompactionPhaseOneLoopTimeInSeconds": "6",
        "topicCompactionRetainNullKey": "true",
        "compactionServiceFactoryClassName": "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory",
        "topicCompactionMaxKeys": "7",
    }
    given = GivenSettings(list(texts))
    for name, value in texts.items():
        given.add(name, value, "here")
    assert given.build(BrokerSettings()).policies == replace(
        PolicySettings(),
        compaction_check_seconds=5,
        compaction_read_seconds_max=6,
        compaction_keeps_null_keys=True,
        compaction_order=CompactionOrder.EVENT_TIME,
        compaction_keys_max=7,
    )


async def test_a_quota_evicts_nothing_that_is_not_compacted() -> None:
    settings = with_threshold(
        1 << 40, backlog_quota_bytes=1_000, backlog_quota_policy=BacklogQuotaPolicy.EVICT, compaction_keys_max=100
    )
    async with MemoryBroker(settings) as broker:
        world = CompactionWorld(broker)
        await world.publish(("a", "1"), *(("b", "x" * 100) for _ in range(20)))
        await broker.service.upkeep.check_now("backlog quotas")
        assert (await world.ledger()).cursors[COMPACTION_CURSOR].backlog_entries == 21
        await broker.service.upkeep.check_now("compaction")
        compaction = await world.compaction()
        await until(lambda: compaction.status["status"] == "SUCCESS")
        assert await world.read() == [("a", "1"), ("b", "x" * 100)]
        await world.close()
