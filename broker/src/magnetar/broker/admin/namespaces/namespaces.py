"""`/admin/v2/namespaces`: namespaces as wholes. What they are told is in the `namespace_*` modules beside this one."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.namespaces.clusters import clusters_of, deleting_cluster, require_clusters_of_tenant
from magnetar.broker.admin.namespaces.deletion import NamespaceDeletion
from magnetar.broker.admin.namespaces.offload import OFFLOAD_POLICIES, described
from magnetar.broker.admin.namespaces.policies import ONE
from magnetar.broker.admin.namespaces.topics import non_persistent_topics
from magnetar.broker.admin.web import policy_shapes as shapes
from magnetar.broker.admin.web.documents import policies_of, require_writable
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    CONFLICT,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    flag,
    json,
    namespace_of,
    no_content,
)
from magnetar.broker.admin.web.shapes import (
    BadValue,
    Kind,
    Shape,
    body_of,
    boolean,
    check_known,
    integer,
    list_of,
    long,
    map_of,
    set_of,
    text,
)
from magnetar.broker.context import BrokerContext
from magnetar.broker.policies.catalogue import POLICIES
from magnetar.broker.policies.policy import PolicyKind
from magnetar.broker.policies.system_topics import is_system_topic
from magnetar.broker.resources import Document, Resources, bundles_document, new_policies
from magnetar.broker.settings.broker import BUNDLES_MAX
from magnetar.core.topic_name import FULL_RANGE, NamespaceName, is_valid_name_part
from magnetar.metadata.store import VersionConflict

BASE: Final = "/admin/v2/namespaces"

MODES: Final = {"PERSISTENT": ("persistent",), "NON_PERSISTENT": ("non-persistent",)}
BOTH: Final = ("persistent", "non-persistent")

BUNDLES: Final = Shape({"boundaries": (list_of(text), []), "numBundles": (integer, 0)})

POLICY_MEMBERS: Final[dict[str, Kind]] = {
    **{
        member: shapes.member_of(policy.kind)
        for policy in POLICIES
        if policy.kind is not PolicyKind.OTHER
        for member in policy.namespace_keys
    },
    "allowed_clusters": set_of(text),
    "auth_policies": map_of(map_of(lambda value: value)),
    "backlog_quota_map": map_of(shapes.backlog_quota),
    "bundles": BUNDLES,
    "deleted": boolean,
    "latency_stats_sample_rate": map_of(integer),
    "message_ttl_in_seconds": shapes.at_least_zero("Invalid value for message TTL"),
    "migrated": boolean,
    "offload_deletion_lag_ms": long,
    "offload_policies": OFFLOAD_POLICIES,
    "offload_threshold": long,
    "offload_threshold_in_seconds": long,
    "properties": map_of(text),
    "replication_clusters": set_of(text),
    "resource_group_name": text,
    "retention_policies": shapes.retention,
}
"""The members of Pulsar's `Policies`, which a new namespace may bring along; others are dropped."""


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = NamespaceHandlers(context)
    return [
        web.get(BASE + "/{tenant}", handlers.names),
        web.get(ONE, handlers.get),
        web.put(ONE, handlers.create),
        web.delete(ONE, handlers.delete),
        web.get(ONE + "/topics", handlers.topics),
        web.get(ONE + "/bundles", handlers.bundles),
    ]


