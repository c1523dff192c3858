"""What a role may do, by the documents of its tenant and its namespace (Pulsar `PulsarAuthorizationProvider`).

Super users may do everything, a tenant's admin roles everything in it. The others have what was granted to them on
the namespace, and on the topic or the partitioned topic that it is a part of; into topics that belong to brokers
nobody else writes, nor moves what holds their messages.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

from magnetar.broker.policies.system_topics import BROKERS_SUBSCRIPTIONS, belongs_to_brokers
from magnetar.core.topic_name import TopicName

Document: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[Document, str], bool]
"""Whether a namespace's policies allow something to a role."""


NOT_TO_SUBSCRIBE: Final = "Client is not authorized to subscribe"
"""What a client is told that may not consume."""


class Right(enum.Enum):
    """What those need who are no administrators."""

    ADMIN = enum.auto()
    """The right of administrators only: no grant is enough."""
    PRODUCE = enum.auto()
    CONSUME = enum.auto()
    LOOKUP = enum.auto()
    """The right to look a topic up: a grant to produce or to consume is enough."""


class SubscriptionNameRefused(Exception):
    """The namespace wants names of subscriptions to begin with the role."""


def is_tenant_admin(tenant: Document | None, role: str) -> bool:
    """Whether a role administers a tenant."""
    return tenant is not None and role in (tenant.get("adminRoles") or ())


def on_topic(right: Right, topic: TopicName, subscription: str, *, wildcards: bool) -> Rule:
    """The rule for a topic; an empty subscription is none. The rule raises `SubscriptionNameRefused`."""

    def consume(policies: Document, role: str) -> bool:
        if subscription.startswith(BROKERS_SUBSCRIPTIONS) and belongs_to_brokers(topic):
            # What compaction has not gone through would be deleted; what a broker is made to skip is not in force.
            return False
        if subscription and not may_use_subscription(policies, role, subscription, topic):
            return False
        return _granted(policies, role, "consume", topic, wildcards=wildcards)

    def produce(policies: Document, role: str) -> bool:
        return _granted(policies, role, "produce", topic, wildcards=wildcards)

    if right is Right.PRODUCE:
        # What stands there is in force for others, too: grants on the namespace are not meant for that.
        return nothing if belongs_to_brokers(topic) else produce
    if right is Right.CONSUME:
        return consume
    if right is Right.LOOKUP:
        return lambda policies, role: produce(policies, role) or consume(policies, role)
    return nothing


def on_namespace(right: Right, *, wildcards: bool) -> Rule:
    """The rule for a namespace as a whole: grants on single topics do not count."""
    actions = {
        Right.PRODUCE: ("produce",),
        Right.CONSUME: ("consume",),
        Right.LOOKUP: ("produce", "consume"),
        Right.ADMIN: (),
    }[right]

    def rule(policies: Document, role: str) -> bool:
        grants = _part(policies, "namespace_auth")
        return any(_among(grants, role, action, wildcards=wildcards) for action in actions)

    return rule


def nothing(policies: Document, role: str) -> bool:
    """The rule for what only administrators may do."""
    del policies, role
    return False


def may_use_subscription(policies: Document, role: str, subscription: str, topic: TopicName) -> bool:
    """Whether a subscription is open to a role: reserved for some, or named after its role where that is wanted.
    `SubscriptionNameRefused`."""
    roles = _part(policies, "subscription_auth_roles").get(subscription)
    if roles and role not in roles:
        return False
    if policies.get("subscription_auth_mode") == "Prefix" and not subscription.startswith(role):
        raise SubscriptionNameRefused(
            "Failed to create consumer - The subscription name needs to be prefixed by the authentication role, like "
            f"{role}-xxxx for topic: {topic}"
        )
    return True


def _granted(policies: Document, role: str, action: str, topic: TopicName, *, wildcards: bool) -> bool:
    if _among(_part(policies, "namespace_auth"), role, action, wildcards=wildcards):
        return True
    topics = _part(policies, "destination_auth")
    if not topics:
        return False
    if _among(topics.get(str(topic)) or {}, role, action, wildcards=wildcards):
        return True
    if topic.partition_index < 0:
        return False
    return _among(topics.get(str(topic.partitioned_name())) or {}, role, action, wildcards=False)


def _part(policies: Document, name: str) -> Document:
    found: Document = (policies.get("auth_policies") or {}).get(name) or {}
    return found


def _among(grants: Mapping[str, Collection[str]], role: str, action: str, *, wildcards: bool) -> bool:
    """Whether one of these grants, by role, is of an action to a role."""
    if action in (grants.get(role) or ()):
        return True
    return wildcards and any(_fits(pattern, role) and action in (actions or ()) for pattern, actions in grants.items())


def _fits(pattern: str, role: str) -> bool:
    if pattern.endswith("*") and role.startswith(pattern[:-1]):
        return True
    return pattern.startswith("*") and role.endswith(pattern[1:])
