"""`…/{topic}/partitions`: how topics are partitioned; `createMissedPartitions`; the properties of topics."""

from __future__ import annotations

import re
from typing import Any, Final

from aiohttp import web
from magnetar.admin_client.errors import AdminRefused
from magnetar.broker.admin.topics.access import HandlersOfTopics
from magnetar.broker.admin.topics.shadow_sources import check_source
from magnetar.broker.admin.topics.topics import ONE
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.responses import (
    CONFLICT,
    METHOD_NOT_ALLOWED,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    PRECONDITION_FAILED,
    UNPROCESSABLE,
    AdminError,
    body_json,
    body_object,
    flag,
    json,
    no_content,
    topic_of,
)
from magnetar.broker.admin.web.shapes import check_members, check_not_owed, check_source_stays, integer, map_of, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document
from magnetar.broker.topics.partitioned_topics import PartitionedTopics
from magnetar.core.topic_name import PERSISTENT, TopicName
from magnetar.metadata.store import VersionConflict
from magnetar.wire.pulsar.errors import PulsarError, ServerError

PARTITIONS_MAX: Final = 100_000
"""Each partition is a topic of its own: more is a typing error."""

PROPERTIES: Final = map_of(text)

PERSISTENT_WANTED: Final = "Need to provide a persistent topic name"

TOO_OLD: Final = "Client lib is not compatible to access partitioned metadata"

CPP_VERSION_MIN: Final = (1, 21)
"""The first C++ client that does with partitioned topics (Pulsar `LEAST_SUPPORTED_CLIENT_VERSION_PREFIX`)."""

_CPP_VERSION: Final = re.compile(r"Pulsar-CPP-v\s*([0-9]{1,9})\.([0-9]{1,9})")

GROWTH_REFUSALS: Final = {ServerError.NOT_ALLOWED_ERROR: UNPROCESSABLE, ServerError.TOPIC_NOT_FOUND: CONFLICT}


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = PartitionHandlers(context)
    return [
        web.get(ONE + "/partitions", handlers.partitions),
        web.put(ONE + "/partitions", handlers.create),
        web.post(ONE + "/partitions", handlers.grow),
        web.delete(ONE + "/partitions", handlers.delete),
        web.post(ONE + "/createMissedPartitions", handlers.create_missed),
        web.get(ONE + "/properties", handlers.properties),
        web.put(ONE + "/properties", handlers.set_properties),
        web.delete(ONE + "/properties", handlers.remove_property),
    ]


