"""What the cluster sets while a broker runs takes effect there without a restart."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import pytest
from magnetar.auth.testing import token_of
from magnetar.balance.placement import LeastLoad
from magnetar.balance.settings import SPLIT_ALGORITHMS, SheddingStrategy
from magnetar.balance.shedding import ThresholdShedder
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.settings.load import SWITCHES
from magnetar.broker.settings.names import SETTINGS
from magnetar.broker.testing.auth import ADMIN, broker_settings
from magnetar.broker.testing.clusters import until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.broker.transactions.names import log_name
from magnetar.core.limits import MIB
from magnetar.core.setting import Row
from magnetar.core.settings_file import kind_of, unit_factor
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.transaction_log import BATCH_MAGIC

from broker.tests.transaction_ack_stage import LOG, Client, with_transactions

DYNAMIC: Final = [row for row in SETTINGS.rows if row.dynamic == "broker"]
TOPIC: Final = "persistent://public/default/t"
OTHER_VALUES: Final = {
    "allowAutoTopicCreationType": "partitioned",
    "brokerDeleteInactiveTopicsMode": "delete_when_subscriptions_caught_up",
    "defaultNamespaceBundleSplitAlgorithm": SPLIT_ALGORITHMS[1],
    "loadBalancerHistoryResourcePercentage": "0.5",
    "loadBalancerLoadSheddingStrategy": "org.apache.pulsar.broker.loadbalance.impl.ThresholdShedder",
    "maxUnloadPercentage": "0.5",
    "replicationStartAt": "earliest",
    "subscriptionTypesEnabled": "Shared",
    "superUserRoles": "somebody",
    "supportedNamespaceBundleSplitAlgorithms": SPLIT_ALGORITHMS[0],
}


def parts_of(broker: MemoryBroker) -> list[Any]:
    """The settings that the broker's parts go by."""
    return [broker.service.settings, broker.service.ledgers.settings, broker.running.context.load.balance_settings]


def other_value(row: Row, now: Any) -> str:
    """Another one than what holds, as it is written."""
    if row.name in OTHER_VALUES:
        return OTHER_VALUES[row.name]
    if kind_of(row) is bool:
        return str(not now).lower()
    written = (now or 0) / unit_factor(row, row.name)
    return str(int(written) + 1)


@pytest.mark.parametrize("row", DYNAMIC, ids=[f"{row.owner.__name__}-{row.name}" for row in DYNAMIC])
async def test_a_setting_holds_at_once_and_goes_back(row: Row) -> None:
    async with MemoryBroker() as broker:
        context = broker.running.context
        (index,) = [number for number, part in enumerate(parts_of(broker)) if _has(part, row)]
        before = attrgetter(row.path)(parts_of(broker)[index])
        await context.dynamic.set(row.name, other_value(row, before))
        assert attrgetter(row.path)(parts_of(broker)[index]) != before
        assert context.moves._settings == context.load.balance_settings
        await context.dynamic.remove(row.name)
        assert attrgetter(row.path)(parts_of(broker)[index]) == before


def _has(part: object, row: Row) -> bool:
    owner, _, _ = row.path.rpartition(".")
    try:
        return type(attrgetter(owner)(part) if owner else part) is row.owner
    except AttributeError:
        return False


async def test_dispatch_of_subscriptions_that_are_there() -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        await client.consumer(TOPIC, subType=1)
        dynamic = broker.running.context.dynamic
        await dynamic.set("dispatcherMaxReadBatchSize", "7")
        await dynamic.set("dispatcherMaxReadSizeBytes", "1234")
        await dynamic.set("dispatcherMaxRoundRobinBatchSize", "3")
        (subscription,) = broker.service.topics[TOPIC].subscriptions.values()
        pump = subscription._pump
        assert (pump._settings.read_entries_max, pump._settings.read_bytes_max) == (7, 1234)
        dispatcher = pump._dispatcher
        assert isinstance(dispatcher, SharedDispatcher)
        assert dispatcher.round_robin_messages_max == 3


async def test_look_ahead_of_key_shared_subscriptions_that_are_there() -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        await client.consumer(TOPIC, subType=3)
        dynamic = broker.running.context.dynamic
        await dynamic.set("keySharedLookAheadMsgInReplayThresholdPerConsumer", "5")
        (subscription,) = broker.service.topics[TOPIC].subscriptions.values()
        dispatcher = subscription.key_shared
        assert dispatcher is not None
        next(iter(dispatcher.consumers)).allow(10)
        assert dispatcher.room() == 10
        dispatcher.redeliver([((1, number), 1) for number in range(5)])
        assert dispatcher.room() == 0
        await dynamic.set("keySharedLookAheadMsgInReplayThresholdPerConsumer", "0")
        assert dispatcher.room() == 10
        await dynamic.set("keySharedLookAheadMsgInReplayThresholdPerSubscription", "5")
        # What waited is read again by now.
        dispatcher.redeliver([((1, number), 1) for number in range(5, 10)])
        assert dispatcher.room() == 0


