"""A topic that another broker writes, and this one serves consumers of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from magnetar.broker.compaction.compacted_cursor import CompactedCursor
from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.policies.model import EffectivePolicies
from magnetar.broker.read_only.bindings import Bindings
from magnetar.broker.read_only.followed_compaction import CompactionTeller, learn_compaction
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.following.following_topic import FollowingTopic
from magnetar.broker.topics.limits import check_durable_subscription
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.producer_admission import Admitted
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.topic_name import TopicName
from magnetar.managed.following.followed_ledger import FollowedLedger
from magnetar.wire.pulsar.errors import PulsarError, ServerError

logger: Final = logging.getLogger(__name__)


RELEASED_AT_ONCE: Final = 64
"""Bindings: enough to hide the round trips to the metadata store."""


class FollowedTopic(FollowingTopic):
    """Its durable subscriptions are here from their first consumer to their last: so long is this broker bound to
    them, and holds them at the topic's owner, where their positions are kept."""

    __slots__ = ("_bindings", "_coming", "_leaving", "_opening", "_owner", "followed")

    def __init__(
        self,
        name: TopicName,
        ledger: FollowedLedger,
        policies: EffectivePolicies,
        runtime: SubscriptionRuntime,
        on_lost: Callable[[PersistentTopic, MagnetarError], None],
        bindings: Bindings,
        owner: CompactionTeller,
    ) -> None:
        super().__init__(name, ledger, policies, runtime, on_lost)
        self.followed = ledger
        self._bindings = bindings
        self._owner = owner
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Subscriptions that are being let go of, as their last consumer has left, or deleted; at most as many as there
        were."""
        self._opening: dict[str, asyncio.Task[Subscription]] = {}
        """Subscriptions on their way here; as many as clients wait for at most, as `_coming`."""
        self._coming: dict[str, int] = {}
        """How many consumers are about to join a subscription: it stays for them when the last one leaves."""

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
        """Attach a consumer; who wants a compacted view gets that of the owner's newest compaction."""
        if consumer.identity.read_compacted:
            await self.learn_compaction()
        self._coming[name] = self._coming.get(name, 0) + 1
        try:
            return await super().subscribe(consumer, name, start, properties)
        finally:
            self._coming[name] -= 1
            if not self._coming[name]:
                del self._coming[name]
                self._leave_without_consumers(name)

    async def learn_compaction(self) -> None:
        """Know the owner's newest compaction. Raises why that cannot be known."""
        await learn_compaction(self.name, self.followed, self._owner)

    @property
    def reads_compacted(self) -> bool:
        """Whether any consumer reads what a compaction left."""
        return any(isinstance(one.cursor, CompactedCursor) for one in self.subscriptions.values())

    async def create_subscription(
        self, name: str, start: Position, properties: dict[str, str] | None = None, marks: dict[str, int] | None = None
    ) -> Subscription:
        """Bind a subscription to this broker and hold it at the owner; the one there is when it is held already. Who
        wants the same one at the same time shares the attempt; others do not wait for it.

        `ServedElsewhere`, what the owner refuses it with, `Unavailable`."""
        check_durable_subscription(name)
        while (leaving := self._leaving.get(name)) is not None:
            await asyncio.wait([leaving])
        self._refuse_when_closing()
        if name in self.subscriptions:
            return self.subscriptions[name]
        opening = self._opening.get(name)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open_bound(name, start, properties, marks))
            self._opening[name] = opening
            opening.add_done_callback(lambda task: self._opened(name, task))
        await asyncio.wait([opening])
        if opening.cancelled():
            raise PulsarError(ServerError.SERVICE_NOT_READY, f"Topic {self.name} is let go of")
        return opening.result()

    async def _open_bound(
        self, name: str, start: Position, properties: dict[str, str] | None, marks: dict[str, int] | None
    ) -> Subscription:
        await self._bindings.take(self.name, name)
        try:
            self._check_new_subscription(name, len(self.subscriptions))
            cursor = await self.ledger.open_cursor(name, start, marks, properties)
            self._refuse_when_closing()
            subscription = self.subscriptions[name] = self._subscription(name, cursor)
            return subscription
        except BaseException:
            await asyncio.shield(self._bindings.release(self.name, name))
            raise

    def _opened(self, name: str, opening: asyncio.Task[Subscription]) -> None:
        del self._opening[name]
        if not opening.cancelled():
            opening.exception()  # Looked at: those who wanted it may all be gone.
        self._leave_without_consumers(name)

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
        if subscription is None or not subscription.cursor.durable or subscription.consumers or name in self._coming:
            return
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
        if subscription.name not in self._leaving:  # Else it is being deleted, with its hold.
            self._begin_leaving(subscription.name, self._let_subscription_go(subscription))

    def _begin_leaving(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        leaving = self._leaving[name] = asyncio.get_running_loop().create_task(work)
        leaving.add_done_callback(lambda task: self._left(name, task))
        return leaving

    def _left(self, name: str, leaving: asyncio.Task[None]) -> None:
        del self._leaving[name]
        if not leaving.cancelled():
            leaving.exception()  # Looked at: whoever wanted the deletion may be gone.

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
        """Delete it at the owner. Connected consumers forbid it unless forced. Who comes meanwhile waits for the end,
        and has a new one."""
        subscription = self.subscriptions.get(name)
        if subscription is None or not subscription.cursor.durable or (subscription.consumers and not force):
            await super().delete_subscription(name, force=force)
            return
        if name in self._leaving:
            raise PulsarError(ServerError.SUBSCRIPTION_NOT_FOUND, "Subscription not found")
        await asyncio.shield(self._begin_leaving(name, self._delete_bound(name)))

    async def _delete_bound(self, name: str) -> None:
        try:
            await super().delete_subscription(name, force=True)
        except BaseException:
            # Perhaps it is there still: nobody here has it any more, and others may.
            cursor = self.ledger.cursors.get(name)
            if cursor is not None:
                await cursor.abandon()
                self.ledger.cursor_closed(cursor)
            raise
        finally:
            await asyncio.shield(self._bindings.release(self.name, name))

    # --- the end

    async def close(self) -> None:
        """Disconnect everybody, have the owner store all positions, and let others serve the subscriptions."""
        bound = self._bound()
        await super().close()
        await self._release(bound)

    async def abandon(self) -> None:
        """Disconnect everybody and store nothing: others may serve the subscriptions by now."""
        bound = self._bound()
        await super().abandon()
        await self._release(bound)

    def _bound(self) -> list[str]:
        return [name for name, subscription in self.subscriptions.items() if subscription.cursor.durable]

    async def _release(self, names: list[str]) -> None:
        if others := [*self._leaving.values(), *self._opening.values()]:
            await asyncio.wait(others)
        for start in range(0, len(names), RELEASED_AT_ONCE):
            some = names[start : start + RELEASED_AT_ONCE]
            await asyncio.gather(*(self._bindings.release(self.name, name) for name in some))
