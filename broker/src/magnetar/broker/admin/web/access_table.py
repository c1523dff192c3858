"""What each route of the admin API asks of who calls it: Apache's operations and policies by their names.

Seen at Apache Pulsar 4.0.8, by calling every route as nobody, with a grant to produce, with one to consume, and as
the tenant's administrator. Routes that only this broker has are set beside their nearest relatives.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final, NamedTuple

from magnetar.broker.auth.rules import Right
from magnetar.broker.policies.catalogue import POLICIES


class Scope(enum.Enum):
    """What a request is about, which decides how it is refused."""

    PUBLIC = enum.auto()
    """Anybody may ask, without saying who he is."""
    OPEN = enum.auto()
    """Anybody may ask who is authenticated."""
    SUPER_USER = enum.auto()
    CLUSTER = enum.auto()
    CLUSTER_POLICY = enum.auto()
    BROKER = enum.auto()
    TENANTS = enum.auto()
    """Super users; and administrators of the tenant, if one is named."""
    TENANT = enum.auto()
    TENANT_RESOURCES = enum.auto()
    """Super users and administrators of the tenant that the path names; Apache words the refusal otherwise than for
    `TENANT`."""
    TENANT_OF_BODY = enum.auto()
    """Super users and administrators of the tenants of all topics that the body names."""
    TENANT_OF_QUERY = enum.auto()
    """Super users and administrators of the tenant that the query names; super users alone where it names none."""
    NAMESPACE = enum.auto()
    NAMESPACE_POLICY = enum.auto()
    TOPIC = enum.auto()
    TOPIC_POLICY = enum.auto()


class Need(NamedTuple):
    """What one route asks for."""

    scope: Scope
    operation: str = ""
    """Apache's name of the operation; READ or WRITE for a policy."""
    policy: str = ""

    @property
    def right(self) -> Right:
        """What is enough for those who are no administrators."""
        if self.scope is Scope.NAMESPACE:
            return _NAMESPACE_RIGHTS.get(self.operation, Right.ADMIN)
        if self.scope is Scope.TOPIC:
            return _TOPIC_RIGHTS.get(self.operation, Right.ADMIN)
        return Right.ADMIN


_NAMESPACE_RIGHTS: Final = {
    "CLEAR_BACKLOG": Right.CONSUME,
    "GET_BUNDLE": Right.LOOKUP,
    "GET_TOPIC": Right.LOOKUP,
    "GET_TOPICS": Right.LOOKUP,
    "UNSUBSCRIBE": Right.CONSUME,
}

_TOPIC_RIGHTS: Final = {
    "CONSUME": Right.CONSUME,
    "EXPIRE_MESSAGES": Right.CONSUME,
    "GET_BACKLOG_SIZE": Right.CONSUME,
    "GET_METADATA": Right.LOOKUP,
    "GET_REPLICATED_SUBSCRIPTION_STATUS": Right.CONSUME,
    "GET_STATS": Right.LOOKUP,
    "GET_SUBSCRIPTIONS": Right.CONSUME,
    "LOOKUP": Right.LOOKUP,
    "PEEK_MESSAGES": Right.CONSUME,
    "PRODUCE": Right.PRODUCE,
    "RESET_CURSOR": Right.CONSUME,
    "SET_REPLICATED_SUBSCRIPTION_STATUS": Right.CONSUME,
    "SKIP": Right.CONSUME,
    "SUBSCRIBE": Right.CONSUME,
    "UNSUBSCRIBE": Right.CONSUME,
}

_OF_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_OF_TOPIC: Final = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
_OF_BUFFER: Final = "/admin/v3/transactions/{}/{{tenant}}/{{namespace}}/{{topic}}"
_OF_PENDING_ACKS: Final = "/admin/v3/transactions/{}/{{tenant}}/{{namespace}}/{{topic}}/{{subscription}}"

