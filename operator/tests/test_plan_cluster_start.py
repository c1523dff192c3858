"""A cluster comes to be: what waits for what, and the conditions and words of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from magnetar.operator.children.metadata_job import metadata_job
from magnetar.operator.children.naming import BROKER, FINALIZER, INIT, PROXY
from magnetar.operator.plan.actions import Apply, Delete, MakeControlToken, Plan, SetFinalizer
from magnetar.operator.plan.cluster.plan import IDLE_SECONDS, WAITING_SECONDS, plan_cluster
from magnetar.operator.plan.facts import ClusterSeen
from magnetar.operator.resources.cluster import PulsarClusterStatus
from operator_fakes.cluster_builders import (
    GENERATION,
    applied,
    asked,
    condition_of,
    events,
    fresh,
    healthy,
    make_condition,
    make_pool,
    manifest_of,
    ours,
    quiet,
    told,
    with_objects,
    with_pod,
    with_pods,
    without_pods,
    without_workload,
)
from operator_fakes.plan_builders import NOW, make_pod


def with_zookeeper(*, ready: int = 3) -> ClusterSeen:
    """ZooKeeper runs, and nothing else."""
    seen = replace(healthy(), status=PulsarClusterStatus(), pools=[], brokers={}, driver="")
    seen = without_workload(seen, "Deployment", "blue-broker")
    seen = without_workload(seen, "Deployment", "blue-proxy")
    seen = without_pods(without_pods(seen, BROKER), PROXY)
    return with_pods(seen, lambda pod: replace(pod, ready=pod.ordinal < ready))


def test_at_first_what_needs_nothing_is_made_and_zookeeper_starts() -> None:
    plan = plan_cluster(fresh())
    found = applied(plan)
    assert asked(plan, MakeControlToken)
    assert "StatefulSet/blue-zookeeper" in found
    assert {"Service/blue-broker", "Service/blue-proxy", "PodDisruptionBudget/blue-broker"} <= set(found)
    assert "NetworkPolicy/blue-bookie" in found
    for later in ("Bookie/blue", "Deployment/blue-broker", "Deployment/blue-proxy"):
        assert later not in found
    assert not any(name.startswith("Job/") for name in found)
    assert condition_of(plan, "Ready")[:2] == ("False", "Starting")
    assert condition_of(plan, "Reconciling")[0] == "True"
    assert condition_of(plan, "Stalled")[0] == "False"
    assert plan.status["phase"] == "Starting"
    assert plan.status["serviceUrl"] == "pulsar://blue-proxy.here.svc.cluster.local:6650"
    assert plan.status["webServiceUrl"] == "http://blue-proxy.here.svc.cluster.local:8080"
    assert not events(plan)


@pytest.mark.parametrize(("ready", "begins"), [(2, False), (3, True)])
def test_metadata_is_written_once_all_servers_are_ready(ready: int, begins: bool) -> None:
    plan = plan_cluster(with_zookeeper(ready=ready))
    assert any(name.startswith("Job/blue-init-") for name in applied(plan)) is begins
    assert condition_of(plan, "MetadataReady")[:2] == ("False", "Starting" if begins else "Waiting")
    assert "Bookie/blue" not in applied(plan)


def job(seen: ClusterSeen, **status: object) -> ClusterSeen:
    wanted = metadata_job(seen.cluster)
    return with_objects(seen, ours("blue-uid", "Job", wanted["metadata"]["name"]) | {"status": status})


def test_the_default_pools_number_stays_when_the_cluster_says_it_no_more() -> None:
    """As is asked of whoever turns autoscaling on. Fields that nobody owns any more become what the CRD says by
    default, three: bookies would be drained."""
    seen = healthy(bookkeeper={"replicas": 5})
    number, whole = (one for one in asked(plan_cluster(seen), Apply) if one.manifest["kind"] == "Bookie")
    assert number.manager != whole.manager
    assert number.manifest["metadata"]["uid"] == seen.pools[0].uid
    assert number.manifest["spec"] == {"replicas": 5}
    assert whole.manifest["spec"]["replicas"] == 5
    (whole,) = (one for one in asked(plan_cluster(healthy()), Apply) if one.manifest["kind"] == "Bookie")
    assert "replicas" not in whole.manifest["spec"]


def test_bookies_come_when_the_metadata_is_written_and_that_is_never_taken_back() -> None:
    seen = job(with_zookeeper(), succeeded=1)
    plan = plan_cluster(seen)
    assert condition_of(plan, "MetadataReady")[0] == "True"
    assert "Bookie/blue" in applied(plan)
    assert not any(name.startswith("Job/") for name in applied(plan))
    later = plan_cluster(told(seen, children=replace(seen.children, objects={})))
    assert condition_of(later, "MetadataReady")[0] == "True"
    assert not any(name.startswith("Job/") for name in applied(later))


def test_a_finished_job_goes_once_it_is_written_down_that_it_is_done() -> None:
    seen = job(with_zookeeper(), succeeded=1)
    assert not asked(plan_cluster(seen), Delete)
    (deleted,) = asked(plan_cluster(told(seen)), Delete)
    assert deleted.kind == "Job"


TLS: dict[str, Any] = {"tls": {"secretName": "certificate"}}


def jobs(plan: Plan) -> list[str]:
    return [name for name in applied(plan) if name.startswith("Job/")]


def test_where_the_cluster_is_to_be_reached_is_written_again_once_its_pods_serve_so() -> None:
    served = healthy(**TLS)
    # As when TLS has been turned on: this was written without it.
    seen = replace(
        served, status=msgspec.structs.replace(served.status, metadata_digest=healthy().status.metadata_digest)
    )
    updating = with_pods(seen, lambda pod: replace(pod, template_hash="old") if pod.component == BROKER else pod)
    assert not jobs(plan_cluster(told(updating)))
    assert not jobs(plan_cluster(replace(seen, resource=replace(seen.resource, generation=GENERATION + 1))))
    plan = plan_cluster(seen)
    assert len(jobs(plan)) == 1
    assert condition_of(plan, "MetadataReady")[0] == "True"
    assert condition_of(plan, "Ready")[0] == "True"
    running = told(job(seen))
    assert not asked(plan_cluster(running), Delete), "it is not done"
    done = told(job(seen, succeeded=1))
    assert done.status.metadata_digest == served.status.metadata_digest
    plan = plan_cluster(done)
    assert not jobs(plan)
    assert [deleted.kind for deleted in asked(plan, Delete)] == ["Job"]


def test_a_job_that_cannot_write_it_again_takes_nothing_from_the_cluster() -> None:
    seen = told(job(healthy(), conditions=[{"type": "Failed", "status": "True", "message": "too often"}]))
    seen = replace(seen, status=msgspec.structs.replace(seen.status, metadata_digest=""))
    words = "no node of /admin: permission denied"
    pod = make_pod("blue-init-x", INIT, ready=False, waiting_reason="CrashLoopBackOff", exit_message=words)
    plan = plan_cluster(replace(seen, children=replace(seen.children, pods=[*seen.children.pods, pod])))
    assert [deleted.kind for deleted in asked(plan, Delete)] == ["Job"]
    assert condition_of(plan, "MetadataReady")[0] == "True"
    assert words in condition_of(plan, "MetadataReady")[2]
    assert condition_of(plan, "BrokersReady")[0] == "True"
    # Nobody else mends what the metadata says.
    assert condition_of(plan, "Stalled")[:2] == ("True", "MetadataInitFailed")


def test_a_job_that_fails_says_why_and_one_that_gave_up_is_tried_again() -> None:
    seen = job(with_zookeeper())
    words = "no node of /pulsar: permission denied"
    pod = make_pod("blue-init-x", INIT, ready=False, waiting_reason="CrashLoopBackOff", exit_message=words)
    seen = replace(seen, children=replace(seen.children, pods=[*seen.children.pods, pod]))
    plan = plan_cluster(told(seen))
    assert condition_of(plan, "Stalled")[:2] == ("True", "MetadataInitFailed")
    assert words in condition_of(plan, "MetadataReady")[2]
    given_up = told(with_pods(job(seen, conditions=[{"type": "Failed", "status": "True"}]), lambda pod: pod))
    plan = plan_cluster(without_pods(given_up, INIT))
    (deleted,) = asked(plan, Delete)
    assert deleted.kind == "Job"
    assert words in condition_of(plan, "Stalled")[2]
    assert not any(name.startswith("Job/") for name in applied(plan))


def test_a_job_of_an_older_spec_makes_way() -> None:
    seen = with_objects(with_zookeeper(), ours("blue-uid", "Job", "blue-init-older"))
    plan = plan_cluster(seen)
    (deleted,) = asked(plan, Delete)
    assert deleted.name == "blue-init-older"
    assert any(name.startswith("Job/blue-init-") for name in applied(plan))


def started(*, writable: int) -> ClusterSeen:
    """Bookies run, and no broker."""
    seen = job(with_zookeeper(), succeeded=1)
    return told(seen, pools=[make_pool("blue", writable_replicas=writable)])


@pytest.mark.parametrize(("writable", "begins"), [(0, False), (1, False), (2, True), (3, True)])
def test_brokers_start_once_an_ensemble_is_writable(writable: int, begins: bool) -> None:
    plan = plan_cluster(started(writable=writable))
    assert ("Deployment/blue-broker" in applied(plan)) is begins
    if not begins:
        assert condition_of(plan, "BrokersReady")[:2] == ("False", "Waiting")
        assert f"{writable} do" in condition_of(plan, "BrokersReady")[2]
        assert condition_of(plan, "BookiesReady")[1] == "TooFewWritable"
        assert plan.requeue_after_seconds == WAITING_SECONDS
    else:
        manifest = manifest_of(plan, "Deployment", "blue-broker")
        assert manifest is not None
        assert manifest["spec"]["replicas"] == 2
    assert "Deployment/blue-proxy" not in applied(plan)


def test_too_few_writable_bookies_take_no_brokers_away() -> None:
    seen = replace(healthy(), pools=[make_pool("blue", writable_replicas=0, ready_replicas=0)])
    plan = plan_cluster(seen)
    manifest = manifest_of(plan, "Deployment", "blue-broker")
    assert manifest is not None
    assert manifest["spec"]["replicas"] == 2
    assert condition_of(plan, "BookiesReady")[1] == "TooFewWritable"
    assert events(plan) == ["TooFewWritable"]


@pytest.mark.parametrize("ready", [False, True])
def test_proxies_start_once_a_broker_is_ready(ready: bool) -> None:
    seen = without_pods(without_workload(healthy(), "Deployment", "blue-proxy"), PROXY)
    seen = with_pods(seen, lambda pod: replace(pod, ready=ready) if pod.component == BROKER else pod)
    plan = plan_cluster(seen)
    assert ("Deployment/blue-proxy" in applied(plan)) is ready
    assert condition_of(plan, "ProxiesReady")[1] == ("Starting" if ready else "Waiting")


def test_when_all_is_well_nothing_is_asked_for_and_nothing_is_told() -> None:
    plan = plan_cluster(healthy())
    assert not quiet(plan.actions)
    assert not events(plan)
    assert plan.requeue_after_seconds == IDLE_SECONDS
    assert plan.status["phase"] == "Ready"
    assert plan.status["version"] == "0.1.0"
    assert condition_of(plan, "Ready")[:2] == ("True", "AllReady")
    assert condition_of(plan, "Reconciling")[0] == "False"
    assert plan.status["brokers"] == {
        "replicas": 2,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "desiredReplicas": 2,
    }
    selector = "app.kubernetes.io/component=broker,app.kubernetes.io/instance=blue,app.kubernetes.io/name=magnetar"
    assert plan.status["brokerSelector"] == selector
    assert [member["state"] for member in plan.status["brokerMembers"]] == ["Ready", "Ready"]


def test_a_second_pass_writes_the_same_status() -> None:
    seen = healthy()
    assert plan_cluster(seen).status == plan_cluster(told(seen, now_seconds=NOW + 60)).status


def test_another_store_is_nobodys_to_start() -> None:
    seen = healthy(metadata={"url": "zk:elsewhere:2181"})
    plan = plan_cluster(replace(seen, status=PulsarClusterStatus()))
    assert not any("zookeeper" in name for name in applied(plan))
    assert any(name.startswith("Job/") for name in applied(plan))
    assert condition_of(plan, "ZookeeperReady")[:2] == ("True", "External")


def test_without_proxies_clients_come_to_the_brokers() -> None:
    seen = healthy(proxy={"replicas": 0})
    plan = plan_cluster(seen)
    assert plan.status["serviceUrl"] == "pulsar://blue-broker.here.svc.cluster.local:6650"
    assert condition_of(plan, "ProxiesReady")[:2] == ("True", "NoneWanted")
    assert condition_of(plan, "Ready")[0] == "True"


def test_the_finalizer_is_there_when_volumes_are_to_be_deleted() -> None:
    assert asked(plan_cluster(healthy(deletionPolicy="Delete")), SetFinalizer) == [SetFinalizer(True)]
    seen = healthy()
    seen = replace(seen, resource=replace(seen.resource, finalizers=[FINALIZER]))
    assert asked(plan_cluster(seen), SetFinalizer) == [SetFinalizer(False)]


def test_a_pod_that_is_not_ready_is_told_of_once() -> None:
    seen = with_pod(healthy(), "blue-zookeeper-0", ready=False)
    plan = plan_cluster(seen)
    assert condition_of(plan, "ZookeeperReady")[:2] == ("False", "PodsNotReady")
    assert "blue-zookeeper-0" in condition_of(plan, "Ready")[2]
    assert plan.status["phase"] == "Degraded"
    assert events(plan) == ["PodsNotReady"]
    assert not events(plan_cluster(told(seen)))


def test_a_pod_without_room_says_so_and_what_to_do() -> None:
    facts = {"ready": False, "waiting_reason": "Unschedulable", "waiting_message": "0/1 nodes: insufficient memory"}
    seen = with_pod(healthy(), "blue-broker-a", **facts)
    plan = plan_cluster(seen)
    status, reason, message = condition_of(plan, "Stalled")
    assert (status, reason) == ("True", "PodFailing")
    assert "insufficient memory" in message
    assert "add nodes" in message
    assert plan.status["phase"] == "Stalled"
    assert events(plan) == ["PodFailing"]
    assert events(plan_cluster(replace(healthy(), status=told(seen).status))) == ["BrokersReady", "Recovered", "Ready"]


@pytest.mark.parametrize(
    ("pool", "reason", "words"),
    [
        (
            make_pool("more", conditions=[make_condition("Stalled", "True", "EnsembleTooLarge", "keep three")]),
            "EnsembleTooLarge",
            "Bookie more: keep three",
        ),
        (
            make_pool("more", conditions=[make_condition("Ready", "False", "Draining", "bookie-3 is drained")]),
            "Draining",
            "Bookie more: bookie-3 is drained",
        ),
        (make_pool("more", conditions=[]), "Starting", "Bookie more has not been looked at yet"),
        (make_pool("more", cluster_generation=1), "Updating", "newest version"),
    ],
)
def test_what_pools_say_is_said_of_the_cluster(pool: object, reason: str, words: str) -> None:
    seen = healthy()
    plan = plan_cluster(replace(seen, pools=[*seen.pools, pool]))  # type: ignore[list-item]
    status, found, message = condition_of(plan, "BookiesReady")
    assert (status, found) == ("False", reason)
    assert words in message


def test_an_ensemble_larger_than_all_pools_is_a_persons_to_solve() -> None:
    seen = replace(healthy(bookkeeper={"ensembleSize": 5}), pools=[make_pool("blue", 3)])
    status, reason, message = condition_of(plan_cluster(seen), "Stalled")
    assert (status, reason) == ("True", "TooFewBookies")
    assert "raise bookkeeper.replicas" in message


def test_zookeeper_starting_is_looked_at_when_pods_change() -> None:
    assert plan_cluster(with_zookeeper(ready=2)).requeue_after_seconds == WAITING_SECONDS


def test_a_pool_that_is_deleted_alone_is_told_of() -> None:
    seen = healthy()
    seen = replace(seen, pools=[replace(pool, deleting=True) for pool in seen.pools])
    assert condition_of(plan_cluster(seen), "BookiesReady") == ("False", "Starting", "Bookie blue is being deleted")
