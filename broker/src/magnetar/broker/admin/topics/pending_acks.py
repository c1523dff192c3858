"""What transactions hold of subscriptions (`/admin/v3/transactions`; Pulsar: `TransactionsBase`)."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from magnetar.broker.admin.topics.access import HandlersOfTopics
from magnetar.broker.admin.topics.internals import add_ledger_metadata, ledger_stats
from magnetar.broker.admin.topics.subscription_positions import subscription_name
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    NOT_FOUND,
    UNAVAILABLE,
    AdminError,
    flag,
    json,
    path_integer,
    topic_of,
)
from magnetar.broker.context import BrokerContext
from magnetar.broker.transactions import pending_statistics
from magnetar.broker.transactions.pending_handle import PendingAckHandle
from magnetar.ledger.metadata_ops import LedgerMetadataOps

OF_SUBSCRIPTION: Final = "/admin/v3/transactions/{}/{{tenant}}/{{namespace}}/{{topic}}/{{subscription}}"

NOT_CONFIGURED: Final = "This Broker is not configured with transactionCoordinatorEnabled=true."
NO_LOG: Final = "Pending ack have not init success!"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = PendingAckHandlers(context)
    position, transaction = "/{ledger}/{entry}", "/{mostSigBits}/{leastSigBits}"
    return [
        web.get(OF_SUBSCRIPTION.format("pendingAckStats"), handlers.stats),
        web.get(OF_SUBSCRIPTION.format("pendingAckInternalStats"), handlers.internal_stats),
        web.get(OF_SUBSCRIPTION.format("positionStatsInPendingAck") + position, handlers.position),
        web.get(OF_SUBSCRIPTION.format("transactionInPendingAckStats") + transaction, handlers.transaction),
    ]


class PendingAckHandlers(HandlersOfTopics):
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self._ledgers = LedgerMetadataOps(context.service.store)

    @takes("authoritative", "lowWaterMarks")
    async def stats(self, request: web.Request) -> web.Response:
        """What transactions hold of a subscription, in numbers."""
        handle = await self._handle(request)
        document = pending_statistics.statistics(handle, low_water_marks=flag(request, "lowWaterMarks"))
        return json({key: value for key, value in document.items() if value is not None})

    @takes("authoritative", "metadata")
    async def internal_stats(self, request: web.Request) -> web.Response:
        """The log of what transactions hold of a subscription: ledgers and cursor."""
        handle = await self._handle(request)
        ledger = handle.log.ledger if handle.log is not None else None
        if ledger is None:
            raise AdminError(UNAVAILABLE, NO_LOG)
        document = await ledger_stats(ledger, {})
        if flag(request, "metadata"):
            await add_ledger_metadata(document, self._ledgers)
        log = {"managedLedgerName": ledger.name, "managedLedgerInternalStats": document}
        return json({"pendingAckLogStats": log})

    @takes("authoritative", "batchIndex")
    async def position(self, request: web.Request) -> web.Response:
        """Whether a transaction holds a message of a subscription."""
        position = (path_integer(request, "ledger"), path_integer(request, "entry"))
        text = request.query.get("batchIndex")
        if text is not None and not text.isdecimal():
            raise AdminError(BAD_REQUEST, f"batchIndex is no index: {text[:80]}")
        handle = await self._handle(request)
        return json({"state": pending_statistics.state_of(handle, position, int(text) if text else None)})

    @takes("authoritative")
    async def transaction(self, request: web.Request) -> web.Response:
        """Up to where a transaction acknowledges a subscription."""
        transaction = (path_integer(request, "mostSigBits"), path_integer(request, "leastSigBits"))
        handle = await self._handle(request)
        place = pending_statistics.cumulative_position(handle, transaction)
        return json({} if place is None else {"cumulativeAckPosition": place})

    async def _handle(self, request: web.Request) -> PendingAckHandle:
        if not self._context.settings.transactions.enabled:
            raise AdminError(UNAVAILABLE, NOT_CONFIGURED)
        topic = await self._access.persistent(request, topic_of(request))
        subscription = topic.subscriptions.get(subscription_name(request))
        if subscription is None or topic.pending_acks is None:
            raise AdminError(NOT_FOUND, "Subscription not found")
        handle = topic.pending_acks.of(subscription)
        await handle.ready()
        return handle
