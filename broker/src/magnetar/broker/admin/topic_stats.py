"""Statistics of topics in the shapes of Pulsar's TopicStats and PersistentTopicInternalStats."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from magnetar.broker.context import BrokerContext
from magnetar.broker.producer import Producer
from magnetar.broker.service import Topic
from magnetar.broker.topic import PersistentTopic
from magnetar.core.ids import Position

ACCESS_MODES = ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")
"""By the numbers of `ProducerAccessMode`."""

SUMMED = (
    "msgRateIn",
    "msgThroughputIn",
    "msgRateOut",
    "msgThroughputOut",
    "bytesInCounter",
    "msgInCounter",
    "bytesOutCounter",
    "msgOutCounter",
    "storageSize",
    "backlogSize",
)
"""What a partitioned topic has the sum of."""

SUMMED_OF_SUBSCRIPTIONS = (
    "msgRateOut",
    "msgThroughputOut",
    "bytesOutCounter",
    "msgOutCounter",
    "msgRateRedeliver",
    "messageAckRate",
    "msgBacklog",
    "backlogSize",
    "unackedMessages",
)


def topic_stats(topic: Topic, context: BrokerContext) -> dict[str, Any]:
    """One topic (or partition)."""
    publishers = [publisher_stats(producer) for producer in topic.producers.by_name.values()]
    subscriptions = subscription_stats(topic)
    stats: dict[str, Any] = {
        "msgRateIn": sum((publisher["msgRateIn"] for publisher in publishers), 0.0),
        "msgThroughputIn": sum((publisher["msgThroughputIn"] for publisher in publishers), 0.0),
        "msgRateOut": sum((one["msgRateOut"] for one in subscriptions.values()), 0.0),
        "msgThroughputOut": sum((one["msgThroughputOut"] for one in subscriptions.values()), 0.0),
        "bytesInCounter": topic.bytes_in,
        "msgInCounter": topic.messages_in,
        "bytesOutCounter": sum(one["bytesOutCounter"] for one in subscriptions.values()),
        "msgOutCounter": sum(one["msgOutCounter"] for one in subscriptions.values()),
        "averageMsgSize": topic.bytes_in / topic.messages_in if topic.messages_in else 0.0,
        "msgChunkPublished": False,
        "storageSize": 0,
        "backlogSize": 0,
        "backlogQuotaLimitSize": -1,
        "backlogQuotaLimitTime": -1,
        "oldestBacklogMessageAgeSeconds": -1,
        "publishRateLimitedTimes": 0,
        "earliestMsgPublishTimeInBacklogs": 0,
        "offloadedStorageSize": 0,
        "lastOffloadLedgerId": 0,
        "lastOffloadSuccessTimeStamp": 0,
        "lastOffloadFailureTimeStamp": 0,
        "ongoingTxnCount": 0,
        "abortedTxnCount": 0,
        "committedTxnCount": 0,
        "publishers": publishers,
        "waitingPublishers": len(topic.producers.waiting),
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Disabled",
        "topicEpoch": topic.producers.topic_epoch,
        "ownerBroker": context.settings.broker_id,
        "topicCreationTimeStamp": topic.created_ms,
        "lastPublishTimeStamp": topic.last_publish_ms,
    }
    if isinstance(topic, PersistentTopic):
        stats["storageSize"] = topic.ledger.total_size_bytes
        stats["backlogSize"] = max(
            (topic.ledger.size_bytes_after(one.cursor.mark_delete) for one in topic.subscriptions.values()), default=0
        )
    return stats


def subscription_stats(topic: Topic) -> dict[str, dict[str, Any]]:
    """Every subscription by name."""
    if not isinstance(topic, PersistentTopic):
        return {name: subscription.statistics() for name, subscription in topic.subscriptions.items()}
    return {
        name: subscription.statistics(backlog_bytes=topic.ledger.size_bytes_after(subscription.cursor.mark_delete))
        for name, subscription in topic.subscriptions.items()
    }


def publisher_stats(producer: Producer) -> dict[str, Any]:
    """One producer."""
    identity = producer.identity
    return {
        "accessMode": ACCESS_MODES[identity.access_mode],
        "msgRateIn": producer.message_rate_in,
        "msgThroughputIn": producer.byte_rate_in,
        "averageMsgSize": producer.bytes_in / producer.messages_in if producer.messages_in else 0.0,
        "chunkedMessageRate": 0.0,
        "producerId": producer.producer_id,
        "supportsPartialProducer": False,
        "producerName": producer.name,
        "address": identity.address,
        "connectedSince": iso_time(producer.connected_since_ms),
        "clientVersion": identity.client_version,
        "metadata": identity.metadata,
    }


def merge_stats(partitions: list[dict[str, Any]]) -> dict[str, Any]:
    """The stats of a partitioned topic from those of its partitions."""
    merged: dict[str, Any] = {key: sum(stats[key] for stats in partitions) for key in SUMMED}
    merged["averageMsgSize"] = merged["bytesInCounter"] / merged["msgInCounter"] if merged["msgInCounter"] else 0.0
    merged["publishers"] = [publisher for stats in partitions for publisher in stats["publishers"]]
    subscriptions: dict[str, dict[str, Any]] = {}
    for stats in partitions:
        for name, subscription in stats["subscriptions"].items():
            into = subscriptions.get(name)
            if into is None:
                subscriptions[name] = {**subscription, "consumers": list(subscription["consumers"])}
                continue
            for key in SUMMED_OF_SUBSCRIPTIONS:
                into[key] += subscription[key]
            into["consumers"] += subscription["consumers"]
    merged["subscriptions"] = subscriptions
    merged["replication"] = {}
    return merged


def internal_stats(topic: PersistentTopic) -> dict[str, Any]:
    """Ledgers and cursors of one topic (or partition)."""
    stats = topic.ledger.internal_stats()
    return {
        "entriesAddedCounter": stats.entries_added,
        "numberOfEntries": stats.number_of_entries,
        "totalSize": stats.total_size_bytes,
        "currentLedgerEntries": stats.current_ledger_entries,
        "currentLedgerSize": stats.current_ledger_size_bytes,
        "lastLedgerCreatedTimestamp": iso_time(stats.last_ledger_created_ms),
        "lastLedgerCreationFailureTimestamp": None,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": stats.pending_entries,
        "lastConfirmedEntry": position_text(stats.last_confirmed),
        "state": stats.state,
        "ledgers": [
            {
                "ledgerId": ledger.ledger_id,
                "entries": ledger.entries,
                "size": ledger.size_bytes,
                "offloaded": ledger.offloaded,
                "underReplicated": False,
            }
            for ledger in stats.ledgers
        ],
        "cursors": {
            name: {
                "markDeletePosition": position_text(cursor.mark_delete),
                "readPosition": position_text(cursor.read_position),
                "waitingReadOp": False,
                "pendingReadOps": 0,
                "messagesConsumedCounter": max(stats.entries_added - cursor.backlog_entries, 0),
                "cursorLedger": cursor.cursor_ledger,
                "cursorLedgerLastEntry": cursor.cursor_ledger_last_entry,
                "individuallyDeletedMessages": cursor.individually_acknowledged,
                "lastLedgerSwitchTimestamp": iso_time(cursor.last_ledger_switch_ms),
                "state": "Open" if cursor.cursor_ledger >= 0 else "NoLedger",
                "active": name in topic.subscriptions and bool(topic.subscriptions[name].consumers),
                "numberOfEntriesSinceFirstNotAckedMessage": cursor.backlog_entries,
                "totalNonContiguousDeletedMessagesRange": cursor.individual_count,
                "subscriptionHavePendingRead": False,
                "subscriptionHavePendingReplayRead": False,
                "properties": cursor.properties,
            }
            for name, cursor in stats.cursors.items()
        },
        "schemaLedgers": [],
        "compactedLedger": {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False},
        "properties": stats.properties,
    }


def position_text(position: Position) -> str:
    """`ledger:entry`."""
    return f"{position[0]}:{position[1]}"


def iso_time(milliseconds: int) -> str:
    """A time as Apache's stats print it, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
