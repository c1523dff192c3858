"""What is in force for a topic, out of its own policies, its namespace's and the broker's settings. Pure.

The documents are Pulsar's JSON: `Policies` of the namespace, `TopicPolicies` of the topic. What is absent or null is
not set and leaves the word to the next level (Pulsar: `HierarchyTopicPolicies`, `AbstractTopic`). A value of the wrong
type counts as not set: other brokers write these documents too, and a topic must not become unusable over one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from magnetar.broker.policies.catalogue import BY_NAME, POLICIES, SETTING_PATHS
from magnetar.broker.policies.model import (
    ALL_SUBSCRIPTION_TYPES,
    UNLIMITED,
    AutoTopicCreation,
    BacklogQuota,
    EffectivePolicies,
    InactiveTopics,
    Rate,
)
from magnetar.broker.policies.offload import offload_policy
from magnetar.broker.policies.policy import FLAGS, RATES, Policy, PolicyKind
from magnetar.broker.schema.strategy import Strategy
from magnetar.broker.settings.policies import BacklogQuotaPolicy, InactiveTopicDeleteMode
from magnetar.core.limits import MIB
from magnetar.managed.settings import ENSEMBLE_SIZE_MAX, ManagedLedgerSettings

if TYPE_CHECKING:
    from magnetar.broker.settings.broker import BrokerSettings

Member = TypeVar("Member", bound=Enum)

NUMBER_MAX: Final = 2**63 - 1
"""Greater ones are none of Java's. JSON may have them, of so many digits that no fraction can be made of them."""

SIZE_QUOTA: Final = "destination_storage"
AGE_QUOTA: Final = "message_age"

KEY_SHARED: Final = frozenset({"Key_Shared"})

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

    def __init__(self, broker: BrokerLevel, topic: Mapping[str, Any], namespace: Mapping[str, Any]) -> None:
        self.topic = topic
        self.namespace = namespace
        self._settings = broker.settings

    def values(self, name: str) -> list[Any]:
        """What the levels below the broker say of a policy, the closest first; None for nothing."""
        topic_key, namespace_keys, per_cluster = _KEYS[name]
        values = [self.namespace.get(key) for key in namespace_keys]
        if per_cluster:
            values = [value.get(self._settings.cluster_name) if isinstance(value, dict) else None for value in values]
        if topic_key is not None:
            values.insert(0, self.topic.get(topic_key))
        return values

    def part(self, name: str) -> Mapping[str, Any] | None:
        """A member that is an object, of the nearest level that has one."""
        return next((value for value in map(_object, self.values(name)) if value), None)

    def rate(self, name: str, otherwise: Rate) -> Rate:
        """A rate. One that limits nothing is not set."""
        for value in self.values(name):
            if value is not None:
                rate = rate_of(_object(value), RATES[BY_NAME[name].kind])
                if rate.limited:
                    return rate
        return otherwise

    def plain(self, policy: Policy) -> Any:
        """A number, a flag or a rate."""
        given = [setting(self._settings) for setting in _SETTINGS[policy.name]]
        if policy.kind in RATES:
            messages, size_bytes, *relative = given
            return self.rate(policy.name, Rate(messages, size_bytes, relative_to_publish_rate=any(relative)))
        kind = bool if policy.kind in FLAGS else int
        found = next((value for value in self.values(policy.name) if _is(kind, value)), None)
        if policy.broker_prevails:
            return bool(found) or given[0]
        return given[0] if found is None else found


_KEYS: Final = {
    policy.name: (policy.topic.key if policy.topic is not None else None, policy.namespace_keys, policy.kind in RATES)
    for policy in POLICIES
}
"""By policy: the member of a topic's document, those of a namespace's, and whether these hold a value per cluster."""
_SETTINGS: Final = {policy.name: [attrgetter(SETTING_PATHS[name]) for name in policy.settings] for policy in POLICIES}
_PLAIN: Final = [policy for policy in POLICIES if policy.settings]
_OF_DISPATCH: Final = "dispatch."
"""How the names of policies begin that are in force as `DispatchSettings`."""


