"""Those policies of topics that more than one value, or more than the topic, has a part in."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.namespaces.clusters import (
    require_allowed_clusters,
    require_clusters_of_tenant,
    require_known_clusters,
)
from magnetar.broker.admin.namespaces.offload import described, offload_policies
from magnetar.broker.admin.topics.access import TopicAccess
from magnetar.broker.admin.topics.policies import GET_QUERY, SET_QUERY, PolicyAccess, with_fields
from magnetar.broker.admin.topics.topics import ONE
from magnetar.broker.admin.web import policy_shapes as shapes
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.documents import policies_of
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    FORBIDDEN,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    flag,
    json,
    no_content,
    topic_of,
)
from magnetar.broker.admin.web.shapes import body_of, integer, required_body
from magnetar.broker.context import BrokerContext
from magnetar.broker.policies.api import TopicPolicies
from magnetar.broker.policies.model import BacklogQuota
from magnetar.broker.resources import Document
from magnetar.core.topic_name import PERSISTENT, InvalidTopicName, TopicName

SIZE_QUOTA: Final = "destination_storage"
QUOTA_TYPES: Final = (SIZE_QUOTA, "message_age")

RETENTION_TOO_SMALL: Final = (
    "Retention Quota must exceed configured backlog quota for topic. Please increase retention quota and retry"
)
QUOTA_TOO_LARGE: Final = (
    "Backlog Quota exceeds configured retention quota for topic. Please increase retention quota and retry"
)
MESSAGE_SIZE_REFUSED: Final = (
    "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in the broker-level"
)


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = SpecialPolicyHandlers(context)
    return [
        web.get(ONE + "/backlogQuotaMap", handlers.backlog_quotas),
        web.post(ONE + "/backlogQuota", handlers.set_backlog_quota),
        web.delete(ONE + "/backlogQuota", handlers.remove_backlog_quota),
        web.get(ONE + "/retention", handlers.retention),
        web.post(ONE + "/retention", handlers.set_retention),
        web.get(ONE + "/delayedDelivery", handlers.delayed_delivery),
        web.post(ONE + "/delayedDelivery", handlers.set_delayed_delivery),
        web.get(ONE + "/entryFilters", handlers.entry_filters),
        web.post(ONE + "/entryFilters", handlers.set_entry_filters),
        web.get(ONE + "/offloadPolicies", handlers.offload),
        web.post(ONE + "/offloadPolicies", handlers.set_offload),
        web.post(ONE + "/messageTTL", handlers.set_message_ttl),
        web.post(ONE + "/replication", handlers.set_replication),
        web.put(ONE + "/shadowTopics", handlers.set_shadow_topics),
        web.post(ONE + "/subscriptionTypesEnabled", handlers.set_subscription_types),
        web.post(ONE + "/maxMessageSize", handlers.set_message_size),
        web.put(ONE + "/schemaCompatibilityStrategy", handlers.set_strategy),
        web.delete(ONE + "/policies", handlers.remove_all),
    ]


class SpecialPolicyHandlers:
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._access = PolicyAccess(context)
        self._topics = TopicAccess(context)

    # --- what is stored

    @takes(*GET_QUERY)
    async def retention(self, request: web.Request) -> web.Response:
        """Tell how long and how much is kept of what is consumed."""
        name = await self._access.topic(request)
        value = (await self._access.own(request, name)).get("retentionPolicies")
        if value is None and flag(request, "applied"):
            policies = await self._access.above(name)
            value = {
                "retentionTimeInMinutes": policies.retention_minutes,
                "retentionSizeInMB": policies.retention_megabytes,
            }
        return answer(value)

    @takes(*SET_QUERY, body="{retentionTimeInMinutes, retentionSizeInMB}; null removes it")
    async def set_retention(self, request: web.Request) -> web.Response:
        """Set how long and how much is kept of what is consumed; more than the backlog's quota."""
        value = await body_of(request, shapes.retention)
        name = await self._access.topic(request)
        if any(shapes.exceeds_retention(quota, value) for quota in await self._quotas(request, name)):
            raise AdminError(PRECONDITION_FAILED, RETENTION_TOO_SMALL)
        await self._access.put(request, name, {"retentionPolicies": value})
        return no_content()

    @takes(*GET_QUERY)
    async def backlog_quotas(self, request: web.Request) -> web.Response:
        """Tell how large backlogs may get, by the kind of limit."""
        name = await self._access.topic(request)
        quotas = (await self._access.own(request, name)).get("backLogQuotaMap") or {}
        if not quotas and flag(request, "applied"):
            quotas = (await self._access.namespace(name)).get("backlog_quota_map") or {}
            if not quotas:
                quotas = dict.fromkeys(QUOTA_TYPES, self._default_quota())
        return json({kind: shown_quota(quota) for kind, quota in quotas.items()})

    @takes("backlogQuotaType", *SET_QUERY, body="{limitSize, limitTime, policy}; null removes it")
    async def set_backlog_quota(self, request: web.Request) -> web.Response:
        """Set how large backlogs may get, and what happens beyond it; less than what retention keeps."""
        kind = quota_type(request)
        name = await self._access.topic(request)
        try:
            value = await body_of(request, shapes.backlog_quota)
        except AdminError as problem:
            reason = f"backlog quota failed because the data validation failed. {problem}"
            raise AdminError(BAD_REQUEST, f"Set namespace[{name.namespace_name}] {reason}") from None
        if shapes.exceeds_retention(value, await self._kept(request, name)):
            raise AdminError(PRECONDITION_FAILED, QUOTA_TOO_LARGE)
        await self._put_quota(request, name, kind, value)
        return no_content()

    @takes("backlogQuotaType", *SET_QUERY)
    async def remove_backlog_quota(self, request: web.Request) -> web.Response:
        """Remove how large backlogs may get."""
        await self._put_quota(request, await self._access.topic(request), quota_type(request), None)
        return no_content()

    @takes("messageTTL", *SET_QUERY)
    async def set_message_ttl(self, request: web.Request) -> web.Response:
        """Set after how many seconds messages are acknowledged by themselves; without a number remove it."""
        name = await self._access.topic(request)
        given = request.query.get("messageTTL")
        value = None if given is None else integer(given)
        if value is not None and value < 0:
            raise AdminError(PRECONDITION_FAILED, "Invalid value for message TTL")
        await self._access.put(request, name, {"messageTTLInSeconds": value})
        return no_content()

    @takes(*GET_QUERY)
    async def offload(self, request: web.Request) -> web.Response:
        """Tell what is moved to other storage."""
        name = await self._access.topic(request)
        value = (await self._access.own(request, name)).get("offloadPolicies")
        if value is None and flag(request, "applied"):
            value = (await self._access.namespace(name)).get("offload_policies")
        return answer(None if value is None else described(value))

    @takes(*SET_QUERY, body="OffloadPolicies")
    async def set_offload(self, request: web.Request) -> web.Response:
        """Set what is moved to other storage."""
        value = await body_of(request, topic_offload)
        if value is None:
            raise AdminError(PRECONDITION_FAILED, "The offloadPolicies must be specified for namespace offload.")
        name = await self._access.topic(request)
        await self._access.put(request, name, {"offloadPolicies": value})
        return no_content()

    # --- what is delivered

    @takes(*GET_QUERY)
    async def delayed_delivery(self, request: web.Request) -> web.Response:
        """Tell whether messages may be delivered later, and how exactly."""
        name = await self._access.topic(request)
        own = await self._access.own(request, name)
        if own.get("delayedDeliveryEnabled") is not None:
            return json(
                {
                    "tickTime": own.get("delayedDeliveryTickTimeMillis") or 0,
                    "active": own["delayedDeliveryEnabled"],
                    "maxDeliveryDelayInMillis": own.get("delayedDeliveryMaxDelayInMillis") or 0,
                }
            )
        if not flag(request, "applied"):
            return web.Response()
        policies = await self._access.above(name)
        return json(
            {
                "tickTime": policies.delayed_delivery_tick_ms,
                "active": policies.delayed_delivery,
                "maxDeliveryDelayInMillis": policies.delay_ms_max,
            }
        )

    @takes(*SET_QUERY, body="{tickTime, active, maxDeliveryDelayInMillis}; null removes it")
    async def set_delayed_delivery(self, request: web.Request) -> web.Response:
        """Set whether messages may be delivered later, and how exactly."""
        value = await body_of(request, shapes.DELAYED_DELIVERY) or {}
        name = await self._access.topic(request)
        fields = {
            "delayedDeliveryEnabled": value.get("active"),
            "delayedDeliveryTickTimeMillis": value.get("tickTime"),
            "delayedDeliveryMaxDelayInMillis": value.get("maxDeliveryDelayInMillis"),
        }
        await self._access.put(request, name, fields)
        return no_content()

    @takes(*SET_QUERY, body="a list of Exclusive, Shared, Failover, Key_Shared")
    async def set_subscription_types(self, request: web.Request) -> web.Response:
        """Set which types of subscriptions there may be."""
        types = await required_body(request, shapes.SUBSCRIPTION_TYPES)
        name = await self._access.topic(request)
        await self._access.put(request, name, {"subscriptionTypesEnabled": types or None})
        return no_content()

    @takes(*GET_QUERY)
    async def entry_filters(self, request: web.Request) -> web.Response:
        """Tell which filters entries go through."""
        name = await self._access.topic(request)
        value = (await self._access.own(request, name)).get("entryFilters")
        if value is None and flag(request, "applied"):
            value = (await self._access.namespace(name)).get("entryFilters") or {"entryFilterNames": ""}
        return answer(value)

    @takes(*SET_QUERY, body="{entryFilterNames}; null removes it")
    async def set_entry_filters(self, request: web.Request) -> web.Response:
        """Set which filters entries go through. This broker has none to choose from."""
        name = await self._access.topic(request)
        await body_of(request, shapes.entry_filters)
        await self._access.put(request, name, {"entryFilters": None})
        return no_content()

    # --- what is published

    @takes(*SET_QUERY, body="bytes; 0 for the broker's own limit")
    async def set_message_size(self, request: web.Request) -> web.Response:
        """Set how large messages may be; not more than the broker allows."""
        value = await required_body(request, integer)
        name = await self._access.topic(request)
        if not 0 <= value <= self._context.settings.message_size_bytes_max:
            raise AdminError(PRECONDITION_FAILED, MESSAGE_SIZE_REFUSED)
        await self._access.put(request, name, {"maxMessageSize": value})
        return no_content()

    @takes("authoritative", body="the strategy's name; null removes it")
    async def set_strategy(self, request: web.Request) -> web.Response:
        """Set how a new schema must be compatible with those before."""
        value = await body_of(request, shapes.STRATEGY)
        name = await self._access.topic(request)
        await self._access.put(request, name, {"schemaCompatibilityStrategy": value})
        return no_content()

    # --- other clusters and topics

    @takes(*SET_QUERY, body="a list of clusters")
    async def set_replication(self, request: web.Request) -> web.Response:
        """Set which clusters the topic is in; this one must be among them."""
        clusters = await body_of(request, shapes.NAMES)
        name = await self._access.topic(request)
        if not clusters:
            raise AdminError(PRECONDITION_FAILED, "ClusterIds should not be null or empty")
        if "global" in clusters:
            raise AdminError(PRECONDITION_FAILED, "Cannot specify global in the list of replication clusters")
        if self._context.settings.cluster_name not in clusters and not flag(request, "isGlobal"):
            raise AdminError(
                PRECONDITION_FAILED,
                "Can not remove local cluster from the local topic-level replication clusters policy",
            )
        await require_known_clusters(self._context, clusters)
        policies = await policies_of(self._context, name.namespace_name)
        require_allowed_clusters(policies, clusters, str(name.namespace_name))
        await require_clusters_of_tenant(self._context, name.namespace_name.tenant, clusters)
        await self._access.put(request, name, {"replicationClusters": clusters})
        return no_content()

    @takes("authoritative", body="a list of topics")
    async def set_shadow_topics(self, request: web.Request) -> web.Response:
        """Note which topics show what this one stores. They must exist."""
        topics = await body_of(request, shapes.NAMES)
        name = await self._access.topic(request)
        if not topics:
            raise AdminError(
                PRECONDITION_FAILED, "Cannot specify empty shadow topics, please use remove command instead."
            )
        for text in topics:
            await self._check_shadow(text)
        await self._access.put(request, name, {"shadowTopics": topics})
        return no_content()

    async def remove_all(self, request: web.Request) -> web.Response:
        """Remove all policies of a topic."""
        name = topic_of(request)
        if name.partition_index >= 0:
            raise AdminError(PRECONDITION_FAILED, "Not allowed to set/get topic policy for a partition")
        if await self._context.service.resources.policies(name.namespace_name) is None:
            raise AdminError(NOT_FOUND, "Namespace not found")
        await self._context.topic_policies.delete(name)
        return no_content()

    # --- helpers

    async def _check_shadow(self, text: str) -> None:
        try:
            shadow = TopicName.parse(text)
        except InvalidTopicName:
            raise AdminError(FORBIDDEN, f"Invalid shadow topic name: {text}") from None
        if shadow.domain != PERSISTENT:
            raise AdminError(PRECONDITION_FAILED, "Only persistent topic can be set as shadow topic")
        if await self._context.service.resources.partitions(shadow) is None and not await self._topics.exists(shadow):
            raise AdminError(PRECONDITION_FAILED, f"Shadow topic [{shadow}] not exists.")

    def _default_quota(self) -> dict[str, Any]:
        own = self._context.settings.policies
        quota = BacklogQuota(own.backlog_quota_bytes, own.backlog_quota_age_seconds, own.backlog_quota_policy)
        return {
            "limitSize": quota.size_bytes_max,
            "limitTime": quota.age_seconds_max,
            "policy": quota.policy.value,
        }

    async def _quotas(self, request: web.Request, name: TopicName) -> list[Document]:
        """The quotas of each type that are in force for the topic."""
        own = (await self._access.own(request, name)).get("backLogQuotaMap") or {}
        above = (await self._access.namespace(name)).get("backlog_quota_map") or {}
        return [own.get(kind) or above.get(kind) or self._default_quota() for kind in QUOTA_TYPES]

    async def _kept(self, request: web.Request, name: TopicName) -> dict[str, Any] | None:
        """The retention that is in force for the topic."""
        own: dict[str, Any] | None = (await self._access.own(request, name)).get("retentionPolicies")
        return own or (await self._access.namespace(name)).get("retention_policies")

    async def _put_quota(self, request: web.Request, name: TopicName, kind: str, value: Any) -> None:
        def change(policies: TopicPolicies) -> TopicPolicies:
            quotas = with_fields(policies.get("backLogQuotaMap") or {}, {kind: value})
            return with_fields(policies, {"backLogQuotaMap": quotas or None})

        await self._access.update(request, name, change)


