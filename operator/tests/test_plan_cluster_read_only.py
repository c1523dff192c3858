"""Read-only brokers of a cluster, and of one that others run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from magnetar.operator.children.naming import BROKER, PROXY, READ_ONLY_BROKER
from magnetar.operator.children.read_only import read_only_children
from magnetar.operator.plan.actions import Delete, DryRun, EmitEvent, MakeControlToken, Plan
from magnetar.operator.plan.cluster.parts import one_of, template_hash
from magnetar.operator.plan.cluster.plan import BUSY_SECONDS, LOAD_SECONDS, plan_cluster
from magnetar.operator.plan.conditions import timestamp
from magnetar.operator.plan.facts import ClusterSeen, PodFacts, ReadOnlyBrokerFacts
from magnetar.operator.resources.read_only import ReadOnlyBrokersStatus, ReadOnlyLoadStatus
from operator_fakes.cluster_builders import (
    applied,
    asked,
    condition_of,
    events,
    fresh,
    healthy,
    manifest_of,
    ours,
    respecified,
    told,
    with_objects,
    with_pod,
    with_pods,
    with_workload,
    without_pods,
)
from operator_fakes.plan_builders import NOW, make_pod, make_workload

NAME = "blue-read-only-broker"
TWO: dict[str, Any] = {"readOnlyBrokers": {"replicas": 2}}
SCALED: dict[str, Any] = {
    "readOnlyBrokers": {"autoscaling": {"maxReplicas": 6, "connectionsPerBrokerMax": 100, "lagSecondsMax": 30}}
}
ATTACHED: dict[str, Any] = {
    "attach": {"clusterName": "pulsar-1"},
    "metadata": {"url": "zk:zookeeper.apache:2181"},
    "readOnlyBrokers": {"replicas": 2},
}


def running(seen: ClusterSeen, number: int = 2, connections: int = 10, lag_seconds: float = 1.0) -> ClusterSeen:
    """With so many read-only brokers that are as they should be, and told of."""
    hash_ = template_hash(one_of(read_only_children(seen.cluster, number), "Deployment"))
    pods = [
        make_pod(f"{NAME}-{'abcdefgh'[at]}", READ_ONLY_BROKER, template_hash=hash_, address=f"10.0.1.{at}")
        for at in range(number)
    ]
    workload = make_workload("Deployment", NAME, number, template_hash=hash_)
    workloads = {**seen.children.workloads, ("Deployment", NAME): workload}
    children = replace(seen.children, pods=[*seen.children.pods, *pods], workloads=workloads)
    facts = {pod.name: ReadOnlyBrokerFacts(connections=connections, lag_seconds=lag_seconds) for pod in pods}
    return told(replace(seen, children=children, read_only_brokers=facts))


def replicas(plan: Plan) -> int | None:
    manifest = manifest_of(plan, "Deployment", NAME)
    return manifest["spec"]["replicas"] if manifest is not None else None


def of_status(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = plan.status["readOnlyBrokers"]
    return found


def remembering(seen: ClusterSeen, **load: Any) -> ClusterSeen:
    """The last look but this one remembered so."""
    before = seen.status.read_only_brokers or ReadOnlyBrokersStatus()
    usual: dict[str, Any] = {"since": timestamp(NOW - 9999)}
    status = msgspec.structs.replace(before, load=ReadOnlyLoadStatus(**(usual | load)))
    return replace(seen, status=msgspec.structs.replace(seen.status, read_only_brokers=status))


def test_a_cluster_without_them_says_nothing_of_them() -> None:
    plan = plan_cluster(healthy())
    assert not [name for name in applied(plan) if "read-only" in name]
    assert "readOnlyBrokers" not in plan.status
    assert "ReadOnlyBrokersReady" not in {one["type"] for one in plan.status["conditions"]}


def test_they_start_once_a_broker_is_ready() -> None:
    seen = respecified(healthy(), **TWO)
    waiting = with_pods(seen, lambda pod: replace(pod, ready=False) if pod.component == BROKER else pod)
    plan = plan_cluster(waiting)
    assert replicas(plan) is None
    assert f"Service/{NAME}" in applied(plan)
    assert condition_of(plan, "ReadOnlyBrokersReady")[1:] == (
        "Waiting",
        "read-only brokers start once a broker is ready",
    )
    # What would be refused is known at once.
    assert any(action.manifest["metadata"]["name"] == NAME for action in asked(plan, DryRun))
    plan = plan_cluster(seen)
    assert replicas(plan) == 2
    assert {f"PodDisruptionBudget/{NAME}", f"NetworkPolicy/{NAME}"} <= set(applied(plan))
    assert condition_of(plan, "Ready")[0] == "False"


def test_what_is_told_of_them() -> None:
    plan = plan_cluster(running(healthy(**TWO)))
    assert condition_of(plan, "ReadOnlyBrokersReady")[:2] == ("True", "AllReady")
    assert condition_of(plan, "Ready")[0] == "True"
    found = of_status(plan)
    assert (found["replicas"], found["readyReplicas"], found["desiredReplicas"]) == (2, 2, 2)
    assert found["version"] == "0.1.0"
    assert found["serviceUrl"] == f"pulsar://{NAME}.here.svc.cluster.local:6650"
    assert found["members"][0] == {"name": f"{NAME}-a", "state": "Ready", "connections": 10, "lagSeconds": 1}
    # Clients that write go where they went.
    assert plan.status["serviceUrl"].startswith("pulsar://blue-proxy.")


def test_one_whose_metrics_are_silent_or_that_does_not_come_up_is_told_of() -> None:
    seen = running(healthy(**TWO))
    first, second = f"{NAME}-a", f"{NAME}-b"
    facts = {first: seen.read_only_brokers[first]}
    plan = plan_cluster(replace(seen, read_only_brokers=facts))
    assert of_status(plan)["members"][1] == {
        "name": second,
        "state": "Ready",
        "message": "its metrics are not to be had",
    }
    words = "no such cluster: pulsar-1"
    failing = with_pod(seen, second, ready=False, waiting_reason="CrashLoopBackOff", exit_message=words)
    plan = plan_cluster(failing)
    assert words in condition_of(plan, "Stalled")[2]
    assert of_status(plan)["members"][1]["state"] == "Down"
    assert condition_of(plan, "BrokersReady")[0] == "True"


def test_they_are_updated_after_the_brokers() -> None:
    seen = respecified(running(healthy(**TWO)), **TWO, version="0.2.0")
    plan = plan_cluster(seen)
    assert replicas(plan) is None
    assert condition_of(plan, "ReadOnlyBrokersReady")[1] == "UpdateWaits"
    newer = running(healthy(**TWO, version="0.2.0"))
    outdated = with_pods(
        newer, lambda pod: replace(pod, template_hash="old") if pod.component == READ_ONLY_BROKER else pod
    )
    outdated = with_workload(outdated, "Deployment", NAME, template_hash="old")
    plan = plan_cluster(outdated)
    assert replicas(plan) == 2
    assert condition_of(plan, "ReadOnlyBrokersReady")[1] == "Updating"
    assert of_status(plan)["version"] == "0.2.0", "as it was written last"


def test_their_number_is_the_specs_or_whoever_scales_the_deployment() -> None:
    seen = running(healthy(**TWO))
    more = respecified(seen, readOnlyBrokers={"replicas": 4})
    plan = plan_cluster(more)
    assert replicas(plan) == 4
    assert events(plan).count("ScaledOut") == 1
    assert of_status(plan)["lastScale"] == {
        "time": timestamp(NOW),
        "before": 2,
        "after": 4,
        "reason": "readOnlyBrokers.replicas says so",
    }
    fewer = plan_cluster(respecified(seen, readOnlyBrokers={"replicas": 1}))
    # They send their consumers on by themselves: nobody is drained.
    assert replicas(fewer) == 1
    assert "ScaledIn" in events(fewer)
    by_others = running(healthy(readOnlyBrokers={}), number=5)
    assert replicas(plan_cluster(by_others)) == 5
    assert replicas(plan_cluster(respecified(healthy(), readOnlyBrokers={}))) == 2


def test_the_last_change_stays_told() -> None:
    seen = respecified(running(healthy(**TWO)), readOnlyBrokers={"replicas": 4})
    after = with_workload(told(seen), "Deployment", NAME, desired=4, replicas=4)
    assert of_status(plan_cluster(after))["lastScale"]["after"] == 4


def test_connections_bring_more_and_the_reason_is_told() -> None:
    seen = remembering(running(healthy(**SCALED), connections=170), advice="Grow", since=timestamp(NOW - 60))
    plan = plan_cluster(seen)
    assert replicas(plan) == 4
    reason = (
        "2 read-only brokers have 340 connections, and the worst topic is 1 s behind: more than 100 connections each"
    )
    assert of_status(plan)["lastScale"]["reason"] == reason
    assert of_status(plan)["load"]["reason"] == reason
    told_of = [event.message for event in asked(plan, EmitEvent) if event.reason == "ScaledOut"]
    assert told_of == [f"read-only brokers: 2 to 4, {reason}"]
    # And not at the first look.
    calm = plan_cluster(remembering(running(healthy(**SCALED), connections=170), since=timestamp(NOW - 60)))
    assert replicas(calm) == 2
    assert of_status(calm)["load"]["advice"] == "Grow"
    assert calm.requeue_after_seconds == LOAD_SECONDS


def test_a_number_that_is_on_its_way_is_looked_at_soon() -> None:
    seen = with_workload(running(healthy(readOnlyBrokers={"replicas": 2}), number=3), "Deployment", NAME, desired=2)
    plan = plan_cluster(seen)
    assert condition_of(plan, "ReadOnlyBrokersReady")[1] == "Scaling"
    assert plan.requeue_after_seconds == BUSY_SECONDS


def test_taken_out_of_the_spec_all_of_them_goes() -> None:
    seen = running(healthy(**TWO))
    kinds = ("Service", "PodDisruptionBudget", "NetworkPolicy")
    seen = with_objects(seen, *(ours("blue-uid", kind, NAME) for kind in kinds))
    assert not asked(plan_cluster(seen), Delete)
    plan = plan_cluster(respecified(seen))
    assert {(action.kind, action.name) for action in asked(plan, Delete)} == {
        (kind, NAME) for kind in ("Deployment", *kinds)
    }
    assert "readOnlyBrokers" not in plan.status


@pytest.mark.parametrize(
    "spec", [{}, {"autoscaling": {"maxReplicas": 9}}, {"replicas": 3}], ids=["by hand", "auto", "spec"]
)
def test_they_sleep_before_the_brokers_and_wake_as_many(spec: dict[str, Any]) -> None:
    seen = running(healthy(readOnlyBrokers=spec), number=3)
    asleep = respecified(seen, readOnlyBrokers=spec, hibernated=True)
    if "replicas" not in spec:
        assert replicas(plan_cluster(asleep)) == 3, "it is not written down yet"
        asleep = told(asleep)
        assert asleep.status.read_only_brokers is not None
        assert asleep.status.read_only_brokers.hibernated_replicas == 3
    assert replicas(plan_cluster(asleep)) == 0
    brokers = manifest_of(plan_cluster(without_pods(told(asleep), PROXY)), "Deployment", "blue-broker")
    assert brokers is not None
    assert brokers["spec"]["replicas"] == 2, "read-only brokers speak to them to the end"
    gone = without_pods(without_pods(told(asleep), PROXY), READ_ONLY_BROKER)
    gone = with_workload(gone, "Deployment", NAME, desired=0, replicas=0)
    brokers = manifest_of(plan_cluster(told(gone)), "Deployment", "blue-broker")
    assert brokers is not None
    assert brokers["spec"]["replicas"] == 0
    awake = respecified(told(gone), readOnlyBrokers=spec)
    assert replicas(plan_cluster(awake)) == 3


def test_a_deleted_cluster_stops_them_before_bookies() -> None:
    seen = running(healthy(**TWO, deletionPolicy="Delete"))
    resource = replace(seen.resource, deleting=True, finalizers=["pulsar.magnetar.dev/operator"])
    plan = plan_cluster(replace(seen, resource=resource))
    deleted = asked(plan, Delete)
    assert NAME in {action.name for action in deleted}
    assert not [action for action in deleted if action.kind in ("Bookie", "StatefulSet")]


# --- a cluster that others run


def test_attached_nothing_but_read_only_brokers_is_made_and_nothing_is_waited_for() -> None:
    plan = plan_cluster(fresh(**ATTACHED))
    assert asked(plan, MakeControlToken)
    kinds = {name.partition("/")[0] for name in applied(plan)}
    assert kinds == {"ConfigMap", "Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy"}
    assert all("/blue-read-only-broker" in name for name in applied(plan))
    assert replicas(plan) == 2
    assert condition_of(plan, "MetadataReady")[:2] == ("True", "Attached")
    assert condition_of(plan, "Ready")[:2] == ("False", "Starting")


def test_attached_it_is_ready_with_its_read_only_brokers() -> None:
    plan = plan_cluster(running(fresh(**ATTACHED)))
    assert condition_of(plan, "Ready")[:2] == ("True", "AllReady")
    assert plan.status["phase"] == "Ready"
    assert plan.status["version"] == "0.1.0"
    assert plan.status["serviceUrl"] == f"pulsar://{NAME}.here.svc.cluster.local:6650"
    assert not asked(plan, Delete)
    assert not [action for action in plan.actions if type(action).__name__ == "SetBalanceDriver"]


def test_attached_it_sleeps_and_wakes() -> None:
    seen = running(fresh(**ATTACHED))
    asleep = respecified(seen, **ATTACHED, hibernated=True)
    assert replicas(plan_cluster(asleep)) == 0

    def none(_: PodFacts) -> None:
        return None

    plan = plan_cluster(told(with_workload(with_pods(asleep, none), "Deployment", NAME, desired=0, replicas=0)))
    assert condition_of(plan, "Ready")[:2] == ("True", "Hibernated")
    assert plan.status["phase"] == "Hibernated"


def test_attached_and_paused_it_is_only_looked_at() -> None:
    plan = plan_cluster(respecified(running(fresh(**ATTACHED)), **ATTACHED, paused=True, version="9"))
    assert not applied(plan)
