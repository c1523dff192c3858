"""The clusters that a namespace is replicated to, and those that it may be in at all."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.namespaces.policies import ONE
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.documents import change_policies, policies_of, require_writable
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.owners import redirect, url_for
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    flag,
    json,
    namespace_of,
)
from magnetar.broker.admin.web.shapes import body_of, set_of, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document, Resources
from magnetar.core.topic_name import NamespaceName

LEAVING: Final = (
    "The list does not have this cluster, {}: it would not serve the topics of the namespace any more, and Apache's "
    "brokers would delete them with their messages. Name it as well, or use force=true: then the topics are not served "
    "here, and stay stored until the cluster is named again"
)


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = NamespaceClusterHandlers(context)
    return [
        web.get(ONE + "/replication", handlers.replication),
        web.post(ONE + "/replication", handlers.set_replication),
        web.get(ONE + "/allowedClusters", handlers.allowed),
        web.post(ONE + "/allowedClusters", handlers.set_allowed),
    ]


class NamespaceClusterHandlers(Handlers):
    """The handlers, over one broker."""

    async def replication(self, request: web.Request) -> web.Response:
        """Where its messages are replicated to."""
        return json((await policies_of(self._context, namespace_of(request))).get("replication_clusters") or [])

    async def allowed(self, request: web.Request) -> web.Response:
        """Where it may be."""
        return json((await policies_of(self._context, namespace_of(request))).get("allowed_clusters") or [])

    @takes("force", body="a list of clusters")
    async def set_replication(self, request: web.Request) -> web.Response:
        """Choose where its messages are replicated to; without this cluster only with `force`."""
        namespace = namespace_of(request)
        await require_writable(self._context)
        wanted: list[str] = sorted(await body_of(request, set_of(text)) or [])
        if not wanted:
            raise AdminError(PRECONDITION_FAILED, "ClusterIds should not be null or empty")
        if "global" in wanted:
            raise AdminError(PRECONDITION_FAILED, "Cannot specify global in the list of replication clusters")
        await require_known_clusters(self._context, wanted)
        policies = await policies_of(self._context, namespace)
        require_allowed_clusters(policies, wanted, str(namespace))
        await require_clusters_of_tenant(self._context, namespace.tenant, wanted)
        self._check_leaving(request, policies, {"replication_clusters": wanted})
        await change_policies(self._context, namespace, lambda document: {**document, "replication_clusters": wanted})
        return web.Response()

    @takes("force", body="a list of clusters")
    async def set_allowed(self, request: web.Request) -> web.Response:
        """Choose where it may be; without this cluster only with `force`."""
        namespace = namespace_of(request)
        await require_writable(self._context)
        wanted: list[str] | None = await body_of(request, set_of(text))
        if wanted is None:
            raise AdminError(BAD_REQUEST, "ClusterIds should not be null")
        await require_clusters_of_tenant(self._context, namespace.tenant, sorted(wanted))
        policies = await policies_of(self._context, namespace)
        missing = sorted(set(policies.get("replication_clusters") or []) - set(wanted))
        if missing:
            raise AdminError(
                BAD_REQUEST,
                f"Allowed clusters do not contain the replication cluster {', '.join(missing)}. "
                "Please remove the replication cluster if the cluster is not allowed for this namespace",
            )
        await require_known_clusters(self._context, sorted(wanted))
        changed = {"allowed_clusters": sorted(wanted)}
        self._check_leaving(request, policies, changed)
        await change_policies(self._context, namespace, lambda document: {**document, **changed})
        return web.Response()

    def _check_leaving(self, request: web.Request, policies: Document, changed: Document) -> None:
        """Raises 412 when this cluster would leave the namespace without `force`."""
        here = self._context.settings.cluster_name
        leaving = here in clusters_of(policies) and here not in clusters_of({**policies, **changed})
        if leaving and not flag(request, "force"):
            raise AdminError(PRECONDITION_FAILED, LEAVING.format(here))


async def require_known_clusters(context: BrokerContext, wanted: list[str]) -> None:
    """Raises 403 for clusters that do not exist, 409 when two of them are peers of each other."""
    known = await context.service.resources.clusters()
    for cluster in wanted:
        if cluster not in known:
            raise AdminError(FORBIDDEN, f"Invalid cluster id: {cluster}")
        data = await context.service.resources.documents.get(Resources.cluster_path(cluster)) or {}
        peers = sorted(set(data.get("peerClusterNames") or []) & set(wanted))
        if peers:
            raise AdminError(
                CONFLICT,
                f"{cluster}'s peer-clusters [{', '.join(peers)}] can't be part of replication-clusters "
                f"[{', '.join(wanted)}]",
            )


def require_allowed_clusters(policies: Document, wanted: list[str], namespace: str) -> None:
    """Raises 400 for clusters that a namespace may not be in."""
    allowed = policies.get("allowed_clusters") or wanted
    for cluster in wanted:
        if cluster not in allowed:
            raise AdminError(
                BAD_REQUEST,
                f"Cluster [{cluster}] is not in the list of allowed clusters list for namespace [{namespace}]",
            )


async def require_clusters_of_tenant(context: BrokerContext, tenant: str, wanted: list[str]) -> None:
    """Raises 403 for clusters that a tenant's namespaces may not be in, 404 without such a tenant."""
    info = await context.service.resources.documents.get(Resources.tenant_path(tenant))
    if info is None:
        raise AdminError(NOT_FOUND, "Tenant does not exist")
    for cluster in wanted:
        if cluster not in (info.get("allowedClusters") or []):
            raise AdminError(
                FORBIDDEN, f"Cluster [{cluster}] is not in the list of allowed clusters list for tenant [{tenant}]"
            )


