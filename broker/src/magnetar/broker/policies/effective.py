"""What is in force for a topic, out of its own policies, its namespace's and the broker's settings. Pure.

The documents are Pulsar's JSON: `Policies` of the namespace, `TopicPolicies` of the topic. What is absent or null is
not set and leaves the word to the next level (Pulsar: `HierarchyTopicPolicies`, `AbstractTopic`). A value of the wrong
type counts as not set: other brokers write these documents too, and a topic must not become unusable over one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from magnetar.broker.policies.model import (
    ALL_SUBSCRIPTION_TYPES,
    UNLIMITED,
    AutoTopicCreation,
    BacklogQuota,
    EffectivePolicies,
    InactiveTopics,
    Rate,
)
from magnetar.broker.schema.strategy import Strategy
from magnetar.broker.settings.policies import BacklogQuotaPolicy, InactiveTopicDeleteMode
from magnetar.core.limits import MIB

if TYPE_CHECKING:
    from magnetar.broker.settings.broker import BrokerSettings, DispatchSettings
    from magnetar.managed.settings import ManagedLedgerSettings

Member = TypeVar("Member", bound=Enum)

SIZE_QUOTA: Final = "destination_storage"
AGE_QUOTA: Final = "message_age"

AUTO_UPDATE_STRATEGIES: Final = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}
"""Pulsar's `SchemaAutoUpdateCompatibilityStrategy`, by the strategies that they stand for."""


@dataclass(frozen=True, slots=True)
class BrokerLevel:
    """What stands behind all policies."""

    settings: BrokerSettings
    ledger: ManagedLedgerSettings


class _Levels:
    """Topic over namespace, by the names that each calls a policy."""

    def __init__(self, topic: Mapping[str, Any], namespace: Mapping[str, Any], cluster: str) -> None:
        self.topic = topic
        self.namespace = namespace
        self._cluster = cluster

    def number(self, topic_key: str, namespace_key: str, otherwise: int) -> int:
        """A whole number."""
        return next(
            (
                value
                for value in (self.topic.get(topic_key), self.namespace.get(namespace_key))
                if isinstance(value, int) and not isinstance(value, bool)
            ),
            otherwise,
        )

    def flag(self, topic_key: str, namespace_key: str, otherwise: bool) -> bool:
        """Yes or no."""
        return next(
            (
                value
                for value in (self.topic.get(topic_key), self.namespace.get(namespace_key))
                if isinstance(value, bool)
            ),
            otherwise,
        )

    def part(self, topic_key: str, namespace_key: str) -> Mapping[str, Any] | None:
        """An object."""
        return _object(self.topic.get(topic_key)) or _object(self.namespace.get(namespace_key))

    def rate(self, topic_key: str, namespace_keys: tuple[str, ...], prefix: str, otherwise: Rate) -> Rate:
        """A rate; namespaces keep one for each cluster. One that limits nothing is not set."""
        of_namespace = (_object(self.namespace.get(key)) or {} for key in namespace_keys)
        for candidate in (self.topic.get(topic_key), *(rates.get(self._cluster) for rates in of_namespace)):
            rate = rate_of(_object(candidate), prefix)
            if rate.limited:
                return rate
        return otherwise


