"""Bodies of policies, of namespaces and of topics alike: Pulsar's classes with their defaults, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from magnetar.broker.admin.web.responses import BAD_REQUEST, PRECONDITION_FAILED, AdminError
from magnetar.broker.admin.web.shapes import (
    BadValue,
    Kind,
    Shape,
    boolean,
    integer,
    list_of,
    long,
    map_of,
    number,
    one_of,
    set_of,
    text,
)
from magnetar.broker.policies import policy
from magnetar.core.limits import MIB

COPIES_MAX: Final = 5
"""`managedLedgerMaxEnsembleSize`, and those of the quorums."""

NAMES: Final = list_of(text)

STRATEGY: Final = one_of(
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)
AUTO_UPDATE_STRATEGY: Final = one_of(
    "AutoUpdateDisabled",
    "Backward",
    "Forward",
    "Full",
    "AlwaysCompatible",
    "BackwardTransitive",
    "ForwardTransitive",
    "FullTransitive",
)
SUBSCRIPTION_AUTH_MODE: Final = one_of("None", "Prefix")
SUBSCRIPTION_TYPES: Final = set_of(one_of("Exclusive", "Shared", "Failover", "Key_Shared"))

DISPATCH_RATE: Final = Shape(
    {
        "dispatchThrottlingRateInMsg": (integer, 0),
        "dispatchThrottlingRateInByte": (long, 0),
        "relativeToPublishRate": (boolean, False),
        "ratePeriodInSecond": (integer, 0),
    }
)
PUBLISH_RATE: Final = Shape({"publishThrottlingRateInMsg": (integer, -1), "publishThrottlingRateInByte": (long, -1)})
SUBSCRIBE_RATE: Final = Shape(
    {"subscribeThrottlingRatePerConsumer": (integer, -1), "ratePeriodInSecond": (integer, 30)}
)

INACTIVE_TOPICS: Final = Shape(
    {
        "inactiveTopicDeleteMode": (
            one_of("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
            None,
        ),
        "maxInactiveDurationSeconds": (integer, 0),
        "deleteWhileInactive": (boolean, False),
    }
)
DELAYED_DELIVERY: Final = Shape(
    {"tickTime": (long, 0), "active": (boolean, False), "maxDeliveryDelayInMillis": (long, 0)}
)
AUTO_SUBSCRIPTION_CREATION: Final = Shape({"allowAutoSubscriptionCreation": (boolean, False)})

_AUTO_TOPICS: Final = Shape(
    {
        "allowAutoTopicCreation": (boolean, False),
        "topicType": (text, None),
        "defaultNumPartitions": (integer, None),
    }
)
_ENTRY_FILTERS: Final = Shape({"entryFilterNames": (text, None)})
_RETENTION: Final = Shape({"retentionTimeInMinutes": (integer, 0), "retentionSizeInMB": (long, 0)})
_PERSISTENCE: Final = Shape(
    {
        "bookkeeperEnsemble": (integer, 2),
        "bookkeeperWriteQuorum": (integer, 2),
        "bookkeeperAckQuorum": (integer, 2),
        "managedLedgerMaxMarkDeleteRate": (number, 0.0),
        "managedLedgerStorageClassName": (text, None),
    }
)
_QUOTA: Final = Shape(
    {
        "limit": (long, None),
        "limitSize": (long, 0),
        "limitTime": (integer, 0),
        "policy": (one_of("producer_request_hold", "producer_exception", "consumer_backlog_eviction"), None),
    }
)

ONE_LIMIT_IS_ZERO: Final = (
    "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has a "
    "non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both limits "
    "must be set to 0."
)


def _from_zero(kind: Kind, refusal: str) -> Kind:
    def read(value: Any) -> Any:
        found = kind(value)
        if found < 0:
            raise AdminError(PRECONDITION_FAILED, refusal)
        return found

    return read


def at_least_zero(refusal: str) -> Kind:
    """A Java `int` that is not negative; else 412 with this reason."""
    return _from_zero(integer, refusal)


def retention(value: Any) -> dict[str, Any]:
    """RetentionPolicies (Pulsar `NamespacesBase.validateRetentionPolicies`)."""
    policies = _RETENTION(value)
    minutes, megabytes = policies["retentionTimeInMinutes"], policies["retentionSizeInMB"]
    if minutes < -1:
        raise AdminError(BAD_REQUEST, "Invalid retention policy: time limit must be >= -1")
    if megabytes < -1:
        raise AdminError(BAD_REQUEST, "Invalid retention policy: size limit must be >= -1")
    if (minutes == 0) != (megabytes == 0):
        raise AdminError(BAD_REQUEST, ONE_LIMIT_IS_ZERO)
    return policies


def persistence(value: Any) -> dict[str, Any]:
    """Reads a persistence policy (Pulsar `PersistencePolicies`). Raises 400."""
    policies = _PERSISTENCE(value)
    ensemble = policies["bookkeeperEnsemble"]
    write_quorum, ack_quorum = policies["bookkeeperWriteQuorum"], policies["bookkeeperAckQuorum"]
    for name, count in (("Ensemble", ensemble), ("WriteQuorum", write_quorum), ("AckQuorum", ack_quorum)):
        if not 0 < count <= COPIES_MAX:
            raise AdminError(BAD_REQUEST, f"Bookkeeper-{name} must be <= {COPIES_MAX} and > 0.")
    if not ensemble >= write_quorum >= ack_quorum:
        raise AdminError(
            BAD_REQUEST,
            f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write_quorum}) >= AckQuorum ({ack_quorum})",
        )
    return policies


def auto_topic_creation(value: Any) -> dict[str, Any]:
    """AutoTopicCreationOverride (Pulsar `AutoTopicCreationOverrideImpl.validateOverride`). Raises 412."""
    override = _AUTO_TOPICS(value)
    kind, partitions = override.get("topicType"), override.get("defaultNumPartitions")
    reason = None
    if override["allowAutoTopicCreation"]:
        if kind not in ("partitioned", "non-partitioned"):
            reason = f"Unknown topic type [{'null' if kind is None else kind}]"
        elif kind == "partitioned" and partitions is None:
            reason = "[defaultNumPartitions] cannot be null when the type is partitioned."
        elif kind == "partitioned" and partitions is not None and partitions <= 0:
            reason = "[defaultNumPartitions] cannot be less than 1 for partition type."
        elif kind == "non-partitioned" and partitions is not None:
            reason = "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
    if reason is not None:
        raise AdminError(
            PRECONDITION_FAILED, f"Invalid configuration for autoTopicCreationOverride. the detail is {reason}"
        )
    return override


def entry_filters(value: Any) -> dict[str, Any]:
    """EntryFilters. There are none to choose from: only their removal is possible."""
    names = _ENTRY_FILTERS(value).get("entryFilterNames")
    if not names:
        raise AdminError(BAD_REQUEST, "entryFilterNames can't be empty. To remove entry filters use the remove method.")
    raise AdminError(BAD_REQUEST, f"Entry filter '{names.split(',')[0].strip()}' not found")


def backlog_quota(value: Any) -> dict[str, Any]:
    """BacklogQuota; `limit` is an old name of the size."""
    quota = _QUOTA(value)
    old = quota.pop("limit", None)
    if old is not None and not value.get("limitSize"):
        quota["limitSize"] = old
    if quota.get("policy") is None:
        raise BadValue("the attribute policy cannot be null")
    return {"limit": quota["limitSize"], **quota}


_READERS: Final[Mapping[policy.PolicyKind, Kind]] = {
    policy.PolicyKind.FLAG: boolean,
    policy.PolicyKind.SWITCH: boolean,
    policy.PolicyKind.COUNT: integer,
    policy.PolicyKind.SIZE: long,
    policy.PolicyKind.AUTO_SUBSCRIPTION_CREATION: AUTO_SUBSCRIPTION_CREATION,
    policy.PolicyKind.AUTO_TOPIC_CREATION: auto_topic_creation,
    policy.PolicyKind.AUTO_UPDATE_STRATEGY: AUTO_UPDATE_STRATEGY,
    policy.PolicyKind.DELAYED_DELIVERY: DELAYED_DELIVERY,
    policy.PolicyKind.DISPATCH_RATE: DISPATCH_RATE,
    policy.PolicyKind.ENTRY_FILTERS: entry_filters,
    policy.PolicyKind.INACTIVE_TOPICS: INACTIVE_TOPICS,
    policy.PolicyKind.PERSISTENCE: persistence,
    policy.PolicyKind.PUBLISH_RATE: PUBLISH_RATE,
    policy.PolicyKind.STRATEGY: STRATEGY,
    policy.PolicyKind.SUBSCRIBE_RATE: SUBSCRIBE_RATE,
    policy.PolicyKind.SUBSCRIPTION_AUTH_MODE: SUBSCRIPTION_AUTH_MODE,
    policy.PolicyKind.SUBSCRIPTION_TYPES: SUBSCRIPTION_TYPES,
    policy.PolicyKind.TEXTS: set_of(text),
}


def reader_of(kind: policy.PolicyKind, level: policy.Level) -> Kind:
    """What reads a policy by itself at one level."""
    read = _READERS[kind]
    return _from_zero(read, level.refusal or f"{level.path} must be 0 or more") if kind in policy.NUMBERS else read


def member_of(kind: policy.PolicyKind) -> Kind:
    """What reads it as a part of all that a namespace has."""
    return map_of(_READERS[kind]) if kind in policy.RATES else _READERS[kind]


def exceeds_retention(quota: Mapping[str, Any] | None, kept: Mapping[str, Any] | None) -> bool:
    """Whether a backlog may get larger or older than what is kept anyway (Pulsar `AdminResource.checkBacklogQuota`)."""
    minutes, megabytes = (kept or {}).get("retentionTimeInMinutes", 0), (kept or {}).get("retentionSizeInMB", 0)
    if quota is None or (minutes <= 0 and megabytes <= 0):
        return False
    if megabytes > 0 and quota.get("limitSize", 0) >= megabytes * MIB:
        return True
    return bool(minutes > 0 and quota.get("limitTime", 0) >= minutes * 60)
