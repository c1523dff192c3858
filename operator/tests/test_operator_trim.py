from __future__ import annotations

from typing import Any

from magnetar.operator.plan.facts import ClaimFacts, PodFacts, WorkloadFacts
from magnetar.operator.trim import claim_facts, pod_facts, resource_facts, workload_facts

LABELS = {
    "app.kubernetes.io/instance": "blue",
    "app.kubernetes.io/component": "bookie",
    "pulsar.magnetar.dev/pool": "cold",
}


def pod(**status: Any) -> PodFacts:
    return pod_facts(
        {
            "metadata": {
                "name": "cold-bookie-12",
                "uid": "u",
                "labels": LABELS,
                "annotations": {"pulsar.magnetar.dev/template-hash": "abc"},
                "ownerReferences": [{"kind": "StatefulSet", "name": "cold-bookie"}],
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "nodeName": "n1",
                "volumes": [{"emptyDir": {}}, {"configMap": {"name": "cold-bookie-0a1b"}}],
                "containers": [{"name": "side", "image": "x"}, {"name": "bookie", "image": "bookie:1"}],
            },
            "status": status,
        }
    )


def test_a_pod_that_runs() -> None:
    found = pod(
        phase="Running",
        podIP="10.1.2.3",
        conditions=[{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"}],
        containerStatuses=[
            {"name": "side", "restartCount": 9, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
            {"name": "bookie", "restartCount": 2, "state": {"running": {}}},
        ],
    )
    assert found == PodFacts(
        name="cold-bookie-12",
        uid="u",
        component="bookie",
        pool="cold",
        ordinal=12,
        template_hash="abc",
        image="bookie:1",
        ready=True,
        readiness_changed_seconds=1767225609.0,
        phase="Running",
        node="n1",
        address="10.1.2.3",
        restarts=2,
        running=True,
        created_seconds=1767225600.0,
        annotations={"pulsar.magnetar.dev/template-hash": "abc"},
        config_maps=found.config_maps,
    )
    assert list(found.config_maps) == ["cold-bookie-0a1b"]


def test_a_pod_that_cannot_be_placed() -> None:
    found = pod(
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}]
    )
    assert (found.waiting_reason, found.waiting_message) == ("Unschedulable", "no room")
    assert (found.phase, found.exit_code, found.ready) == ("Pending", None, False)


def test_a_pod_that_keeps_ending() -> None:
    ended = {"terminated": {"exitCode": 3, "reason": "Error", "message": "no cookie"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    found = pod(containerStatuses=[{"name": "bookie", "restartCount": 4, "state": waiting, "lastState": ended}])
    assert (found.waiting_reason, found.exit_code, found.exit_message) == ("CrashLoopBackOff", 3, "no cookie")


def test_a_pod_that_is_killed_for_its_memory_says_so() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    found = pod(containerStatuses=[{"name": "bookie", "state": waiting, "lastState": ended}])
    assert (found.waiting_reason, found.exit_message) == ("OOMKilled", "OOMKilled")


def test_what_just_ended_counts_before_what_ended_earlier() -> None:
    found = pod(
        containerStatuses=[
            {
                "name": "bookie",
                "state": {"terminated": {"exitCode": 5}},
                "lastState": {"terminated": {"exitCode": 3}},
            }
        ]
    )
    assert found.exit_code == 5


def test_a_container_that_goes_first_and_fails_is_what_the_pod_waits_for() -> None:
    found = pod(
        initContainerStatuses=[{"name": "first", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}}}],
        containerStatuses=[{"name": "bookie", "state": {"waiting": {"reason": "PodInitializing"}}}],
    )
    assert (found.waiting_reason, found.waiting_message) == ("ImagePullBackOff", "m")


def test_pods_of_deployments_have_no_number() -> None:
    manifest = {
        "metadata": {"name": "blue-broker-6d5-77", "uid": "u", "ownerReferences": [{"kind": "ReplicaSet"}]},
        "status": {},
    }
    assert pod_facts(manifest).ordinal == -1


def claim(name: str, labels: dict[str, str], requested: str = "10Gi") -> ClaimFacts:
    return claim_facts(
        {
            "metadata": {"name": name, "uid": "u", "labels": labels, "deletionTimestamp": "x"},
            "spec": {"resources": {"requests": {"storage": requested}}, "storageClassName": "fast"},
            "status": {"capacity": {"storage": "8Gi"}},
        }
    )


def test_claims_of_pools_and_of_zookeeper() -> None:
    found = claim("ledgers-1-cold-bookie-12", LABELS)
    assert (found.volume, found.ordinal, found.pool, found.component) == ("ledgers-1", 12, "cold", "bookie")
    assert (found.requested_bytes, found.capacity_bytes, found.storage_class) == (10 * 2**30, 8 * 2**30, "fast")
    assert found.deleting
    assert not found.expandable
    server = {"app.kubernetes.io/instance": "blue", "app.kubernetes.io/component": "zookeeper"}
    found = claim("data-blue-zookeeper-0", server)
    assert (found.volume, found.ordinal, found.pool) == ("data", 0, "")


def test_a_size_that_nobody_writes_is_no_size() -> None:
    assert claim("ledgers-cold-bookie-0", LABELS, "1e3").requested_bytes == 0


def test_workloads() -> None:
    found = workload_facts(
        {
            "kind": "StatefulSet",
            "metadata": {"name": "cold-bookie", "uid": "u", "generation": 3},
            "spec": {
                "replicas": 4,
                "template": {"metadata": {"annotations": {"pulsar.magnetar.dev/template-hash": "abc"}}},
                "volumeClaimTemplates": [
                    {"metadata": {"name": "journal"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}
                ],
            },
            "status": {"observedGeneration": 2, "replicas": 3, "readyReplicas": 2, "updatedReplicas": 1},
        }
    )
    assert found == WorkloadFacts(
        kind="StatefulSet",
        name="cold-bookie",
        uid="u",
        desired=4,
        replicas=3,
        ready=2,
        updated=1,
        settled=False,
        template_hash="abc",
        claim_sizes={"journal": "1Gi"},
    )


def test_a_deployment_that_does_not_get_on_says_why() -> None:
    def stalled(*conditions: dict[str, str]) -> str:
        metadata = {"name": "blue-broker", "uid": "u", "generation": 1}
        status = {"observedGeneration": 1, "conditions": list(conditions)}
        return workload_facts(
            {"kind": "Deployment", "metadata": metadata, "spec": {"replicas": 1}, "status": status}
        ).stalled_message

    late = {"type": "Progressing", "status": "False", "message": "deadline exceeded"}
    assert stalled({"type": "Progressing", "status": "True", "message": "fine"}) == ""
    assert stalled(late) == "deadline exceeded"
    assert stalled(late, {"type": "ReplicaFailure", "status": "True", "message": "quota"}) == "quota"


def test_resources() -> None:
    found = resource_facts({"metadata": {"generation": 7, "finalizers": ["a"], "deletionTimestamp": "x"}})
    assert (found.generation, found.deleting, found.finalizers, dict(found.annotations)) == (7, True, ("a",), {})


def test_a_pod_that_is_deleted_says_when_it_must_have_stopped() -> None:
    found = pod_facts({"metadata": {"name": "a-b-0", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:30Z"}})
    assert (found.deleting, found.stops_by_seconds) == (True, 1767225630.0)


def test_what_a_program_told_people_is_kept_and_the_log_before_it_is_not() -> None:
    log = "2026-01-01 INFO    kazoo.client Connecting\n● the cookie is another's\n  Give it its own disk.\n"
    ended = {"exitCode": 4, "reason": "Error", "message": log}
    found = pod(phase="Running", containerStatuses=[{"name": "bookie", "lastState": {"terminated": ended}}])
    assert found.exit_message == "the cookie is another's\n  Give it its own disk."
