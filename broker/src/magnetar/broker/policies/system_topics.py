"""Which topics are the brokers' own: no limit, quota or inactivity policy is for them (Pulsar: `SystemTopicNames`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from magnetar.core.limits import MIB
from magnetar.core.topic_name import TopicName
from magnetar.managed.compaction import COMPACTION_CURSOR

if TYPE_CHECKING:
    from magnetar.broker.settings.load import LoadSettings

SYSTEM_NAMESPACE: Final = "pulsar/system"
LOAD_HISTORY: Final = "persistent://pulsar/system/load-history"
"""The topic in which all brokers' load is written down for planning; ours alone."""

LIVENESS_TENANT: Final = "sla-monitor"
BROKERS_TENANT: Final = "pulsar"
"""Its namespaces are called by the brokers' ids, `host:port`, and hold the topic that a health check uses."""

SYSTEM_READER: Final = "__system_reader"
"""What the subscriptions of brokers that read each other's topics begin with (Pulsar: `SYSTEM_READER_PREFIX`)."""

BROKERS_SUBSCRIPTIONS: Final = (COMPACTION_CURSOR, SYSTEM_READER, "pulsar.dedup", "pulsar.repl.")
"""What the names of subscriptions begin with that brokers use themselves on their own topics."""

COMPACTED: Final = frozenset(
    {
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_segments",
        "__transaction_buffer_snapshot_indexes",
    }
)
"""Topics of which the last message of each key counts, whatever its age."""

PREFIXES: Final = ("__change_events", "__transaction_")
LOG_PREFIX: Final = "__transaction_log_"
"""What the logs of transaction coordinators are called."""
SUFFIX: Final = "__transaction_pending_ack"
"""What the logs of subscriptions are called: managed ledgers without a topic."""

SYSTEM_TOPIC_PREFIXES: Final = ("__change_events", "__transaction_", "__transaction_buffer_snapshot")
"""Local names of topics that belong to brokers; never listed to clients."""


def belongs_to_brokers(name: TopicName) -> bool:
    """Whether a topic is no client's."""
    own_name = name.partitioned_name().local_name
    if own_name.startswith(PREFIXES) or own_name.endswith(SUFFIX):
        return True
    if name.tenant == LIVENESS_TENANT or str(name.namespace_name) == SYSTEM_NAMESPACE:
        return True
    return name.tenant == BROKERS_TENANT and ":" in name.namespace


def is_bare_ledger(name: TopicName) -> bool:
    """Whether what is called so is a managed ledger without a topic: nobody may publish there or read it, and whoever
    opened it would take it away from its owner (Pulsar: `SystemTopicNames.isTransactionInternalName`)."""
    return name.local_name.startswith(LOG_PREFIX) or name.local_name.endswith(SUFFIX)


def is_pending_ack_log(name: TopicName) -> bool:
    """Whether a managed ledger is called so that holds what transactions acknowledge on one subscription."""
    return name.local_name.endswith(SUFFIX)


def is_compacted(name: TopicName) -> bool:
    """Whether nothing of a topic may be deleted that compaction has not gone through, whatever the retention is.

    Pulsar: `SystemTopic.isCompactionEnabled`, `PersistentTopic.preCreateSubscriptionForCompactionIfNeeded`."""
    return name.partitioned_name().local_name in COMPACTED


def load_history_policies(settings: LoadSettings) -> dict[str, Any]:
    """The topic policies that `LOAD_HISTORY` has by itself, as clients cannot set any on it: it is kept for a while
    without subscriptions, and never without an end."""
    retention = {
        "retentionTimeInMinutes": settings.history_retention_seconds // 60,
        "retentionSizeInMB": settings.history_retention_bytes // MIB,
    }
    return {"retentionPolicies": retention}


def is_system_topic(topic: str) -> bool:
    """Whether a topic belongs to brokers and is not shown to clients; by its full name."""
    # Domain, nothing, tenant, namespace, local name: parsing each of ten thousand takes as many microseconds.
    return topic.split("/", 4)[-1].startswith(SYSTEM_TOPIC_PREFIXES) or topic.endswith(SUFFIX)
