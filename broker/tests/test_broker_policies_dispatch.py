"""Rates, limits and delays of dispatch, on a stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from magnetar.broker.policies.broker_limits import BrokerLimits
from magnetar.broker.policies.limiter import RateLimiter
from magnetar.broker.policies.model import EffectivePolicies, Rate
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests.subscription_stage import LEDGER, Stage

SHARED, EXCLUSIVE, FAILOVER = SubscriptionType.SHARED, SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER
POLICIES = EffectivePolicies(ledger=ManagedLedgerSettings(), dispatch=DispatchSettings())


def staged(kind: SubscriptionType, topic_rate: Rate | None = None, policies: Any = None, **settings: Any) -> Stage:
    """A subscription under these policies, of a broker with these settings."""
    stage = Stage(kind)
    runtime = stage.subscription._runtime
    runtime.limits = BrokerLimits(PolicySettings(**settings), runtime.clock, runtime.call_later)
    follow(stage, policies if policies is not None else POLICIES, topic_rate)
    return stage


def follow(stage: Stage, policies: EffectivePolicies, topic_rate: Rate | None = None) -> None:
    limiter = None
    if topic_rate is not None:
        limiter = RateLimiter(topic_rate, stage.timers, stage.timers.call_later, "topic")
    stage.subscription.follow(policies, limiter)


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE, FAILOVER])
def test_messages_leave_no_faster_than_the_subscriptions_rate(kind: SubscriptionType) -> None:
    stage = staged(kind, policies=replace(POLICIES, subscription_dispatch_rate=Rate(10)))
    stage.join("a")
    stage.publish(100)
    assert stage.received("a") == list(range(10))
    received: list[int] = []
    for _ in range(20):
        stage.timers.advance(100)
        received += stage.received("a")
    assert received == list(range(10, 30))
    stage.validate()


def test_bytes_leave_no_faster_than_their_rate() -> None:
    stage = staged(EXCLUSIVE, policies=replace(POLICIES, subscription_dispatch_rate=Rate(0, 1_000)))
    stage.join("a")
    stage.publish(1_000)
    size = len(stage.cursor.entries[0].data)
    burst = len(stage.received("a"))
    assert 1_000 <= burst * size <= 1_000 + size
    stage.timers.advance(3_000)
    assert 2_500 <= len(stage.received("a")) * size <= 3_500


def test_a_batch_counts_as_its_messages_or_as_one() -> None:
    policies = replace(POLICIES, subscription_dispatch_rate=Rate(10))
    by_messages = staged(SHARED, policies=policies)
    by_batches = staged(SHARED, policies=policies, dispatch_counts_batches=True)
    for stage, expected in ((by_messages, 20), (by_batches, 110)):
        stage.join("a")
        stage.publish(500, num_messages_in_batch=5)
        stage.received("a")
        stage.flow("a", 10_000)
        sent = 10
        for _ in range(100):
            stage.timers.advance(100)
            sent += len(stage.received("a"))
        assert expected <= sent <= expected + 12


def test_the_tightest_of_subscription_topic_and_broker_counts() -> None:
    stage = staged(SHARED, Rate(5), dispatch_messages=8)
    stage.join("a")
    stage.publish(100)
    assert len(stage.received("a")) == 5
    follow(stage, POLICIES)
    stage.timers.advance(1_000)
    assert len(stage.received("a")) == 11


def test_a_rate_of_one_subscription_wins() -> None:
    policies = replace(POLICIES, subscription_dispatch_rate=Rate(50), dispatch_rates={"s": Rate(2)})
    stage = staged(SHARED, policies=policies)
    stage.join("a")
    stage.publish(100)
    assert len(stage.received("a")) == 2
    follow(stage, POLICIES)
    assert len(stage.received("a")) == 98
    assert stage.timers.pending == 0


def test_what_is_sent_again_is_limited_too() -> None:
    stage = staged(SHARED, policies=replace(POLICIES, subscription_dispatch_rate=Rate(10)))
    stage.join("a")
    stage.publish(10)
    assert len(stage.received("a")) == 10
    stage.redeliver("a")
    assert stage.received("a") == []
    stage.timers.advance(500)
    assert len(stage.received("a")) == 5


def test_tail_readers_may_be_left_alone() -> None:
    policies = replace(POLICIES, subscription_dispatch_rate=Rate(10))
    stage = staged(EXCLUSIVE, policies=policies, dispatch_limits_caught_up=False)
    stage.join("a", permits=10_000)
    stage.publish(100)
    assert len(stage.received("a")) == 100
    stage.leave("a")
    stage.publish(2_000)
    stage.join("b", permits=10_000)
    assert len(stage.received("b")) < 300


def test_a_dispatch_rate_relative_to_what_is_published() -> None:
    rate = Rate(10, 0, 1.0, relative_to_publish_rate=True)
    stage = staged(EXCLUSIVE, policies=replace(POLICIES, subscription_dispatch_rate=rate))
    stage.subscription.add_publish_rate(40.0, 0.0)
    stage.join("a")
    stage.publish(200)
    stage.received("a")
    stage.timers.advance(1_000)
    assert 40 <= len(stage.received("a")) <= 60


def test_a_rate_that_ends_with_the_last_consumer_leaves_no_timer() -> None:
    stage = staged(EXCLUSIVE, policies=replace(POLICIES, subscription_dispatch_rate=Rate(1)))
    stage.join("a")
    stage.publish(10)
    stage.leave("a")
    stage.timers.advance(60_000)
    assert stage.timers.pending == 0


def test_limits_of_unacknowledged_messages_change_while_consumers_wait() -> None:
    few = replace(
        POLICIES,
        dispatch=DispatchSettings(unacked_messages_per_consumer_max=3, unacked_messages_per_subscription_max=5),
    )
    stage = staged(SHARED, policies=few)
    stage.join("a")
    stage.join("b")
    stage.publish(50)
    assert len(stage.received("a")) + len(stage.received("b")) == 5
    assert stage.subscription.blocked
    follow(stage, POLICIES)
    assert len(stage.received("a")) + len(stage.received("b")) == 45
    stage.validate()


def test_a_consumer_whose_limit_is_raised_goes_on() -> None:
    few = DispatchSettings(unacked_messages_per_consumer_max=3, unacked_messages_per_subscription_max=1_000)
    stage = staged(SHARED, policies=replace(POLICIES, dispatch=few))
    stage.join("a")
    stage.publish(10)
    assert len(stage.received("a")) == 3
    follow(stage, replace(POLICIES, dispatch=replace(few, unacked_messages_per_consumer_max=5)))
    assert len(stage.received("a")) == 2
    stage.validate()


def test_a_broker_over_its_limit_holds_a_subscription() -> None:
    stage = staged(SHARED)
    stage.join("a")
    stage.subscription.hold(held=True)
    stage.publish(5)
    assert stage.received("a") == []
    stage.subscription.hold(held=False)
    assert len(stage.received("a")) == 5


def test_without_delayed_delivery_everything_is_delivered_at_once() -> None:
    stage = staged(SHARED)
    stage.join("a")
    now_ms = stage.timers.now_ms()
    stage.publish(2, deliver_at_time=now_ms + 60_000)
    assert stage.received("a") == []
    follow(stage, replace(POLICIES, delayed_delivery=False))
    assert stage.received("a") == [0, 1]
    stage.publish(1, deliver_at_time=now_ms + 60_000)
    assert stage.received("a") == [2]
    assert stage.subscription.delayed_entries == 0


def test_delays_that_are_too_long_are_cut() -> None:
    stage = staged(SHARED, delay_clamped_ms=10_000)
    stage.join("a")
    now_ms = stage.timers.now_ms()
    stage.publish(1, publish_time=now_ms, deliver_at_time=now_ms + 864_000_000)
    stage.publish(1, publish_time=now_ms, deliver_at_time=now_ms + 5_000)
    stage.publish(1, publish_time=1, deliver_at_time=now_ms + 5_000)
    assert stage.received("a") == [2]
    stage.timers.advance(5_000)
    assert stage.received("a") == [1]
    stage.timers.advance(5_000)
    assert stage.received("a") == [0]


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE])
def test_what_expires_is_held_by_nobody_any_more(kind: SubscriptionType) -> None:
    stage = staged(kind)
    stage.join("a", permits=4)
    stage.publish(10)
    stage.publish(1, deliver_at_time=stage.timers.now_ms() + 60_000)
    assert stage.received("a") == [0, 1, 2, 3]
    assert stage.subscription.expire_up_to((LEDGER, 10)) == 11
    assert stage.subscription.unacked_messages == 0
    assert stage.subscription.delayed_entries == 0
    assert stage.subscription.statistics()["totalMsgExpired"] == 11
    stage.flow("a", 10)
    stage.publish(1)
    assert stage.received("a") == [11]
    assert stage.subscription.expire_up_to((LEDGER, 10)) == 0
    stage.validate()


def test_rates_of_expiry() -> None:
    stage = staged(SHARED)
    stage.publish(20)
    stage.subscription.expire_up_to((LEDGER, 9))
    stage.subscription.update_rates(10)
    assert stage.subscription.statistics()["msgRateExpired"] == 1.0
    stage.subscription.update_rates(10)
    assert stage.subscription.statistics()["msgRateExpired"] == 0.0


def test_a_runtime_without_limits_limits_nothing() -> None:
    stage = Stage(SHARED)
    runtime = SubscriptionRuntime(stage.timers, stage.reads.spawn, stage.timers.call_later)
    assert runtime.limits.dispatch is None
    assert runtime.limits.publish is None
