"""Answers what somebody may do, from the metadata of tenants and namespaces.

The documents are kept in memory until the store tells of a change, so an answer costs some dictionary look-ups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.broker.auth.principal import Principal
from magnetar.broker.auth.rules import (
    Document,
    Right,
    Rule,
    SubscriptionNameRefused,
    is_tenant_admin,
    nothing,
    on_namespace,
    on_topic,
)
from magnetar.broker.resources import Resources, decode_document
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.node_cache import NodeCache
from magnetar.metadata.store import NodeChange, Notification
from magnetar.wire.pulsar.errors import PulsarError, ServerError

_PREFIX: Final = "/admin/policies/"


class TenantNotFound(Exception):
    """There is no such tenant."""


class Authorizer:
    """The rights at one broker. Errors of the metadata store are raised as they are."""

    def __init__(self, resources: Resources, super_user_roles: tuple[str, ...], *, wildcards: bool) -> None:
        self._resources = resources
        self._super_user_roles = frozenset(super_user_roles)
        self._wildcards = wildcards
        self._tenants: NodeCache[Document] = NodeCache(resources.configuration_store, decode_document)

    def close(self) -> None:
        """Forget what is kept, and listen to the store no more."""
        self._tenants.close()

    def watch(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call with the tenant, or tenant and namespace, whose rights may have changed. Returns what ends that."""

        def notified(notification: Notification) -> None:
            if notification.path.startswith(_PREFIX) and notification.change is not NodeChange.CHILDREN_CHANGED:
                changed(notification.path.removeprefix(_PREFIX))

        return self._resources.configuration_store.watch(notified)

    def use_super_users(self, roles: tuple[str, ...]) -> None:
        """Others may do everything from now on."""
        self._super_user_roles = frozenset(roles)

    def is_super_user(self, principal: Principal) -> bool:
        """Whether all its roles may do everything."""
        return all(role in self._super_user_roles for role in principal.roles)

    async def is_tenant_admin(self, principal: Principal, tenant: str) -> bool:
        """Whether all its roles administer a tenant, or are super users. `TenantNotFound`, but not to super users."""
        if self.is_super_user(principal):
            return True
        document = await self._tenants.get(Resources.tenant_path(tenant))
        if document is None:
            raise TenantNotFound(tenant)
        return self._decide(principal, document, None, nothing)

    async def allows_on_namespace(self, principal: Principal, right: Right, namespace: NamespaceName) -> bool:
        """Whether it has a right on all of a namespace. `TenantNotFound` as `is_tenant_admin`."""
        if await self.is_tenant_admin(principal, namespace.tenant):
            return True
        tenant = await self._tenants.get(Resources.tenant_path(namespace.tenant))
        policies = await self._resources.policies(namespace)
        return self._decide(principal, tenant, policies, on_namespace(right, wildcards=self._wildcards))

    async def allows_on_topic(
        self, principal: Principal, right: Right, topic: TopicName, subscription: str = ""
    ) -> bool:
        """Whether it has a right on a topic; `subscription` is the one it wants to use. `PulsarError` when that has
        to be named otherwise. `TenantNotFound` as `is_tenant_admin`."""
        if await self.is_tenant_admin(principal, topic.namespace_name.tenant):
            return True
        tenant = await self._tenants.get(Resources.tenant_path(topic.namespace_name.tenant))
        policies = await self._resources.policies(topic.namespace_name)
        return self._on_topic(
            principal, tenant, policies, on_topic(right, topic, subscription, wildcards=self._wildcards)
        )

    def allows_on_topic_now(self, principal: Principal, right: Right, topic: TopicName) -> bool | None:
        """Whether the principal has a right on a topic, from memory alone; None when what is kept does not say it."""
        if self.is_super_user(principal):
            return True
        namespace = topic.namespace_name
        tenant = self._tenants.peek(Resources.tenant_path(namespace.tenant))
        policies = self._resources.peek_policies(namespace)
        if tenant is None or policies is None:
            return None
        return self._on_topic(principal, tenant, policies, on_topic(right, topic, "", wildcards=self._wildcards))

    def _on_topic(self, principal: Principal, tenant: Document | None, policies: Document | None, rule: Rule) -> bool:
        try:
            return self._decide(principal, tenant, policies, rule)
        except SubscriptionNameRefused as refusal:
            raise PulsarError(ServerError.AUTHORIZATION_ERROR, str(refusal)) from None

    def _decide(self, principal: Principal, tenant: Document | None, policies: Document | None, rule: Rule) -> bool:
        return all(
            role in self._super_user_roles
            or is_tenant_admin(tenant, role)
            or (policies is not None and rule(policies, role))
            for role in principal.roles
        )
