"""`/admin/v2/tenants`."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from magnetar.broker.admin.responses import (
    BAD_REQUEST,
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
ONE = BASE + "/{tenant}"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = TenantHandlers(context)
    return [
        web.get(BASE, handlers.names),
        web.get(ONE, handlers.get),
        web.put(ONE, handlers.create),
        web.post(ONE, handlers.update),
        web.delete(ONE, handlers.delete),
    ]


class TenantHandlers:
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._resources = context.service.resources
        self._documents = self._resources.documents

    async def names(self, _: web.Request) -> web.Response:
        """Names of the tenants."""
        return json(sorted(await self._resources.tenants()))

    async def get(self, request: web.Request) -> web.Response:
        """A tenant's roles and clusters."""
        document = await self._documents.get(Resources.tenant_path(request.match_info["tenant"]))
        if document is None:
            raise AdminError(NOT_FOUND, "Tenant does not exist")
        return json(document)

    async def create(self, request: web.Request) -> web.Response:
        """Make a tenant."""
        tenant = request.match_info["tenant"]
        if not is_valid_name_part(tenant):
            raise AdminError(PRECONDITION_FAILED, "Tenant name is not valid")
        try:
            await self._documents.create(Resources.tenant_path(tenant), await self._info(request))
        except VersionConflict:
            raise AdminError(CONFLICT, "Tenant already exist") from None
        return no_content()

    async def update(self, request: web.Request) -> web.Response:
        """Replace a tenant's roles and clusters."""
        info = await self._info(request)
        try:
            await self._documents.update(
                Resources.tenant_path(request.match_info["tenant"]), lambda document: {**document, **info}
            )
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "Tenant does not exist") from None
        return no_content()

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a tenant that has no namespaces."""
        tenant = request.match_info["tenant"]
        if await self._resources.namespaces(tenant):
            raise AdminError(CONFLICT, "The tenant still has active namespaces")
        try:
            await self._documents.delete(Resources.tenant_path(tenant))
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "Tenant does not exist") from None
        return no_content()

    async def _info(self, request: web.Request) -> dict[str, Any]:
        """The tenant that the body describes. Raises 412 when its clusters are missing or unknown."""
        info = await body_object(request)
        roles, allowed = info.get("adminRoles") or [], info.get("allowedClusters") or []
        if not is_list_of_names(roles) or not is_list_of_names(allowed):
            raise AdminError(BAD_REQUEST, "adminRoles and allowedClusters must be lists of names")
        if not allowed:
            raise AdminError(PRECONDITION_FAILED, "Clusters cannot be empty or blank")
        unknown = sorted(set(allowed) - set(await self._resources.clusters()))
        if unknown:
            raise AdminError(PRECONDITION_FAILED, f"Clusters do not exist: {', '.join(unknown)}")
        return {"adminRoles": roles, "allowedClusters": allowed}


def is_list_of_names(value: object) -> bool:
    """Whether it is a list of strings."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