async def require_local_cluster(context: BrokerContext, request: web.Request, namespace: NamespaceName) -> Document:
    """The policies of a namespace that this cluster serves.

    Redirects to a peer of this cluster that serves it; raises 404 when there is no such namespace or it is being
    deleted, 412 when it is in other clusters (Pulsar `checkLocalOrGetPeerReplicationCluster`)."""
    documents = context.service.resources.documents
    policies: Document | None = await documents.get(Resources.namespace_path(namespace))
    if policies is None:
        raise AdminError(NOT_FOUND, "Namespace not found")
    if policies.get("deleted"):
        raise AdminError(NOT_FOUND, "Namespace is deleted")
    here = context.settings.cluster_name
    clusters = clusters_of(policies)
    if here in clusters:
        return policies
    if not clusters:
        raise AdminError(
            PRECONDITION_FAILED,
            f"Namespace does not have any clusters configured : local_cluster={here} ns={namespace}",
        )
    data = await documents.get(Resources.cluster_path(here)) or {}
    for peer in data.get("peerClusterNames") or []:
        if peer in clusters:
            raise await redirect_to_cluster(context, request, peer)
    raise AdminError(
        PRECONDITION_FAILED,
        f"Namespace missing local cluster name in clusters list: local_cluster={here} ns={namespace} "
        f"clusters=[{', '.join(clusters)}]",
    )


async def redirect_to_cluster(context: BrokerContext, request: web.Request, cluster: str) -> web.HTTPTemporaryRedirect:
    """The redirect (307) of a request to another cluster's admin API. Raises 404 when nothing is known of it."""
    data = await context.service.resources.documents.get(Resources.cluster_path(cluster))
    if data is None:
        raise AdminError(NOT_FOUND, f"Cluster {cluster} does not exist")
    url = url_for(request, data.get("serviceUrl"), data.get("serviceUrlTls"))
    return redirect(request, url, authoritative=False)


def clusters_of(policies: Document) -> list[str]:
    """The clusters that serve a namespace."""
    return sorted({*(policies.get("replication_clusters") or []), *(policies.get("allowed_clusters") or [])})


def deleting_cluster(policies: Document) -> str | None:
    """The only cluster that a namespace is in, which may delete it (Pulsar `getClusterThatCanDeleteNamespace`)."""
    clusters: Any = policies.get("replication_clusters") or policies.get("allowed_clusters") or []
    return clusters[0] if len(clusters) == 1 else None
