"""Restarts for a new template, and larger volumes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from magnetar.operator.plan.actions import Apply, Create, Delete, GrowVolume
from magnetar.operator.plan.conditions import timestamp
from magnetar.operator.plan.facts import PoolFacts
from magnetar.operator.plan.pool.plan import plan_pool
from magnetar.operator.plan.pool.questions import pool_questions
from magnetar.operator.resources.bookie import BookieMember, BookieStatus, UsageSample
from operator_fakes.plan_builders import NOW
from operator_fakes.pool_builders import (
    CRASHED,
    GENERATION,
    PoolWorld,
    deleted,
    of,
    pod_name,
    replicas_of,
    said,
    stateful_of,
    status_of,
    told,
)

OLD: dict[str, Any] = {"template_hash": "old"}
ALL_OLD: dict[int, dict[str, Any]] = {0: OLD, 1: OLD, 2: OLD}
ZOOKEEPER_UPDATES = {"zookeeper": {"replicas": 3, "readyReplicas": 3, "updatedReplicas": 2, "desiredReplicas": 3}}


def other_pool(name: str, **status: Any) -> PoolFacts:
    usual: dict[str, Any] = {
        "replicas": 3,
        "ready_replicas": 3,
        "updated_replicas": 3,
        "cluster_generation": GENERATION,
    }
    found = BookieStatus(**(usual | status))
    return PoolFacts(name=name, uid=f"{name}-uid", generation=1, deleting=False, replicas=3, status=found)


def test_a_new_template_is_applied_before_a_pod_is_restarted() -> None:
    plan = plan_pool(PoolWorld(pods=ALL_OLD, stateful={"template_hash": "old"}).seen())
    assert replicas_of(plan) == 3
    assert not deleted(plan, "Pod")
    assert "RolloutStarted" in told(plan)
    assert plan.status["phase"] == "Updating"


def test_pods_are_restarted_one_by_one() -> None:
    world = PoolWorld(pods=ALL_OLD)
    plan = plan_pool(world.seen())
    assert deleted(plan, "Pod") == [pod_name(2)]
    assert "0 of 3 bookies are restarted" in said(plan, "Ready")[2]
    world.pods = {0: OLD, 1: OLD, 2: {"ready": False}}
    assert not deleted(plan_pool(world.seen()), "Pod")
    world.pods = {0: OLD, 1: OLD}
    assert deleted(plan_pool(world.seen()), "Pod") == [pod_name(1)]
    status = status_of(plan)
    assert (status.updated_replicas, status.cluster_generation) == (0, GENERATION)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"under_replicated": 4}, "4 ledgers lack replicas", id="ledgers lack replicas"),
        pytest.param({"under_replicated": None}, "no bookie could say", id="nobody has counted"),
        pytest.param({"cluster_generation": 8}, "was not looked at", id="the cluster's plan comes first"),
        pytest.param({"cluster_status": ZOOKEEPER_UPDATES}, "ZooKeeper comes first", id="ZooKeeper comes first"),
        pytest.param({"bookies": {0: None}}, "not ready: blue-bookie-0", id="one does not answer"),
        pytest.param(
            {"replicas": 3, "desired": 4, "bookies": {3: {"drain": "Verify"}}}, "being drained", id="one is drained"
        ),
        pytest.param({"bookies": {0: {"limbo_ledgers": 3}}}, "being healed from the other bookies", id="one is healed"),
        pytest.param({"bookies": {0: {"writable": False}, 1: {"writable": False}}}, "none can be spared", id="too few"),
        pytest.param({"others": [other_pool("azure", updated_replicas=1)]}, "pool azure comes first", id="order"),
        pytest.param(
            {"others": [other_pool("azure", cluster_generation=6)]}, "pool azure comes first", id="it follows"
        ),
        pytest.param({"others": [other_pool("red", ready_replicas=2)]}, "pool red are not ready", id="one in all"),
    ],
)
def test_what_restarts_wait_for(change: dict[str, Any], words: str) -> None:
    plan = plan_pool(PoolWorld(**({"pods": ALL_OLD} | change)).seen())
    assert not deleted(plan, "Pod")
    assert words in said(plan, "Reconciling")[2]


def test_what_cannot_be_healed_is_not_waited_for() -> None:
    world = PoolWorld(pods=ALL_OLD, bookies={0: {"limbo_ledgers": 3, "limbo_ledgers_unhealed": 3}})
    assert deleted(plan_pool(world.seen()), "Pod") == [pod_name(2)]


def test_a_restart_waits_for_a_drain_that_begins() -> None:
    plan = plan_pool(PoolWorld(replicas=3, desired=4, pods=ALL_OLD).seen())
    assert not deleted(plan, "Pod")


def test_another_pool_that_comes_later_is_not_waited_for() -> None:
    plan = plan_pool(PoolWorld(pods=ALL_OLD, others=[other_pool("red", updated_replicas=0)]).seen())
    assert deleted(plan, "Pod") == [pod_name(2)]


def test_a_pool_whose_pod_is_just_being_made_again_is_waited_for() -> None:
    """All pods that it has are ready and up to date, for the one that is restarted is not there."""
    other = other_pool("red", replicas=2, ready_replicas=2, updated_replicas=2)
    assert not deleted(plan_pool(PoolWorld(pods=ALL_OLD, others=[other]).seen()), "Pod")


def test_a_pool_that_goes_is_waited_for_while_its_pods_are_just_being_made_again() -> None:
    """It wants no bookies, and those that are drained are ready: others that are not there just now are not."""
    members = [BookieMember(name="red-bookie-0", state="Starting"), BookieMember(name="red-bookie-1", state="Drained")]
    other = replace(other_pool("red", replicas=1, ready_replicas=1, updated_replicas=1, members=members), deleting=True)
    assert not deleted(plan_pool(PoolWorld(pods=ALL_OLD, others=[other]).seen()), "Pod")


def test_a_single_bookie_is_restarted_all_the_same() -> None:
    cluster = {"bookkeeper": {"ensembleSize": 1, "writeQuorum": 1, "ackQuorum": 1}}
    plan = plan_pool(PoolWorld(replicas=1, pods={0: OLD}, cluster=cluster).seen())
    assert deleted(plan, "Pod") == [pod_name(0)]


def test_a_rollout_that_fails_stops_and_says_why() -> None:
    broken = CRASHED | {"exit_code": 2, "exit_message": "journalSyncs is no setting"}
    plan = plan_pool(PoolWorld(pods={0: OLD, 1: OLD, 2: broken}).seen())
    assert not deleted(plan, "Pod")
    status, reason, message = said(plan, "Stalled")
    assert (status, reason) == ("True", "RolloutFailed")
    assert "journalSyncs is no setting" in message
    assert told(plan) == ["RolloutFailed"]
    assert plan.status["phase"] == "Stalled"


def test_what_is_broken_is_restarted_first_whatever_waits() -> None:
    broken = OLD | CRASHED | {"exit_code": 2}
    world = PoolWorld(pods={0: OLD, 1: OLD, 2: broken}, under_replicated=3, cluster_status=ZOOKEEPER_UPDATES)
    assert deleted(plan_pool(world.seen()), "Pod") == [pod_name(2)]


def test_ledgers_are_counted_only_when_all_else_is_well() -> None:
    world = PoolWorld(pods=ALL_OLD)
    assert pool_questions(world.seen()).count_under_replicated
    assert not pool_questions(PoolWorld().seen()).count_under_replicated
    world.bookies = {1: None}
    assert not pool_questions(world.seen()).count_under_replicated
    scaling = {"autoscaling": {"maxReplicas": 9, "diskUsagePercentMin": 40}}
    old = [UsageSample(time=timestamp(NOW - 1800 * back), used_bytes=400, total_bytes=4000) for back in range(9, 0, -1)]
    world = PoolWorld(replicas=4, spec=scaling, status=BookieStatus(usage_history=old), under_replicated=None)
    assert pool_questions(world.seen()).count_under_replicated


def test_a_bookie_on_a_lost_node_is_told_of() -> None:
    lost = {"ready": False, "deleting": True, "stops_by_seconds": NOW - 90, "node": "n7"}
    plan = plan_pool(PoolWorld(pods={1: lost}).seen())
    assert said(plan, "Stalled")[:2] == ("True", "PodFailing")
    assert "n7" in said(plan, "Stalled")[2]
    assert "kubectl delete node" in said(plan, "Ready")[2]


def test_full_disks_need_a_person() -> None:
    full = {"writable": False, "read_only_reasons": ["the disk is full"]}
    plan = plan_pool(PoolWorld(bookies={0: full}).seen())
    assert said(plan, "Stalled")[0] == "False", "two others take what is written"
    plan = plan_pool(PoolWorld(bookies={0: full, 1: full}).seen())
    assert said(plan, "Stalled")[:2] == ("True", "TooFewBookies")
    assert "make room" in said(plan, "Stalled")[2]
    assert "TooFewBookies" in told(plan)
    scaling = {"autoscaling": {"maxReplicas": 9}}
    plan = plan_pool(PoolWorld(bookies={0: full, 1: full}, spec=scaling).seen())
    assert said(plan, "Stalled")[0] == "False", "it adds some by itself"


def test_volumes_grow() -> None:
    world = PoolWorld(spec={"storage": {"ledgers": {"size": "80Gi"}}})
    plan = plan_pool(world.seen())
    grown = of(plan, GrowVolume)
    assert [action.claim for action in grown] == [f"ledgers-{pod_name(n)}" for n in range(3)]
    assert {action.size_bytes for action in grown} == {80 * 1024**3}
    assert told(plan) == ["VolumeGrown"]
    # The template of claims cannot be changed in place.
    assert stateful_of(plan) is None


def test_then_the_statefulset_is_made_anew_without_its_pods() -> None:
    spec = {"storage": {"ledgers": {"size": "50Gi"}}}
    world = PoolWorld(spec=spec, stateful={"claim_sizes": {"journal": "10Gi", "ledgers": "20Gi"}})
    plan = plan_pool(world.seen())
    (action,) = of(plan, Delete)
    assert (action.kind, action.orphan) == ("StatefulSet", True)
    assert stateful_of(plan) is None
    world.desired, world.numbers, world.claimed = -1, range(3), range(3)
    plan = plan_pool(world.seen())
    (made,) = of(plan, Create)
    assert made.manifest["spec"]["replicas"] == 3
    assert "PoolStarted" not in told(plan)


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 4, "desired": 3},
        {"desired": 4, "bookies": {3: {"drain": "Verify"}}},
        {"numbers": range(2)},
        {"stateful": {"settled": False}},
        {"claims": {1: {"requested_bytes": 20 * 1024**3}}},
    ],
)
def test_not_while_anything_is_under_way(change: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"replicas": 3, "pods": {0: OLD}}
    world = PoolWorld(**(usual | change))
    world.stateful = {"claim_sizes": {"journal": "10Gi", "ledgers": "20Gi"}, "template_hash": "old"} | world.stateful
    plan = plan_pool(world.seen())
    assert not [action for action in of(plan, Delete) if action.kind == "StatefulSet"]
    applied = stateful_of(plan)
    assert isinstance(applied, Apply)
    sizes = [
        template["spec"]["resources"]["requests"]["storage"]
        for template in applied.manifest["spec"]["volumeClaimTemplates"]
    ]
    assert sizes == ["10Gi", "20Gi"]


def test_volumes_that_cannot_grow() -> None:
    world = PoolWorld(spec={"storage": {"journal": {"size": "20Gi"}}}, claims={1: {"expandable": False}})
    plan = plan_pool(world.seen())
    assert len(of(plan, GrowVolume)) == 2
    assert said(plan, "Stalled")[:2] == ("True", "VolumeNotExpandable")


def test_volumes_that_are_larger_stay() -> None:
    plan = plan_pool(PoolWorld(claims={1: {"requested_bytes": 1024**4, "capacity_bytes": 1024**4}}).seen())
    assert not of(plan, GrowVolume)
    assert said(plan, "Ready")[0] == "True"
