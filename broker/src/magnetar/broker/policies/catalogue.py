"""All policies, one row each. Their routes, what is in force and the rules of access are derived from the rows.

A bad row is refused when this module is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from magnetar.broker.policies.policy import NUMBERS, RATES, Kind, OfNamespace, OfTopic, Policy
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.errors import Misuse
from magnetar.core.setting import rows_of

EMPTY_BODY: Final = "The request entity cannot be empty."

POLICIES: Final = (
    # What is stored.
    Policy(
        name="retention",
        access="RETENTION",
        topic=OfTopic("retention", "retentionPolicies", special=True),
        namespace=OfNamespace("retention", "retention_policies", special=True),
    ),
    Policy(
        name="backlog_quota",
        access="BACKLOG",
        topic=OfTopic("backlogQuota backlogQuotaMap", "backLogQuotaMap", special=True),
        namespace=OfNamespace("backlogQuota backlogQuotaMap", "backlog_quota_map", special=True),
    ),
    Policy(
        name="message_ttl_seconds",
        access="TTL",
        kind=Kind.COUNT,
        settings=("ttlDurationDefaultInSeconds",),
        topic=OfTopic("messageTTL", "messageTTLInSeconds", special=True),
        namespace=OfNamespace(
            "messageTTL", "message_ttl_in_seconds", refusal="Invalid value for message TTL, message TTL must >= 0"
        ),
    ),
    Policy(
        name="compaction_threshold_bytes",
        access="COMPACTION",
        kind=Kind.SIZE,
        settings=("brokerServiceCompactionThresholdInBytes",),
        topic=OfTopic("compactionThreshold", refusal="Invalid value for compactionThreshold", null_refusal=EMPTY_BODY),
        namespace=OfNamespace("compactionThreshold", "compaction_threshold", verb="PUT"),
    ),
    Policy(
        name="deduplication",
        access="DEDUPLICATION",
        kind=Kind.FLAG,
        settings=("brokerDeduplicationEnabled",),
        topic=OfTopic("deduplicationEnabled"),
        namespace=OfNamespace("deduplication", "deduplicationEnabled"),
    ),
    Policy(
        name="deduplication_snapshot_seconds",
        access="DEDUPLICATION_SNAPSHOT",
        kind=Kind.COUNT,
        settings=("brokerDeduplicationSnapshotIntervalSeconds",),
        topic=OfTopic(
            "deduplicationSnapshotInterval",
            "deduplicationSnapshotIntervalSeconds",
            refusal="interval must be 0 or more",
            applied=False,
        ),
        namespace=OfNamespace(
            "deduplicationSnapshotInterval",
            "deduplicationSnapshotIntervalSeconds",
            refusal="interval must be greater than or equal to 0",
            removable=False,
            body_required=False,
            no_policies="change",
        ),
    ),
    Policy(
        name="ledger",
        access="PERSISTENCE",
        kind=Kind.PERSISTENCE,
        topic=OfTopic("persistence", null_refusal="persistence policies should not be null"),
        namespace=OfNamespace("persistence"),
    ),
    Policy(
        name="offload",
        access="OFFLOAD",
        topic=OfTopic("offloadPolicies", special=True),
        namespace=OfNamespace(
            "offloadPolicies removeOffloadPolicies scanOffloadedLedgers offloadThreshold offloadThresholdInSeconds "
            "offloadDeletionLagMs",
            "offload_policies",
            special=True,
        ),
    ),
    # How many there may be.
    Policy(
        name="producers_max",
        access="MAX_PRODUCERS",
        kind=Kind.COUNT,
        settings=("maxProducersPerTopic",),
        topic=OfTopic("maxProducers", "maxProducerPerTopic", null_refusal=EMPTY_BODY),
        namespace=OfNamespace("maxProducersPerTopic", "max_producers_per_topic"),
    ),
    Policy(
        name="consumers_max",
        access="MAX_CONSUMERS",
        kind=Kind.COUNT,
        settings=("maxConsumersPerTopic",),
        topic=OfTopic("maxConsumers", "maxConsumerPerTopic", null_refusal=EMPTY_BODY),
        namespace=OfNamespace("maxConsumersPerTopic", "max_consumers_per_topic"),
    ),
    Policy(
        name="consumers_per_subscription_max",
        access="MAX_CONSUMERS",
        kind=Kind.COUNT,
        settings=("maxConsumersPerSubscription",),
        topic=OfTopic(
            "maxConsumersPerSubscription",
            refusal="Invalid value for maxConsumersPerSubscription",
            applied=False,
            unset_status=204,
            null_refusal=EMPTY_BODY,
        ),
        namespace=OfNamespace("maxConsumersPerSubscription", "max_consumers_per_subscription"),
    ),
    Policy(
        name="subscriptions_max",
        access="MAX_SUBSCRIPTIONS",
        kind=Kind.COUNT,
        settings=("maxSubscriptionsPerTopic",),
        topic=OfTopic("maxSubscriptionsPerTopic", applied=False, unset_status=204, null_refusal=EMPTY_BODY),
        namespace=OfNamespace("maxSubscriptionsPerTopic", "max_subscriptions_per_topic", no_policies="change"),
    ),
    Policy(
        name="topics_per_namespace_max",
        access="MAX_TOPICS",
        kind=Kind.COUNT,
        settings=("maxTopicsPerNamespace",),
        namespace=OfNamespace("maxTopicsPerNamespace", "max_topics_per_namespace", absent=0, no_policies="change"),
    ),
    Policy(
        name="dispatch.unacked_messages_per_consumer_max",
        access="MAX_UNACKED",
        kind=Kind.COUNT,
        settings=("maxUnackedMessagesPerConsumer",),
        topic=OfTopic("maxUnackedMessagesOnConsumer", refusal="maxUnackedNum must be 0 or more"),
        namespace=OfNamespace("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer"),
    ),
    Policy(
        name="dispatch.unacked_messages_per_subscription_max",
        access="MAX_UNACKED",
        kind=Kind.COUNT,
        settings=("maxUnackedMessagesPerSubscription",),
        topic=OfTopic("maxUnackedMessagesOnSubscription", refusal="maxUnackedNum must be 0 or more"),
        namespace=OfNamespace("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription"),
    ),
    Policy(
        name="message_size_bytes_max",
        access="",
        topic=OfTopic("maxMessageSize", special=True),
    ),
    # What is made on first use, and what goes by itself.
    Policy(
        name="auto_topic_creation",
        access="AUTO_TOPIC_CREATION",
        kind=Kind.AUTO_TOPIC_CREATION,
        namespace=OfNamespace("autoTopicCreation", "autoTopicCreationOverride", body_required=False),
    ),
    Policy(
        name="auto_subscription_creation",
        access="AUTO_SUBSCRIPTION_CREATION",
        kind=Kind.AUTO_SUBSCRIPTION_CREATION,
        topic=OfTopic("autoSubscriptionCreation", "autoSubscriptionCreationOverride"),
        namespace=OfNamespace("autoSubscriptionCreation", "autoSubscriptionCreationOverride", body_required=False),
    ),
    Policy(
        name="subscription_expiration_minutes",
        access="SUBSCRIPTION_EXPIRATION_TIME",
        kind=Kind.COUNT,
        settings=("subscriptionExpirationTimeMinutes",),
        topic=OfTopic("", "subscriptionExpirationTimeInMinutes"),
        namespace=OfNamespace(
            "subscriptionExpirationTime",
            "subscription_expiration_time_minutes",
            refusal="Invalid value for subscription expiration time",
        ),
    ),
    Policy(
        name="inactive_topics",
        access="INACTIVE_TOPIC",
        kind=Kind.INACTIVE_TOPICS,
        topic=OfTopic("inactiveTopicPolicies"),
        namespace=OfNamespace(
            "inactiveTopicPolicies", "inactive_topic_policies", body_required=False, no_policies="change"
        ),
    ),
    # How much may pass.
    Policy(
        name="publish_rate",
        access="RATE",
        kind=Kind.PUBLISH_RATE,
        settings=("maxPublishRatePerTopicInMessages", "maxPublishRatePerTopicInBytes"),
        topic=OfTopic("publishRate", applied=False, unset_status=204),
        namespace=OfNamespace("publishRate", "publishMaxMessageRate", body_required=False),
    ),
    Policy(
        name="topic_dispatch_rate",
        access="RATE",
        kind=Kind.DISPATCH_RATE,
        settings=("dispatchThrottlingRatePerTopicInMsg", "dispatchThrottlingRatePerTopicInByte"),
        topic=OfTopic("dispatchRate"),
        namespace=OfNamespace("dispatchRate", "topicDispatchRate", also=("clusterDispatchRate",), body_required=False),
    ),
    Policy(
        name="subscription_dispatch_rate",
        access="RATE",
        kind=Kind.DISPATCH_RATE,
        settings=("dispatchThrottlingRatePerSubscriptionInMsg", "dispatchThrottlingRatePerSubscriptionInByte"),
        topic=OfTopic("subscriptionDispatchRate"),
        namespace=OfNamespace("subscriptionDispatchRate", body_required=False),
    ),
    Policy(
        name="dispatch_rates",
        access="RATE",
        topic=OfTopic("{subscription}/dispatchRate", "subscriptionPolicies", special=True),
    ),
    Policy(
        name="replicator_dispatch_rate",
        access="REPLICATION_RATE",
        kind=Kind.DISPATCH_RATE,
        settings=("dispatchThrottlingRatePerReplicatorInMsg", "dispatchThrottlingRatePerReplicatorInByte"),
        topic=OfTopic("replicatorDispatchRate"),
        namespace=OfNamespace("replicatorDispatchRate", body_required=False, no_policies="read"),
    ),
    Policy(
        name="subscribe_rate",
        access="RATE",
        kind=Kind.SUBSCRIBE_RATE,
        topic=OfTopic("subscribeRate"),
        namespace=OfNamespace("subscribeRate", "clusterSubscribeRate", body_required=False),
    ),
    # How messages are delivered.
    Policy(
        name="delayed_delivery",
        access="DELAYED_DELIVERY",
        kind=Kind.DELAYED_DELIVERY,
        topic=OfTopic(
            "delayedDelivery",
            "delayedDeliveryEnabled",
            also=("delayedDeliveryTickTimeMillis", "delayedDeliveryMaxDelayInMillis"),
            special=True,
        ),
        namespace=OfNamespace(
            "delayedDelivery", "delayed_delivery_policies", body_required=False, no_policies="change"
        ),
    ),
    Policy(
        name="subscription_types",
        access="SUBSCRIPTION_AUTH_MODE",
        kind=Kind.SUBSCRIPTION_TYPES,
        topic=OfTopic("subscriptionTypesEnabled", special=True),
        namespace=OfNamespace("subscriptionTypesEnabled", "subscription_types_enabled", absent=[], removed=[]),
    ),
    Policy(
        name="entry_filters",
        access="ENTRY_FILTERS",
        kind=Kind.ENTRY_FILTERS,
        topic=OfTopic("entryFilters", special=True),
        namespace=OfNamespace("entryFilters", body_required=False),
    ),
    Policy(
        name="pause_on_ack_state",
        access="DISPATCHER_PAUSE_ON_ACK_STATE_PERSISTENT",
        topic=OfTopic(
            "dispatcherPauseOnAckStatePersistent", "dispatcherPauseOnAckStatePersistentEnabled", special=True
        ),
        namespace=OfNamespace(
            "dispatcherPauseOnAckStatePersistent", "dispatcherPauseOnAckStatePersistentEnabled", special=True
        ),
    ),
    # What is let in.
    Policy(
        name="encryption_required",
        access="ENCRYPTION",
        kind=Kind.FLAG,
        settings=("encryptionRequireOnProducer",),
        wanted_by_any=True,
        namespace=OfNamespace("encryptionRequired", "encryption_required", absent=False, removable=False),
    ),
    Policy(
        name="schema_validation_enforced",
        access="SCHEMA_COMPATIBILITY_STRATEGY",
        kind=Kind.FLAG,
        settings=("isSchemaValidationEnforced",),
        wanted_by_any=True,
        topic=OfTopic("schemaValidationEnforced", unset=False, null_refusal=EMPTY_BODY, removable=False),
        namespace=OfNamespace("schemaValidationEnforced", "schema_validation_enforced", absent=False, removable=False),
    ),
    Policy(
        name="schema_compatibility",
        access="SCHEMA_COMPATIBILITY_STRATEGY",
        kind=Kind.STRATEGY,
        topic=OfTopic("schemaCompatibilityStrategy", special=True),
        namespace=OfNamespace(
            "schemaCompatibilityStrategy",
            "schema_compatibility_strategy",
            verb="PUT",
            absent="UNDEFINED",
            removable=False,
            body_required=False,
        ),
    ),
    Policy(
        name="schema_auto_update",
        access="SCHEMA_COMPATIBILITY_STRATEGY",
        kind=Kind.AUTO_UPDATE_STRATEGY,
        namespace=OfNamespace(
            "schemaAutoUpdateCompatibilityStrategy",
            "schema_auto_update_compatibility_strategy",
            verb="PUT",
            absent_status=204,
            removable=False,
            body_required=False,
        ),
    ),
    Policy(
        name="schema_auto_update_allowed",
        access="SCHEMA_COMPATIBILITY_STRATEGY",
        kind=Kind.FLAG,
        namespace=OfNamespace("isAllowAutoUpdateSchema", "is_allow_auto_update_schema", absent=True, removable=False),
    ),
    Policy(
        name="subscription_auth_mode",
        access="SUBSCRIPTION_AUTH_MODE",
        kind=Kind.SUBSCRIPTION_AUTH_MODE,
        namespace=OfNamespace(
            "subscriptionAuthMode", "subscription_auth_mode", absent="None", removable=False, body_required=False
        ),
    ),
    # Where it is, and the rest.
    Policy(
        name="replication",
        access="REPLICATION",
        topic=OfTopic("replication", "replicationClusters", special=True),
        namespace=OfNamespace("replication", "replication_clusters", special=True),
    ),
    Policy(
        name="allowed_clusters",
        access="ALLOW_CLUSTERS",
        namespace=OfNamespace("allowedClusters", "allowed_clusters", special=True),
    ),
    Policy(
        name="shadow_topics",
        access="SHADOW_TOPIC",
        topic=OfTopic("shadowTopics", special=True),
    ),
    Policy(
        name="resource_group",
        access="RESOURCEGROUP",
        namespace=OfNamespace("resourcegroup resourcegroup/{group}", "resource_group_name", special=True),
    ),
    Policy(
        name="property_keys_for_metrics",
        access="TOPIC_PROPERTY_KEYS",
        kind=Kind.TEXTS,
        namespace=OfNamespace(
            "allowedTopicPropertyKeysForMetrics", "allowed_topic_property_keys_for_metrics", body_required=False
        ),
    ),
)


SETTING_PATHS: Final = {row.name: row.path for row in rows_of(BrokerSettings)}

UPSTREAM: Final = frozenset(Path(__file__).with_name("upstream_policies.txt").read_text(encoding="utf-8").split())
"""Names of Apache's classes: what authorization is asked for, and members of the documents."""


