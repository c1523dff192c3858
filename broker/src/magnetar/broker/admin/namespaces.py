"""`/admin/v2/namespaces`: namespaces, their bundles, and the policies that this broker acts on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from magnetar.broker.admin.responses import (
    BAD_REQUEST,
    CONFLICT,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    body_json,
    flag,
    json,
    namespace_of,
    no_content,
)
from magnetar.broker.admin.topics import PARTITIONS_MAX
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document, Resources, bundles_document, new_policies
from magnetar.broker.schema.strategy import Strategy
from magnetar.broker.topic_lists import is_system_topic
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.store import NodeNotFound, VersionConflict

BASE = "/admin/v2/namespaces"
ONE = BASE + "/{tenant}/{namespace}"
BUNDLES_MAX = 4096
"""More ranges than any namespace of a cluster of this size needs; each costs a metadata node."""

MODES = {"PERSISTENT": "persistent", "NON_PERSISTENT": "non-persistent", "ALL": "all"}


class Policy:
    """One policy: its path below the namespace, its key in the document, and how it is checked."""

    def __init__(
        self, path: str, key: str, check: Callable[[Any], Any], *, absent: Any = None, verb: str = "POST"
    ) -> None:
        self.path = path
        self.key = key
        self.check = check
        self.absent = absent
        self.verb = verb


def _whole_number(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise AdminError(BAD_REQUEST, f"{name} must be a whole number")
    return value


def _retention(value: Any) -> Document:
    if not isinstance(value, dict) or not {"retentionTimeInMinutes", "retentionSizeInMB"} <= set(value):
        raise AdminError(BAD_REQUEST, "Retention needs retentionTimeInMinutes and retentionSizeInMB")
    minutes = _whole_number(value["retentionTimeInMinutes"], "retentionTimeInMinutes")
    megabytes = _whole_number(value["retentionSizeInMB"], "retentionSizeInMB")
    if min(minutes, megabytes) < -1:
        raise AdminError(BAD_REQUEST, "Invalid retention policy: limits must be >= -1")
    if (minutes == 0) != (megabytes == 0):
        raise AdminError(
            BAD_REQUEST,
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits "
            "has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit.",
        )
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def _strategy(value: Any) -> str:
    if not isinstance(value, str) or value not in Strategy.__members__:
        raise AdminError(BAD_REQUEST, f"{value!r} is no schema compatibility strategy")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise AdminError(BAD_REQUEST, "The body must be true or false")
    return value


def _topic_creation(value: Any) -> Document:
    if not isinstance(value, dict) or not isinstance(value.get("allowAutoTopicCreation"), bool):
        raise AdminError(BAD_REQUEST, "The body must be an object with allowAutoTopicCreation true or false")
    if not value["allowAutoTopicCreation"]:
        return value
    kind = value.get("topicType") or "non-partitioned"
    partitions = value.get("defaultNumPartitions")
    if kind not in ("partitioned", "non-partitioned"):
        raise AdminError(PRECONDITION_FAILED, f"Invalid configuration for autoTopicCreationOverride: topicType {kind}")
    if kind == "partitioned" and (not isinstance(partitions, int) or not 0 < partitions <= PARTITIONS_MAX):
        raise AdminError(
            PRECONDITION_FAILED, "Invalid configuration for autoTopicCreationOverride: defaultNumPartitions must be > 0"
        )
    return {**value, "topicType": kind}


def _subscription_creation(value: Any) -> Document:
    if not isinstance(value, dict) or not isinstance(value.get("allowAutoSubscriptionCreation"), bool):
        raise AdminError(BAD_REQUEST, "The body must be an object with allowAutoSubscriptionCreation true or false")
    return value


POLICIES = (
    Policy("retention", "retention_policies", _retention),
    Policy("schemaCompatibilityStrategy", "schema_compatibility_strategy", _strategy, absent="UNDEFINED", verb="PUT"),
    Policy("isAllowAutoUpdateSchema", "is_allow_auto_update_schema", _boolean, absent=True),
    Policy("schemaValidationEnforced", "schema_validation_enforced", _boolean, absent=False),
    Policy("autoTopicCreation", "autoTopicCreationOverride", _topic_creation),
    Policy("autoSubscriptionCreation", "autoSubscriptionCreationOverride", _subscription_creation),
)


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = NamespaceHandlers(context)
    table = [
        web.get(BASE + "/{tenant}", handlers.names),
        web.get(ONE, handlers.get),
        web.put(ONE, handlers.create),
        web.delete(ONE, handlers.delete),
        web.get(ONE + "/topics", handlers.topics),
        web.get(ONE + "/bundles", handlers.bundles),
        web.put(ONE + "/unload", handlers.unload),
    ]
    for policy in POLICIES:
        path = f"{ONE}/{policy.path}"
        access = PolicyHandlers(context, policy)
        table += [
            web.get(path, access.get),
            web.route(policy.verb, path, access.set),
            web.delete(path, access.remove),
        ]
    return table


class NamespaceHandlers:
    """The handlers for namespaces as a whole, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._service = context.service
        self._resources = context.service.resources
        self._documents = self._resources.documents

    async def names(self, request: web.Request) -> web.Response:
        """The namespaces of a tenant."""
        tenant = request.match_info["tenant"]
        if not await self._documents.exists(Resources.tenant_path(tenant)):
            raise AdminError(NOT_FOUND, "Tenant does not exist")
        return json(sorted(await self._resources.namespaces(tenant)))

    async def get(self, request: web.Request) -> web.Response:
        """All policies."""
        return json(await policies_of(self._context, namespace_of(request)))

    async def create(self, request: web.Request) -> web.Response:
        """Make a namespace."""
        namespace = namespace_of(request)
        if not await self._documents.exists(Resources.tenant_path(namespace.tenant)):
            raise AdminError(NOT_FOUND, "Tenant does not exist")
        policies = policies_for(self._context, await body_json(request))
        try:
            await self._documents.create(Resources.namespace_path(namespace), policies)
        except VersionConflict:
            raise AdminError(CONFLICT, "Namespace already exists") from None
        return no_content()

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a namespace; with `force` what is in it as well."""
        namespace = namespace_of(request)
        await policies_of(self._context, namespace)
        topics = [name for name in await self._service.list_topics(namespace, "all") if not is_system_topic(name)]
        partitioned = [
            name
            for domain in ("persistent", "non-persistent")
            for name in await self._resources.partitioned_topics(namespace, domain)
        ]
        if not flag(request, "force") and (topics or partitioned):
            raise AdminError(CONFLICT, "Cannot delete non empty namespace")
        for name in partitioned:
            await self._service.delete_partitioned(TopicName.parse(name), force=True)
        for name in await self._service.list_topics(namespace, "all"):
            await self._service.delete(TopicName.parse(name), force=True)
        await self._documents.delete(Resources.namespace_path(namespace))
        await self._service.store.delete_recursively(Resources.local_policies_path(namespace))
        return no_content()

    async def topics(self, request: web.Request) -> web.Response:
        """Names of the topics, partitions one by one."""
        namespace = namespace_of(request)
        await policies_of(self._context, namespace)
        domain = MODES.get(request.query.get("mode", "PERSISTENT").upper(), "persistent")
        names = await self._service.list_topics(namespace, domain)
        return json([name for name in names if not is_system_topic(name) or flag(request, "includeSystemTopic")])

    async def bundles(self, request: web.Request) -> web.Response:
        """The ranges of the hash space."""
        namespace = namespace_of(request)
        await policies_of(self._context, namespace)
        boundaries = await self._resources.bundle_boundaries(namespace)
        return json({"boundaries": boundaries, "numBundles": len(boundaries) - 1})

    async def unload(self, request: web.Request) -> web.Response:
        """Let go of every topic; clients reconnect."""
        namespace = namespace_of(request)
        await policies_of(self._context, namespace)
        for name in list(self._service.topics):
            if TopicName.parse(name).namespace_name == namespace:
                await self._service.unload(TopicName.parse(name))
        return no_content()


class PolicyHandlers:
    """Reads, sets and removes one policy."""

    def __init__(self, context: BrokerContext, policy: Policy) -> None:
        self._context = context
        self._policy = policy

    async def get(self, request: web.Request) -> web.Response:
        """The value in force for the namespace alone."""
        policies = await policies_of(self._context, namespace_of(request))
        value = policies.get(self._policy.key)
        value = self._policy.absent if value is None else value
        return web.Response() if value is None else json(value)

    async def set(self, request: web.Request) -> web.Response:
        """Give it a value."""
        namespace = namespace_of(request)
        return await self._change(namespace, self._policy.check(await body_json(request)))

    async def remove(self, request: web.Request) -> web.Response:
        """Go back to the broker's own value."""
        return await self._change(namespace_of(request), None)

    async def _change(self, namespace: NamespaceName, value: Any) -> web.Response:
        service = self._context.service
        try:
            await service.resources.documents.update(
                Resources.namespace_path(namespace), lambda document: {**document, self._policy.key: value}
            )
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "Namespace does not exist") from None
        await service.policies_changed(namespace)
        return no_content()


