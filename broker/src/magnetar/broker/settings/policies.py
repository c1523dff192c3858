"""What a broker's own settings say where neither a topic nor its namespace does, and how often policies are checked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from magnetar.broker.schema.strategy import Strategy
from magnetar.core.limits import MIB
from magnetar.core.setting import class_named, setting


class BacklogQuotaPolicy(Enum):
    """What happens when a backlog is over its quota (Pulsar `BacklogQuota.RetentionPolicy`)."""

    HOLD = "producer_request_hold"
    """Producers are sent away and told to wait until the backlog is smaller."""
    REFUSE = "producer_exception"
    """Producers are sent away with an error for the application."""
    EVICT = "consumer_backlog_eviction"
    """The slowest subscriptions lose their oldest entries."""


class InactiveTopicDeleteMode(Enum):
    """When a topic that nobody uses is deleted."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    CAUGHT_UP = "delete_when_subscriptions_caught_up"
    """Topics without subscriptions, and those whose subscriptions have acknowledged everything."""


class CompactionOrder(Enum):
    """Which message of a key compaction keeps (Pulsar `TopicCompactionService`)."""

    PUBLISHED = "PulsarCompactionServiceFactory"
    """The one that was published last."""
    EVENT_TIME = "EventTimeCompactionServiceFactory"
    """The one with the highest event time."""


