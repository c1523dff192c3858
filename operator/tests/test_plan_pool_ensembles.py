"""Namespaces and topics that spread their ledgers over more bookies than the cluster does."""

from __future__ import annotations

from typing import Any

import pytest
from magnetar.operator.children.naming import REPLACE_ANNOTATION
from magnetar.operator.plan.actions import EmitEvent, Scale, StartBookieDrain
from magnetar.operator.plan.conditions import timestamp
from magnetar.operator.plan.facts import EnsembleFacts
from magnetar.operator.plan.pool.plan import plan_pool
from magnetar.operator.plan.pool.questions import pool_questions
from magnetar.operator.resources.bookie import BookieStatus, UsageSample
from operator_fakes.plan_builders import NOW
from operator_fakes.pool_builders import PoolWorld, of, pod_name, said

FOUR = EnsembleFacts(size=4, wanted_by="namespace a/b")
TWO = EnsembleFacts(size=2, wanted_by="the brokers' settings")
BROKERS: dict[str, Any] = {"brokers": {"replicas": 1, "readyReplicas": 1}}
REPLACE: dict[str, Any] = {"annotations": {REPLACE_ANNOTATION: "true"}}


def test_a_scale_in_is_refused_that_a_namespace_could_not_bear() -> None:
    plan = plan_pool(PoolWorld(replicas=3, desired=5, cluster_status=BROKERS, largest_ensemble=FOUR).seen())
    assert not of(plan, StartBookieDrain)
    status, reason, message = said(plan, "Stalled")
    assert (status, reason) == ("True", "EnsembleTooLarge")
    assert "namespace a/b" in message
    assert "Set replicas to 4 at least, or have namespace a/b ask for fewer" in message


@pytest.mark.parametrize("largest", [TWO, FOUR])
def test_it_begins_where_enough_are_left(largest: EnsembleFacts) -> None:
    plan = plan_pool(PoolWorld(replicas=4, desired=5, cluster_status=BROKERS, largest_ensemble=largest).seen())
    assert of(plan, StartBookieDrain) == [StartBookieDrain(pod_name(4))]
    assert [event for event in of(plan, EmitEvent) if "namespace" in event.message] == []


def test_it_waits_until_a_broker_says() -> None:
    plan = plan_pool(PoolWorld(replicas=4, desired=5, cluster_status=BROKERS).seen())
    assert not of(plan, StartBookieDrain)
    assert said(plan, "Ready")[:2] == ("False", "WaitingForBrokers")
    assert plan.requeue_after_seconds == 2


def test_without_brokers_the_clusters_own_figure_counts() -> None:
    plan = plan_pool(PoolWorld(replicas=4, desired=5).seen())
    assert of(plan, StartBookieDrain) == [StartBookieDrain(pod_name(4))]
    (event,) = [event for event in of(plan, EmitEvent) if event.reason == "DrainStarted"]
    assert "no broker runs that could say" in event.message


def test_a_replacement_needs_as_many() -> None:
    world = PoolWorld(replicas=4, pods={1: REPLACE}, cluster_status=BROKERS)
    assert said(plan_pool(world.seen()), "Ready")[1] == "WaitingForBrokers"
    world.largest_ensemble = FOUR
    plan = plan_pool(world.seen())
    assert not of(plan, StartBookieDrain)
    assert said(plan, "Stalled")[1] == "ReplacementNeedsBookies"
    assert "over 4 (by namespace a/b)" in said(plan, "Stalled")[2]
    world.largest_ensemble = TWO
    assert of(plan_pool(world.seen()), StartBookieDrain) == [StartBookieDrain(pod_name(1))]


def test_autoscaling_takes_none_away_that_is_needed_or_may_be() -> None:
    old = [UsageSample(time=timestamp(NOW - 1800 * back), used_bytes=400, total_bytes=4000) for back in range(9, 0, -1)]
    world = PoolWorld(
        replicas=4,
        spec={"autoscaling": {"maxReplicas": 9, "diskUsagePercentMin": 40}},
        status=BookieStatus(usage_history=old),
        cluster_status=BROKERS,
    )
    assert pool_questions(world.seen()).largest_ensemble
    assert not of(plan_pool(world.seen()), Scale)
    world.largest_ensemble = FOUR
    assert not of(plan_pool(world.seen()), Scale)
    world.largest_ensemble = TWO
    assert of(plan_pool(world.seen()), Scale) == [Scale("Bookie", "blue", "pool-uid", 3)]


@pytest.mark.parametrize(
    ("world", "asked"),
    [
        pytest.param(PoolWorld(), False, id="nothing is to be drained"),
        pytest.param(PoolWorld(replicas=3, desired=4), True, id="fewer are wanted"),
        pytest.param(PoolWorld(replicas=3, desired=4, bookies={3: {"drain": "Verify"}}), False, id="it drains already"),
        pytest.param(PoolWorld(replicas=3, desired=4, bookies={3: None}), False, id="it does not answer"),
        pytest.param(PoolWorld(pods={1: REPLACE}), True, id="one is to be replaced"),
    ],
)
def test_brokers_are_asked_when_it_matters(world: PoolWorld, asked: bool) -> None:
    assert pool_questions(world.seen()).largest_ensemble == asked
