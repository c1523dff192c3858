"""`/admin/v2/clusters`."""

from __future__ import annotations

from aiohttp import web
from magnetar.broker.admin.responses import CONFLICT, NOT_FOUND, AdminError, body_object, json, no_content
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Resources
from magnetar.metadata.store import NodeNotFound, VersionConflict

BASE = "/admin/v2/clusters"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    resources = context.service.resources
    documents = resources.documents

    async def names(_: web.Request) -> web.Response:
        return json(sorted(name for name in await resources.clusters() if name != "global"))

    async def get(request: web.Request) -> web.Response:
        document = await documents.get(Resources.cluster_path(request.match_info["cluster"]))
        if document is None:
            raise AdminError(NOT_FOUND, "Cluster does not exist")
        return json(document)

    async def create(request: web.Request) -> web.Response:
        try:
            await documents.create(Resources.cluster_path(request.match_info["cluster"]), await body_object(request))
        except VersionConflict:
            raise AdminError(CONFLICT, "Cluster already exists") from None
        return no_content()

    async def update(request: web.Request) -> web.Response:
        changes = await body_object(request)
        try:
            await documents.update(
                Resources.cluster_path(request.match_info["cluster"]), lambda document: {**document, **changes}
            )
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "Cluster does not exist") from None
        return no_content()

    async def delete(request: web.Request) -> web.Response:
        cluster = request.match_info["cluster"]
        for tenant in await resources.tenants():
            for namespace in await documents.children(Resources.tenant_path(tenant)):
                policies = await documents.get(f"{Resources.tenant_path(tenant)}/{namespace}") or {}
                if cluster in policies.get("replication_clusters", []):
                    raise AdminError(412, "Cluster not empty")
        try:
            await documents.delete(Resources.cluster_path(cluster))
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "Cluster does not exist") from None
        return no_content()

    return [
        web.get(BASE, names),
        web.get(BASE + "/{cluster}", get),
        web.put(BASE + "/{cluster}", create),
        web.post(BASE + "/{cluster}", update),
        web.delete(BASE + "/{cluster}", delete),
    ]
