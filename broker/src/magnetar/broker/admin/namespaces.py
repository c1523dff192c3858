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
    AdminError,
    body_json,
    flag,
    json,
    namespace_of,
    no_content,
)
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


def _retention(value: Any) -> Document:
    if not isinstance(value, dict) or not {"retentionTimeInMinutes", "retentionSizeInMB"} <= set(value):
        raise AdminError(BAD_REQUEST, "Retention needs retentionTimeInMinutes and retentionSizeInMB")
    minutes, megabytes = int(value["retentionTimeInMinutes"]), int(value["retentionSizeInMB"])
    if (minutes == 0) != (megabytes == 0) and 0 in (minutes, megabytes) and max(minutes, megabytes) > 0:
        raise AdminError(
            412,
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits "
            "has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit.",
        )
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def _strategy(value: Any) -> str:
    if value not in Strategy.__members__:
        raise AdminError(BAD_REQUEST, f"{value!r} is no schema compatibility strategy")
    return str(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise AdminError(BAD_REQUEST, "The body must be true or false")
    return value


def _object(value: Any) -> Document:
    if not isinstance(value, dict):
        raise AdminError(BAD_REQUEST, "The body must be a JSON object")
    return value


POLICIES = (
    Policy("retention", "retention_policies", _retention),
    Policy("schemaCompatibilityStrategy", "schema_compatibility_strategy", _strategy, absent="UNDEFINED", verb="PUT"),
    Policy("isAllowAutoUpdateSchema", "is_allow_auto_update_schema", _boolean, absent=True),
    Policy("schemaValidationEnforced", "schema_validation_enforced", _boolean, absent=False),
    Policy("autoTopicCreation", "autoTopicCreationOverride", _object),
    Policy("autoSubscriptionCreation", "autoSubscriptionCreationOverride", _object),
)


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    service = context.service
    resources = service.resources
    documents = resources.documents

    async def names(request: web.Request) -> web.Response:
        tenant = request.match_info["tenant"]
        if not await documents.exists(Resources.tenant_path(tenant)):
            raise AdminError(NOT_FOUND, "Tenant does not exist")
        return json(sorted(await resources.namespaces(tenant)))

    async def get(request: web.Request) -> web.Response:
        return json(await policies_of(context, namespace_of(request)))

    async def create(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        if not await documents.exists(Resources.tenant_path(namespace.tenant)):
            raise AdminError(NOT_FOUND, "Tenant does not exist")
        wanted = await body_json(request)
        policies = policies_for(context, wanted)
        try:
            await documents.create(Resources.namespace_path(namespace), policies)
        except VersionConflict:
            raise AdminError(CONFLICT, "Namespace already exists") from None
        return no_content()

    async def delete(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        await policies_of(context, namespace)
        topics = [name for name in await service.list_topics(namespace, "all") if not is_system_topic(name)]
        partitioned = await resources.partitioned_topics(namespace, "persistent")
        if not flag(request, "force") and (topics or partitioned):
            raise AdminError(CONFLICT, "Cannot delete non empty namespace")
        for name in partitioned:
            await service.delete_partitioned(TopicName.parse(name), force=True)
        for name in await service.list_topics(namespace, "all"):
            await service.delete(TopicName.parse(name), force=True)
        await documents.delete(Resources.namespace_path(namespace))
        await service.store.delete_recursively(Resources.local_policies_path(namespace))
        return no_content()

    async def topics(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        await policies_of(context, namespace)
        domain = MODES.get(request.query.get("mode", "PERSISTENT").upper(), "persistent")
        names = await service.list_topics(namespace, domain)
        return json([name for name in names if not is_system_topic(name) or flag(request, "includeSystemTopic")])

    async def bundles(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        await policies_of(context, namespace)
        boundaries = await resources.bundle_boundaries(namespace)
        return json({"boundaries": boundaries, "numBundles": len(boundaries) - 1})

    async def unload(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        await policies_of(context, namespace)
        for name in list(service.topics):
            if TopicName.parse(name).namespace_name == namespace:
                await service.unload(TopicName.parse(name))
        return no_content()

    table = [
        web.get(BASE + "/{tenant}", names),
        web.get(ONE, get),
        web.put(ONE, create),
        web.delete(ONE, delete),
        web.get(ONE + "/topics", topics),
        web.get(ONE + "/bundles", bundles),
        web.put(ONE + "/unload", unload),
    ]
    for policy in POLICIES:
        table += policy_routes(context, policy)
    return table


def policy_routes(context: BrokerContext, policy: Policy) -> list[web.RouteDef]:
    """Read, set and remove one policy."""
    documents = context.service.resources.documents
    path = f"{ONE}/{policy.path}"

    async def read(request: web.Request) -> web.Response:
        policies = await policies_of(context, namespace_of(request))
        value = policies.get(policy.key)
        return json(policy.absent if value is None else value)

    async def change(request: web.Request, value: Any) -> web.Response:
        namespace = namespace_of(request)
        try:
            await documents.update(
                Resources.namespace_path(namespace), lambda document: {**document, policy.key: value}
            )
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "Namespace does not exist") from None
        await context.service.policies_changed(namespace)
        return no_content()

    async def write(request: web.Request) -> web.Response:
        return await change(request, policy.check(await body_json(request)))

    async def remove(request: web.Request) -> web.Response:
        return await change(request, None)

    return [web.get(path, read), web.route(policy.verb, path, write), web.delete(path, remove)]


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
    bundles = wanted.get("bundles") or {}
    count = int(bundles.get("numBundles") or settings.default_namespace_bundles)
    if not 1 <= count <= BUNDLES_MAX:
        raise AdminError(METHOD_NOT_ALLOWED, f"The number of bundles must lie between 1 and {BUNDLES_MAX}")
    if bundles.get("boundaries"):
        policies["bundles"] = bundles
    else:
        policies["bundles"] = bundles_document(count)
    return policies
