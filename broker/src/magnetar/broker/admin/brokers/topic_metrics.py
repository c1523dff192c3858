"""What `/metrics` has of topics and subscriptions, by the names of Pulsar's brokers (`TopicStats`).

Apache's type is "gauge" for all of these. Here what only grows is a counter.
"""

from __future__ import annotations

from typing import Any, Final

from magnetar.broker.admin.brokers.metric_text import Definition, escape
from magnetar.broker.admin.topics.stats import largest_backlog_bytes
from magnetar.broker.topics.topic import PersistentTopic, Topic

TOPIC_METRICS: Final[tuple[Definition, ...]] = (
    ("pulsar_subscriptions_count", "gauge", "Subscriptions of the topic."),
    ("pulsar_producers_count", "gauge", "Producers of the topic."),
    ("pulsar_consumers_count", "gauge", "Consumers of the topic."),
    ("pulsar_rate_in", "gauge", "Messages per second published."),
    ("pulsar_rate_out", "gauge", "Messages per second dispatched."),
    ("pulsar_throughput_in", "gauge", "Bytes per second published."),
    ("pulsar_throughput_out", "gauge", "Bytes per second dispatched."),
    ("pulsar_in_messages_total", "counter", "Messages published."),
    ("pulsar_in_bytes_total", "counter", "Bytes published."),
    ("pulsar_average_msg_size", "gauge", "Bytes of a published message on average."),
    ("pulsar_msg_backlog", "gauge", "Entries that a subscription has not acknowledged, over all subscriptions."),
    ("pulsar_publish_rate_limit_times", "counter", "How often the publish rate has made producers wait."),
)

STORED_METRICS: Final[tuple[Definition, ...]] = (
    ("pulsar_storage_size", "gauge", "Bytes stored, all copies counted."),
    ("pulsar_storage_logical_size", "gauge", "Bytes stored, one copy counted."),
    ("pulsar_storage_backlog_size", "gauge", "Bytes that the subscription which is furthest behind has before it."),
    ("pulsar_storage_offloaded_size", "gauge", "Bytes of ledgers that tiered storage has, by the topic's metadata."),
    ("pulsar_storage_backlog_quota_limit", "gauge", "Bytes that the backlog may have; below 0: any number."),
    ("pulsar_storage_backlog_quota_limit_time", "gauge", "Seconds that the backlog may be old; below 0: any number."),
    ("pulsar_storage_write_rate", "gauge", "Entries per second written, in the last period of statistics."),
    ("pulsar_storage_read_rate", "gauge", "Entries per second read from bookies, in that period."),
    ("pulsar_storage_read_cache_misses_rate", "gauge", "Entries per second that the cache had not, in that period."),
)

TRANSACTIONAL_METRICS: Final[tuple[Definition, ...]] = (
    ("pulsar_txn_tb_active_total", "gauge", "Transactions that are open in the topic."),
    ("pulsar_txn_tb_aborted_total", "counter", "Transactions of the topic that were aborted."),
    ("pulsar_txn_tb_committed_total", "counter", "Transactions of the topic that were committed."),
)

_OF_STATISTICS: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("back_log", "gauge", "msgBacklog", "Entries not acknowledged."),
    ("back_log_no_delayed", "gauge", "msgBacklogNoDelayed", "Entries not acknowledged that are due."),
    ("delayed", "gauge", "msgDelayed", "Entries that are not due yet."),
    ("in_replay", "gauge", "msgInReplay", "Entries that wait to be delivered again."),
    ("msg_rate_redeliver", "gauge", "msgRateRedeliver", "Messages per second delivered again."),
    ("unacked_messages", "gauge", "unackedMessages", "Messages dispatched and not acknowledged."),
    ("blocked_on_unacked_messages", "gauge", "blockedSubscriptionOnUnackedMsgs", "1 while too many are not."),
    ("msg_rate_out", "gauge", "msgRateOut", "Messages per second dispatched."),
    ("msg_ack_rate", "gauge", "messageAckRate", "Messages per second acknowledged."),
    ("msg_throughput_out", "gauge", "msgThroughputOut", "Bytes per second dispatched."),
    ("last_expire_timestamp", "gauge", "lastExpireTimestamp", "When messages expired last, in ms since 1970."),
    ("last_acked_timestamp", "gauge", "lastAckedTimestamp", "When a consumer acknowledged last, in ms since 1970."),
    ("last_consumed_flow_timestamp", "gauge", "lastConsumedFlowTimestamp", "When one gave permits last, in ms."),
    ("last_consumed_timestamp", "gauge", "lastConsumedTimestamp", "When one was sent messages last, in ms."),
    (
        "last_mark_delete_advanced_timestamp",
        "gauge",
        "lastMarkDeleteAdvancedTimestamp",
        "When the mark-delete position moved last, in ms.",
    ),
    ("msg_rate_expired", "gauge", "msgRateExpired", "Messages per second expired."),
    ("total_msg_expired", "counter", "totalMsgExpired", "Messages expired."),
    ("msg_drop_rate", "gauge", "msgDropRate", "Messages per second dropped, of a topic that stores nothing."),
)
"""Names after `pulsar_subscription_`, types, members of the statistics, texts."""

