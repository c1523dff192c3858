"""What topics measure of themselves: `stats`, `internalStats`, `internal-info`, `backlog`, whole or by partitions."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.topics.access import HandlersOfTopics
from magnetar.broker.admin.topics.internals import (
    NOTHING_STORED,
    add_ledger_metadata,
    backlog_document,
    internal_stats,
    stored_info,
)
from magnetar.broker.admin.topics.stats import STATS_QUERY, StatsOptions, topic_stats
from magnetar.broker.admin.topics.stats_merge import merge_stats
from magnetar.broker.admin.topics.topics import ONE
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.owners import require_topic_owner
from magnetar.broker.admin.web.responses import NOT_FOUND, AdminError, encoded_in_turns, flag, json, topic_of
from magnetar.broker.context import BrokerContext
from magnetar.broker.peers.large_json import decoded_in_turns
from magnetar.broker.resources import Document
from magnetar.broker.slices import in_slices
from magnetar.broker.topics.partitioned_topics import admin_path
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.topic_name import PERSISTENT, TopicName
from magnetar.ledger.metadata_ops import LedgerMetadataOps

RECORDS_AT_ONCE: Final = 50
"""Partitions whose records are read side by side: enough to hide the store's latency."""


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = MeasureHandlers(context)
    return [
        web.get(ONE + "/stats", handlers.stats),
        web.get(ONE + "/internalStats", handlers.internal_stats),
        web.get(ONE + "/partitioned-stats", handlers.partitioned_stats),
        web.get(ONE + "/partitioned-internalStats", handlers.partitioned_internal_stats),
        web.get(ONE + "/internal-info", handlers.internal_info),
        web.get(ONE + "/backlog", handlers.backlog),
    ]


class MeasureHandlers(HandlersOfTopics):
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self._ledgers = LedgerMetadataOps(context.service.store)

    @takes(*STATS_QUERY)
    async def stats(self, request: web.Request) -> web.Response:
        """Rates, counters, publishers and subscriptions of one topic."""
        topic = await self._access.topic(request, topic_of(request))
        document = await topic_stats(topic, self._context, StatsOptions.of(request))
        document["subscriptions"] = await encoded_in_turns(document["subscriptions"])
        return json(document)

    @takes("authoritative", "metadata")
    async def internal_stats(self, request: web.Request) -> web.Response:
        """Ledgers and cursors of one topic; with `metadata` also what the ledgers' own metadata says."""
        topic = await self._access.topic(request, topic_of(request))
        if not isinstance(topic, PersistentTopic):
            return json(NOTHING_STORED)
        document = await internal_stats(topic)
        if flag(request, "metadata"):
            await add_ledger_metadata(document, self._ledgers)
        return json(document)

    @takes("perPartition", *STATS_QUERY)
    async def partitioned_stats(self, request: web.Request) -> web.Response:
        """The sum over the partitions, and each of them unless `perPartition` is false."""
        name = topic_of(request)
        count = await self._access.partitions(name)
        if not count:
            reason = f"Partitioned Topic {name} not found"
            if name.domain != PERSISTENT:
                reason = f"Partitioned topic not found {name}"
            raise AdminError(NOT_FOUND, reason)
        query = {key: value for key, value in request.query.items() if key in STATS_QUERY and key != "authoritative"}
        stats = await self._of_partitions(name, count, "/stats", query)
        document = await merge_stats(list(stats.values()))
        document["subscriptions"] = await encoded_in_turns(document["subscriptions"])
        document["metadata"] = await self._metadata(name, count)
        shown = stats if flag(request, "perPartition", default=True) else {}
        document["partitions"] = await encoded_in_turns(shown)
        return json(document)

    @takes("authoritative")
    async def partitioned_internal_stats(self, request: web.Request) -> web.Response:
        """Ledgers and cursors of each partition."""
        name = topic_of(request)
        count = await self._access.partitions(name)
        if not count:
            raise AdminError(NOT_FOUND, f"Partitioned Topic {name} not found")
        stats = await self._of_partitions(name, count, "/internalStats", {})
        return json({"metadata": await self._metadata(name, count), "partitions": await encoded_in_turns(stats)})

    @takes("authoritative")
    async def internal_info(self, request: web.Request) -> web.Response:
        """A topic's records in the metadata store; of a partitioned topic those of each partition."""
        name = topic_of(request)
        count = await self._access.partitions(name)
        if not count:
            info = await self._stored(name)
            if info is None:
                raise await self._access.not_found(name)
            return json(info)
        found: dict[str, Document] = {}
        partitions = [name.partition(index) for index in range(count)]
        stored = await in_slices(self._stored, partitions, RECORDS_AT_ONCE)
        for partition, info in zip(partitions, stored, strict=True):
            if info is not None:
                found[str(partition)] = info
        return json({"version": 0, "partitions": found})

    @takes("authoritative")
    async def backlog(self, request: web.Request) -> web.Response:
        """What a topic stores, ledger by ledger, and how much of it each subscription has before it."""
        name = topic_of(request)
        topic = None
        if not await self._access.partitions(name):
            await require_topic_owner(self._context, request, name)
            if name.domain == PERSISTENT and await self._access.exists(name):
                topic = await self._access.persistent(request, name)
        context = self._context
        return json(backlog_document(name, context.settings.advertised_address, context.clock.now_ms(), topic))

    async def _metadata(self, name: TopicName, count: int) -> Document:
        """How a topic is partitioned, and what is noted on it."""
        resources = self._context.service.resources
        record: Document = await resources.documents.get(resources.partitioned_topic_path(name)) or {}
        properties = record.get("properties")
        noted = {} if properties is None else {"properties": properties}
        return {"partitions": count, "deleted": bool(record.get("deleted")), **noted}

    async def _stored(self, name: TopicName) -> Document | None:
        return await stored_info(self._context.service.store, name)

    async def _of_partitions(self, name: TopicName, count: int, what: str, query: dict[str, str]) -> dict[str, Any]:
        """A document of each partition from its owner; partitions that nobody has made yet are left out."""
        names = [name.partition(index) for index in range(count)]
        answers = await in_slices(lambda each: self._access.call("GET", admin_path(each) + what, query), names)
        found: dict[str, Any] = {}
        for each, answer in zip(names, answers, strict=True):
            if not isinstance(answer, AdminError):
                found[str(each)] = await decoded_in_turns(answer.body)
                await asyncio.sleep(0)
            elif answer.status != NOT_FOUND:
                raise answer
        return found
