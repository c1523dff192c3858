"""Subscriptions of non-persistent topics: who has permits is sent what is published, the rest is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar.broker.dispatch.choice import new_dispatcher
from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.dispatch.entry_batch import EntryBatch
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.rates import CounterRate
from magnetar.broker.dispatch.single_active import tell_active
from magnetar.broker.policies.limiter import NO_LIMITERS
from magnetar.broker.states import ConsumerState
from magnetar.broker.subscriptions.disconnections import Disconnections
from magnetar.broker.subscriptions.statistics import consumer_response, dispatch_statistics
from magnetar.broker.subscriptions.totals import SubscriptionTotals
from magnetar.core.clock import CallLater, Clock, SystemClock
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.metadata import sticky_key

if TYPE_CHECKING:
    from magnetar.broker.dispatch.entry_batch import Dispatcher
    from magnetar.broker.policies.limiter import RateLimiter
    from magnetar.broker.settings.broker import DispatchSettings
    from magnetar.managed.entry import Entry


class NonPersistentSubscription:
    """The consumers that share what a non-persistent topic is sent. It keeps nothing, so acks mean nothing to it."""

    def __init__(
        self,
        topic_name: str,
        name: str,
        settings: DispatchSettings,
        clock: Clock | None = None,
        call_later: CallLater | None = None,
    ) -> None:
        """Without `call_later` all clients are told in one turn that they have to subscribe again."""
        self.topic_name = topic_name
        self.name = name
        self.type: SubscriptionType | None = None
        self.totals = SubscriptionTotals()
        self.messages_dropped = 0
        self.drop_rate = CounterRate()
        self.limiters: tuple[RateLimiter, ...] = NO_LIMITERS
        """Of resource groups: what they do not let pass is dropped."""
        self._clock = clock if clock is not None else SystemClock()
        self._settings = settings
        self._dispatcher: Dispatcher | None = None
        self._disconnections = Disconnections(self.totals, call_later)

    @property
    def durable(self) -> bool:
        """It goes with its last consumer."""
        return False

    @property
    def consumers(self) -> list[Consumer]:
        """Who is connected."""
        return list(self._dispatcher.consumers) if self._dispatcher is not None else []

    @property
    def is_idle(self) -> bool:
        """Nobody is connected."""
        return self._dispatcher is None

    @property
    def active_consumer(self) -> Consumer | None:
        """Exclusive and Failover: who receives."""
        return self._dispatcher.active if self._dispatcher is not None else None

    def add_consumer(self, consumer: Consumer) -> None:
        """Let a consumer in. Raises what `Subscription.add_consumer` raises."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            dispatcher = new_dispatcher(self.topic_name, consumer, self._settings)
        elif dispatcher.type is not consumer.identity.subscription_type:
            raise PulsarError(ServerError.CONSUMER_BUSY, "Subscription is of different type")
        before = dispatcher.active
        dispatcher.add(consumer)
        self._dispatcher = dispatcher
        self.type = dispatcher.type
        if dispatcher.active is not before:
            self._tell_active(dispatcher, before, consumer)

    def consumer_ready(self, consumer: Consumer) -> None:
        """The consumer's client knows that it is subscribed."""
        if self.type is SubscriptionType.FAILOVER and not consumer.closed:
            consumer.connection.active_consumer_changed(consumer, active=self.active_consumer is consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """The consumer is gone. Unknown ones are ignored."""
        dispatcher = self._dispatcher
        if dispatcher is None or consumer not in dispatcher.consumers:
            return
        before = dispatcher.active
        consumer.become(ConsumerState.CLOSED)
        self.totals.consumer_left(consumer)
        dispatcher.remove(consumer)
        if not dispatcher.consumers:
            self._dispatcher = None
        elif dispatcher.active is not before:
            self._tell_active(dispatcher, before, None)

    def exclusive_holder(self) -> Consumer | None:
        """Who keeps a second Exclusive consumer out."""
        return self.active_consumer if self.type is SubscriptionType.EXCLUSIVE else None

    def disconnect_all(self) -> None:
        """Have every client subscribe again. All are closed now; the clients are told in turns."""
        leaving, self._dispatcher = self.consumers, None
        self._disconnections.close(leaving)

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The client takes so many more messages."""
        consumer.allow(permits)
        consumer.last_flow_ms = self._clock.now_ms()

    def publish(self, entries: list[Entry]) -> None:
        """Send entries to those that have permits and drop what nobody can take, or no group lets pass."""
        dispatcher = self._dispatcher
        if dispatcher is None or not entries:
            return
        batch = EntryBatch()
        batch.entries = entries
        batch.message_counts = [entry.metadata().num_messages for entry in entries]
        if self.limiters and not self._may_pass():
            self.messages_dropped += sum(batch.message_counts)
            return
        if isinstance(dispatcher, KeySharedDispatcher):
            slot = dispatcher.selector.slot
            batch.key_hashes = [slot(sticky_key(entry.metadata())) for entry in entries]
        assignments, left = dispatcher.assign(batch, replayed=False)
        now_ms = self._clock.now_ms()
        for consumer, share in assignments:
            consumer.send_entries(share.entries, share.message_counts)
            consumer.last_consumed_ms = now_ms
            for limiter in self.limiters:
                limiter.take(sum(share.message_counts), sum([len(entry.data) for entry in share.entries]))
        self.messages_dropped += sum(left.message_counts)

    def _may_pass(self) -> bool:
        return all(min(limiter.room()) >= 1 for limiter in self.limiters)

    def update_rates(self, seconds: float) -> None:
        """Turn counters into rates over the time since the last call."""
        self.drop_rate.update(self.messages_dropped, seconds)
        for consumer in self.consumers:
            consumer.update_rates(seconds)

    def consumer_statistics(self, consumer: Consumer) -> dict[str, Any]:
        """One consumer, as CONSUMER_STATS answers."""
        return consumer_response(consumer, 0)

    @property
    def key_shared(self) -> KeySharedDispatcher | None:
        """The chooser of a Key_Shared subscription, for its ranges."""
        return self._dispatcher if isinstance(self._dispatcher, KeySharedDispatcher) else None

    def statistics(self, *, with_consumers: bool = True) -> dict[str, Any]:
        """A snapshot under the admin API's names."""
        active = self.active_consumer
        statistics = dispatch_statistics(self.consumers, self.totals, self.key_shared, with_consumers=with_consumers)
        statistics["type"] = self.type.display_name if self.type is not None else "None"
        statistics["msgDropRate"] = self.drop_rate.per_second
        if self.type is SubscriptionType.FAILOVER and active is not None:
            statistics["activeConsumerName"] = active.name
        return statistics

    def _tell_active(self, dispatcher: Dispatcher, before: Consumer | None, joining: Consumer | None) -> None:
        if dispatcher.type is SubscriptionType.FAILOVER:
            tell_active(before, dispatcher.active, joining)
