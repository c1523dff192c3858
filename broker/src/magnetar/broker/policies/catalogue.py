"""All policies, one row each. Their routes, what is in force and the rules of access are derived from the rows.

A bad row is refused when this module is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from magnetar.broker.policies.policy import FLAGS, NUMBERS, RATES, OfNamespace, OfTopic, Policy, PolicyKind
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.errors import Misuse
from magnetar.core.setting import rows_of

EMPTY_BODY: Final = "The request entity cannot be empty."

POLICIES: Final = (
    # What is stored.
    Policy(
        name="retention",
        says="how long and how much is kept of what is consumed",
        access="RETENTION",
        topic=OfTopic("retention", "retentionPolicies", special="get set"),
        namespace=OfNamespace("retention", "retention_policies", no_policies="change", special="set"),
    ),
    Policy(
        name="backlog_quota",
        says="how large backlogs may get, and what happens beyond it",
        access="BACKLOG",
        topic=OfTopic("backlogQuota backlogQuotaMap", "backLogQuotaMap", special="get set remove"),
        namespace=OfNamespace("backlogQuota backlogQuotaMap", "backlog_quota_map", special="get set remove"),
    ),
    Policy(
        name="message_ttl_seconds",
        says="after how many seconds messages are acknowledged by themselves",
        access="TTL",
        kind=PolicyKind.COUNT,
        settings=("ttlDurationDefaultInSeconds",),
        topic=OfTopic("messageTTL", "messageTTLInSeconds", special="set"),
        namespace=OfNamespace(
            "messageTTL", "message_ttl_in_seconds", refusal="Invalid value for message TTL, message TTL must >= 0"
        ),
    ),
    Policy(
        name="compaction_threshold_bytes",
        says="the size of the backlog in bytes from which on the topic is compacted, 0 for never",
        access="COMPACTION",
        kind=PolicyKind.SIZE,
        settings=("brokerServiceCompactionThresholdInBytes",),
        topic=OfTopic("compactionThreshold", refusal="Invalid value for compactionThreshold", null_refusal=EMPTY_BODY),
        namespace=OfNamespace("compactionThreshold", "compaction_threshold", verb="PUT"),
    ),
    Policy(
        name="deduplication",
        says="whether messages that were sent twice are stored once",
        access="DEDUPLICATION",
        kind=PolicyKind.FLAG,
        settings=("brokerDeduplicationEnabled",),
        topic=OfTopic("deduplicationEnabled"),
        namespace=OfNamespace("deduplication", "deduplicationEnabled"),
    ),
    Policy(
        name="deduplication_snapshot_seconds",
        says="the seconds between snapshots of what is known for deduplication",
        access="DEDUPLICATION_SNAPSHOT",
        kind=PolicyKind.COUNT,
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
        says="how many copies there are of what is stored",
        access="PERSISTENCE",
        kind=PolicyKind.PERSISTENCE,
        topic=OfTopic("persistence", null_refusal="persistence policies should not be null"),
        namespace=OfNamespace("persistence"),
    ),
    Policy(
        name="offload",
        says="what is moved to other storage",
        access="OFFLOAD",
        topic=OfTopic("offloadPolicies", special="get set"),
        namespace=OfNamespace(
            "offloadPolicies removeOffloadPolicies scanOffloadedLedgers offloadThreshold offloadThresholdInSeconds "
            "offloadDeletionLagMs",
            "offload_policies",
            special="get set remove",
        ),
    ),
    # How many there may be.
    Policy(
        name="producers_max",
        says="how many producers there may be",
        access="MAX_PRODUCERS",
        kind=PolicyKind.COUNT,
        settings=("maxProducersPerTopic",),
        topic=OfTopic("maxProducers", "maxProducerPerTopic", null_refusal=EMPTY_BODY),
        namespace=OfNamespace("maxProducersPerTopic", "max_producers_per_topic"),
    ),
    Policy(
        name="consumers_max",
        says="how many consumers there may be",
        access="MAX_CONSUMERS",
        kind=PolicyKind.COUNT,
        settings=("maxConsumersPerTopic",),
        topic=OfTopic("maxConsumers", "maxConsumerPerTopic", null_refusal=EMPTY_BODY),
        namespace=OfNamespace("maxConsumersPerTopic", "max_consumers_per_topic"),
    ),
    Policy(
        name="consumers_per_subscription_max",
        says="how many consumers a subscription may have",
        access="MAX_CONSUMERS",
        kind=PolicyKind.COUNT,
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
        says="how many subscriptions there may be",
        access="MAX_SUBSCRIPTIONS",
        kind=PolicyKind.COUNT,
        settings=("maxSubscriptionsPerTopic",),
        topic=OfTopic("maxSubscriptionsPerTopic", applied=False, unset_status=204, null_refusal=EMPTY_BODY),
        namespace=OfNamespace("maxSubscriptionsPerTopic", "max_subscriptions_per_topic", no_policies="change"),
    ),
    Policy(
        name="topics_per_namespace_max",
        says="how many topics there may be",
        access="MAX_TOPICS",
        kind=PolicyKind.COUNT,
        settings=("maxTopicsPerNamespace",),
        namespace=OfNamespace("maxTopicsPerNamespace", "max_topics_per_namespace", unset=0, no_policies="change"),
    ),
    Policy(
        name="dispatch.unacked_messages_per_consumer_max",
        says="how many messages a consumer may hold unacknowledged",
        access="MAX_UNACKED",
        kind=PolicyKind.COUNT,
        settings=("maxUnackedMessagesPerConsumer",),
        topic=OfTopic("maxUnackedMessagesOnConsumer", refusal="maxUnackedNum must be 0 or more"),
        namespace=OfNamespace("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer"),
    ),
    Policy(
        name="dispatch.unacked_messages_per_subscription_max",
        says="how many messages a subscription's consumers may hold unacknowledged",
        access="MAX_UNACKED",
        kind=PolicyKind.COUNT,
        settings=("maxUnackedMessagesPerSubscription",),
        topic=OfTopic("maxUnackedMessagesOnSubscription", refusal="maxUnackedNum must be 0 or more"),
        namespace=OfNamespace("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription"),
    ),
    Policy(
        name="message_size_bytes_max",
        says="how large messages may be",
        access="",
        topic=OfTopic("maxMessageSize", applied=False, unset_status=204, special="set"),
    ),
    # What is made on first use, and what goes by itself.
    Policy(
        name="auto_topic_creation",
        says="whether topics are made by their first client",
        access="AUTO_TOPIC_CREATION",
        kind=PolicyKind.AUTO_TOPIC_CREATION,
        namespace=OfNamespace("autoTopicCreation", "autoTopicCreationOverride", body_required=False),
    ),
    Policy(
        name="auto_subscription_creation",
        says="whether subscriptions are made by their first consumer",
        access="AUTO_SUBSCRIPTION_CREATION",
        kind=PolicyKind.AUTO_SUBSCRIPTION_CREATION,
        topic=OfTopic("autoSubscriptionCreation", "autoSubscriptionCreationOverride"),
        namespace=OfNamespace("autoSubscriptionCreation", "autoSubscriptionCreationOverride", body_required=False),
    ),
    Policy(
        name="subscription_expiration_minutes",
        says="after how many minutes subscriptions that nobody uses are removed",
        access="SUBSCRIPTION_EXPIRATION_TIME",
        kind=PolicyKind.COUNT,
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
        says="when a topic is deleted because nobody uses it",
        access="INACTIVE_TOPIC",
        kind=PolicyKind.INACTIVE_TOPICS,
        topic=OfTopic("inactiveTopicPolicies"),
        namespace=OfNamespace(
            "inactiveTopicPolicies", "inactive_topic_policies", body_required=False, no_policies="change"
        ),
    ),
    # How much may pass.
    Policy(
        name="publish_rate",
        says="how much may be published",
        access="RATE",
        kind=PolicyKind.PUBLISH_RATE,
        settings=("maxPublishRatePerTopicInMessages", "maxPublishRatePerTopicInBytes"),
        topic=OfTopic("publishRate", applied=False, unset_status=204),
        namespace=OfNamespace("publishRate", "publishMaxMessageRate", body_required=False),
    ),
    Policy(
        name="topic_dispatch_rate",
        says="how much may be sent to consumers",
        access="RATE",
        kind=PolicyKind.DISPATCH_RATE,
        settings=(
            "dispatchThrottlingRatePerTopicInMsg",
            "dispatchThrottlingRatePerTopicInByte",
            "dispatchThrottlingRateRelativeToPublishRate",
        ),
        topic=OfTopic("dispatchRate"),
        namespace=OfNamespace("dispatchRate", "topicDispatchRate", also=("clusterDispatchRate",), body_required=False),
    ),
    Policy(
        name="subscription_dispatch_rate",
        says="how much may be sent to the consumers of each subscription",
        access="RATE",
        kind=PolicyKind.DISPATCH_RATE,
        settings=(
            "dispatchThrottlingRatePerSubscriptionInMsg",
            "dispatchThrottlingRatePerSubscriptionInByte",
            "dispatchThrottlingRateRelativeToPublishRate",
        ),
        topic=OfTopic("subscriptionDispatchRate"),
        namespace=OfNamespace("subscriptionDispatchRate", body_required=False),
    ),
    Policy(
        name="dispatch_rates",
        says="how much may be sent to the consumers of one subscription",
        access="RATE",
        topic=OfTopic("{subscription}/dispatchRate", "subscriptionPolicies", special="get set remove"),
    ),
    Policy(
        name="replicator_dispatch_rate",
        says="how much may be sent to other clusters",
        access="REPLICATION_RATE",
        kind=PolicyKind.DISPATCH_RATE,
        settings=("dispatchThrottlingRatePerReplicatorInMsg", "dispatchThrottlingRatePerReplicatorInByte"),
        topic=OfTopic("replicatorDispatchRate"),
        namespace=OfNamespace("replicatorDispatchRate", body_required=False, no_policies="read"),
    ),
    Policy(
        name="subscribe_rate",
        says="how often a consumer may subscribe",
        access="RATE",
        kind=PolicyKind.SUBSCRIBE_RATE,
        topic=OfTopic("subscribeRate"),
        namespace=OfNamespace("subscribeRate", "clusterSubscribeRate", body_required=False),
    ),
    # How messages are delivered.
    Policy(
        name="delayed_delivery",
        says="whether messages may be delivered later, and how exactly",
        access="DELAYED_DELIVERY",
        kind=PolicyKind.DELAYED_DELIVERY,
        topic=OfTopic(
            "delayedDelivery",
            "delayedDeliveryEnabled",
            also=("delayedDeliveryTickTimeMillis", "delayedDeliveryMaxDelayInMillis"),
            special="get set",
        ),
        namespace=OfNamespace(
            "delayedDelivery", "delayed_delivery_policies", body_required=False, no_policies="change"
        ),
    ),
    Policy(
        name="subscription_types",
        says="which types of subscriptions there may be; none named: all",
        access="SUBSCRIPTION_AUTH_MODE",
        kind=PolicyKind.SUBSCRIPTION_TYPES,
        topic=OfTopic("subscriptionTypesEnabled", applied=False, unset=[], special="set"),
        namespace=OfNamespace("subscriptionTypesEnabled", "subscription_types_enabled", unset=[], removed=[]),
    ),
    Policy(
        name="entry_filters",
        says="which filters entries go through",
        access="ENTRY_FILTERS",
        kind=PolicyKind.ENTRY_FILTERS,
        topic=OfTopic("entryFilters", special="get set"),
        namespace=OfNamespace("entryFilters", body_required=False),
    ),
    Policy(
        name="dispatch.pauses_on_ack_state",
        says="whether sending waits while acknowledgements cannot be stored",
        access="DISPATCHER_PAUSE_ON_ACK_STATE_PERSISTENT",
        kind=PolicyKind.SWITCH,
        settings=("dispatcherPauseOnAckStatePersistentEnabled",),
        topic=OfTopic(
            "dispatcherPauseOnAckStatePersistent",
            "dispatcherPauseOnAckStatePersistentEnabled",
            unset=False,
        ),
        namespace=OfNamespace(
            "dispatcherPauseOnAckStatePersistent",
            "dispatcherPauseOnAckStatePersistentEnabled",
            unset=False,
            removed=False,
            no_policies="read",
        ),
    ),
    # What is let in.
    Policy(
        name="encryption_required",
        says="whether messages must be encrypted",
        access="ENCRYPTION",
        kind=PolicyKind.FLAG,
        settings=("encryptionRequireOnProducer",),
        broker_prevails=True,
        namespace=OfNamespace("encryptionRequired", "encryption_required", unset=False, removable=False),
    ),
    Policy(
        name="schema_validation_enforced",
        says="whether producers must have a schema when the topic has one",
        access="SCHEMA_COMPATIBILITY_STRATEGY",
        kind=PolicyKind.FLAG,
        settings=("isSchemaValidationEnforced",),
        broker_prevails=True,
        topic=OfTopic("schemaValidationEnforced", unset=False, null_refusal=EMPTY_BODY, removable=False),
        namespace=OfNamespace("schemaValidationEnforced", "schema_validation_enforced", unset=False, removable=False),
    ),
    Policy(
        name="schema_compatibility",
        says="how a new schema must be compatible with those before",
        access="SCHEMA_COMPATIBILITY_STRATEGY",
        kind=PolicyKind.STRATEGY,
        topic=OfTopic("schemaCompatibilityStrategy", special="set"),
        namespace=OfNamespace(
            "schemaCompatibilityStrategy",
            "schema_compatibility_strategy",
            verb="PUT",
            unset="UNDEFINED",
            removable=False,
            body_required=False,
        ),
    ),
    Policy(
        name="schema_auto_update",
        says="the same under its older name, which counts where the other is not set",
        access="SCHEMA_COMPATIBILITY_STRATEGY",
        kind=PolicyKind.AUTO_UPDATE_STRATEGY,
        namespace=OfNamespace(
            "schemaAutoUpdateCompatibilityStrategy",
            "schema_auto_update_compatibility_strategy",
            verb="PUT",
            unset_status=204,
            removable=False,
            body_required=False,
        ),
    ),
    Policy(
        name="schema_auto_update_allowed",
        says="whether producers may bring new schemas",
        access="SCHEMA_COMPATIBILITY_STRATEGY",
        kind=PolicyKind.FLAG,
        settings=("isAllowAutoUpdateSchemaEnabled",),
        namespace=OfNamespace(
            "isAllowAutoUpdateSchema", "is_allow_auto_update_schema", unset_is_brokers=True, removable=False
        ),
    ),
    Policy(
        name="subscription_auth_mode",
        says="whether subscriptions must begin with the role of who consumes",
        access="SUBSCRIPTION_AUTH_MODE",
        kind=PolicyKind.SUBSCRIPTION_AUTH_MODE,
        namespace=OfNamespace(
            "subscriptionAuthMode", "subscription_auth_mode", unset="None", removable=False, body_required=False
        ),
    ),
    # Where it is, and the rest.
    Policy(
        name="replication",
        says="which clusters it is in",
        access="REPLICATION",
        topic=OfTopic("replication", "replicationClusters", special="set"),
        namespace=OfNamespace("replication", "replication_clusters", special="get set remove"),
    ),
    Policy(
        name="allowed_clusters",
        says="which clusters it may be in",
        access="ALLOW_CLUSTERS",
        namespace=OfNamespace("allowedClusters", "allowed_clusters", special="get set remove"),
    ),
    Policy(
        name="shadow_topics",
        says="which topics show what this one stores",
        access="SHADOW_TOPIC",
        topic=OfTopic("shadowTopics", applied=False, special="set"),
    ),
    Policy(
        name="resource_group",
        says="which group of namespaces shares limits with it",
        access="RESOURCEGROUP",
        namespace=OfNamespace("resourcegroup resourcegroup/{group}", "resource_group_name", special="get set remove"),
    ),
    Policy(
        name="property_keys_for_metrics",
        says="which properties of topics become labels of metrics",
        access="TOPIC_PROPERTY_KEYS",
        kind=PolicyKind.TEXTS,
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
    wanted = (2, 3) if policy.kind in RATES else (1,) if policy.kind in (*NUMBERS, *FLAGS) else ()
    if policy.namespace is not None and policy.namespace.unset_is_brokers and len(policy.settings) != 1:
        yield "what GET answers when it is not set comes from one setting"
    if policy.settings and len(policy.settings) not in wanted:
        yield f"{policy.kind} does not come from {len(policy.settings)} settings"
    if policy.kind is PolicyKind.OTHER and any(level.serves("set") for level in policy.levels):
        yield "without a kind it needs a handler of its own to set it"


check(POLICIES)

BY_NAME: Final = {policy.name: policy for policy in POLICIES}
