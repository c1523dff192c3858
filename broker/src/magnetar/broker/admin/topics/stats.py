"""Statistics of topics in the shape of Pulsar's TopicStats. What is null there is left out, as Apache's JSON does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from aiohttp import web
from magnetar.broker.admin.topics.inbound_replication import NOT_REPLICATED, inbound_figures
from magnetar.broker.admin.web.responses import flag
from magnetar.broker.context import BrokerContext
from magnetar.broker.replicated_subscriptions.marked import is_marked
from magnetar.broker.slices import TimeSlice
from magnetar.broker.subscriptions.non_persistent_subscription import NonPersistentSubscription
from magnetar.broker.subscriptions.statistics import all_consumer_statistics
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.topic import PersistentTopic, Topic
from magnetar.core.ids import Position
from magnetar.ledger.api import LedgerError
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.wire.pulsar.errors import BadMetadata

ACCESS_MODES: Final = ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")
"""The names of producers' access modes, by the numbers of `ProducerAccessMode`."""

STATS_QUERY: Final = (
    "authoritative",
    "getPreciseBacklog",
    "subscriptionBacklogSize",
    "getEarliestTimeInBacklog",
    "excludePublishers",
    "excludeConsumers",
)

NOT_COMPACTED: Final = {
    "lastCompactionRemovedEventCount": 0,
    "lastCompactionSucceedTimestamp": 0,
    "lastCompactionFailedTimestamp": 0,
    "lastCompactionDurationTimeInMills": 0,
}

OF_KEY_SHARED: Final = ("drainingHashes", "keyHashRanges", "keyHashRangeArrays")

NEVER_TEXT: Final = "1970-01-01T00:00:00Z"

NOTHING_TO_SAY: Final[dict[str, Any]] = {
    "systemTopicBytesInCounter": 0,
    "bytesOutInternalCounter": 0,
    "msgChunkPublished": False,
    "storageSize": 0,
    "backlogSize": 0,
    "backlogQuotaLimitSize": 0,
    "backlogQuotaLimitTime": 0,
    "oldestBacklogMessageAgeSeconds": 0,
    "publishRateLimitedTimes": 0,
    "earliestMsgPublishTimeInBacklogs": 0,
    "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0,
    "lastOffloadSuccessTimeStamp": 0,
    "lastOffloadFailureTimeStamp": 0,
    "ongoingTxnCount": 0,
    "abortedTxnCount": 0,
    "committedTxnCount": 0,
    "nonContiguousDeletedMessagesRanges": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
    "delayedMessageIndexSizeInBytes": 0,
    "compaction": NOT_COMPACTED,
}
"""The internal statistics of a topic that stores nothing."""


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """What of the statistics is wanted (query parameters of `…/stats`)."""

    backlog_sizes: bool = True
    earliest_times: bool = False
    publishers: bool = True
    consumers: bool = True

    @staticmethod
    def of(request: web.Request) -> StatsOptions:
        """What the query of a request asks for. Backlogs are always precise here."""
        return StatsOptions(
            backlog_sizes=flag(request, "subscriptionBacklogSize", default=True),
            earliest_times=flag(request, "getEarliestTimeInBacklog"),
            publishers=not flag(request, "excludePublishers"),
            consumers=not flag(request, "excludeConsumers"),
        )


