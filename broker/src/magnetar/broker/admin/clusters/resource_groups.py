"""Resource groups: rates that all namespaces of a group share."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.namespaces.policies import ONE as NAMESPACE
from magnetar.broker.admin.namespaces.properties import plain_value
from magnetar.broker.admin.web.documents import NO_POLICIES, change_policies, policies_of, require_writable, with_value
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    json,
    namespace_of,
    no_content,
    node_name,
)
from magnetar.broker.admin.web.shapes import BadValue, Kind, Shape, integer, long, required_body
from magnetar.broker.context import BrokerContext
from magnetar.broker.resource_groups.groups import ROOT
from magnetar.core.topic_name import NamespaceName
from magnetar.metadata.store import NodeNotFound, VersionConflict

BASE: Final = "/admin/v2/resourcegroups"
ONE: Final = BASE + "/{group}"

NO_LIMITS: Final = {
    "publishRateInMsgs": -1,
    "publishRateInBytes": -1,
    "dispatchRateInMsgs": -1,
    "dispatchRateInBytes": -1,
}


def rate(kind: Kind) -> Kind:
    """A rate per second; 0 and -1 are no limit. Apache's broker takes any negative number for none."""

    def read(value: Any) -> int:
        given: int = kind(value)
        if given < -1:
            raise BadValue(f"{given} is no rate: -1 is no limit")
        return given

    return read


RESOURCE_GROUP: Final = Shape({name: (rate(long if name.endswith("Bytes") else integer), None) for name in NO_LIMITS})


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = ResourceGroupHandlers(context)
    return [
        web.get(BASE, handlers.names),
        web.get(ONE, handlers.get),
        web.put(ONE, handlers.set),
        web.delete(ONE, handlers.remove),
        web.get(NAMESPACE + "/resourcegroup", handlers.of_namespace),
        web.post(NAMESPACE + "/resourcegroup/{group}", handlers.join),
        web.delete(NAMESPACE + "/resourcegroup", handlers.leave),
    ]


class ResourceGroupHandlers(Handlers):
    """The handlers, over one broker."""

    async def names(self, _: web.Request) -> web.Response:
        """Names of all."""
        return json(sorted(await self._documents.children(ROOT)))

    async def get(self, request: web.Request) -> web.Response:
        """The limits of one; -1 is none."""
        found = await self._documents.get(f"{ROOT}/{node_name(request, 'group')}")
        if found is None:
            raise AdminError(NOT_FOUND, "ResourceGroup does not exist")
        return json({**NO_LIMITS, **found})

    async def set(self, request: web.Request) -> web.Response:
        """Make one, or change the limits that the body names."""
        path = f"{ROOT}/{node_name(request, 'group')}"
        limits = await required_body(request, RESOURCE_GROUP)
        await require_writable(self._context)
        try:
            await self._documents.create(path, {**NO_LIMITS, **limits})
        except VersionConflict:
            await self._documents.update(path, lambda document: {**document, **limits})
        return no_content()

    async def remove(self, request: web.Request) -> web.Response:
        """Remove one that no namespace is in."""
        group = node_name(request, "group")
        await require_writable(self._context)
        for tenant in await self._resources.tenants():
            for name in await self._resources.namespaces(tenant):
                policies = await self._documents.get(f"/admin/policies/{name}") or {}
                if policies.get("resource_group_name") == group:
                    raise AdminError(PRECONDITION_FAILED, "ResourceGroup is in use")
        try:
            await self._documents.delete(f"{ROOT}/{group}")
        except NodeNotFound:
            raise AdminError(NOT_FOUND, "ResourceGroup does not exist") from None
        return no_content()

    async def of_namespace(self, request: web.Request) -> web.Response:
        """The group that a namespace is in."""
        return plain_value((await policies_of(self._context, namespace_of(request))).get("resource_group_name"))

    async def join(self, request: web.Request) -> web.Response:
        """Put a namespace into a group."""
        group = node_name(request, "group")
        if not await self._documents.exists(f"{ROOT}/{group}"):
            raise AdminError(PRECONDITION_FAILED, "ResourceGroup does not exist")
        await self._note(namespace_of(request), group)
        return no_content()

    async def leave(self, request: web.Request) -> web.Response:
        """Take a namespace out of its group."""
        await self._note(namespace_of(request), None)
        return no_content()

    async def _note(self, namespace: NamespaceName, group: str | None) -> None:
        await change_policies(self._context, namespace, with_value("resource_group_name", group), NO_POLICIES)