def effective_policies(
    broker: BrokerLevel, namespace: Mapping[str, Any], topic: Mapping[str, Any]
) -> EffectivePolicies:
    """Put the levels together."""
    settings = broker.settings.policies
    levels = _Levels(topic, namespace, broker.settings.cluster_name)
    retention = levels.part("retentionPolicies", "retention_policies") or {}
    minutes = _number(retention, "retentionTimeInMinutes", settings.retention_minutes)
    megabytes = _number(retention, "retentionSizeInMB", settings.retention_megabytes)
    delayed = _delayed(levels)
    message_size = levels.number("maxMessageSize", "", 0)
    ttl_seconds = levels.number("messageTTLInSeconds", "message_ttl_in_seconds", settings.message_ttl_seconds)
    return EffectivePolicies(
        ledger=_ledger_settings(broker.ledger, levels, minutes, megabytes),
        dispatch=_dispatch_settings(broker.settings.dispatch, levels),
        retention_minutes=minutes,
        retention_megabytes=megabytes,
        message_ttl_seconds=ttl_seconds,
        size_quota=_backlog_quota(broker, levels, SIZE_QUOTA),
        age_quota=_backlog_quota(broker, levels, AGE_QUOTA),
        subscription_expiration_minutes=levels.number(
            "subscriptionExpirationTimeInMinutes",
            "subscription_expiration_time_minutes",
            settings.subscription_expiration_minutes,
        ),
        inactive_topics=_inactive_topics(broker, levels),
        topics_per_namespace_max=levels.number("", "max_topics_per_namespace", settings.topics_per_namespace_max),
        message_size_bytes_max=message_size if 0 < message_size < broker.settings.message_size_bytes_max else 0,
        encryption_required=levels.flag("", "encryption_required", False) or settings.encryption_required,
        subscription_types=_subscription_types(broker, levels),
        delayed_delivery=_flag(delayed, "active", settings.delayed_delivery),
        delayed_delivery_tick_ms=_number(delayed, "tickTime", settings.delayed_delivery_tick_ms),
        delay_ms_max=_number(delayed, "maxDeliveryDelayInMillis", settings.delay_ms_max),
        deduplication=levels.flag("deduplicationEnabled", "deduplicationEnabled", settings.deduplication),
        deduplication_snapshot_seconds=levels.number(
            "deduplicationSnapshotIntervalSeconds",
            "deduplicationSnapshotIntervalSeconds",
            settings.deduplication_snapshot_seconds,
        ),
        schema_validation_enforced=levels.flag("schemaValidationEnforced", "schema_validation_enforced", False)
        or settings.schema_validation_enforced,
        schema_compatibility=_schema_compatibility(broker, levels),
        compaction_threshold_bytes=levels.number(
            "compactionThreshold", "compaction_threshold", settings.compaction_threshold_bytes
        ),
        auto_topic_creation=_auto_topic_creation(broker, levels),
        auto_subscription_creation=_auto_subscription_creation(broker, levels),
        **_limits(broker, levels),
        **_rates(broker, levels),
    )


def _schema_compatibility(broker: BrokerLevel, levels: _Levels) -> Strategy:
    """Namespaces have an older policy as well, which counts where the other says nothing."""
    namespace = levels.namespace
    older = namespace.get("schema_auto_update_compatibility_strategy")
    for name in (
        levels.topic.get("schemaCompatibilityStrategy"),
        namespace.get("schema_compatibility_strategy"),
        AUTO_UPDATE_STRATEGIES.get(older) if isinstance(older, str) else None,
    ):
        strategy = _member(Strategy, name, Strategy.UNDEFINED)
        if strategy is not Strategy.UNDEFINED:
            return strategy
    configured = broker.settings.policies.schema_compatibility
    return Strategy.FULL if configured is Strategy.UNDEFINED else configured


def _dispatch_settings(broker: DispatchSettings, levels: _Levels) -> DispatchSettings:
    return replace(
        broker,
        unacked_messages_per_consumer_max=levels.number(
            "maxUnackedMessagesOnConsumer",
            "max_unacked_messages_per_consumer",
            broker.unacked_messages_per_consumer_max,
        ),
        unacked_messages_per_subscription_max=levels.number(
            "maxUnackedMessagesOnSubscription",
            "max_unacked_messages_per_subscription",
            broker.unacked_messages_per_subscription_max,
        ),
    )


def _limits(broker: BrokerLevel, levels: _Levels) -> dict[str, Any]:
    settings = broker.settings.policies
    return {
        "producers_max": levels.number(
            "maxProducerPerTopic", "max_producers_per_topic", settings.producers_per_topic_max
        ),
        "consumers_max": levels.number(
            "maxConsumerPerTopic", "max_consumers_per_topic", settings.consumers_per_topic_max
        ),
        "consumers_per_subscription_max": levels.number(
            "maxConsumersPerSubscription", "max_consumers_per_subscription", settings.consumers_per_subscription_max
        ),
        "subscriptions_max": levels.number(
            "maxSubscriptionsPerTopic", "max_subscriptions_per_topic", settings.subscriptions_per_topic_max
        ),
    }


