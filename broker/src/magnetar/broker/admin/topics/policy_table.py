"""The policies that single topics may have, one row each: path, field of `TopicPolicies`, body, what is in force.

Names and answers as Apache's `PersistentTopics` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from magnetar.broker.admin.web.policy_shapes import (
    AUTO_SUBSCRIPTION_CREATION,
    DISPATCH_RATE,
    INACTIVE_TOPICS,
    PUBLISH_RATE,
    SUBSCRIBE_RATE,
    at_least_zero,
    long_at_least_zero,
    persistence,
)
from magnetar.broker.admin.web.responses import BAD_REQUEST
from magnetar.broker.admin.web.shapes import Kind, boolean
from magnetar.broker.policies.model import EffectivePolicies, Rate

InForce: TypeAlias = Callable[[EffectivePolicies, Mapping[str, Any]], Any]
"""From the effective policies and the namespace's document to what `applied=true` answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """One policy of topics."""

    path: str
    field: str
    kind: Kind
    says: str
    """What it is, for the API's description."""
    in_force: InForce | None = None
    """None: `applied` is not known to it, and changes nothing."""
    unset: Any = None
    """What GET answers when it is not set; None: nothing."""
    unset_status: int = 200
    null_refusal: tuple[int, str] | None = None
    """Status and reason for a body of null, where that does not remove the policy."""
    removable: bool = True


def dispatch_rate(rate: Rate) -> dict[str, Any]:
    """A dispatch rate as JSON has it."""
    return {
        "dispatchThrottlingRateInMsg": rate.messages,
        "dispatchThrottlingRateInByte": rate.size_bytes,
        "relativeToPublishRate": rate.relative_to_publish_rate,
        "ratePeriodInSecond": int(rate.period_seconds),
    }


def inactive_topics(policies: EffectivePolicies) -> dict[str, Any]:
    """InactiveTopicPolicies as JSON has it."""
    inactive = policies.inactive_topics
    return {
        "inactiveTopicDeleteMode": inactive.mode.value,
        "maxInactiveDurationSeconds": inactive.after_seconds,
        "deleteWhileInactive": inactive.delete,
    }


def persistence_in_force(policies: EffectivePolicies) -> dict[str, Any]:
    """PersistencePolicies as JSON has it."""
    ledger = policies.ledger
    return {
        "bookkeeperEnsemble": ledger.ensemble_size,
        "bookkeeperWriteQuorum": ledger.write_quorum,
        "bookkeeperAckQuorum": ledger.ack_quorum,
        "managedLedgerMaxMarkDeleteRate": ledger.mark_delete_rate,
    }


EMPTY_BODY: Final = (BAD_REQUEST, "The request entity cannot be empty.")


def _limit(path: str, field: str, refusal: str, says: str, in_force: InForce | None = None) -> PolicyRow:
    """A limit of numbers. Apache answers 204 for those whose effective value it does not tell."""
    return PolicyRow(
        path=path,
        field=field,
        kind=at_least_zero(refusal),
        says=says,
        in_force=in_force,
        unset_status=200 if in_force is not None else 204,
        null_refusal=EMPTY_BODY,
    )


LIMITS: Final = (
    _limit(
        "maxProducers",
        "maxProducerPerTopic",
        "maxProducers must be 0 or more",
        "how many producers there may be",
        lambda policies, namespace: policies.producers_max,
    ),
    _limit(
        "maxConsumers",
        "maxConsumerPerTopic",
        "maxConsumers must be 0 or more",
        "how many consumers there may be",
        lambda policies, namespace: policies.consumers_max,
    ),
    _limit(
        "maxConsumersPerSubscription",
        "maxConsumersPerSubscription",
        "Invalid value for maxConsumersPerSubscription",
        "how many consumers a subscription may have",
    ),
    _limit(
        "maxSubscriptionsPerTopic",
        "maxSubscriptionsPerTopic",
        "maxSubscriptionsPerTopic must be 0 or more",
        "how many subscriptions there may be",
    ),
    PolicyRow(
        path="maxUnackedMessagesOnConsumer",
        field="maxUnackedMessagesOnConsumer",
        kind=at_least_zero("maxUnackedNum must be 0 or more"),
        says="how many messages a consumer may hold unacknowledged",
        in_force=lambda policies, namespace: policies.dispatch.unacked_messages_per_consumer_max,
    ),
    PolicyRow(
        path="maxUnackedMessagesOnSubscription",
        field="maxUnackedMessagesOnSubscription",
        kind=at_least_zero("maxUnackedNum must be 0 or more"),
        says="how many messages a subscription's consumers may hold unacknowledged",
        in_force=lambda policies, namespace: policies.dispatch.unacked_messages_per_subscription_max,
    ),
    PolicyRow(
        path="compactionThreshold",
        field="compactionThreshold",
        kind=long_at_least_zero("Invalid value for compactionThreshold"),
        says="the size of the backlog in bytes from which on the topic is compacted, 0 for never",
        in_force=lambda policies, namespace: policies.compaction_threshold_bytes,
        null_refusal=EMPTY_BODY,
    ),
    PolicyRow(
        path="deduplicationSnapshotInterval",
        field="deduplicationSnapshotIntervalSeconds",
        kind=at_least_zero("interval must be 0 or more"),
        says="the seconds between snapshots of what is known for deduplication",
    ),
)

