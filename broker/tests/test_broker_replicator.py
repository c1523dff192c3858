"""One replicator, step by step: what is sent, again and not, and that it never stands still without a word."""

from __future__ import annotations

from typing import Any

import pytest
from magnetar.broker.policies.effective import BrokerLevel, effective_policies
from magnetar.broker.policies.limiter import RateLimiter
from magnetar.broker.policies.model import Rate
from magnetar.broker.replication import replicator as module
from magnetar.broker.replication.remote_link import WINDOW_BYTES_MAX
from magnetar.broker.replication.replicator import WATCHDOG_SECONDS
from magnetar.broker.replication.states import Reason, ReplicatorState
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.subscriptions.visibility import Visibility
from magnetar.core.errors import Unavailable
from magnetar.core.ids import LATEST
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import full_metadata

from broker.tests.replicator_stage import Stage, TopicStage
from broker.tests.subscription_stage import LEDGER

RATE = 200
MEASURED_SECONDS = 10


def schema_versions(stage: Stage) -> list[bytes]:
    return [full_metadata(one.message).schema_version for one in stage.remote.sent]


def test_what_has_no_receipt_is_sent_again_after_the_connection_was_lost() -> None:
    stage = Stage()
    stage.remote.answers = False
    stage.begin()
    stage.publish(10)
    stage.settle()
    stage.producer.answer(4)
    stage.settle()
    stage.producer.lose(Unavailable("cut"))
    assert (stage.replicator.state, stage.replicator.reason) == (ReplicatorState.DISCONNECTED, Reason.UNREACHABLE)
    stage.remote.answers = True
    stage.pass_time(1)
    assert stage.remote.entry_ids == [*range(10), *range(4, 10)]
    assert (stage.replicator.backlog, stage.replicator.reason) == (0, Reason.NONE)


def test_a_read_that_ends_after_the_connection_was_lost_leaves_nothing_out() -> None:
    stage = Stage()
    stage.begin()
    stage.cursor.cached_from = 10
    stage.publish(10)
    assert len(stage.reads) == 1
    stage.producer.lose(Unavailable("cut"))
    stage.pass_time(1)
    assert stage.remote.entry_ids == list(range(10))


def test_the_watchdog_has_a_silent_one_begin_again_with_what_has_no_receipt_and_says_so() -> None:
    stage = Stage()
    stage.remote.answers = False
    stage.begin()
    stage.publish(10)
    stage.settle()
    stage.producer.answer(3)
    silent = stage.producer
    stage.pass_time(2 * WATCHDOG_SECONDS)
    stage.remote.answers = True
    stage.pass_time(WATCHDOG_SECONDS)
    assert silent.closed
    assert stage.replicator.counters.watchdog_restarts >= 1
    assert stage.remote.entry_ids[:17] == [*range(10), *range(3, 10)]
    assert stage.replicator.backlog == 0


def test_the_watchdog_says_why_until_something_goes_on() -> None:
    stage = Stage()
    stage.remote.answers = False
    stage.begin()
    stage.publish(1)
    stage.settle()
    stage.remote.refuses = Unavailable("nobody there")
    seen: set[tuple[Reason, str]] = set()
    while not stage.replicator.counters.watchdog_restarts:
        stage.timers.advance(1_000)
        seen.add((stage.replicator.reason, stage.replicator.detail))
        stage.settle()
    assert (Reason.SILENT, f"nothing went on for {WATCHDOG_SECONDS:g} s") in seen
    stage.pass_time(1)
    assert (stage.replicator.reason, stage.replicator.detail) == (Reason.UNREACHABLE, "nobody there")


