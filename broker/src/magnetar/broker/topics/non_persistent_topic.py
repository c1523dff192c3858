"""A non-persistent topic: messages go to whoever is connected and can take them, and are stored nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.states import LoadedTopicState
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.subscriptions.non_persistent_subscription import NonPersistentSubscription
from magnetar.broker.topics.limits import (
    check_consumer,
    check_subscription_type,
)
from magnetar.broker.topics.message_checks import publish_checked
from magnetar.broker.topics.producer import Producer, PublishBatch
from magnetar.broker.topics.producer_admission import Admitted, ProducerAdmission
from magnetar.broker.topics.topic_base import TopicBase
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.replication.non_persistent_replicators import NonPersistentReplicators


class NonPersistentTopic(TopicBase):
    """Owns its producers and subscriptions; lives as long as the broker does or until it is unloaded."""

    replicators: NonPersistentReplicators | None

    def __init__(
        self,
        name: TopicName,
        policies: EffectivePolicies,
        runtime: SubscriptionRuntime,
    ) -> None:
        super().__init__(name, policies, runtime, ProducerAdmission(runtime.spawn))
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.follow(policies)

    def follow(self, policies: EffectivePolicies) -> None:
        """Other policies hold from now on."""
        self.policies = policies
        self._follow_publish_rate()
        self._limit_dispatch()
        self._disconnect_unencrypted()

    def _limit_dispatch(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.limiters = self.dispatch_limiters

    def update_rates(self, seconds: float) -> None:
        """Turn counters into rates over the time since the last call."""
        for producer in self.producers.by_name.values():
            producer.update_rates(seconds)
        for subscription in self.subscriptions.values():
            subscription.update_rates(seconds)

    async def check_producer(self, producer: Producer) -> None:
        """Raises PulsarError when policies keep a producer out."""
        self._check_limits(producer)

    def last_sequence_id(self, producer_name: str) -> int:
        """Nothing is stored, so nothing is stored twice."""
        del producer_name
        return -1

    @property
    def number_of_entries(self) -> int:
        """Entries that are stored: none, ever."""
        return 0

    def publish(self, batch: PublishBatch) -> None:
        """Hand a batch to the subscriptions; receipts carry no real position."""
        if self.closing:
            batch.producer.dropped(batch, MagnetarError("the topic is closing"))
        elif self.policies.checks_messages or batch.transactions is not None:
            publish_checked(batch, self.policies, str(self.name), None, None, self._publish)
        else:
            self._publish(batch)

    def _publish(self, batch: PublishBatch) -> None:
        self.messages_in += batch.message_count
        self.bytes_in += batch.size_bytes
        self.last_publish_ms = self._clock.now_ms()
        entries = [Entry(0, 0, payload) for payload in batch.payloads]
        for subscription in self.subscriptions.values():
            subscription.publish(entries)
        if self.replicators is not None and not batch.producer.is_replicator:
            self.replicators.publish(batch.payloads)
        batch.producer.not_stored(batch)

    async def add_producer(self, producer: Producer, admitted: Admitted) -> bool:
        """Let a producer in. True when it has to wait: then `admitted` is called once its turn (or the end) comes."""
        self._refuse_when_closing()
        self._check_limits(producer)
        return await self._let_in(producer, admitted)

    async def create_subscription(
        self, name: str, start: Position, properties: dict[str, str] | None = None
    ) -> NonPersistentSubscription:
        """The subscription of a name; it has no position, so `start` means nothing."""
        del start, properties
        self._refuse_when_closing()
        subscription = self.subscriptions.get(name)
        if subscription is None:
            self._check_new_subscription(name, len(self.subscriptions))
            subscription = self.subscriptions[name] = NonPersistentSubscription(
                str(self.name), name, self.policies.dispatch, call_later=self._runtime.call_later
            )
            subscription.limiters = self.dispatch_limiters
        return subscription

    async def subscribe(
        self, consumer: Consumer, name: str, start: Position, properties: dict[str, str]
    ) -> NonPersistentSubscription:
        """Attach a consumer."""
        check_subscription_type(self.name, self.policies, consumer.identity.subscription_type)
        if not self.of_broker:
            settings, present = self._runtime.limits.settings, self.subscriptions.get(name)
            check_consumer(self.policies, settings, consumer, self.subscriptions.values(), present)
        subscription = await self.create_subscription(name, start, properties)
        subscription.add_consumer(consumer)
        return subscription

    def remove_consumer(self, consumer: Consumer, name: str) -> None:
        """The consumer is gone; its subscription goes with the last one."""
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            subscription.remove_consumer(consumer)
            if subscription.is_idle:
                del self.subscriptions[name]

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Remove a subscription. Connected consumers forbid it unless forced."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise PulsarError(ServerError.SUBSCRIPTION_NOT_FOUND, "Subscription not found")
        if subscription.consumers and not force:
            raise PulsarError(ServerError.CONSUMER_BUSY, "Subscription has active connected consumers")
        subscription.disconnect_all()
        self.subscriptions.pop(name, None)

    async def close(self) -> None:
        """Disconnect all producers and consumers."""
        self._become(LoadedTopicState.CLOSING)
        self.admission.disconnect()
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect_all()
        self.subscriptions.clear()

    async def abandon(self) -> None:
        """Disconnect everybody: nothing is stored that another broker could have."""
        await self.close()

    async def delete(self) -> None:
        """Disconnect everybody: there is nothing to remove."""
        await self.close()