async def topic_stats(topic: Topic, context: BrokerContext, options: StatsOptions) -> dict[str, Any]:
    """One topic (or partition)."""
    publishers = [publisher_stats(producer) for producer in topic.producers.by_name.values()]
    clients = {producer.name for producer in topic.producers.by_name.values() if not producer.is_replicator}
    subscriptions = await subscription_stats(topic, options)
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
        **NOTHING_TO_SAY,
        "publishers": [one for one in publishers if one["producerName"] in clients] if options.publishers else [],
        "waitingPublishers": len(topic.producers.waiting),
        "subscriptions": subscriptions,
        "replication": replication_stats(topic),
        "topicEpoch": topic.producers.topic_epoch,
        "ownerBroker": context.settings.broker_id,
        "topicCreationTimeStamp": topic.created_ms,
        "lastPublishTimeStamp": topic.last_publish_ms,
    }
    if topic.destination is not None:
        stats["migrated"] = True
    if topic.publish_limiter is not None:
        stats["publishRateLimitedTimes"] = topic.publish_limiter.times
    if isinstance(topic, PersistentTopic):
        _add_stored(stats, topic)
    else:
        for publisher in publishers:
            publisher["msgDropRate"] = 0.0
        stats["msgDropRate"] = sum((one.get("msgDropRate", 0.0) for one in subscriptions.values()), 0.0)
    # Those of the subscriptions are without nulls already: there may be many.
    return {
        key: value if key == "subscriptions" else without_nulls(value)
        for key, value in stats.items()
        if value is not None
    }


def replication_stats(topic: Topic) -> dict[str, Any]:
    """`replication` of a topic's statistics: by cluster, and by the name of each shadow topic, which Apache's broker
    leaves out."""
    found: dict[str, Any] = {}
    for some in (topic.replicators, topic.shadow_replicators):
        if some is not None:
            found.update(some.stats())
    return with_inbound(found, topic.producers.by_name.values())


def with_inbound(replication: dict[str, Any], producers: Iterable[Producer]) -> dict[str, Any]:
    """`replication` of a topic's statistics, with what comes in. A cluster that sends and gets nothing has a member as
    well; Apache's broker leaves it out."""
    for source, figures in inbound_figures(producers).items():
        replication[source] = {
            **replication.get(source, NOT_REPLICATED),
            "msgRateIn": figures.message_rate,
            "msgThroughputIn": figures.byte_rate,
            "msgInCount": figures.message_count,
            "bytesInCount": figures.size_bytes,
            "inboundConnection": figures.address,
            "inboundConnectedSince": iso_time(figures.connected_since_ms),
        }
    return replication


def _add_stored(stats: dict[str, Any], topic: PersistentTopic) -> None:
    if topic.compaction is not None:
        stats["compaction"] = topic.compaction.record.statistics()
    subscriptions = stats["subscriptions"].values()
    policies = topic.policies
    stats["storageSize"] = topic.ledger.ledgers.total_size_bytes()
    stats["backlogSize"] = largest_backlog_bytes(topic.ledger, [one.cursor for one in topic.subscriptions.values()])
    counters = topic.ledger.offloads.counters
    stats["offloadedStorageSize"] = topic.ledger.ledgers.offloaded_size_bytes()
    stats["lastOffloadLedgerId"] = counters.last_ledger_id
    stats["lastOffloadSuccessTimeStamp"] = counters.last_success_ms
    stats["lastOffloadFailureTimeStamp"] = counters.last_failure_ms
    stats["backlogQuotaLimitSize"] = policies.size_quota.size_bytes_max
    stats["backlogQuotaLimitTime"] = policies.age_quota.age_seconds_max
    stats["oldestBacklogMessageAgeSeconds"] = -1
    stats["deduplicationStatus"] = "Enabled" if policies.deduplication else "Disabled"
    times = [one["earliestMsgPublishTimeInBacklog"] for one in subscriptions]
    stats["earliestMsgPublishTimeInBacklogs"] = min((time_ms for time_ms in times if time_ms > 0), default=0)
    for name in ("nonContiguousDeletedMessagesRanges", "delayedMessageIndexSizeInBytes"):
        stats[name] = sum(one[name] for one in subscriptions)
    if topic.buffer is not None:
        table = topic.buffer.table
        stats["ongoingTxnCount"] = len(table.open)
        stats["abortedTxnCount"], stats["committedTxnCount"] = table.aborted_count, table.committed_count


class PositionedCursor(Protocol):
    """A cursor."""

    @property
    def mark_delete(self) -> Position:
        """Up to where everything is acknowledged."""
        ...


