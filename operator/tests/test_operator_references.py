"""What a resource names and what is not as it must be: Secrets, and what Kubernetes tells of by Events alone."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from magnetar.auth.testing import make_pair
from magnetar.operator.children.metadata_job import metadata_job
from magnetar.operator.children.naming import FINALIZER
from magnetar.operator.kubernetes.errors import Refused
from magnetar.operator.plan.actions import EmitEvent
from magnetar.operator.plan.cluster.plan import plan_cluster
from magnetar.operator.plan.facts import Children, PodFacts, SpecProblem
from magnetar.operator.plan.pool.plan import plan_pool
from magnetar.operator.plan.rollout import failing, trouble
from magnetar.operator.plan.warnings import LatestWarning, in_doubt, with_warnings
from magnetar.operator.resources.cluster import PulsarClusterStatus
from magnetar.operator.resources.common import Condition
from operator_fakes.cluster_builders import healthy, told
from operator_fakes.plan_builders import NOW, make_claim, make_cluster, make_pod
from operator_fakes.pool_builders import PoolWorld
from operator_fakes.stage import BLUE, COLD, ReconcilerStage, small_stage


def encoded(**content: bytes) -> dict[str, str]:
    """As Secrets have it; `tls_crt` stands for `tls.crt`, `broker_token` for `broker-token`."""
    names = {name: name.replace("_token", "-token").replace("_", ".") for name in content}
    return {names[name]: base64.b64encode(value).decode() for name, value in content.items()}


GOOD = make_pair(NOW)
OTHER = make_pair(NOW)
OLD = make_pair(NOW, from_days=-30, to_days=-1)
EARLY = make_pair(NOW, from_days=1)
TOKENS = encoded(secret_key=b"x" * 32, broker_token=b"b", proxy_token=b"p")


@pytest.fixture
def stage() -> ReconcilerStage:
    return small_stage()


async def troubles(stage: ReconcilerStage) -> list[tuple[str, str]]:
    await stage.reconciler.reconcile(BLUE)
    return [(found.reason, found.message) for found in stage.clusters[-1].troubles]


# --- secrets


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (None, "SecretMissing", "Secret certs, which spec.tls.secretName names, is not there: make it"),
        ({}, "SecretInvalid", "Secret certs of spec.tls.secretName: it has no tls.crt and no tls.key"),
        (encoded(tls_crt=GOOD.certificate), "SecretInvalid", "it has no tls.key"),
        (encoded(tls_crt=b"garbage", tls_key=GOOD.key), "CertificateInvalid", "tls.crt is no certificate in PEM"),
        (encoded(tls_crt=GOOD.certificate, tls_key=b"garbage"), "CertificateInvalid", "tls.key is no private key"),
        (encoded(tls_crt=GOOD.certificate, tls_key=OTHER.key), "CertificateInvalid", "tls.key is not the key of"),
        (encoded(tls_crt=OLD.certificate, tls_key=OLD.key), "CertificateInvalid", "tls.crt has expired at 2025-10-08"),
        (encoded(tls_crt=EARLY.certificate, tls_key=EARLY.key), "CertificateInvalid", "not valid before 2025-10-10"),
    ],
)
async def test_a_tls_secret_that_is_not_as_it_must_be_is_told_at_once(
    stage: ReconcilerStage, data: dict[str, str] | None, reason: str, words: str
) -> None:
    stage.put_cluster(tls={"secretName": "certs"})
    if data is not None:
        stage.put("Secret", "certs", data=data)
    ((found, message),) = await troubles(stage)
    assert found == reason
    assert words in message
    stage.put("Secret", "certs", data=encoded(tls_crt=GOOD.certificate, tls_key=GOOD.key))
    assert await troubles(stage) == []


async def test_the_authority_of_clients_is_looked_at_where_it_is_wanted(stage: ReconcilerStage) -> None:
    pair = {"tls_crt": GOOD.certificate, "tls_key": GOOD.key}
    stage.put("Secret", "certs", data=encoded(**pair))
    stage.put_cluster(tls={"secretName": "certs", "requireClientCertificates": True})
    ((reason, words),) = await troubles(stage)
    assert (reason, "no ca.crt" in words) == ("SecretInvalid", True)
    stage.put("Secret", "certs", data=encoded(ca_crt=b"garbage", **pair))
    ((reason, words),) = await troubles(stage)
    assert (reason, "ca.crt is no certificate" in words) == ("CertificateInvalid", True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "Secret tokens, which spec.authentication.token.secretName names, is not there"),
        (encoded(secret_key=b"x" * 32, proxy_token=b"p"), "it has no broker-token"),
        (encoded(secret_key=b"short", broker_token=b"b", proxy_token=b"p"), "too short"),
    ],
)
async def test_a_secret_of_tokens(stage: ReconcilerStage, data: dict[str, str] | None, words: str) -> None:
    stage.put_cluster(authentication={"token": {"secretName": "tokens"}})
    if data is not None:
        stage.put("Secret", "tokens", data=data)
    ((_, message),) = await troubles(stage)
    assert words in message
    stage.put("Secret", "tokens", data=TOKENS)
    assert await troubles(stage) == []


async def test_without_proxies_no_token_of_theirs_is_needed(stage: ReconcilerStage) -> None:
    data = {name: value for name, value in TOKENS.items() if name != "proxy-token"}
    stage.put("Secret", "tokens", data=data)
    stage.put_cluster(authentication={"token": {"secretName": "tokens"}}, proxy={"replicas": 0})
    assert await troubles(stage) == []


async def test_a_cluster_that_sleeps_needs_no_secret(stage: ReconcilerStage) -> None:
    stage.put_cluster(tls={"secretName": "certs"}, hibernated=True)
    assert await troubles(stage) == []
    assert ("Secret", "certs") not in stage.did("get")


async def test_a_secret_that_may_not_be_read_is_left_to_the_pods_to_tell_of(stage: ReconcilerStage) -> None:
    stage.put_cluster(tls={"secretName": "certs"})
    real = stage.api.get

    async def get(kind: str, namespace: str, name: str) -> Any:
        if name == "certs":
            raise Refused("forbidden")
        return await real(kind, namespace, name)

    stage.api.get = get  # type: ignore[method-assign]  # As a server with narrower rights.
    assert await troubles(stage) == []


def test_trouble_stands_in_the_conditions_and_is_told_once() -> None:
    before = healthy()
    seen = replace(before, troubles=[SpecProblem(reason="SecretMissing", message="Secret certs is not there")])
    plan = plan_cluster(seen)
    said = {one.type: one for one in msgspec.convert(plan.status["conditions"], list[Condition])}
    assert (said["Ready"].status, said["Ready"].reason) == ("False", "SecretMissing")
    assert (said["Stalled"].status, said["Stalled"].message) == ("True", "Secret certs is not there")
    assert plan.status["phase"] == "Stalled"
    assert EmitEvent("Warning", "SecretMissing", "Secret certs is not there") in plan.actions
    after = told(seen)
    assert not [action for action in plan_cluster(after).actions if isinstance(action, EmitEvent)]
    cured = plan_cluster(replace(after, troubles=()))
    assert [action.reason for action in cured.actions if isinstance(action, EmitEvent)] == ["Recovered", "Ready"]


# --- events


def waiting(**facts: Any) -> PodFacts:
    usual: dict[str, Any] = {"ready": False, "phase": "Pending", "waiting_reason": "ContainerCreating"}
    return make_pod("blue-broker-a", "broker", **(usual | facts))


def mount(what: str, ago_seconds: float = 5.0) -> LatestWarning:
    words = f'MountVolume.SetUp failed for volume "v" : {what}'
    return LatestWarning(reason="FailedMount", message=words, told_seconds=NOW - ago_seconds)


@pytest.mark.parametrize(
    "what", ['secret "mine" not found', 'configmap "mine" not found', "references non-existent secret key: mine"]
)
def test_a_pod_that_waits_for_what_is_not_there_says_for_what(what: str) -> None:
    children = Children(pods=[waiting(created_seconds=NOW - 4)])
    assert in_doubt(children, NOW) == [(("Pod", "blue-broker-a"), "blue-broker-a-uid")]
    (pod,) = with_warnings(children, {("Pod", "blue-broker-a"): [mount(what)]}, NOW).pods
    assert failing(pod, NOW)
    assert what in trouble(pod)
    assert "pod.volumes" in trouble(pod)


@pytest.mark.parametrize(
    ("warned", "age_seconds", "fails"),
    [
        (mount("failed to sync configmap cache: timed out"), 20.0, False),
        (mount("failed to sync configmap cache: timed out"), 200.0, True),
        (mount('secret "blue-control" not found'), 20.0, False),
        (mount('secret "mine" not found', ago_seconds=3000.0), 4000.0, False),
        (LatestWarning(reason="Unhealthy", message="not found", told_seconds=NOW), 20.0, False),
    ],
)
def test_what_may_end_by_itself_or_has_ended_is_no_failure_yet(
    warned: LatestWarning, age_seconds: float, fails: bool
) -> None:
    control = {("Secret", "blue-control"): {"metadata": {"name": "blue-control"}}}
    children = Children(pods=[waiting(created_seconds=NOW - age_seconds)], objects=control)
    (pod,) = with_warnings(children, {("Pod", "blue-broker-a"): [warned]}, NOW).pods
    assert failing(pod, NOW) == fails


@pytest.mark.parametrize(
    "facts",
    [
        {"ready": True, "phase": "Running", "waiting_reason": ""},
        {"phase": "Running", "waiting_reason": "CrashLoopBackOff"},
        {"created_seconds": NOW - 1},
        {"node": ""},
        {"deleting": True},
    ],
)
def test_nobody_is_asked_about_pods_that_say_enough(facts: dict[str, Any]) -> None:
    assert in_doubt(Children(pods=[waiting(**facts)]), NOW) == []


def test_an_image_that_cannot_be_had_names_the_secret_for_it() -> None:
    children = Children(pods=[waiting(waiting_reason="ImagePullBackOff", waiting_message="Back-off pulling x")])
    words = "Unable to retrieve some image pull secrets (mine); attempting to pull the image may not succeed."
    warned = LatestWarning(reason="FailedToRetrieveImagePullSecret", message=words, told_seconds=NOW)
    (pod,) = with_warnings(children, {("Pod", "blue-broker-a"): [warned]}, NOW).pods
    assert "image pull secrets (mine)" in trouble(pod)
    assert "imagePullSecrets" in trouble(pod)


def test_a_claim_without_its_class_is_told_at_once() -> None:
    pod = make_pod("blue-zookeeper-0", "zookeeper", ready=False, phase="Pending", waiting_reason="Unschedulable")
    pod = replace(pod, created_seconds=NOW - 3)
    claim = make_claim("data-blue-zookeeper-0", "zookeeper", "data", 0, bound=False)
    children = Children(pods=[pod], claims=[claim])
    name = ("PersistentVolumeClaim", "data-blue-zookeeper-0")
    assert [found for found, _ in in_doubt(children, NOW)] == [name]
    words = 'storageclass.storage.k8s.io "fast" not found'
    warned = LatestWarning(reason="ProvisioningFailed", message=words, told_seconds=NOW)
    (found,) = with_warnings(children, {name: [warned]}, NOW).pods
    assert failing(found, NOW)
    assert f"claim data-blue-zookeeper-0: {words}" in trouble(found)


REFUSED_PODS = 'create Pod x-0 in StatefulSet x failed error: pods "x-0" is forbidden: serviceaccount "mine" not found'


def test_a_pool_whose_pods_are_refused_says_why() -> None:
    world = PoolWorld()
    seen = world.seen()
    name = ("StatefulSet", "blue-bookie")
    stateful = replace(seen.children.workloads[name], replicas=2, ready=2)
    pods = [pod for pod in seen.children.pods if pod.ordinal < 2]
    children = replace(seen.children, pods=pods, workloads={name: stateful})
    assert name in [found for found, _ in in_doubt(children, NOW)]
    warned = LatestWarning(reason="FailedCreate", message=REFUSED_PODS, told_seconds=NOW)
    plan = plan_pool(replace(seen, children=with_warnings(children, {name: [warned]}, NOW)))
    said = {one["type"]: one for one in plan.status["conditions"]}
    assert said["Stalled"]["status"] == "True"
    assert 'serviceaccount "mine" not found' in said["Stalled"]["message"]


def test_zookeepers_pods_that_are_refused_say_why() -> None:
    seen = healthy()
    name = ("StatefulSet", "blue-zookeeper")
    stateful = replace(seen.children.workloads[name], replicas=0, ready=0)
    pods = [pod for pod in seen.children.pods if pod.component != "zookeeper"]
    children = replace(seen.children, pods=pods, workloads={**seen.children.workloads, name: stateful})
    warned = LatestWarning(reason="FailedCreate", message=REFUSED_PODS, told_seconds=NOW)
    plan = plan_cluster(replace(seen, children=with_warnings(children, {name: [warned]}, NOW)))
    said = {one["type"]: one for one in plan.status["conditions"]}
    assert (said["Stalled"]["status"], said["Stalled"]["reason"]) == ("True", "PodFailing")
    assert 'serviceaccount "mine" not found' in said["ZookeeperReady"]["message"]


async def test_events_are_asked_for_by_the_pods_uid(stage: ReconcilerStage) -> None:
    stage.put_pool()
    status = {"phase": "Pending", "containerStatuses": [{"name": "bookie", "state": {"waiting": {}}}]}
    owners = {"ownerReferences": [{"kind": "StatefulSet"}], "creationTimestamp": "2025-10-09T08:00:00Z"}
    pod = stage.put("Pod", "cold-bookie-0", "bookie", "cold", status=status, spec={"nodeName": "n"}, metadata=owners)
    event = {
        "involvedObject": {"uid": pod["metadata"]["uid"]},
        "type": "Warning",
        "reason": "FailedMount",
        "message": 'configmap "mine" not found',
        "eventTime": "2025-10-09T08:50:00.123456Z",
    }
    stage.put("Event", "e", **event)  # type: ignore[arg-type]  # None of these is its component.
    await stage.reconciler.reconcile(COLD)
    (seen,) = stage.pools[-1].children.pods
    assert (seen.waiting_reason, seen.waiting_message) == ("FailedMount", 'configmap "mine" not found')
    assert stage.did("warnings") == [("Event", pod["metadata"]["uid"])]
    stage.api.failures["warnings", "Event"] = [Refused("forbidden")]
    await stage.reconciler.reconcile(COLD)
    assert stage.pools[-1].children.pods[0].waiting_reason == ""


async def test_a_cluster_that_is_well_asks_for_no_events(stage: ReconcilerStage) -> None:
    stage.put_pod("blue-broker-a", "broker", "10.0.0.1")
    await stage.reconciler.reconcile(BLUE)
    assert stage.did("warnings") == []


def test_a_claim_that_does_not_grow_says_why() -> None:
    """The driver fails, and Kubernetes tries on for ever."""
    world = PoolWorld()
    seen = world.seen()
    claims = [
        replace(claim, capacity_bytes=claim.requested_bytes // 2) if claim.name == "ledgers-blue-bookie-1" else claim
        for claim in seen.children.claims
    ]
    children = replace(seen.children, claims=claims)
    name = ("PersistentVolumeClaim", "ledgers-blue-bookie-1")
    assert [found for found, _ in in_doubt(children, NOW)] == [name]
    words = "resize volume failed: rpc error: the pool is full"
    warned = LatestWarning(reason="VolumeResizeFailed", message=words, told_seconds=NOW)
    plan = plan_pool(replace(seen, children=with_warnings(children, {name: [warned]}, NOW)))
    said = {one["type"]: one for one in plan.status["conditions"]}
    assert (said["Stalled"]["status"], said["Stalled"]["reason"]) == ("True", "VolumeNotExpandable")
    assert words in said["Stalled"]["message"]


def test_a_job_without_pods_says_why() -> None:
    cluster = make_cluster()
    job = metadata_job(cluster)
    name = ("Job", job["metadata"]["name"])
    made = job | {"metadata": job["metadata"] | {"uid": "job-uid"}, "status": {"startTime": "2025-10-09T08:00:00Z"}}
    before = healthy()
    seen = replace(before, status=PulsarClusterStatus(), cluster=cluster)
    children = replace(seen.children, objects={**seen.children.objects, name: made})
    assert (name, "job-uid") in in_doubt(children, NOW)
    warned = LatestWarning(reason="FailedCreate", message=REFUSED_PODS, told_seconds=NOW)
    plan = plan_cluster(replace(seen, children=with_warnings(children, {name: [warned]}, NOW)))
    said = {one["type"]: one for one in plan.status["conditions"]}
    assert said["MetadataReady"]["reason"] == "MetadataInitFailed"
    assert 'serviceaccount "mine" not found' in said["Stalled"]["message"]


def test_a_pod_that_does_not_go_keeps_a_cluster_from_going() -> None:
    seen = healthy(deletionPolicy="Delete")
    resource = replace(seen.resource, deleting=True, finalizers=(FINALIZER,))
    pods = [replace(pod, deleting=True, stops_by_seconds=NOW - 500) for pod in seen.children.pods]
    plan = plan_cluster(replace(seen, resource=resource, children=replace(seen.children, pods=pods)))
    said = {one["type"]: one for one in plan.status["conditions"]}
    assert said["Stalled"]["status"] == "True"
    assert "its node node does not say that it has stopped" in said["Stalled"]["message"]


def test_brokers_that_are_ready_and_do_not_answer_are_named() -> None:
    seen = healthy()
    brokers = {name: facts for name, facts in seen.brokers.items() if not name.endswith("a")}
    plan = plan_cluster(replace(seen, brokers=brokers))
    said = {one["type"]: one for one in plan.status["conditions"]}
    assert said["BrokersReady"]["status"] == "True"
    assert "no answer at the control port of blue-broker-a" in said["BrokersReady"]["message"]