def answer(value: Any) -> web.Response:
    """A policy, or nothing."""
    return web.Response() if value is None else json(value)


def shown_quota(quota: Document) -> Document:
    """A quota as the API shows it: the size under its old name as well."""
    size = quota.get("limitSize", quota.get("limit", 0))
    return {"limit": size, "limitSize": size, "limitTime": quota.get("limitTime", 0), "policy": quota.get("policy")}


def quota_type(request: web.Request) -> str:
    """Which kind of limit a request is about. Raises 404 for one that there is not, as Apache's broker."""
    kind = request.query.get("backlogQuotaType", SIZE_QUOTA)
    if kind not in QUOTA_TYPES:
        raise AdminError(NOT_FOUND, f"There is no backlog quota of type {kind}")
    return kind


def topic_offload(value: Any) -> Document:
    """OffloadPolicies, for which a topic must name a bucket. Raises 412."""
    found = offload_policies(value)
    buckets = ("managedLedgerOffloadBucket", "s3ManagedLedgerOffloadBucket", "gcsManagedLedgerOffloadBucket")
    if found.get("managedLedgerOffloadDriver") != "filesystem" and not any(found.get(bucket) for bucket in buckets):
        raise AdminError(PRECONDITION_FAILED, "The bucket must be specified for namespace offload.")
    return found
