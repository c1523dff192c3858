"""Snapshots of consumers and subscriptions under the names that Pulsar's admin API and CONSUMER_STATS use.

Names: `ConsumerStatsImpl`, `SubscriptionStatsImpl`, `CommandConsumerStatsResponse`. What Magnetar has nothing to say
about has Pulsar's "nothing" there.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from magnetar.broker.dispatch.consumer import Consumer
from magnetar.managed.cursors.internal_properties import without_internal
from magnetar.wire.pulsar.enums import SubscriptionType

if TYPE_CHECKING:
    from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
    from magnetar.broker.subscriptions.cursor import SubscriptionCursor
    from magnetar.broker.subscriptions.totals import SubscriptionTotals


def consumer_response(consumer: Consumer, backlog: int) -> dict[str, Any]:
    """The fields of CONSUMER_STATS_RESPONSE but its request id; `backlog` is the subscription's."""
    rates = consumer.rates
    return {
        "msgRateOut": rates.messages_out.per_second,
        "msgThroughputOut": rates.bytes_out.per_second,
        "msgRateRedeliver": rates.messages_redelivered.per_second,
        "consumerName": consumer.name,
        "availablePermits": max(0, consumer.permits),
        "unackedMessages": consumer.unacked_messages,
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "address": consumer.identity.address,
        "connectedSince": iso_time(consumer.connected_since_ms) or "",
        "type": consumer.identity.subscription_type.display_name,
        "msgRateExpired": 0.0,
        "msgBacklog": backlog,
        "messageAckRate": rates.messages_acknowledged.per_second,
    }


def consumer_statistics(consumer: Consumer, key_shared: KeySharedDispatcher | None) -> dict[str, Any]:
    """One consumer as in the admin API. Rates are per second, timestamps in ms since 1970 (0 = never)."""
    rates = consumer.rates
    joined = consumer.read_position_when_joining
    ranges = key_shared.selector.ranges(consumer) if key_shared is not None else []
    draining = [one for one, holder in key_shared.draining.items() if holder is consumer] if key_shared else []
    return {
        "msgRateOut": rates.messages_out.per_second,
        "msgThroughputOut": rates.bytes_out.per_second,
        "bytesOutCounter": consumer.bytes_out,
        "msgOutCounter": consumer.messages_out,
        "msgRateRedeliver": rates.messages_redelivered.per_second,
        "messageAckRate": rates.messages_acknowledged.per_second,
        "chunkedMessageRate": rates.chunks_out.per_second,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "avgMessagesPerEntry": round(consumer.messages_out / consumer.entries_out) if consumer.entries_out else 0,
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "readPositionWhenJoining": f"{joined[0]}:{joined[1]}" if joined is not None else None,
        "address": consumer.identity.address,
        "connectedSince": iso_time(consumer.connected_since_ms),
        "clientVersion": consumer.identity.client_version,
        "appId": consumer.identity.app_id,
        "lastAckedTimestamp": consumer.last_acknowledged_ms,
        "lastAckedTime": iso_time(consumer.last_acknowledged_ms),
        "lastConsumedTimestamp": consumer.last_consumed_ms,
        "lastConsumedTime": iso_time(consumer.last_consumed_ms),
        "lastConsumedFlowTimestamp": consumer.last_flow_ms,
        "keyHashRanges": [f"[{start}, {end}]" for start, end in ranges],
        "keyHashRangeArrays": [[start, end] for start, end in ranges],
        "metadata": dict(consumer.identity.metadata),
        "drainingHashesCount": len(draining),
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": sum(consumer.pending.per_hash.get(one, 0) for one in draining),
        "drainingHashes": [],
    }


