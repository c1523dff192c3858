"""A persistent topic: a managed ledger, who publishes to it and who is subscribed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from magnetar.broker.compaction.entries import StoredEntries, TopicEntries
from magnetar.broker.compaction.threshold import wanted as compaction_wanted
from magnetar.broker.compaction.topic_compaction import TopicCompaction
from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.policies.limiter import RateLimiter, limiter_for
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.policies.system_topics import is_compacted
from magnetar.broker.states import LoadedTopicState
from magnetar.broker.subscriptions.begin_anew import begin_at
from magnetar.broker.subscriptions.cursor import SubscriptionCursor
from magnetar.broker.subscriptions.delayed_in_cache import delays_of
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.subscriptions.visibility import Visibility
from magnetar.broker.topics.backlog import check_quotas, first_published_since
from magnetar.broker.topics.compacted_views import (
    check_compacted,
    follow_view,
    open_compaction_cursor_quietly,
    reader_cursor,
)
from magnetar.broker.topics.deduplication import Deduplication, DeduplicationSwitch
from magnetar.broker.topics.limits import (
    RESERVED_SUBSCRIPTIONS,
    SubscribeLimiter,
    check_consumer,
    check_durability,
    check_durable_subscription,
    check_subscription_type,
    subscribe_limiter_for,
)
from magnetar.broker.topics.message_checks import publish_checked
from magnetar.broker.topics.non_persistent_topic import NonPersistentTopic
from magnetar.broker.topics.producer import Producer, PublishBatch
from magnetar.broker.topics.producer_admission import Admitted, ProducerAdmission
from magnetar.broker.topics.topic_base import TopicBase
from magnetar.broker.transactions.buffers.buffer import TransactionBuffer
from magnetar.broker.transactions.buffers.held_appends import DoubtedBatches, HeldAppends
from magnetar.broker.transactions.pending_topic import TopicPendingAcks
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.errors import ManagedLedgerFenced, ManagedLedgerTerminated, ManagedLedgerWriteFailed
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.replication.topic_replicators import TopicReplicators

logger: Final = logging.getLogger(__name__)

_OPEN: Final = LoadedTopicState.OPEN


class PersistentTopic(TopicBase):
    """Owns its producers and subscriptions; sessions hold references that `close` takes back."""

    replicators: TopicReplicators | None

    __slots__ = (
        "_checks_messages",
        "_deduplication_switch",
        "_delayed",
        "_dispatch_limiter",
        "_held",
        "_on_lost",
        "_spawn",
        "_subscribe_limiter",
        "_subscribing",
        "buffer",
        "compaction",
        "deduplication",
        "ledger",
        "pending_acks",
        "subscriptions",
        "visibility",
    )

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        policies: EffectivePolicies,
        runtime: SubscriptionRuntime,
        on_lost: Callable[[PersistentTopic, MagnetarError], None],
    ) -> None:
        super().__init__(name, policies, runtime, ProducerAdmission(runtime.spawn, ledger))
        self.ledger = ledger
        self.subscriptions: dict[str, Subscription] = {}
        self.deduplication: Deduplication | None = None
        self.buffer: TransactionBuffer | None = None  # None: no transaction may write to it.
        self.visibility: Visibility | None = None  # What transactions hide.
        self._held: HeldAppends[PublishBatch] | None = None
        self.pending_acks: TopicPendingAcks | None = None
        """What transactions have acknowledged; None where there are none."""
        self.compaction: TopicCompaction | None = None  # Made by who first asks `BrokerService.compaction` for it.
        self._checks_messages = policies.checks_messages
        self._delayed = delays_of(ledger, self.subscriptions)
        self._dispatch_limiter: RateLimiter | None = None
        self._subscribe_limiter: SubscribeLimiter | None = None
        self._deduplication_switch = DeduplicationSwitch(runtime)
        self._spawn = runtime.spawn
        self._on_lost = on_lost
        self._subscribing: asyncio.Lock | None = None
        self._follow_rates()
        ledger.settings = policies.ledger_of(name)
        ledger.appends.latencies = runtime.publish_latencies
        for cursor_name, cursor in ledger.cursors.items():
            if not cursor_name.startswith(RESERVED_SUBSCRIPTIONS):
                self.subscriptions[cursor_name] = self._subscription(cursor_name, cursor)
        ledger.appends.on_appended.append(self._entries_available)
        if ledger.keeps_cursors and ledger.appends.on_fenced is None:  # A shadow's tells it by itself.
            ledger.appends.on_fenced = self.storing_failed  # Else only who publishes hears of it.

    async def prepare(self) -> None:
        """What takes time before anybody may use the topic. Raises what the ledger raises."""
        await self._deduplication_switch.follow(self)
        if self.buffer is not None:
            await self.buffer.recover()
        if self.compacts_by_itself:
            # It keeps the ledgers: readers alone would let all be deleted when the topic is loaded again.
            await self.create_subscription(COMPACTION_CURSOR, EARLIEST)

    @property
    def number_of_entries(self) -> int:
        """Entries that are stored."""
        return self.ledger.ledgers.number_of_entries()

    def publish(self, batch: PublishBatch) -> None:
        """Store a batch; its producer hears how it went. Never waits."""
        if self.state is not _OPEN:
            batch.producer.dropped(batch, MagnetarError("the topic is closing"))
        elif self._held is not None and self._held.doubts(batch):
            return  # It comes again once that is known.
        elif self._checks_messages or batch.looked_at or (self.buffer and self.buffer.in_use):
            publish_checked(batch, self.policies, str(self.name), self.deduplication, self.buffer, self._append)
        else:
            self._append(batch)

    def _append(self, batch: PublishBatch) -> None:
        if self._held is None or not self._held.take(batch, transactional=batch.transactions is not None):
            self._append_now(batch)

    def _append_now(self, batch: PublishBatch) -> None:
        self.ledger.appends.append(batch.payloads, self._appended, batch)

    def _appended(self, error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
        assert isinstance(context, PublishBatch)
        if error is None:
            self.messages_in += context.message_count
            self.bytes_in += context.size_bytes
            if self.deduplication is not None:
                self.deduplication.batch_stored(context, (ledger_id, first_entry_id + len(context.payloads) - 1))
            if self.buffer is not None:
                self.buffer.stored(context.transactions, ledger_id, first_entry_id)
            context.producer.stored(context, ledger_id, first_entry_id)
        else:
            self._append_failed(context, error)

    def _append_failed(self, batch: PublishBatch, error: MagnetarError) -> None:
        if self.deduplication is not None:
            self.deduplication.append_failed()
        if self.buffer is not None and batch.transactions is not None:
            self.buffer.not_stored()
        batch.producer.dropped(batch, error)
        if self._held is not None:
            self._held.drop_waiting(error)
        if isinstance(error, ManagedLedgerTerminated):
            # Not SEND_ERROR: Go's client forgets its producer at that. Whoever comes back hears why it was closed.
            self.disconnect_producers()
            return
        self.storing_failed(error)

    def storing_failed(self, error: MagnetarError) -> None:
        """The ledger takes nothing: producers reconnect, or the topic is given up."""
        if self.closing:
            return
        if isinstance(error, ManagedLedgerFenced):
            self._on_lost(self, error)
            return
        # Clients keep what has no receipt: after this they look the topic up, come back and send it again, in order.
        if self.producers.by_name:
            logger.warning("publishing to %s failed, its producers reconnect: %s", self.name, error)
        self.disconnect_producers()
        self.ledger.appends.ready_to_create_ledger()

    # --- transactions

    def use_buffer(self, buffer: TransactionBuffer) -> None:
        """Transactions may write to it; before `prepare`."""
        self.buffer = buffer
        doubted = DoubtedBatches(buffer, self._spawn, self.publish, self.disconnect_producer)
        appends = self._append_now, self._append_failed, self.storing_failed
        self._held = HeldAppends(buffer, self._spawn, *appends, doubted)
        buffer.on_failure = self.storing_failed
        self._show_by(buffer.visibility)

    def _show_by(self, visibility: Visibility) -> None:
        self.visibility = visibility
        for subscription in self.subscriptions.values():
            subscription.visibility = visibility

    @property
    def max_read_position(self) -> Position:
        """Everything up to here may be sent to consumers."""
        return self.ledger.last_confirmed if self.buffer is None else self.buffer.max_read_position

    def _entries_available(self) -> None:
        self.last_publish_ms = self._clock.now_ms()
        for subscription in self.subscriptions.values():
            subscription.entries_available()

    async def check_producer(self, producer: Producer) -> None:
        """Raises PulsarError when policies keep a producer out: limits, encryption, a backlog that is too large."""
        if not self.of_broker:
            await check_quotas(self)
            self._check_limits(producer)

    async def add_producer(self, producer: Producer, admitted: Admitted) -> bool:
        """Let a producer in. True when it has to wait: then `admitted` is called once its turn (or the end) comes."""
        self._refuse_when_closing()
        if self.ledger.terminated:
            raise PulsarError(ServerError.TOPIC_TERMINATED_ERROR, "Topic was already terminated")
        try:
            await self.ledger.check_writable()
        except ManagedLedgerWriteFailed as error:
            # Let in, it would be thrown out with its first message, and so start its send timeout anew for ever.
            raise PulsarError(ServerError.SERVICE_NOT_READY, f"Topic {self.name} cannot be written: {error}") from error
        self._check_limits(producer)
        if self.deduplication is not None:
            self.deduplication.check_name(producer.name)
        waits = await self._let_in(producer, admitted)
        if self.deduplication is not None:
            self.deduplication.producer_added(producer.name)
        return waits

    def last_sequence_id(self, producer_name: str) -> int:
        """With deduplication: up to which message a producer need not send anything again; else -1."""
        return self.deduplication.last_sequence_id(producer_name) if self.deduplication is not None else -1

    def remove_producer(self, producer: Producer) -> None:
        """The producer is gone: the next one may come in, and deduplication keeps its numbers for a while."""
        super().remove_producer(producer)
        if self.deduplication is not None and producer.name not in self.producers.by_name:
            self.deduplication.producer_removed(producer.name)

    async def create_subscription(
        self, name: str, start: Position, properties: dict[str, str] | None = None, marks: dict[str, int] | None = None
    ) -> Subscription:
        """A durable subscription; the existing one when there is one. `marks` are those of a new cursor's position."""
        check_durable_subscription(name)
        self._refuse_when_closing()
        self._subscribing = self._subscribing or asyncio.Lock()
        async with self._subscribing:
            subscription = self.subscriptions.get(name)
            if subscription is None:
                if name != COMPACTION_CURSOR:
                    self._check_new_subscription(name, len(self.subscriptions))
                cursor = await self.ledger.open_cursor(name, start, marks, properties)
                self._refuse_when_closing()
                subscription = self.subscriptions[name] = self._subscription(name, cursor)
            return subscription

    async def subscribe(
        self, consumer: Consumer, name: str, start: Position, properties: dict[str, str]
    ) -> Subscription:
        """Attach a consumer; durable or not is the consumer's wish and must agree with what is there."""
        check_subscription_type(self.name, self.policies, consumer.identity.subscription_type)
        if self._subscribe_limiter is not None:
            self._subscribe_limiter.check(consumer)
        self._refuse_when_closing()
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            check_durability(subscription.cursor.durable, consumer)
        if not self.of_broker:
            settings = self._runtime.limits.settings
            check_consumer(self.policies, settings, consumer, self.subscriptions.values(), subscription)
        if consumer.identity.read_compacted:
            await check_compacted(self.ledger)
            self._refuse_when_closing()
            subscription = self.subscriptions.get(name)
        new = subscription is None
        if consumer.durable:
            subscription = await self.create_subscription(name, start, properties)
            if self.pending_acks is not None:
                await self.pending_acks.ready(subscription)
            await follow_view(subscription, self.ledger, consumer, start if new else None)
            self._refuse_when_closing()
        elif subscription is None:
            self._check_new_subscription(name, len(self.subscriptions))
            subscription = self.subscriptions[name] = self._subscription(
                name, reader_cursor(self.ledger, consumer, name, start)
            )
        try:
            subscription.add_consumer(consumer)
        except PulsarError:
            if new:
                self.let_go_of_unused(name)
            raise
        return subscription

    # --- compaction

    @property
    def visible_entries(self) -> TopicEntries:
        """What of the topic a compaction may see."""
        return StoredEntries(self.ledger) if self.buffer is None else self.buffer.entries

    @property
    def compacts_by_itself(self) -> bool:
        """Whether a threshold says so, or that it is one of the brokers' own."""
        return compaction_wanted(self.policies.compaction_threshold_bytes, always=is_compacted(self.name))

    def remove_consumer(self, consumer: Consumer, name: str) -> None:
        """The consumer is gone; a non-durable subscription goes with its last one."""
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            subscription.remove_consumer(consumer)
            self.last_active_seconds = self._clock.monotonic_seconds()
            self.let_go_of_unused(name)

    def let_go_of_unused(self, name: str) -> None:
        """A subscription that is not durable goes, unless it has a consumer."""
        subscription = self.subscriptions.get(name)
        if subscription is not None and not subscription.cursor.durable and subscription.is_idle:
            del self.subscriptions[name]
            if self.pending_acks is not None:
                self.pending_acks.forget(name)
            self._spawn(self._close_subscription(subscription))

    async def _close_subscription(self, subscription: Subscription) -> None:
        subscription.close()
        await subscription.cursor.close()

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Remove a subscription with its position. Connected consumers forbid it unless forced."""
        subscription = self.subscriptions.get(name)
        # A deletion that had no answer may have left its cursor.
        begun = name in self.ledger.cursors and not name.startswith(RESERVED_SUBSCRIPTIONS)
        if subscription is None and not begun:
            raise PulsarError(ServerError.SUBSCRIPTION_NOT_FOUND, "Subscription not found")
        if subscription is not None:
            if subscription.consumers and not force:
                raise PulsarError(ServerError.CONSUMER_BUSY, "Subscription has active connected consumers")
            subscription.close()
            self.subscriptions.pop(name, None)
            self.replicated_changed(name)
            if not subscription.cursor.durable:
                await subscription.cursor.close()
                return
        self._subscribing = self._subscribing or asyncio.Lock()
        async with self._subscribing:  # Whoever comes meanwhile has a cursor of its own, and not the one that goes.
            try:
                if self.pending_acks is not None:
                    await self.ledger.check_owner()
                    await self.pending_acks.delete(name)
                await self.ledger.delete_cursor(name)
            except ManagedLedgerFenced as error:
                self._on_lost(self, error)
                raise

    async def reset_subscription(
        self, subscription: Subscription, position: Position, remaining: list[int] | None = None
    ) -> None:
        """Make reading start at a position; connected consumers reconnect and go on from there. `remaining` says what
        of the batch at the position is still to be delivered, as an ack set."""
        await begin_at(subscription, self.pending_acks, position, remaining)

    async def position_of_time(self, publish_time_ms: int) -> Position:
        """Where the first entry published at or after a time is; the end when there is none."""
        skew_ms = self._runtime.limits.settings.seek_clock_skew_ms
        found = await first_published_since(self.ledger, publish_time_ms, skew_ms)
        return found if found is not None else LATEST

    async def terminate(self) -> Position:
        """Take no more messages, for good. Returns the last one's position."""
        position = await (self.ledger if self.buffer is None else self.buffer).terminate()
        self.disconnect_producers()
        for subscription in self.subscriptions.values():
            subscription.topic_terminated()
        return position

    async def close(self) -> None:
        """Disconnect everybody, persist the positions, close the ledger. What was taken before is stored and has its
        receipts first, so that clients do not send it twice."""
        self._become(LoadedTopicState.CLOSING)
        await self._end_work()
        await self.admission.drain()
        self._disconnect()
        if self.pending_acks is not None:
            await self.pending_acks.close()
        await self.ledger.close()

    async def abandon(self) -> None:
        """Disconnect everybody and write nothing: another broker may own the topic by now."""
        self._become(LoadedTopicState.ABANDONED)
        await self._end_work()
        self._disconnect()
        others = () if self.pending_acks is None else (self.pending_acks.abandon(),)
        await asyncio.gather(self.ledger.abandon(), *others)  # At once: nothing may be written any more.

    async def delete(self) -> None:
        """Close, then remove everything the topic ever stored. `ManagedLedgerFenced`: another owner has it."""
        self._become(LoadedTopicState.DELETING)
        await self._end_work()
        self._disconnect()
        try:
            if self.pending_acks is not None:
                await self.pending_acks.delete_with_topic(self.subscriptions.values())
            await self.ledger.delete()
        except BaseException as error:
            if isinstance(error, ManagedLedgerFenced):
                self._on_lost(self, error)
            # Nobody has it from here on who would let go of it: it would be followed, and its cursors written.
            await asyncio.shield(self.ledger.close())
            raise
        if self.buffer is not None:
            await self.buffer.forget()  # Not before: without a snapshot, what is left would count as committed.

    async def _end_work(self) -> None:
        held, self._held, self._delayed.let_go = self._held, None, None  # Whatever refers to the topic in a cycle.
        if held is not None:
            held.close(MagnetarError("the topic is closing"))
        if self.compaction is not None:
            await self.compaction.close()

    def _disconnect(self) -> None:
        if self._entries_available in self.ledger.appends.on_appended:
            self.ledger.appends.on_appended.remove(self._entries_available)
        self.admission.disconnect()
        for subscription in self.subscriptions.values():
            subscription.close()

    # --- policies

    def follow(self, policies: EffectivePolicies) -> None:
        """Other policies hold from now on."""
        before, self.policies = self.policies, policies
        if before is policies or self.closing:
            return
        self._checks_messages = policies.checks_messages
        self.ledger.use(policies.ledger_of(self.name))
        self._follow_rates()
        self._limit_dispatch()
        self._disconnect_unencrypted()
        if self.compacts_by_itself and COMPACTION_CURSOR not in self.subscriptions:
            self._spawn(open_compaction_cursor_quietly(self))
        self.maintain_deduplication()

    def _follow_rates(self) -> None:
        policies, clock, call_later = self.policies, self._clock, self._runtime.call_later
        self._follow_publish_rate()
        rate, text = policies.topic_dispatch_rate, f"dispatch rate of {self.name}"
        self._dispatch_limiter = limiter_for(rate, self._dispatch_limiter, clock, call_later, text)
        subscribes = None if self.of_broker else policies.subscribe_rate
        self._subscribe_limiter = subscribe_limiter_for(subscribes, self._subscribe_limiter, clock)

    def _limit_dispatch(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.follow(self.policies, self._dispatch_limiter, *self.dispatch_limiters)

    def maintain_deduplication(self) -> None:
        """Called now and then, and when policies change."""
        self._deduplication_switch.maintain(self)

    def update_rates(self, seconds: float) -> None:
        """Turn counters into rates over the time since the last call."""
        messages = size_bytes = 0.0
        for producer in self.producers.by_name.values():
            producer.update_rates(seconds)
            messages += producer.message_rate_in
            size_bytes += producer.byte_rate_in
        if self.compaction is not None:
            self.compaction.record.update_rates(seconds)
        if (limiter := self._dispatch_limiter) is not None and limiter.rate.relative_to_publish_rate:
            limiter.set_rate(limiter.rate, messages, size_bytes)
        for subscription in self.subscriptions.values():
            subscription.update_rates(seconds)
            subscription.add_publish_rate(messages, size_bytes)

    def _subscription(self, name: str, cursor: SubscriptionCursor) -> Subscription:
        subscription = Subscription(str(self.name), name, cursor, self._runtime, self.policies.dispatch, self._delayed)
        subscription.visibility = self.visibility
        subscription.follow(self.policies, self._dispatch_limiter, *self.dispatch_limiters)
        return subscription


Topic: TypeAlias = PersistentTopic | NonPersistentTopic
"""A loaded topic, persistent or not."""
