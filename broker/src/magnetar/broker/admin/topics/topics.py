"""`/admin/v2/persistent` and `/admin/v2/non-persistent`: listing, making and removing topics."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from magnetar.broker.admin.namespaces.topics import non_persistent_topics
from magnetar.broker.admin.topics.access import HandlersOfTopics
from magnetar.broker.admin.topics.shadow_sources import check_source
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.owners import require_topic_owner
from magnetar.broker.admin.web.responses import (
    CONFLICT,
    NOT_FOUND,
    PRECONDITION_FAILED,
    UNPROCESSABLE,
    AdminError,
    body_json,
    flag,
    json,
    namespace_of,
    no_content,
    topic_of,
)
from magnetar.broker.admin.web.shapes import check_members, check_not_owed
from magnetar.broker.context import BrokerContext
from magnetar.broker.policies.system_topics import belongs_to_brokers
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.bundle import BundleRange
from magnetar.core.hashing import bundle_hash
from magnetar.core.topic_name import PERSISTENT, InvalidTopicName, NamespaceName, TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError

BASE: Final = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
ONE: Final = BASE + "/{topic}"

SYSTEM_TOPICS: Final = frozenset(
    {
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_segments",
        "__transaction_buffer_snapshot_indexes",
        "transaction_coordinator_assign",
    }
)
PENDING_ACK_SUFFIX: Final = "__transaction_pending_ack"
"""Names of the brokers' own topics (Pulsar `SystemTopicNames`)."""


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = TopicHandlers(context)
    return [
        web.get(BASE, handlers.names),
        web.get(BASE + "/partitioned", handlers.partitioned_names),
        web.put(ONE, handlers.create),
        web.delete(ONE, handlers.delete),
    ]


