"""`/admin/v2/tenants`."""

from __future__ import annotations

from typing import Any

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

BASE = "/admin/v2/tenants"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    resources = context.service.resources
    documents = resources.documents

    async def tenant_info(request: web.Request) -> dict[str, Any]:
        info = await body_object(request)
        allowed = info.get("allowedClusters") or []
        if not allowed:
            raise AdminError(PRECONDITION_FAILED, "Clusters can not be empty")
        unknown = sorted(set(allowed) - set(await resources.clusters()))
        if unknown:
            raise AdminError(PRECONDITION_FAILED, f"Clusters do not exist: {', '.join(unknown)}")
        return {"adminRoles": info.get("adminRoles") or [], "allowedClusters": allowed}

    async def names(_: web.Request) -> web.Response:
        return json(sorted(await resources.tenants()))

    async def get(request: web.Request) -> web.Response:
        document = await documents.get(Resources.tenant_path(request.match_info["tenant"]))
        if document is None:
            raise AdminError(NOT_FOUND, "Tenant does not exist")
        return json(document)

    async def create(request: web.Request) -> web.Response:
        tenant = request.match_info["tenant"]
        if not is_valid_name_part(tenant):
            raise AdminError(PRECONDITION_FAILED, "Tenant name is not valid")
        try:
            await documents.create(Resources.tenant_path(tenant), await tenant_info(request))
        except VersionConflict:
            raise AdminError(CONFLICT, "Tenant already exists") from None
        return no_content()

    async def update(request: web.Request) -> web.Response:
        info = await tenant_info(request)
        try:
            await documents.update(
                Resources.tenant_path(request.match_info["tenant"]), lambda document: {**document, **info}
            )
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "Tenant does not exist") from None
        return no_content()

    async def delete(request: web.Request) -> web.Response:
        tenant = request.match_info["tenant"]
        if await resources.namespaces(tenant):
            raise AdminError(CONFLICT, "The tenant still has active namespaces")
        try:
            await documents.delete(Resources.tenant_path(tenant))
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "Tenant does not exist") from None
        return no_content()

    return [
        web.get(BASE, names),
        web.get(BASE + "/{tenant}", get),
        web.put(BASE + "/{tenant}", create),
        web.post(BASE + "/{tenant}", update),
        web.delete(BASE + "/{tenant}", delete),
    ]
