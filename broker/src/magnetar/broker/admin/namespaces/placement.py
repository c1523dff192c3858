"""Where a namespace's bundles and ledgers should and should not be: what only this cluster keeps about it."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from magnetar.broker.admin.namespaces.clusters import require_local_cluster
from magnetar.broker.admin.namespaces.policies import ONE
from magnetar.broker.admin.namespaces.properties import plain_value
from magnetar.broker.admin.web.documents import (
    change_local_policies,
    local_policies_of,
    policies_of,
    require_cluster,
    require_writable,
    with_value,
)
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    json,
    namespace_of,
    no_content,
    node_name,
    tenant_asked,
)
from magnetar.broker.admin.web.shapes import Shape, body_of, boolean, required_body, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.migration.migration import tell_if_unchecked
from magnetar.core.topic_name import NamespaceName

BOOKIE_GROUPS: Final = Shape(
    {"bookkeeperAffinityGroupPrimary": (text, None), "bookkeeperAffinityGroupSecondary": (text, None)}
)


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = PlacementHandlers(context)
    return [
        web.get(ONE + "/antiAffinity", handlers.anti_affinity),
        web.post(ONE + "/antiAffinity", handlers.set_anti_affinity),
        web.delete(ONE + "/antiAffinity", handlers.remove_anti_affinity),
        web.get("/admin/v2/namespaces/{cluster}/antiAffinity/{group}", handlers.namespaces_of_group),
        # Where the tools ask, of all of the API's first version.
        web.get("/admin/namespaces/{cluster}/antiAffinity/{group}", handlers.namespaces_of_group),
        web.get(ONE + "/persistence/bookieAffinity", handlers.bookies),
        web.post(ONE + "/persistence/bookieAffinity", handlers.set_bookies),
        web.delete(ONE + "/persistence/bookieAffinity", handlers.remove_bookies),
        web.post(ONE + "/migration", handlers.migrate),
    ]


class PlacementHandlers(Handlers):
    """The handlers, over one broker."""

    async def anti_affinity(self, request: web.Request) -> web.Response:
        """The group of namespaces that should not share a broker with this one."""
        group = ((await local_policies_of(self._context, namespace_of(request))) or {}).get(
            "namespaceAntiAffinityGroup"
        )
        return no_content() if group is None else plain_value(group)

    async def set_anti_affinity(self, request: web.Request) -> web.Response:
        """Put it into a group; the body is the group's name as it is."""
        namespace = namespace_of(request)
        group = (await request.text()).strip()
        if not group:
            raise AdminError(PRECONDITION_FAILED, "antiAffinityGroup can't be empty")
        await require_writable(self._context)
        await policies_of(self._context, namespace)
        await change_local_policies(self._context, namespace, with_value("namespaceAntiAffinityGroup", group))
        return no_content()

    async def remove_anti_affinity(self, request: web.Request) -> web.Response:
        """Take it out of its group."""
        namespace = namespace_of(request)
        await require_writable(self._context)
        await policies_of(self._context, namespace)
        await change_local_policies(self._context, namespace, with_value("namespaceAntiAffinityGroup", None))
        return no_content()

    async def namespaces_of_group(self, request: web.Request) -> web.Response:
        """The namespaces of a tenant that are in a group."""
        tenant = tenant_asked(request)
        if not tenant:
            raise AdminError(BAD_REQUEST, "Tenant should not be null")
        await require_cluster(self._context, node_name(request, "cluster"))
        wanted = request.match_info["group"].lower()
        found = []
        for name in sorted(await self._context.service.resources.namespaces(tenant)):
            local = await local_policies_of(self._context, NamespaceName.parse(name)) or {}
            if (local.get("namespaceAntiAffinityGroup") or "").lower() == wanted:
                found.append(name)
        return json(found)

    async def bookies(self, request: web.Request) -> web.Response:
        """The groups of bookies that its ledgers are put on."""
        namespace = namespace_of(request)
        await require_local_cluster(self._context, request, namespace)
        local = await local_policies_of(self._context, namespace)
        if local is None:
            raise AdminError(NOT_FOUND, "Namespace local-policies does not exist")
        groups = local.get("bookieAffinityGroup")
        return no_content() if groups is None else json(groups)

    async def set_bookies(self, request: web.Request) -> web.Response:
        """Choose the groups of bookies for its new ledgers. Without a body none is chosen any more."""
        return await self._set_bookies(request, await body_of(request, BOOKIE_GROUPS))

    async def remove_bookies(self, request: web.Request) -> web.Response:
        """Let its ledgers be on any bookie."""
        return await self._set_bookies(request, None)

    async def _set_bookies(self, request: web.Request, groups: dict[str, str] | None) -> web.Response:
        namespace = namespace_of(request)
        await require_local_cluster(self._context, request, namespace)
        await change_local_policies(self._context, namespace, with_value("bookieAffinityGroup", groups))
        await self._context.service.policies_changed(namespace)
        return no_content()

    async def migrate(self, request: web.Request) -> web.Response:
        """Mark it as moved to another cluster, or not."""
        namespace = namespace_of(request)
        migrated = await required_body(request, boolean)
        await policies_of(self._context, namespace)
        await change_local_policies(self._context, namespace, with_value("migrated", migrated))
        if migrated:
            tell_if_unchecked(self._service.settings.policies, f"the namespace {namespace}")
        return no_content()