@pytest.mark.parametrize("waits_for", ["receipts that come", "rate", "transaction", "nothing"])
def test_the_watchdog_leaves_alone_who_goes_on_or_waits_with_a_reason(waits_for: str) -> None:
    stage = Stage()
    stage.remote.answers = False
    if waits_for == "rate":
        limiter = RateLimiter(Rate(1, 0, 3_600.0), stage.timers, stage.timers.call_later, "rate")
        stage.replicator.follow(0, limiter)
    stage.begin()
    if waits_for != "nothing":
        stage.publish(20)
        stage.settle()
    if waits_for == "transaction":
        stage.producer.answer(20)
        stage.visibility = Visibility(())
        stage.visibility.hidden_from = LEDGER, 20
        stage.publish(5)
        stage.settle()
        assert stage.replicator.reason is Reason.TRANSACTION
    elif waits_for == "rate":
        stage.producer.answer(1)
        stage.settle()
        assert (stage.replicator.reason, stage.remote.entry_ids) == (Reason.RATE, [0])
    for _ in range(8):
        stage.pass_time(WATCHDOG_SECONDS / 2)
        if waits_for == "receipts that come":
            stage.producer.answer(1)
    assert stage.replicator.counters.watchdog_restarts == 0
    assert len(stage.remote.producers) == 1


def test_the_watchdog_is_not_fooled_by_a_transaction_behind_what_has_no_receipt() -> None:
    stage = Stage()
    stage.remote.answers = False
    stage.visibility = Visibility(())
    stage.visibility.hidden_from = LEDGER, 3
    stage.begin()
    stage.publish(5)
    stage.settle()
    assert (stage.remote.entry_ids, stage.replicator.reason) == ([0, 1, 2], Reason.TRANSACTION)
    stage.remote.answers = True
    stage.pass_time(3 * WATCHDOG_SECONDS)
    assert stage.replicator.counters.watchdog_restarts == 1
    assert stage.remote.entry_ids == [0, 1, 2, 0, 1, 2]


def test_nothing_behind_a_schema_that_has_to_be_registered_is_left_out() -> None:
    stage = Stage()
    stage.remote.schemas[b"here"] = pb.Schema(name="R")
    stage.remote.versions = [b"there"]
    stage.publish(2)
    stage.publish(1, schema_version=b"here")
    stage.publish(2)
    stage.begin()
    assert stage.remote.entry_ids == [0, 1, 2, 3, 4]
    assert schema_versions(stage) == [b"", b"", b"there", b"", b""]


def test_versions_of_schemas_are_asked_for_anew_after_each_connection() -> None:
    """The cluster may be another one, where the same number is another schema's."""
    stage = Stage()
    stage.remote.schemas[b"here"] = pb.Schema(name="R")
    stage.remote.versions = [b"first", b"second"]
    stage.begin()
    stage.publish(1, schema_version=b"here")
    stage.settle()
    stage.producer.lose(Unavailable("moved"))
    stage.publish(1, schema_version=b"here")
    stage.pass_time(1)
    assert schema_versions(stage) == [b"first", b"second"]


def test_what_is_expired_or_aborted_is_not_sent_and_what_is_open_waits() -> None:
    stage = Stage()
    now_ms = stage.timers.now_ms()
    stage.visibility = Visibility({(1, 1)})
    stage.visibility.hidden_from = LEDGER, 4
    stage.replicator.follow(10)
    stage.publish(1, publish_time=now_ms - 10_001)
    stage.publish(1, publish_time=now_ms)
    stage.publish(1, publish_time=now_ms, txnid_most_bits=1, txnid_least_bits=1)
    stage.publish(1, publish_time=now_ms, txnid_most_bits=1, txnid_least_bits=2)
    stage.publish(3, publish_time=now_ms, txnid_most_bits=1, txnid_least_bits=3)
    stage.begin()
    assert stage.remote.entry_ids == [1, 3]
    assert stage.replicator.counters.expired == 1
    assert sorted(stage.cursor.acknowledged) == [0, 1, 2, 3]
    stage.visibility.hidden_from = LATEST
    stage.replicator.wake()
    stage.settle()
    assert stage.remote.entry_ids == [1, 3, 4, 5, 6]


