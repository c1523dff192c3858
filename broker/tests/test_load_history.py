"""The load history: what a message of it holds, when it is written, and what stock readers find in the topic."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from dataclasses import replace
from typing import Any, cast

import fastavro
import pytest
from magnetar.broker.bundles.statistics import BundleStats
from magnetar.broker.load import history_writer
from magnetar.broker.load.broker_report import BrokerReport
from magnetar.broker.load.history import (
    BATCH_BYTES_MAX,
    BUNDLES_PER_MESSAGE_MAX,
    batches,
    history_of,
    schema_definition,
)
from magnetar.broker.load.history_writer import ROUNDS_WAITING_MAX, LoadHistoryWriter
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.policies.system_topics import LOAD_HISTORY, load_history_policies
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.load import LoadSettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.client.client import PulsarClient
from magnetar.client.errors import ClientClosed
from magnetar.client.message import EARLIEST_ID
from magnetar.client.reader import ReaderOptions
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import Unavailable
from magnetar.core.limits import MIB
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

BUSY = "t/n/0x00000000_0x80000000"
IDLE = "t/n/0x80000000_0xffffffff"
SETTINGS = BrokerSettings(
    cluster_name="memory",
    load=LoadSettings(
        report_interval_ms_min=1, round_seconds=3600, history_enabled=True, history_interval_seconds=3600
    ),
)


def sample_report(broker_id: str = "b:8080", bundles: int = 0) -> BrokerReport:
    report = BrokerReport(
        BrokerAddresses(
            broker_id=broker_id,
            service_url=None,
            service_url_tls=None,
            web_service_url=None,
            web_service_url_tls=None,
        )
    )
    busy = BundleStats()
    busy.topics, busy.producers, busy.consumers = 3, 2, 1
    busy.msg_rate_in, busy.throughput_in, busy.throughput_out = 1.23456, 1000.0, 2000.0
    report.stats = {IDLE: BundleStats(), BUSY: busy, "pulsar/b:8080/0x00000000_0xffffffff": busy}
    for index in range(bundles):
        report.stats[f"t/n{index}/0x00000000_0xffffffff"] = busy
    report.bundles = sorted(report.stats)
    report.host.cpu.usage, report.host.cpu.limit = 50.0, 200.0
    report.updated_ms = 7
    return report


def document_of(report: BrokerReport) -> dict[str, Any]:
    value = history_of(report, cluster="c", taken_ms=9, interval_seconds=300)
    return cast(dict[str, Any], json.loads(value))


def test_a_message_tells_what_a_broker_and_its_bundles_do() -> None:
    document = document_of(sample_report())
    assert document["brokerId"] == "b:8080"
    assert (document["takenMillis"], document["reportedMillis"], document["intervalSeconds"]) == (9, 7, 300)
    assert (document["cpuUsagePercent"], document["cpuLimitPercent"]) == (50.0, 200.0)
    assert document["numBundles"] == 3
    assert document["bundles"] == [
        {
            "namespace": "t/n",
            "range": "0x00000000_0x80000000",
            "msgRateIn": 1.23,
            "msgRateOut": 0.0,
            "msgThroughputIn": 1000.0,
            "msgThroughputOut": 2000.0,
            "topics": 3,
            "producers": 2,
            "consumers": 1,
        }
    ]


def test_a_message_is_what_its_schema_says() -> None:
    schema = fastavro.parse_schema(json.loads(schema_definition()))
    document = document_of(sample_report())
    assert fastavro.validate(document, schema)
    assert [field["name"] for field in json.loads(schema_definition())["fields"]] == list(document)


def test_what_is_no_number_does_not_keep_the_rest_from_being_told() -> None:
    """Java's brokers write NaN, as a text, where they have nothing to divide by."""
    report = sample_report()
    report.host.cpu.usage, report.host.memory.limit = float("nan"), float("inf")
    report.stats[BUSY].msg_rate_in = float("nan")
    document = document_of(report)
    assert (document["cpuUsagePercent"], document["memoryLimitMib"], document["cpuLimitPercent"]) == (0.0, 0.0, 200.0)
    assert (document["msgRateIn"], document["bundles"][0]["msgRateIn"]) == (0.0, 0.0)


def test_messages_are_about_as_large_as_promised() -> None:
    without = len(history_of(sample_report(), cluster="c", taken_ms=10**12, interval_seconds=300))
    with_more = len(history_of(sample_report(bundles=100), cluster="c", taken_ms=10**12, interval_seconds=300))
    assert without < 1_100
    assert (with_more - without) / 100 < 200


def test_too_many_bundles_are_counted() -> None:
    value = history_of(
        sample_report(bundles=BUNDLES_PER_MESSAGE_MAX + 4), cluster="c", taken_ms=9, interval_seconds=300
    )
    document = json.loads(value)
    assert len(document["bundles"]) == BUNDLES_PER_MESSAGE_MAX
    assert document["numBundlesLeftOut"] == 5
    assert len(value) < BATCH_BYTES_MAX


