"""Pause, hibernation and waking, the end of a cluster, and what is not needed any more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from magnetar.operator.children.naming import BROKER, FINALIZER, PROXY, ZOOKEEPER
from magnetar.operator.plan.actions import (
    Delete,
    EmitEvent,
    Plan,
    SetFinalizer,
    StartBookieDrain,
    StartBrokerDrain,
)
from magnetar.operator.plan.cluster.plan import IDLE_SECONDS, plan_cluster
from magnetar.operator.plan.facts import ClusterSeen
from magnetar.operator.resources.cluster import PulsarClusterStatus
from operator_fakes.cluster_builders import (
    GENERATION,
    applied,
    asked,
    condition_of,
    events,
    healthy,
    make_pool,
    manifest_of,
    ours,
    respecified,
    told,
    with_objects,
    with_pod,
    with_pods,
    with_workload,
    without_pods,
    without_workload,
)
from operator_fakes.plan_builders import make_claim, make_pod


def replicas(plan: Plan) -> tuple[int | None, int | None, int | None]:
    """Of proxies, brokers, ZooKeeper."""
    found = []
    for kind, name in (
        ("Deployment", "blue-proxy"),
        ("Deployment", "blue-broker"),
        ("StatefulSet", "blue-zookeeper"),
    ):
        manifest = manifest_of(plan, kind, name)
        found.append(manifest["spec"]["replicas"] if manifest else None)
    return found[0], found[1], found[2]


def pools_asleep(seen: ClusterSeen, running: int) -> ClusterSeen:
    return replace(seen, pools=[make_pool("blue", running, cluster_generation=seen.resource.generation)])


def test_a_paused_cluster_is_only_looked_at() -> None:
    seen = respecified(healthy(), paused=True, version="0.2.0")
    plan = plan_cluster(seen)
    assert all(isinstance(action, EmitEvent) for action in plan.actions)
    assert "Paused" in events(plan)
    assert condition_of(plan, "Paused")[0] == "True"
    assert condition_of(plan, "Reconciling")[:2] == ("False", "Paused")
    assert plan.status["phase"] == "Paused"
    assert condition_of(plan, "Ready")[0] == "False"
    again = respecified(told(seen))
    assert "Resumed" in events(plan_cluster(again))


def test_zookeeper_goes_last_also_while_its_statefulset_is_made_anew() -> None:
    """It was deleted without its pods, for larger volumes."""
    seen = without_workload(respecified(healthy(), hibernated=True), "StatefulSet", "blue-zookeeper")
    assert replicas(plan_cluster(seen)) == (0, 2, 3)
    assert replicas(plan_cluster(pools_asleep(without_pods(seen, ZOOKEEPER), 0)))[2] == 0


def test_it_goes_to_sleep_step_by_step() -> None:
    seen = respecified(healthy(brokers=5), hibernated=True)
    plan = plan_cluster(seen)
    assert replicas(plan) == (0, 5, 3)
    assert not asked(plan, StartBrokerDrain)
    assert not asked(plan, StartBookieDrain)
    assert plan.status["hibernatedReplicas"] == 5
    assert plan.status["phase"] == "Hibernating"
    assert condition_of(plan, "Hibernated")[:2] == ("False", "Stopping")
    seen = told(seen)
    assert replicas(plan_cluster(seen)) == (0, 5, 3)
    seen = told(without_pods(with_workload(seen, "Deployment", "blue-proxy", desired=0), PROXY))
    assert replicas(plan_cluster(seen)) == (0, 0, 3)
    seen = told(without_pods(with_workload(seen, "Deployment", "blue-broker", desired=0), BROKER))
    assert replicas(plan_cluster(seen)) == (0, 0, 3)
    assert replicas(plan_cluster(pools_asleep(seen, 1))) == (0, 0, 3)
    seen = told(pools_asleep(seen, 0))
    assert replicas(plan_cluster(seen)) == (0, 0, 0)
    seen = without_pods(with_workload(seen, "StatefulSet", "blue-zookeeper", desired=0), ZOOKEEPER)
    plan = plan_cluster(seen)
    assert condition_of(plan, "Hibernated")[:2] == ("True", "Hibernated")
    assert condition_of(plan, "Ready")[:2] == ("True", "Hibernated")
    assert condition_of(plan, "Reconciling")[0] == "False"
    assert plan.status["phase"] == "Hibernated"
    assert plan.status["hibernatedReplicas"] == 5
    assert "Hibernated" in events(plan)
    assert "Ready" not in events(plan)
    assert plan.requeue_after_seconds == IDLE_SECONDS


def asleep(brokers: int = 5, **spec: Any) -> ClusterSeen:
    seen = told(respecified(healthy(brokers=brokers), hibernated=True, **spec))
    for kind, name in (("Deployment", "blue-proxy"), ("Deployment", "blue-broker"), ("StatefulSet", "blue-zookeeper")):
        seen = with_workload(seen, kind, name, desired=0, replicas=0)
    seen = with_pods(seen, lambda pod: None)
    return told(pools_asleep(replace(seen, zookeeper={}, brokers={}, driver=""), 0))


def test_brokers_stop_only_when_it_is_written_down_how_many_there_were() -> None:
    seen = without_pods(respecified(healthy(brokers=5), hibernated=True), PROXY)
    plan = plan_cluster(seen)
    assert replicas(plan) == (0, 5, 3)
    assert plan.status["hibernatedReplicas"] == 5
    seen = without_pods(respecified(healthy(), hibernated=True, broker={"replicas": 4}), PROXY)
    assert replicas(plan_cluster(seen)) == (0, 0, 3)


def test_pools_that_do_not_know_that_they_are_to_sleep_need_zookeeper() -> None:
    seen = asleep()
    seen = with_workload(seen, "StatefulSet", "blue-zookeeper", desired=3)
    assert replicas(plan_cluster(seen))[2] == 0
    unknowing = replace(seen, pools=[make_pool("blue", 0, cluster_generation=GENERATION)])
    assert replicas(plan_cluster(unknowing))[2] == 3


def test_waking_is_the_usual_start_with_as_many_brokers_as_there_were() -> None:
    seen = respecified(asleep(brokers=5))
    plan = plan_cluster(seen)
    assert replicas(plan) == (0, 0, 3)
    assert "Woken" in events(plan)
    assert plan.status["hibernatedReplicas"] == 5
    assert condition_of(plan, "MetadataReady")[0] == "True"
    assert condition_of(plan, "BrokersReady")[1] == "Waiting"
    awake = healthy(brokers=5)
    zookeeper = [pod for pod in awake.children.pods if pod.component == ZOOKEEPER]
    seen = told(replace(seen, children=replace(seen.children, pods=zookeeper)))
    assert replicas(plan_cluster(seen))[1] == 0
    seen = told(replace(seen, pools=[make_pool("blue", 3, cluster_generation=seen.resource.generation)]))
    assert replicas(plan_cluster(seen)) == (0, 5, 3)
    seen = with_workload(seen, "Deployment", "blue-broker", desired=5)
    plan = plan_cluster(seen)
    assert "hibernatedReplicas" not in plan.status
    assert replicas(plan)[0] == 0
    brokers = [pod for pod in awake.children.pods if pod.component != PROXY]
    assert replicas(plan_cluster(replace(seen, children=replace(seen.children, pods=brokers))))[0] == 2


def test_a_cluster_that_was_never_awake_sleeps_without_metadata() -> None:
    seen = replace(asleep(), status=PulsarClusterStatus(), pools=[])
    plan = plan_cluster(seen)
    assert not any(name.startswith(("Job/", "Bookie/")) for name in applied(plan))
    assert replicas(plan) == (0, 0, 0)


def ending(**spec: Any) -> ClusterSeen:
    seen = healthy(**spec)
    finalizers = [FINALIZER] if spec.get("deletionPolicy") == "Delete" else []
    return replace(seen, resource=replace(seen.resource, deleting=True, finalizers=finalizers))


def test_a_cluster_that_keeps_its_volumes_just_goes() -> None:
    plan = plan_cluster(ending())
    assert plan.actions == []
    seen = ending()
    held = replace(seen, resource=replace(seen.resource, finalizers=[FINALIZER]))
    assert asked(plan_cluster(held), SetFinalizer) == [SetFinalizer(False)]
    assert not asked(plan_cluster(held), Delete)


def test_a_job_that_runs_goes_with_the_cluster() -> None:
    seen = with_objects(ending(deletionPolicy="Delete"), ours("blue-uid", "Job", "blue-init-x"))
    seen = with_pods(replace(seen, pools=[], children=replace(seen.children, workloads={})), lambda pod: None)
    assert deleted(seen) == ["blue-init-x"]


@pytest.mark.parametrize("paused", [False, True])
def test_a_cluster_that_keeps_nothing_goes_in_steps(paused: bool) -> None:
    seen = ending(deletionPolicy="Delete", paused=paused)
    plan = plan_cluster(seen)
    assert deleted(seen) == ["blue-broker", "blue-proxy"]
    assert not asked(plan, SetFinalizer)
    assert plan.status["phase"] == "Deleting"
    assert condition_of(plan, "Ready")[:2] == ("False", "Deleting")
    assert events(plan) == ["Deleting"]
    workloads = {key: found for key, found in seen.children.workloads.items() if found.kind != "Deployment"}
    seen = replace(seen, children=replace(seen.children, workloads=workloads))
    assert deleted(seen) == [], "brokers close their ledgers first"
    seen = with_pods(seen, lambda pod: None if pod.component in {"broker", "proxy"} else pod)
    assert deleted(seen) == ["blue", "blue-zookeeper"]
    seen = told(replace(seen, pools=[], children=replace(seen.children, workloads={})))
    # Kubernetes has them go, but for those of a StatefulSet that was being made anew: they have no owner any more.
    assert deleted(seen) == ["blue-zookeeper-0", "blue-zookeeper-1", "blue-zookeeper-2"]
    seen = with_pods(seen, lambda pod: replace(pod, deleting=True))
    plan = plan_cluster(seen)
    assert not asked(plan, Delete)
    assert not events(plan)
    seen = with_pods(seen, lambda pod: None)
    claims = [action.name for action in asked(plan_cluster(seen), Delete)]
    assert claims == ["data-blue-zookeeper-0", "data-blue-zookeeper-1", "data-blue-zookeeper-2"]
    going = [make_claim("data-blue-zookeeper-0", ZOOKEEPER, "data", 0, deleting=True)]
    plan = plan_cluster(replace(seen, children=replace(seen.children, claims=going)))
    assert not asked(plan, Delete)
    assert not asked(plan, SetFinalizer)
    plan = plan_cluster(replace(seen, children=replace(seen.children, claims=[])))
    assert asked(plan, SetFinalizer) == [SetFinalizer(False)]


def configurations(seen: ClusterSeen, count: int) -> ClusterSeen:
    found = [
        ours("blue-uid", "ConfigMap", f"blue-broker-{number:010}", creationTimestamp=f"2025-10-0{number}T00:00:00Z")
        for number in range(1, count + 1)
    ]
    return with_objects(seen, *found)


def deleted(seen: ClusterSeen) -> list[str]:
    return [action.name for action in asked(plan_cluster(seen), Delete)]


def test_the_last_configurations_are_kept_and_those_in_use() -> None:
    assert deleted(configurations(healthy(), 5)) == []
    assert deleted(configurations(healthy(), 7)) == ["blue-broker-0000000002", "blue-broker-0000000001"]
    seen = with_pod(configurations(healthy(), 7), "blue-broker-a", config_maps=["blue-broker-0000000001"])
    assert deleted(seen) == ["blue-broker-0000000002"]


def test_what_the_spec_does_not_ask_for_any_more_goes() -> None:
    seen = respecified(healthy(), networkPolicies=False, proxy={"replicas": 0})
    seen = with_objects(
        seen,
        ours("blue-uid", "NetworkPolicy", "blue-broker"),
        ours("blue-uid", "Service", "blue-proxy"),
        ours("blue-uid", "Service", "blue-broker"),
        ours("someone-uid", "Service", "blue-metrics"),
        ours("blue-uid", "PodDisruptionBudget", "blue-proxy", deletionTimestamp="2025-10-09T08:53:20Z"),
    )
    found = {(action.kind, action.name) for action in asked(plan_cluster(seen), Delete)}
    assert found == {("NetworkPolicy", "blue-broker"), ("Service", "blue-proxy"), ("Deployment", "blue-proxy")}


def test_evicted_pods_of_deployments_do_not_count() -> None:
    seen = healthy()
    evicted = make_pod("blue-broker-gone", BROKER, phase="Failed", ready=False)
    plan = plan_cluster(replace(seen, children=replace(seen.children, pods=[*seen.children.pods, evicted])))
    assert condition_of(plan, "Ready")[0] == "True"


@pytest.mark.parametrize(("known", "made"), [(False, False), (True, True)])
def test_pod_monitors_are_made_where_they_are_known(known: bool, made: bool) -> None:
    plan = plan_cluster(replace(healthy(), pod_monitors_known=known))
    assert ("PodMonitor/blue" in applied(plan)) is made
