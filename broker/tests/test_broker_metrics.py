"""`/metrics`: names, types and labels beside those of Apache's broker 4.0.8, and what public dashboards ask for."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from magnetar.broker.admin.brokers import metrics
from magnetar.broker.admin.brokers.metrics import PAGES_MAX, CollectedMetrics
from magnetar.broker.broker_parts import BrokerEnvironment
from magnetar.broker.context import BrokerContext
from magnetar.broker.policies.model import BacklogQuota
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.offload import OffloadSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.topics.upkeep import STORAGE_STATISTICS
from magnetar.broker.transactions.api import Asker
from magnetar.broker.transactions.coordinator_counters import PERIOD_MS, CoordinatorCounters
from magnetar.core.slow_turns import SLOW_TURNS
from magnetar.managed.offload.testing import MemoryObjects, MemoryStores

RECORDED: Final = Path(__file__).parent / "recorded"

NOBODY: Final = Asker("", False)

OURS_IS_A_COUNTER: Final = "counter"
"""Apache's broker declares everything of topics a gauge. What only grows is a counter here."""


OF_SUMMARIES: Final = ("publish_latency_count", "publish_latency_sum")
"""Numbers of a family that is declared by its own name."""

ELSEWHERE: Final = {
    r"caffeine_cache_": "caches of the Java library Caffeine, by the names of Apache's own caches",
    r"jetty_": "Jetty's own; there is none",
    r"jvm_": "of the Java machine; the process is measured as process_* and python_*",
    r"target_info": "of OpenTelemetry, of a service for tables that is StreamNative's",
    r"pulsar_(function|func|sink|source)_": "functions and connectors do not run in brokers",
    r"pulsar_(detector|monitor|k8s|pubsub|websocket|tenant)_": "of probes that send messages themselves",
    r"pulsar_lb_(assign_broker|bundles_split|unload_broker)_breakdown_total": "of the extensible load manager",
    r"pulsar_lb_resource_usage": "of the extensible load manager",
    r"pulsar_sunit_state_chn_": "of the extensible load manager",
    r"pulsar_replication_": "of topics that are replicated, and none of these is (`test_broker_replication`)",
    r"pulsar_storage_read_latency_count": "Apache's brokers do not have it any more",
    r"pulsar_storage_(backend|compact|lakehouse|read_entr|wal)": "of StreamNative's own store",
}
"""What dashboards ask for and a broker has not, with the reason."""


@pytest.fixture
async def memory_broker() -> AsyncIterator[MemoryBroker]:
    """One with transactions, which tells of consumers."""
    admin = AdminSettings(consumer_metrics=True)
    offload = OffloadSettings(driver="aws-s3", s3_bucket="a-bucket", s3_region="eu-west-1", threshold_bytes=0)
    settings = BrokerSettings(
        cluster_name="memory", transactions=TransactionSettings(enabled=True), admin=admin, offload=offload
    )
    environment = BrokerEnvironment(offloader=MemoryStores(MemoryObjects()).make)
    async with MemoryBroker(settings, environment=environment) as running:
        yield running


class Page:
    """What a scrape gave."""

    def __init__(self, text: str) -> None:
        self.types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        self.samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for name, labels, value in re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE):
            found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            self.samples.setdefault(name, []).append((found, float(value)))

    def value(self, name: str, **labels: str) -> float:
        """The only sample with these labels among others."""
        (value,) = [value for found, value in self.samples[name] if labels.items() <= found.items()]
        return value

    def buckets(self, prefix: str) -> dict[str, float]:
        """Those of a histogram of Apache's kind that are not 0, by the end of their names."""
        return {
            name.removeprefix(prefix): samples[0][1]
            for name, samples in self.samples.items()
            if name.startswith(prefix) and samples[0][1]
        }


async def scrape(admin: Any) -> Page:
    status, text = await admin("GET", "/metrics")
    assert status == 200
    return Page(text)


async def end_of_period(admin: Any) -> None:
    await admin.broker.running.context.service.upkeep.check_now(STORAGE_STATISTICS)


@pytest.fixture
async def busy(admin: Any, client: ProtocolClient) -> Page:
    """Of a broker that has done a little of everything."""
    await client.producer("topic")
    await client.consumer("topic", subType=1)
    await client.publish(3)
    await client.messages(2)
    coordinators = admin.broker.running.context.coordinators
    await coordinators.connect(0)
    await coordinators.end(await coordinators.new_transaction(0, 60_000, NOBODY), NOBODY, commit=True)
    await admin.check(("PUT", "/admin/v2/persistent/public/default/topic/compaction", None, 204, None))
    ledger = admin.broker.service.topics["persistent://public/default/topic"].ledger
    await ledger.roll()
    await ledger.offloads.until_idle()
    await end_of_period(admin)
    return await scrape(admin)


