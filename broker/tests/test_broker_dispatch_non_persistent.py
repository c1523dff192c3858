"""Non-persistent subscriptions: what cannot be sent at once is gone, and counted."""

from __future__ import annotations

import pytest
from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.subscriptions.non_persistent_subscription import NonPersistentSubscription
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError

from broker.tests.subscription_stage import StagedConnection, Timers, stored_message


class Scene:
    def __init__(self, kind: SubscriptionType) -> None:
        self.kind = kind
        self.subscription = NonPersistentSubscription("non-persistent://t/n/x", "s", DispatchSettings(), Timers())
        self.connections: dict[str, StagedConnection] = {}
        self.published = 0

    def join(self, name: str, permits: int) -> Consumer:
        self.connections[name] = StagedConnection()
        identity = ConsumerIdentity(len(self.connections), name, self.kind)
        consumer = Consumer(identity, self.connections[name], partition_index=0)
        self.subscription.add_consumer(consumer)
        self.subscription.consumer_ready(consumer)
        self.subscription.flow(consumer, permits)
        return consumer

    def publish(self, count: int, key: str = "k") -> None:
        first = self.published
        self.published += count
        self.subscription.publish(
            [Entry(0, first + number, stored_message(partition_key=key)) for number in range(count)]
        )

    def received(self, name: str) -> int:
        return len(self.connections[name].messages)


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_what_goes_beyond_the_permits_is_dropped(kind: SubscriptionType) -> None:
    scene = Scene(kind)
    scene.publish(1)  # Nobody is connected.
    scene.join("a", permits=3)
    scene.publish(5)
    scene.publish(2)
    assert scene.received("a") == 3
    assert scene.subscription.messages_dropped == 4
    scene.subscription.update_rates(2.0)
    statistics = scene.subscription.statistics()
    assert (statistics["msgDropRate"], statistics["msgRateOut"], statistics["msgOutCounter"]) == (2.0, 1.5, 3)


def test_shared_goes_round() -> None:
    scene = Scene(SubscriptionType.SHARED)
    scene.join("a", permits=10)
    scene.join("b", permits=10)
    for _ in range(6):
        scene.publish(1)
    assert (scene.received("a"), scene.received("b")) == (3, 3)


def test_key_shared_keeps_a_key_with_one_consumer() -> None:
    scene = Scene(SubscriptionType.KEY_SHARED)
    scene.join("a", permits=10)
    scene.join("b", permits=10)
    scene.publish(6)
    assert sorted([scene.received("a"), scene.received("b")]) == [0, 6]


def test_failover_moves_on() -> None:
    scene = Scene(SubscriptionType.FAILOVER)
    first = scene.join("a", permits=10)
    scene.join("b", permits=10)
    scene.publish(1)
    scene.subscription.remove_consumer(first)
    scene.publish(1)
    assert (scene.received("a"), scene.received("b")) == (1, 1)
    assert scene.connections["b"].events == ["b passive", "b active"]


def test_a_second_exclusive_consumer_is_refused_and_all_are_disconnected() -> None:
    scene = Scene(SubscriptionType.EXCLUSIVE)
    scene.join("a", permits=1)
    with pytest.raises(PulsarError):
        scene.join("b", permits=1)
    scene.subscription.disconnect_all()
    assert scene.connections["a"].events == ["a disconnected"]
    assert scene.subscription.is_idle
