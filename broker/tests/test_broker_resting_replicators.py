"""Replicators of a topic that nobody uses rest without producers, until somebody does."""

from __future__ import annotations

import pytest
from magnetar.broker.replication.states import Reason, ReplicatorState
from magnetar.core.errors import Unavailable

from broker.tests.replicator_stage import Stage, UnstoredStage


@pytest.mark.parametrize("make", [Stage, UnstoredStage])
def test_one_that_rests_has_no_producer_until_the_topic_is_used(make: type[Stage] | type[UnstoredStage]) -> None:
    stage = make()
    stage.begin()
    stage.publish(3)
    stage.settle()
    stage.runtime.spawn(stage.replicator.rest())
    stage.settle()
    assert stage.producer.closed
    assert (stage.replicator.state, stage.replicator.reason) == (ReplicatorState.DISCONNECTED, Reason.IDLE)
    stage.pass_time(120)
    assert len(stage.remote.producers) == 1
    stage.replicator.rouse()
    stage.settle()
    assert (stage.replicator.connected, stage.replicator.reason) == (True, Reason.NONE)
    stage.publish(2)
    stage.settle()
    assert len(stage.remote.sent) == 5


def test_a_message_rouses_it_and_arrives() -> None:
    stage = Stage()
    stage.begin()
    stage.runtime.spawn(stage.replicator.rest())
    stage.settle()
    stage.publish(2)
    stage.settle()
    assert stage.remote.entry_ids == [0, 1]
    assert stage.replicator.backlog == 0


def test_a_message_that_comes_while_it_goes_to_rest_has_it_connect_again() -> None:
    stage = Stage()
    stage.begin()
    stage.replicator._begin_to_disconnect(Reason.IDLE, "")
    stage.replicator._resting = True
    stage.publish(2)
    stage.runtime.spawn(stage.replicator._disconnect())
    stage.pass_time(1)
    assert stage.remote.entry_ids == [0, 1]


def test_what_the_other_cluster_lacks_keeps_it_awake() -> None:
    stage = Stage()
    stage.remote.answers = False
    stage.begin()
    stage.publish(2)
    stage.settle()
    stage.runtime.spawn(stage.replicator.rest())
    stage.settle()
    assert stage.replicator.connected
    stage.producer.lose(Unavailable("cut"))
    stage.runtime.spawn(stage.replicator.rest())
    stage.remote.answers = True
    stage.pass_time(1)
    assert stage.replicator.backlog == 0


def test_nobody_is_asked_again_for_a_topic_that_nobody_uses() -> None:
    stage = Stage()
    stage.remote.refuses = Unavailable("nobody there")
    stage.begin()
    stage.runtime.spawn(stage.replicator.rest())
    stage.settle()
    asked = len(stage.remote.producers)
    stage.pass_time(120)
    assert len(stage.remote.producers) == asked
    stage.remote.refuses = None
    stage.replicator.rouse()
    stage.settle()
    assert stage.replicator.connected


def test_one_that_rests_can_be_ended() -> None:
    stage = Stage()
    stage.begin()
    stage.runtime.spawn(stage.replicator.rest())
    stage.settle()
    stage.replicator.terminate()
    stage.settle()
    stage.replicator.rouse()
    stage.settle()
    assert stage.replicator.state is ReplicatorState.TERMINATED
    assert len(stage.remote.producers) == 1