async def test_families_have_apaches_types_and_labels(busy: Page) -> None:
    recorded: dict[str, tuple[str, set[str]]] = {}
    for line in (RECORDED / "pulsar_metrics.txt").read_text().splitlines():
        name, kind, words = line.split(" ")
        recorded[name] = (kind, set(words.split(",")))
    shared = sorted(set(recorded) & set(busy.samples))
    assert len(shared) >= 110
    for name in shared:
        kind, labels = recorded[name]
        ours = busy.types.get(name)
        assert ours in ((None,) if name.endswith(OF_SUMMARIES) else (kind, OURS_IS_A_COUNTER)), name
        assert {label for found, _ in busy.samples[name] for label in found} == labels, name


async def test_every_metric_of_the_dashboards_is_there_or_has_its_reason(busy: Page) -> None:
    asked = (RECORDED / "dashboard_metrics.txt").read_text().splitlines()
    used: set[str] = set()
    missing: list[str] = []
    for name in asked:
        reasons = [pattern for pattern in ELSEWHERE if re.match(pattern, name)]
        used.update(reasons)
        if name in busy.samples:
            assert not reasons, f"{name} is there, and has a reason not to be"
        elif not reasons:
            missing.append(name)
    assert missing == []
    assert used == set(ELSEWHERE)


async def test_no_family_is_told_twice(admin: Any, busy: Page) -> None:
    _, text = await admin("GET", "/metrics")
    names = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    assert len(names) == len(set(names))
    for samples in busy.samples.values():
        labels = [tuple(sorted(found.items())) for found, _ in samples]
        assert len(labels) == len(set(labels))


