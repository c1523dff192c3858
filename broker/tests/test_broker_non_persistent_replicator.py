"""One replicator of a topic that stores nothing, step by step: what is sent, and what is dropped and counted."""

from __future__ import annotations

from typing import Any

import pytest
from magnetar.broker.replication.remote_link import WINDOW_BYTES_MAX
from magnetar.broker.replication.states import Reason, ReplicatorState
from magnetar.broker.replication.statistics import replicator_statistics
from magnetar.broker.replicator_names import SOURCE_POSITION_PROPERTY
from magnetar.broker.subscriptions.dispatch_turns import SLICE_BYTES, TURN_BYTES
from magnetar.core.errors import Unavailable
from magnetar.wire.pulsar.metadata import checksum_ok, full_metadata

from broker.tests.replicator_stage import UnstoredStage


def test_what_comes_while_there_is_no_connection_is_dropped_and_counted() -> None:
    stage = UnstoredStage()
    stage.publish(2)
    stage.begin()
    stage.publish(3)
    assert (stage.arrived, stage.replicator.counters.dropped) == ([2, 3, 4], 2)
    stage.producer.lose(Unavailable("cut"))
    assert (stage.replicator.state, stage.replicator.reason) == (ReplicatorState.DISCONNECTED, Reason.UNREACHABLE)
    stage.publish(5)
    stage.pass_time(1)
    stage.publish(1)
    assert (stage.arrived, stage.replicator.counters.dropped) == ([2, 3, 4, 10], 7)
    stage.replicator.counters.update_rates(10)
    told = replicator_statistics(stage.replicator)
    assert (told["msgDropRate"], told["msgDropCount"], told["msgOutCount"], told["msgRateOut"]) == (0.7, 7, 4, 0.4)
    assert (told["replicationBacklog"], told["connected"], told["reason"]) == (0, True, "")


def test_what_has_no_receipt_when_the_connection_is_lost_is_not_sent_again() -> None:
    stage = UnstoredStage()
    stage.remote.answers = False
    stage.begin()
    stage.publish(4)
    stage.producer.lose(Unavailable("cut"))
    stage.pass_time(1)
    assert stage.replicator.connected
    assert stage.arrived == [0, 1, 2, 3]


def test_no_more_is_under_way_than_the_window_and_receipts_make_room() -> None:
    stage = UnstoredStage(window_entries_max=10)
    stage.remote.answers = False
    stage.begin()
    stage.publish(8)
    stage.publish(8)
    assert (stage.producer.unanswered, stage.replicator.counters.dropped) == (10, 6)
    assert stage.replicator.reason.value == "full"
    stage.producer.answer(3)
    stage.publish(2)
    assert (stage.arrived, stage.replicator.counters.dropped) == ([*range(10), 16, 17], 6)
    assert stage.replicator.reason.value == ""


def test_no_more_bytes_are_under_way_than_the_bound() -> None:
    stage = UnstoredStage()
    stage.remote.answers = False
    stage.begin()
    size_bytes = WINDOW_BYTES_MAX // 8
    for _ in range(12):
        stage.publish(1, b"x" * size_bytes)
        stage.settle()
    assert stage.producer.unanswered_bytes <= WINDOW_BYTES_MAX
    assert (len(stage.arrived), stage.replicator.counters.dropped) == (7, 5)


def test_what_came_from_elsewhere_or_is_addressed_to_others_or_unreadable_stays_here() -> None:
    stage = UnstoredStage()
    stage.begin()
    stage.publish(1, replicated_from="north")
    stage.publish(1, replicate_to=["__local__"])
    stage.publish(1, replicate_to=["north", "south"])
    stage.replicator.publish([b"nothing"])
    assert stage.arrived == []
    stage.publish(1, replicate_to=["north", "west"])
    assert stage.arrived == [3]
    assert (stage.replicator.counters.dropped, stage.replicator.counters.messages_out) == (0, 1)


def test_what_is_sent_says_where_it_comes_from_and_no_position() -> None:
    fields: dict[str, Any] = {
        "producer_name": "p",
        "sequence_id": 7,
        "publish_time": 5,
        "partition_key": "k",
        "schema_version": b"\0" * 8,
        "num_messages_in_batch": 2,
    }
    stage = UnstoredStage()
    stage.begin()
    stage.publish(1, b"payload", **fields)
    (sent,) = stage.remote.sent
    assert checksum_ok(sent.message, 0, len(sent.message))
    metadata = full_metadata(sent.message)
    assert metadata.replicated_from == "east"
    assert not any(one.key == SOURCE_POSITION_PROPERTY for one in metadata.properties)
    assert {name: getattr(metadata, name) for name in fields} == fields
    assert b"payload" in sent.message
    assert (sent.num_messages, sent.sequence_id, sent.marker, sent.shadowed) == (2, 7, False, False)


@pytest.mark.parametrize("lost", [False, True], ids=["sent in its turn", "connection lost"])
def test_a_turn_of_the_loop_sends_no_more_than_its_share(*, lost: bool) -> None:
    stage = UnstoredStage(window_entries_max=100)
    stage.remote.answers = False
    stage.begin()
    size_bytes = SLICE_BYTES // 2
    count = 2 * TURN_BYTES // size_bytes - 4
    turns = stage.runtime.turns
    stage.publish(count, b"x" * size_bytes)
    now = len(stage.arrived)
    assert 0 < now < count
    assert turns.waited_for
    if lost:
        stage.producer.lose(Unavailable("cut"))
        assert stage.replicator.counters.dropped == count - now
        stage.pass_time(1)
    stage.settle()
    assert stage.arrived == list(range(now if lost else count))
    stage.replicator.terminate()
    stage.settle()
    assert not turns.waited_for


def test_what_was_dropped_with_the_connection_takes_no_room() -> None:
    stage = UnstoredStage()
    stage.begin()
    size_bytes = WINDOW_BYTES_MAX // 8
    for _ in range(3):
        # What the turn has no room for waits.
        stage.publish(7, b"x" * size_bytes)
        stage.producer.lose(Unavailable("cut"))
        stage.pass_time(5)
    sent, dropped = len(stage.arrived), stage.replicator.counters.dropped
    assert dropped
    stage.publish(7, b"x" * size_bytes)
    stage.settle()
    assert (len(stage.arrived), stage.replicator.counters.dropped) == (sent + 7, dropped)


def test_one_that_is_ended_sends_nothing_and_does_not_come_back() -> None:
    stage = UnstoredStage()
    stage.begin()
    stage.replicator.terminate()
    stage.settle()
    stage.publish(3)
    stage.pass_time(120)
    assert (stage.arrived, stage.producer.closed) == ([], True)
    assert stage.replicator.state is ReplicatorState.TERMINATED
    assert len(stage.remote.producers) == 1


def test_the_age_of_what_is_under_way_is_told() -> None:
    stage = UnstoredStage()
    stage.remote.answers = False
    stage.begin()
    assert stage.replicator.delay_seconds() == 0
    stage.publish(1, publish_time=stage.timers.now_ms() - 2_000)
    assert stage.replicator.delay_seconds() == 2
    stage.producer.answer(1)
    assert stage.replicator.delay_seconds() == 0
