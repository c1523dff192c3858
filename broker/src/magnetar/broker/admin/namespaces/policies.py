"""Namespace policies that are one member of the policies document, by the catalogue: read, set, removed.

Retention and the backlog quotas, which depend on each other, and what is not one member each, have their own files.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.web.described import under
from magnetar.broker.admin.web.documents import NO_NAMESPACE, NO_POLICIES, change_policies, policies_of, with_value
from magnetar.broker.admin.web.policy_shapes import reader_of
from magnetar.broker.admin.web.responses import json, namespace_of, no_content
from magnetar.broker.admin.web.shapes import body_of, required_body
from magnetar.broker.context import BrokerContext
from magnetar.broker.policies.catalogue import POLICIES, SETTING_PATHS
from magnetar.broker.policies.policy import RATES, OfNamespace, Policy, PolicyKind
from magnetar.broker.resources import Document

ONE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    table: list[web.RouteDef] = []
    for policy in POLICIES:
        level = policy.namespace
        if level is None:
            continue
        handlers = NamespacePolicyHandlers(context, policy, level)
        path = f"{ONE}/{level.path}"
        if level.serves("get"):
            table.append(web.get(path, under(f"Tell {policy.says}.", handlers.get)))
        if level.serves("set"):
            table.append(web.route(level.verb, path, under(f"Set {policy.says}.", handlers.set)))
        if level.serves("remove"):
            table.append(web.delete(path, handlers.remove))
    return table


class NamespacePolicyHandlers:
    """Reads, sets and removes one policy of namespaces."""

    def __init__(self, context: BrokerContext, policy: Policy, level: OfNamespace) -> None:
        self._context = context
        self._policy = policy
        self._level = level
        self._per_cluster = policy.kind in RATES
        self._cluster = context.settings.cluster_name

    async def get(self, request: web.Request) -> web.Response:
        """What is set for the namespace."""
        level = self._level
        missing = NO_POLICIES if level.no_policies == "read" else NO_NAMESPACE
        value = (await policies_of(self._context, namespace_of(request), missing)).get(level.key)
        if self._per_cluster:
            value = (value or {}).get(self._cluster)
        if value is None:
            value = self._brokers() if level.unset_is_brokers else level.unset
        return web.Response(status=level.unset_status) if value is None else json(value)

    def _brokers(self) -> Any:
        """What the broker says, as it is set now."""
        (name,) = self._policy.settings
        return attrgetter(SETTING_PATHS[name])(self._context.service.settings)

    async def set(self, request: web.Request) -> web.Response:
        """Give it a value."""
        if self._policy.kind is PolicyKind.SWITCH:
            return await self._change(request, True)
        read = required_body if self._level.body_required else body_of
        return await self._change(request, await read(request, reader_of(self._policy.kind, self._level)))

    async def remove(self, request: web.Request) -> web.Response:
        """Go back to the broker's own value."""
        return await self._change(request, self._level.removed)

    async def _change(self, request: web.Request, value: Any) -> web.Response:
        namespace = namespace_of(request)
        missing = NO_POLICIES if self._level.no_policies == "change" else NO_NAMESPACE
        await change_policies(self._context, namespace, lambda document: self._changed(document, value), missing)
        return no_content()

    def _changed(self, document: Document, value: Any) -> Document:
        for key in self._level.keys:
            if self._per_cluster:
                document = {**document, key: with_value(self._cluster, value)(document.get(key) or {})}
            else:
                document = with_value(key, value)(document)
        return document
