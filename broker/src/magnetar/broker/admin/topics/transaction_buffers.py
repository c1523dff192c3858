"""Transaction buffers of topics (`/admin/v3/transactions`): what they know, and where their snapshots are.

Facts: transactions-dedup-compaction 1.8; Pulsar `TransactionsBase`.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.topics.access import HandlersOfTopics
from magnetar.broker.admin.topics.stats import position_text
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.responses import NOT_FOUND, UNAVAILABLE, AdminError, flag, json, path_integer, topic_of
from magnetar.broker.context import BrokerContext
from magnetar.broker.peers.large_json import decoded_in_turns
from magnetar.broker.topics.partitioned_topics import admin_path
from magnetar.broker.transactions.buffers.buffer import TransactionBuffer
from magnetar.core.ids import unsigned64
from magnetar.core.topic_name import PERSISTENT, TopicName

BASE: Final = "/admin/v3/transactions"
OF_TOPIC: Final = "/{tenant}/{namespace}/{topic}"

KEPT_IN: Final = {
    "Single": {"singleSnapshotSystemTopicInternalStats": "__transaction_buffer_snapshot"},
    "Segment": {
        "segmentInternalStats": "__transaction_buffer_snapshot_segments",
        "segmentIndexInternalStats": "__transaction_buffer_snapshot_indexes",
    },
}
"""The system topics of each kind of snapshot, by the names that statistics have for them."""

NOT_CONFIGURED: Final = "This Broker is not configured with transactionCoordinatorEnabled=true."
NO_BUFFER: Final = "Topic not found"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = TransactionBufferHandlers(context)
    return [
        web.get(BASE + "/transactionBufferStats" + OF_TOPIC, handlers.stats),
        web.get(BASE + "/transactionInBufferStats" + OF_TOPIC + "/{mostSigBits}/{leastSigBits}", handlers.transaction),
        web.get(BASE + "/transactionBufferInternalStats" + OF_TOPIC, handlers.internal_stats),
    ]


def buffer_stats(buffer: TransactionBuffer, *, low_water_marks: bool) -> dict[str, Any]:
    """One buffer, under the admin API's names."""
    marks = {str(coordinator): mark for coordinator, mark in buffer.table.low_water_marks.items()}
    return {
        "state": buffer.state.value,
        "maxReadPosition": position_text(buffer.max_read_position),
        **({"lowWaterMarks": marks} if low_water_marks else {}),
        "lastSnapshotTimestamps": buffer.last_snapshot_ms,
        "ongoingTxnSize": len(buffer.table.open),
        "recoverStartTime": buffer.recovery_started_ms,
        "recoverEndTime": buffer.recovery_ended_ms,
        "totalAbortedTransactions": len(buffer.table.aborted),
        "snapshotType": buffer.snapshot_kind,
    }


class TransactionBufferHandlers(HandlersOfTopics):
    """The handlers, over one broker."""

    @takes("authoritative", "lowWaterMarks", "segmentStats")
    async def stats(self, request: web.Request) -> web.Response:
        """The transaction buffer of one topic."""
        buffer = await self._buffer(request)
        return json(buffer_stats(buffer, low_water_marks=flag(request, "lowWaterMarks")))

    @takes("authoritative")
    async def transaction(self, request: web.Request) -> web.Response:
        """One transaction, as the transaction buffer of a topic knows it."""
        bits = (unsigned64(path_integer(request, "mostSigBits")), unsigned64(path_integer(request, "leastSigBits")))
        buffer = await self._buffer(request)
        start = buffer.table.open.get(bits)
        return json(
            {**({} if start is None else {"startPosition": position_text(start)}), "aborted": buffer.hides(bits)}
        )

    @takes("authoritative", "metadata")
    async def internal_stats(self, request: web.Request) -> web.Response:
        """Where the snapshots of one topic's transaction buffer are."""
        buffer = await self._buffer(request)
        if not buffer.has_snapshot:
            raise AdminError(NOT_FOUND, "Transaction buffer Snapshot for the topic does not exist")
        namespace, kind = topic_of(request).namespace_name, buffer.snapshot_kind
        query = {"metadata": "true"} if flag(request, "metadata") else {}
        document: dict[str, Any] = {"snapshotType": kind}
        for field, local_name in KEPT_IN[kind].items():
            document[field] = await self._of_system_topic(TopicName(PERSISTENT, namespace, local_name), query)
        return json({name: value for name, value in document.items() if value is not None})

    async def _of_system_topic(self, topic: TopicName, query: dict[str, str]) -> dict[str, Any] | None:
        """The inside of a system topic, from its owner; None for one that is not there."""
        answer = await self._access.call("GET", admin_path(topic) + "/internalStats", query)
        if isinstance(answer, AdminError):
            if answer.status == NOT_FOUND:
                return None
            raise answer
        inside = await decoded_in_turns(answer.body)
        return {"managedLedgerName": topic.local_name, "managedLedgerInternalStats": inside}

    async def _buffer(self, request: web.Request) -> TransactionBuffer:
        if not self._context.settings.transactions.enabled:
            raise AdminError(UNAVAILABLE, NOT_CONFIGURED)
        topic = await self._access.persistent(request, topic_of(request))
        if topic.buffer is None:
            raise AdminError(NOT_FOUND, NO_BUFFER)
        return topic.buffer
