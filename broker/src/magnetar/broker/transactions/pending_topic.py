"""The acknowledgements that open transactions hold, for all subscriptions of one topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.slices import in_slices
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.broker.transactions.pending_doubts import AckDone
from magnetar.broker.transactions.pending_handle import PendingAckHandle
from magnetar.broker.transactions.pending_log import PendingAckLog, PendingAckLogs, log_name
from magnetar.broker.transactions.standings import TransactionStandings
from magnetar.core.topic_name import TopicName
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.command import Ack
from magnetar.wire.pulsar.errors import PulsarError, ServerError

logger: Final = logging.getLogger(__name__)

DELETED_AT_ONCE: Final = 20
"""Logs of a topic that is deleted; each is some requests to the metadata store."""


class TopicPendingAcks:
    """Made for each topic where transactions are enabled; nothing is opened before somebody needs it.

    `ready` comes before a consumer is let in."""

    __slots__ = ("_closed", "_handles", "_ledger", "_logs", "_name", "_standings")

    def __init__(
        self, name: TopicName, ledger: ManagedLedger, logs: PendingAckLogs, standings: TransactionStandings | None
    ) -> None:
        """`standings`: by whom coordinators are asked; None: by nobody."""
        self._name = name
        self._ledger = ledger
        self._logs = logs
        self._standings = standings
        self._handles: dict[str, PendingAckHandle] = {}
        self._closed = False

    def of(self, subscription: Subscription) -> PendingAckHandle:
        """The handle of a subscription of the topic. `PulsarError` once the topic is let go of: its next owner may have
        the log, which nobody else may open then."""
        if self._closed:
            raise PulsarError(ServerError.SERVICE_NOT_READY, f"Topic {self._name} is being unloaded")
        handle = self._handles.get(subscription.name)
        if handle is None or handle.subscription is not subscription:
            new_log = (lambda: self._new_log(subscription)) if subscription.durable else None
            handle = self._handles[subscription.name] = PendingAckHandle(
                subscription,
                self._logs.runtime,
                self._ledger.ledgers.contains,
                new_log,
                self._open,
                self._ledger.check_owner,
                self._standings,
            )
        return handle

    def _new_log(self, subscription: Subscription) -> PendingAckLog:
        return PendingAckLog(self._logs, log_name(self._name, subscription.name), subscription.cursor)

    async def _open(self, log: PendingAckLog) -> bool:
        return await log.open(self._ledger.settings, create=False)

    async def check_owner(self) -> None:
        """`ManagedLedgerFenced` when another broker has the topic."""
        await self._ledger.check_owner()

    async def ready(self, subscription: Subscription) -> None:
        """Returns once consumers may be sent what transactions leave of the subscription."""
        await self.of(subscription).ready()

    async def begin_anew(self, subscription: Subscription) -> None:
        """The subscription is about to go back: what transactions did before is not to be done once more."""
        await self.of(subscription).begin_anew()

    def acknowledge(self, subscription: Subscription, consumer: Consumer, ack: Ack, done: AckDone) -> None:
        """Take an ACK of a transaction; never raises."""
        try:
            handle = self.of(subscription)
        except PulsarError as error:
            done(error)
            return
        handle.acknowledge(consumer, ack, done)

    def still_open(self) -> list[tuple[PendingAckHandle, TransactionBits]]:
        """Transactions that were held for at the last look, too; of each subscription the first ones."""
        return [(handle, one) for handle in self._handles.values() for one in handle.held.still_open()]

    def forget(self, name: str) -> None:
        """A subscription of which nothing is stored is gone."""
        self._handles.pop(name, None)

    async def delete(self, name: str) -> None:
        """Remove what is stored of a subscription. Raises what the managed ledger raises; may be repeated."""
        handle = self._handles.pop(name, None)
        if handle is not None:
            await handle.abandon()
        await self._logs.ledgers.delete(log_name(self._name, name))

    async def delete_with_topic(self, subscriptions: Iterable[Subscription]) -> None:
        """Remove what is stored of the subscriptions of a topic that is about to go, unless another broker has it."""
        self._closed = True
        try:
            await self._ledger.check_owner()
            await self.delete_all([one.name for one in subscriptions if one.durable])
        except BaseException:
            # The topic stays: whoever comes next loads it again.
            await asyncio.shield(self._ledger.close())
            raise

    async def delete_all(self, names: Sequence[str]) -> None:
        """Remove what is stored of all these subscriptions."""
        await in_slices(self.delete, names, DELETED_AT_ONCE)

    async def close(self) -> None:
        """Finish what is under way and take nothing more."""
        self._closed = True
        handles, self._handles = list(self._handles.values()), {}
        await in_slices(lambda handle: handle.close(), handles)

    async def abandon(self) -> None:
        """Take nothing more and write nothing."""
        self._closed = True
        handles, self._handles = list(self._handles.values()), {}
        await asyncio.gather(*(handle.abandon() for handle in handles), return_exceptions=True)


class HoldingTopic(Protocol):
    """A topic whose subscriptions may hold acknowledgements for transactions."""

    @property
    def name(self) -> TopicName: ...
    @property
    def pending_acks(self) -> TopicPendingAcks | None: ...
    @property
    def subscriptions(self) -> Mapping[str, Subscription]: ...


async def end_on_subscription(
    topic: HoldingTopic, name: str, transaction: TransactionBits, *, commit: bool, low_water_mark: int
) -> None:
    """Returns when a transaction is ended on a subscription, or there is nothing to be ended: the subscription is gone.
    Raises as `PendingAckHandle.end` does."""
    if topic.pending_acks is None:
        return
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        await topic.pending_acks.check_owner()
        logger.warning("%s has no subscription %r any more", topic.name, name)
        return
    await topic.pending_acks.of(subscription).end(transaction, commit=commit, low_water_mark=low_water_mark)
