"""Namespace policies that are one member of the policies document: read, set, removed. One row for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.web import policy_shapes as shapes
from magnetar.broker.admin.web.documents import NO_NAMESPACE, NO_POLICIES, change_policies, policies_of, with_value
from magnetar.broker.admin.web.policy_shapes import at_least_zero, long_at_least_zero
from magnetar.broker.admin.web.responses import json, namespace_of, no_content
from magnetar.broker.admin.web.shapes import Kind, body_of, boolean, required_body, set_of, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document

ONE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Where a policy is in the API and in the document, and what it may be."""

    path: str
    """Below the namespace."""
    key: str
    kind: Kind
    verb: str = "POST"
    """How it is set."""
    removable: bool = True
    """Whether DELETE is an operation of the API."""
    absent: Any = None
    """What GET answers when it is not set; None: an empty body."""
    absent_status: int = 200
    removed: Any = None
    """What DELETE leaves in the document; None: nothing."""
    body_required: bool = True
    """Whether setting without a body is refused; otherwise that unsets it."""
    per_cluster: bool = False
    """Whether the document has one value for each cluster: only this cluster's is read and set."""
    copies: Sequence[str] = ()
    """Members that are kept the same, as old brokers read them."""
    missing: str = NO_NAMESPACE
    """What is said when there is no such namespace and it is to be changed."""
    missing_read: str = NO_NAMESPACE
    """The same when it is to be read."""


def _count(path: str, key: str, *, absent: Any = None, missing: str = NO_NAMESPACE) -> Policy:
    kind = at_least_zero(f"{path} must be 0 or more")
    return Policy(path=path, key=key, kind=kind, absent=absent, missing=missing)


def _rate(path: str, key: str, kind: Kind, copies: Sequence[str] = (), missing_read: str = NO_NAMESPACE) -> Policy:
    return Policy(
        path=path,
        key=key,
        kind=kind,
        body_required=False,
        per_cluster=True,
        copies=copies,
        missing_read=missing_read,
    )


POLICIES: Final = (
    Policy(
        path="messageTTL",
        key="message_ttl_in_seconds",
        kind=at_least_zero("Invalid value for message TTL, message TTL must >= 0"),
    ),
    Policy(
        path="subscriptionExpirationTime",
        key="subscription_expiration_time_minutes",
        kind=at_least_zero("Invalid value for subscription expiration time"),
    ),
    Policy(path="deduplication", key="deduplicationEnabled", kind=boolean),
    Policy(
        path="deduplicationSnapshotInterval",
        key="deduplicationSnapshotIntervalSeconds",
        kind=at_least_zero("interval must be greater than or equal to 0"),
        removable=False,
        body_required=False,
        missing=NO_POLICIES,
    ),
    Policy(
        path="autoTopicCreation",
        key="autoTopicCreationOverride",
        kind=shapes.auto_topic_creation,
        body_required=False,
    ),
    Policy(
        path="autoSubscriptionCreation",
        key="autoSubscriptionCreationOverride",
        kind=shapes.AUTO_SUBSCRIPTION_CREATION,
        body_required=False,
    ),
    _rate("publishRate", "publishMaxMessageRate", shapes.PUBLISH_RATE),
    _rate("dispatchRate", "topicDispatchRate", shapes.DISPATCH_RATE, copies=("clusterDispatchRate",)),
    _rate("subscriptionDispatchRate", "subscriptionDispatchRate", shapes.DISPATCH_RATE),
    _rate("replicatorDispatchRate", "replicatorDispatchRate", shapes.DISPATCH_RATE, missing_read=NO_POLICIES),
    _rate("subscribeRate", "clusterSubscribeRate", shapes.SUBSCRIBE_RATE),
    Policy(path="persistence", key="persistence", kind=shapes.persistence),
    _count("maxProducersPerTopic", "max_producers_per_topic"),
    _count("maxConsumersPerTopic", "max_consumers_per_topic"),
    _count("maxConsumersPerSubscription", "max_consumers_per_subscription"),
    _count("maxSubscriptionsPerTopic", "max_subscriptions_per_topic", missing=NO_POLICIES),
    _count("maxTopicsPerNamespace", "max_topics_per_namespace", absent=0, missing=NO_POLICIES),
    _count("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer"),
    _count("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription"),
    Policy(
        path="compactionThreshold",
        key="compaction_threshold",
        kind=long_at_least_zero("compactionThreshold must be 0 or more"),
        verb="PUT",
    ),
    Policy(
        path="delayedDelivery",
        key="delayed_delivery_policies",
        kind=shapes.DELAYED_DELIVERY,
        body_required=False,
        missing=NO_POLICIES,
    ),
    Policy(
        path="inactiveTopicPolicies",
        key="inactive_topic_policies",
        kind=shapes.INACTIVE_TOPICS,
        body_required=False,
        missing=NO_POLICIES,
    ),
    Policy(path="encryptionRequired", key="encryption_required", kind=boolean, absent=False, removable=False),
    Policy(path="entryFilters", key="entryFilters", kind=shapes.entry_filters, body_required=False),
    Policy(
        path="isAllowAutoUpdateSchema",
        key="is_allow_auto_update_schema",
        kind=boolean,
        absent=True,
        removable=False,
    ),
    Policy(
        path="schemaValidationEnforced",
        key="schema_validation_enforced",
        kind=boolean,
        absent=False,
        removable=False,
    ),
    Policy(
        path="schemaCompatibilityStrategy",
        key="schema_compatibility_strategy",
        kind=shapes.STRATEGY,
        verb="PUT",
        absent="UNDEFINED",
        removable=False,
        body_required=False,
    ),
    Policy(
        path="schemaAutoUpdateCompatibilityStrategy",
        key="schema_auto_update_compatibility_strategy",
        kind=shapes.AUTO_UPDATE_STRATEGY,
        verb="PUT",
        absent_status=204,
        removable=False,
        body_required=False,
    ),
    Policy(
        path="subscriptionAuthMode",
        key="subscription_auth_mode",
        kind=shapes.SUBSCRIPTION_AUTH_MODE,
        absent="None",
        removable=False,
        body_required=False,
    ),
    Policy(
        path="subscriptionTypesEnabled",
        key="subscription_types_enabled",
        kind=shapes.SUBSCRIPTION_TYPES,
        absent=[],
        removed=[],
    ),
    Policy(
        path="allowedTopicPropertyKeysForMetrics",
        key="allowed_topic_property_keys_for_metrics",
        kind=set_of(text),
        body_required=False,
    ),
)
"""Values of members are checked in `policy_shapes`. Retention and the backlog quotas, which depend on each other, and
what is not one member each, have their own files."""


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    table: list[web.RouteDef] = []
    for policy in POLICIES:
        handlers = PolicyHandlers(context, policy)
        path = f"{ONE}/{policy.path}"
        table += [web.get(path, handlers.get), web.route(policy.verb, path, handlers.set)]
        if policy.removable:
            table.append(web.delete(path, handlers.remove))
    pause = PauseHandlers(context)
    path = f"{ONE}/dispatcherPauseOnAckStatePersistent"
    return [*table, web.get(path, pause.get), web.post(path, pause.set), web.delete(path, pause.remove)]


