"""Which level's word counts."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from magnetar.broker.admin.web import policy_shapes
from magnetar.broker.admin.web.shapes import Shape
from magnetar.broker.policies.catalogue import POLICIES
from magnetar.broker.policies.effective import BrokerLevel, effective_policies
from magnetar.broker.policies.model import AutoTopicCreation, BacklogQuota, EffectivePolicies, InactiveTopics, Rate
from magnetar.broker.resources import new_policies
from magnetar.broker.schema.strategy import Strategy
from magnetar.broker.settings.broker import AutoCreationSettings, BrokerSettings
from magnetar.broker.settings.policies import BacklogQuotaPolicy, InactiveTopicDeleteMode, PolicySettings
from magnetar.core.limits import MIB
from magnetar.managed.settings import ManagedLedgerSettings


def effective(
    namespace: dict[str, Any] | None = None, topic: dict[str, Any] | None = None, **settings: Any
) -> EffectivePolicies:
    broker = BrokerLevel(BrokerSettings(policies=PolicySettings(**settings)), ManagedLedgerSettings())
    return effective_policies(broker, {**new_policies("standalone", 4), **(namespace or {})}, topic or {})


def test_a_new_namespace_leaves_everything_to_the_broker() -> None:
    policies = effective()
    assert policies == EffectivePolicies(ledger=policies.ledger, dispatch=policies.dispatch)
    assert not policies.checks_messages
    assert policies.ledger.retention_time_ms == 0


@pytest.mark.parametrize(
    ("namespace", "topic", "others", "only"),
    [
        (["standalone"], None, (), ""),
        (["standalone", "west", "north"], None, ("north", "west"), ""),
        (["west", "north"], None, ("north", "west"), ""),
        (["west"], None, (), "west"),
        (["standalone", "west"], ["north"], (), "north"),
        (["west"], ["standalone", "north"], ("north",), ""),
        ([], None, (), ""),
    ],
)
def test_which_other_clusters_a_topic_is_replicated_to(
    namespace: list[str], topic: list[str] | None, others: tuple[str, ...], only: str
) -> None:
    policies = effective({"replication_clusters": namespace}, {"replicationClusters": topic})
    assert (policies.remote_clusters, policies.only_cluster) == (others, only)


@pytest.mark.parametrize(
    ("field", "setting", "namespace_key", "topic_key"),
    [
        ("message_ttl_seconds", "message_ttl_seconds", "message_ttl_in_seconds", "messageTTLInSeconds"),
        ("producers_max", "producers_per_topic_max", "max_producers_per_topic", "maxProducerPerTopic"),
        ("consumers_max", "consumers_per_topic_max", "max_consumers_per_topic", "maxConsumerPerTopic"),
        (
            "consumers_per_subscription_max",
            "consumers_per_subscription_max",
            "max_consumers_per_subscription",
            "maxConsumersPerSubscription",
        ),
        ("subscriptions_max", "subscriptions_per_topic_max", "max_subscriptions_per_topic", "maxSubscriptionsPerTopic"),
        (
            "subscription_expiration_minutes",
            "subscription_expiration_minutes",
            "subscription_expiration_time_minutes",
            "subscriptionExpirationTimeInMinutes",
        ),
        (
            "deduplication_snapshot_seconds",
            "deduplication_snapshot_seconds",
            "deduplicationSnapshotIntervalSeconds",
            "deduplicationSnapshotIntervalSeconds",
        ),
        ("compaction_threshold_bytes", "compaction_threshold_bytes", "compaction_threshold", "compactionThreshold"),
    ],
)
def test_numbers_topic_over_namespace_over_broker(field: str, setting: str, namespace_key: str, topic_key: str) -> None:
    broker: dict[str, Any] = {setting: 7}
    assert getattr(effective(**broker), field) == 7
    assert getattr(effective({namespace_key: None}, {topic_key: None}, **broker), field) == 7
    assert getattr(effective({namespace_key: 0}, **broker), field) == 0
    assert getattr(effective({namespace_key: 5}, {topic_key: 3}, **broker), field) == 3
    assert getattr(effective({namespace_key: "x"}, {topic_key: True}, **broker), field) == 7


def test_retention_and_persistence_become_the_ledgers_settings() -> None:
    policies = effective(
        {"retention_policies": {"retentionTimeInMinutes": 2, "retentionSizeInMB": -1}},
        {
            "persistence": {
                "bookkeeperEnsemble": 3,
                "bookkeeperWriteQuorum": 3,
                "bookkeeperAckQuorum": 2,
                "managedLedgerMaxMarkDeleteRate": 0.5,
            }
        },
        retention_minutes=9,
    )
    assert policies.ledger.retention_time_ms == 120_000
    assert policies.ledger.retention_size_bytes == -1
    assert (policies.ledger.ensemble_size, policies.ledger.write_quorum, policies.ledger.ack_quorum) == (3, 3, 2)
    assert policies.ledger.mark_delete_rate == 0.5
    assert effective(retention_minutes=9, retention_megabytes=3).ledger.retention_size_bytes == 3 * MIB


def test_copies_that_cannot_be_are_ignored() -> None:
    policies = effective({"persistence": {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 3}})
    assert (policies.ledger.ensemble_size, policies.ledger.write_quorum) == (1, 1)
    names = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
    policies = effective({"persistence": dict.fromkeys(names, -1)})
    assert (policies.ledger.ensemble_size, policies.ledger.ack_quorum) == (1, 1)


def test_no_retention_is_not_one_without_end() -> None:
    nothing = effective({"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}})
    assert (nothing.ledger.retention_time_ms, nothing.ledger.retention_size_bytes) == (0, 0)
    everything = effective({"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}})
    assert (everything.ledger.retention_time_ms, everything.ledger.retention_size_bytes) == (-1, -1)


def test_backlog_quotas() -> None:
    namespace = {
        "backlog_quota_map": {
            "destination_storage": {"limit": 10, "policy": "producer_exception"},
            "message_age": {"limitTime": 60, "limitSize": -1, "policy": "consumer_backlog_eviction"},
        }
    }
    policies = effective(namespace, {"backLogQuotaMap": {"destination_storage": {"limitSize": 20}}})
    assert policies.size_quota == BacklogQuota(20, -1, BacklogQuotaPolicy.HOLD)
    assert policies.age_quota == BacklogQuota(-1, 60, BacklogQuotaPolicy.EVICT)
    assert effective(namespace).size_quota == BacklogQuota(10, -1, BacklogQuotaPolicy.REFUSE)
    assert effective(backlog_quota_bytes=5).size_quota == BacklogQuota(5)


def test_schema_compatibility() -> None:
    older = {"schema_auto_update_compatibility_strategy": "AutoUpdateDisabled"}
    namespace = {**older, "schema_compatibility_strategy": "BACKWARD"}
    assert effective().schema_compatibility is Strategy.FULL
    assert effective(schema_compatibility=Strategy.FORWARD).schema_compatibility is Strategy.FORWARD
    assert effective(schema_compatibility=Strategy.UNDEFINED).schema_compatibility is Strategy.FULL
    assert effective(older).schema_compatibility is Strategy.ALWAYS_INCOMPATIBLE
    assert effective({**older, "schema_compatibility_strategy": "UNDEFINED"}).schema_compatibility is (
        Strategy.ALWAYS_INCOMPATIBLE
    )
    assert effective(namespace).schema_compatibility is Strategy.BACKWARD
    for value, expected in (("FORWARD", Strategy.FORWARD), ("UNDEFINED", Strategy.BACKWARD), ([], Strategy.BACKWARD)):
        assert effective(namespace, {"schemaCompatibilityStrategy": value}).schema_compatibility is expected


def test_inactive_topics() -> None:
    assert effective(delete_inactive_topics_check_seconds=30).inactive_topics == InactiveTopics(after_seconds=30)
    given = {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 5,
        "deleteWhileInactive": True,
    }
    assert effective({"inactive_topic_policies": given}).inactive_topics == InactiveTopics(
        True, InactiveTopicDeleteMode.CAUGHT_UP, 5
    )
    off = {**given, "deleteWhileInactive": False}
    assert not effective({"inactive_topic_policies": given}, {"inactiveTopicPolicies": off}).inactive_topics.delete


def test_rates_are_of_this_cluster_and_one_that_limits_nothing_is_not_set() -> None:
    dispatch = {
        "dispatchThrottlingRateInMsg": 10,
        "dispatchThrottlingRateInByte": -1,
        "ratePeriodInSecond": 2,
        "relativeToPublishRate": True,
    }
    policies = effective(
        {
            "topicDispatchRate": {"standalone": dispatch},
            "clusterDispatchRate": {"standalone": {"dispatchThrottlingRateInMsg": 99}},
            "publishMaxMessageRate": {"elsewhere": {"publishThrottlingRateInMsg": 1}},
            "clusterSubscribeRate": {"standalone": {"subscribeThrottlingRatePerConsumer": 3, "ratePeriodInSecond": 10}},
            "replicatorDispatchRate": {"standalone": {"dispatchThrottlingRateInByte": 4}},
        },
        {
            "publishRate": {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": 0},
            "subscriptionDispatchRate": {"dispatchThrottlingRateInMsg": 7},
            "subscriptionPolicies": {"slow": {"dispatchRate": {"dispatchThrottlingRateInMsg": 1}}, "odd": {}},
        },
        publish_messages_per_topic=50,
    )
    assert policies.topic_dispatch_rate == Rate(10, -1, 2.0, True)
    assert policies.publish_rate == Rate(50)
    assert policies.subscribe_rate == Rate(3, 0, 10.0)
    assert policies.replicator_dispatch_rate == Rate(0, 4)
    assert policies.dispatch_rate_of("slow") == Rate(1)
    assert policies.dispatch_rate_of("odd") == Rate(7)
    only_cluster = {"clusterDispatchRate": {"standalone": {"dispatchThrottlingRateInMsg": 99}}}
    assert effective(only_cluster).topic_dispatch_rate == Rate(99)


def test_negative_rates_limit_nothing_and_negative_delays_are_no_bound() -> None:
    policies = effective(
        {
            "publishMaxMessageRate": {
                "standalone": {"publishThrottlingRateInMsg": -5, "publishThrottlingRateInByte": -5}
            }
        },
        {
            "delayedDeliveryEnabled": True,
            "delayedDeliveryTickTimeMillis": -1,
            "delayedDeliveryMaxDelayInMillis": -1,
            "dispatchRate": {"dispatchThrottlingRateInMsg": -5, "dispatchThrottlingRateInByte": -5},
            "subscribeRate": {"subscribeThrottlingRatePerConsumer": -5},
        },
    )
    assert not policies.publish_rate.limited
    assert not policies.topic_dispatch_rate.limited
    assert not policies.subscribe_rate.limited
    assert not policies.checks_messages


def test_a_rate_of_cursor_writes_below_0_is_the_brokers_and_0_is_none() -> None:
    """Apache's topics would not load with the first (`ManagedLedgerConfig.setThrottleMarkDelete`)."""
    for rate, in_force in ((-1.0, 1.0), (0.0, 0.0), (2.0, 2.0)):
        policies = effective({"persistence": {"managedLedgerMaxMarkDeleteRate": rate}})
        assert policies.ledger.mark_delete_rate == in_force


