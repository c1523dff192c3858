"""The tables of a broker's states, walked: each pair of states is allowed or told, and what has ended stays so."""

from __future__ import annotations

import enum
from itertools import product
from typing import Any

import pytest
from magnetar.broker.bundles.owned_bundles import OwnedBundle
from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity
from magnetar.broker.states import (
    BUFFER_TRANSITIONS,
    BUNDLE_TRANSITIONS,
    COMPACTION_TRANSITIONS,
    CONSUMER_TRANSITIONS,
    COORDINATOR_TRANSITIONS,
    MEMBERSHIP_TRANSITIONS,
    PRODUCER_TRANSITIONS,
    SESSION_TRANSITIONS,
    SUBSCRIPTION_TRANSITIONS,
    TOPIC_TRANSITIONS,
    TRANSACTION_TRANSITIONS,
    BufferState,
    BundleState,
    CompactionState,
    ConsumerState,
    CoordinatorState,
    LoadedTopicState,
    MembershipState,
    ProducerState,
    SessionState,
    SubscriptionState,
    TransactionState,
)
from magnetar.broker.subscriptions.entry_reader import READ_TRANSITIONS, ReadState
from magnetar.broker.topics.producer import Producer, ProducerIdentity
from magnetar.core.bundle import BundleName
from magnetar.core.errors import Misuse
from magnetar.core.transitions import Transitions
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests.subscription_stage import StagedConnection


@pytest.mark.parametrize(
    ("table", "states", "allowed"),
    [
        (
            SESSION_TRANSITIONS,
            SessionState,
            {
                "START": "CONNECTING CONNECTED CLOSED",
                "CONNECTING": "REFUSED CONNECTED CLOSED",
                "REFUSED": "CLOSED",
                "CONNECTED": "CLOSED",
                "CLOSED": "CLOSED",
            },
        ),
        (PRODUCER_TRANSITIONS, ProducerState, {"OPENING": "OPEN CLOSED", "OPEN": "CLOSED", "CLOSED": "CLOSED"}),
        (CONSUMER_TRANSITIONS, ConsumerState, {"OPEN": "BLOCKED CLOSED", "BLOCKED": "OPEN CLOSED", "CLOSED": ""}),
        (
            SUBSCRIPTION_TRANSITIONS,
            SubscriptionState,
            {"OPEN": "FENCED CLOSED", "FENCED": "OPEN CLOSED", "CLOSED": "CLOSED"},
        ),
        (
            TOPIC_TRANSITIONS,
            LoadedTopicState,
            {
                "OPEN": "CLOSING ABANDONED DELETING",
                "CLOSING": "CLOSING ABANDONED",
                "ABANDONED": "CLOSING ABANDONED",
                "DELETING": "CLOSING ABANDONED",
            },
        ),
        (
            MEMBERSHIP_TRANSITIONS,
            MembershipState,
            {"JOINING": "JOINING TAKING_PART LEAVING", "TAKING_PART": "LEAVING", "LEAVING": "LEAVING JOINING"},
        ),
        (
            READ_TRANSITIONS,
            ReadState,
            {
                "IDLE": "READING",
                "READING": "DROPPED IDLE",
                "DROPPED": "REWINDING IDLE",
                "REWINDING": "REWINDING IDLE",
            },
        ),
        (
            TRANSACTION_TRANSITIONS,
            TransactionState,
            {
                "OPEN": "COMMITTING ABORTING",
                "COMMITTING": "COMMITTED",
                "ABORTING": "ABORTED",
                "COMMITTED": "",
                "ABORTED": "",
            },
        ),
        (
            COORDINATOR_TRANSITIONS,
            CoordinatorState,
            {"INITIALIZING": "READY CLOSED", "READY": "CLOSED", "CLOSED": "CLOSED"},
        ),
        (BUNDLE_TRANSITIONS, BundleState, {"ACTIVE": "UNLOADING IN_DOUBT", "IN_DOUBT": "ACTIVE", "UNLOADING": ""}),
        (
            BUFFER_TRANSITIONS,
            BufferState,
            {
                "NONE": "INITIALIZING CLOSE",
                "INITIALIZING": "NO_SNAPSHOT READY CLOSE",
                "NO_SNAPSHOT": "FIRST_SNAPSHOTTING CLOSE",
                "FIRST_SNAPSHOTTING": "READY NO_SNAPSHOT CLOSE",
                "READY": "CLOSE",
                "CLOSE": "CLOSE",
            },
        ),
        (
            COMPACTION_TRANSITIONS,
            CompactionState,
            {"NOT_RUN": "RUNNING", "RUNNING": "SUCCESS ERROR", "SUCCESS": "RUNNING", "ERROR": "RUNNING"},
        ),
    ],
)
def test_each_pair_is_allowed_or_told(
    table: Transitions[Any], states: type[enum.Enum], allowed: dict[str, str]
) -> None:
    for before, after in product(states, states):
        if after.name in allowed[before.name].split():
            assert table.step(before, after) is after
        else:
            with pytest.raises(Misuse, match=f"from {before.name} to {after.name}"):
                table.step(before, after)


def test_a_producer_that_is_closed_is_not_opened() -> None:
    producer = Producer(ProducerIdentity(1, "p"), StagedConnection(), 0)  # type: ignore[arg-type]
    producer.become(ProducerState.CLOSED)
    with pytest.raises(Misuse, match="a producer does not go from CLOSED to OPEN"):
        producer.become(ProducerState.OPEN)
    assert producer.closed


def test_a_consumer_that_is_closed_is_not_unblocked() -> None:
    consumer = Consumer(ConsumerIdentity(1, "a", SubscriptionType.SHARED), StagedConnection(), unacked_messages_max=2)
    consumer.become(ConsumerState.BLOCKED)
    consumer.become(ConsumerState.CLOSED)
    assert not consumer.released(2)
    consumer.limit(10)
    assert consumer.closed


def test_a_bundle_that_is_unloaded_is_not_served_again() -> None:
    owned = OwnedBundle(BundleName.parse("public/default/0x00000000_0xffffffff"), 0, object())
    owned.become(BundleState.UNLOADING)
    with pytest.raises(Misuse, match="a bundle does not go from UNLOADING to ACTIVE"):
        owned.become(BundleState.ACTIVE)