def test_batches_keep_the_order_and_their_bound() -> None:
    messages = [(str(number), b"x" * (BATCH_BYTES_MAX // 3)) for number in range(7)]
    groups = list(batches(messages))
    assert [len(group) for group in groups] == [3, 3, 1]
    assert [one for group in groups for one in group] == messages
    assert list(batches([])) == []


def test_the_topic_is_kept_as_the_settings_say() -> None:
    settings = LoadSettings(history_retention_seconds=7200, history_retention_bytes=5 * MIB)
    assert load_history_policies(settings) == {
        "retentionPolicies": {"retentionTimeInMinutes": 120, "retentionSizeInMB": 5}
    }


class FixedClock(SystemClock):
    def __init__(self, now_ms: int) -> None:
        self.current_ms = now_ms

    def now_ms(self) -> int:
        return self.current_ms


def writer(clock: Clock, failure: Exception) -> LoadHistoryWriter:
    def client() -> PulsarClient:
        raise failure

    return LoadHistoryWriter("c", 300, clock, client, lambda: {"b:8080": sample_report()})


@pytest.mark.parametrize(("now_seconds", "pause_seconds"), [(300, 300), (301, 299), (599.9, 300.1), (570, 330)])
def test_rounds_are_at_multiples_of_the_interval(now_seconds: float, pause_seconds: float) -> None:
    made = writer(FixedClock(int(now_seconds * 1000)), Unavailable(""))
    assert made._pause_seconds() == pytest.approx(pause_seconds)


async def test_what_cannot_be_written_waits_but_not_without_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = FixedClock(0)
    made = writer(clock, ClientClosed("nobody is there"))
    with caplog.at_level(logging.WARNING):
        for number in range(ROUNDS_WAITING_MAX + 4):
            clock.current_ms = number
            await made.round()
    assert [taken_ms for taken_ms, _ in made._waiting] == list(range(4, ROUNDS_WAITING_MAX + 4))
    assert made.failures == ROUNDS_WAITING_MAX + 4
    assert [record.args[1] for record in caplog.records if isinstance(record.args, tuple)] == [1, 2, 4, 8, 16]
    await made.end()
    assert not made._waiting


class NeverClosing:
    """A producer whose broker does not answer any more."""

    def __init__(self) -> None:
        self.sending = asyncio.Event()
        self.answers = asyncio.Event()

    async def send_batch(self, messages: object) -> None:
        self.sending.set()
        await self.answers.wait()

    async def close(self) -> None:
        await self.answers.wait()


async def test_a_broker_that_does_not_answer_keeps_nobody_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = NeverClosing()

    async def opened(writer: LoadHistoryWriter) -> NeverClosing:
        return silent

    monkeypatch.setattr(LoadHistoryWriter, "_producer", opened)
    monkeypatch.setattr(LoadHistoryWriter, "_pause_seconds", lambda writer: 0.0)
    monkeypatch.setattr(history_writer, "END_SECONDS_MAX", 0.01)
    made = LoadHistoryWriter(
        "c", 0, SystemClock(), lambda: cast(PulsarClient, None), lambda: {"b:8080": sample_report()}
    )
    made.begin()
    await silent.sending.wait()
    async with asyncio.timeout(5):
        await made.end()
    silent.answers.set()


async def test_clients_do_not_wait_while_a_round_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ran_meanwhile = threading.Event()

    def slow(*_: object, **__: object) -> bytes:
        assert ran_meanwhile.wait(5)
        return b"{}"

    monkeypatch.setattr(history_writer, "history_of", slow)
    made = writer(SystemClock(), Unavailable("nobody is there"))
    asyncio.get_running_loop().call_soon(ran_meanwhile.set)
    await made.round()
    assert len(made._waiting) == 1


async def read_all(broker: MemoryBroker) -> list[Any]:
    client = broker.running.context.client.get()
    reader = await client.reader(TopicName.parse(LOAD_HISTORY), ReaderOptions(start=EARLIEST_ID))
    found = []
    while (message := await reader.next_or_end()) is not None:
        found.append(message)
    await reader.close()
    return found


@pytest.mark.slow
async def test_the_leader_of_a_cluster_writes_of_all_brokers() -> None:
    async with MemoryCluster(2, SETTINGS) as cluster:
        await (await cluster.client_of("persistent://public/default/a")).producer("persistent://public/default/a")
        leader = next(broker for broker in cluster.brokers if broker.running.context.load.leading)
        other = next(broker for broker in cluster.brokers if broker is not leader)
        history = leader.running.context.load.history
        assert history is not None
        await history.round()
        await history.round()
        assert history.failures == 0
        messages = await read_all(other)
        ids = sorted(leader.running.context.load.directory.reports)
        assert [message.key for message in messages] == ids * 2
        documents = [json.loads(message.payload) for message in messages]
        assert [document["brokerId"] for document in documents] == ids * 2
        assert all(
            document["takenMillis"] == message.event_time_ms
            for document, message in zip(documents, messages, strict=True)
        )
        schema = await other.running.context.client.get().schema(TopicName.parse(LOAD_HISTORY))
        assert schema.type == Schema.Json
        assert schema.schema_data == schema_definition()
        holder = await cluster.lookup(other, LOAD_HISTORY)
        topic = await holder.service.topic(TopicName.parse(LOAD_HISTORY), create=False)
        assert topic.policies.retention_minutes == 30 * 24 * 60
        assert topic.ledger.settings.retention_size_bytes == 1024 * MIB


@pytest.mark.slow
async def test_a_broker_that_is_alone_writes_when_it_is_told_to() -> None:
    settings = replace(SETTINGS, load=replace(SETTINGS.load, history_enabled=False))
    async with MemoryCluster(1, settings) as cluster:
        assert cluster[0].running.context.load.history is None
    async with MemoryCluster(1, SETTINGS) as cluster:
        load = cluster[0].running.context.load

        def is_writing() -> bool:
            return load.history is not None and load.history._rounds is not None

        await until(is_writing)
        await load.unregister()
        assert not is_writing()
        await load.register()
        await until(is_writing)