REPLICATION_STARTS: Final = {"latest": "latest", "earliest": "earliest", "-1:-1:-1": "earliest"}
"""The words of `replicationStartAt`. The last one is what a client calls the earliest message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """A broker's defaults of policies, under Pulsar's own names (`ServiceConfiguration`). For limits of numbers and
    rates 0 is none. Rates without a unit in their names are in bytes."""

    retention_minutes: int = setting("defaultRetentionTimeInMinutes", 0, below_zero=-1)
    retention_megabytes: int = setting("defaultRetentionSizeInMB", 0, below_zero=-1)
    retention_check_seconds: int = setting("retentionCheckIntervalInSeconds", 120, below_zero=0)
    """Seconds between two looks for ledgers whose retention is over; 0: nobody looks, and they go when something else
    happens to their topic."""
    message_ttl_seconds: int = setting("ttlDurationDefaultInSeconds", 0, below_zero=0)
    message_expiry_check_seconds: float = setting("messageExpiryCheckIntervalInMinutes", 300, low=60)
    backlog_quota_check: bool = setting("backlogQuotaCheckEnabled", True)
    backlog_quota_check_seconds: float = setting("backlogQuotaCheckIntervalInSeconds", 60, low=1)
    backlog_quota_bytes: int = setting("backlogQuotaDefaultLimitBytes", -1, below_zero=-1)
    backlog_quota_age_seconds: int = setting("backlogQuotaDefaultLimitSecond", -1, unit="seconds", below_zero=-1)
    backlog_quota_policy: BacklogQuotaPolicy = setting("backlogQuotaDefaultRetentionPolicy", BacklogQuotaPolicy.HOLD)
    backlog_quota_age_precise: bool = setting("preciseTimeBasedBacklogQuotaCheck", False)
    subscription_expiration_minutes: int = setting("subscriptionExpirationTimeMinutes", 0, below_zero=0)
    subscription_expiry_check_seconds: float = setting("subscriptionExpiryCheckIntervalInMinutes", 300, low=60)

    delete_inactive_topics: bool = setting("brokerDeleteInactiveTopicsEnabled", True, dynamic="broker")
    delete_inactive_topics_check_seconds: int = setting(
        "brokerDeleteInactiveTopicsFrequencySeconds", 60, low=1, dynamic="broker"
    )
    delete_inactive_topics_mode: InactiveTopicDeleteMode = setting(
        "brokerDeleteInactiveTopicsMode", InactiveTopicDeleteMode.NO_SUBSCRIPTIONS, dynamic="broker"
    )
    delete_inactive_topics_after_seconds: int | None = setting(
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds", None, dynamic="broker", below_zero=0
    )
    """Seconds without use after which a topic is deleted; None: as long as the time between checks."""
    delete_inactive_partitioned_metadata: bool = setting(
        "brokerDeleteInactivePartitionedTopicMetadataEnabled", False, dynamic="broker"
    )

    producers_per_topic_max: int = setting("maxProducersPerTopic", 0, below_zero=0)
    same_address_producers_max: int = setting("maxSameAddressProducersPerTopic", 0, below_zero=0)
    consumers_per_topic_max: int = setting("maxConsumersPerTopic", 0, below_zero=0)
    same_address_consumers_max: int = setting("maxSameAddressConsumersPerTopic", 0, below_zero=0)
    consumers_per_subscription_max: int = setting("maxConsumersPerSubscription", 0, below_zero=0)
    subscriptions_per_topic_max: int = setting("maxSubscriptionsPerTopic", 0, below_zero=0)
    topics_per_namespace_max: int = setting("maxTopicsPerNamespace", 0, dynamic="broker", below_zero=0)
    partitions_per_topic_max: int = setting("maxNumPartitionsPerPartitionedTopic", 0, dynamic="broker", below_zero=0)
    connections_max: int = setting("brokerMaxConnections", 50_000, below_zero=0)
    """Five times what a broker was measured with. Pulsar has no limit by default."""
    connections_per_address_max: int = setting("brokerMaxConnectionsPerIp", 20_000, below_zero=0)
    """Twice what a proxy of Pulsar takes, which is one address for all of its clients; an address has 28 000 ports for
    one broker. Pulsar has no limit by default."""
    unacked_messages_per_broker_max: int = setting("maxUnackedMessagesPerBroker", 0, below_zero=0)
    unacked_share_when_broker_blocked: float = setting(
        "maxUnackedMessagesPerSubscriptionOnBrokerBlocked", 0.16, low=0, high=1
    )
    """Subscriptions that hold more than this share of the broker's limit are stopped while it is reached."""

    publish_messages_per_topic: int = setting("maxPublishRatePerTopicInMessages", 0, dynamic="broker", below_zero=0)
    publish_per_topic_bytes: int = setting("maxPublishRatePerTopicInBytes", 0, dynamic="broker", below_zero=0)
    publish_messages: int = setting("brokerPublisherThrottlingMaxMessageRate", 0, dynamic="broker", below_zero=0)
    """Messages per second that all producers of the broker together may publish; 0 is no limit."""
    publish_bytes: int = setting("brokerPublisherThrottlingMaxByteRate", 0, dynamic="broker", below_zero=0)
    publish_buffer_bytes_max: int = setting(
        "maxMessagePublishBufferSizeInMB", 512 * MIB, below_zero=0, dynamic="broker"
    )
    """Unacknowledged publishes of all connections before those that publish are read no further; room for thirty
    connections that use up their own part. Apache's is half of the direct memory."""

    dispatch_messages: int = setting("dispatchThrottlingRateInMsg", 0, dynamic="broker", below_zero=0)
    """Messages per second that the broker may send to all its consumers together; 0 is no limit."""
    dispatch_bytes: int = setting("dispatchThrottlingRateInByte", 0, dynamic="broker", below_zero=0)
    dispatch_messages_per_topic: int = setting("dispatchThrottlingRatePerTopicInMsg", 0, dynamic="broker", below_zero=0)
    dispatch_per_topic_bytes: int = setting("dispatchThrottlingRatePerTopicInByte", 0, dynamic="broker", below_zero=0)
    dispatch_messages_per_subscription: int = setting(
        "dispatchThrottlingRatePerSubscriptionInMsg", 0, dynamic="broker", below_zero=0
    )
    dispatch_per_subscription_bytes: int = setting(
        "dispatchThrottlingRatePerSubscriptionInByte", 0, dynamic="broker", below_zero=0
    )
    dispatch_messages_per_replicator: int = setting(
        "dispatchThrottlingRatePerReplicatorInMsg", 0, dynamic="broker", below_zero=0
    )
    dispatch_per_replicator_bytes: int = setting(
        "dispatchThrottlingRatePerReplicatorInByte", 0, dynamic="broker", below_zero=0
    )
    replication_start_at: str = setting("replicationStartAt", "latest", dynamic="broker", words=REPLICATION_STARTS)
    """Where a topic begins to be replicated that was not before: `latest` or `earliest`."""
    remote_topics_created: bool = setting("createTopicToRemoteClusterForReplication", True)
    """Partitioned topics that are replicated are made, and enlarged, in the other clusters."""
    replication_queue_entries: int = setting("replicationProducerQueueSize", 5_000, low=1, dynamic="broker")
    """Entries that one replicator has sent and that have no receipt. Pulsar has 1 000, with which a backlog of small
    messages waits for the other cluster's disk. Large ones are bounded by 16 MiB."""
    replicated_subscriptions: bool = setting("enableReplicatedSubscriptions", True)
    """Whether other clusters are told how far subscriptions are, and what they tell is done."""
    snapshot_interval_ms: int = setting("replicatedSubscriptionsSnapshotFrequencyMillis", 1_000, low=1)
    """Between two snapshots of one topic across its clusters."""
    snapshot_timeout_seconds: int = setting("replicatedSubscriptionsSnapshotTimeoutSeconds", 30, low=1)
    """After so long without the answers of all clusters a snapshot is given up."""
    snapshots_kept_max: int = setting("replicatedSubscriptionsSnapshotMaxCachedPerSubscription", 30, low=1)
    """Snapshots that a subscription has read and not acknowledged; 3 are kept at least."""

    migration_check_seconds: int = setting("clusterMigrationCheckDurationSeconds", 0, low=0)
    """How often topics are looked at whether their cluster or namespace has moved to another cluster; 0: never."""
    migration_creates_resources: bool = setting("clusterMigrationAutoResourceCreation", False)
    """Whether the other cluster is given tenant, namespace, topic and subscriptions before clients are sent there."""

    dispatch_relative_to_publish_rate: bool = setting(
        "dispatchThrottlingRateRelativeToPublishRate", False, dynamic="broker"
    )
    dispatch_counts_batches: bool = setting("dispatchThrottlingOnBatchMessageEnabled", False, dynamic="broker")
    """A batch takes one message off a dispatch rate, not as many as it has."""
    dispatch_limits_caught_up: bool = setting("dispatchThrottlingOnNonBacklogConsumerEnabled", True, dynamic="broker")
    """Whether dispatch rates also hold for subscriptions without a backlog worth the name."""
    resource_usage_interval_seconds: int = setting(
        "resourceUsageTransportPublishIntervalInSecs", 60, unit="seconds", dynamic="broker", low=1
    )
    """How often brokers tell each other what they use of resource groups while it hardly changes."""
    subscribes_per_consumer: int = setting("subscribeThrottlingRatePerConsumer", 0, dynamic="broker", below_zero=0)
    subscribe_period_seconds: int = setting(
        "subscribeRatePeriodPerConsumerInSecond", 30, unit="seconds", dynamic="broker", low=1
    )

    seek_clock_skew_ms: int = setting(
        "managedLedgerCursorResetLedgerCloseTimestampMaxClockSkewMillis", 60_000, dynamic="broker", below_zero=-1
    )
    """A seek to a time looks at ledgers that were closed about then: by so much may the clocks of publishers differ
    from that of the broker that closed a ledger. -1: it looks at all of them."""

    encryption_required: bool = setting("encryptionRequireOnProducer", False)
    stuck_subscriptions_unblocked: bool = setting("unblockStuckSubscriptionEnabled", False, dynamic="broker")
    """Whether subscriptions are looked at now and then that could send something and do not."""
    subscription_types: tuple[str, ...] = setting(
        "subscriptionTypesEnabled", ("Exclusive", "Shared", "Failover", "Key_Shared"), dynamic="broker"
    )
    strict_subscription_names: bool = setting("strictlyVerifySubscriptionName", False, dynamic="broker")
    """Whether a new subscription's name may have letters, digits and `-=:._` alone."""
    key_shared_allowed: bool = setting("subscriptionKeySharedEnable", True, dynamic="broker")
    """False: there are no Key_Shared subscriptions, whatever types are enabled."""
    schema_validation_enforced: bool = setting("isSchemaValidationEnforced", False)
    schema_compatibility: Strategy = setting("schemaCompatibilityStrategy", Strategy.FULL)
    schema_auto_update_allowed: bool = setting("isAllowAutoUpdateSchemaEnabled", True, dynamic="broker")
    """Whether producers may bring new schemas, where the namespace does not say."""
    schema_force_recovery: bool = setting("schemaLedgerForceRecovery", False, dynamic="broker")
    """Whether a version of a schema that bookies cannot give now counts as lost, and its topic goes on without."""
    delayed_delivery: bool = setting("delayedDeliveryEnabled", True)
    delayed_delivery_tick_ms: int = setting("delayedDeliveryTickTimeMillis", 1_000, low=1)
    deliver_at_time_strict: bool = setting("isDelayedDeliveryDeliverAtTimeStrict", False)
    delay_ms_max: int = setting("delayedDeliveryMaxDelayInMillis", 0, below_zero=0)
    delay_clamped_ms: int = setting("delayedDeliveryClampDelayInMillis", 0, ours=True, below_zero=0)
    """Messages with longer delays are delivered after this one; 0 is no such limit. Ours: Pulsar only refuses."""
    deduplication: bool = setting("brokerDeduplicationEnabled", False)
    deduplication_producers_max: int = setting("brokerDeduplicationMaxNumberOfProducers", 10_000)
    deduplication_snapshot_check_seconds: float = setting(
        "brokerDeduplicationSnapshotFrequencyInSeconds", 120, below_zero=0
    )
    deduplication_snapshot_seconds: int = setting("brokerDeduplicationSnapshotIntervalSeconds", 120, below_zero=0)
    deduplication_snapshot_entries: int = setting("brokerDeduplicationEntriesInterval", 1_000, low=1)
    deduplication_forget_seconds: int = setting("brokerDeduplicationProducerInactivityTimeoutMinutes", 360 * 60, low=60)
    compaction_threshold_bytes: int = setting("brokerServiceCompactionThresholdInBytes", 0, below_zero=0)
    compaction_check_seconds: float = setting("brokerServiceCompactionMonitorIntervalInSeconds", 60, low=1)
    """How often thresholds are looked at."""
    compaction_read_seconds_max: float = setting("brokerServiceCompactionPhaseOneLoopTimeInSeconds", 30, low=1)
    """How long a compaction waits for one read; then it fails."""
    compaction_keeps_null_keys: bool = setting("topicCompactionRetainNullKey", False)
    """Messages without a key are kept, all of them."""
    compaction_order: CompactionOrder = setting(
        "compactionServiceFactoryClassName", CompactionOrder.PUBLISHED, read=class_named(CompactionOrder)
    )
    compaction_keys_max: int = setting("topicCompactionMaxKeys", 4_000_000, ours=True, low=1)
    """Keys of one topic that a compaction remembers: some 250 bytes each. With more it fails, and the broker lives."""

    @property
    def inactive_after_seconds(self) -> int:
        """How long nobody may use a topic before it is deleted."""
        given = self.delete_inactive_topics_after_seconds
        return self.delete_inactive_topics_check_seconds if given is None else given