def effective_policies(
    broker: BrokerLevel,
    namespace: Mapping[str, Any],
    topic: Mapping[str, Any],
    local: Mapping[str, Any] | None = None,
) -> EffectivePolicies:
    """Put the levels together; `local` is what this cluster alone keeps about the namespace."""
    settings = broker.settings.policies
    levels = _Levels(broker, topic, namespace)
    retention = levels.part("retention") or {}
    minutes = _number(retention, "retentionTimeInMinutes", settings.retention_minutes)
    megabytes = _number(retention, "retentionSizeInMB", settings.retention_megabytes)
    delayed = _delayed(levels)
    message_size = _number(topic, "maxMessageSize", 0)
    plain = {policy.name: levels.plain(policy) for policy in _PLAIN}
    of_dispatch = {name: plain.pop(name) for name in list(plain) if name.startswith(_OF_DISPATCH)}
    return EffectivePolicies(
        ledger=replace(
            _ledger_settings(broker.ledger, levels, minutes, megabytes),
            bookie_groups=bookie_groups_of(local or {}),
            offload=offload_policy(broker.settings.offload, namespace, topic),
        ),
        dispatch=replace(
            broker.settings.dispatch, **{name.removeprefix(_OF_DISPATCH): value for name, value in of_dispatch.items()}
        ),
        retention_minutes=minutes,
        retention_megabytes=megabytes,
        size_quota=_backlog_quota(broker, levels, SIZE_QUOTA),
        age_quota=_backlog_quota(broker, levels, AGE_QUOTA),
        migrated=(local or {}).get("migrated") is True,
        inactive_topics=_inactive_topics(broker, levels),
        message_size_bytes_max=message_size if 0 < message_size < broker.settings.message_size_bytes_max else 0,
        dispatch_rates=_dispatch_rates(levels),
        subscribe_rate=_subscribe_rate(broker, levels),
        subscription_types=_subscription_types(broker, levels),
        delayed_delivery=_flag(delayed, "active", settings.delayed_delivery),
        delayed_delivery_tick_ms=_number(delayed, "tickTime", settings.delayed_delivery_tick_ms),
        delay_ms_max=_number(delayed, "maxDeliveryDelayInMillis", settings.delay_ms_max),
        schema_compatibility=_schema_compatibility(broker, levels),
        auto_topic_creation=_auto_topic_creation(broker, levels),
        auto_subscription_creation=_auto_subscription_creation(broker, levels),
        **_other_clusters(broker, levels),
        shadow_topics=_shadow_topics(topic),
        resource_group=_resource_group(levels),
        **plain,
    )


def _schema_compatibility(broker: BrokerLevel, levels: _Levels) -> Strategy:
    """Namespaces have an older policy as well, which counts where the other says nothing."""
    older = levels.values("schema_auto_update")[0]
    for name in (
        *levels.values("schema_compatibility"),
        AUTO_UPDATE_STRATEGIES.get(older) if isinstance(older, str) else None,
    ):
        strategy = _member(Strategy, name, Strategy.UNDEFINED)
        if strategy is not Strategy.UNDEFINED:
            return strategy
    configured = broker.settings.policies.schema_compatibility
    return Strategy.FULL if configured is Strategy.UNDEFINED else configured


def _dispatch_rates(levels: _Levels) -> dict[str, Rate]:
    single = levels.part("dispatch_rates") or {}
    rates = {
        name: rate_of(_object((_object(policies) or {}).get("dispatchRate")), RATES[PolicyKind.DISPATCH_RATE])
        for name, policies in single.items()
    }
    return {name: rate for name, rate in rates.items() if rate.limited}