class TopicHandlers(HandlersOfTopics):
    """The handlers, over one broker."""

    @takes("bundle", "includeSystemTopic")
    async def names(self, request: web.Request) -> web.Response:
        """Topics of the namespace, partitions one by one."""
        namespace = await self._checked_namespace(request)
        domain = request.match_info["domain"]
        if domain == PERSISTENT:
            names = await self._service.list_topics(namespace, domain)
        else:
            names = await non_persistent_topics(self._context, namespace)
        if (bundle := request.query.get("bundle")) is not None:
            names = within_bundle(names, bundle)
        return json(names if flag(request, "includeSystemTopic") else without_system_topics(names))

    @takes("includeSystemTopic")
    async def partitioned_names(self, request: web.Request) -> web.Response:
        """Partitioned topics of the namespace."""
        namespace = await self._checked_namespace(request)
        names = sorted(await self._resources.partitioned_topics(namespace, request.match_info["domain"]))
        return json(names if flag(request, "includeSystemTopic") else without_system_topics(names))

    @takes("authoritative", body="properties of the topic, or nothing")
    async def create(self, request: web.Request) -> web.Response:
        """Make a topic that is not partitioned."""
        name = topic_of(request)
        await self._access.policies(name.namespace_name)
        properties = await body_json(request) or {}
        if not isinstance(properties, dict):
            raise AdminError(PRECONDITION_FAILED, "The properties of a topic are a JSON object")
        check_members(len(properties))
        check_not_owed(properties)
        await self._check_partition_name(name)
        await require_topic_owner(self._context, request, name)
        if await self._resources.partitions(name) is not None or await self._service.exists(name):
            raise AdminError(CONFLICT, "This topic already exists")
        if await check_source(self._context, request, name, properties) is not None:
            await self._service.check_topics_max(name, [name])
            if not await self._service.shadows.create(name, {key: str(each) for key, each in properties.items()}):
                raise AdminError(CONFLICT, "This topic already exists")
            await self._service.topic(name, create=False)
            return no_content()
        topic = await self._service.topic(name, create=True)
        if properties and isinstance(topic, PersistentTopic):
            await topic.ledger.set_properties({key: str(value) for key, value in properties.items()})
        return no_content()

    @takes("force", "authoritative")
    async def delete(self, request: web.Request) -> web.Response:
        """Remove a topic that is not partitioned; without `force` one that nobody uses and that is not replicated."""
        name = topic_of(request)
        if await self._resources.partitions(name):
            raise AdminError(
                CONFLICT,
                f"{name} is a partitioned topic, instead of calling delete topic, "
                "please call delete-partitioned-topic.",
            )
        if await self._resources.policies(name.namespace_name) is None:
            raise AdminError(NOT_FOUND, f"Topic {name} not found")
        await require_topic_owner(self._context, request, name)
        if not flag(request, "force"):
            await self._check_not_replicated(name)
        try:
            await self._service.delete(name, force=flag(request, "force"))
        except PulsarError as problem:
            if problem.code != ServerError.TOPIC_NOT_FOUND:
                raise
            # One that stores nothing is as good as deleted when it is not there.
            gone = name.domain == PERSISTENT
        else:
            gone = False
        # Also if it was not there: whoever deleted it may have got no further.
        if name.partition_index < 0:
            await self._context.topic_policies.delete(name)
        if gone:
            raise AdminError(NOT_FOUND, f"Topic {name} not found")
        return no_content()

    async def _check_not_replicated(self, name: TopicName) -> None:
        """Raises 422 for a topic that is replicated: what is not sent yet would be lost."""
        policies = await self._service.policies.load(name)
        clusters = () if policies is None or belongs_to_brokers(name) else policies.remote_clusters
        topic = self._service.topics.get(str(name))
        if topic is not None and topic.replicators is not None:
            clusters = clusters or tuple(topic.replicators.running)
        if clusters and await self._access.exists(name):
            raise AdminError(
                UNPROCESSABLE,
                f"Delete forbidden topic is replicated on clusters [{', '.join(clusters)}]. End the replication first, "
                "or use force: what they have not got yet is lost then",
            )

    async def _check_partition_name(self, name: TopicName) -> None:
        if name.partition_index < 0:
            return
        whole = name.partitioned_name()
        count = await self._resources.partitions(whole)
        if not count:
            raise AdminError(
                PRECONDITION_FAILED,
                f"Can't create topic {name.local_name} with \"-partition-\" followed by numeric value if there isn't "
                f"a partitioned topic {whole.local_name} created.",
            )
        if name.partition_index >= count:
            raise AdminError(
                PRECONDITION_FAILED,
                f'Can\'t create topic {name.local_name} with "-partition-" followed by a number smaller than number of '
                f"partition of partitioned topic {whole.local_name}",
            )

    async def _checked_namespace(self, request: web.Request) -> NamespaceName:
        namespace = namespace_of(request)
        if await self._resources.policies(namespace) is None:
            raise AdminError(NOT_FOUND, "Namespace does not exist")
        return namespace


def within_bundle(names: list[str], bundle: str) -> list[str]:
    """Those of the topics whose hash is in a range `0x…_0x…`. Raises 412."""
    try:
        wanted = BundleRange.parse(bundle)
    except InvalidTopicName:
        raise AdminError(PRECONDITION_FAILED, f"Invalid bundle range: {bundle}") from None
    return [name for name in names if bundle_hash(name) in wanted]


def without_system_topics(names: list[str]) -> list[str]:
    """Those that the brokers have not made for themselves."""
    # Nearly all names are told by two comparisons: lists may hold a hundred thousand.
    return [name for name in names if not (("/__" in name or "transaction_" in name) and is_system_topic(name))]


def is_system_topic(name: str) -> bool:
    """Whether brokers made a topic for themselves."""
    local_name = TopicName.parse(name).partitioned_name().local_name
    return (
        local_name in SYSTEM_TOPICS
        or local_name.startswith("__transaction_log_")
        or local_name.endswith(PENDING_ACK_SUFFIX)
    )
