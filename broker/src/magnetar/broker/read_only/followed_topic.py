"""A topic that another broker writes, and this one serves consumers of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.read_only.bindings import Bindings
from magnetar.broker.read_only.followed_transactions import FollowedTransactions
from magnetar.broker.subscriptions.cursor import SubscriptionCursor
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.producer_admission import Admitted
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.transactions.buffers.snapshot_store import SnapshotStore
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.following.followed_ledger import FollowedLedger
from magnetar.wire.pulsar.errors import PulsarError, ServerError

logger: Final = logging.getLogger(__name__)


class FollowedTopic(PersistentTopic):
    """Its durable subscriptions are here from their first consumer to their last: so long is this broker bound to
    them, and holds them at the topic's owner, where their positions are kept."""

    __slots__ = ("_bindings", "_leaving", "followed", "transactions")

    def __init__(
        self,
        name: TopicName,
        ledger: FollowedLedger,
        policies: EffectivePolicies,
        runtime: SubscriptionRuntime,
        on_lost: Callable[[PersistentTopic, MagnetarError], None],
        bindings: Bindings,
    ) -> None:
        super().__init__(name, ledger, policies, runtime, on_lost)
        self.followed = ledger
        self.transactions: FollowedTransactions | None = None
        """None: the cluster has no transactions."""
        self._bindings = bindings
        ledger.on_lost = self._ledger_lost
        ledger.on_terminated = self._ledger_terminated
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Subscriptions that are being let go of, as their last consumer has left; at most as many as there were."""

    async def prepare(self) -> None:
        """Know which messages transactions hide; deduplication and compaction are the owner's."""
        if self.transactions is not None:
            await self.transactions.recover()

    def follow_transactions(self, snapshots: SnapshotStore) -> None:
        """There are transactions in the cluster; before `prepare`."""
        self.transactions = FollowedTransactions(
            self.name, self.ledger, snapshots, self._spawn, super()._entries_available, self._not_looked_at
        )

    def _ledger_lost(self, error: MagnetarError) -> None:
        self._on_lost(self, error)

    def _ledger_terminated(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.topic_terminated()

    def _not_looked_at(self, error: MagnetarError) -> None:
        """What follows is shown to nobody until it can be looked at: the topic is let go of, and loaded again."""
        self._on_lost(self, error)

    @property
    def max_read_position(self) -> Position:
        """Everything up to here may be sent to consumers."""
        return self.ledger.last_confirmed if self.transactions is None else self.transactions.max_read_position

    def _entries_available(self) -> None:
        if self.transactions is not None:
            self.transactions.look()
        super()._entries_available()

    def _subscription(self, name: str, cursor: SubscriptionCursor) -> Subscription:
        subscription = super()._subscription(name, cursor)
        if self.transactions is not None:
            subscription.visibility = self.transactions.visibility
        return subscription

    def maintain_deduplication(self) -> None:
        """Nothing: the owner deduplicates."""

    @property
    def compacts_by_itself(self) -> bool:
        """Never: the owner compacts."""
        return False

    async def learn_end(self) -> None:
        """Know everything that the owner has confirmed by now, if it answers. Else what is known stays the end, and is
        told as that: a consumer that waits hears of the rest when the owner or the bookies tell."""
        try:
            await self.followed.catch_up()
            if self.transactions is not None:
                await self.transactions.look_to_the_end()
        except MagnetarError as error:
            logger.info("%s: its owner does not say where it ends now: %s", self.name, error)

    @property
    def lag_seconds(self) -> float:
        """For how long entries that are known to be there could not be shown; 0: there are none."""
        return self.followed.lag.milliseconds / 1000

    # --- what only owners do

    async def check_producer(self, producer: Producer) -> None:
        """Refused: `NOT_ALLOWED_ERROR`."""
        raise self._refusal("takes no producers")

    async def add_producer(self, producer: Producer, admitted: Admitted) -> bool:
        """Refused: `NOT_ALLOWED_ERROR`."""
        raise self._refusal("takes no producers")

    async def terminate(self) -> Position:
        """Refused: `NOT_ALLOWED_ERROR`."""
        raise self._refusal("terminates no topic")

    async def delete(self) -> None:
        """Refused: `NOT_ALLOWED_ERROR`."""
        raise self._refusal("deletes no topic")

    def _refusal(self, what: str) -> PulsarError:
        return PulsarError(
            ServerError.NOT_ALLOWED_ERROR,
            f"This broker is read-only and {what}: use the service URL of the brokers that write {self.name}",
        )

    # --- subscriptions

    async def subscribe(
        self, consumer: Consumer, name: str, start: Position, properties: dict[str, str]
    ) -> Subscription:
        """Attach a consumer. `NOT_ALLOWED_ERROR` to one that wants a compacted view: what compaction has left is known
        to the owner, and all that there is would be old values for new ones."""
        if consumer.identity.read_compacted:
            raise self._refusal("has no compacted view")
        return await super().subscribe(consumer, name, start, properties)

    async def create_subscription(
        self, name: str, start: Position, properties: dict[str, str] | None = None, marks: dict[str, int] | None = None
    ) -> Subscription:
        """Bind a subscription to this broker and hold it at the owner; the one there is when it is held already.

        `ServedElsewhere`, what the owner refuses it with, `Unavailable`."""
        while (leaving := self._leaving.get(name)) is not None:
            await asyncio.wait([leaving])
        if name in self.subscriptions:
            return await super().create_subscription(name, start, properties, marks)
        await self._bindings.take(self.name, name)
        try:
            return await super().create_subscription(name, start, properties, marks)
        except BaseException:
            if name not in self.subscriptions:
                await asyncio.shield(self._bindings.release(self.name, name))
            raise

    def remove_consumer(self, consumer: Consumer, name: str) -> None:
        """The consumer is gone; the subscription leaves this broker with its last one."""
        super().remove_consumer(consumer, name)
        self._leave_without_consumers(name)

    async def reset_subscription(
        self, subscription: Subscription, position: Position, remaining: list[int] | None = None
    ) -> None:
        """Make reading start at a position, which the owner then has. Connected consumers reconnect, where a lookup
        leads them."""
        try:
            await super().reset_subscription(subscription, position, remaining)
        finally:
            self._leave_without_consumers(subscription.name)

    def leaving(self, subscription: str) -> asyncio.Future[None] | None:
        """Done when the subscription's position is stored at the owner, and others may serve it."""
        return self._leaving.get(subscription)

    def _leave_without_consumers(self, name: str) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is not None and subscription.cursor.durable and not subscription.consumers:
            del self.subscriptions[name]
            self._leave(subscription)

    def subscription_lost(self, name: str, error: MagnetarError) -> None:
        """The owner lets this broker hold a subscription no more: its consumers look the topic up again."""
        subscription = self.subscriptions.pop(name, None)
        if subscription is not None:
            logger.warning("%s: subscription %s is not served here any more: %s", self.name, name, error)
            subscription.disconnect_all()
            self._leave(subscription)

    def _leave(self, subscription: Subscription) -> None:
        name = subscription.name
        leaving = self._leaving[name] = asyncio.get_running_loop().create_task(self._let_subscription_go(subscription))
        leaving.add_done_callback(lambda _: self._leaving.pop(name, None))

    async def _let_subscription_go(self, subscription: Subscription) -> None:
        name = subscription.name
        try:
            subscription.close()
            await subscription.cursor.close()
        except MagnetarError as error:
            logger.warning("%s: the position of %s may not be stored to its end: %s", self.name, name, error)
        finally:
            await self._bindings.release(self.name, name)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Delete it at the owner. Connected consumers forbid it unless forced."""
        try:
            await super().delete_subscription(name, force=force)
        finally:
            if name not in self.subscriptions:
                await asyncio.shield(self._bindings.release(self.name, name))

    # --- the end

    async def close(self) -> None:
        """Disconnect everybody, have the owner store all positions, and let others serve the subscriptions."""
        bound = self._bound()
        await self._end_transactions()
        await super().close()
        await self._release(bound)

    async def abandon(self) -> None:
        """Disconnect everybody and store nothing: others may serve the subscriptions by now."""
        bound = self._bound()
        await self._end_transactions()
        await super().abandon()
        await self._release(bound)

    async def _end_transactions(self) -> None:
        transactions, self.transactions = self.transactions, None
        if transactions is not None:
            await transactions.close()

    def _bound(self) -> list[str]:
        return [name for name, subscription in self.subscriptions.items() if subscription.cursor.durable]

    async def _release(self, names: list[str]) -> None:
        if self._leaving:
            await asyncio.wait(list(self._leaving.values()))
        for name in names:
            await self._bindings.release(self.name, name)
