"""`…/{topic}/permissions`: who may do what on single topics, kept in the namespace's policies.

A topic has its namespace's permissions and its own ones together (Pulsar `PersistentTopicsBase`)."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from magnetar.broker.admin.namespaces.permissions import ACTIONS
from magnetar.broker.admin.topics.access import HandlersOfTopics
from magnetar.broker.admin.topics.topics import ONE
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.documents import change_policies
from magnetar.broker.admin.web.responses import NOT_FOUND, AdminError, json, no_content, topic_of
from magnetar.broker.admin.web.shapes import body_of
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document
from magnetar.core.topic_name import TopicName, java_url_decode


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = TopicPermissionHandlers(context)
    return [
        web.get(ONE + "/permissions", handlers.get),
        web.post(ONE + "/permissions/{role}", handlers.grant),
        web.delete(ONE + "/permissions/{role}", handlers.revoke),
    ]


class TopicPermissionHandlers(HandlersOfTopics):
    """The handlers, over one broker."""

    async def get(self, request: web.Request) -> web.Response:
        """What each role may do on the topic."""
        name = await self._existing(request)
        return json(permissions_on(await self._resources.policies(name.namespace_name) or {}, str(name)))

    @takes(body="the actions to allow, such as produce and consume")
    async def grant(self, request: web.Request) -> web.Response:
        """Allow a role to do something on this topic."""
        actions = await body_of(request, ACTIONS)
        name = await self._existing(request)
        role = java_url_decode(request.match_info["role"])
        if actions:
            await self._change(name, lambda roles: {**roles, role: sorted(actions)})
        return no_content()

    async def revoke(self, request: web.Request) -> web.Response:
        """Take back what a role was allowed on this topic."""
        name = await self._existing(request)
        role = java_url_decode(request.match_info["role"])
        await self._change(name, lambda roles: {each: roles[each] for each in roles if each != role})
        return no_content()

    async def _existing(self, request: web.Request) -> TopicName:
        name = topic_of(request)
        policies = await self._resources.policies(name.namespace_name)
        partitioned = await self._resources.partitions(name)
        if policies is None or (not partitioned and not await self._access.exists(name)):
            raise AdminError(NOT_FOUND, f"Topic {name} not found")
        return name

    async def _change(self, name: TopicName, change: Any) -> None:
        def with_roles(policies: Document) -> Document:
            permissions = policies.get("auth_policies") or {}
            topics = dict(permissions.get("destination_auth") or {})
            roles = change(topics.pop(str(name), {}))
            if roles:
                topics[str(name)] = roles
            return {**policies, "auth_policies": {**permissions, "destination_auth": topics}}

        await change_policies(self._context, name.namespace_name, with_roles)


def permissions_on(policies: Document, topic: str) -> dict[str, list[str]]:
    """A namespace's permissions and a topic's own, by role."""
    permissions = policies.get("auth_policies") or {}
    merged: dict[str, set[str]] = {}
    for roles in (permissions.get("namespace_auth") or {}, (permissions.get("destination_auth") or {}).get(topic, {})):
        for role, actions in roles.items():
            merged.setdefault(role, set()).update(actions)
    return {role: sorted(actions) for role, actions in merged.items()}