SUBSCRIPTION_METRICS: Final[tuple[Definition, ...]] = (
    *((f"pulsar_subscription_{name}", kind, text) for name, kind, _, text in _OF_STATISTICS),
    ("pulsar_subscription_consumers_count", "gauge", "Consumers connected."),
    ("pulsar_out_messages_total", "counter", "Messages dispatched."),
    ("pulsar_out_bytes_total", "counter", "Bytes dispatched."),
)

_OF_CONSUMER: Final[tuple[tuple[str, str, str], ...]] = (
    ("msg_rate_redeliver", "msgRateRedeliver", "Messages per second delivered again."),
    ("unacked_messages", "unackedMessages", "Messages dispatched and not acknowledged."),
    ("blocked_on_unacked_messages", "blockedConsumerOnUnackedMsgs", "1 while too many are not."),
    ("msg_rate_out", "msgRateOut", "Messages per second dispatched."),
    ("msg_ack_rate", "messageAckRate", "Messages per second acknowledged."),
    ("msg_throughput_out", "msgThroughputOut", "Bytes per second dispatched."),
    ("available_permits", "availablePermits", "Messages that the consumer may still be sent."),
)
"""Names after `pulsar_consumer_`, members of a consumer's statistics, texts."""

CONSUMER_METRICS: Final[tuple[Definition, ...]] = tuple(
    (f"pulsar_consumer_{name}", "gauge", text) for name, _, text in _OF_CONSUMER
)

OF_NAMESPACES: Final = ("pulsar_subscription_delayed", "pulsar_subscription_in_replay")
"""What namespaces have of their subscriptions beside what has been dispatched (`NamespaceStatsAggregator`)."""

NO_SUMS: Final = frozenset(
    {
        "pulsar_average_msg_size",
        "pulsar_ledgeroffloader_read_ledger_latency",
        "pulsar_publish_rate_limit_times",
        "pulsar_storage_backlog_quota_limit",
        "pulsar_storage_backlog_quota_limit_time",
    }
)
"""What topics have and Apache does not add up for namespaces."""

_MEMBERS: Final = tuple(member for _, _, member, _ in _OF_STATISTICS)


def topic_labels(cluster: str, topic: Topic) -> str:
    """The labels of a topic."""
    return (
        f'{{cluster="{escape(cluster)}",namespace="{escape(str(topic.name.namespace_name))}",'
        f'topic="{escape(str(topic.name))}"}}'
    )


def topic_values(topic: Topic, subscriptions: list[dict[str, Any]], consumers_count: int) -> list[float]:
    """Values in the order of TOPIC_METRICS, with what its subscriptions tell."""
    producers = list(topic.producers.by_name.values())
    return [
        len(subscriptions),
        sum(not producer.is_replicator for producer in producers),
        consumers_count,
        sum(producer.message_rate_in for producer in producers),
        sum(subscription["msgRateOut"] for subscription in subscriptions),
        sum(producer.byte_rate_in for producer in producers),
        sum(subscription["msgThroughputOut"] for subscription in subscriptions),
        topic.messages_in,
        topic.bytes_in,
        topic.bytes_in / topic.messages_in if topic.messages_in else 0.0,
        sum(subscription["msgBacklog"] for subscription in subscriptions),
        topic.publish_limiter.times if topic.publish_limiter is not None else 0,
    ]


def stored_values(topic: PersistentTopic) -> list[float]:
    """Values in the order of STORED_METRICS. Copies: Apache's takes the write quorum that is in force now, too."""
    ledger, policies = topic.ledger, topic.policies
    size_bytes = ledger.ledgers.total_size_bytes()
    periods = ledger.appends.periods
    read_rate = 0.0 if periods is None else periods.per_second(periods.read.entries)
    return [
        size_bytes * ledger.settings.write_quorum,
        size_bytes,
        largest_backlog_bytes(ledger, [one.cursor for one in topic.subscriptions.values()]),
        ledger.ledgers.offloaded_size_bytes(),
        policies.size_quota.size_bytes_max,
        policies.age_quota.age_seconds_max,
        0.0 if periods is None else periods.per_second(periods.written.entries),
        read_rate,
        read_rate,
    ]


def transactional_values(topic: PersistentTopic) -> list[float] | None:
    """Values in the order of TRANSACTIONAL_METRICS; None where no transaction may write."""
    if topic.buffer is None:
        return None
    table = topic.buffer.table
    return [len(table.open), table.aborted_count, table.committed_count]


def subscription_values(stats: dict[str, Any], consumers_count: int) -> list[float]:
    """Values in the order of SUBSCRIPTION_METRICS."""
    values: list[float] = [stats[member] for member in _MEMBERS]
    values[_BLOCKED] = int(values[_BLOCKED])
    values += (consumers_count, stats["msgOutCounter"], stats["bytesOutCounter"])
    return values


def consumer_values(stats: dict[str, Any]) -> list[float]:
    """Values in the order of CONSUMER_METRICS, of a consumer's statistics."""
    return [stats[member] + 0 for _, member, _ in _OF_CONSUMER]


_BLOCKED: Final = _MEMBERS.index("blockedSubscriptionOnUnackedMsgs")
