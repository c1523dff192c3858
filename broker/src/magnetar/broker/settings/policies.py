"""What a broker's own settings say where neither a topic nor its namespace does, and how often policies are checked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from magnetar.broker.schema.strategy import Strategy
from magnetar.core.limits import MIB


class BacklogQuotaPolicy(Enum):
    """What happens when a backlog is over its quota (Pulsar `BacklogQuota.RetentionPolicy`)."""

    HOLD = "producer_request_hold"
    """Producers are sent away and told to wait."""
    REFUSE = "producer_exception"
    """Producers are sent away with an error for the application."""
    EVICT = "consumer_backlog_eviction"
    """The slowest subscriptions lose their oldest entries."""


class InactiveTopicDeleteMode(Enum):
    """When a topic that nobody uses is deleted."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    CAUGHT_UP = "delete_when_subscriptions_caught_up"
    """Also with subscriptions, once they have acknowledged everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Under Pulsar's own meanings (`ServiceConfiguration`); `magnetar.broker.settings.policy_names` has its names.

    For limits of numbers and rates 0 is none."""

    retention_minutes: int = 0
    retention_megabytes: int = 0
    message_ttl_seconds: int = 0
    message_expiry_check_seconds: float = 300
    backlog_quota_check: bool = True
    backlog_quota_check_seconds: float = 60
    backlog_quota_bytes: int = -1
    backlog_quota_age_seconds: int = -1
    backlog_quota_policy: BacklogQuotaPolicy = BacklogQuotaPolicy.HOLD
    backlog_quota_age_precise: bool = False
    subscription_expiration_minutes: int = 0
    subscription_expiry_check_seconds: float = 300

    delete_inactive_topics: bool = True
    delete_inactive_topics_check_seconds: int = 60
    delete_inactive_topics_mode: InactiveTopicDeleteMode = InactiveTopicDeleteMode.NO_SUBSCRIPTIONS
    delete_inactive_topics_after_seconds: int | None = None
    """None: as long as the time between checks."""
    delete_inactive_partitioned_metadata: bool = False

    producers_per_topic_max: int = 0
    same_address_producers_max: int = 0
    consumers_per_topic_max: int = 0
    same_address_consumers_max: int = 0
    consumers_per_subscription_max: int = 0
    subscriptions_per_topic_max: int = 0
    topics_per_namespace_max: int = 0
    partitions_per_topic_max: int = 0
    connections_max: int = 50_000
    """Five times what a broker was measured with. Pulsar has no limit by default."""
    connections_per_address_max: int = 20_000
    """Twice what a proxy of Pulsar takes, which is one address for all of its clients; an address has 28 000 ports for
    one broker. Pulsar has no limit by default."""
    unacked_messages_per_broker_max: int = 0
    unacked_share_when_broker_blocked: float = 0.16
    """Subscriptions that hold more than this share of the broker's limit are stopped while it is reached."""

    publish_messages_per_topic: int = 0
    publish_per_topic_bytes: int = 0
    publish_messages: int = 0
    """Of the whole broker, per second."""
    publish_bytes: int = 0
    publish_buffer_bytes_max: int = 512 * MIB
    """Unacknowledged publishes of all connections before those that publish are read no further; room for thirty
    connections that use up their own part. Apache's is half of the direct memory."""

    dispatch_messages: int = 0
    """Of the whole broker, per second."""
    dispatch_bytes: int = 0
    dispatch_messages_per_topic: int = 0
    dispatch_per_topic_bytes: int = 0
    dispatch_messages_per_subscription: int = 0
    dispatch_per_subscription_bytes: int = 0
    dispatch_messages_per_replicator: int = 0
    dispatch_per_replicator_bytes: int = 0
    dispatch_relative_to_publish_rate: bool = False
    dispatch_counts_batches: bool = False
    """A batch takes one message off a dispatch rate, not as many as it has."""
    dispatch_limits_caught_up: bool = True
    """Whether dispatch rates also hold for subscriptions without a backlog worth the name."""
    subscribes_per_consumer: int = 0
    subscribe_period_seconds: int = 30

    encryption_required: bool = False
    subscription_types: tuple[str, ...] = ("Exclusive", "Shared", "Failover", "Key_Shared")
    schema_validation_enforced: bool = False
    schema_compatibility: Strategy = Strategy.FULL
    delayed_delivery: bool = True
    delayed_delivery_tick_ms: int = 1_000
    deliver_at_time_strict: bool = False
    delay_ms_max: int = 0
    delay_clamped_ms: int = 0
    """Messages with longer delays are delivered after this one; 0 is no such limit. Ours: Pulsar only refuses."""
    deduplication: bool = False
    deduplication_producers_max: int = 10_000
    deduplication_snapshot_check_seconds: float = 120
    deduplication_snapshot_seconds: int = 120
    deduplication_snapshot_entries: int = 1_000
    deduplication_forget_seconds: int = 360 * 60
    compaction_threshold_bytes: int = 0

    @property
    def inactive_after_seconds(self) -> int:
        """How long nobody may use a topic before it is deleted."""
        given = self.delete_inactive_topics_after_seconds
        return self.delete_inactive_topics_check_seconds if given is None else given