def _rates(broker: BrokerLevel, levels: _Levels) -> dict[str, Any]:
    own = broker.settings.policies
    relative = own.dispatch_relative_to_publish_rate
    subscribes = Rate(own.subscribes_per_consumer, 0, max(1, own.subscribe_period_seconds))
    if not subscribes.limited:
        subscribes = UNLIMITED
    single = _object(levels.topic.get("subscriptionPolicies")) or {}
    of_subscriptions = {
        name: rate_of(_object((_object(policies) or {}).get("dispatchRate")), "dispatchThrottling")
        for name, policies in single.items()
    }
    return {
        "publish_rate": levels.rate(
            "publishRate",
            ("publishMaxMessageRate",),
            "publishThrottling",
            Rate(own.publish_messages_per_topic, own.publish_per_topic_bytes),
        ),
        "topic_dispatch_rate": levels.rate(
            "dispatchRate",
            ("topicDispatchRate", "clusterDispatchRate"),
            "dispatchThrottling",
            Rate(own.dispatch_messages_per_topic, own.dispatch_per_topic_bytes, 1.0, relative),
        ),
        "subscription_dispatch_rate": levels.rate(
            "subscriptionDispatchRate",
            ("subscriptionDispatchRate",),
            "dispatchThrottling",
            Rate(own.dispatch_messages_per_subscription, own.dispatch_per_subscription_bytes, 1.0, relative),
        ),
        "dispatch_rates": {name: rate for name, rate in of_subscriptions.items() if rate.limited},
        "replicator_dispatch_rate": levels.rate(
            "replicatorDispatchRate",
            ("replicatorDispatchRate",),
            "dispatchThrottling",
            Rate(own.dispatch_messages_per_replicator, own.dispatch_per_replicator_bytes),
        ),
        "subscribe_rate": levels.rate(
            "subscribeRate",
            ("clusterSubscribeRate",),
            "subscribeThrottling",
            subscribes,
        ),
    }


def rate_of(document: Mapping[str, Any] | None, prefix: str) -> Rate:
    """A rate as Pulsar writes it, e.g. `publishThrottlingRateInMsg`; none is one that limits nothing."""
    if document is None:
        return Rate()
    messages = _number(document, f"{prefix}RateInMsg", _number(document, f"{prefix}RatePerConsumer", 0))
    return Rate(
        messages,
        _number(document, f"{prefix}RateInByte", 0),
        float(max(1, _number(document, "ratePeriodInSecond", 1))),
        _flag(document, "relativeToPublishRate", False),
    )


def _ledger_settings(
    base: ManagedLedgerSettings, levels: _Levels, minutes: int, megabytes: int
) -> ManagedLedgerSettings:
    persistence = levels.part("persistence", "persistence") or {}
    ensemble = _number(persistence, "bookkeeperEnsemble", 0) or base.ensemble_size
    write_quorum = _number(persistence, "bookkeeperWriteQuorum", 0) or base.write_quorum
    ack_quorum = _number(persistence, "bookkeeperAckQuorum", 0) or base.ack_quorum
    if not ensemble >= write_quorum >= ack_quorum >= 1:
        ensemble, write_quorum, ack_quorum = base.ensemble_size, base.write_quorum, base.ack_quorum
    mark_delete_rate = persistence.get("managedLedgerMaxMarkDeleteRate")
    if not isinstance(mark_delete_rate, int | float) or mark_delete_rate <= 0:
        mark_delete_rate = base.mark_delete_rate
    return replace(
        base,
        ensemble_size=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        mark_delete_rate=float(mark_delete_rate),
        retention_time_ms=minutes * 60_000 if minutes >= 0 else -1,
        retention_size_bytes=megabytes * MIB if megabytes >= 0 else -1,
    )