async def test_ledgers_of_topics_that_are_there() -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        await client.producer(TOPIC)
        dynamic = broker.running.context.dynamic
        ledger = broker.service.topics[TOPIC].ledger
        assert (ledger.settings.skip_lost_data, ledger.settings.inactive_rollover_ms) == (False, 0)
        await dynamic.set("autoSkipNonRecoverableData", "true")
        await dynamic.set("managedLedgerInactiveLedgerRolloverTimeSeconds", "9")
        assert (ledger.settings.skip_lost_data, ledger.settings.inactive_rollover_ms) == (True, 9_000)
        await dynamic.remove("autoSkipNonRecoverableData")
        assert not ledger.settings.skip_lost_data


async def test_a_cache_that_becomes_smaller_lets_go_of_entries() -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        await client.consumer(TOPIC)
        await client.producer(TOPIC)
        await client.publish(50)
        cache = broker.service.ledgers.cache
        assert cache.size_bytes > 0
        dynamic = broker.running.context.dynamic
        await dynamic.set("managedLedgerCacheSizeMB", "0")
        await until(lambda: cache.size_bytes_max == 0)
        assert cache.size_bytes == 0
        await dynamic.set("managedLedgerCacheSizeMB", "5")
        await until(lambda: cache.size_bytes_max == 5 * MIB)


