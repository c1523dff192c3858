"""New templates: ZooKeeper, bookies, brokers, proxies, one after the other, and a stop when it goes wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from magnetar.operator.children.brokers import broker_children
from magnetar.operator.children.naming import BROKER
from magnetar.operator.children.zookeeper import zookeeper_children
from magnetar.operator.plan.actions import Delete, GrowVolume, Scale
from magnetar.operator.plan.cluster.parts import one_of, template_hash
from magnetar.operator.plan.cluster.plan import BUSY_SECONDS, plan_cluster
from magnetar.operator.plan.facts import ClusterSeen, ZookeeperFacts
from operator_fakes.cluster_builders import (
    applied,
    asked,
    condition_of,
    events,
    healthy,
    manifest_of,
    respecified,
    told,
    with_pod,
    with_pods,
    with_workload,
)
from operator_fakes.plan_builders import NOW

NEW: dict[str, Any] = {"version": "0.2.0"}
GIB = 1024**3


def upgrading(**changes: Any) -> ClusterSeen:
    """The new version is asked for; the StatefulSet has its template, no pod has."""
    seen = respecified(healthy(), **(NEW | changes))
    wanted = template_hash(one_of(zookeeper_children(seen.cluster), "StatefulSet"))
    return with_workload(seen, "StatefulSet", "blue-zookeeper", template_hash=wanted, updated=0)


def updated(seen: ClusterSeen, *numbers: int) -> ClusterSeen:
    """Those servers have the newest template."""
    wanted = template_hash(one_of(zookeeper_children(seen.cluster), "StatefulSet"))
    names = {f"blue-zookeeper-{number}" for number in numbers}
    return with_pods(seen, lambda pod: replace(pod, template_hash=wanted) if pod.name in names else pod)


def restarted(seen: ClusterSeen) -> list[str]:
    return [action.name for action in asked(plan_cluster(seen), Delete) if action.kind == "Pod"]


def test_servers_restart_one_by_one_the_leader_last() -> None:
    seen = upgrading()
    assert restarted(seen) == ["blue-zookeeper-2"]
    assert restarted(updated(seen, 2)) == ["blue-zookeeper-0"]
    assert restarted(updated(seen, 2, 0)) == ["blue-zookeeper-1"]
    assert restarted(updated(seen, 2, 0, 1)) == []
    plan = plan_cluster(seen)
    assert condition_of(plan, "ZookeeperReady")[:2] == ("False", "Updating")
    assert events(plan) == ["RolloutStarted", "UpdateWaits", "UpdateWaits"]
    assert plan.requeue_after_seconds == BUSY_SECONDS
    assert plan.status["phase"] == "Updating"


def test_no_server_restarts_before_its_statefulset_has_the_template() -> None:
    assert restarted(with_workload(upgrading(), "StatefulSet", "blue-zookeeper", settled=False)) == []
    assert restarted(with_workload(upgrading(), "StatefulSet", "blue-zookeeper", template_hash="older")) == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda seen: with_pod(seen, "blue-zookeeper-0", ready=False), id="one is not ready"),
        pytest.param(lambda seen: with_pod(seen, "blue-zookeeper-0", deleting=True), id="one is going"),
        pytest.param(
            lambda seen: replace(seen, zookeeper={"blue-zookeeper-1": ZookeeperFacts(mode="leader")}),
            id="some do not answer",
        ),
        pytest.param(
            lambda seen: replace(seen, zookeeper=dict.fromkeys(seen.zookeeper, ZookeeperFacts(mode="follower"))),
            id="nobody leads",
        ),
        pytest.param(
            lambda seen: with_pods(seen, lambda pod: None if pod.name == "blue-zookeeper-0" else pod),
            id="one is not there",
        ),
    ],
)
def test_a_quorum_that_is_not_whole_is_left_alone(change: Any) -> None:
    healthy_others = [name for name in restarted(change(updated(upgrading(), 0))) if name != "blue-zookeeper-0"]
    assert healthy_others == []


def test_a_new_server_that_fails_stops_the_rollout_and_is_quoted() -> None:
    words = "Unrecognized setting: tickTme"
    facts: dict[str, Any] = {"ready": False, "waiting_reason": "CrashLoopBackOff", "exit_message": words}
    seen = with_pod(updated(upgrading(), 2), "blue-zookeeper-2", **facts)
    plan = plan_cluster(seen)
    assert restarted(seen) == []
    status, reason, message = condition_of(plan, "Stalled")
    assert (status, reason) == ("True", "RolloutFailed")
    assert words in message
    assert "RolloutFailed" in events(plan)
    assert plan.status["phase"] == "Stalled"
    assert "RolloutFailed" not in events(plan_cluster(told(seen)))


def test_a_server_on_a_lost_node_is_told_of() -> None:
    lost = {"ready": False, "deleting": True, "stops_by_seconds": NOW - 90, "node": "n7"}
    plan = plan_cluster(with_pod(healthy(), "blue-zookeeper-2", **lost))
    assert condition_of(plan, "Stalled")[:2] == ("True", "PodFailing")
    assert "kubectl delete node" in condition_of(plan, "Ready")[2]


def test_a_corrected_cluster_replaces_the_server_that_fails_first() -> None:
    facts: dict[str, Any] = {"ready": False, "waiting_reason": "CrashLoopBackOff"}
    seen = with_pod(upgrading(), "blue-zookeeper-2", **facts)
    assert restarted(replace(seen, zookeeper={})) == ["blue-zookeeper-2"]


def test_brokers_wait_for_zookeeper_and_bookies_and_keep_their_template() -> None:
    plan = plan_cluster(upgrading())
    assert "Deployment/blue-broker" not in applied(plan)
    assert not asked(plan, Scale)
    assert condition_of(plan, "BrokersReady")[:2] == ("False", "UpdateWaits")
    assert "after ZooKeeper" in condition_of(plan, "BrokersReady")[2]
    seen = updated(upgrading(), 0, 1, 2)
    assert "Deployment/blue-broker" in applied(plan_cluster(seen))
    waiting = replace(
        seen,
        pools=[
            replace(pool, status=type(pool.status)(replicas=3, updated_replicas=1, cluster_generation=4))
            for pool in seen.pools
        ],
    )
    plan = plan_cluster(waiting)
    assert "Deployment/blue-broker" not in applied(plan)
    assert "1 of 3 bookies are up to date" in condition_of(plan, "BrokersReady")[2]


def test_brokers_that_wait_can_be_more_meanwhile() -> None:
    seen = upgrading(broker={"replicas": 5})
    assert asked(plan_cluster(seen), Scale) == [Scale("Deployment", "blue-broker", "blue-broker-uid", 5)]


def test_brokers_that_none_works_of_do_not_wait_for_what_repairs_them() -> None:
    def failing(pod: Any) -> Any:
        return replace(pod, ready=False, waiting_reason="CrashLoopBackOff") if pod.component == BROKER else pod

    assert "Deployment/blue-broker" in applied(plan_cluster(with_pods(upgrading(), failing)))


def test_a_cluster_generation_that_pools_do_not_know_yet_holds_new_templates_back() -> None:
    seen = respecified(healthy(), pools_know=False, broker={"settings": {"maxMessageSize": 1000}})
    assert "Deployment/blue-broker" not in applied(plan_cluster(seen))
    seen = respecified(healthy(), broker={"settings": {"maxMessageSize": 1000}})
    assert "Deployment/blue-broker" in applied(plan_cluster(seen))
    assert restarted(seen) == []


def test_the_same_template_is_held_back_by_nothing() -> None:
    seen = respecified(healthy(), pools_know=False, balance={"intervalSeconds": 30})
    assert "Deployment/blue-broker" in applied(plan_cluster(seen))


def test_proxies_are_updated_after_the_brokers() -> None:
    seen = updated(upgrading(), 0, 1, 2)
    plan = plan_cluster(seen)
    assert "Deployment/blue-proxy" not in applied(plan)
    assert "after the brokers" in condition_of(plan, "ProxiesReady")[2]
    wanted = template_hash(one_of(broker_children(seen.cluster, None), "Deployment"))
    seen = with_workload(seen, "Deployment", "blue-broker", template_hash=wanted)
    half = with_pod(seen, "blue-broker-a", template_hash=wanted)
    assert "Deployment/blue-proxy" not in applied(plan_cluster(half))
    assert "Deployment/blue-proxy" in applied(plan_cluster(with_pod(half, "blue-broker-b", template_hash=wanted)))


def test_a_deployment_that_does_not_get_on_is_reported_with_its_pods_words() -> None:
    seen = respecified(healthy(), broker={"settings": {"maxMessageSise": 1000}})
    wanted = template_hash(one_of(broker_children(seen.cluster, None), "Deployment"))
    seen = with_workload(
        seen, "Deployment", "blue-broker", template_hash=wanted, updated=1, stalled_message="has timed out progressing"
    )
    words = "no such setting: maxMessageSise; did you mean maxMessageSize"
    new = replace(
        next(pod for pod in seen.children.pods if pod.name == "blue-broker-a"),
        name="blue-broker-new",
        template_hash=wanted,
        ready=False,
        restarts=4,
        exit_code=1,
        exit_message=words,
    )
    seen = replace(seen, children=replace(seen.children, pods=[*seen.children.pods, new]))
    plan = plan_cluster(seen)
    assert condition_of(plan, "Stalled")[:2] == ("True", "RolloutFailed")
    assert words in condition_of(plan, "BrokersReady")[2]
    assert "has timed out progressing" in condition_of(plan, "BrokersReady")[2]


def test_refused_pods_are_reported_with_the_deployments_words() -> None:
    seen = with_workload(healthy(), "Deployment", "blue-broker", desired=3, stalled_message="exceeded quota: pods=5")
    seen = respecified(seen, broker={"replicas": 3})
    status, reason, message = condition_of(plan_cluster(seen), "Stalled")
    assert (status, reason) == ("True", "RolloutFailed")
    assert "exceeded quota" in message


def test_a_rollout_is_told_of_when_it_starts_and_when_it_is_done() -> None:
    seen = upgrading()
    assert "RolloutStarted" in events(plan_cluster(seen))
    seen = told(seen)
    assert "RolloutStarted" not in events(plan_cluster(seen))
    between = told(with_pod(updated(seen, 2), "blue-zookeeper-2", ready=False))
    assert not [reason for reason in events(plan_cluster(between)) if reason.startswith("Rollout")]
    assert "ZookeeperReady" in events(plan_cluster(updated(seen, 0, 1, 2)))


def grown(**claim: Any) -> ClusterSeen:
    seen = respecified(healthy(), metadata={"zookeeper": {"storage": {"size": "20Gi"}}})
    claims = [replace(found, **claim) for found in seen.children.claims]
    return replace(seen, children=replace(seen.children, claims=claims))


def test_volumes_grow_and_the_statefulset_is_made_anew_around_its_pods() -> None:
    plan = plan_cluster(grown())
    assert [action.size_bytes for action in asked(plan, GrowVolume)] == [20 * GIB] * 3
    (deleted,) = asked(plan, Delete)
    assert (deleted.kind, deleted.orphan) == ("StatefulSet", True)
    assert "StatefulSet/blue-zookeeper" not in applied(plan)
    assert "VolumeGrown" in events(plan)
    # The pass after.
    seen = grown(requested_bytes=20 * GIB)
    workloads = {key: found for key, found in seen.children.workloads.items() if key[0] != "StatefulSet"}
    plan = plan_cluster(replace(seen, children=replace(seen.children, workloads=workloads)))
    assert "StatefulSet/blue-zookeeper" in applied(plan)
    assert not asked(plan, Delete)
    assert not asked(plan, GrowVolume)


def test_a_statefulset_that_is_going_is_not_applied() -> None:
    seen = with_workload(grown(requested_bytes=20 * GIB), "StatefulSet", "blue-zookeeper", deleting=True)
    plan = plan_cluster(seen)
    assert "StatefulSet/blue-zookeeper" not in applied(plan)
    assert not asked(plan, Delete)


def test_volumes_that_cannot_grow_are_a_persons_to_solve_and_hold_nothing_else_up() -> None:
    plan = plan_cluster(grown(expandable=False))
    assert not asked(plan, GrowVolume)
    assert not asked(plan, Delete)
    status, reason, message = condition_of(plan, "Stalled")
    assert (status, reason) == ("True", "VolumeNotExpandable")
    assert "allowVolumeExpansion" in message
    assert "Deployment/blue-broker" in applied(plan)
    # With other claim templates the server would refuse it, and the pass would end there.
    manifest = manifest_of(plan, "StatefulSet", "blue-zookeeper")
    assert manifest is not None
    (template,) = manifest["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"] == {"storage": "10Gi"}


def test_a_volume_that_somebody_made_larger_stays_so() -> None:
    seen = healthy()
    claims = [replace(found, requested_bytes=50 * GIB) for found in seen.children.claims]
    plan = plan_cluster(replace(seen, children=replace(seen.children, claims=claims)))
    assert not asked(plan, GrowVolume)
    assert not asked(plan, Delete)
    assert condition_of(plan, "Stalled")[0] == "False"


def test_the_zookeeper_statefulset_is_applied_at_once() -> None:
    seen = respecified(healthy(), **NEW)
    manifest = manifest_of(plan_cluster(seen), "StatefulSet", "blue-zookeeper")
    assert manifest is not None
    assert manifest["spec"]["template"]["spec"]["containers"][0]["image"] == "images/magnetar/zookeeper:0.2.0"
