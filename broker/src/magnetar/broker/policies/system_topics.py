"""Which topics are the brokers' own: no limit, quota or inactivity policy is for them (Pulsar: `SystemTopicNames`)."""

from __future__ import annotations

from typing import Final

from magnetar.core.topic_name import TopicName

SYSTEM_NAMESPACE: Final = "pulsar/system"
LIVENESS_TENANT: Final = "sla-monitor"
BROKERS_TENANT: Final = "pulsar"
"""Its namespaces are called by the brokers' ids, `host:port`, and hold the topic that a health check uses."""

COMPACTION: Final = "__compaction"
"""The subscription by which compaction goes through a topic."""

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
SUFFIX: Final = "__transaction_pending_ack"


def belongs_to_brokers(name: TopicName) -> bool:
    """Whether a topic is no client's."""
    own_name = name.partitioned_name().local_name
    if own_name.startswith(PREFIXES) or own_name.endswith(SUFFIX):
        return True
    if name.tenant == LIVENESS_TENANT or str(name.namespace_name) == SYSTEM_NAMESPACE:
        return True
    return name.tenant == BROKERS_TENANT and ":" in name.namespace


def is_compacted(name: TopicName) -> bool:
    """Whether nothing of a topic may be deleted that compaction has not gone through, whatever the retention is.

    Pulsar: `SystemTopic.isCompactionEnabled`, `PersistentTopic.preCreateSubscriptionForCompactionIfNeeded`."""
    return name.partitioned_name().local_name in COMPACTED
