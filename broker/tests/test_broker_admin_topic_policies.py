"""Policies of single topics: every one is set, told, in force and removed, as Apache's broker answers."""

from __future__ import annotations

from typing import Any

import pytest

PERSISTENT = "/admin/v2/persistent/public/default"
TOPIC = PERSISTENT + "/topic"

RATE = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": 20,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
NO_RATE = {**RATE, "dispatchThrottlingRateInMsg": 0, "dispatchThrottlingRateInByte": 0}
INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 20,
    "deleteWhileInactive": True,
}
PERSISTENCE = {
    "bookkeeperEnsemble": 3,
    "bookkeeperWriteQuorum": 2,
    "bookkeeperAckQuorum": 2,
    "managedLedgerMaxMarkDeleteRate": 2.0,
}

ALL: list[tuple[str, str, Any, Any, Any]] = [
    # path, verb, value, what is told when it is not set, what is in force then (`...`: the same)
    ("autoSubscriptionCreation", "POST", {"allowAutoSubscriptionCreation": False}, None, None),
    ("compactionThreshold", "POST", 1000, None, 0),
    ("deduplicationEnabled", "POST", True, None, False),
    ("deduplicationSnapshotInterval", "POST", 10, None, ...),
    ("delayedDelivery", "POST", {"tickTime": 500, "active": False, "maxDeliveryDelayInMillis": 7}, None, None),
    ("dispatchRate", "POST", RATE, None, NO_RATE),
    ("subscriptionDispatchRate", "POST", RATE, None, NO_RATE),
    ("replicatorDispatchRate", "POST", RATE, None, NO_RATE),
    ("s/dispatchRate", "POST", RATE, None, NO_RATE),
    ("dispatcherPauseOnAckStatePersistent", "POST", True, False, ...),
    ("inactiveTopicPolicies", "POST", INACTIVE, None, {**INACTIVE, "maxInactiveDurationSeconds": 60}),
    ("maxConsumers", "POST", 7, None, 0),
    ("maxProducers", "POST", 7, None, 0),
    ("maxConsumersPerSubscription", "POST", 7, 204, ...),
    ("maxSubscriptionsPerTopic", "POST", 7, 204, ...),
    ("maxMessageSize", "POST", 7, 204, ...),
    ("publishRate", "POST", {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": 2}, 204, ...),
    ("maxUnackedMessagesOnConsumer", "POST", 7, None, 50_000),
    ("maxUnackedMessagesOnSubscription", "POST", 7, None, 200_000),
    ("persistence", "POST", PERSISTENCE, None, None),
    ("replication", "POST", ["standalone"], None, ["standalone"]),
    (
        "retention",
        "POST",
        {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10},
        None,
        {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
    ),
    ("schemaCompatibilityStrategy", "PUT", "BACKWARD", None, "FULL"),
    ("subscribeRate", "POST", {"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 9}, None, None),
    ("subscriptionTypesEnabled", "POST", ["Shared", "Failover"], [], ...),
    ("shadowTopics", "PUT", ["persistent://public/default/shadow"], None, ...),
]


@pytest.mark.parametrize(("path", "verb", "value", "unset", "in_force"), ALL, ids=[row[0] for row in ALL])
async def test_a_policy(admin: Any, path: str, verb: str, value: Any, unset: Any, in_force: Any) -> None:
    policy = f"{TOPIC}/{path}"
    status, told = (204, None) if unset == 204 else (200, unset)
    await admin.check(("PUT", TOPIC, None, 204, None), ("PUT", PERSISTENT + "/shadow", None, 204, None))
    await admin.check(("GET", policy, None, status, told))
    before = await admin("GET", policy + "?applied=true")
    if in_force is ...:
        assert before == (status, told)
    elif in_force is None:
        assert before[0] == 200
        assert before[1] is not None
    else:
        assert before == (200, in_force)
    await admin.check(
        (verb, policy, value, 204, None),
        ("GET", policy, None, 200, value),
        ("GET", policy + "?applied=true", None, 200, value),
        ("DELETE", policy, None, 204, None),
        ("GET", policy, None, status, told),
        (verb, policy.replace("/topic/", "/none/"), value, 404, "not found"),
        ("GET", policy.replace("/topic/", "/none/"), None, 404, "not found"),
        ("DELETE", policy.replace("/topic/", "/none/"), None, 404, "not found"),
    )


@pytest.mark.parametrize("scope", [TOPIC, "/admin/v2/namespaces/public/default"])
async def test_negative_rates_and_ticks_are_taken_as_apaches_takes_them(admin: Any, scope: str) -> None:
    """`NamespacesBase` and `PersistentTopicsBase` look at none of these; a rate below 0 is no limit."""
    ticks = {"tickTime": -1, "active": True, "maxDeliveryDelayInMillis": -1}
    rate = {"publishThrottlingRateInMsg": -5, "publishThrottlingRateInByte": -5}
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("POST", scope + "/delayedDelivery", ticks, 204, None),
        ("GET", scope + "/delayedDelivery", None, 200, ticks),
        ("POST", scope + "/publishRate", rate, 204, None),
        ("GET", scope + "/publishRate", None, 200, rate),
        ("POST", scope + "/dispatchRate", {**RATE, "dispatchThrottlingRateInMsg": -5}, 204, None),
        ("POST", scope + "/subscribeRate", {"subscribeThrottlingRatePerConsumer": -5}, 204, None),
    )


async def test_message_ttl_stands_in_the_query(admin: Any) -> None:
    ttl = TOPIC + "/messageTTL"
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("GET", ttl, None, 200, None),
        ("GET", ttl + "?applied=true", None, 200, 0),
        ("POST", ttl + "?messageTTL=9", None, 204, None),
        ("GET", ttl, None, 200, 9),
        ("POST", ttl + "?messageTTL=-1", None, 412, "Invalid value for message TTL"),
        ("POST", ttl, None, 204, None),
        ("GET", ttl, None, 200, None),
        ("POST", ttl + "?messageTTL=9", None, 204, None),
        ("DELETE", ttl, None, 204, None),
        ("GET", ttl, None, 200, None),
    )


async def test_schema_validation_cannot_be_removed(admin: Any) -> None:
    enforced = TOPIC + "/schemaValidationEnforced"
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("GET", enforced, None, 200, False),
        ("POST", enforced, True, 204, None),
        ("GET", enforced, None, 200, True),
        ("DELETE", enforced, None, 405, ...),
        ("POST", enforced, None, 400, "cannot be empty"),
    )


async def test_backlog_quotas(admin: Any) -> None:
    quota = {"limit": 1000, "limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    none = {"limit": -1, "limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
    quotas = TOPIC + "/backlogQuotaMap"
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("GET", quotas, None, 200, {}),
        ("GET", quotas + "?applied=true", None, 200, {"destination_storage": none, "message_age": none}),
        ("POST", TOPIC + "/backlogQuota", quota, 204, None),
        ("GET", quotas, None, 200, {"destination_storage": quota}),
        ("POST", TOPIC + "/backlogQuota?backlogQuotaType=message_age", {**quota, "limitTime": 9}, 204, None),
        ("GET", quotas, None, 200, {"destination_storage": quota, "message_age": {**quota, "limitTime": 9}}),
        ("POST", TOPIC + "/backlogQuota?backlogQuotaType=x", quota, 404, ...),
        ("POST", TOPIC + "/backlogQuota", {"limitSize": 1}, 400, "cannot be null"),
        ("DELETE", TOPIC + "/backlogQuota?backlogQuotaType=message_age", None, 204, None),
        ("POST", TOPIC + "/backlogQuota", {"limit": 1000, "limitTime": -1, "policy": quota["policy"]}, 204, None),
        ("GET", quotas + "?applied=true", None, 200, {"destination_storage": quota}),
    )


async def test_retention_exceeds_the_quota(admin: Any) -> None:
    small = {"retentionTimeInMinutes": -1, "retentionSizeInMB": 1}
    large = {"limitSize": 2**21, "limitTime": -1, "policy": "producer_exception"}
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("POST", TOPIC + "/backlogQuota", large, 204, None),
        ("POST", TOPIC + "/retention", small, 412, "must exceed configured backlog quota"),
        ("POST", TOPIC + "/retention", {**small, "retentionSizeInMB": 3}, 204, None),
        ("POST", TOPIC + "/backlogQuota", {**large, "limitSize": 2**22}, 412, "exceeds configured retention"),
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("maxConsumers", -1, 412, "maxConsumers must be 0 or more"),
        ("maxConsumersPerSubscription", -1, 412, "Invalid value for maxConsumersPerSubscription"),
        ("maxMessageSize", -1, 412, "topic-level maxMessageSize"),
        ("maxMessageSize", 10**9, 412, "topic-level maxMessageSize"),
        ("compactionThreshold", -1, 412, "Invalid value for compactionThreshold"),
        ("compactionThreshold", "x", 400, "whole number"),
        ("compactionThreshold", None, 400, "cannot be empty"),
        ("deduplicationEnabled", "x", 400, ...),
        ("dispatchRate", [], 400, "object"),
        ("entryFilters", {"entryFilterNames": "a"}, 400, "'a' not found"),
        ("entryFilters", {"entryFilterNames": ""}, 400, "can't be empty"),
        ("persistence", None, 400, "should not be null"),
        ("persistence", {**PERSISTENCE, "bookkeeperAckQuorum": 3}, 400, "Bookkeeper Ensemble (3)"),
        ("persistence", {**PERSISTENCE, "bookkeeperEnsemble": 0}, 400, "must be <= 5 and > 0"),
        ("replication", [], 412, "ClusterIds should not be null or empty"),
        ("replication", ["global"], 412, "global"),
        ("replication", ["elsewhere"], 412, "Can not remove local cluster"),
        ("replication", ["standalone", "elsewhere"], 403, "Invalid cluster id: elsewhere"),
        ("retention", {"retentionTimeInMinutes": 1}, 400, "Setting a single time or size limit to 0"),
        ("retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}, 400, "time limit must be >= -1"),
        ("offloadPolicies", None, 412, "must be specified"),
        ("offloadPolicies", {"managedLedgerOffloadDriver": "none"}, 412, "driver is not supported"),
        ("offloadPolicies", {"managedLedgerOffloadDriver": "aws-s3"}, 412, "bucket must be specified"),
        ("subscriptionTypesEnabled", ["x"], 400, ...),
    ],
)
async def test_what_is_refused(admin: Any, path: str, body: Any, status: int, reason: Any) -> None:
    await admin.check(("PUT", TOPIC, None, 204, None), ("POST", f"{TOPIC}/{path}", body, status, reason))


@pytest.mark.parametrize(
    ("topics", "status", "reason"),
    [
        ([], 412, "empty shadow topics"),
        (["persistent://public/default/missing"], 412, "not exists"),
        (["non-persistent://public/default/t"], 412, "Only persistent topic"),
        (["b ad://x"], 403, "Invalid shadow topic name"),
    ],
)
async def test_shadow_topics_must_be_there(admin: Any, topics: list[str], status: int, reason: str) -> None:
    await admin.check(("PUT", TOPIC, None, 204, None), ("PUT", TOPIC + "/shadowTopics", topics, status, reason))


async def test_offload_policies_are_told_with_their_defaults(admin: Any) -> None:
    policies = {"managedLedgerOffloadDriver": "aws-s3", "managedLedgerOffloadBucket": "b"}
    await admin.check(("PUT", TOPIC, None, 204, None), ("POST", TOPIC + "/offloadPolicies", policies, 204, None))
    _, told = await admin("GET", TOPIC + "/offloadPolicies")
    assert policies.items() <= told.items()
    assert (told["s3Driver"], told["managedLedgerOffloadMaxThreads"]) == (True, 2)


async def test_partitions_have_no_policies_of_their_own(admin: Any) -> None:
    parts = PERSISTENT + "/parts"
    await admin.check(
        ("PUT", parts + "/partitions", 2, 204, None),
        ("POST", parts + "/maxConsumers", 1, 204, None),
        ("GET", parts + "/maxConsumers", None, 200, 1),
        ("GET", parts + "-partition-0/maxConsumers", None, 412, "Not allowed to set/get topic policy for a partition"),
        ("POST", parts + "-partition-0/maxConsumers", 1, 412, "for a partition"),
        ("DELETE", parts + "-partition-0/maxConsumers", None, 412, "for a partition"),
        ("DELETE", parts + "/policies", None, 204, None),
        ("GET", parts + "/maxConsumers", None, 200, None),
        ("DELETE", parts + "-partition-0/policies", None, 412, "for a partition"),
        ("DELETE", PERSISTENT.replace("default", "none") + "/t/policies", None, 404, "Namespace not found"),
    )


async def test_the_two_scopes_are_apart(admin: Any) -> None:
    limit = TOPIC + "/maxConsumers"
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("POST", limit + "?isGlobal=true", 9, 204, None),
        ("GET", limit + "?isGlobal=true", None, 200, 9),
        ("GET", limit, None, 200, None),
        ("DELETE", limit + "?isGlobal=true", None, 204, None),
        ("GET", limit + "?isGlobal=true", None, 200, None),
    )


async def test_policies_go_with_their_topic(admin: Any) -> None:
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("POST", TOPIC + "/maxConsumers", 9, 204, None),
        ("DELETE", TOPIC, None, 204, None),
        ("PUT", TOPIC, None, 204, None),
        ("GET", TOPIC + "/maxConsumers", None, 200, None),
    )


async def test_the_namespace_is_in_force_where_the_topic_says_nothing(admin: Any) -> None:
    await admin.check(
        ("PUT", TOPIC, None, 204, None),
        ("POST", "/admin/v2/namespaces/public/default/maxConsumersPerTopic", 3, 204, None),
        ("GET", TOPIC + "/maxConsumers", None, 200, None),
        ("GET", TOPIC + "/maxConsumers?applied=true", None, 200, 3),
        ("POST", TOPIC + "/subscriptionDispatchRate", RATE, 204, None),
        ("GET", TOPIC + "/s/dispatchRate", None, 200, None),
        ("GET", TOPIC + "/s/dispatchRate?applied=true", None, 200, RATE),
    )
