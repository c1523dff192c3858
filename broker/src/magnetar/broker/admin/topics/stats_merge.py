"""The statistics of a partitioned topic from those of its partitions (Pulsar `TopicStatsImpl.add`)."""

from __future__ import annotations

from typing import Any, Final

from magnetar.broker.admin.topics.stats import NOTHING_TO_SAY
from magnetar.broker.slices import TimeSlice

NOTHING_PUBLISHED: Final = {
    "msgRateIn": 0.0,
    "msgThroughputIn": 0.0,
    "msgRateOut": 0.0,
    "msgThroughputOut": 0.0,
    "bytesInCounter": 0,
    "msgInCounter": 0,
    "bytesOutCounter": 0,
    "msgOutCounter": 0,
    "averageMsgSize": 0.0,
    "waitingPublishers": 0,
}

AS_ANY_PARTITION: Final = frozenset(
    {"backlogQuotaLimitSize", "backlogQuotaLimitTime", "lastOffloadLedgerId", "producerId", "averageMsgSize"}
)
"""Numbers that would say nothing if they were added up."""

GREATEST: Final = frozenset(
    {
        "oldestBacklogMessageAgeSeconds",
        "lastOffloadSuccessTimeStamp",
        "lastOffloadFailureTimeStamp",
        "lastPublishTimeStamp",
        "lastExpireTimestamp",
        "lastConsumedFlowTimestamp",
        "lastConsumedTimestamp",
        "lastAckedTimestamp",
        "lastMarkDeleteAdvancedTimestamp",
    }
)

EARLIEST: Final = frozenset({"earliestMsgPublishTimeInBacklogs", "earliestMsgPublishTimeInBacklog"})
"""Members with times of which the earliest counts when partitions are merged; 0 means none."""

OF_ONE_BROKER: Final = frozenset({"ownerBroker", "topicCreationTimeStamp", "topicEpoch", "deduplicationStatus"})
"""Members that only a topic with one owner has: they are left out when partitions are merged."""

OF_ONE_CONNECTION: Final = frozenset(
    {
        "producerName",
        "address",
        "connectedSince",
        "clientVersion",
        "accessMode",
        "readPositionWhenJoining",
        "metadata",
    }
)
"""What a client's connections to several partitions have each for itself."""

CLIENTS: Final = ("publishers", "consumers")


async def merge_stats(partitions: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of the partitions' statistics, added up in turns with what clients send."""
    merged: dict[str, Any] = {
        **NOTHING_PUBLISHED,
        **NOTHING_TO_SAY,
        "compaction": dict(NOTHING_TO_SAY["compaction"]),
        "publishers": [],
        "subscriptions": {},
        "replication": {},
    }
    turn = TimeSlice()
    for stats in partitions:
        for name, subscription in stats.get("subscriptions", {}).items():
            if turn.over:
                await turn.pause()
            merge(merged["subscriptions"].setdefault(name, {}), subscription)
        merge(merged, stats, OF_ONE_BROKER | {"subscriptions"})
        if turn.over:
            await turn.pause()
    if merged["msgInCounter"]:
        merged["averageMsgSize"] = merged["bytesInCounter"] / merged["msgInCounter"]
    return merged


def merge(into: dict[str, Any], other: dict[str, Any], left_out: frozenset[str] = frozenset()) -> None:
    """Add another part's values up: what is named by name, clients by their place."""
    for key, value in other.items():
        if key in left_out:
            continue
        if key in CLIENTS:
            merge_clients(into.setdefault(key, []), value)
        elif isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        elif key not in into or key in AS_ANY_PARTITION:
            into[key] = value
        else:
            into[key] = merged_value(key, into[key], value)


def merged_value(key: str, one: Any, other: Any) -> Any:
    """Two parts' values of one name as one value."""
    if key in GREATEST:
        return max(one, other)
    if key in EARLIEST:
        return min(one or other, other or one)
    if isinstance(one, bool):
        return one or other
    if isinstance(one, int | float):
        return one + other
    return one


def merge_clients(into: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """A client has one producer or consumer per partition, in the same place on each."""
    for index, one in enumerate(others):
        if index == len(into):
            into.append({})
        merge(into[index], one, OF_ONE_CONNECTION)