async def policies_of(context: BrokerContext, namespace: NamespaceName) -> Document:
    """The namespace's policies. Raises 404."""
    policies = await context.service.resources.policies(namespace)
    if policies is None:
        raise AdminError(NOT_FOUND, "Namespace does not exist")
    return policies


def policies_for(context: BrokerContext, wanted: Any) -> Document:
    """The policies of a new namespace from what the request says: policies, `{"bundles": …}`, a number, or nothing."""
    settings = context.settings
    policies = new_policies(settings.cluster_name, settings.default_namespace_bundles)
    if wanted is None:
        return policies
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        wanted = {"bundles": {"numBundles": wanted}}
    if not isinstance(wanted, dict):
        raise AdminError(BAD_REQUEST, "The body must be the namespace's policies")
    given = {key: value for key, value in wanted.items() if value is not None and key != "bundles"}
    policies.update(given)
    if not policies.get("replication_clusters"):
        policies["replication_clusters"] = [settings.cluster_name]
    policies["bundles"] = bundles_for(wanted.get("bundles") or {}, settings.default_namespace_bundles)
    return policies


def bundles_for(wanted: Any, default_count: int) -> Document:
    """The ranges of the hash space that a request asks for. Raises 405 or 412."""
    if not isinstance(wanted, dict):
        raise AdminError(BAD_REQUEST, "bundles must be an object")
    boundaries = wanted.get("boundaries")
    if boundaries:
        if boundaries != sorted(set(boundaries)) or [boundaries[0], boundaries[-1]] != ["0x00000000", "0xffffffff"]:
            raise AdminError(PRECONDITION_FAILED, "The bundles' boundaries must rise from 0x00000000 to 0xffffffff")
        return {"boundaries": boundaries, "numBundles": len(boundaries) - 1}
    count = _whole_number(wanted.get("numBundles") or default_count, "numBundles")
    if not 1 <= count <= BUNDLES_MAX:
        raise AdminError(METHOD_NOT_ALLOWED, f"The number of bundles must lie between 1 and {BUNDLES_MAX}")
    return bundles_document(count)