class PolicyHandlers:
    """Reads, sets and removes one policy."""

    def __init__(self, context: BrokerContext, policy: Policy) -> None:
        self._context = context
        self._policy = policy
        self._cluster = context.settings.cluster_name

    async def get(self, request: web.Request) -> web.Response:
        """What is set for the namespace."""
        policy = self._policy
        value = (await policies_of(self._context, namespace_of(request), policy.missing_read)).get(policy.key)
        if policy.per_cluster:
            value = (value or {}).get(self._cluster)
        if value is None:
            value = policy.absent
        return web.Response(status=policy.absent_status) if value is None else json(value)

    async def set(self, request: web.Request) -> web.Response:
        """Give it a value."""
        read = required_body if self._policy.body_required else body_of
        return await self._change(request, await read(request, self._policy.kind))

    async def remove(self, request: web.Request) -> web.Response:
        """Go back to the broker's own value."""
        return await self._change(request, self._policy.removed)

    async def _change(self, request: web.Request, value: Any) -> web.Response:
        namespace, missing = namespace_of(request), self._policy.missing
        await change_policies(self._context, namespace, lambda document: self._changed(document, value), missing)
        return no_content()

    def _changed(self, document: Document, value: Any) -> Document:
        policy = self._policy
        for key in (policy.key, *policy.copies):
            if policy.per_cluster:
                document = {**document, key: with_value(self._cluster, value)(document.get(key) or {})}
            else:
                document = with_value(key, value)(document)
        return document


class PauseHandlers:
    """`dispatcherPauseOnAckStatePersistent`: switched by the verb alone."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def get(self, request: web.Request) -> web.Response:
        """Whether it is on."""
        policies = await policies_of(self._context, namespace_of(request), NO_POLICIES)
        return json(bool(policies.get("dispatcherPauseOnAckStatePersistentEnabled")))

    async def set(self, request: web.Request) -> web.Response:
        """Switch it on."""
        return await self._switch(request, on=True)

    async def remove(self, request: web.Request) -> web.Response:
        """Switch it off."""
        return await self._switch(request, on=False)

    async def _switch(self, request: web.Request, *, on: bool) -> web.Response:
        change = with_value("dispatcherPauseOnAckStatePersistentEnabled", on)
        await change_policies(self._context, namespace_of(request), change)
        return no_content()