class PartitionHandlers(HandlersOfTopics):
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self._partitioned = PartitionedTopics(context.service, context.peers)

    @takes("authoritative", "checkAllowAutoCreation")
    async def partitions(self, request: web.Request) -> web.Response:
        """How many partitions; 0 when it is not partitioned. Makes the topic if told and allowed to."""
        name = topic_of(request)
        await self._access.policies(name.namespace_name)
        record = await self._record(name)
        if record is None and flag(request, "checkAllowAutoCreation"):
            await self._service.partitions(name, create=True)
            record = await self._record(name) or {"partitions": 0}
        if record is None:
            if not await self._access.exists(name):
                raise AdminError(NOT_FOUND, f"Topic {name} not found")
            record = {"partitions": 0}
        if record["partitions"] > 1 and self._service.settings.admin.client_versions_checked:
            check_client(request.headers.get("User-Agent", ""))
        return json(partitions_document(record))

    @takes("createLocalTopicOnly", body="the number of partitions, or {partitions, properties}")
    async def create(self, request: web.Request) -> web.Response:
        """Make a partitioned topic; the body is the count, or a document with count and properties."""
        name = topic_of(request)
        await self._access.policies(name.namespace_name)
        if name.partition_index >= 0:
            raise AdminError(PRECONDITION_FAILED, "Partitioned Topic Name should not contain '-partition-'")
        body = await body_json(request)
        document: dict[str, Any] = body if isinstance(body, dict) else {"partitions": body}
        count, properties = integer(document.get("partitions")), document.get("properties")
        if count <= 0:
            raise AdminError(NOT_ACCEPTABLE, "Number of partitions should be more than 0")
        self._check_count(count)
        if isinstance(properties, dict):
            await check_source(self._context, request, name, properties, count)
        if await self._service.exists(name):
            raise AdminError(CONFLICT, "This topic already exists")
        try:
            await self._partitioned.create(name, count, None if properties is None else PROPERTIES(properties))
        except VersionConflict:
            raise AdminError(CONFLICT, "This topic already exists") from None
        if not flag(request, "createLocalTopicOnly"):
            await self._tell_other_clusters(name, count)
        return no_content()

    @takes("updateLocalTopicOnly", "authoritative", "force", body="the new number of partitions")
    async def grow(self, request: web.Request) -> web.Response:
        """Add partitions; the body is the new count. Subscriptions appear on the new ones."""
        name = topic_of(request)
        await self._access.policies(name.namespace_name)
        count = integer(await body_json(request))
        self._check_count(count)
        try:
            await self._partitioned.grow(name, count)
        except AdminRefused as refusal:
            raise AdminError(refusal.status, str(refusal)) from None
        except PulsarError as problem:
            if problem.code in GROWTH_REFUSALS:
                raise AdminError(GROWTH_REFUSALS[problem.code], problem.message) from None
            raise
        if not flag(request, "updateLocalTopicOnly"):
            await self._tell_other_clusters(name, count)
        return no_content()

    @takes("force", "authoritative")
    async def delete(self, request: web.Request) -> web.Response:
        """Remove a partitioned topic with its partitions; without `force` one that nobody uses."""
        name = topic_of(request)
        await self._access.policies(name.namespace_name)
        if await self._record(name) is None:
            if await self._service.exists(name):
                raise AdminError(
                    CONFLICT,
                    f"{name} is a non-partitioned topic. "
                    "Instead of calling delete-partitioned-topic please call delete.",
                )
            # Whoever deleted it may have got no further.
            await self._context.topic_policies.delete(name)
            raise AdminError(NOT_FOUND, f"Topic {name} not found.")
        try:
            await self._partitioned.delete(name, force=flag(request, "force"))
        except AdminRefused as refusal:
            raise AdminError(refusal.status, str(refusal)) from None
        await self._context.topic_policies.delete(name)
        return no_content()

    async def create_missed(self, request: web.Request) -> web.Response:
        """Make those partitions of a partitioned topic that are not there."""
        name = topic_of(request)
        count = await self._access.partitions(name)
        if not count:
            raise AdminError(NOT_FOUND, f"Topic {name} does not exist")
        await self._service.partitioned.create_partitions(name, count)
        return no_content()

    @takes("authoritative")
    async def properties(self, request: web.Request) -> web.Response:
        """What is noted on a topic."""
        name = persistent_name(request)
        if (record := await self._record(name)) is not None:
            properties = record.get("properties")
            return web.Response() if properties is None else json(properties)
        topic = await self._access.persistent(request, name)
        return json(topic.ledger.properties)

    @takes("authoritative", body="the properties to set; others stay")
    async def set_properties(self, request: web.Request) -> web.Response:
        """Note something on a topic; what is noted under other keys stays."""
        name = persistent_name(request)
        body = await body_object(request)
        check_members(len(body))
        check_source_stays(body)
        check_not_owed(body)
        given = {key: str(value) for key, value in body.items()}
        if await self._record(name) is not None:
            await self._update(name, lambda properties: {**properties, **given})
            return no_content()
        topic = await self._access.persistent(request, name)
        await topic.ledger.set_properties(given)
        return no_content()

    @takes("key", "authoritative")
    async def remove_property(self, request: web.Request) -> web.Response:
        """Forget what is noted on a topic under a key."""
        name = persistent_name(request)
        key = request.query.get("key")
        if key is None:
            raise AdminError(PRECONDITION_FAILED, "The key of a property is needed")
        check_source_stays((key,))
        check_not_owed((key,))
        if await self._record(name) is not None:
            await self._update(name, lambda properties: {each: properties[each] for each in properties if each != key})
            return no_content()
        topic = await self._access.persistent(request, name)
        await topic.ledger.set_property(key, None)
        return no_content()

    async def _tell_other_clusters(self, name: TopicName, count: int) -> None:
        policies = await self._service.policies.load(name)
        self._service.upkeep.replication.partitions_changed(name, count, policies)

    def _check_count(self, count: int) -> None:
        """Raises 406 for more partitions than there can be."""
        limit = self._context.settings.policies.partitions_per_topic_max or PARTITIONS_MAX
        if count > limit:
            raise AdminError(NOT_ACCEPTABLE, f"Number of partitions should be less than or equal to {limit}")

    async def _record(self, name: TopicName) -> Document | None:
        """The partitioned topic's record, also while it is being deleted; None when it is not partitioned."""
        record: Document | None = await self._resources.documents.get(self._resources.partitioned_topic_path(name))
        return record

    async def _update(self, name: TopicName, change: Any) -> None:
        await self._resources.documents.update(
            self._resources.partitioned_topic_path(name),
            lambda record: {**record, "properties": change(record.get("properties") or {})},
        )


def persistent_name(request: web.Request) -> TopicName:
    """The topic that the path names, which must be a persistent one. Raises 406, 412."""
    name = topic_of(request)
    if name.domain != PERSISTENT:
        raise AdminError(NOT_ACCEPTABLE, PERSISTENT_WANTED)
    return name


def check_client(agent: str) -> None:
    """Raises 405 for the `User-Agent` of a client that does not do with partitioned topics, or for none."""
    if not agent.strip():
        raise AdminError(METHOD_NOT_ALLOWED, f"{TOO_OLD}: version in user-agent is not present")
    found = _CPP_VERSION.search(agent)
    if found is not None and (int(found[1]), int(found[2])) < CPP_VERSION_MIN:
        raise AdminError(METHOD_NOT_ALLOWED, f"{TOO_OLD}: version {agent} is not supported")


def partitions_document(record: Document) -> Document:
    """PartitionedTopicMetadata as the API shows it."""
    document: Document = {"partitions": record["partitions"], "deleted": bool(record.get("deleted"))}
    if record.get("properties") is not None:
        document["properties"] = record["properties"]
    return document