_ONE_BY_ONE: Final = f"""
PUBLIC
  GET /status.html /metrics /metrics/
OPEN
  GET /openapi.json /docs /admin/v2/clusters /admin/v2/brokers/ready /admin/v2/brokers/version
  GET /admin/v3/transactions/coordinators /admin/v3/transactions/coordinatorStats
  GET /admin/v3/transactions/coordinatorInternalStats/{{coordinatorId}}
  GET /admin/v3/transactions/transactionMetadata/{{mostSigBits}}/{{leastSigBits}}
  GET /admin/v3/transactions/slowTransactions/{{timeout}}
SUPER_USER
  * /admin/v2/bookies/all /admin/v2/bookies/racks-info /admin/v2/bookies/racks-info/{{bookie}}
  POST /admin/v3/transactions/abortTransaction/{{mostSigBits}}/{{leastSigBits}}
  POST /admin/v3/transactions/transactionCoordinator/replicas
  * /admin/v2/resource-quotas /admin/v2/resource-quotas/{{tenant}}/{{namespace}}/{{bundle}}
  * /admin/v2/resourcegroups /admin/v2/resourcegroups/{{group}}
  GET /admin/v2/broker-stats/topics /admin/v2/broker-stats/destinations /admin/v2/broker-stats/metrics
  GET /admin/v2/broker-stats/mbeans /admin/v2/broker-stats/allocator-stats/{{allocator}}
  GET /admin/v2/broker-stats/bookieops /admin/v2/broker-stats/load-report
  GET /admin/v2/broker-stats/broker-resource-availability/{{tenant}}/{{namespace}}
  * {_OF_NAMESPACE}/persistence/bookieAffinity {_OF_NAMESPACE}/migration {_OF_NAMESPACE}/unload
  * {_OF_NAMESPACE}/{{bundle}}/unload {_OF_NAMESPACE}/{{bundle}}/split
  POST {_OF_NAMESPACE}/delayedDelivery
  DELETE {_OF_NAMESPACE}/delayedDelivery
CLUSTER GET_CLUSTER
  GET /admin/v2/clusters/{{cluster}}
CLUSTER CREATE_CLUSTER
  PUT /admin/v2/clusters/{{cluster}}
CLUSTER UPDATE_CLUSTER
  POST /admin/v2/clusters/{{cluster}}
CLUSTER DELETE_CLUSTER
  DELETE /admin/v2/clusters/{{cluster}}
CLUSTER GET_PEER_CLUSTER
  GET /admin/v2/clusters/{{cluster}}/peers
CLUSTER UPDATE_PEER_CLUSTER
  POST /admin/v2/clusters/{{cluster}}/peers
CLUSTER GET_FAILURE_DOMAIN
  GET /admin/v2/clusters/{{cluster}}/failureDomains /admin/v2/clusters/{{cluster}}/failureDomains/{{domain}}
CLUSTER UPDATE_FAILURE_DOMAIN
  POST /admin/v2/clusters/{{cluster}}/failureDomains/{{domain}}
CLUSTER DELETE_FAILURE_DOMAIN
  DELETE /admin/v2/clusters/{{cluster}}/failureDomains/{{domain}}
CLUSTER_POLICY READ
  GET /admin/v2/clusters/{{cluster}}/migrate /admin/v2/clusters/{{cluster}}/namespaceIsolationPolicies
  GET /admin/v2/clusters/{{cluster}}/namespaceIsolationPolicies/brokers
  GET /admin/v2/clusters/{{cluster}}/namespaceIsolationPolicies/brokers/{{broker}}
  GET /admin/v2/clusters/{{cluster}}/namespaceIsolationPolicies/{{policy}}
CLUSTER_POLICY WRITE
  POST /admin/v2/clusters/{{cluster}}/migrate /admin/v2/clusters/{{cluster}}/namespaceIsolationPolicies/{{policy}}
  DELETE /admin/v2/clusters/{{cluster}}/namespaceIsolationPolicies/{{policy}}
BROKER LIST_DYNAMIC_CONFIGURATIONS
  GET /admin/v2/brokers/configuration /admin/v2/brokers/configuration/values
BROKER LIST_RUNTIME_CONFIGURATIONS
  GET /admin/v2/brokers/configuration/runtime
BROKER UPDATE_DYNAMIC_CONFIGURATION
  POST /admin/v2/brokers/configuration/{{name}}/{{value}}
BROKER DELETE_DYNAMIC_CONFIGURATION
  DELETE /admin/v2/brokers/configuration/{{name}}
BROKER GET_INTERNAL_CONFIGURATION_DATA
  GET /admin/v2/brokers/internal-configuration
BROKER LIST_BROKERS
  GET /admin/v2/brokers /admin/v2/brokers/{{cluster}} /admin/v2/brokers/load-decisions
  GET /admin/v2/brokers/load-reports /admin/v2/brokers/{{broker}}/drain
BROKER GET_LEADER_BROKER
  GET /admin/v2/brokers/leaderBroker
BROKER HEALTH_CHECK
  GET /admin/v2/brokers/health
BROKER CHECK_BACKLOG_QUOTA
  GET /admin/v2/brokers/backlog-quota-check
BROKER SHUTDOWN
  POST /admin/v2/brokers/shutdown /admin/v2/brokers/{{broker}}/drain
  DELETE /admin/v2/brokers/{{broker}}/drain
BROKER LIST_OWNED_NAMESPACES
  GET /admin/v2/brokers/{{cluster}}/{{broker}}/ownedNamespaces
TENANTS LIST_TENANTS
  GET /admin/v2/tenants
TENANTS GET_TENANT
  GET /admin/v2/tenants/{{tenant}}
TENANTS CREATE_TENANT
  PUT /admin/v2/tenants/{{tenant}}
TENANTS UPDATE_TENANT
  POST /admin/v2/tenants/{{tenant}}
TENANTS DELETE_TENANT
  DELETE /admin/v2/tenants/{{tenant}}
TENANT LIST_NAMESPACES
  GET /admin/v2/namespaces/{{tenant}}
TENANT CREATE_NAMESPACE
  PUT {_OF_NAMESPACE}
TENANT DELETE_NAMESPACE
  DELETE {_OF_NAMESPACE}
TENANT_RESOURCES
  * {_OF_NAMESPACE}/properties {_OF_NAMESPACE}/property/{{key}} {_OF_NAMESPACE}/property/{{key}}/{{value}}
  * {_OF_TOPIC}/permissions {_OF_TOPIC}/permissions/{{role}} {_OF_TOPIC}/maxMessageSize
  DELETE /admin/v2/schemas/{{tenant}}/{{namespace}}/{{topic}}/schema {_OF_TOPIC}/truncate
  POST /admin/v2/schemas/{{tenant}}/{{namespace}}/{{topic}}/compatibility
TENANT_OF_BODY
  POST /admin/v2/namespaces/grantPermissionsOnTopics /admin/v2/namespaces/revokePermissionsOnTopics
TENANT_OF_QUERY
  GET /admin/v2/namespaces/{{cluster}}/antiAffinity/{{group}} /admin/namespaces/{{cluster}}/antiAffinity/{{group}}
NAMESPACE_POLICY READ ALL
  GET {_OF_NAMESPACE}
NAMESPACE_POLICY READ ANTI_AFFINITY
  GET {_OF_NAMESPACE}/antiAffinity
NAMESPACE_POLICY WRITE ANTI_AFFINITY
  * {_OF_NAMESPACE}/antiAffinity
NAMESPACE_POLICY READ PERSISTENCE
  GET {_OF_NAMESPACE}/{{bundle}}/topicHashPositions
TOPIC_POLICY WRITE MAX_PRODUCERS
  DELETE {_OF_TOPIC}/policies
TOPIC_POLICY WRITE PARTITION
  * {_OF_TOPIC}/partitions
NAMESPACE GET_TOPICS
  GET {_OF_NAMESPACE}/topics /admin/v2/{{domain}}/{{tenant}}/{{namespace}}
  GET /admin/v2/{{domain}}/{{tenant}}/{{namespace}}/partitioned
NAMESPACE GET_BUNDLE
  GET {_OF_NAMESPACE}/bundles /admin/v2/{{domain}}/{{tenant}}/{{namespace}}/{{bundle}}
  GET /lookup/v2/topic/{{domain}}/{{tenant}}/{{namespace}}/{{topic}}/bundle
NAMESPACE DELETE_BUNDLE
  DELETE {_OF_NAMESPACE}/{{bundle}}
NAMESPACE GET_PERMISSION
  GET {_OF_NAMESPACE}/permissions {_OF_NAMESPACE}/permissions/subscription
NAMESPACE GRANT_PERMISSION
  POST {_OF_NAMESPACE}/permissions/subscription/{{subscription}} {_OF_NAMESPACE}/permissions/{{role}}
NAMESPACE REVOKE_PERMISSION
  DELETE {_OF_NAMESPACE}/permissions/{{role}} {_OF_NAMESPACE}/permissions/{{subscription}}/{{role}}
NAMESPACE CLEAR_BACKLOG
  POST {_OF_NAMESPACE}/clearBacklog {_OF_NAMESPACE}/clearBacklog/{{subscription}}
  POST {_OF_NAMESPACE}/{{bundle}}/clearBacklog {_OF_NAMESPACE}/{{bundle}}/clearBacklog/{{subscription}}
NAMESPACE UNSUBSCRIBE
  POST {_OF_NAMESPACE}/unsubscribe/{{subscription}} {_OF_NAMESPACE}/{{bundle}}/unsubscribe/{{subscription}}
NAMESPACE CREATE_TOPIC
  PUT {_OF_TOPIC}
NAMESPACE DELETE_TOPIC
  DELETE {_OF_TOPIC} {_OF_TOPIC}/partitions
TOPIC LOOKUP
  GET {_OF_TOPIC}/partitions /lookup/v2/topic/{{domain}}/{{tenant}}/{{namespace}}/{{topic}}
  POST {_OF_TOPIC}/createMissedPartitions
TOPIC GET_METADATA
  GET {_OF_TOPIC}/properties
  GET /admin/v2/schemas/{{tenant}}/{{namespace}}/{{topic}}/schema
  GET /admin/v2/schemas/{{tenant}}/{{namespace}}/{{topic}}/schema/{{version}}
  GET /admin/v2/schemas/{{tenant}}/{{namespace}}/{{topic}}/schemas
  GET /admin/v2/schemas/{{tenant}}/{{namespace}}/{{topic}}/metadata
  POST /admin/v2/schemas/{{tenant}}/{{namespace}}/{{topic}}/version
TOPIC UPDATE_METADATA
  PUT {_OF_TOPIC}/properties
TOPIC DELETE_METADATA
  DELETE {_OF_TOPIC}/properties
TOPIC PRODUCE
  POST /admin/v2/schemas/{{tenant}}/{{namespace}}/{{topic}}/schema
TOPIC GET_STATS
  GET {_OF_TOPIC}/stats {_OF_TOPIC}/internalStats {_OF_TOPIC}/partitioned-stats
  GET {_OF_TOPIC}/partitioned-internalStats {_OF_TOPIC}/internal-info
  GET {_OF_BUFFER.format("transactionBufferStats")} {_OF_BUFFER.format("transactionBufferInternalStats")}
  GET {_OF_BUFFER.format("transactionInBufferStats")}/{{mostSigBits}}/{{leastSigBits}}
  GET {_OF_PENDING_ACKS.format("pendingAckStats")} {_OF_PENDING_ACKS.format("pendingAckInternalStats")}
  GET {_OF_PENDING_ACKS.format("positionStatsInPendingAck")}/{{ledger}}/{{entry}}
  GET {_OF_PENDING_ACKS.format("transactionInPendingAckStats")}/{{mostSigBits}}/{{leastSigBits}}
TOPIC GET_BACKLOG_SIZE
  GET {_OF_TOPIC}/backlog
  PUT {_OF_TOPIC}/backlogSize
TOPIC PEEK_MESSAGES
  GET {_OF_TOPIC}/ledger/{{ledger}}/entry/{{entry}} {_OF_TOPIC}/examinemessage {_OF_TOPIC}/lastMessageId
  GET {_OF_TOPIC}/subscription/{{subscription}}/position/{{position}} {_OF_TOPIC}/messageid/{{timestamp}}
  GET {_OF_TOPIC}/getMessageIdByIndex
TOPIC UNLOAD
  PUT {_OF_TOPIC}/unload
TOPIC TERMINATE
  POST {_OF_TOPIC}/terminate {_OF_TOPIC}/terminate/partitions
TOPIC TRIM_TOPIC
  POST {_OF_TOPIC}/trim
TOPIC COMPACT
  * {_OF_TOPIC}/compaction
TOPIC OFFLOAD
  * {_OF_TOPIC}/offload
TOPIC GET_SUBSCRIPTIONS
  GET {_OF_TOPIC}/subscriptions
TOPIC SUBSCRIBE
  PUT {_OF_TOPIC}/subscription/{{subscription}} {_OF_TOPIC}/subscription/{{subscription}}/properties
TOPIC UNSUBSCRIBE
  DELETE {_OF_TOPIC}/subscription/{{subscription}}
TOPIC CONSUME
  GET {_OF_TOPIC}/subscription/{{subscription}}/properties
  POST {_OF_TOPIC}/subscription/{{subscription}}/analyzeBacklog
TOPIC GET_REPLICATED_SUBSCRIPTION_STATUS
  GET {_OF_TOPIC}/subscription/{{subscription}}/replicatedSubscriptionStatus
TOPIC SET_REPLICATED_SUBSCRIPTION_STATUS
  POST {_OF_TOPIC}/subscription/{{subscription}}/replicatedSubscriptionStatus
TOPIC SKIP
  POST {_OF_TOPIC}/subscription/{{subscription}}/skip_all {_OF_TOPIC}/subscription/{{subscription}}/skip/{{count}}
TOPIC EXPIRE_MESSAGES
  POST {_OF_TOPIC}/subscription/{{subscription}}/expireMessages/{{seconds}}
  POST {_OF_TOPIC}/subscription/{{subscription}}/expireMessages
  POST {_OF_TOPIC}/all_subscription/expireMessages/{{seconds}}
TOPIC RESET_CURSOR
  POST {_OF_TOPIC}/subscription/{{subscription}}/resetcursor/{{timestamp}}
  POST {_OF_TOPIC}/subscription/{{subscription}}/resetcursor
"""
"""Scope, operation and policy; below them a method (`*`: any) and the patterns of its routes."""

