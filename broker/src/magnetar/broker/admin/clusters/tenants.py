"""The admin API's tenants: `/admin/v2/tenants`."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from magnetar.broker.admin.web.documents import require_writable
from magnetar.broker.admin.web.fan_out import call_all
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import (
    CONFLICT,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    flag,
    json,
    no_content,
    node_name,
)
from magnetar.broker.admin.web.shapes import Shape, body_of, set_of, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document, Resources
from magnetar.core.topic_name import is_valid_name_part
from magnetar.metadata.store import NodeHasChildren, NodeNotFound, VersionConflict

BASE: Final = "/admin/v2/tenants"
ONE: Final = BASE + "/{tenant}"

HAS_NAMESPACES: Final = "The tenant still has active namespaces"

TENANT_INFO: Final = Shape({"adminRoles": (set_of(text), None), "allowedClusters": (set_of(text), None)})


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


class TenantHandlers(Handlers):
    """The handlers, over one broker."""

    async def names(self, _: web.Request) -> web.Response:
        """Names of the tenants."""
        return json(sorted(await self._resources.tenants()))

    async def get(self, request: web.Request) -> web.Response:
        """A tenant's roles and clusters."""
        document = await self._documents.get(Resources.tenant_path(node_name(request, "tenant")))
        if document is None:
            raise AdminError(NOT_FOUND, "Tenant does not exist")
        return json(document)

    async def create(self, request: web.Request) -> web.Response:
        """Make a tenant."""
        tenant = node_name(request, "tenant")
        info = await body_of(request, TENANT_INFO)
        if not is_valid_name_part(tenant):
            raise AdminError(PRECONDITION_FAILED, "Tenant name is not valid")
        await require_writable(self._context)
        await self._check(info)
        path = Resources.tenant_path(tenant)
        # One that was begun here and had no answer may be there, and count already.
        if not self._documents.begun(path):
            if await self._documents.exists(path):
                raise AdminError(CONFLICT, "Tenant already exist")
            limit = self._context.service.settings.admin.tenants_max
            if 0 < limit <= len(await self._resources.tenants()):
                raise AdminError(PRECONDITION_FAILED, "Exceed the maximum number of tenants")
        try:
            await self._documents.create(path, info)
        except VersionConflict:
            raise AdminError(CONFLICT, "Tenant already exist") from None
        return no_content()

    async def update(self, request: web.Request) -> web.Response:
        """Replace a tenant's roles and clusters."""
        tenant = node_name(request, "tenant")
        info = await body_of(request, TENANT_INFO)
        await require_writable(self._context)
        await self._check(info)
        try:
            await self._documents.update(Resources.tenant_path(tenant), lambda _: dict(info))
        except NodeNotFound:
            raise AdminError(NOT_FOUND, f"Tenant {tenant} not found") from None
        return no_content()

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a tenant that has no namespaces; with `force` with those that it has."""
        tenant = node_name(request, "tenant")
        force = flag(request, "force")
        await require_writable(self._context)
        if force and not self._context.service.settings.admin.force_delete_tenant_allowed:
            raise AdminError(METHOD_NOT_ALLOWED, "Broker doesn't allow forced deletion of tenants")
        if not await self._documents.exists(Resources.tenant_path(tenant)):
            raise AdminError(NOT_FOUND, "Tenant doesn't exist")
        namespaces = await self._resources.namespaces(tenant)
        if namespaces and not force:
            raise AdminError(CONFLICT, HAS_NAMESPACES)
        paths = [f"/admin/v2/namespaces/{name}" for name in namespaces]
        await call_all(self._context, "DELETE", paths, {"force": "true"}, tolerated=(NOT_FOUND,))
        try:
            await self._documents.delete(Resources.tenant_path(tenant))
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "Tenant doesn't exist") from None
        except NodeHasChildren:
            raise AdminError(CONFLICT, HAS_NAMESPACES) from None
        for path in (f"/admin/partitioned-topics/{tenant}", f"/admin/local-policies/{tenant}"):
            store = self._resources.configuration_store if "partitioned" in path else self._context.service.store
            await store.delete_recursively(path)
        return no_content()

    async def _check(self, info: Document | None) -> None:
        """Raises 412 when the clusters are missing or unknown, or roles begin or end with blanks."""
        if info is None:
            raise AdminError(PRECONDITION_FAILED, "TenantInfo is null")
        if any(role != role.strip() for role in info.get("adminRoles") or []):
            raise AdminError(PRECONDITION_FAILED, "AdminRoles contains whitespace in the beginning or end.")
        allowed = info.get("allowedClusters")
        if allowed is None:
            raise AdminError(PRECONDITION_FAILED, "Clusters cannot be null")
        if not allowed or not all(cluster.strip() for cluster in allowed):
            raise AdminError(PRECONDITION_FAILED, "Clusters cannot be empty or blank")
        if set(allowed) - set(await self._resources.clusters()) - {"global"}:
            raise AdminError(PRECONDITION_FAILED, "Clusters do not exist")