def stored_statistics(
    cursor: SubscriptionCursor, key_shared: KeySharedDispatcher | None, active: Consumer | None, delayed: int
) -> dict[str, Any]:
    """What a subscription has that is stored, and what only one of its types has; `active` is who receives, `delayed`
    are the entries that wait for their time."""
    backlog = cursor.backlog_entries
    failover = active is not None and active.identity.subscription_type is SubscriptionType.FAILOVER
    sticky = key_shared is not None and key_shared.sticky
    return {
        "activeConsumerName": active.name if active is not None and failover else None,
        "isDurable": cursor.durable,
        "msgBacklog": backlog,
        "msgBacklogNoDelayed": max(0, backlog - delayed),
        "msgDelayed": delayed,
        "allowOutOfOrderDelivery": key_shared.allow_out_of_order if key_shared is not None else False,
        "keySharedMode": ("STICKY" if sticky else "AUTO_SPLIT") if key_shared is not None else None,
        "nonContiguousDeletedMessagesRanges": cursor.individual_ranges,
        "subscriptionProperties": without_internal(cursor.cursor_properties),
    }


def dispatch_statistics(
    consumers: list[Consumer],
    totals: SubscriptionTotals,
    key_shared: KeySharedDispatcher | None,
    *,
    with_consumers: bool,
) -> dict[str, Any]:
    """What every subscription has, stored or not; the rest is zero."""
    shown = [consumer_statistics(consumer, key_shared) for consumer in consumers]
    return {
        "msgRateOut": sum(one["msgRateOut"] for one in shown),
        "msgThroughputOut": sum(one["msgThroughputOut"] for one in shown),
        "bytesOutCounter": totals.bytes_out(consumers),
        "msgOutCounter": totals.messages_out(consumers),
        "msgRateRedeliver": sum(one["msgRateRedeliver"] for one in shown),
        "messageAckRate": sum(one["messageAckRate"] for one in shown),
        "chunkedMessageRate": sum(one["chunkedMessageRate"] for one in shown),
        "msgBacklog": 0,
        "backlogSize": 0,
        "earliestMsgPublishTimeInBacklog": 0,
        "msgBacklogNoDelayed": 0,
        "blockedSubscriptionOnUnackedMsgs": False,
        "msgDelayed": 0,
        "msgInReplay": 0,
        "unackedMessages": 0,
        "type": "None",
        "activeConsumerName": None,
        "msgRateExpired": totals.expired_per_second,
        "msgExpired": totals.messages_expired,
        "totalMsgExpired": totals.messages_expired,
        "lastExpireTimestamp": totals.last_expired_ms,
        "msgDropRate": 0.0,
        "lastConsumedFlowTimestamp": max([totals.last_flow_ms, *(one.last_flow_ms for one in consumers)]),
        "lastConsumedTimestamp": max([totals.last_consumed_ms, *(one.last_consumed_ms for one in consumers)]),
        "lastAckedTimestamp": max([totals.last_acknowledged_ms, *(one.last_acknowledged_ms for one in consumers)]),
        "lastMarkDeleteAdvancedTimestamp": totals.last_mark_delete_advanced_ms,
        "consumers": shown if with_consumers else [],
        "isDurable": False,
        "isReplicated": False,
        "allowOutOfOrderDelivery": False,
        "keySharedMode": None,
        "consumersAfterMarkDeletePosition": {},
        "drainingHashesCount": sum(one["drainingHashesCount"] for one in shown),
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": sum(one["drainingHashesUnackedMessages"] for one in shown),
        "nonContiguousDeletedMessagesRanges": 0,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": 0,
        "subscriptionProperties": {},
        "filterProcessedMsgCount": 0,
        "filterAcceptedMsgCount": 0,
        "filterRejectedMsgCount": 0,
        "filterRescheduledMsgCount": 0,
        "dispatchThrottledMsgEventsBySubscriptionLimit": 0,
        "dispatchThrottledBytesEventsBySubscriptionLimit": 0,
        "dispatchThrottledMsgEventsByTopicLimit": 0,
        "dispatchThrottledBytesEventsByTopicLimit": 0,
        "dispatchThrottledMsgEventsByBrokerLimit": 0,
        "dispatchThrottledBytesEventsByBrokerLimit": 0,
    }


def iso_time(milliseconds: int) -> str | None:
    """ISO 8601 in UTC; None for "never"."""
    if milliseconds <= 0:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
