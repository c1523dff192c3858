"""Lets requests through whose sender may do what they ask for (Pulsar `AuthenticationFilter`, `PulsarWebResource`).

Importing this loads aiohttp; `application` does so only where authentication is enabled.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import hdrs, web
from magnetar.auth.credentials import AuthenticationFailed
from magnetar.broker.admin.web.access_table import Need, Scope, need_of
from magnetar.broker.admin.web.responses import (
    FORBIDDEN,
    NOT_FOUND,
    AdminError,
    body_json,
    namespace_of,
    tenant_asked,
    topic_of,
)
from magnetar.broker.auth.access import AccessControl
from magnetar.broker.auth.authorizer import Authorizer, TenantNotFound
from magnetar.broker.auth.principal import Principal, principal_of
from magnetar.broker.auth.rules import Right
from magnetar.broker.policies.system_topics import belongs_to_brokers
from magnetar.core.topic_name import InvalidTopicName, TopicName, is_valid_name_part, java_url_decode
from magnetar.wire.pulsar.errors import PulsarError

logger: Final = logging.getLogger(__name__)

METHOD_HEADER: Final = "X-Pulsar-Auth-Method-Name"
ORIGINAL_HEADER: Final = "X-Original-Principal"
UNAUTHORIZED: Final = 401
METRICS: Final = "/metrics"
UNLISTED: Final = Need(Scope.SUPER_USER)

OF_SUBSCRIPTIONS: Final = ("EXPIRE_MESSAGES", "RESET_CURSOR", "SKIP", "UNSUBSCRIBE")
"""Operations that move or remove subscriptions: of one, or, where the path names none, of all."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def access_middleware(access: AccessControl, broker_id: str) -> Any:
    """The middleware; behind the one that turns errors into answers."""
    guard = RequestGuard(access, broker_id)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        await guard.check(request)
        return await handler(request)

    return middleware


class RequestGuard:
    """Checks requests of one broker."""

    def __init__(self, access: AccessControl, broker_id: str) -> None:
        self._access = access
        self._broker_id = broker_id

    async def check(self, request: web.Request) -> None:
        """Raises 401 for who does not say who he is; 401 or 403, as Apache does, for who may not do this."""
        resource = request.match_info.route.resource
        pattern = None if resource is None else resource.canonical
        need = None if pattern is None else need_of(request.method, pattern) or UNLISTED
        if need is not None and need.scope is Scope.PUBLIC and not self._counts_as_open(request):
            return
        principal = await self._principal(request)
        authorizer = self._access.authorizer
        if authorizer is None or need is None:
            return  # Where there is no route, the answer is that there is none.
        try:
            if not await self._allowed(authorizer, principal, need, request):
                raise self._refusal(authorizer, principal, need, request)
        except TenantNotFound:
            if need.scope is Scope.TENANTS:
                raise self._refusal(authorizer, principal, need, request) from None
            raise AdminError(NOT_FOUND, "Tenant does not exist") from None
        except PulsarError as refusal:
            raise AdminError(UNAUTHORIZED, refusal.message) from None

    async def check_right(self, request: web.Request, right: Right, topic: TopicName) -> None:
        """Raises 401 for who lacks a right on a topic that the request names beside the one in its path."""
        principal = await self._principal(request)
        authorizer = self._access.authorizer
        if authorizer is None or authorizer.is_super_user(principal):
            return
        try:
            allowed = await authorizer.allows_on_topic(principal, right, topic)
        except (TenantNotFound, PulsarError):
            allowed = False
        if not allowed:
            text = f"for originalPrincipal [{principal.original or 'null'}] and clientAppId [{principal.role}]"
            raise AdminError(UNAUTHORIZED, f"Unauthorized to {right.name.lower()} {text} on topic [{topic}]")

    def _counts_as_open(self, request: web.Request) -> bool:
        return self._access.settings.metrics_authenticated and request.path.startswith(METRICS)

    async def _principal(self, request: web.Request) -> Principal:
        certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
        try:
            identity = await self._access.authenticator.authenticate_http(
                request.headers.get(METHOD_HEADER), request.headers.get(hdrs.AUTHORIZATION, ""), certificate
            )
        except AuthenticationFailed as failure:
            logger.warning("%s failed to authenticate for %s: %s", request.remote, request.path, failure)
            raise AdminError(UNAUTHORIZED, "Authentication required") from None
        original = request.headers.get(ORIGINAL_HEADER, "")
        if self._access.authorizer is None:
            return Principal(identity.role, original)
        principal = principal_of(identity.role, original, self._access.settings.proxy_roles, itself_allowed=True)
        if principal is None:
            raise AdminError(
                UNAUTHORIZED,
                "Invalid combination of Original principal cannot be empty if the request is via proxy.",
            )
        return principal

    async def _allowed(self, authorizer: Authorizer, principal: Principal, need: Need, request: web.Request) -> bool:
        scope, path = need.scope, request.match_info
        if scope in (Scope.OPEN, Scope.PUBLIC) or authorizer.is_super_user(principal):
            return True
        if scope in (Scope.TENANT, Scope.TENANT_RESOURCES, Scope.TENANTS) and "tenant" in path:
            if not is_valid_name_part(path["tenant"]):
                raise TenantNotFound(path["tenant"])  # A slash in it would lead to another's document.
            return await authorizer.is_tenant_admin(principal, path["tenant"])
        if scope is Scope.TENANT_OF_QUERY and (tenant := tenant_asked(request)):
            return await authorizer.is_tenant_admin(principal, tenant)
        if scope is Scope.TENANT_OF_BODY:
            tenants = await _tenants_of_body(request)
            checks = [await authorizer.is_tenant_admin(principal, tenant) for tenant in tenants]
            return bool(checks) and all(checks)
        if scope in (Scope.NAMESPACE, Scope.NAMESPACE_POLICY):
            return await authorizer.allows_on_namespace(principal, need.right, namespace_of(request))
        if scope in (Scope.TOPIC, Scope.TOPIC_POLICY):
            subscription, topic = java_url_decode(path.get("subscription", "")), topic_of(request)
            right = need.right
            if not subscription and need.operation in OF_SUBSCRIPTIONS and belongs_to_brokers(topic):
                # All of them, the brokers' own among them.
                right = Right.ADMIN
            return await authorizer.allows_on_topic(principal, right, topic, subscription)
        return False

    def _refusal(self, authorizer: Authorizer, principal: Principal, need: Need, request: web.Request) -> AdminError:
        """The answer, in Apache's words."""
        if need.scope is Scope.SUPER_USER:
            return AdminError(UNAUTHORIZED, _super_user_refusal(authorizer, principal))
        if need.scope not in _REFUSALS:
            return AdminError(UNAUTHORIZED, _resources_refusal(principal))
        status, words = _REFUSALS[need.scope]
        path = request.match_info
        values = {
            "who": f"for originalPrincipal [{principal.original or 'null'}] and clientAppId [{principal.role}]",
            "about": f"about operation [{need.operation}]",
            "operation": f"for operation [{need.operation}]",
            "policy": f"on policy [{need.policy}]",
            "broker": f"on broker [{self._broker_id}]",
            "cluster": f"on cluster [{path.get('cluster')}]",
            "tenant": f"on tenant [{path.get('tenant')}]",
            "namespace": f"on namespace [{namespace_of(request)}]" if "namespace" in path else "",
            "topic": f"on topic [{topic_of(request)}]" if "topic" in path else "",
        }
        return AdminError(status, "Unauthorized to " + words.format(**values))