ANY: Final = "*"


def _read() -> Iterator[tuple[tuple[str, str], Need]]:
    need = Need(Scope.SUPER_USER)
    for line in _ONE_BY_ONE.strip().splitlines():
        words = line.split()
        if line.startswith(" "):
            for pattern in words[1:]:
                yield (words[0], pattern), need
        else:
            need = Need(Scope[words[0]], *words[1:])


def _read_policies() -> Iterator[tuple[str, tuple[Scope, str]]]:
    for policy in POLICIES:
        for scope, base, level in (
            (Scope.NAMESPACE_POLICY, _OF_NAMESPACE, policy.namespace),
            (Scope.TOPIC_POLICY, _OF_TOPIC, policy.topic),
        ):
            if level is not None and policy.access:
                for path in level.paths:
                    yield f"{base}/{path}", (scope, policy.access)


_NEEDS: Final = dict(_read())
_POLICIES: Final = dict(_read_policies())
"""GET reads a policy, everything else writes it."""


def need_of(method: str, pattern: str) -> Need | None:
    """What a route asks for, by its method and its pattern as aiohttp calls it; None for a route that is not listed:
    let it be for super users."""
    method = "GET" if method == "HEAD" else method
    need = _NEEDS.get((method, pattern)) or _NEEDS.get((ANY, pattern))
    if need is not None:
        return need
    policy = _POLICIES.get(pattern)
    if policy is None:
        return None
    return Need(policy[0], "READ" if method == "GET" else "WRITE", policy[1])
