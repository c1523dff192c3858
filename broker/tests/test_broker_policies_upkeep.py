"""What time does to topics: backlogs, expiry, inactivity; on a whole broker in memory whose clock is put forward."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from magnetar.broker.policies.system_topics import belongs_to_brokers
from magnetar.broker.replicated_subscriptions.marked import mark
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import BacklogQuotaPolicy, InactiveTopicDeleteMode, PolicySettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, ShiftedClock
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.topics.upkeep import TOPICS_AT_ONCE, Upkeep
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.subscription_stage import Timers

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
NAME = TopicName.parse(TOPIC)
EVICT, HOLD, REFUSE = BacklogQuotaPolicy.EVICT, BacklogQuotaPolicy.HOLD, BacklogQuotaPolicy.REFUSE


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

    async def check(self, name: str) -> None:
        await self.broker.service.upkeep.check_now(name)

    async def subscription(self, name: str, consumer_id: int = 1) -> None:
        """A durable one without a consumer."""
        await self.client.consumer(TOPIC, name, consumer_id, subType=1)
        await self.client.request(Command.CLOSE_CONSUMER, consumer_id=consumer_id)

    async def publish(self, count: int, first: int = 0) -> None:
        """Messages of this moment."""
        await self.client.publish(count, first=first, publish_time=self.clock.now_ms())


@asynccontextmanager
async def world(ledgers: ManagedLedgerSettings | None = None, **settings: Any) -> AsyncIterator[World]:
    clock = ShiftedClock()
    broker_settings = BrokerSettings(policies=PolicySettings(**settings))
    async with MemoryBroker(broker_settings, ledgers, clock) as broker:
        yield World(broker, await broker.connect(), clock)


# --- backlog quotas


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (HOLD, ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR),
        (REFUSE, ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION),
    ],
)
async def test_a_backlog_over_its_size_keeps_producers_out(policy: BacklogQuotaPolicy, code: ServerError) -> None:
    async with world(backlog_quota_bytes=100, backlog_quota_policy=policy) as it:
        await it.client.producer(TOPIC)
        await it.subscription("s")
        await it.check("backlog quotas")
        await it.publish(20)
        await it.check("backlog quotas")
        await it.client.expect(Command.CLOSE_PRODUCER)
        answer = await it.client.request(Command.PRODUCER, topic=TOPIC, producer_id=2)
        assert answer.body.error == code
        assert answer.body.message == "Cannot create producer on topic with backlog quota exceeded"
        await it.topic.subscriptions["s"].cursor.clear_backlog()
        await it.client.producer(TOPIC, 3)


async def test_a_backlog_over_its_size_is_cut_to_nine_tenths_of_the_limit() -> None:
    async with world(backlog_quota_bytes=1_000, backlog_quota_policy=EVICT) as it:
        await it.client.producer(TOPIC)
        await it.subscription("slow")
        await it.publish(20)
        await it.subscription("fast", 2)
        await it.topic.subscriptions["fast"].cursor.clear_backlog()
        await it.publish(80, 20)
        size = it.topic.ledger.ledgers.total_size_bytes()
        assert size > 1_500
        await it.check("backlog quotas")
        left = it.topic.ledger.ledgers.size_bytes_after(it.topic.subscriptions["slow"].cursor.mark_delete)
        assert 800 <= left <= 950
        assert it.topic.subscriptions["fast"].backlog < 80
        await it.publish(1, 100)


async def test_a_backlog_that_is_cut_is_held_by_nobody() -> None:
    """What a consumer was sent of it would else count against its limit for ever."""
    async with world(backlog_quota_bytes=1_000, backlog_quota_policy=EVICT) as it:
        await it.client.producer(TOPIC)
        await it.client.consumer(TOPIC, "slow", subType=1)
        it.client.send(Command.FLOW, consumer_id=1, messagePermits=1_000)
        await it.publish(100)
        for _ in range(100):
            await it.client.expect(Command.MESSAGE)
        subscription = it.topic.subscriptions["slow"]
        assert subscription.unacked_messages == 100
        await it.check("backlog quotas")
        assert 0 < subscription.backlog < 100
        assert subscription.unacked_messages == subscription.backlog
        assert [one.unacked_messages for one in subscription.consumers] == [subscription.backlog]


async def test_what_only_deduplication_has_not_acknowledged_keeps_nobody_out() -> None:
    async with world(backlog_quota_bytes=100, deduplication=True) as it:
        await it.client.producer(TOPIC, producer_name="p")
        await it.publish(20)
        await it.check("backlog quotas")
        await it.client.expect(Command.CLOSE_PRODUCER)
        assert (await it.client.producer(TOPIC, 2, producer_name="p")).last_sequence_id == 19


@pytest.mark.parametrize("by_age", [False, True])
async def test_deduplication_knows_what_was_cut_of_a_backlog(by_age: bool) -> None:
    """Its own cursor may be the one that is furthest behind: who comes back and asks would send all of it once more."""
    ledgers = ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0)
    quota = {"backlog_quota_age_seconds": 60} if by_age else {"backlog_quota_bytes": 100}
    async with world(ledgers, backlog_quota_policy=EVICT, deduplication=True, **quota) as it:
        await it.client.producer(TOPIC, producer_name="p")
        await it.client.publish(10, producer_name="p")
        await it.client.producer(TOPIC, 2, producer_name="another")
        for first in range(0, 15, 5):
            await it.client.publish(5, producer_id=2, first=first, producer_name="another")
        it.clock.advance(61)
        await it.check("backlog quotas")
        await it.broker.service.unload(NAME)
        await it.client.expect(Command.CLOSE_PRODUCER)
        assert (await it.client.producer(TOPIC, 3, producer_name="p")).last_sequence_id == 9


async def test_a_backlog_over_its_age_loses_whole_ledgers() -> None:
    ledgers = ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0)
    async with world(ledgers, backlog_quota_age_seconds=60, backlog_quota_policy=EVICT) as it:
        await it.client.producer(TOPIC)
        await it.subscription("s")
        for first in range(0, 25, 5):
            await it.publish(5, first)
        await it.check("backlog quotas")
        assert it.topic.subscriptions["s"].backlog == 25
        it.clock.advance(61)
        await it.check("backlog quotas")
        assert it.topic.subscriptions["s"].backlog == 5


@pytest.mark.parametrize("precise", [False, True])
async def test_a_backlog_over_its_age_keeps_producers_out(precise: bool) -> None:
    ledgers = ManagedLedgerSettings(max_entries_per_ledger=10, minimum_rollover_ms=0)
    async with world(ledgers, backlog_quota_age_seconds=60, backlog_quota_age_precise=precise) as it:
        await it.client.producer(TOPIC)
        await it.subscription("s")
        await it.publish(5)
        it.clock.advance(61)
        if not precise:
            # The ledger in use counts as young, whatever is in it.
            await it.check("backlog quotas")
            await it.publish(10, 5)
            it.clock.advance(61)
        await it.check("backlog quotas")
        await it.client.expect(Command.CLOSE_PRODUCER)
        answer = await it.client.request(Command.PRODUCER, topic=TOPIC, producer_id=2)
        assert answer.body.error == ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR


async def test_a_backlog_over_its_age_expires_precisely() -> None:
    settings: dict[str, Any] = {"backlog_quota_age_precise": True, "backlog_quota_policy": EVICT}
    async with world(backlog_quota_age_seconds=100, **settings) as it:
        await it.client.producer(TOPIC)
        await it.subscription("s")
        await it.publish(5)
        it.clock.advance(50)
        await it.publish(3, 5)
        it.clock.advance(51)
        await it.check("backlog quotas")
        assert it.topic.subscriptions["s"].backlog == 3


# --- expiry


async def test_messages_expire_on_every_subscription() -> None:
    async with world() as it:
        await it.client.producer(TOPIC)
        await it.subscription("a")
        await it.publish(3)
        await it.subscription("late", 2)
        it.clock.advance(30)
        await it.publish(4, 3)
        resources = it.broker.service.resources
        namespace = NamespaceName("public", "default")
        await it.check("message expiry")
        await resources.documents.update(
            resources.namespace_path(namespace), lambda document: {**document, "message_ttl_in_seconds": 20}
        )
        await it.broker.service.policies_changed(namespace)
        await it.check("message expiry")
        assert (it.topic.subscriptions["a"].backlog, it.topic.subscriptions["late"].backlog) == (4, 4)
        assert it.topic.subscriptions["a"].statistics()["totalMsgExpired"] == 3
        it.clock.advance(30)
        await it.check("message expiry")
        assert it.topic.subscriptions["a"].backlog == 0
        await it.publish(1, 7)
        assert it.topic.subscriptions["a"].backlog == 1


async def test_a_subscription_that_nobody_uses_is_deleted() -> None:
    async with world(subscription_expiration_minutes=2) as it:
        await it.client.producer(TOPIC)
        await it.subscription("idle")
        await it.client.consumer(TOPIC, "used", 2)
        it.clock.advance(119)
        await it.check("idle subscriptions")
        assert set(it.topic.subscriptions) == {"idle", "used"}
        it.clock.advance(2)
        await it.check("idle subscriptions")
        assert set(it.topic.subscriptions) == {"used"}
        assert "idle" not in it.topic.ledger.cursors


async def test_a_replicated_subscription_that_nobody_uses_here_stays() -> None:
    async with world(subscription_expiration_minutes=2) as it:
        await it.client.producer(TOPIC)
        await it.subscription("elsewhere")
        await mark(it.topic, it.topic.ledger.cursors["elsewhere"], replicated=True)
        it.clock.advance(121)
        await it.check("idle subscriptions")
        assert set(it.topic.subscriptions) == {"elsewhere"}
        await mark(it.topic, it.topic.ledger.cursors["elsewhere"], replicated=False)
        await it.check("idle subscriptions")
        assert not it.topic.subscriptions


# --- inactivity


async def test_a_topic_that_nobody_uses_vanishes() -> None:
    async with world() as it:
        await it.client.producer(TOPIC)
        await it.publish(1)
        await it.client.producer("non-persistent://public/default/n", 2)
        it.clock.advance(100)
        await it.check("inactive topics")
        await it.client.request(Command.CLOSE_PRODUCER, producer_id=1)
        await it.client.request(Command.CLOSE_PRODUCER, producer_id=2)
        await it.check("inactive topics")
        assert len(it.broker.service.topics) == 2
        it.clock.advance(61)
        await it.check("inactive topics")
        assert not it.broker.service.topics
        assert not await it.broker.service.exists(NAME)
        await it.client.producer(TOPIC)


async def test_a_subscription_or_retention_keeps_a_topic() -> None:
    async with world(retention_minutes=5) as it:
        await it.client.producer(TOPIC)
        await it.publish(1)
        await it.client.producer(TOPIC + "2", 2)
        await it.client.consumer(TOPIC + "2", "s", 2)
        await it.client.request(Command.CLOSE_CONSUMER, consumer_id=2)
        for producer_id in (1, 2):
            await it.client.request(Command.CLOSE_PRODUCER, producer_id=producer_id)
        it.clock.advance(200)
        await it.check("inactive topics")
        assert len(it.broker.service.topics) == 2
        it.clock.advance(200)
        await it.check("inactive topics")
        assert list(it.broker.service.topics) == [TOPIC + "2"]


async def test_a_topic_whose_subscriptions_are_caught_up_vanishes_if_told() -> None:
    async with world(delete_inactive_topics_mode=InactiveTopicDeleteMode.CAUGHT_UP) as it:
        await it.client.producer(TOPIC)
        await it.subscription("s")
        await it.publish(1)
        await it.client.request(Command.CLOSE_PRODUCER, producer_id=1)
        it.clock.advance(100)
        await it.check("inactive topics")
        assert it.topic.subscriptions["s"].backlog == 1
        await it.topic.subscriptions["s"].cursor.clear_backlog()
        await it.client.consumer(TOPIC, "s", 2)
        it.clock.advance(100)
        await it.check("inactive topics")
        await it.client.request(Command.CLOSE_CONSUMER, consumer_id=2)
        it.clock.advance(100)
        await it.check("inactive topics")
        assert not it.broker.service.topics


async def test_the_record_of_a_partitioned_topic_goes_with_its_last_partition_if_told() -> None:
    for told in (False, True):
        async with world(delete_inactive_partitioned_metadata=told) as it:
            await it.broker.service.partitioned.create(NAME, 2)
            for index in range(2):
                await it.broker.service.topic(NAME.partition(index), create=True)
            it.clock.advance(100)
            await it.check("inactive topics")
            assert not it.broker.service.topics
            assert await it.broker.service.resources.partitions(NAME) == (None if told else 2)


async def test_inactivity_may_be_turned_off() -> None:
    async with world(delete_inactive_topics=False) as it:
        await it.broker.service.topic(NAME, create=True)
        it.clock.advance(10_000)
        await it.check("inactive topics")
        assert it.broker.service.topics


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("persistent://public/default/__change_events", True),
        ("persistent://public/default/__change_events-partition-0", True),
        ("persistent://public/default/__transaction_buffer_snapshot", True),
        ("persistent://public/default/topic-sub__transaction_pending_ack", True),
        ("persistent://pulsar/system/transaction_coordinator_assign-partition-3", True),
        ("persistent://pulsar/host:8080/healthcheck", True),
        ("persistent://sla-monitor/host:8080/x", True),
        ("persistent://public/default/topic", False),
        ("persistent://pulsar/mine/topic", False),
    ],
)
def test_topics_of_the_brokers_themselves_are_left_alone(name: str, expected: bool) -> None:
    assert belongs_to_brokers(TopicName.parse(name)) is expected


async def test_everything_is_swept_by_itself() -> None:
    async with world() as it:
        sweeper = it.broker.service.upkeep._sweeper
        names = {job.name for job in sweeper.jobs}
        assert names == {
            "rates",
            "absent readers",
            "message expiry",
            "idle subscriptions",
            "inactive topics",
            "storage statistics",
            "compaction",
            "deduplication",
            "backlog quotas",
        }
        await it.broker.service.topic(NAME, create=True)
        it.clock.advance(10_000)
        sweeper._tick()
        for _ in range(len(names)):
            sweeper._tick()
        while it.broker.service.topics:
            await it.client.round_trip()


class Following:
    """A topic that notes how often it followed its policies."""

    def __init__(self, name: str) -> None:
        self.name = TopicName.parse(name)
        self.followed = 0
        self.replicators = None

    def follow(self, _: object) -> None:
        self.followed += 1


class SlowTimers(Timers):
    """Each look at the clock takes a millisecond, so that a sweep has many slices."""

    def monotonic_seconds(self) -> float:
        self.time_ms += 1
        return super().monotonic_seconds()


def test_policies_that_change_while_others_are_applied_to_very_many_topics_hold_for_all() -> None:
    timers = SlowTimers()
    topics = {
        f"persistent://{namespace}/{number}": Following(f"persistent://{namespace}/{number}")
        for namespace in ("t/first", "t/second")
        for number in range(TOPICS_AT_ONCE)
    }
    listeners: list[Any] = []
    policies = SimpleNamespace(watch=listeners.append, of=lambda _: SimpleNamespace(remote_clusters=()))
    service: Any = SimpleNamespace(
        settings=BrokerSettings(), clock=timers, policies=policies, topics=topics, spawn=lambda work: work.close()
    )
    upkeep = Upkeep(service, timers.call_later)
    upkeep._sweeper.start()
    (changed,) = listeners
    changed(NamespaceName("t", "second"), None)
    timers.advance(50)
    assert TOPICS_AT_ONCE < len(upkeep._sweeper._left) < len(topics), "some of the first ones were looked at already"
    changed(NamespaceName("t", "first"), None)
    timers.advance(10_000)
    assert all(one.followed for one in topics.values())
    upkeep._sweeper.stop()


def test_the_brokers_limit_of_unacknowledged_messages_goes_by_what_is_held_now() -> None:
    """Not by what was held at each look, added up."""
    timers = Timers()
    settings = BrokerSettings(
        policies=PolicySettings(unacked_messages_per_broker_max=10, unacked_share_when_broker_blocked=0.2)
    )
    policies = SimpleNamespace(watch=lambda _: None)
    service: Any = SimpleNamespace(settings=settings, clock=timers, policies=policies, topics={}, spawn=None)
    upkeep = Upkeep(service, timers.call_later)
    looks: list[bool] = []
    subscription: Any = SimpleNamespace(unacked_messages=6, hold=lambda *, held: looks.append(held))
    topic = PersistentTopic.__new__(PersistentTopic)
    topic.subscriptions = {"s": subscription}
    for unacked, expected in ((6, False), (6, False), (6, False), (11, False), (6, True), (5, True), (5, False)):
        subscription.unacked_messages = unacked
        upkeep._add_up(topic)
        upkeep._added_up()
        assert looks.pop() is expected, (unacked, expected)