def _backlog_quota(broker: BrokerLevel, levels: _Levels, kind: str) -> BacklogQuota:
    settings = broker.settings.policies
    for quotas in (levels.topic.get("backLogQuotaMap"), levels.namespace.get("backlog_quota_map")):
        quota = _object((_object(quotas) or {}).get(kind))
        if quota is not None:
            return BacklogQuota(
                # Before it had a limit of time, Pulsar called the size simply the limit.
                _number(quota, "limitSize", _number(quota, "limit", -1)),
                _number(quota, "limitTime", -1),
                _member(BacklogQuotaPolicy, quota.get("policy"), BacklogQuotaPolicy.HOLD),
            )
    return BacklogQuota(settings.backlog_quota_bytes, settings.backlog_quota_age_seconds, settings.backlog_quota_policy)


def _inactive_topics(broker: BrokerLevel, levels: _Levels) -> InactiveTopics:
    settings = broker.settings.policies
    given = levels.part("inactiveTopicPolicies", "inactive_topic_policies") or {}
    return InactiveTopics(
        _flag(given, "deleteWhileInactive", settings.delete_inactive_topics if not given else False),
        _member(InactiveTopicDeleteMode, given.get("inactiveTopicDeleteMode"), settings.delete_inactive_topics_mode),
        _number(given, "maxInactiveDurationSeconds", settings.inactive_after_seconds),
    )


def _subscription_types(broker: BrokerLevel, levels: _Levels) -> frozenset[str]:
    for given in (
        levels.topic.get("subscriptionTypesEnabled"),
        levels.namespace.get("subscription_types_enabled"),
        broker.settings.policies.subscription_types,
    ):
        types = ALL_SUBSCRIPTION_TYPES.intersection(
            "Key_Shared" if one == "KeyShared" else str(one) for one in given or ()
        )
        if types:
            return types
    return ALL_SUBSCRIPTION_TYPES


def _delayed(levels: _Levels) -> dict[str, Any]:
    """Delayed delivery under the namespace's names; a topic has a field for each part."""
    topic = levels.topic
    parts = {**(_object(levels.namespace.get("delayed_delivery_policies")) or {})}
    for key, name in (
        ("delayedDeliveryEnabled", "active"),
        ("delayedDeliveryTickTimeMillis", "tickTime"),
        ("delayedDeliveryMaxDelayInMillis", "maxDeliveryDelayInMillis"),
    ):
        if topic.get(key) is not None:
            parts[name] = topic[key]
    return parts


def _auto_topic_creation(broker: BrokerLevel, levels: _Levels) -> AutoTopicCreation:
    settings = broker.settings.auto_creation
    override = _object(levels.namespace.get("autoTopicCreationOverride"))
    if override is None:
        partitions = settings.default_partitions if settings.partitioned else 0
        allowed = settings.topics_allowed
    else:
        partitions = max(1, _number(override, "defaultNumPartitions", 1))
        partitions = partitions if override.get("topicType") == "partitioned" else 0
        allowed = _flag(override, "allowAutoTopicCreation", False)
    partitions_max = broker.settings.policies.partitions_per_topic_max
    return AutoTopicCreation(allowed, min(partitions, partitions_max) if partitions_max > 0 else partitions)


def _auto_subscription_creation(broker: BrokerLevel, levels: _Levels) -> bool:
    override = levels.part("autoSubscriptionCreationOverride", "autoSubscriptionCreationOverride")
    if override is None:
        return broker.settings.auto_creation.subscriptions_allowed
    return _flag(override, "allowAutoSubscriptionCreation", False)


def _object(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def _number(document: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = document.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _flag(document: Mapping[str, Any], key: str, otherwise: bool) -> bool:
    value = document.get(key)
    return value if isinstance(value, bool) else otherwise


def _member(kind: type[Member], value: object, otherwise: Member) -> Member:
    try:
        return kind(value)
    except ValueError:
        return otherwise
