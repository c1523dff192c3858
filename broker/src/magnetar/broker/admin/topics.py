"""`/admin/v2/persistent` and `/admin/v2/non-persistent`: making, listing, measuring and removing topics."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from magnetar.broker.admin.responses import (
    CONFLICT,
    METHOD_NOT_ALLOWED,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    PRECONDITION_FAILED,
    UNPROCESSABLE,
    AdminError,
    body_integer,
    body_json,
    flag,
    json,
    namespace_of,
    no_content,
    topic_of,
)
from magnetar.broker.admin.topic_stats import internal_stats, merge_stats, topic_stats
from magnetar.broker.context import BrokerContext
from magnetar.broker.seek import last_message_id
from magnetar.broker.service import Topic
from magnetar.broker.topic import PersistentTopic
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.metadata.store import VersionConflict
from magnetar.wire.pulsar.errors import PulsarError, ServerError

BASE = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
ONE = BASE + "/{topic}"
PARTITIONS_MAX = 100_000
"""Each partition is a topic of its own: more is a typing error."""

NOTHING_STORED: dict[str, Any] = {
    "entriesAddedCounter": 0,
    "numberOfEntries": 0,
    "totalSize": 0,
    "currentLedgerEntries": 0,
    "currentLedgerSize": 0,
    "waitingCursorsCount": 0,
    "pendingAddEntriesCount": 0,
    "cursors": {},
}
"""The internal stats of a non-persistent topic."""


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = TopicHandlers(context)
    return [
        web.get(BASE, handlers.names),
        web.get(BASE + "/partitioned", handlers.partitioned_names),
        web.put(ONE, handlers.create),
        web.delete(ONE, handlers.delete),
        web.get(ONE + "/partitions", handlers.partitions),
        web.put(ONE + "/partitions", handlers.create_partitioned),
        web.post(ONE + "/partitions", handlers.grow),
        web.delete(ONE + "/partitions", handlers.delete_partitioned),
        web.get(ONE + "/stats", handlers.stats),
        web.get(ONE + "/internalStats", handlers.internal_stats),
        web.get(ONE + "/partitioned-stats", handlers.partitioned_stats),
        web.get(ONE + "/partitioned-internalStats", handlers.partitioned_internal_stats),
        web.put(ONE + "/unload", handlers.unload),
        web.post(ONE + "/terminate", handlers.terminate),
        web.get(ONE + "/lastMessageId", handlers.last_message_id),
        web.get(ONE + r"/messageid/{timestamp:-?\d+}", handlers.message_id_of_time),
    ]


class TopicHandlers:
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._service = context.service
        self._resources = context.service.resources

    async def names(self, request: web.Request) -> web.Response:
        """Topics of the namespace, partitions one by one."""
        namespace = namespace_of(request)
        await self._check_namespace(request)
        return json(await self._service.list_topics(namespace, request.match_info["domain"]))

    async def partitioned_names(self, request: web.Request) -> web.Response:
        """Partitioned topics of the namespace."""
        await self._check_namespace(request)
        return json(
            sorted(await self._resources.partitioned_topics(namespace_of(request), request.match_info["domain"]))
        )

    async def create(self, request: web.Request) -> web.Response:
        """Make a topic that is not partitioned."""
        await self._check_namespace(request)
        name = topic_of(request)
        await self._check_absent(name)
        if name.partition_index >= 0 and await self._resources.partitions(name.partitioned_name()) is None:
            raise AdminError(
                PRECONDITION_FAILED,
                f"Can't create topic {name.local_name} with \"-partition-\" followed by numeric value if there isn't "
                f"a partitioned topic {name.partitioned_name().local_name} created.",
            )
        await self._service.topic(name, create=True)
        return no_content()

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a topic that is not partitioned."""
        name = topic_of(request)
        if await self._resources.partitions(name):
            raise AdminError(
                CONFLICT,
                f"{name} is a partitioned topic, instead of calling delete topic, "
                "please call delete-partitioned-topic.",
            )
        await self._service.delete(name, force=flag(request, "force"))
        return no_content()

    async def partitions(self, request: web.Request) -> web.Response:
        """How many partitions; 0 when it is not partitioned."""
        name = topic_of(request)
        await self._check_namespace(request)
        count = await self._resources.partitions(name)
        if count is None and flag(request, "checkAllowAutoCreation"):
            count = await self._service.partitions(name, create=True)
        if count is None:
            if not await self._service.exists(name):
                raise AdminError(NOT_FOUND, f"Topic {name} not found")
            count = 0
        return json({"partitions": count, "deleted": False})

    async def create_partitioned(self, request: web.Request) -> web.Response:
        """Make a partitioned topic; the body is the count, or a document with count and properties."""
        await self._check_namespace(request)
        name = topic_of(request)
        if name.partition_index >= 0:
            raise AdminError(PRECONDITION_FAILED, "Partitioned Topic Name should not contain '-partition-'")
        body = await body_json(request)
        document: dict[str, Any] = body if isinstance(body, dict) else {"partitions": body}
        count = document.get("partitions")
        if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= PARTITIONS_MAX:
            raise AdminError(NOT_ACCEPTABLE, f"Number of partitions should be more than 0, {PARTITIONS_MAX} at most")
        await self._check_absent(name)
        try:
            await self._service.create_partitioned(name, count, document.get("properties"))
        except VersionConflict:
            raise AdminError(CONFLICT, "Partitioned topic already exists") from None
        return no_content()

    async def grow(self, request: web.Request) -> web.Response:
        """Add partitions; the body is the new count."""
        name = topic_of(request)
        count = await body_integer(request)
        if not 0 < count <= PARTITIONS_MAX:
            raise AdminError(NOT_ACCEPTABLE, f"Number of partitions should be more than 0, {PARTITIONS_MAX} at most")
        try:
            await self._service.grow_partitioned(name, count)
        except PulsarError as problem:
            if problem.code == ServerError.NOT_ALLOWED_ERROR:
                raise AdminError(UNPROCESSABLE, problem.message) from None
            if problem.code == ServerError.TOPIC_NOT_FOUND:
                raise AdminError(CONFLICT, problem.message) from None
            raise
        return no_content()

    async def delete_partitioned(self, request: web.Request) -> web.Response:
        """Remove a partitioned topic."""
        await self._service.delete_partitioned(topic_of(request), force=flag(request, "force"))
        return no_content()

    async def stats(self, request: web.Request) -> web.Response:
        """Rates, counters, publishers and subscriptions of one topic."""
        topic = await self._existing(topic_of(request))
        return json(topic_stats(topic, self._context))

    async def internal_stats(self, request: web.Request) -> web.Response:
        """Ledgers and cursors of one topic."""
        topic = await self._existing(topic_of(request))
        return json(internal_stats(topic) if isinstance(topic, PersistentTopic) else NOTHING_STORED)

    async def partitioned_stats(self, request: web.Request) -> web.Response:
        """The sum over the partitions, and each of them when asked."""
        partitions = await self._partitions(topic_of(request))
        stats = {str(topic.name): topic_stats(topic, self._context) for topic in partitions}
        merged = merge_stats(list(stats.values()))
        merged["metadata"] = {"partitions": len(partitions), "deleted": False}
        merged["partitions"] = stats if flag(request, "perPartition", default=True) else {}
        return json(merged)

    async def partitioned_internal_stats(self, request: web.Request) -> web.Response:
        """Ledgers and cursors of each partition."""
        partitions = await self._partitions(topic_of(request))
        return json(
            {
                "metadata": {"partitions": len(partitions), "deleted": False},
                "partitions": {str(topic.name): internal_stats(topic) for topic in partitions},
            }
        )

    async def unload(self, request: web.Request) -> web.Response:
        """Let go of a topic (all partitions of a partitioned one); clients reconnect."""
        name = topic_of(request)
        count = await self._resources.partitions(name)
        if count is None and not await self._service.exists(name):
            raise AdminError(NOT_FOUND, f"Topic {name} not found")
        for partition in [name.partition(index) for index in range(count)] if count else [name]:
            await self._service.unload(partition)
        return no_content()

    async def terminate(self, request: web.Request) -> web.Response:
        """Take no more messages; answers the last one's id."""
        name = topic_of(request)
        if await self._resources.partitions(name):
            raise AdminError(METHOD_NOT_ALLOWED, "Termination of a partitioned topic is not allowed")
        topic = await self._persistent(name)
        return json(message_id_document(await topic.terminate(), name))

    async def last_message_id(self, request: web.Request) -> web.Response:
        """The id of the last message."""
        topic = await self._persistent(topic_of(request))
        position, batch_index = await last_message_id(topic)
        if position == EARLIEST:
            position = topic.ledger.last_confirmed
        return json(message_id_document(position, topic.name, batch_index))

    async def message_id_of_time(self, request: web.Request) -> web.Response:
        """The id of the first message published at or after a time."""
        topic = await self._persistent(topic_of(request))
        position = await topic.position_of_time(int(request.match_info["timestamp"]))
        if position == LATEST:
            position = topic.ledger.next_position(topic.ledger.last_confirmed)
        return json(message_id_document(position, topic.name))

    async def _check_namespace(self, request: web.Request) -> None:
        if await self._resources.policies(namespace_of(request)) is None:
            raise AdminError(NOT_FOUND, "Namespace not found")

    async def _check_absent(self, name: TopicName) -> None:
        if await self._resources.partitions(name) is not None or await self._service.exists(name):
            raise AdminError(CONFLICT, "This topic already exists")

    async def _existing(self, name: TopicName) -> Topic:
        if not await self._service.exists(name):
            if await self._resources.partitions(name):
                raise AdminError(NOT_FOUND, f"Topic {name} is partitioned: partitioned-stats measures it")
            raise AdminError(NOT_FOUND, f"Topic {name} not found")
        return await self._service.topic(name, create=False)

    async def _persistent(self, name: TopicName) -> PersistentTopic:
        topic = await self._existing(name)
        if not isinstance(topic, PersistentTopic):
            raise AdminError(METHOD_NOT_ALLOWED, "Not supported on a non-persistent topic")
        return topic

    async def _partitions(self, name: TopicName) -> list[PersistentTopic]:
        count = await self._resources.partitions(name)
        if not count:
            raise AdminError(NOT_FOUND, f"Partitioned topic {name} not found")
        topics = [await self._service.topic(name.partition(index), create=True) for index in range(count)]
        return [topic for topic in topics if isinstance(topic, PersistentTopic)]


def message_id_document(position: Position, name: TopicName, batch_index: int = -1) -> dict[str, int]:
    """A message id as Apache's JSON has it; without a batch the index is -1 and the size 0."""
    return {
        "ledgerId": position[0],
        "entryId": position[1],
        "partitionIndex": name.partition_index,
        "batchIndex": batch_index,
        "batchSize": batch_index + 1,
    }