async def test_writes_are_told_period_by_period(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic")
    assert "pulsar_entry_size_le_128" not in (await scrape(admin)).samples
    await client.publish(5)
    (size_bytes,) = {len(data) for data in await stored(admin)}
    before = await scrape(admin)
    assert before.buckets("pulsar_entry_size_") == before.buckets("pulsar_storage_write_latency_") == {}
    await end_of_period(admin)
    page = await scrape(admin)
    assert page.buckets("pulsar_entry_size_") == {"le_128": 5, "count": 5, "sum": 5 * size_bytes}
    latencies = page.buckets("pulsar_storage_write_latency_")
    assert latencies.pop("count") == 5
    assert latencies.pop("sum", 0) >= 0
    assert sum(value for name, value in latencies.items() if name != "le_overflow") == 5
    assert page.value("pulsar_storage_write_rate") == pytest.approx(5 / 60)
    assert page.value("pulsar_ml_AddEntryBytesRate") == pytest.approx(5 * size_bytes / 60)
    assert page.value("pulsar_ml_AddEntrySucceed", namespace="public/default/persistent") == 5
    assert page.value("pulsar_broker_storage_write_rate") == pytest.approx(5 / 60)
    assert page.value("pulsar_broker_publish_latency_count") == 5
    assert not math.isnan(page.value("pulsar_broker_publish_latency", quantile="0.99"))
    await end_of_period(admin)
    after = await scrape(admin)
    assert after.buckets("pulsar_entry_size_") == after.buckets("pulsar_storage_write_latency_") == {}
    assert after.samples["pulsar_entry_size_le_128"][0][1] == 0
    assert after.value("pulsar_storage_write_rate") == 0


async def test_stored_bytes_count_once_and_with_all_copies(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic")
    await client.publish(4)
    total = sum(map(len, await stored(admin)))
    topic_of(admin).ledger.settings.write_quorum = 3
    page = await scrape(admin)
    assert page.value("pulsar_storage_logical_size") == total
    assert page.value("pulsar_storage_size") == page.value("pulsar_broker_storage_size") == 3 * total
    assert page.value("pulsar_storage_offloaded_size") == 0
    assert page.value("pulsar_storage_backlog_quota_limit") == -1


async def test_subscriptions_tell_delays_and_deliveries(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic")
    await client.consumer("topic", subType=1)
    await client.publish(2)
    await client.publish(3, first=2, deliver_at_time=4_000_000_000_000)
    await client.messages(2, permits=10)
    await client.round_trip()
    page = await scrape(admin)
    assert page.value("pulsar_subscription_delayed", subscription="s") == 3
    assert page.value("pulsar_subscription_back_log") == 5
    assert page.value("pulsar_subscription_back_log_no_delayed") == 2
    assert page.value("pulsar_subscription_unacked_messages") == 2
    assert page.value("pulsar_subscription_blocked_on_unacked_messages") == 0
    assert page.value("pulsar_out_messages_total", subscription="s") == 2
    assert page.value("pulsar_subscription_last_consumed_timestamp") > 1_000_000_000_000
    assert page.value("pulsar_storage_backlog_size") == sum(map(len, await stored(admin)))


async def test_consumers_have_names_and_ids(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic")
    for number in (7, 8):
        await client.consumer("topic", consumer_id=number, consumer_name=f"c{number}", subType=1)
    await client.publish(3)
    await client.messages(3, consumer_id=8, permits=10)
    page = await scrape(admin)
    assert page.value("pulsar_consumer_unacked_messages", consumer_name="c8", consumer_id="8") == 3
    assert page.value("pulsar_consumer_available_permits", consumer_name="c8") == 7
    assert page.value("pulsar_consumer_unacked_messages", consumer_name="c7", subscription="s") == 0


async def test_where_topics_are_too_many_namespaces_are_told() -> None:
    settings = BrokerSettings(cluster_name="memory", admin=AdminSettings(topic_metrics=False, consumer_metrics=True))
    async with MemoryBroker(settings) as broker, aiohttp.ClientSession() as session:
        client = await broker.connect()
        for number in (1, 2):
            await client.producer(f"topic{number}", producer_id=number)
            await client.consumer(f"topic{number}", consumer_id=number, subType=1)
            await client.publish(number, producer_id=number)
            await client.messages(number, consumer_id=number)
        await broker.running.context.service.upkeep.check_now(STORAGE_STATISTICS)
        async with session.get(broker.admin_url + "/metrics") as answer:
            page = Page(await answer.text())
    of_namespace = {"cluster": "memory", "namespace": "public/default"}
    for name, value in (
        ("pulsar_topics_count", 2),
        ("pulsar_subscriptions_count", 2),
        ("pulsar_in_messages_total", 3),
        ("pulsar_out_messages_total", 3),
        ("pulsar_subscription_delayed", 0),
        ("pulsar_entry_size_count", 3),
        ("pulsar_entry_size_le_128", 3),
    ):
        assert page.samples[name] == [(of_namespace, value)], name
    assert page.value("pulsar_broker_msg_backlog") == 3
    assert page.value("pulsar_ml_AddEntrySucceed", namespace="public/default/persistent") == 3
    assert not {"pulsar_subscription_back_log", "pulsar_average_msg_size", "pulsar_consumer_msg_rate_out"} & set(
        page.samples
    )
    assert not [name for name, samples in page.samples.items() if any("topic" in labels for labels, _ in samples)]


async def test_the_cache_is_told(admin: Any, client: ProtocolClient) -> None:
    await client.producer("topic")
    await client.consumer("topic")
    await client.publish(6)
    await client.messages(6)
    await end_of_period(admin)
    page = await scrape(admin)
    assert page.value("pulsar_ml_cache_hits_rate") == pytest.approx(6 / 60)
    assert page.value("pulsar_ml_cache_hits_throughput") > 0
    assert page.value("pulsar_ml_cache_misses_rate") == 0
    assert page.value("pulsar_ml_cache_entries") == 6
    assert page.value("pulsar_ml_cache_used_size") > 0
    assert page.value("pulsar_ml_count") == 1


async def test_connections_are_counted(admin: Any, client: ProtocolClient) -> None:
    other = await admin.broker.connect()
    page = await scrape(admin)
    active = page.value("pulsar_active_connections", metric="broker_connection")
    created = page.value("pulsar_connection_created_total_count")
    assert active >= 2
    await other.close()
    await client.round_trip()
    page = await scrape(admin)
    assert page.value("pulsar_active_connections") == active - 1
    assert page.value("pulsar_connection_created_total_count") == created
    assert page.value("pulsar_connection_closed_total_count") == created - active + 1


async def test_transactions_have_both_names(busy: Page) -> None:
    for word in ("total", "count"):
        for name, count in (("created", 1), ("committed", 1), ("aborted", 0), ("timeout", 0), ("append_log", 3)):
            assert busy.value(f"pulsar_txn_{name}_{word}", coordinator_id="0") == count
    assert busy.value("pulsar_txn_active_count", coordinator_id="0") == 0
    assert busy.value("pulsar_txn_execution_latency_le_overflow", coordinator_id="0") == 0


async def test_slow_turns_are_told(admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SLOW_TURNS, "count", 4)
    monkeypatch.setattr(SLOW_TURNS, "longest_seconds", 1.5)
    page = await scrape(admin)
    assert page.value("magnetar_event_loop_slow_turns_total", cluster="memory") == 4
    assert page.value("magnetar_event_loop_longest_turn_seconds") == 1.5


def test_commits_are_told_by_the_minute() -> None:
    counters = CoordinatorCounters(0)
    counters.commit(10, 20)
    counters.commit(20, 21)
    counters.commit(30, 9_000_000)
    assert sum(counters.latencies(PERIOD_MS - 1)) == 0
    told = counters.latencies(PERIOD_MS)
    assert (told[1], told[2], told[-1], sum(told)) == (1, 1, 1, 3)
    assert counters.latencies(2 * PERIOD_MS - 1) == told
    assert sum(counters.latencies(2 * PERIOD_MS)) == 0
    counters.commit(2 * PERIOD_MS, 5)
    assert sum(counters.latencies(9 * PERIOD_MS)) == 0
    assert counters.committed == 4


async def test_a_client_that_goes_away_is_no_mistake_of_ours(
    admin: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather, went = metrics.broker_metrics, asyncio.Event()

    async def slowly(context: BrokerContext, process: bytes) -> list[bytes]:
        text = await gather(context, process)
        await went.wait()
        return text * 100

    monkeypatch.setattr(metrics, "broker_metrics", slowly)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await admin("GET", "/metrics")
    went.set()
    assert (await admin("GET", "/metrics"))[0] == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_few_pages_are_kept_at_a_time(admin: Any) -> None:
    gathered = CollectedMetrics(admin.broker.running.context)
    async with AsyncExitStack() as kept:
        first = await kept.enter_async_context(gathered.page())
        for _ in range(PAGES_MAX - 1):
            assert await kept.enter_async_context(gathered.page()) is not first
        waiting = asyncio.create_task(gathered.text())
        await asyncio.sleep(0.05)
        assert not waiting.done()
    assert await waiting is not first


async def test_who_does_not_read_is_cut(admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SEND_SECONDS_MAX", 0.2)
    large = [b"# a long line\n" * 100_000] * 50

    async def a_large_page(context: BrokerContext, process: bytes) -> list[bytes]:
        del context, process
        return large

    monkeypatch.setattr(metrics, "broker_metrics", a_large_page)
    host, _, port = admin.broker.admin_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
    await asyncio.sleep(0.5)
    received = 0
    with suppress(ConnectionResetError):
        while data := await reader.read(1 << 20):
            received += len(data)
    writer.close()
    assert received < sum(map(len, large))


async def test_topics_are_counted_by_namespace_and_altogether(admin: Any, client: ProtocolClient) -> None:
    assert "pulsar_topics_count" not in (await scrape(admin)).samples
    for number, topic in enumerate(("one", "two", "non-persistent://public/default/three")):
        await client.producer(topic, producer_id=number)
    page = await scrape(admin)
    assert page.value("pulsar_topics_count", namespace="public/default") == 3
    assert page.value("pulsar_broker_topics_count") == 3
    assert page.value("pulsar_broker_producers_count") == 3
    assert page.value("pulsar_ml_count") == 2
    assert page.value("pulsar_version_info", version="4.0.8") == 1


def topic_of(admin: Any) -> PersistentTopic:
    (topic,) = admin.broker.running.context.service.topics.values()
    assert isinstance(topic, PersistentTopic)
    return topic


async def stored(admin: Any) -> list[bytes]:
    """The entries of the only topic."""
    ledger = topic_of(admin).ledger
    return [
        (await ledger.read_entry(ledger.ledgers.entry_at(index))).data
        for index in range(ledger.ledgers.number_of_entries())
    ]


async def test_the_ends_of_transactions_are_told_apart(admin: Any, busy: Page) -> None:
    buffer = topic_of(admin).buffer
    assert buffer is not None
    table = buffer.table
    table.aborted_count, table.committed_count = 2, 5
    page = await scrape(admin)
    topic = "persistent://public/default/topic"
    assert page.value("pulsar_txn_tb_aborted_total", topic=topic) == 2
    assert page.value("pulsar_txn_tb_committed_total", topic=topic) == 5


async def test_both_quotas_of_a_backlog_are_told(admin: Any, busy: Page) -> None:
    topic = topic_of(admin)
    topic.policies = replace(
        topic.policies, size_quota=BacklogQuota(size_bytes_max=700), age_quota=BacklogQuota(age_seconds_max=60)
    )
    page = await scrape(admin)
    assert page.value("pulsar_storage_backlog_quota_limit", topic=str(topic.name)) == 700
    assert page.value("pulsar_storage_backlog_quota_limit_time", topic=str(topic.name)) == 60