_REFUSALS: Final = {
    Scope.CLUSTER: (UNAUTHORIZED, "validateBothSuperuserAndClusterOperation {who} {about} {cluster}"),
    Scope.CLUSTER_POLICY: (UNAUTHORIZED, "validateBothSuperuserAndClusterPolicyOperation {who} {about} {cluster}"),
    Scope.BROKER: (UNAUTHORIZED, "validateBothSuperuserAndBrokerOperation {who} {about} {broker}"),
    Scope.TENANTS: (UNAUTHORIZED, "validateBothTenantOperationAndSuperUser {who} {about} "),
    Scope.TENANT: (UNAUTHORIZED, "validateTenantOperation {who} {about} {tenant}"),
    Scope.NAMESPACE: (FORBIDDEN, "validateNamespaceOperation {operation} {namespace}"),
    Scope.NAMESPACE_POLICY: (FORBIDDEN, "validateNamespacePolicyOperation {operation} {namespace} {policy}"),
    Scope.TOPIC: (UNAUTHORIZED, "validateTopicOperation {operation} {topic}"),
    Scope.TOPIC_POLICY: (FORBIDDEN, "validateTopicPolicyOperation {operation} {topic} {policy}"),
}
"""The status of a refusal by what was asked for, and what follows "Unauthorized to" in its text."""


def _super_user_refusal(authorizer: Authorizer, principal: Principal) -> str:
    if not principal.through_proxy:
        return "This operation requires super-user access"
    if not authorizer.is_super_user(Principal(principal.role)):
        return f"Proxy not authorized for super-user operation (proxy:{principal.role})"
    return f"Proxy not authorized for super-user operation (proxy:{principal.role},original:{principal.original})"


def _resources_refusal(principal: Principal) -> str:
    if not principal.through_proxy:
        return "Don't have permission to administrate resources on this tenant"
    return f"Proxy not authorized to access resource (proxy:{principal.role},original:{principal.original})"


async def _tenants_of_body(request: web.Request) -> list[str]:
    """The tenants of the topics that a list of grants names; none when it cannot be read, as its handler says then."""
    document = await body_json(request)
    try:
        return sorted({TopicName.parse(grant["topic"]).namespace_name.tenant for grant in document})
    except (InvalidTopicName, KeyError, TypeError, AttributeError):
        return []
