"""Who may do what in a namespace, with its topics and its subscriptions.

Kept in the policies as Apache keeps it; whoever authorizes clients reads it there.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.namespaces.policies import ONE
from magnetar.broker.admin.web.documents import NO_NAMESPACE, change_policies, policies_of
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    NOT_FOUND,
    PRECONDITION_FAILED,
    TOO_LARGE,
    AdminError,
    json,
    namespace_of,
    no_content,
)
from magnetar.broker.admin.web.shapes import Shape, body_of, list_of, one_of, set_of, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document
from magnetar.broker.slices import TimeSlice
from magnetar.core.topic_name import InvalidTopicName, NamespaceName, TopicName

BASE: Final = "/admin/v2/namespaces"

ACTIONS: Final = set_of(one_of("produce", "consume", "sources", "sinks", "functions", "packages"))
GRANTS_MAX: Final = 5_000
"""Grants that one request may ask for: they are put into one document at once."""

GRANTS: Final = list_of(Shape({"topic": (text, ""), "role": (text, ""), "actions": (ACTIONS, [])}))


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves. Subscriptions come first: `subscription` is no role."""
    handlers = PermissionHandlers(context)
    return [
        web.get(ONE + "/permissions", handlers.roles),
        web.get(ONE + "/permissions/subscription", handlers.subscriptions),
        web.post(ONE + "/permissions/subscription/{subscription}", handlers.grant_subscription),
        web.post(ONE + "/permissions/{role}", handlers.grant),
        web.delete(ONE + "/permissions/{role}", handlers.revoke),
        web.delete(ONE + "/permissions/{subscription}/{role}", handlers.revoke_subscription),
        web.post(BASE + "/grantPermissionsOnTopics", handlers.grant_topics),
        web.post(BASE + "/revokePermissionsOnTopics", handlers.revoke_topics),
    ]


class PermissionHandlers(Handlers):
    """The handlers, over one broker."""

    async def roles(self, request: web.Request) -> web.Response:
        """The actions that each role may take in the namespace."""
        return json(auth_of(await policies_of(self._context, namespace_of(request)), "namespace_auth"))

    async def subscriptions(self, request: web.Request) -> web.Response:
        """The roles that may use each subscription which is reserved for some."""
        return json(auth_of(await policies_of(self._context, namespace_of(request)), "subscription_auth_roles"))

    async def grant(self, request: web.Request) -> web.Response:
        """Let a role take exactly these actions."""
        actions = await body_of(request, ACTIONS)
        if actions is None:
            raise AdminError(BAD_REQUEST, "Actions should not be null")
        missing = "Topic's namespace does not exist"
        return await self._set(request, "namespace_auth", request.match_info["role"], actions, missing)

    async def revoke(self, request: web.Request) -> web.Response:
        """Let a role take none."""
        return await self._set(request, "namespace_auth", request.match_info["role"], None)

    async def grant_subscription(self, request: web.Request) -> web.Response:
        """Reserve a subscription for exactly these roles."""
        roles = await body_of(request, set_of(text))
        if roles is None:
            raise AdminError(BAD_REQUEST, "Roles should not be null")
        return await self._set(request, "subscription_auth_roles", request.match_info["subscription"], roles)

    async def revoke_subscription(self, request: web.Request) -> web.Response:
        """Take a subscription away from one role; the last one leaves it open to all."""
        subscription, role = request.match_info["subscription"], request.match_info["role"]

        def change(document: Document) -> Document:
            roles = auth_of(document, "subscription_auth_roles").get(subscription)
            if roles is None:
                raise AdminError(NOT_FOUND, f"Nothing is granted on subscription {subscription}")
            left = [each for each in roles if each != role]
            return with_auth(document, "subscription_auth_roles", subscription, left or None)

        await change_policies(self._context, namespace_of(request), change)
        return no_content()

    async def grant_topics(self, request: web.Request) -> web.Response:
        """Let roles take actions on topics of one namespace, all at once."""
        grants, namespace = await self._grants(request)
        await self._require_topics(grants)

        def change(document: Document) -> Document:
            topics = {topic: dict(roles) for topic, roles in auth_of(document, "destination_auth").items()}
            for grant in grants:
                topics.setdefault(str(TopicName.parse(grant["topic"])), {})[grant["role"]] = grant["actions"]
            return with_auth_part(document, "destination_auth", topics)

        await change_policies(self._context, namespace, change)
        return no_content()

    async def revoke_topics(self, request: web.Request) -> web.Response:
        """Take everything on topics of one namespace away from roles, all at once."""
        grants, namespace = await self._grants(request)
        await self._require_topics(grants)

        def change(document: Document) -> Document:
            topics = {topic: dict(roles) for topic, roles in auth_of(document, "destination_auth").items()}
            for grant in grants:
                topics.get(str(TopicName.parse(grant["topic"])), {}).pop(grant["role"], None)
            left = {topic: roles for topic, roles in topics.items() if roles}
            return with_auth_part(document, "destination_auth", left)

        await change_policies(self._context, namespace, change)
        return no_content()

    async def _set(
        self, request: web.Request, part: str, name: str, value: object, missing: str = NO_NAMESPACE
    ) -> web.Response:
        namespace = namespace_of(request)
        await change_policies(
            self._context, namespace, lambda document: with_auth(document, part, name, value), missing
        )
        return no_content()

    async def _grants(self, request: web.Request) -> tuple[list[Document], NamespaceName]:
        grants: list[Document] = await body_of(request, GRANTS) or []
        if len(grants) > GRANTS_MAX:
            raise AdminError(TOO_LARGE, f"There are {len(grants)} grants; at most {GRANTS_MAX} are taken at once")
        try:
            namespaces = {TopicName.parse(grant["topic"]).namespace_name for grant in grants}
        except InvalidTopicName as problem:
            raise AdminError(PRECONDITION_FAILED, f"Topic name is not valid: {problem}") from None
        if len(namespaces) != 1:
            raise AdminError(BAD_REQUEST, "The namespace should be the same")
        return grants, namespaces.pop()

    async def _require_topics(self, grants: list[Document]) -> None:
        service = self._context.service
        turn = TimeSlice()
        for topic in dict.fromkeys(TopicName.parse(grant["topic"]) for grant in grants):
            if turn.over:
                await turn.pause()
            if await service.resources.partitions(topic) is None and not await service.exists(topic):
                raise AdminError(NOT_FOUND, f"Topic {topic} not found")


def auth_of(policies: Document, part: str) -> dict[str, Any]:
    """One of the three parts of `auth_policies`."""
    found: dict[str, Any] = (policies.get("auth_policies") or {}).get(part) or {}
    return found


def with_auth(policies: Document, part: str, name: str, value: object) -> Document:
    """The policies with one entry of a part replaced, or removed when the value is None."""
    entries = {**auth_of(policies, part), name: value}
    if value is None:
        del entries[name]
    return with_auth_part(policies, part, entries)


def with_auth_part(policies: Document, part: str, entries: dict[str, Any]) -> Document:
    """The policies with one part replaced."""
    empty: Document = {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}}
    return {**policies, "auth_policies": {**empty, **(policies.get("auth_policies") or {}), part: entries}}
