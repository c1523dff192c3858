"""`/admin/v3/transactions`: transaction coordinators and their transactions (Pulsar `v3.Transactions`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web
from magnetar.admin_client.errors import AdminRefused, AdminUnreachable
from magnetar.broker.admin.topics.internals import add_ledger_metadata, ledger_stats
from magnetar.broker.admin.topics.stats import without_nulls
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.fan_out import call
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.owners import AUTHORITATIVE, require_topic_owner
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    UNAVAILABLE,
    AdminError,
    body_integer,
    flag,
    json,
    no_content,
    path_integer,
)
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document
from magnetar.broker.slices import in_slices
from magnetar.broker.transactions.api import Asker, CoordinatorService, TransactionDetails
from magnetar.broker.transactions.names import COORDINATORS_TOPIC, TransactionId, coordinator_topic
from magnetar.core.topic_name import InvalidTopicName, TopicName, java_url_encode
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.wire.pulsar.errors import PulsarError, ServerError

BASE: Final = "/admin/v3/transactions"
TRANSACTION: Final = "/{mostSigBits}/{leastSigBits}"

COORDINATOR: Final = "coordinatorId"
METADATA: Final = "metadata"

COORDINATORS_MAX: Final = 10_000
"""Each is asked for when statistics of all are wanted. Clusters have sixteen; Apache's brokers take any number."""

_SUPER_USER: Final = Asker("", super_user=True)


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = TransactionHandlers(context)
    return [
        web.get(BASE + "/coordinators", handlers.coordinators),
        web.get(BASE + "/coordinatorStats", handlers.stats),
        web.get(BASE + "/coordinatorInternalStats/{" + COORDINATOR + "}", handlers.internal_stats),
        web.get(BASE + "/transactionMetadata" + TRANSACTION, handlers.metadata),
        web.get(BASE + "/slowTransactions/{timeout}", handlers.slow),
        web.post(BASE + "/abortTransaction" + TRANSACTION, handlers.abort),
        web.post(BASE + "/transactionCoordinator/replicas", handlers.scale),
    ]