def test_unacknowledged_limits_are_the_dispatchers() -> None:
    policies = effective({"max_unacked_messages_per_subscription": 9}, {"maxUnackedMessagesOnConsumer": 3})
    assert policies.dispatch.unacked_messages_per_consumer_max == 3
    assert policies.dispatch.unacked_messages_per_subscription_max == 9


def test_delayed_delivery_part_by_part() -> None:
    namespace = {"delayed_delivery_policies": {"tickTime": 5, "active": False, "maxDeliveryDelayInMillis": 100}}
    policies = effective(namespace, {"delayedDeliveryEnabled": True})
    assert policies.delayed_delivery
    assert policies.delayed_delivery_tick_ms == 5
    assert policies.delay_ms_max == 100
    assert policies.checks_messages
    assert not effective(namespace).delayed_delivery
    forbidden = effective({"delayed_delivery_policies": {"active": True}}, {"delayedDeliveryEnabled": False})
    assert not forbidden.delayed_delivery
    assert effective(namespace, {"delayedDeliveryMaxDelayInMillis": 0}).delay_ms_max == 0


def test_subscription_types() -> None:
    assert effective({"subscription_types_enabled": []}, subscription_types=("Shared",)).subscription_types == {
        "Shared"
    }
    assert effective({"subscription_types_enabled": ["Failover", "Odd"]}).subscription_types == {"Failover"}
    both = {"subscription_types_enabled": ["Failover", "Key_Shared"]}
    assert effective(both).subscription_types == {"Failover", "Key_Shared"}
    assert effective(both, key_shared_allowed=False).subscription_types == {"Failover"}