def test_no_more_bytes_are_under_way_than_memory_has_room_for() -> None:
    stage = Stage()
    stage.remote.answers = False
    stage.begin()
    size_bytes = WINDOW_BYTES_MAX // 8
    stage.publish(20, payload=b"x" * size_bytes)
    stage.settle()
    assert stage.producer.unanswered_bytes <= WINDOW_BYTES_MAX + module.READ_BYTES_MAX + size_bytes + 1_000
    assert stage.producer.unanswered < 20
    while stage.replicator.backlog:
        stage.producer.answer(1)
        stage.settle()
    assert stage.remote.entry_ids == list(range(20))


def level(settings: BrokerSettings, namespace: dict[str, Any], topic: dict[str, Any]) -> Any:
    clusters = {"replication_clusters": ["east", "west"]}
    return effective_policies(BrokerLevel(settings, ManagedLedgerSettings()), {**clusters, **namespace}, topic)


def sent_within(stage: TopicStage, seconds: float) -> int:
    before = len(stage.remotes["west"].sent)
    stage.pass_time(seconds)
    return len(stage.remotes["west"].sent) - before


@pytest.mark.parametrize("where", ["broker", "namespace", "topic", "resource group"])
def test_the_dispatch_rate_of_replicators_is_held_to(where: str) -> None:
    """Within 5 % over ten seconds, after what was saved up while nothing was sent."""
    rate = {"dispatchThrottlingRateInMsg": RATE, "ratePeriodInSecond": 1}
    limits = PolicySettings(dispatch_messages_per_replicator=RATE if where == "broker" else 0)
    stage = TopicStage(settings=BrokerSettings(cluster_name="east", policies=limits))
    namespace = {"replicatorDispatchRate": {"east": rate}} if where == "namespace" else {}
    topic = {"replicatorDispatchRate": rate} if where == "topic" else {}
    groups: tuple[RateLimiter, ...] = ()
    if where == "resource group":
        groups = (RateLimiter(Rate(RATE), stage.timers, stage.timers.call_later, "group"),)
    stage.follow(level(stage.settings, namespace, topic), *groups)
    stage.publish("west", 3 * MEASURED_SECONDS * RATE)
    assert sent_within(stage, 1) <= 2 * RATE
    count = sent_within(stage, MEASURED_SECONDS)
    assert abs(count - MEASURED_SECONDS * RATE) <= 0.05 * MEASURED_SECONDS * RATE
    assert stage.replicators.stats()["west"]["reason"] == "rate"
    # The limit is lifted.
    stage.settings = BrokerSettings(cluster_name="east")
    stage.follow(level(stage.settings, {}, {}))
    assert stage.replicators.running["west"].backlog == 0


def test_a_rate_is_held_to_however_often_policies_change() -> None:
    limits = PolicySettings(dispatch_messages_per_replicator=RATE)
    stage = TopicStage(settings=BrokerSettings(cluster_name="east", policies=limits))
    stage.follow(level(stage.settings, {}, {}))
    stage.publish("west", 5 * RATE)
    stage.settle()
    sent = len(stage.remotes["west"].sent)
    assert sent <= 2 * RATE
    for ttl_seconds in range(1, 5):
        stage.follow(level(stage.settings, {"message_ttl_in_seconds": 1_000 * ttl_seconds}, {}))
    assert len(stage.remotes["west"].sent) == sent


def test_a_rate_in_bytes_is_held_to() -> None:
    stage = Stage()
    rate_bytes = 50_000
    limiter = RateLimiter(Rate(0, rate_bytes), stage.timers, stage.timers.call_later, "rate")
    stage.replicator.follow(0, limiter)
    stage.begin()
    stage.publish(3_000, payload=b"x" * 500)
    stage.pass_time(1)
    before = sum(len(one.message) for one in stage.remote.sent)
    stage.pass_time(MEASURED_SECONDS)
    sent_bytes = sum(len(one.message) for one in stage.remote.sent) - before
    assert abs(sent_bytes - MEASURED_SECONDS * rate_bytes) <= 0.05 * MEASURED_SECONDS * rate_bytes