class Reader:
    """A connection that is read or not."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause_reading(self, reason: str) -> None:
        self.calls.append("paused")

    def resume_reading(self, reason: str) -> None:
        self.calls.append("resumed")


async def test_the_publish_buffer() -> None:
    async with MemoryBroker() as broker:
        buffer, dynamic = broker.service.limits.publish_buffer, broker.running.context.dynamic
        await dynamic.set("maxMessagePublishBufferSizeInMB", "1")
        reader = Reader()
        buffer.add(2 * MIB, reader)
        await dynamic.set("maxMessagePublishBufferSizeInMB", "0")
        assert reader.calls == ["paused", "resumed"]
        buffer.remove(2 * MIB)


async def test_how_often_inactive_topics_are_looked_for() -> None:
    async with MemoryBroker() as broker:
        upkeep = broker.service.upkeep
        (job,) = [one for one in upkeep._sweeper.jobs if one.name == "inactive topics"]
        due = job.due_seconds
        await broker.running.context.dynamic.set("brokerDeleteInactiveTopicsFrequencySeconds", "5")
        assert job.interval_seconds == 5
        assert job.due_seconds < due
        assert upkeep._settings.delete_inactive_topics_check_seconds == 5


async def test_load_reports_and_rounds() -> None:
    async with MemoryBroker() as broker:
        context = broker.running.context
        load, dynamic = context.load, context.dynamic
        balancing = load.balancing
        await dynamic.set("loadBalancerHostUsageCheckIntervalMinutes", "3")
        await dynamic.set("loadBalancerSheddingIntervalMinutes", "2")
        await dynamic.set("loadBalancerReportUpdateThresholdPercentage", "77")
        assert load._meter._window_seconds == 180
        assert balancing._configured.round_seconds == 120
        assert load.settings.report_change_percent == 77


async def test_balancing_goes_by_thresholds_and_strategies_at_once() -> None:
    async with MemoryBroker() as broker:
        context = broker.running.context
        dynamic, balancer = context.dynamic, context.load.balancing._balancer
        await dynamic.set("loadBalancerBrokerOverloadedThresholdPercentage", "42")
        await dynamic.set("loadBalancerDistributeBundlesEvenlyEnabled", "false")
        await dynamic.set("loadBalancerSheddingGracePeriodMinutes", "1")
        await dynamic.set("loadBalancerNamespaceBundleMaxTopics", "5")
        await dynamic.set("loadBalancerSheddingConditionHitCountThreshold", "9")
        assert balancer.settings.overloaded_percent == 42
        assert isinstance(balancer._placer, LeastLoad)
        assert (balancer._placer._overloaded_percent, balancer._placer._evenly) == (42, False)
        assert balancer._memory.moves._window_ms == 60_000
        assert balancer._splits._settings.bundle_topics_max == 5
        assert balancer._shedder._settings.hits == 9  # type: ignore[attr-defined]
        await dynamic.set("loadBalancerLoadSheddingStrategy", "a.b.ThresholdShedder")
        assert balancer.settings.shedding_strategy is SheddingStrategy.THRESHOLD
        assert isinstance(balancer._shedder, ThresholdShedder)
        # What is of no use alone is refused, and what others wrote is told of and passed over.
        assert "loadBalancerSheddingEnabled" in SWITCHES


async def test_logs_of_transactions_that_are_open() -> None:
    """The next record of a coordinator, and of a subscription's pending acknowledgements, has the other form."""
    async with with_transactions() as broker:
        client = await Client.of(broker)
        connected = await client.client.request(pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
        assert connected.name == "TC_CLIENT_CONNECT_RESPONSE"
        await client.publish(3)
        positions = await client.receive(3)
        dynamic = broker.running.context.dynamic
        names = ("transactionLogBatchedWriteEnabled", "transactionPendingAckBatchedWriteEnabled")
        found = []
        for number, switched in enumerate(("false", "true", "false")):
            for name in names:
                await dynamic.set(name, switched)
            assert (await client.client.request(pb.BaseCommand.NEW_TXN, tc_id=0, txn_ttl_seconds=60_000)).name
            assert await client.ack(number, positions[number]) is None
            found.append([await last_is_batch(broker, log) for log in (log_name(0), LOG)])
        assert found == [[False, False], [True, True], [False, False]]


async def last_is_batch(broker: MemoryBroker, log: str) -> bool:
    """Whether the last entry of an open log has the form of several records."""
    ledger = broker.service.ledgers._open[log]
    entry = await ledger.read_entry(ledger.last_confirmed)
    return bool(entry.data.startswith(BATCH_MAGIC.to_bytes(2, "big")))


async def test_how_long_ledgers_in_tiered_storage_stay_open() -> None:
    async with MemoryBroker() as broker:
        name = "managedLedgerInactiveOffloadedLedgerEvictionTimeSeconds"
        assert broker.service.ledgers.tiered_idle_seconds_max == 600
        await broker.running.context.dynamic.set(name, "7")
        assert broker.service.ledgers.tiered_idle_seconds_max == 7
        await broker.running.context.dynamic.remove(name)
        assert broker.service.ledgers.tiered_idle_seconds_max == 600


async def test_key_shared_is_switched_off_for_topics_that_are_there() -> None:
    async with MemoryBroker() as broker:
        client = await broker.connect()
        await client.consumer(TOPIC, subType=3)
        dynamic = broker.running.context.dynamic
        await dynamic.set("subscriptionKeySharedEnable", "false")
        fields = {"topic": TOPIC, "subscription": "other", "consumer_id": 2}
        answer = await client.request(pb.BaseCommand.SUBSCRIBE, subType=3, **fields)
        assert (answer.name, answer.body.error) == ("ERROR", pb.NotAllowedError)
        await client.consumer(TOPIC, "other", 2, subType=1)
        await dynamic.remove("subscriptionKeySharedEnable")
        await client.consumer(TOPIC, "third", 3, subType=3)


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
async def test_names_of_new_subscriptions_are_looked_at(admin: Any, memory_broker: MemoryBroker, domain: str) -> None:
    """One that is there keeps its name."""
    client, dynamic = await memory_broker.connect(), memory_broker.running.context.dynamic
    topic = f"{domain}://public/default/t"
    await client.consumer(topic, "there already", 1, subType=1)
    await dynamic.set("strictlyVerifySubscriptionName", "true")
    fields = {"topic": topic, "subType": 1}
    for name in ("a b", "a/b", "ä"):
        answer = await client.request(pb.BaseCommand.SUBSCRIBE, subscription=name, consumer_id=2, **fields)
        assert (answer.name, answer.body.error) == ("ERROR", pb.ProducerBusy)
        assert name in answer.body.message
        path = f"/admin/v2/persistent/public/default/t/subscription/{quote(name, safe='')}"
        await admin.check(("PUT", path, None, 400, "only contains"))
    await client.consumer(topic, "there already", 2, subType=1)
    await client.consumer(topic, "-=:._a0", 3, subType=1)
    await dynamic.remove("strictlyVerifySubscriptionName")
    await client.consumer(topic, "a b", 4, subType=1)


async def test_super_users() -> None:
    async with MemoryBroker(broker_settings()) as broker, aiohttp.ClientSession() as session:
        url = broker.admin_url + "/admin/v2/brokers/configuration"

        async def status(role: str, verb: str = "GET", path: str = "/values") -> int:
            headers = {"Authorization": f"Bearer {token_of(role)}"}
            async with session.request(verb, url + path, headers=headers) as answer:
                return answer.status

        assert await status("deputy") == 401
        assert await status(ADMIN, "POST", f"/superUserRoles/{ADMIN},deputy") == 200
        assert await status("deputy") == 200
        assert await status(ADMIN, "DELETE", "/superUserRoles") == 200
        assert await status("deputy") == 401
