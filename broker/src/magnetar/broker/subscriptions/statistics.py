"""Snapshots of consumers and subscriptions under the names that Pulsar's admin API and CONSUMER_STATS use.

Names: `ConsumerStatsImpl`, `SubscriptionStatsImpl`, `CommandConsumerStatsResponse`. What Magnetar has nothing to say
about has Pulsar's "nothing" there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from magnetar.broker.dispatch.consumer import Consumer
from magnetar.managed.cursors.internal_properties import without_internal
from magnetar.wire.pulsar.enums import SubscriptionType

if TYPE_CHECKING:
    from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
    from magnetar.broker.subscriptions.cursor import SubscriptionCursor
    from magnetar.broker.subscriptions.totals import SubscriptionTotals


NOTHING_FILTERED: Final = {
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
"""Filters of entries are not told of, nor are waits for limits of the rate."""


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


class ConsumerSlots(NamedTuple):
    """What a consumer of a Key_Shared subscription has of its slots."""

    ranges: Sequence[tuple[int, int]]
    draining: Sequence[int]
    """Those of others, of which it holds entries."""


NO_SLOTS: Final = ConsumerSlots((), ())


def all_consumer_statistics(
    consumers: list[Consumer], key_shared: KeySharedDispatcher | None
) -> Iterator[dict[str, Any]]:
    """Each consumer as in the admin API. Whoever takes them may let others go on in between, so that who has left
    meanwhile has no ranges."""
    if key_shared is None:
        yield from map(consumer_statistics, consumers)
        return
    # Once for all: there are up to 65 536 slots, too many to look at for each of a thousand consumers.
    draining: dict[Consumer, list[int]] = {}
    for slot, holder in key_shared.draining.items():
        draining.setdefault(holder, []).append(slot)
    for consumer in consumers:
        yield consumer_statistics(
            consumer, ConsumerSlots(key_shared.selector.ranges(consumer), draining.get(consumer, ()))
        )


def consumer_statistics(consumer: Consumer, slots: ConsumerSlots = NO_SLOTS) -> dict[str, Any]:
    """One consumer as in the admin API. Rates are per second, timestamps in ms since 1970 (0 = never)."""
    rates = consumer.rates
    joined = consumer.read_position_when_joining
    ranges, draining = slots
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
    """What every subscription has, stored or not; the rest is zero. `with_consumers` is for few: of thousands take
    `all_consumer_statistics` in turns."""
    rates = [consumer.rates for consumer in consumers]
    draining = key_shared.draining if key_shared is not None else {}
    return {
        "msgRateOut": sum([one.messages_out.per_second for one in rates]),
        "msgThroughputOut": sum([one.bytes_out.per_second for one in rates]),
        "bytesOutCounter": totals.bytes_out(consumers),
        "msgOutCounter": totals.messages_out(consumers),
        "msgRateRedeliver": sum([one.messages_redelivered.per_second for one in rates]),
        "messageAckRate": sum([one.messages_acknowledged.per_second for one in rates]),
        "chunkedMessageRate": sum([one.chunks_out.per_second for one in rates]),
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
        "consumers": list(all_consumer_statistics(consumers, key_shared)) if with_consumers else [],
        "isDurable": False,
        "isReplicated": False,
        "allowOutOfOrderDelivery": False,
        "keySharedMode": None,
        "consumersAfterMarkDeletePosition": {},
        "drainingHashesCount": len(draining),
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": sum(
            [holder.pending.per_hash.get(slot, 0) for slot, holder in draining.items()]
        ),
        "nonContiguousDeletedMessagesRanges": 0,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": 0,
        "subscriptionProperties": {},
        **NOTHING_FILTERED,
    }


def iso_time(milliseconds: int) -> str | None:
    """ISO 8601 in UTC; None for "never"."""
    if milliseconds <= 0:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
