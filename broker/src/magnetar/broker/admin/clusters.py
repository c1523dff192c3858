"""`/admin/v2/clusters`."""

from __future__ import annotations

from aiohttp import web
from magnetar.broker.admin.responses import (
    CONFLICT,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    body_object,
    json,
    no_content,
)
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Resources
from magnetar.core.topic_name import is_valid_name_part
from magnetar.metadata.store import NodeNotFound, VersionConflict

BASE = "/admin/v2/clusters"
ONE = BASE + "/{cluster}"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = ClusterHandlers(context)
    return [
        web.get(BASE, handlers.names),
        web.get(ONE, handlers.get),
        web.put(ONE, handlers.create),
        web.post(ONE, handlers.update),
        web.delete(ONE, handlers.delete),
    ]


class ClusterHandlers:
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._resources = context.service.resources
        self._documents = self._resources.documents

    async def names(self, _: web.Request) -> web.Response:
        """Names of the clusters."""
        return json(sorted(name for name in await self._resources.clusters() if name != "global"))

    async def get(self, request: web.Request) -> web.Response:
        """What is known of a cluster."""
        document = await self._documents.get(Resources.cluster_path(request.match_info["cluster"]))
        if document is None:
            raise AdminError(NOT_FOUND, "Cluster does not exist")
        return json(document)

    async def create(self, request: web.Request) -> web.Response:
        """Make a cluster known."""
        cluster = request.match_info["cluster"]
        if not is_valid_name_part(cluster):
            raise AdminError(PRECONDITION_FAILED, "Cluster name is not valid")
        try:
            await self._documents.create(Resources.cluster_path(cluster), await body_object(request))
        except VersionConflict:
            raise AdminError(CONFLICT, "Cluster already exists") from None
        return no_content()

    async def update(self, request: web.Request) -> web.Response:
        """Change what is known of a cluster; what the body does not name stays."""
        changes = await body_object(request)
        try:
            await self._documents.update(
                Resources.cluster_path(request.match_info["cluster"]), lambda document: {**document, **changes}
            )
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "Cluster does not exist") from None
        return no_content()

    async def delete(self, request: web.Request) -> web.Response:
        """Forget a cluster that no namespace is replicated to."""
        cluster = request.match_info["cluster"]
        for tenant in await self._resources.tenants():
            for namespace in await self._documents.children(Resources.tenant_path(tenant)):
                policies = await self._documents.get(f"{Resources.tenant_path(tenant)}/{namespace}") or {}
                if cluster in policies.get("replication_clusters", []):
                    raise AdminError(PRECONDITION_FAILED, "Cluster not empty")
        try:
            await self._documents.delete(Resources.cluster_path(cluster))
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "Cluster does not exist") from None
        return no_content()
