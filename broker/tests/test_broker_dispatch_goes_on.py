"""Whatever dispatch waits for, it goes on once that is given back; nothing else has to happen."""

from __future__ import annotations

from dataclasses import replace
from string import ascii_lowercase
from typing import Any

import pytest
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.subscriptions.held import hold_back
from magnetar.core.ids import Position
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests.subscription_stage import LEDGER, Stage

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


def key_shared_stage(**limits: Any) -> tuple[Stage, str, str]:
    """A key of `a`, which has no permits, and one of `b`; beside them there are `c` and `d`."""
    stage = Stage(SubscriptionType.KEY_SHARED, DispatchSettings(read_entries_max=5, **limits))
    first = stage.join("a", permits=0)
    second = stage.join("b", permits=0)
    stage.join("c", permits=0)
    stage.join("d", permits=0)
    stage.timers.advance(0)
    assert stage.subscription.key_shared is not None
    selector = stage.subscription.key_shared.selector
    of_a = next(key for key in ascii_lowercase if selector.owner(selector.slot(key.encode())) is first)
    of_b = next(key for key in ascii_lowercase if selector.owner(selector.slot(key.encode())) is second)
    return stage, of_a, of_b


@pytest.mark.parametrize("who", ["a", "b"])
def test_reading_goes_on_when_what_waits_is_acknowledged(who: str) -> None:
    stage, of_a, of_b = key_shared_stage(look_ahead_max=10)
    stage.flow("b", 100)
    stage.publish_keys(10 * of_a + 5 * of_b)
    assert stage.received("b") == []
    stage.ack(who, *range(10))
    stage.timers.advance(0)
    assert stage.received("b") == list(range(10, 15))
    assert stage.subscription.waiting_entries == 0


def test_reading_goes_on_when_what_waits_is_acknowledged_while_it_is_not_known_who_owns_what() -> None:
    stage, of_a, of_b = key_shared_stage(look_ahead_max=10)
    stage.flow("b", 100)
    stage.publish_keys(10 * of_a + 5 * of_b)
    assert stage.received("b") == []
    # The first that leaves has it looked at who owns what, the second not before the next turn.
    stage.subscription.remove_consumer(stage.consumers["c"])
    stage.subscription.remove_consumer(stage.consumers["d"])
    assert stage.subscription.key_shared is not None
    assert stage.subscription.key_shared.unsettled
    stage.ack("a", *range(10))
    stage.timers.advance(0)
    assert stage.received("b") == list(range(10, 15))


def test_reading_goes_on_when_a_transaction_acknowledges_what_waits() -> None:
    stage, of_a, of_b = key_shared_stage(look_ahead_max=10)
    stage.flow("b", 100)
    held: dict[Position, int] = {}
    stage.subscription.hide(held)
    stage.publish_keys(10 * of_a + 5 * of_b)
    assert stage.received("b") == []
    held.update({(LEDGER, entry_id): -1 for entry_id in range(10)})
    hold_back(stage.subscription, stage.consumers["a"], dict(held))
    stage.timers.advance(0)
    assert stage.received("b") == list(range(10, 15))
