"""Policies of single topics: set, read (alone, or with `applied` what is in force), removed.

They belong to a partitioned topic as a whole; its partitions have no own ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.topics.access import TopicAccess
from magnetar.broker.admin.topics.subscription_positions import subscription_name
from magnetar.broker.admin.topics.topics import ONE
from magnetar.broker.admin.web.described import takes, under
from magnetar.broker.admin.web.policy_shapes import DISPATCH_RATE, reader_of
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    PRECONDITION_FAILED,
    AdminError,
    body_json,
    flag,
    json,
    no_content,
    topic_of,
)
from magnetar.broker.admin.web.shapes import read_body
from magnetar.broker.context import BrokerContext
from magnetar.broker.policies.api import TopicPolicies
from magnetar.broker.policies.catalogue import POLICIES
from magnetar.broker.policies.model import EffectivePolicies, InactiveTopics, Rate
from magnetar.broker.policies.policy import OfTopic, Policy, PolicyKind
from magnetar.broker.resources import Document
from magnetar.core.topic_name import TopicName
from magnetar.managed.settings import ManagedLedgerSettings

OF_SUBSCRIPTION: Final = ONE + "/{subscription}/dispatchRate"

GET_QUERY: Final = ("applied", "isGlobal", "authoritative")
SET_QUERY: Final = ("isGlobal", "authoritative")


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    access = PolicyAccess(context)
    served: list[web.RouteDef] = []
    for policy in POLICIES:
        level = policy.topic
        if level is None:
            continue
        handlers = TopicPolicyHandlers(access, policy, level)
        path, query = f"{ONE}/{level.path}", GET_QUERY if level.applied else SET_QUERY
        if level.serves("get"):
            served.append(web.get(path, under(f"Tell {policy.says}.", handlers.get, *query)))
        if level.serves("set"):
            body = None if policy.kind is PolicyKind.SWITCH else "the policy; null removes it"
            served.append(web.post(path, under(f"Set {policy.says}.", handlers.set, *SET_QUERY, body=body)))
        if level.serves("remove"):
            served.append(web.delete(path, handlers.remove))
    of_subscription = SubscriptionRateHandlers(access)
    return [
        *served,
        web.get(OF_SUBSCRIPTION, of_subscription.get),
        web.post(OF_SUBSCRIPTION, of_subscription.set),
        web.delete(OF_SUBSCRIPTION, of_subscription.remove),
    ]


class PolicyAccess:
    """What all policies share: the topic that is asked about, what is set, and what is in force."""

    def __init__(self, context: BrokerContext) -> None:
        self.context = context
        self._topics = TopicAccess(context)
        self._store = context.topic_policies

    async def topic(self, request: web.Request) -> TopicName:
        """The topic, which exists. Raises 404, 412 for a partition, and 307 to the owner."""
        name = topic_of(request)
        if name.partition_index >= 0:
            raise AdminError(PRECONDITION_FAILED, "Not allowed to set/get topic policy for a partition")
        await self._topics.check_topic_or_partitioned(request, name)
        return name

    async def own(self, request: web.Request, name: TopicName) -> TopicPolicies:
        """What is set for the topic itself, at the scope that the request names."""
        return await self._store.get(name, is_global=flag(request, "isGlobal")) or {}

    async def put(self, request: web.Request, name: TopicName, fields: Mapping[str, Any]) -> None:
        """Set fields, or remove those that are None."""
        await self.update(request, name, lambda policies: with_fields(policies, fields))

    async def update(self, request: web.Request, name: TopicName, change: Any) -> None:
        """Change what is set for the topic itself."""
        await self._store.update(name, change, is_global=flag(request, "isGlobal"))

    async def namespace(self, name: TopicName) -> Document:
        """The document of the topic's namespace."""
        return await self._topics.policies(name.namespace_name)

    async def above(self, name: TopicName) -> EffectivePolicies:
        """What is in force where the topic says nothing itself."""
        policies = self.context.service.policies
        return await policies.namespace(name.namespace_name) or policies.defaults


def with_fields(policies: TopicPolicies, fields: Mapping[str, Any]) -> TopicPolicies:
    """Policies with fields set, or removed (None)."""
    return {key: value for key, value in {**policies, **fields}.items() if value is not None}


