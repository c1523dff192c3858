"""The policies that hold for a topic, as values.

One object serves all topics that have the same ones, so that a hundred thousand topics cost one; nothing in here is
ever changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from magnetar.broker.policies.system_topics import belongs_to_brokers
from magnetar.broker.schema.strategy import Strategy
from magnetar.broker.settings.policies import BacklogQuotaPolicy, InactiveTopicDeleteMode

if TYPE_CHECKING:
    from magnetar.broker.settings.broker import DispatchSettings
    from magnetar.core.topic_name import TopicName
    from magnetar.managed.settings import ManagedLedgerSettings


@dataclass(frozen=True, slots=True)
class Rate:
    """How much may pass per period; 0 or less is no limit."""

    messages: int = 0
    size_bytes: int = 0
    period_seconds: float = 1.0
    relative_to_publish_rate: bool = False
    """Whether the rate comes on top of what is published now; only dispatch rates do."""

    @property
    def limited(self) -> bool:
        """Whether it limits anything."""
        return self.messages > 0 or self.size_bytes > 0


UNLIMITED: Final = Rate()


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """How large a backlog may get; a limit below 0 is none (for the age also 0, as Apache's broker has it)."""

    size_bytes_max: int = -1
    age_seconds_max: int = -1
    policy: BacklogQuotaPolicy = BacklogQuotaPolicy.HOLD


@dataclass(frozen=True, slots=True)
class InactiveTopics:
    """What happens to topics that nobody uses."""

    delete: bool = True
    mode: InactiveTopicDeleteMode = InactiveTopicDeleteMode.NO_SUBSCRIPTIONS
    after_seconds: int = 60


@dataclass(frozen=True, slots=True)
class AutoTopicCreation:
    """Whether topics are made on first use, and with how many partitions (0: not partitioned)."""

    allowed: bool = True
    partitions: int = 0


ALL_SUBSCRIPTION_TYPES: Final = frozenset({"Exclusive", "Shared", "Failover", "Key_Shared"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicies:
    """What is in force for one topic: its own policies over its namespace's over the broker's settings.

    Limits of numbers: 0 or less is no limit. Made by `effective.effective_policies`."""

    ledger: ManagedLedgerSettings
    """Retention, copies and the rest of how it is stored. Shared: never to be changed."""
    dispatch: DispatchSettings
    """Settings of dispatch, with the limits of unacknowledged messages that are in force."""

    migrated: bool = False
    """Whether the namespace has moved to the cluster that its own cluster's policies name."""
    retention_minutes: int = 0
    """Minutes that acknowledged messages are kept; below 0: for ever."""
    retention_megabytes: int = 0
    message_ttl_seconds: int = 0
    size_quota: BacklogQuota = field(default_factory=BacklogQuota)
    age_quota: BacklogQuota = field(default_factory=BacklogQuota)
    subscription_expiration_minutes: int = 0
    inactive_topics: InactiveTopics = field(default_factory=InactiveTopics)

    producers_max: int = 0
    consumers_max: int = 0
    consumers_per_subscription_max: int = 0
    subscriptions_max: int = 0
    topics_per_namespace_max: int = 0
    message_size_bytes_max: int = 0
    """Bytes of the largest message that the topic takes; 0: as the broker's setting says."""

    publish_rate: Rate = UNLIMITED
    topic_dispatch_rate: Rate = UNLIMITED
    subscription_dispatch_rate: Rate = UNLIMITED
    dispatch_rates: Mapping[str, Rate] = field(default_factory=dict)
    """Dispatch rates of single subscriptions, by name; they win over `subscription_dispatch_rate`."""
    replicator_dispatch_rate: Rate = UNLIMITED
    resource_group: str = ""
    """The group of namespaces that shares limits with this one; empty: none."""
    subscribe_rate: Rate = UNLIMITED
    """Subscribes per consumer and period; `messages` counts them."""

    encryption_required: bool = False
    subscription_types: frozenset[str] = ALL_SUBSCRIPTION_TYPES
    delayed_delivery: bool = True
    delayed_delivery_tick_ms: int = 1_000
    delay_ms_max: int = 0
    """Milliseconds that a delivery may be delayed; longer delays are refused, 0 is no limit."""
    deduplication: bool = False
    deduplication_snapshot_seconds: int = 120
    schema_validation_enforced: bool = False
    schema_auto_update_allowed: bool = True
    """Whether producers may bring new schemas."""
    schema_compatibility: Strategy = Strategy.FULL
    """How a new schema must be compatible with those before; never UNDEFINED."""
    compaction_threshold_bytes: int = 0
    auto_topic_creation: AutoTopicCreation = field(default_factory=AutoTopicCreation)
    auto_subscription_creation: bool = True
    remote_clusters: tuple[str, ...] = ()
    """Other clusters that its messages are to be replicated to, sorted."""
    only_cluster: str = ""
    """The one cluster that the list names, when it is another one. It may be that of a namespace which only lets this
    cluster in, of a configuration store that both share: what was replicated to it goes on, nothing begins."""
    shadow_topics: tuple[str, ...] = ()
    """Topics that show the entries of this one."""

    @property
    def checks_messages(self) -> bool:
        """Whether published messages have to be looked at one by one."""
        return (
            self.deduplication or self.encryption_required or self.message_size_bytes_max > 0 or self.delay_ms_max > 0
        )

    def ledger_of(self, name: TopicName) -> ManagedLedgerSettings:
        """How a topic is stored: those that belong to brokers are never offloaded by themselves, as at Apache's."""
        offload = self.ledger.offload
        if not offload.by_itself or not belongs_to_brokers(name):
            return self.ledger
        return replace(self.ledger, offload=replace(offload, threshold_bytes=-1, threshold_ms=-1))

    def dispatch_rate_of(self, subscription: str) -> Rate:
        """The dispatch rate of one subscription by itself."""
        return self.dispatch_rates.get(subscription, self.subscription_dispatch_rate)
