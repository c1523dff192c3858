"""Whatever dispatch waits for, it goes on once that is given back; nothing else has to happen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests.subscription_stage import Stage

BOTH = [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]
LIMITS = ["unacked_messages_per_consumer_max", "unacked_messages_per_subscription_max"]


def follow(stage: Stage, **limits: Any) -> None:
    """The subscription's policies have these limits from now on."""
    stage.settings = replace(stage.settings, **limits)
    stage.subscription.follow(EffectivePolicies(ledger=ManagedLedgerSettings(), dispatch=stage.settings))


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("limit", LIMITS)
def test_who_holds_more_than_a_lowered_limit_goes_on_at_half_of_it(kind: SubscriptionType, limit: str) -> None:
    stage = Stage(kind, DispatchSettings())
    stage.join("a", permits=200)
    stage.publish(200)
    assert stage.received("a") == list(range(200))
    follow(stage, **{limit: 10})
    stage.flow("a", 100)
    stage.publish(50)
    stage.ack("a", *range(194))
    assert stage.received("a") == []
    stage.ack("a", 194)
    assert stage.received("a") == list(range(200, 205))
    stage.validate()


@pytest.mark.parametrize("limit", LIMITS)
def test_who_holds_more_than_a_lowered_limit_goes_on_when_it_is_raised(limit: str) -> None:
    stage = Stage(SubscriptionType.SHARED, DispatchSettings())
    stage.join("a", permits=20)
    stage.publish(20)
    follow(stage, **{limit: 10})
    stage.flow("a", 100)
    stage.publish(20)
    assert stage.received("a") == list(range(20))
    follow(stage, **{limit: 30})
    assert stage.received("a") == list(range(20, 30))
    follow(stage, **{limit: 0})
    assert stage.received("a") == list(range(30, 40))


def test_who_waits_for_two_reasons_goes_on_when_one_ack_ends_both() -> None:
    settings = DispatchSettings(pauses_on_ack_state=True, unacked_messages_per_subscription_max=4)
    stage = Stage(SubscriptionType.SHARED, settings)
    stage.cursor.ranges_max = 0
    stage.join("a", permits=3)
    stage.publish(2, deliver_at_time=stage.timers.now_ms() + 5_000)
    stage.publish(3)
    stage.ack("a", 3)
    stage.flow("a", 100)
    stage.publish()  # Waits: more is acknowledged than can be stored. What was read before is sent nevertheless.
    stage.timers.advance(10_000)
    assert sorted(stage.received("a")) == [0, 1, 2, 3, 4]
    assert stage.subscription.blocked
    stage.ack("a", 0, 1, 2, 4)
    assert stage.received("a") == [5]