def check(policies: Sequence[Policy]) -> None:
    """`Misuse` names the row that is wrong."""
    seen: set[str] = set()
    for policy in policies:
        names = [policy.name]
        names += [f"{type(level).__name__} {path}" for level in policy.levels for path in level.paths]
        problems = [f"another policy has {name}" for name in names if name in seen]
        seen.update(names)
        problems += _problems(policy)
        if problems:
            raise Misuse(f"the policy {policy.name}: {problems[0]}")


def _problems(policy: Policy) -> Iterator[str]:
    upstream = [f"PolicyName.{policy.access}"] if policy.access else []
    upstream += [f"TopicPolicies.{key}" for key in policy.topic_keys]
    upstream += [f"Policies.{key}" for key in policy.namespace_keys]
    for name in upstream:
        if name not in UPSTREAM:
            yield f"Apache has no {name}"
    for name in policy.settings:
        if name not in SETTING_PATHS:
            yield f"brokers have no setting {name}"
    wanted = 2 if policy.kind in RATES else int(policy.kind in (*NUMBERS, Kind.FLAG))
    if len(policy.settings) not in (0, wanted):
        yield f"{policy.kind} does not come from {len(policy.settings)} settings"
    if policy.kind is Kind.OTHER and any(level.path and not level.special for level in policy.levels):
        yield "without a kind it needs handlers of its own"


check(POLICIES)

BY_NAME: Final = {policy.name: policy for policy in POLICIES}