def test_what_is_made_on_first_use() -> None:
    override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 8}
    assert effective({"autoTopicCreationOverride": override}, partitions_per_topic_max=4).auto_topic_creation == (
        AutoTopicCreation(True, 4)
    )
    broker = BrokerLevel(
        BrokerSettings(auto_creation=AutoCreationSettings(topics_allowed=False, subscriptions_allowed=False)),
        ManagedLedgerSettings(),
    )
    assert effective_policies(broker, {}, {}).auto_topic_creation == AutoTopicCreation(False, 0)
    assert not effective_policies(broker, {}, {}).auto_subscription_creation
    own = {"autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": True}}
    assert effective_policies(broker, {}, own).auto_subscription_creation


def test_encryption_and_schemas_are_required_when_any_level_says_so() -> None:
    assert effective({"encryption_required": True}).encryption_required
    assert effective(encryption_required=True).encryption_required
    assert effective(None, {"schemaValidationEnforced": True}).schema_validation_enforced
    assert effective({"encryption_required": False}, encryption_required=True).encryption_required
    no = {"schema_validation_enforced": False}
    enforced = effective(no, {"schemaValidationEnforced": False}, schema_validation_enforced=True)
    assert enforced.schema_validation_enforced


def test_rates_of_the_broker_each_by_its_own_settings() -> None:
    policies = effective(
        publish_messages_per_topic=1,
        publish_per_topic_bytes=2,
        dispatch_messages_per_topic=3,
        dispatch_per_topic_bytes=4,
        dispatch_messages_per_subscription=5,
        dispatch_per_subscription_bytes=6,
        dispatch_messages_per_replicator=7,
        dispatch_per_replicator_bytes=8,
    )
    assert policies.publish_rate == Rate(1, 2)
    assert policies.topic_dispatch_rate == Rate(3, 4)
    assert policies.subscription_dispatch_rate == Rate(5, 6)
    assert policies.replicator_dispatch_rate == Rate(7, 8)