def largest_backlog_bytes(ledger: ManagedLedger, cursors: Iterable[PositionedCursor]) -> int:
    """Bytes that the cursor which is furthest behind has before it; 0 without any cursor."""
    furthest = min((cursor.mark_delete for cursor in cursors), default=None)
    return 0 if furthest is None else ledger.ledgers.size_bytes_after(furthest)


async def subscription_stats(topic: Topic, options: StatsOptions) -> dict[str, dict[str, Any]]:
    """Every subscription by name, gathered in turns with what clients send."""
    turn = TimeSlice()
    found: dict[str, dict[str, Any]] = {}
    for name in list(topic.subscriptions):
        if turn.over:
            await turn.pause()
        if isinstance(topic, PersistentTopic):
            one = await _stored_subscription(topic, name, options)
        elif (unstored := topic.subscriptions.get(name)) is not None:
            one = unstored.statistics(with_consumers=False)
        else:
            one = None
        subscription = topic.subscriptions.get(name)
        if one is None or subscription is None:
            continue  # Removed meanwhile.
        one["durable"], one["replicated"] = one["isDurable"], one["isReplicated"]
        found[name] = without_nulls(one)
        if options.consumers:
            found[name]["consumers"] = await consumer_stats(subscription, one["type"], turn)
    if turn.over:
        await turn.pause()
    return found


async def _stored_subscription(topic: PersistentTopic, name: str, options: StatsOptions) -> dict[str, Any] | None:
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        return None
    mark_delete = subscription.cursor.mark_delete
    size = topic.ledger.ledgers.size_bytes_after(mark_delete) if options.backlog_sizes else -1
    one = subscription.statistics(backlog_bytes=size, with_consumers=False)
    one["isReplicated"] = is_marked(topic.ledger.cursors.get(name))
    if subscription.exclusive_holder() is not None and (active := subscription.active_consumer) is not None:
        one["activeConsumerName"] = active.name
    if options.earliest_times:
        one["earliestMsgPublishTimeInBacklog"] = await earliest_publish_ms(topic, mark_delete)
    return one


async def consumer_stats(
    subscription: Subscription | NonPersistentSubscription, subscription_type: str, turn: TimeSlice
) -> list[dict[str, Any]]:
    """Every consumer of a subscription, gathered in turns with what clients send."""
    found: list[dict[str, Any]] = []
    for consumer in all_consumer_statistics(subscription.consumers, subscription.key_shared):
        found.append(consumer_document(consumer, subscription_type))
        if turn.over:
            await turn.pause()
    return found


def consumer_document(consumer: dict[str, Any], subscription_type: str) -> dict[str, Any]:
    """A consumer without nulls, and without what only those of Key_Shared subscriptions have."""
    left_out = () if subscription_type == "Key_Shared" else OF_KEY_SHARED
    for key in ("lastAckedTime", "lastConsumedTime"):
        consumer[key] = consumer[key] or NEVER_TEXT
    # What is null is so at the top: nobody looks through thousands of ranges for more.
    return {key: value for key, value in consumer.items() if value is not None and key not in left_out}


async def earliest_publish_ms(topic: PersistentTopic, mark_delete: Position) -> int:
    """When the first entry after a position was published; 0 when there is none, -1 when it cannot be read."""
    position = topic.ledger.ledgers.next_position(mark_delete)
    if not topic.ledger.ledgers.contains(position):
        return 0
    try:
        return (await topic.ledger.read_entry(position)).metadata().publish_time_ms
    except (LedgerError, BadMetadata):
        return -1


def publisher_stats(producer: Producer) -> dict[str, Any]:
    """A producer's statistics as JSON."""
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


def without_nulls(document: Any) -> Any:
    """The document without members that are null, at any depth."""
    if isinstance(document, dict):
        return {key: without_nulls(value) for key, value in document.items() if value is not None}
    if isinstance(document, list):
        return [without_nulls(value) for value in document]
    return document


def position_text(position: Position) -> str:
    """`ledger:entry`."""
    return f"{position[0]}:{position[1]}"


def iso_time(milliseconds: int) -> str:
    """A time as Apache's stats print it, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