class TransactionHandlers(Handlers):
    """The handlers, over one broker."""

    async def coordinators(self, _: web.Request) -> web.Response:
        """The coordinators, and which broker runs each."""
        self._enabled()
        count = await self._count()
        found = []
        for coordinator in range(count):
            name = java_url_encode(coordinator_topic(coordinator).local_name)
            answer = await call(self._context, "GET", f"/lookup/v2/topic/persistent/pulsar/system/{name}")
            found.append({"id": coordinator, "brokerServiceUrl": answer.json().get("brokerUrl")})
        return json(found)

    @takes(AUTHORITATIVE, COORDINATOR)
    async def stats(self, request: web.Request) -> web.Response:
        """How one coordinator stands, or all of them by their ids."""
        coordinators = self._enabled()
        one = request.query.get(COORDINATOR)
        if one is None:
            return json(await self._of_all(BASE + "/coordinatorStats"))
        coordinator = _integer(one)
        await self._require_owner(request, coordinator)
        try:
            stats = await coordinators.stats(coordinator)
        except PulsarError:
            raise _no_coordinator(coordinator) from None
        return json(
            {
                "state": stats.state,
                "leastSigBits": stats.last_sequence,
                "lowWaterMark": stats.low_water_mark,
                "ongoingTxnSize": stats.open_transactions,
                "recoverStartTime": stats.recovery_started_ms,
                "recoverEndTime": stats.recovery_ended_ms,
            }
        )

    @takes(AUTHORITATIVE, METADATA)
    async def internal_stats(self, request: web.Request) -> web.Response:
        """Ledgers and cursor of a coordinator's log."""
        coordinators = self._enabled()
        coordinator = _integer(request.match_info[COORDINATOR])
        await self._require_owner(request, coordinator)
        try:
            ledger = await coordinators.log_of(coordinator)
        except PulsarError:
            raise _no_coordinator(coordinator) from None
        document = await ledger_stats(ledger, {})
        if flag(request, METADATA):
            await add_ledger_metadata(document, LedgerMetadataOps(self._service.store))
        return json({"transactionLogStats": {"managedLedgerName": ledger.name, "managedLedgerInternalStats": document}})

    @takes(AUTHORITATIVE)
    async def metadata(self, request: web.Request) -> web.Response:
        """One transaction, and how it stands at its topics and subscriptions."""
        coordinators = self._enabled()
        transaction = _transaction(request)
        await self._require_owner(request, transaction.coordinator)
        try:
            details = await coordinators.details(transaction)
        except PulsarError as error:
            raise AdminError(NOT_FOUND, error.message) from None
        return json(await self._document(details))

    @takes(AUTHORITATIVE, COORDINATOR)
    async def slow(self, request: web.Request) -> web.Response:
        """Transactions that were given a longer time than this (milliseconds), by their ids."""
        coordinators = self._enabled()
        timeout_ms = path_integer(request, "timeout")
        one = request.query.get(COORDINATOR)
        if one is None:
            found: dict[str, Any] = {}
            for some in (await self._of_all(f"{BASE}/slowTransactions/{timeout_ms}")).values():
                found |= some
            return json(found)
        coordinator = _integer(one)
        await self._require_owner(request, coordinator)
        try:
            slow = await coordinators.slow(coordinator, timeout_ms)
        except PulsarError:
            raise _no_coordinator(coordinator) from None
        documents = await in_slices(self._document, slow)
        return json({document["txnId"]: document for document in documents})

    @takes(AUTHORITATIVE)
    async def abort(self, request: web.Request) -> web.Response:
        """Abort a transaction, whosever it is."""
        coordinators = self._enabled()
        transaction = _transaction(request)
        await self._require_owner(request, transaction.coordinator)
        try:
            await coordinators.end(transaction, _SUPER_USER, commit=False)
        except PulsarError as error:
            raise AdminError(_STATUS.get(error.code, INTERNAL_ERROR), error.message) from None
        return no_content()

    @takes(body="A whole number.")
    async def scale(self, request: web.Request) -> web.Response:
        """Have more coordinators."""
        self._enabled()
        replicas = await body_integer(request)
        if replicas > COORDINATORS_MAX:
            raise AdminError(NOT_ACCEPTABLE, f"There may be {COORDINATORS_MAX} transaction coordinators at most")

        def more(document: Document) -> Document:
            if document.get("partitions", 0) >= replicas:
                raise AdminError(
                    NOT_ACCEPTABLE,
                    "Number of transaction coordinators should be more than the current number of transaction "
                    "coordinator",
                )
            return {**document, "partitions": replicas}

        await self._documents.update(self._resources.partitioned_topic_path(COORDINATORS_TOPIC), more)
        return no_content()

    # --- parts

    def _enabled(self) -> CoordinatorService:
        coordinators = self._context.coordinators
        if coordinators is None:
            raise AdminError(UNAVAILABLE, "This Broker is not configured with transactionCoordinatorEnabled=true.")
        return coordinators

    async def _require_owner(self, request: web.Request, coordinator: int) -> None:
        await require_topic_owner(self._context, request, coordinator_topic(coordinator))

    async def _count(self) -> int:
        count = await self._resources.partitions(COORDINATORS_TOPIC)
        if not count:
            raise AdminError(NOT_FOUND, "Transaction coordinator not found")
        return count

    async def _of_all(self, path: str) -> dict[str, Any]:
        """What each coordinator's broker answers, by the coordinator's id."""
        coordinators = [str(number) for number in range(await self._count())]
        answers = await in_slices(lambda one: call(self._context, "GET", path, {COORDINATOR: one}), coordinators)
        return {one: answer.json() for one, answer in zip(coordinators, answers, strict=True)}

    async def _document(self, details: TransactionDetails) -> Document:
        bits = f"{details.id.coordinator}/{details.id.sequence}"

        async def at_topic(topic: str) -> Mapping[str, Any]:
            return await self._part("transactionInBufferStats", topic, bits)

        async def at_subscription(one: tuple[str, str]) -> Mapping[str, Any]:
            return await self._part("transactionInPendingAckStats", one[0], f"{java_url_encode(one[1])}/{bits}")

        partitions = await in_slices(at_topic, details.partitions)
        subscriptions = await in_slices(at_subscription, details.subscriptions)
        acknowledged: dict[str, dict[str, Any]] = {}
        for (topic, subscription), found in zip(details.subscriptions, subscriptions, strict=True):
            acknowledged.setdefault(topic, {})[subscription] = found
        document: Document = without_nulls(
            {
                "txnId": str(details.id),
                "status": details.state,
                "openTimestamp": details.started_ms,
                # As Apache's, which calls it so: how long it may take.
                "timeoutAt": details.timeout_ms,
                "producedPartitions": dict(zip(details.partitions, partitions, strict=True)),
                "ackedPartitions": acknowledged,
                "owner": details.owner or None,
            }
        )
        return document

    async def _part(self, route: str, topic_text: str, rest: str) -> Mapping[str, Any]:
        """How a transaction stands at one topic, as its owner says; empty when it does not."""
        try:
            topic = TopicName.parse(topic_text)
        except InvalidTopicName:
            return {}
        where = f"{topic.namespace_name}/{java_url_encode(topic.local_name)}"
        try:
            answer = await self._context.peers.call("GET", f"{BASE}/{route}/{where}/{rest}")
        except (AdminRefused, AdminUnreachable):
            return {}
        found: Mapping[str, Any] = answer.json()
        return found


_STATUS: Final[dict[int, int]] = {
    ServerError.TRANSACTION_COORDINATOR_NOT_FOUND: NOT_FOUND,
    ServerError.TRANSACTION_NOT_FOUND: NOT_FOUND,
    ServerError.SERVICE_NOT_READY: UNAVAILABLE,
}


def _no_coordinator(coordinator: int) -> AdminError:
    return AdminError(NOT_FOUND, f"Transaction coordinator not found! coordinator id : {coordinator}")


def _integer(value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        raise AdminError(BAD_REQUEST, f"{value!r} is not a whole number") from None
    if not 0 <= number < 1 << 31:
        raise AdminError(BAD_REQUEST, f"{value} is no coordinator's id")
    return number


def _transaction(request: web.Request) -> TransactionId:
    most, least = path_integer(request, "mostSigBits"), path_integer(request, "leastSigBits")
    if not 0 <= most < 1 << 31:
        raise AdminError(BAD_REQUEST, "mostSigBits out of bounds")
    return TransactionId(most, least)