def test_a_topics_own_message_size_counts_only_below_the_brokers() -> None:
    assert effective(None, {"maxMessageSize": 10}).message_size_bytes_max == 10
    assert effective(None, {"maxMessageSize": 1 << 40}).message_size_bytes_max == 0


@pytest.mark.parametrize("value", [5, True, "Shared", {"Shared": 1}])
def test_subscription_types_of_the_wrong_type_are_not_set(value: object) -> None:
    """Other brokers write these documents, too."""
    set_there = effective({"subscription_types_enabled": value}, {"subscriptionTypesEnabled": value})
    assert set_there.subscription_types == effective().subscription_types
    left_to_the_broker = effective({"subscription_types_enabled": value}, subscription_types=("Shared",))
    assert left_to_the_broker.subscription_types == {"Shared"}


MEMBERS = sorted(
    {name for shape in vars(policy_shapes).values() if isinstance(shape, Shape) for name in shape.members}
    | {"standalone", "dispatchRate", "destination_storage", "message_age"}
)
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 2**63, -(2**63) - 1, 10**400, -(10**400), 1e308, float("inf"), float("nan"), "", "x"])
    | st.integers()
    | st.floats(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=3),
    max_leaves=6,
)
NAMESPACE_KEYS = sorted({key for policy in POLICIES for key in policy.namespace_keys})
TOPIC_KEYS = sorted({key for policy in POLICIES for key in policy.topic_keys})


@given(
    st.dictionaries(st.sampled_from(NAMESPACE_KEYS), ODD, max_size=5),
    st.dictionaries(st.sampled_from(TOPIC_KEYS), ODD, max_size=5),
)
@example({"persistence": {"managedLedgerMaxMarkDeleteRate": float("nan")}}, {})
@example({"persistence": {"managedLedgerMaxMarkDeleteRate": 10**400}}, {})
@example({}, {"dispatchRate": {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 10**400}})
def test_no_document_makes_topics_unusable(namespace: dict[str, Any], topic: dict[str, Any]) -> None:
    """JSON may have numbers of any length, and others write these documents, too."""
    found = effective(namespace, topic)
    assert 0 < found.ledger.mark_delete_rate < math.inf
    assert 0 < found.topic_dispatch_rate.period_seconds < math.inf
