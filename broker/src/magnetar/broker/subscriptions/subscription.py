"""A subscription: a cursor and the consumers that share it.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar.broker.dispatch.choice import new_dispatcher
from magnetar.broker.dispatch.consumer import NO_EPOCH, Consumer
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.single_active import tell_active
from magnetar.broker.policies.limiter import NO_LIMITERS, limiter_for
from magnetar.broker.states import SUBSCRIPTION_TRANSITIONS, ConsumerState, SubscriptionState
from magnetar.broker.subscriptions.delayed_index import TopicDelays
from magnetar.broker.subscriptions.disconnections import Disconnections
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.subscriptions.letting_go import LeftBehind, let_go_of_acknowledged
from magnetar.broker.subscriptions.pump import Pump
from magnetar.broker.subscriptions.reset import reset_subscription
from magnetar.broker.subscriptions.statistics import consumer_response, dispatch_statistics, stored_statistics
from magnetar.broker.subscriptions.totals import SubscriptionTotals
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from magnetar.broker.dispatch.entry_batch import Dispatcher
    from magnetar.broker.policies.limiter import RateLimiter
    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.settings.broker import DispatchSettings
    from magnetar.broker.subscriptions.cursor import SnapshotReceiver, SubscriptionCursor
    from magnetar.broker.subscriptions.visibility import Visibility
    from magnetar.core.errors import MagnetarError
    from magnetar.core.ids import Position
    from magnetar.wire.pulsar.command import Ack


class Subscription:
    """One durable or non-durable subscription of a persistent topic. All calls come from the event loop."""

    __slots__ = (
        "_delayed_of_topic",
        "_delays",
        "_dispatcher",
        "_left_behind",
        "_limiter",
        "_limiters",
        "_pump",
        "_runtime",
        "_settings",
        "_untold",
        "cursor",
        "disconnections",
        "hidden",
        "last_active_seconds",
        "name",
        "snapshots",
        "state",
        "terminated",
        "topic_name",
        "totals",
        "type",
        "visibility",
    )

    def __init__(
        self,
        topic_name: str,
        name: str,
        cursor: SubscriptionCursor,
        runtime: SubscriptionRuntime,
        settings: DispatchSettings,
        delayed_of_topic: TopicDelays | None = None,
    ) -> None:
        """`delayed_of_topic` is shared by all subscriptions of the topic."""
        self.topic_name = topic_name
        self.name = name
        self.cursor = cursor
        self.state = SubscriptionState.OPEN
        self.terminated = False
        self.type: SubscriptionType | None = None
        self.totals = SubscriptionTotals()
        self.last_active_seconds = runtime.clock.monotonic_seconds()
        """When it last had a consumer, or was loaded."""
        self.visibility: Visibility | None = None
        """What the topic's transactions hide; set before the first consumer. None: nothing."""
        self.hidden: dict[Position, int] | None = None
        """The messages that open transactions have acknowledged, as bits of each entry; -1 is all of it."""
        self.snapshots: SnapshotReceiver | None = None
        self._runtime = runtime
        self._settings = settings
        self._untold: int = 0
        """Consumers that have not been told of the end of a terminated topic."""
        self._limiter: RateLimiter | None = None
        self._dispatcher: Dispatcher | None = None
        self.disconnections: Disconnections | None = None
        self._left_behind: LeftBehind | None = None
        """There from when a consumer left until nobody is connected."""
        self._limiters: tuple[RateLimiter, ...] = NO_LIMITERS
        self._delays = True
        self._delayed_of_topic = delayed_of_topic if delayed_of_topic is not None else TopicDelays()
        self._pump: Pump | None = None
        """There while there are consumers, or a read that they began: half of what a subscription weighs."""

    # --- what there is

    @property
    def durable(self) -> bool:
        """Whether it outlives its consumers."""
        return self.cursor.durable

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

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return self.cursor.backlog_entries

    @property
    def unacked_messages(self) -> int:
        """Messages that consumers hold; Shared and Key_Shared only."""
        return self._pump.acknowledger.unacked_messages if self._pump is not None else 0

    @property
    def blocked(self) -> bool:
        """Consumers hold so much that nothing is sent before some of it is acknowledged."""
        return self._pump is not None and self._pump.blocked

    @property
    def delayed_entries(self) -> int:
        """Entries that wait for their delivery time."""
        return len(self._pump.delayed) if self._pump is not None else 0

    @property
    def waiting_entries(self) -> int:
        """Entries that were read and wait to be sent (again)."""
        return self._dispatcher.waiting if self._dispatcher is not None else 0

    @property
    def key_shared(self) -> KeySharedDispatcher | None:
        """The chooser of a Key_Shared subscription, for its ranges and draining hashes."""
        return self._dispatcher if isinstance(self._dispatcher, KeySharedDispatcher) else None

    # --- consumers

    def add_consumer(self, consumer: Consumer) -> None:
        """Let a consumer in. Call `consumer_ready` once its client knows.

        Raises PulsarError: SERVICE_NOT_READY while fenced, CONSUMER_BUSY for another type or a second Exclusive one,
        CONSUMER_ASSIGN_ERROR for key ranges that are taken.
        """
        if self.state is not SubscriptionState.OPEN:
            raise PulsarError(ServerError.SERVICE_NOT_READY, "Subscription is fenced")
        dispatcher = self._dispatcher
        if dispatcher is None:
            dispatcher = new_dispatcher(self.topic_name, consumer, self._settings)
        elif dispatcher.type is not consumer.identity.subscription_type:
            raise PulsarError(ServerError.CONSUMER_BUSY, "Subscription is of different type")
        before = dispatcher.active
        consumer.limit(self._settings.unacked_messages_per_consumer_max)
        consumer.read_position_when_joining = self.cursor.read_position
        dispatcher.add(consumer)
        self._untold += 1
        if self._dispatcher is None:
            self._dispatcher = dispatcher
            self.type = dispatcher.type
            self._made_pump().start(dispatcher)
        elif dispatcher.active is not before:
            self._active_changed(dispatcher, before, consumer)

    def consumer_ready(self, consumer: Consumer) -> None:
        """The consumer's client knows that it is subscribed; it may be told and sent things."""
        if consumer.closed:
            return
        if self.type is SubscriptionType.FAILOVER:
            consumer.connection.active_consumer_changed(consumer, active=self.active_consumer is consumer)
        self._announce_end(consumer)
        if self._pump is not None:
            self._runtime.turns.changed(self._pump)

    def remove_consumer(self, consumer: Consumer) -> None:
        """The consumer is gone: others get what it held. Unknown ones are ignored."""
        dispatcher = self._dispatcher
        if dispatcher is None or consumer not in dispatcher.consumers:
            return
        before = dispatcher.active
        consumer.become(ConsumerState.CLOSED)
        self.last_active_seconds = self._runtime.clock.monotonic_seconds()
        self.totals.consumer_left(consumer)
        dispatcher.remove(consumer)
        self._untold -= not consumer.end_announced
        pump = self._made_pump()
        if not dispatcher.consumers:
            pump.acknowledger.forget(consumer)
            self._nobody_stays(pump)
            return
        if self._left_behind is None:
            self._left_behind = LeftBehind(pump, dispatcher, self.cursor, self._runtime.turns)
        self._left_behind.take(consumer)
        pump.unblock()
        if dispatcher.active is not before:
            self._active_changed(dispatcher, before, None)
        self._runtime.turns.changed(pump)

    def _nobody_stays(self, pump: Pump) -> None:
        """Whoever comes next begins at the first unacknowledged entry."""
        self._dispatcher = None
        if self._left_behind is not None:
            self._left_behind.forget()
            self._left_behind = None
        pump.stop()
        pump.stopped = self.state is not SubscriptionState.OPEN
        if pump.idle:
            self._pump = None
            pump.let_go()

    def exclusive_holder(self) -> Consumer | None:
        """Who keeps a second Exclusive consumer out."""
        return self.active_consumer if self.type is SubscriptionType.EXCLUSIVE else None

    def disconnect_all(self) -> None:
        """Have every client subscribe again. All are closed now; their clients are told in turns."""
        pump, leaving = self._pump, self.consumers
        if pump is None or not leaving:
            return
        for consumer in leaving:
            pump.acknowledger.forget(consumer)
        self._untold = 0
        self.last_active_seconds = self._runtime.clock.monotonic_seconds()
        self._nobody_stays(pump)
        if self.disconnections is None:
            self.disconnections = Disconnections(self.totals, self._runtime.call_later)
        self.disconnections.close(leaving)

    # --- from clients

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The client takes so many more messages."""
        waiting = consumer.room <= 0
        consumer.allow(permits)
        consumer.last_flow_ms = self._runtime.clock.now_ms()
        # Whoever could be sent something before waits for messages only, and clients send many of these.
        if waiting and consumer.room > 0 and self._pump is not None:
            self._pump.wake()

    def acknowledge(self, consumer: Consumer, ack: Ack, done: Callable[[MagnetarError | None], None] | None) -> None:
        """Take an ACK. `done`, for clients that want a receipt, is called once the ack is durable.

        Raises PulsarError(NOT_ALLOWED_ERROR) for an ack in a transaction when a receipt is wanted; without, such an ack
        is dropped. A cumulative ack on a Shared or Key_Shared subscription does nothing, as in Pulsar.
        """
        if ack.txnid_most_bits >= 0 and ack.txnid_least_bits >= 0:
            if done is not None:
                raise PulsarError(ServerError.NOT_ALLOWED_ERROR, "Transactions are not enabled.")
            return
        dispatcher, pump = self._dispatcher, self._made_pump()
        consumer.last_acknowledged_ms = now_ms = self._runtime.clock.now_ms()
        mark_delete = self.cursor.mark_delete
        freed, waiting = False, self.waiting_entries
        if not consumer.identity.subscription_type.acknowledges_individually:
            if ack.cumulative:
                pump.acknowledger.cumulative(consumer, ack)
            else:
                pump.acknowledger.individual(consumer, ack)
        elif dispatcher is not None and not ack.cumulative:
            freed = pump.acknowledger.individual_shared(consumer, ack, dispatcher)
        if self.cursor.mark_delete != mark_delete:
            self.totals.last_mark_delete_advanced_ms = now_ms
        if done is not None:
            self.cursor.persist(done)
        if self.terminated:
            self._announce_end()
        if pump.unblock() or freed:
            # Each ACK of what waits frees something: for all of them, all consumers are looked at once in a turn.
            at_once = dispatcher is None or (dispatcher.waiting == waiting and not dispatcher.unsettled)
            self._runtime.turns.freed(pump, at_once=at_once)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int = NO_EPOCH) -> None:
        """Send again what the consumer has not acknowledged: these entries, or all of them.

        With one receiver it is always all of them; `epoch` then tags what is sent from now on.
        """
        dispatcher = self._dispatcher
        if dispatcher is None or consumer.closed:
            return
        pump = self._made_pump()
        if not dispatcher.type.acknowledges_individually:
            if dispatcher.active is consumer:
                if epoch > consumer.consumer_epoch:
                    consumer.set_epoch(epoch)
                pump.reader.rewind()
                pump.run()
            return
        taken, messages = pump.acknowledger.take_back(consumer, list(positions) if positions else None)
        self.cursor.redelivered([position for position, _ in taken])
        consumer.messages_redelivered += messages
        dispatcher.redeliver(taken)
        for position, key_hash in taken:
            dispatcher.acknowledged(consumer, position, key_hash)
        pump.unblock()
        pump.wake()

    # --- from transactions

    @property
    def delivering(self) -> tuple[Dispatcher | None, Pump | None]:
        """Who chooses and who sends, while anybody is connected."""
        return self._dispatcher, self._pump

    def hide(self, held: dict[Position, int]) -> None:
        """Send nothing of what stands in here, from now on."""
        self.hidden = held
        if self._pump is not None:
            self._pump.hide(held)

    def keep_snapshots(self, snapshots: SnapshotReceiver | None) -> None:
        """Hand over the snapshots that are met from now on; None: nobody wants them."""
        self.snapshots = snapshots
        if self._pump is not None:
            self._pump.acknowledger.snapshots = snapshots

    def acknowledged_in_transaction(self, mark_delete: Position) -> None:
        """A transaction was committed; `mark_delete` is where the mark was before."""
        if self.cursor.mark_delete != mark_delete:
            self.totals.last_mark_delete_advanced_ms = self._runtime.clock.now_ms()
        self._announce_end()

    # --- from the topic and its administrators

    def entries_available(self) -> None:
        """Entries were published, or connections may take bytes again: send what can be sent."""
        if self._pump is not None:
            self._pump.run()

    def writable_changed(self) -> None:
        """A consumer's connection takes bytes again."""
        if self._pump is not None:
            self._pump.wake()

    def follow(self, policies: EffectivePolicies, *shared: RateLimiter | None) -> None:
        """Other policies hold from now on; `shared` limits others as well: the topic, and those of its groups."""
        runtime, settings = self._runtime, policies.dispatch
        self._limiter = limiter_for(
            policies.dispatch_rate_of(self.name),
            self._limiter,
            runtime.clock,
            runtime.call_later,
            f"dispatch rate of {self.topic_name} / {self.name}",
        )
        limiters = [one for one in (self._limiter, *shared, runtime.limits.dispatch) if one is not None]
        self._settings = settings
        for consumer in self.consumers:
            consumer.limit(settings.unacked_messages_per_consumer_max)
        self._limiters = tuple(limiters) or NO_LIMITERS
        self._delays = policies.delayed_delivery
        if self._pump is not None:
            self._pump.follow(settings, self._limiters, delays=self._delays)

    def add_publish_rate(self, messages: float, size_bytes: float) -> None:
        """So much is published per second: a dispatch rate that is relative to it comes on top."""
        if self._limiter is not None and self._limiter.rate.relative_to_publish_rate:
            self._limiter.set_rate(self._limiter.rate, messages, size_bytes)

    def hold(self, *, held: bool) -> None:
        """The broker's limit of unacknowledged messages is reached, and this subscription is a part of why."""
        pump = self._pump
        if pump is not None and pump.held is not held:
            pump.held = held
            pump.run()

    def acknowledged_by_broker(self) -> None:
        """The cursor's mark was moved on without consumers: they hold nothing before it any more."""
        self.totals.last_mark_delete_advanced_ms = self._runtime.clock.now_ms()
        if self.terminated:
            self._announce_end()
        if self._pump is not None:
            self._pump.delayed.discard_up_to(self.cursor.mark_delete)
            let_go_of_acknowledged(self, self._runtime.call_later)

    def expire_up_to(self, position: Position) -> int:
        """Acknowledge everything up to the position because it is too old. Returns how many entries that were."""
        before = self.cursor.backlog_entries
        self.cursor.acknowledge_cumulative(position)
        expired = before - self.cursor.backlog_entries
        if expired:
            self.totals.expired(expired, self._runtime.clock.now_ms())
            self.acknowledged_by_broker()
        return expired

    def topic_terminated(self) -> None:
        """Nothing more will be published."""
        self.terminated = True
        self._announce_end()

    def fence(self) -> None:
        """Let nobody in and send nothing."""
        self._become(SubscriptionState.FENCED)

    def unfence(self) -> None:
        """Take `fence` back. One that was closed meanwhile stays so."""
        if self.state is SubscriptionState.FENCED:
            self._become(SubscriptionState.OPEN)
            self.entries_available()

    def reset(self, position: Position) -> Coroutine[Any, Any, None]:
        """Make reading start at a position. Every client is disconnected and goes on from there.

        Raises PulsarError(CONSUMER_BUSY) while another reset runs, MagnetarError when the position cannot be stored.
        """
        return reset_subscription(self, self._pump.reader if self._pump is not None else None, position)

    def read_by(self, cursor: SubscriptionCursor) -> None:
        """Go on with another cursor for the same position. Only while nobody is connected and nothing is read."""
        assert self._dispatcher is None
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.let_go()
        self.cursor = cursor

    def close(self) -> None:
        """Let go of everything but the cursor, which is the caller's to close or delete."""
        self._become(SubscriptionState.CLOSED)
        self.disconnect_all()
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.let_go()

    def update_rates(self, seconds: float) -> None:
        """Turn counters into rates over the time since the last call."""
        self.totals.update_rates(seconds)
        for consumer in self.consumers:
            consumer.update_rates(seconds)

    def consumer_statistics(self, consumer: Consumer) -> dict[str, Any]:
        """One consumer, as CONSUMER_STATS answers."""
        return consumer_response(consumer, self.backlog)

    def statistics(self, *, backlog_bytes: int = 0, with_consumers: bool = True) -> dict[str, Any]:
        """A snapshot under the admin API's names; `backlog_bytes` is the managed ledger's estimate."""
        return {
            **dispatch_statistics(self.consumers, self.totals, self.key_shared, with_consumers=with_consumers),
            **stored_statistics(self.cursor, self.key_shared, self.active_consumer, self.delayed_entries),
            "type": self.type.display_name if self.type is not None else "None",
            "backlogSize": backlog_bytes,
            "blockedSubscriptionOnUnackedMsgs": self.blocked,
            "msgInReplay": self.waiting_entries,
            "unackedMessages": self.unacked_messages,
        }

    def _made_pump(self) -> Pump:
        """The pump; a new one under the policies that hold when there is none."""
        pump = self._pump
        if pump is None:
            label = f"{self.topic_name} / {self.name}"
            pump = self._pump = Pump(
                self.cursor, self._runtime, self._settings, label, self._announce_end, self._delayed_of_topic
            )
            pump.follow(self._settings, self._limiters, delays=self._delays)
            pump.hide(self.hidden)
            pump.stopped = self.state is not SubscriptionState.OPEN
            pump.visibility = self.visibility
            pump.acknowledger.snapshots = self.snapshots
        return pump

    def _become(self, state: SubscriptionState) -> None:
        self.state = SUBSCRIPTION_TRANSITIONS.step(self.state, state)
        if self._pump is not None:
            self._pump.stopped = state is not SubscriptionState.OPEN

    def _active_changed(self, dispatcher: Dispatcher, before: Consumer | None, joining: Consumer | None) -> None:
        """Another consumer receives. One that is joining hears of it by `consumer_ready`."""
        tell_active(before, dispatcher.active, joining)
        # Acks of one that is still connected may be on their way.
        self._made_pump().hand_over(wait=before is not None and not before.closed and before.entries_out > 0)

    def _announce_end(self, joining: Consumer | None = None) -> None:
        """Tell consumers once that a terminated topic has nothing more for them; who is joining tells only that one."""
        if not self.terminated or not self._untold or self.cursor.backlog_entries > 0:
            return
        for consumer in self.consumers if joining is None else [joining]:
            if consumer.announce_end():
                self._untold -= 1