class TopicPolicyHandlers:
    """Reads, sets and removes one policy of topics, as its row in the catalogue says."""

    def __init__(self, access: PolicyAccess, policy: Policy, level: OfTopic) -> None:
        self._access = access
        self._policy = policy
        self._level = level

    async def get(self, request: web.Request) -> web.Response:
        """Tell the policy."""
        level = self._level
        name = await self._access.topic(request)
        value = (await self._access.own(request, name)).get(level.key)
        if value is None and level.applied and flag(request, "applied"):
            value = await self._in_force(name)
        if value is None:
            value = level.unset
        return web.Response(status=level.unset_status) if value is None else json(value)

    async def set(self, request: web.Request) -> web.Response:
        """Set the policy."""
        value = True if self._policy.kind is PolicyKind.SWITCH else await self._body(request)
        name = await self._access.topic(request)
        await self._access.put(request, name, {self._level.key: value})
        return no_content()

    @takes(*SET_QUERY)
    async def remove(self, request: web.Request) -> web.Response:
        """Remove the policy."""
        name = await self._access.topic(request)
        await self._access.put(request, name, dict.fromkeys(self._level.keys))
        return no_content()

    async def _body(self, request: web.Request) -> Any:
        body = await body_json(request)
        if body is None and self._level.null_refusal:
            raise AdminError(BAD_REQUEST, self._level.null_refusal)
        return None if body is None else read_body(request, reader_of(self._policy.kind, self._level), body)

    async def _in_force(self, name: TopicName) -> Any:
        """Where the topic says nothing; what only stands in documents is what the namespace says."""
        policy = self._policy
        if policy.name.partition(".")[0] not in _IN_FORCE:
            return (await self._access.namespace(name)).get(policy.namespace_keys[0])
        value = attrgetter(policy.name)(await self._access.above(name))
        shown = _SHOWN.get(policy.kind)
        return value if shown is None else shown(value)


def dispatch_rate(rate: Rate) -> dict[str, Any]:
    """A dispatch rate as JSON has it."""
    return {
        "dispatchThrottlingRateInMsg": rate.messages,
        "dispatchThrottlingRateInByte": rate.size_bytes,
        "relativeToPublishRate": rate.relative_to_publish_rate,
        "ratePeriodInSecond": int(rate.period_seconds),
    }


def subscribe_rate(rate: Rate) -> dict[str, Any]:
    """A subscribe rate as JSON has it."""
    period_seconds = int(rate.period_seconds) if rate.limited else 30
    return {"subscribeThrottlingRatePerConsumer": rate.messages, "ratePeriodInSecond": period_seconds}


def inactive_topics(inactive: InactiveTopics) -> dict[str, Any]:
    """InactiveTopicPolicies as JSON has it."""
    return {
        "inactiveTopicDeleteMode": inactive.mode.value,
        "maxInactiveDurationSeconds": inactive.after_seconds,
        "deleteWhileInactive": inactive.delete,
    }


def persistence(ledger: ManagedLedgerSettings) -> dict[str, Any]:
    """PersistencePolicies as JSON has it."""
    return {
        "bookkeeperEnsemble": ledger.ensemble_size,
        "bookkeeperWriteQuorum": ledger.write_quorum,
        "bookkeeperAckQuorum": ledger.ack_quorum,
        "managedLedgerMaxMarkDeleteRate": ledger.mark_delete_rate,
    }


_IN_FORCE: Final = {field.name for field in fields(EffectivePolicies)}
_SHOWN: Final[Mapping[PolicyKind, Callable[[Any], Any]]] = {
    PolicyKind.AUTO_SUBSCRIPTION_CREATION: lambda allowed: {"allowAutoSubscriptionCreation": allowed},
    PolicyKind.DISPATCH_RATE: dispatch_rate,
    PolicyKind.INACTIVE_TOPICS: inactive_topics,
    PolicyKind.PERSISTENCE: persistence,
    PolicyKind.STRATEGY: attrgetter("value"),
    PolicyKind.SUBSCRIBE_RATE: subscribe_rate,
}
"""What is in force, as JSON has it; other kinds are JSON already."""


class SubscriptionRateHandlers:
    """`…/{topic}/{subscription}/dispatchRate`: the dispatch rate of one subscription."""

    def __init__(self, access: PolicyAccess) -> None:
        self._access = access

    @takes(*GET_QUERY)
    async def get(self, request: web.Request) -> web.Response:
        """Tell how much may be sent to the consumers of one subscription."""
        name = await self._access.topic(request)
        own = await self._access.own(request, name)
        single = (own.get("subscriptionPolicies") or {}).get(subscription_name(request)) or {}
        value = single.get("dispatchRate")
        if value is None and flag(request, "applied"):
            value = own.get("subscriptionDispatchRate")
            if value is None:
                value = dispatch_rate((await self._access.above(name)).subscription_dispatch_rate)
        return web.Response() if value is None else json(value)

    @takes(*SET_QUERY, body="a dispatch rate; null removes it")
    async def set(self, request: web.Request) -> web.Response:
        """Set how much may be sent to the consumers of one subscription."""
        body = await body_json(request)
        return await self._put(request, None if body is None else read_body(request, DISPATCH_RATE, body))

    @takes(*SET_QUERY)
    async def remove(self, request: web.Request) -> web.Response:
        """Remove the dispatch rate of one subscription."""
        return await self._put(request, None)

    async def _put(self, request: web.Request, value: Any) -> web.Response:
        name = await self._access.topic(request)
        subscription = subscription_name(request)

        def change(policies: TopicPolicies) -> TopicPolicies:
            singles = dict(policies.get("subscriptionPolicies") or {})
            single = with_fields(singles.pop(subscription, {}), {"dispatchRate": value})
            if single:
                singles[subscription] = single
            return with_fields(policies, {"subscriptionPolicies": singles or None})

        await self._access.update(request, name, change)
        return no_content()