class NamespaceHandlers(Handlers):
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self._deletion = NamespaceDeletion(context)

    async def names(self, request: web.Request) -> web.Response:
        """The namespaces of a tenant."""
        tenant = request.match_info["tenant"]
        if not is_valid_name_part(tenant):
            raise AdminError(PRECONDITION_FAILED, "Tenant name is not valid")
        if not await self._resources.documents.exists(Resources.tenant_path(tenant)):
            raise AdminError(NOT_FOUND, "Tenant not found")
        return json(sorted(await self._resources.namespaces(tenant)))

    async def get(self, request: web.Request) -> web.Response:
        """All policies, with the bundles in force and the cluster that may delete the namespace."""
        namespace = namespace_of(request)
        policies = await policies_of(self._context, namespace)
        bundles = await self._context.bundles.of_namespace(namespace)
        set_members = {name: value for name, value in policies.items() if value is not None}
        unset = {
            **new_policies("", 1),
            "replication_clusters": [],
            "is_allow_auto_update_schema": self._context.service.settings.policies.schema_auto_update_allowed,
        }
        answer = {**unset, **set_members, "bundles": described_bundles(bundles.boundaries)}
        if policies.get("offload_policies") is not None:
            answer["offload_policies"] = described(policies["offload_policies"])
        cluster = deleting_cluster(policies)
        if cluster is not None:
            answer["clusterThatCanDeleteNamespace"] = cluster
        return json(answer)

    async def create(self, request: web.Request) -> web.Response:
        """Make a namespace."""
        namespace = namespace_of(request)
        wanted = await body_of(request, policies_object)
        if not await self._resources.documents.exists(Resources.tenant_path(namespace.tenant)):
            raise AdminError(NOT_FOUND, "Tenant does not exist")
        await require_writable(self._context)
        policies = policies_for(self._context, namespace, wanted or {})
        await require_clusters_of_tenant(self._context, namespace.tenant, clusters_of(policies))
        path = Resources.namespace_path(namespace)
        if not self._resources.documents.begun(path):
            await self._require_room(namespace)
        if not await self._resources.documents.exists(path):
            # A deletion that was cut short may have left them: they would count more than what is asked for now.
            await self._service.store.delete_recursively(Resources.local_policies_path(namespace))
        try:
            await self._resources.documents.create(path, policies)
        except VersionConflict:
            raise AdminError(CONFLICT, "Namespace already exists") from None
        return no_content()

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a namespace; with `force` what is in it as well."""
        await self._deletion.run(request, namespace_of(request), force=flag(request, "force"))
        return no_content()

    async def topics(self, request: web.Request) -> web.Response:
        """Names of the topics, partitions one by one."""
        namespace = namespace_of(request)
        await policies_of(self._context, namespace)
        mode = request.query.get("mode") or "PERSISTENT"
        if mode not in (*MODES, "ALL"):
            raise AdminError(NOT_FOUND, f"There is no mode {mode}")
        domains = MODES.get(mode, BOTH)
        names: set[str] = set()
        if "persistent" in domains:
            names.update(await self._resources.persistent_topics(namespace))
        if "non-persistent" in domains:
            names.update(await non_persistent_topics(self._context, namespace))
        with_system = flag(request, "includeSystemTopic")
        return json(sorted(name for name in names if with_system or not is_system_topic(name)))

    async def bundles(self, request: web.Request) -> web.Response:
        """The ranges of the hash space."""
        namespace = namespace_of(request)
        await policies_of(self._context, namespace)
        return json(described_bundles((await self._context.bundles.of_namespace(namespace)).boundaries))

    async def _require_room(self, namespace: NamespaceName) -> None:
        limit = self._context.service.settings.admin.namespaces_per_tenant_max
        if 0 < limit < len(await self._resources.namespaces(namespace.tenant)):
            raise AdminError(
                PRECONDITION_FAILED, f"Exceed the maximum number of namespace in tenant :{namespace.tenant}"
            )


def described_bundles(boundaries: Any) -> Document:
    """The bundles of a namespace as the admin API shows them: `boundaries` and `numBundles`."""
    return {"boundaries": list(boundaries), "numBundles": len(boundaries) - 1}


def policies_object(value: Any) -> Document:
    """The body of a request that makes a namespace: policies, or the number of bundles as old clients send it."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"bundles": {"numBundles": value}}
    if not isinstance(value, dict):
        raise BadValue("The body must be the namespace's policies")
    check_known(value, POLICY_MEMBERS)
    return {name: kind(value[name]) for name, kind in POLICY_MEMBERS.items() if value.get(name) is not None}


def policies_for(context: BrokerContext, namespace: NamespaceName, wanted: Document) -> Document:
    """The policies of a new namespace from what the request says. Raises 400."""
    settings = context.service.settings
    policies = {**new_policies(settings.cluster_name, settings.default_namespace_bundles), "replication_clusters": []}
    policies.update(wanted)
    replicated, allowed = policies["replication_clusters"], policies["allowed_clusters"]
    if allowed and not set(replicated) <= set(allowed):
        raise AdminError(
            BAD_REQUEST,
            f"[{namespace}] All replication clusters should be included in allowed clusters. "
            f"Repl clusters: [{', '.join(replicated)}], allowed clusters: [{', '.join(allowed)}]",
        )
    if settings.cluster_name not in (*replicated, *allowed):
        # A namespace that is made here is served here (Pulsar `setCurrentClusterAllowedIfNoClusterIsAllowed`).
        member = "allowed_clusters" if replicated else "replication_clusters"
        policies[member] = sorted([*policies[member], settings.cluster_name])
    policies["bundles"] = bundles_for(wanted.get("bundles") or {}, settings.default_namespace_bundles)
    return policies


def bundles_for(wanted: Document, default_count: int) -> Document:
    """The ranges of the hash space that a request asks for. Raises 400."""
    count, boundaries = wanted.get("numBundles", 0), wanted.get("boundaries")
    if count <= 0:
        return bundles_document(default_count)
    if max(count, len(boundaries or ()) - 1) > BUNDLES_MAX:
        raise AdminError(BAD_REQUEST, f"The number of bundles must lie between 1 and {BUNDLES_MAX}")
    if not boundaries:
        return bundles_document(count)
    try:
        values = sorted({int(boundary, 0) for boundary in boundaries})
    except ValueError:
        raise AdminError(BAD_REQUEST, "The bundles' boundaries must be numbers") from None
    if len(values) < 2 or values[0] != 0 or values[-1] != FULL_RANGE:
        raise AdminError(
            BAD_REQUEST,
            f"Input bundles do not cover the whole hash range. first:0x{values[0]:08x}, last:0x{values[-1]:08x}",
        )
    return described_bundles([f"0x{value:08x}" for value in values])
