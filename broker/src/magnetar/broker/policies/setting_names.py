"""Pulsar's names of `PolicySettings`; loaded by those who read or tell settings by name."""

from __future__ import annotations

from typing import Final

from magnetar.core.settings_file import Unit

POLICY_NAMES: Final[dict[str, str]] = {
    "backlogQuotaCheckEnabled": "backlog_quota_check",
    "backlogQuotaCheckIntervalInSeconds": "backlog_quota_check_seconds",
    "backlogQuotaDefaultLimitBytes": "backlog_quota_bytes",
    "backlogQuotaDefaultLimitSecond": "backlog_quota_age_seconds",
    "backlogQuotaDefaultRetentionPolicy": "backlog_quota_policy",
    "brokerDeduplicationEnabled": "deduplication",
    "brokerDeduplicationEntriesInterval": "deduplication_snapshot_entries",
    "brokerDeduplicationMaxNumberOfProducers": "deduplication_producers_max",
    "brokerDeduplicationProducerInactivityTimeoutMinutes": "deduplication_forget_seconds",
    "brokerDeduplicationSnapshotFrequencyInSeconds": "deduplication_snapshot_check_seconds",
    "brokerDeduplicationSnapshotIntervalSeconds": "deduplication_snapshot_seconds",
    "brokerDeleteInactivePartitionedTopicMetadataEnabled": "delete_inactive_partitioned_metadata",
    "brokerDeleteInactiveTopicsEnabled": "delete_inactive_topics",
    "brokerDeleteInactiveTopicsFrequencySeconds": "delete_inactive_topics_check_seconds",
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "delete_inactive_topics_after_seconds",
    "brokerDeleteInactiveTopicsMode": "delete_inactive_topics_mode",
    "brokerMaxConnections": "connections_max",
    "brokerMaxConnectionsPerIp": "connections_per_address_max",
    "brokerPublisherThrottlingMaxByteRate": "publish_bytes",
    "brokerPublisherThrottlingMaxMessageRate": "publish_messages",
    "brokerServiceCompactionThresholdInBytes": "compaction_threshold_bytes",
    "defaultRetentionSizeInMB": "retention_megabytes",
    "defaultRetentionTimeInMinutes": "retention_minutes",
    "delayedDeliveryClampDelayInMillis": "delay_clamped_ms",
    "delayedDeliveryEnabled": "delayed_delivery",
    "delayedDeliveryMaxDelayInMillis": "delay_ms_max",
    "delayedDeliveryTickTimeMillis": "delayed_delivery_tick_ms",
    "dispatchThrottlingOnBatchMessageEnabled": "dispatch_counts_batches",
    "dispatchThrottlingOnNonBacklogConsumerEnabled": "dispatch_limits_caught_up",
    "dispatchThrottlingRateInByte": "dispatch_bytes",
    "dispatchThrottlingRateInMsg": "dispatch_messages",
    "dispatchThrottlingRatePerReplicatorInByte": "dispatch_per_replicator_bytes",
    "dispatchThrottlingRatePerReplicatorInMsg": "dispatch_messages_per_replicator",
    "dispatchThrottlingRatePerSubscriptionInByte": "dispatch_per_subscription_bytes",
    "dispatchThrottlingRatePerSubscriptionInMsg": "dispatch_messages_per_subscription",
    "dispatchThrottlingRatePerTopicInByte": "dispatch_per_topic_bytes",
    "dispatchThrottlingRatePerTopicInMsg": "dispatch_messages_per_topic",
    "dispatchThrottlingRateRelativeToPublishRate": "dispatch_relative_to_publish_rate",
    "encryptionRequireOnProducer": "encryption_required",
    "isDelayedDeliveryDeliverAtTimeStrict": "deliver_at_time_strict",
    "isSchemaValidationEnforced": "schema_validation_enforced",
    "maxConsumersPerSubscription": "consumers_per_subscription_max",
    "maxConsumersPerTopic": "consumers_per_topic_max",
    "maxMessagePublishBufferSizeInMB": "publish_buffer_bytes_max",
    "maxNumPartitionsPerPartitionedTopic": "partitions_per_topic_max",
    "maxProducersPerTopic": "producers_per_topic_max",
    "maxPublishRatePerTopicInBytes": "publish_per_topic_bytes",
    "maxPublishRatePerTopicInMessages": "publish_messages_per_topic",
    "maxSameAddressConsumersPerTopic": "same_address_consumers_max",
    "maxSameAddressProducersPerTopic": "same_address_producers_max",
    "maxSubscriptionsPerTopic": "subscriptions_per_topic_max",
    "maxTopicsPerNamespace": "topics_per_namespace_max",
    "maxUnackedMessagesPerBroker": "unacked_messages_per_broker_max",
    "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": "unacked_share_when_broker_blocked",
    "messageExpiryCheckIntervalInMinutes": "message_expiry_check_seconds",
    "preciseTimeBasedBacklogQuotaCheck": "backlog_quota_age_precise",
    "subscribeRatePeriodPerConsumerInSecond": "subscribe_period_seconds",
    "subscribeThrottlingRatePerConsumer": "subscribes_per_consumer",
    "subscriptionExpirationTimeMinutes": "subscription_expiration_minutes",
    "subscriptionExpiryCheckIntervalInMinutes": "subscription_expiry_check_seconds",
    "subscriptionTypesEnabled": "subscription_types",
    "ttlDurationDefaultInSeconds": "message_ttl_seconds",
}
"""Pulsar's names of the fields of `PolicySettings`. Rates without a unit in their names are in bytes."""

POLICY_UNITS: Final[dict[str, Unit]] = {
    "backlogQuotaDefaultLimitSecond": Unit.SECONDS,
    "subscribeRatePeriodPerConsumerInSecond": Unit.SECONDS,
}
"""Of the names whose end does not tell it."""