SWITCHES: Final = (
    PolicyRow(
        path="deduplicationEnabled",
        field="deduplicationEnabled",
        kind=boolean,
        says="whether messages that were sent twice are stored once",
        in_force=lambda policies, namespace: policies.deduplication,
    ),
    PolicyRow(
        path="schemaValidationEnforced",
        field="schemaValidationEnforced",
        kind=boolean,
        says="whether producers must have a schema when the topic has one",
        unset=False,
        in_force=lambda policies, namespace: policies.schema_validation_enforced,
        null_refusal=EMPTY_BODY,
        removable=False,
    ),
    PolicyRow(
        path="autoSubscriptionCreation",
        field="autoSubscriptionCreationOverride",
        kind=AUTO_SUBSCRIPTION_CREATION,
        says="whether subscriptions are made by their first consumer",
        in_force=lambda policies, namespace: {"allowAutoSubscriptionCreation": policies.auto_subscription_creation},
    ),
)

RATES: Final = (
    PolicyRow(
        path="dispatchRate",
        field="dispatchRate",
        kind=DISPATCH_RATE,
        says="how much may be sent to consumers",
        in_force=lambda policies, namespace: dispatch_rate(policies.topic_dispatch_rate),
    ),
    PolicyRow(
        path="subscriptionDispatchRate",
        field="subscriptionDispatchRate",
        kind=DISPATCH_RATE,
        says="how much may be sent to the consumers of each subscription",
        in_force=lambda policies, namespace: dispatch_rate(policies.subscription_dispatch_rate),
    ),
    PolicyRow(
        path="replicatorDispatchRate",
        field="replicatorDispatchRate",
        kind=DISPATCH_RATE,
        says="how much may be sent to other clusters",
        in_force=lambda policies, namespace: dispatch_rate(policies.replicator_dispatch_rate),
    ),
    PolicyRow(
        path="publishRate",
        field="publishRate",
        kind=PUBLISH_RATE,
        says="how much may be published",
        unset_status=204,
    ),
    PolicyRow(
        path="subscribeRate",
        field="subscribeRate",
        kind=SUBSCRIBE_RATE,
        says="how often a consumer may subscribe",
        in_force=lambda policies, namespace: {
            "subscribeThrottlingRatePerConsumer": policies.subscribe_rate.messages,
            "ratePeriodInSecond": int(policies.subscribe_rate.period_seconds)
            if policies.subscribe_rate.limited
            else 30,
        },
    ),
)

OTHERS: Final = (
    PolicyRow(
        path="inactiveTopicPolicies",
        field="inactiveTopicPolicies",
        kind=INACTIVE_TOPICS,
        says="when the topic is deleted because nobody uses it",
        in_force=lambda policies, namespace: inactive_topics(policies),
    ),
    PolicyRow(
        path="persistence",
        field="persistence",
        kind=persistence,
        says="how many copies there are of what is stored",
        in_force=lambda policies, namespace: persistence_in_force(policies),
        null_refusal=(BAD_REQUEST, "persistence policies should not be null"),
    ),
)

PLAIN_ROWS: Final = (*LIMITS, *SWITCHES, *RATES, *OTHERS)
"""Those that one value under one field is all of."""