def _subscribe_rate(broker: BrokerLevel, levels: _Levels) -> Rate:
    own = broker.settings.policies
    subscribes = Rate(own.subscribes_per_consumer, 0, max(1, own.subscribe_period_seconds))
    return levels.rate("subscribe_rate", subscribes if subscribes.limited else UNLIMITED)


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
    persistence = levels.part("ledger") or {}
    ensemble = _number(persistence, "bookkeeperEnsemble", 0) or base.ensemble_size
    write_quorum = _number(persistence, "bookkeeperWriteQuorum", 0) or base.write_quorum
    ack_quorum = _number(persistence, "bookkeeperAckQuorum", 0) or base.ack_quorum
    if not ENSEMBLE_SIZE_MAX >= ensemble >= write_quorum >= ack_quorum >= 1:
        ensemble, write_quorum, ack_quorum = base.ensemble_size, base.write_quorum, base.ack_quorum
    mark_delete_rate = persistence.get("managedLedgerMaxMarkDeleteRate")
    if not isinstance(mark_delete_rate, int | float) or not 0 <= mark_delete_rate <= NUMBER_MAX:
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


def bookie_groups_of(local: Mapping[str, Any]) -> tuple[str, str] | None:
    """The groups of bookies that the ledgers of a namespace are put on (Pulsar: `BookieAffinityGroupData`)."""
    groups = _object(local.get("bookieAffinityGroup"))
    if groups is None:
        return None
    names = [groups.get(f"bookkeeperAffinityGroup{which}") for which in ("Primary", "Secondary")]
    first, secondary = (name if isinstance(name, str) else "" for name in names)
    return first, secondary


def _backlog_quota(broker: BrokerLevel, levels: _Levels, kind: str) -> BacklogQuota:
    settings = broker.settings.policies
    for quotas in levels.values("backlog_quota"):
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
    given = levels.part("inactive_topics") or {}
    return InactiveTopics(
        _flag(given, "deleteWhileInactive", settings.delete_inactive_topics if not given else False),
        _member(InactiveTopicDeleteMode, given.get("inactiveTopicDeleteMode"), settings.delete_inactive_topics_mode),
        _number(given, "maxInactiveDurationSeconds", settings.inactive_after_seconds),
    )


def _subscription_types(broker: BrokerLevel, levels: _Levels) -> frozenset[str]:
    refused = frozenset() if broker.settings.policies.key_shared_allowed else KEY_SHARED
    return _enabled_types(broker, levels) - refused


def _enabled_types(broker: BrokerLevel, levels: _Levels) -> frozenset[str]:
    for given in (*levels.values("subscription_types"), broker.settings.policies.subscription_types):
        names = given if isinstance(given, list | tuple) else ()
        types = ALL_SUBSCRIPTION_TYPES.intersection("Key_Shared" if one == "KeyShared" else str(one) for one in names)
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
    override = _object(levels.values("auto_topic_creation")[0])
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
    override = levels.part("auto_subscription_creation")
    if override is None:
        return broker.settings.auto_creation.subscriptions_allowed
    return _flag(override, "allowAutoSubscriptionCreation", False)


def _other_clusters(broker: BrokerLevel, levels: _Levels) -> dict[str, Any]:
    """A list of one cluster begins no replication (Pulsar `PersistentTopic.checkReplication`)."""
    for named in levels.values("replication"):
        if isinstance(named, list) and named:
            clusters = {str(cluster) for cluster in named}
            others = sorted(clusters - {broker.settings.cluster_name})
            return {"only_cluster": others[0]} if others and len(clusters) == 1 else {"remote_clusters": tuple(others)}
    return {}


def _shadow_topics(topic: Mapping[str, Any]) -> tuple[str, ...]:
    named = topic.get("shadowTopics")
    return tuple(one for one in named if isinstance(one, str)) if isinstance(named, list) else ()


def _resource_group(levels: _Levels) -> str:
    return next((name for name in levels.values("resource_group") if isinstance(name, str)), "")


def _object(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def _is(kind: type, value: object) -> bool:
    """A truth value is no number, and a number has 64 bits at most."""
    return type(value) is kind and (type(value) is not int or abs(value) <= NUMBER_MAX)


def _number(document: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = document.get(key)
    return value if type(value) is int and abs(value) <= NUMBER_MAX else otherwise


def _flag(document: Mapping[str, Any], key: str, otherwise: bool) -> bool:
    value = document.get(key)
    return value if isinstance(value, bool) else otherwise


def _member(kind: type[Member], value: object, otherwise: Member) -> Member:
    try:
        return kind(value)
    except ValueError:
        return otherwise
