"""The beginning, the end, and the rest of a pool; what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from magnetar.operator.children.naming import BOOKIE, REPLACE_ANNOTATION
from magnetar.operator.plan.actions import Apply, Create, Delete, EmitEvent, Scale, SetFinalizer, StartBookieDrain
from magnetar.operator.plan.pool.children import covers
from magnetar.operator.plan.pool.plan import plan_pool
from magnetar.operator.plan.pool.questions import pool_questions
from magnetar.operator.resources.bookie import BookieMember, BookieStatus
from operator_fakes.cluster_builders import make_condition
from operator_fakes.plan_builders import NOW, make_pod
from operator_fakes.pool_builders import (
    CRASHED,
    DONE,
    OWNER,
    POOL,
    STATEFUL,
    PoolWorld,
    bookie_id,
    deleted,
    index_of,
    member_of,
    of,
    pod_name,
    replicas_of,
    said,
    stateful_of,
    status_of,
    told,
)

NONE: dict[str, Any] = {"desired": -1, "numbers": ()}
NO_BROKERS: dict[str, Any] = {"brokers": {"replicas": 0}, "proxies": {"replicas": 0}}


def test_a_pool_is_made_when_the_metadata_is_there() -> None:
    plan = plan_pool(PoolWorld(**NONE, finalizers=()).seen())
    assert plan.actions[0] == SetFinalizer(True)
    (made,) = of(plan, Create)
    assert made.manifest["spec"]["replicas"] == 3
    assert {action.manifest["kind"] for action in of(plan, Apply)} == {"ConfigMap", "Service", "PodDisruptionBudget"}
    assert told(plan) == ["PoolStarted"]
    assert said(plan, "Ready")[:2] == ("False", "Starting")


def test_before_that_only_its_service_and_configuration_are() -> None:
    plan = plan_pool(PoolWorld(**NONE, cluster_status={"conditions": []}).seen())
    assert stateful_of(plan) is None
    assert len(of(plan, Apply)) == 3
    assert said(plan, "Reconciling")[:2] == ("True", "WaitingForMetadata")
    assert plan.status["phase"] == "Waiting for metadata"
    assert plan.requeue_after_seconds == 30


def test_a_pool_whose_volumes_are_there_comes_back_whole() -> None:
    (made,) = of(plan_pool(PoolWorld(**NONE, claimed=range(5)).seen()), Create)
    assert made.manifest["spec"]["replicas"] == 5
    (made,) = of(plan_pool(PoolWorld(**NONE, claimed=range(5), lost={3: {}, 4: {}}).seen()), Create)
    assert made.manifest["spec"]["replicas"] == 3


def test_a_pool_that_is_well_is_left_alone() -> None:
    world = PoolWorld()
    plan = plan_pool(world.seen())
    assert not [action for action in plan.actions if not isinstance(action, Apply | EmitEvent)]
    assert said(plan, "Ready") == ("True", "AllReady", "3 of 3 bookies are ready and up to date")
    assert said(plan, "Reconciling")[0] == said(plan, "Stalled")[0] == "False"
    assert said(plan, "Writable")[0] == "True"
    assert plan.requeue_after_seconds == 60
    status = status_of(plan)
    assert (status.replicas, status.ready_replicas, status.updated_replicas, status.writable_replicas) == (3, 3, 3, 3)
    assert (status.observed_generation, status.cluster_generation, status.phase) == (2, 7, "Ready")
    assert status.selector == (
        "app.kubernetes.io/component=bookie,app.kubernetes.io/instance=blue,app.kubernetes.io/name=magnetar,"
        "pulsar.magnetar.dev/pool=blue"
    )
    assert [(member.state, member.bookie_id) for member in status.members] == [
        ("Writable", bookie_id(n)) for n in range(3)
    ]
    world.status = status
    again = plan_pool(world.seen())
    assert again.status == plan.status
    assert told(again) == []
    # Others may have changed what cannot be seen by its digest.
    assert replicas_of(again) == 3


@pytest.mark.parametrize("name", ["blue-bookie-07", "blue-bookie-copy", "blue-bookie-", "7", "blue-bookie-1-7"])
def test_a_pod_whose_name_no_statefulset_gives_is_nobodys(name: str) -> None:
    """Somebody has copied one, with its labels."""
    seen = PoolWorld().seen()
    strange = make_pod(name, BOOKIE, pool=POOL, ready=False, template_hash="old")
    with_it = replace(seen, children=replace(seen.children, pods=[*seen.children.pods, strange]))
    assert plan_pool(with_it) == plan_pool(seen)


def test_only_what_differs_is_written() -> None:
    seen = PoolWorld().seen()
    objects = {
        (action.manifest["kind"], action.manifest["metadata"]["name"]): action.manifest
        for action in of(plan_pool(seen), Apply)
    }
    assert not of(plan_pool(replace(seen, children=replace(seen.children, objects=objects))), Apply)


def test_covers() -> None:
    assert covers({"a": [{"b": 1, "c": 2}], "d": 3}, {"a": [{"b": 1}]})
    assert not covers({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}]})
    assert not covers(None, {"a": 1})
    assert not covers({"a": 2}, {"a": 1})


def test_a_pool_without_its_cluster() -> None:
    plan = plan_pool(PoolWorld(cluster_missing=True).seen())
    assert plan.actions == []
    assert said(plan, "Reconciling")[:2] == ("True", "ClusterMissing")
    plan = plan_pool(PoolWorld(cluster_missing=True, deleting=True).seen())
    assert list(plan.actions) == [SetFinalizer(False)]


def test_a_pool_goes_with_its_cluster_without_a_drain() -> None:
    plan = plan_pool(PoolWorld(cluster_deleting=True, deleting=True).seen())
    assert list(plan.actions) == [SetFinalizer(False)]
    assert not plan_pool(PoolWorld(cluster_deleting=True).seen()).actions


@pytest.mark.parametrize("change", [{"cluster_missing": True}, {"cluster_deleting": True}])
def test_pods_whose_statefulset_was_being_made_anew_go_with_the_cluster(change: dict[str, Any]) -> None:
    """They have no owner any more, so nobody else would stop them."""
    world = PoolWorld(desired=-1, numbers=range(3), pods={1: {"deleting": True}}, deleting=True, **change)
    plan = plan_pool(world.seen())
    assert deleted(plan, "Pod") == [pod_name(0), pod_name(2)]
    assert plan.actions[-1] == SetFinalizer(False)
    # Of one that is there it is Kubernetes that has them go.
    world.desired = 3
    assert not of(plan_pool(world.seen()), Delete)


def test_a_pool_that_is_deleted_alone_is_drained_to_nothing() -> None:
    world = PoolWorld(deleting=True, writable_elsewhere=3)
    plan = plan_pool(world.seen())
    assert len(of(plan, StartBookieDrain)) == 3
    assert not of(plan, SetFinalizer)
    assert plan.status["phase"] == "Deleting"
    world.bookies = dict.fromkeys(range(3), DONE)
    assert replicas_of(plan_pool(world.seen())) == 0
    world.desired, world.numbers, world.claimed = 0, (), range(3)
    assert not [action for action in plan_pool(world.seen()).actions if isinstance(action, SetFinalizer | Delete)]
    world.lost = {0: {}, 1: {}, 2: {}}
    assert len(deleted(plan_pool(world.seen()), "PersistentVolumeClaim")) == 6
    world.claimed = ()
    assert list(plan_pool(world.seen()).actions) == [SetFinalizer(False)]


def test_the_last_pool_cannot_be_deleted_alone() -> None:
    plan = plan_pool(PoolWorld(deleting=True).seen())
    assert not of(plan, StartBookieDrain)
    assert said(plan, "Stalled")[1] == "EnsembleTooLarge"
    assert "delete the PulsarCluster" in said(plan, "Stalled")[2]


def test_a_pool_that_never_began_goes_at_once_if_it_was_seen_twice() -> None:
    world = PoolWorld(**NONE, deleting=True)
    assert list(plan_pool(world.seen()).actions) == [SetFinalizer(False)]
    world.status = BookieStatus(replicas=3)
    plan = plan_pool(world.seen())
    assert not of(plan, SetFinalizer)
    assert not of(plan, Create)
    world.status = status_of(plan)
    assert list(plan_pool(world.seen()).actions) == [SetFinalizer(False)]


def test_a_pool_that_people_made_goes_when_its_cluster_goes() -> None:
    world = PoolWorld()
    seen = replace(world.seen(), owner=replace(OWNER, name="extra"))
    (adopted,) = (action for action in of(plan_pool(seen), Apply) if action.manifest["kind"] == "Bookie")
    assert adopted.manifest["metadata"]["uid"] == "pool-uid"
    assert [owner["uid"] for owner in adopted.manifest["metadata"]["ownerReferences"]] == ["blue-uid"]
    owned = replace(seen, resource=replace(seen.resource, owner_uids=["blue-uid"]))
    assert not [action for action in of(plan_pool(owned), Apply) if action.manifest["kind"] == "Bookie"]


def test_a_paused_pool_is_only_looked_at() -> None:
    plan = plan_pool(PoolWorld(replicas=2, desired=4, cluster={"paused": True}, finalizers=()).seen())
    assert not [action for action in plan.actions if not isinstance(action, EmitEvent)]
    assert plan.status["phase"] == "Paused"
    assert said(plan, "Reconciling")[:2] == ("False", "Paused")


def test_hibernation_waits_for_brokers_and_proxies_and_drains_nothing() -> None:
    world = PoolWorld(cluster={"hibernated": True})
    for left in ({"brokers": {"replicas": 1}}, {"proxies": {"replicas": 1}}):
        world.cluster_status = NO_BROKERS | left
        plan = plan_pool(world.seen())
        assert stateful_of(plan) is None
        assert said(plan, "Reconciling")[1] == "Hibernating"
    world.cluster_status = NO_BROKERS
    plan = plan_pool(world.seen())
    assert replicas_of(plan) == 0
    assert told(plan) == ["Hibernated"]
    assert not of(plan, StartBookieDrain)
    assert said(plan, "Ready")[:2] == ("False", "Hibernating")
    world.status = status_of(plan)
    world.desired, world.numbers, world.claimed, world.lost = 0, (), range(3), {0: {}, 1: {}, 2: {}}
    plan = plan_pool(world.seen())
    assert not of(plan, Delete)
    assert plan.status["phase"] == "Hibernated"
    # As the cluster's own: a pool that sleeps as it should keeps nobody waiting who applied it.
    assert said(plan, "Ready")[:2] == ("True", "Hibernated")
    assert "Ready" not in told(plan)
    assert pool_questions(world.seen()).lost == ()


def test_a_status_of_an_older_generation_says_nothing_about_brokers() -> None:
    world = PoolWorld(cluster={"hibernated": True}, cluster_status=NO_BROKERS, cluster_generation=8)
    assert stateful_of(plan_pool(world.seen())) is None


def test_waking_waits_for_zookeeper_and_brings_all_back() -> None:
    world = PoolWorld(desired=0, numbers=(), claimed=range(4))
    assert replicas_of(plan_pool(world.seen())) == 4
    world.cluster_status = {
        "zookeeper": {"replicas": 3, "readyReplicas": 1, "updatedReplicas": 3, "desiredReplicas": 3}
    }
    plan = plan_pool(world.seen())
    assert stateful_of(plan) is None
    assert said(plan, "Reconciling")[1] == "WaitingForZookeeper"


def test_a_pool_sleeps_also_if_its_statefulset_was_being_made_anew() -> None:
    """Deleted without its pods, for larger volumes: these would run on, and so would ZooKeeper."""
    world = PoolWorld(desired=-1, numbers=range(3), cluster={"hibernated": True}, cluster_status=NO_BROKERS)
    (made,) = of(plan_pool(world.seen()), Create)
    assert made.manifest["spec"]["replicas"] == 3
    world.numbers = ()
    assert stateful_of(plan_pool(world.seen())) is None


def test_a_pool_of_a_hibernated_cluster_is_not_deleted_by_half() -> None:
    world = PoolWorld(desired=0, numbers=(), claimed=range(3), deleting=True, cluster={"hibernated": True})
    plan = plan_pool(world.seen())
    assert not of(plan, SetFinalizer)
    assert said(plan, "Stalled")[1] == "HibernatedPool"


def test_what_cannot_be_read_is_told() -> None:
    plan = plan_pool(PoolWorld(spec={"storage": {"ledgers": {"size": "much"}}}).seen())
    assert said(plan, "Stalled")[:2] == ("True", "InvalidSpec")
    assert stateful_of(plan) is None


def test_a_pod_that_fails_is_told() -> None:
    crashed = CRASHED | {"exit_code": 2, "exit_message": "no such setting"}
    plan = plan_pool(PoolWorld(pods={1: crashed}).seen())
    assert said(plan, "Stalled")[:2] == ("True", "PodFailing")
    assert "no such setting" in said(plan, "Stalled")[2]
    assert member_of(plan, 1)["state"] == "Down"


def test_a_full_disk_is_told() -> None:
    world = PoolWorld(bookies={n: {"writable": False, "read_only_reasons": ("its disks are full",)} for n in (0, 1)})
    plan = plan_pool(world.seen())
    status, reason, message = said(plan, "Writable")
    assert (status, reason) == ("False", "TooFewBookies")
    assert "its disks are full" in message
    assert member_of(plan, 0)["state"] == "ReadOnly"


def test_events_are_told_at_transitions_only() -> None:
    world = PoolWorld(replicas=3, desired=4, bookies={3: {"drain": "Verify"}})
    world.status = status_of(plan_pool(world.seen()))
    world.bookies = {3: DONE}
    plan = plan_pool(world.seen())
    assert set(told(plan)) == {"BookieRemoved", "DrainDone"}
    world.status = status_of(plan)
    world.desired, world.numbers, world.claimed = 3, range(3), range(3)
    plan = plan_pool(world.seen())
    assert told(plan) == ["Ready"]
    world.status = status_of(plan)
    assert told(plan_pool(world.seen())) == []


def test_a_bookie_in_limbo_is_told_once_and_so_is_its_end() -> None:
    world = PoolWorld()
    world.status = status_of(plan_pool(world.seen()))
    world.bookies = {1: {"limbo_ledgers": 12}}
    plan = plan_pool(world.seen())
    assert told(plan) == ["InLimbo"]
    member = member_of(plan, 1)
    assert (member["state"], member["limboLedgers"]) == ("Writable", 12)
    assert member["message"].startswith("12 ledgers may lack entries on its disks")
    world.status = status_of(plan)
    world.bookies = {1: {"limbo_ledgers": 2, "limbo_ledgers_unhealed": 2, "limbo_entries_lost": 40}}
    plan = plan_pool(world.seen())
    assert told(plan) == []
    assert member_of(plan, 1)["message"].endswith("2 cannot be for now, 40 entries are lost")
    world.status = status_of(plan)
    world.bookies = {1: None}
    plan = plan_pool(world.seen())
    assert "Healed" not in told(plan)
    world.status = status_of(plan)
    world.bookies = {}
    plan = plan_pool(world.seen())
    assert "Healed" in told(plan)
    assert not member_of(plan, 1).get("limboLedgers")


def test_who_is_asked_about() -> None:
    world = PoolWorld(
        replicas=5,
        desired=7,
        claimed=range(9),
        pods={
            0: {"ready": False},
            1: CRASHED | {"exit_code": 3},
            2: CRASHED | {"exit_code": 4},
            3: CRASHED | {"exit_code": 5},
            4: CRASHED | {"exit_code": 1, "annotations": {REPLACE_ANNOTATION: ""}},
            5: CRASHED,
        },
    )
    asked = pool_questions(world.seen()).lost
    assert asked == tuple((pod_name(n), bookie_id(n)) for n in (1, 3, 4, 5, 7, 8))


def test_old_configurations_go_when_nobody_uses_them() -> None:
    seen = PoolWorld().seen()
    old = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{STATEFUL}-0123456789",
            "uid": "old-uid",
            "ownerReferences": [{"uid": "pool-uid"}],
        },
    }
    objects = {("ConfigMap", f"{STATEFUL}-0123456789"): old}
    changed = replace(seen, children=replace(seen.children, objects=objects))
    assert deleted(plan_pool(changed), "ConfigMap") == [f"{STATEFUL}-0123456789"]


def test_bookies_are_asked_after_the_api_server() -> None:
    plan = plan_pool(PoolWorld(replicas=3, desired=5, bookies={4: DONE}).seen())
    stateful = index_of(plan, lambda action: isinstance(action, Apply) and action.manifest["kind"] == "StatefulSet")
    assert stateful < index_of(plan, lambda action: isinstance(action, StartBookieDrain))


def test_autoscaling_sets_the_resources_own_number() -> None:
    spec = {"autoscaling": {"maxReplicas": 6}}
    full: dict[int, dict[str, Any] | None] = {n: {"disk_usage_percent": 85, "used_bytes": 850} for n in range(3)}
    world = PoolWorld(spec=spec, bookies=full)
    plan = plan_pool(world.seen())
    assert of(plan, Scale) == [Scale("Bookie", "blue", "pool-uid", 4)]
    assert "Autoscaled" in told(plan)
    assert stateful_of(plan) is None
    assert status_of(plan).scaled_at is not None
    world.desired = 2
    assert not of(plan_pool(world.seen()), Scale)


@pytest.mark.parametrize("young", [{"created_seconds": NOW - 10}, {"readiness_changed_seconds": NOW - 10}])
def test_bookies_that_only_start_are_no_reason_for_more_however_long_the_pool_was_not_ready(
    young: dict[str, Any],
) -> None:
    """It was hibernated for a day and wakes, or something else was amiss, and all its bookies are needed."""
    ready = make_condition("Ready", "False", "Hibernated", "")
    ready = msgspec.structs.replace(ready, last_transition_time="2025-10-08T08:53:20Z")
    world = PoolWorld(
        spec={"autoscaling": {"maxReplicas": 9}},
        cluster={"bookkeeper": {"ensembleSize": 3}},
        status=BookieStatus(replicas=3, updated_replicas=3, conditions=[ready]),
        pods={number: {"ready": False} | young for number in range(3)},
    )
    assert not of(plan_pool(world.seen()), Scale)
    world.now = NOW + 600
    assert of(plan_pool(world.seen()), Scale) == [Scale("Bookie", "blue", "pool-uid", 6)]


@pytest.mark.parametrize("replicas", [0, 1, 3])
def test_small_pools_can_be_made(replicas: int) -> None:
    (made,) = of(plan_pool(PoolWorld(**NONE, replicas=replicas).seen()), Create)
    assert made.manifest["spec"]["replicas"] == replicas


def test_members_keep_the_order_that_the_api_server_keeps() -> None:
    old = [BookieMember(name=pod_name(2)), BookieMember(name=pod_name(0))]
    plan = plan_pool(PoolWorld(replicas=4, status=BookieStatus(members=old)).seen())
    assert [member["name"] for member in plan.status["members"]] == [pod_name(n) for n in (2, 0, 1, 3)]
