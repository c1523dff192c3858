"""A non-persistent topic: messages go to whoever is connected and can take them, and are stored nowhere."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from magnetar.broker.consumer import Consumer
from magnetar.broker.non_persistent_subscription import NonPersistentSubscription
from magnetar.broker.producer import Producer, PublishBatch
from magnetar.broker.producer_admission import Admitted, ProducerAdmission
from magnetar.broker.producers import Producers
from magnetar.broker.settings import BrokerSettings
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.errors import PulsarError, ServerError


class NonPersistentTopic:
    """Owns its producers and subscriptions; lives as long as the broker does or until it is unloaded."""

    def __init__(
        self,
        name: TopicName,
        settings: BrokerSettings,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.name = name
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.admission = ProducerAdmission(None, self._store_epoch, spawn)
        self.created_ms = clock.now_ms()
        self.last_active_seconds = clock.monotonic_seconds()
        self.last_publish_ms = 0
        self.closing = False
        self.messages_in = 0
        self.bytes_in = 0
        self._settings = settings
        self._clock = clock

    @property
    def producers(self) -> Producers:
        """Who publishes."""
        return self.admission.producers

    @property
    def number_of_entries(self) -> int:
        """Entries that are stored: none, ever."""
        return 0

    def publish(self, batch: PublishBatch) -> None:
        """Hand a batch to the subscriptions; receipts carry no real position."""
        if self.closing:
            batch.producer.dropped(batch, MagnetarError("the topic is closing"))
            return
        self.messages_in += batch.message_count
        self.bytes_in += batch.size_bytes
        self.last_publish_ms = self._clock.now_ms()
        entries = [Entry(0, 0, payload) for payload in batch.payloads]
        for subscription in self.subscriptions.values():
            subscription.publish(entries)
        batch.producer.not_stored(batch)

    async def add_producer(self, producer: Producer, admitted: Admitted) -> bool:
        """Let a producer in. True when it has to wait: then `admitted` is called once its turn (or the end) comes."""
        self._refuse_when_closing()
        waits = await self.admission.add(producer, admitted)
        self._refuse_when_closing()
        return waits

    async def _store_epoch(self, epoch: int) -> None:
        """Nothing is stored: the epoch is as short-lived as the topic."""
        del epoch

    def remove_producer(self, producer: Producer) -> None:
        """The producer is gone; the next one that waits may come in."""
        self.admission.remove(producer)
        self.last_active_seconds = self._clock.monotonic_seconds()

    async def create_subscription(
        self, name: str, start: Position, properties: dict[str, str] | None = None
    ) -> NonPersistentSubscription:
        """The subscription of a name; it has no position, so `start` means nothing."""
        del start, properties
        self._refuse_when_closing()
        subscription = self.subscriptions.get(name)
        if subscription is None:
            subscription = self.subscriptions[name] = NonPersistentSubscription(
                str(self.name), name, self._settings.dispatch
            )
        return subscription

    async def subscribe(
        self, consumer: Consumer, name: str, start: Position, properties: dict[str, str]
    ) -> NonPersistentSubscription:
        """Attach a consumer."""
        subscription = await self.create_subscription(name, start, properties)
        subscription.add_consumer(consumer)
        return subscription

    def remove_consumer(self, consumer: Consumer, name: str) -> None:
        """The consumer is gone; its subscription goes with the last one."""
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            subscription.remove_consumer(consumer)
            if not subscription.consumers:
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
        """Disconnect everybody."""
        self.closing = True
        self.admission.disconnect()
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect_all()
        self.subscriptions.clear()

    async def delete(self) -> None:
        """The same as closing: nothing is stored."""
        await self.close()

    def _refuse_when_closing(self) -> None:
        if self.closing:
            raise PulsarError(ServerError.SERVICE_NOT_READY, f"Topic {self.name} is being unloaded, look it up again")
