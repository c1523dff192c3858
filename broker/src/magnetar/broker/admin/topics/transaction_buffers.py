"""Transaction buffers of topics (`/admin/v3/transactions`): what they know, and where their snapshots are.

Facts: transactions-dedup-compaction 1.8; Pulsar `TransactionsBase`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.topics.access import HandlersOfTopics
from magnetar.broker.admin.topics.stats import position_text
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.responses import NOT_FOUND, UNAVAILABLE, AdminError, flag, json, path_integer, topic_of
from magnetar.broker.context import BrokerContext
from magnetar.broker.peers.large_json import decoded_in_turns
from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.broker.topics.partitioned_topics import admin_path
from magnetar.broker.transactions.buffers.buffer import TransactionBuffer
from magnetar.broker.transactions.buffers.snapshot_store import TopicSegments
from magnetar.core.ids import Position, signed64, unsigned64
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


def buffer_stats(buffer: TransactionBuffer, *, low_water_marks: bool, segment_stats: bool) -> dict[str, Any]:
    """One buffer, under the admin API's names. `segment_stats`: with each segment, where there are some."""
    segments = buffer.segments
    aborted = buffer.table.aborted
    kept = {} if segments is None else {"segmentsStats": segments_stats(segments, aborted, each=segment_stats)}
    marks = {str(coordinator): mark for coordinator, mark in buffer.table.low_water_marks.items()}
    return {
        "state": buffer.state.value,
        "maxReadPosition": position_text(buffer.max_read_position),
        **({"lowWaterMarks": marks} if low_water_marks else {}),
        "lastSnapshotTimestamps": buffer.last_snapshot_ms,
        "ongoingTxnSize": len(buffer.table.open),
        "recoverStartTime": buffer.recovery_started_ms,
        "recoverEndTime": buffer.recovery_ended_ms,
        "totalAbortedTransactions": len(aborted),
        "snapshotType": buffer.snapshot_kind,
        **kept,
    }


def segments_stats(
    segments: TopicSegments, aborted: Mapping[TransactionBits, Position], *, each: bool
) -> dict[str, Any]:
    """The segments in which aborted transactions are kept (Pulsar: `SegmentsStats`). `aborted`: the abort marker of
    each transaction, oldest first; of a million a copy takes some milliseconds."""
    markers = list(aborted.values())
    ends = [bisect_right(markers, last_marker) for last_marker in segments.last_markers]
    document: dict[str, Any] = {
        "segmentsSize": len(ends),
        "currentSegmentCapacity": segments.capacity,
        "unsealedAbortTxnIDSize": len(markers) - (ends[-1] if ends else 0),
        "lastTookSnapshotSegmentTimestamp": segments.sealed_ms,
    }
    if each:
        transactions = list(aborted)
        document["segmentStats"] = [
            {"lastTxnID": transaction_text(transactions[end - 1]), "persistentPosition": position_text(last_marker)}
            for end, last_marker in zip(ends, segments.last_markers, strict=True)
            if end  # Else all that it lists is forgotten: it goes with the next snapshot.
        ]
    return document


def transaction_text(transaction: TransactionBits) -> str:
    """A transaction as Java writes it (Pulsar: `TxnID.toString`)."""
    return f"({signed64(transaction[0])},{signed64(transaction[1])})"


class TransactionBufferHandlers(HandlersOfTopics):
    """The handlers, over one broker."""

    @takes("authoritative", "lowWaterMarks", "segmentStats")
    async def stats(self, request: web.Request) -> web.Response:
        """The transaction buffer of one topic."""
        buffer = await self._buffer(request)
        marks, segments = flag(request, "lowWaterMarks"), flag(request, "segmentStats")
        return json(buffer_stats(buffer, low_water_marks=marks, segment_stats=segments))

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
