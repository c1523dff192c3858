"""What the API server refuses, and specs that cannot be read: the status says so, and all the rest is looked after."""

from __future__ import annotations

import json
from typing import Any

import pytest
from magnetar.control.errors import ControlRefused, RefusalReason
from magnetar.core.errors import SettingError
from magnetar.operator.children.naming import READABLE_ANNOTATION
from magnetar.operator.failures import OUTAGE_PASSES, REFUSALS_OF_PODS, failure_of
from magnetar.operator.kubernetes.errors import Conflict, NamespaceTerminating, Refused, ServerUnavailable
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.actions import Apply, Create, EmitEvent, StartBookieDrain
from magnetar.operator.plan.advice import what_to_correct
from magnetar.operator.plan.conditions import Obstacle
from magnetar.operator.reconcile import Key
from operator_fakes.stage import BLUE, COLD, ReconcilerStage, small_stage

MISSPELT = (
    "apply Deployment: failed to create typed patch object (here/blue-broker; apps/v1, Kind=Deployment): "
    ".spec.template.spec.affinity.nodeAffinityy: field not declared in schema (500)"
)


@pytest.fixture
def stage() -> ReconcilerStage:
    return small_stage()


def condition(stage: ReconcilerStage, type_: str, key: Key = BLUE) -> dict[str, Any]:
    found = stage.api.objects[key.kind, "here", key.name]["status"]["conditions"]
    return next(one for one in found if one["type"] == type_)


def generations(stage: ReconcilerStage, key: Key = BLUE) -> tuple[int, int, int]:
    """Of the resource, of its status, of its condition Stalled."""
    found = stage.api.objects[key.kind, "here", key.name]
    status = found["status"]
    return (
        found["metadata"]["generation"],
        status["observedGeneration"],
        condition(stage, "Stalled", key)["observedGeneration"],
    )


def child(kind: str, name: str, component: str) -> Manifest:
    labels = {"app.kubernetes.io/component": component}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "here", "labels": labels}}


def make_groups(stage: ReconcilerStage, *groups: list[Any]) -> None:
    stage.groups = [*groups]


async def test_a_refused_component_leaves_the_others_looked_after(stage: ReconcilerStage) -> None:
    broker = [Apply(child("Deployment", "blue-broker", "broker")), EmitEvent("Normal", "ScaledOut", "never told")]
    proxy = [Apply(child("Service", "blue-proxy", "proxy")), EmitEvent("Normal", "Told", "it is there")]
    make_groups(stage, broker, proxy)
    stage.api.failures["apply", "Deployment"] = [Refused(MISSPELT)]
    with pytest.raises(Refused, match="nodeAffinityy"):
        await stage.reconciler.reconcile(BLUE)
    assert ("Service", "here", "blue-proxy") in stage.api.objects
    assert [event.reason for event in stage.told.events] == ["Told", "Refused"]
    for type_, status in (("Ready", "False"), ("Stalled", "True")):
        found = condition(stage, type_)
        assert (found["status"], found["reason"]) == (status, "Refused")
        for words in ("blue-broker", ".affinity.nodeAffinityy", "Correct spec.broker.pod.affinity"):
            assert words in found["message"]
    stage.api.failures.clear()
    stage.status = {"conditions": []}
    assert await stage.reconciler.reconcile(BLUE) == 60
    assert stage.api.objects["PulsarCluster", "here", "blue"]["status"] == {"conditions": []}


async def test_all_that_is_refused_is_said(stage: ReconcilerStage) -> None:
    make_groups(
        stage,
        [Apply(child("Deployment", "blue-broker", "broker"))],
        [Apply(child("Service", "blue-proxy", "proxy"))],
    )
    stage.api.failures["apply", "Deployment"] = [Refused("exceeded quota: pods")]
    stage.api.failures["apply", "Service"] = [Refused("it is forbidden")]
    with pytest.raises(Refused):
        await stage.reconciler.reconcile(BLUE)
    message = condition(stage, "Stalled")["message"]
    assert "exceeded quota: pods" in message
    assert "it is forbidden" in message


async def test_nothing_is_tried_without_what_all_needs(stage: ReconcilerStage) -> None:
    stage.first = [Apply(child("NetworkPolicy", "blue", ""))]
    make_groups(stage, [Apply(child("Deployment", "blue-broker", "broker"))])
    stage.api.failures["apply", "NetworkPolicy"] = [Refused("forbidden")]
    with pytest.raises(Refused):
        await stage.reconciler.reconcile(BLUE)
    assert ("Deployment", "here", "blue-broker") not in stage.api.objects


async def test_a_stateful_set_that_is_refused_when_it_is_made_is_named(stage: ReconcilerStage) -> None:
    stage.put_pool()
    make_groups(stage, [Create(child("StatefulSet", "cold-bookie", "bookie"))])
    words = 'create StatefulSet: strict decoding error: unknown field "spec.template.spec.affinity.nodeAffinityy" (400)'
    stage.api.failures["create", "StatefulSet"] = [Refused(words)]
    with pytest.raises(Refused):
        await stage.reconciler.reconcile(COLD)
    message = condition(stage, "Stalled", COLD)["message"]
    assert "cold-bookie: create StatefulSet" in message
    assert "Correct spec.pod.affinity of the Bookie" in message


async def test_what_the_plan_says_besides_a_refusal_is_kept(stage: ReconcilerStage) -> None:
    usual = {"lastTransitionTime": "2025-10-09T08:00:00Z", "observedGeneration": 1}
    stalled = {"type": "Stalled", "status": "True", "reason": "WrongVolume", "message": "cold-bookie-2 is another's"}
    stage.status = {"phase": "Stalled", "conditions": [stalled | usual]}
    make_groups(stage, [Apply(child("Service", "s", "broker"))])
    stage.api.failures["apply", "Service"] = [Refused("forbidden")]
    with pytest.raises(Refused):
        await stage.reconciler.reconcile(BLUE)
    assert condition(stage, "Stalled")["message"].endswith("| cold-bookie-2 is another's")


async def test_what_lasts_is_told_once(stage: ReconcilerStage) -> None:
    for words in ("exceeded quota: pods", "exceeded quota: pods", "exceeded quota: memory"):
        stage.actions = [Apply(child("Deployment", "blue-broker", "broker"))]
        stage.api.failures["apply", "Deployment"] = [Refused(words)]
        with pytest.raises(Refused):
            await stage.reconciler.reconcile(BLUE)
    assert [event.message for event in stage.told.events] == [
        "blue-broker: exceeded quota: pods",
        "blue-broker: exceeded quota: memory",
    ]


async def test_the_order_of_conditions_is_no_difference(stage: ReconcilerStage) -> None:
    """The API server keeps it: a status that began with a refusal would be written in each pass for ever."""
    usual = {"reason": "R", "message": "", "lastTransitionTime": "2025-10-09T08:00:00Z", "observedGeneration": 1}
    found = [{"type": type_, "status": "True", **usual} for type_ in ("Ready", "Stalled")]
    stage.put("PulsarCluster", "blue", spec={}, status={"conditions": found})
    stage.status = {"conditions": found[::-1]}
    await stage.reconciler.reconcile(BLUE)
    assert stage.did("apply_status") == []


async def test_a_namespace_that_ends_needs_nobody(stage: ReconcilerStage) -> None:
    make_groups(stage, [Apply(child("Service", "s", "broker"))])
    stage.api.failures["apply", "Service"] = [NamespaceTerminating("because it is being terminated")]
    with pytest.raises(NamespaceTerminating):
        await stage.reconciler.reconcile(BLUE)
    stalled = condition(stage, "Stalled")
    assert stalled["status"] == "False"
    assert "being deleted" in stalled["message"]
    assert condition(stage, "Reconciling")["status"] == "True"


async def test_what_ends_by_itself_does_not_take_back_what_needs_a_person(stage: ReconcilerStage) -> None:
    usual = {"lastTransitionTime": "2025-10-09T08:00:00Z", "observedGeneration": 1}
    stalled = {"type": "Stalled", "status": "True", "reason": "WrongVolume", "message": "cold-bookie-2 is another's"}
    stage.status = {"phase": "Stalled", "conditions": [stalled | usual]}
    make_groups(stage, [Apply(child("Service", "s", "broker"))])
    stage.api.failures["apply", "Service"] = [NamespaceTerminating("because it is being terminated")]
    with pytest.raises(NamespaceTerminating):
        await stage.reconciler.reconcile(BLUE)
    assert condition(stage, "Stalled")["status"] == "True"
    assert "cold-bookie-2 is another's" in condition(stage, "Stalled")["message"]


async def test_an_outage_that_lasts_stands_in_the_status_and_one_that_ends_does_not(stage: ReconcilerStage) -> None:
    """A webhook that is away fails each write of one kind, while the status of the last good pass says Ready."""
    make_groups(stage, [Apply(child("Deployment", "blue-broker", "broker"))])
    for number in range(OUTAGE_PASSES):
        assert not stage.did("apply_status"), f"after {number} failures"
        stage.api.failures["apply", "Deployment"] = [ServerUnavailable('failed calling webhook "w" (500)')]
        with pytest.raises(ServerUnavailable):
            await stage.reconciler.reconcile(BLUE)
    assert (condition(stage, "Ready")["status"], condition(stage, "Reconciling")["status"]) == ("False", "True")
    stalled = condition(stage, "Stalled")
    assert stalled["status"] == "False"
    assert 'failed calling webhook "w"' in stalled["message"]
    stage.status = {"phase": "Fine"}
    await stage.reconciler.reconcile(BLUE)
    assert stage.api.objects["PulsarCluster", "here", "blue"]["status"] == {"phase": "Fine"}


async def test_a_pod_that_says_no_for_long_needs_a_person(stage: ReconcilerStage) -> None:
    stage.put_pool()
    stage.put_pod("cold-bookie-0", "bookie", "10.0.0.1", "cold")
    stage.actions = [StartBookieDrain("cold-bookie-0")]
    for number in range(REFUSALS_OF_PODS):
        assert "conditions" not in stage.api.objects["Bookie", "here", "cold"].get("status", {}), f"after {number}"
        stage.controls.refusals = [ControlRefused(RefusalReason.FAILED_PRECONDITION, "it is decommissioned")]
        with pytest.raises(ControlRefused):
            await stage.reconciler.reconcile(COLD)
    found = condition(stage, "Stalled", COLD)
    assert (found["status"], found["reason"]) == ("True", "PodRefused")
    assert "it is decommissioned" in found["message"]


async def test_failures_of_different_kinds_do_not_add_up(stage: ReconcilerStage) -> None:
    stage.actions = [Apply(child("Deployment", "blue-broker", "broker"))]
    for _ in range(OUTAGE_PASSES):
        stage.api.failures["apply", "Deployment"] = [ServerUnavailable("etcdserver: leader changed")]
        with pytest.raises(ServerUnavailable):
            await stage.reconciler.reconcile(BLUE)
        stage.api.failures["apply", "Deployment"] = [Conflict("changed")]
        assert await stage.reconciler.reconcile(BLUE) == 1
    assert not stage.did("apply_status")


async def test_a_mistake_of_the_operator_stands_in_the_status(
    stage: ReconcilerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.status = {"phase": "Ready"}
    await stage.reconciler.reconcile(BLUE)

    async def fail(*_: object) -> None:
        raise KeyError("storage")

    monkeypatch.setattr(stage.api, "knows", fail)
    with pytest.raises(KeyError):
        await stage.reconciler.reconcile(BLUE)
    assert condition(stage, "Ready")["status"] == "False"
    assert condition(stage, "Stalled")["reason"] == "PassFailed"


# --- specs that cannot be read


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"broker": {"settings": {"maxTopics": [1, 2]}}}, "spec.broker.settings.maxTopics is a list"),
        ({"broker": {"settings": {"a\nb": "c"}}}, r"spec.broker.settings has 'a\nb': no setting has such a name"),
        ({"settings": {"": 1}}, "spec.settings has '': no setting has such a name"),
        ({"settings": {"# a": 1}}, "spec.settings has '# a': no setting has such a name"),
        ({"balance": "often"}, "spec.balance: Expected `object`, got `str`"),
        ({"bookkeeper": {"drainBytesPerSecondMax": "9" * 30}}, "is more than the 9223372036854775807 bytes"),
        ({"bookkeeper": {"drainBytesPerSecondMax": "9" * 5_000}}, "is not a quantity"),
        ({"settings": {"a": {"b": 1}}}, "spec.settings.a is an object"),
        ({"metadata": {"zookeeper": {"settings": {"a": None}}}}, "spec.metadata.zookeeper.settings.a is null"),
        ({"broker": {"replicas": "many"}}, "spec.broker.replicas: Expected `int | null`, got `str`"),
        ({"bookkeeper": {"storage": {"ledgers": {"size": -5}}}}, "spec.bookkeeper.storage.ledgers.size: -5 is not"),
    ],
)
async def test_a_spec_that_cannot_be_read_is_told_with_its_path(
    stage: ReconcilerStage, spec: dict[str, Any], words: str
) -> None:
    stage.status = {"phase": "Ready", "observedGeneration": 1, "conditions": []}
    await stage.reconciler.reconcile(BLUE)
    stage.put_cluster(**spec)
    await stage.reconciler.reconcile(BLUE)
    for type_, status in (("Ready", "False"), ("Stalled", "True")):
        found = condition(stage, type_)
        assert (found["status"], found["reason"]) == (status, "InvalidSpec")
        assert words in found["message"]
    assert generations(stage) == (2, 2, 2)
    assert [event.reason for event in stage.told.events] == ["InvalidSpec"]


async def test_meanwhile_all_is_looked_after_by_the_last_spec(stage: ReconcilerStage) -> None:
    stage.put_cluster(broker={"replicas": 3})
    await stage.reconciler.reconcile(BLUE)
    stage.put_cluster(broker={"replicas": 7, "settings": {"maxTopics": []}})
    make_groups(stage, [Apply(child("Service", "blue-proxy", "proxy"))])
    assert await stage.reconciler.reconcile(BLUE) == 60
    assert stage.clusters[-1].cluster.spec.broker.replicas == 3
    assert ("Service", "here", "blue-proxy") in stage.api.objects
    stage.put_cluster(broker={"replicas": 7})
    stage.status = {"phase": "Ready"}
    await stage.reconciler.reconcile(BLUE)
    assert stage.clusters[-1].cluster.spec.broker.replicas == 7
    assert stage.api.objects["PulsarCluster", "here", "blue"]["status"] == {"phase": "Ready"}


async def test_a_process_that_has_seen_no_good_spec_says_so_and_touches_nothing(stage: ReconcilerStage) -> None:
    stage.put_cluster(broker={"settings": {"maxTopics": []}})
    make_groups(stage, [Apply(child("Service", "blue-proxy", "proxy"))])
    with pytest.raises(SettingError):
        await stage.reconciler.reconcile(BLUE)
    assert condition(stage, "Stalled")["reason"] == "InvalidSpec"
    assert generations(stage) == (2, 2, 2)
    assert stage.did("apply") == []


def mistype(stage: ReconcilerStage, kind: str, name: str, **spec: Any) -> None:
    """A person makes a spec unreadable; the rest of the resource stays."""
    manifest = stage.api.objects[kind, "here", name]
    stage.api.put({**manifest, "spec": {**manifest["spec"], **spec, "settings": {"maxTopics": []}}})


async def test_another_process_goes_on_with_the_last_good_spec(stage: ReconcilerStage) -> None:
    stage.put_cluster(broker={"replicas": 5})
    stage.put_pool(spec={"replicas": 4})
    for key in (BLUE, COLD):
        await stage.reconciler.reconcile(key)
    mistype(stage, "PulsarCluster", "blue", broker={"replicas": 6})
    mistype(stage, "Bookie", "cold", replicas=7)
    stage.restart()
    make_groups(stage, [Apply(child("Service", "blue-proxy", "proxy"))])
    for key in (BLUE, COLD):
        await stage.reconciler.reconcile(key)
        assert condition(stage, "Stalled", key)["reason"] == "InvalidSpec"
    assert stage.clusters[-1].cluster.spec.broker.replicas == 5
    assert stage.pools[-1].spec.replicas == 4
    assert stage.did("apply")


async def test_a_spec_is_kept_before_anything_is_done_by_it(stage: ReconcilerStage) -> None:
    """Else a process that was killed in between would have the next one go back: to fewer bookies, for example."""
    for replicas in (3, 5):
        manifest = stage.put_cluster(broker={"replicas": replicas})
    stage.api.failures["apply", "Service"] = [ServerUnavailable("gone")]
    make_groups(stage, [Apply(child("Service", "blue-proxy", "proxy"))])
    with pytest.raises(ServerUnavailable):
        await stage.reconciler.reconcile(BLUE)
    kept = stage.api.objects["PulsarCluster", "here", "blue"]["metadata"]["annotations"][READABLE_ANNOTATION]
    assert json.loads(kept) == manifest["spec"]


async def test_a_spec_that_did_not_change_is_not_written_again(stage: ReconcilerStage) -> None:
    for _ in range(3):
        await stage.reconciler.reconcile(BLUE)
    assert stage.did("patch") == [("PulsarCluster", "blue")]


async def test_a_spec_that_is_too_large_is_not_kept_nor_is_an_older_one(stage: ReconcilerStage) -> None:
    await stage.reconciler.reconcile(BLUE)
    stage.api.put({**stage.api.objects["PulsarCluster", "here", "blue"], "spec": {"settings": {"a": "b" * 70_000}}})
    await stage.reconciler.reconcile(BLUE)
    mistype(stage, "PulsarCluster", "blue")
    stage.restart()
    with pytest.raises(SettingError):
        await stage.reconciler.reconcile(BLUE)


@pytest.mark.parametrize("kept", ["", "nothing", "[1]", '{"settings": {"a": []}}', "[" * 100_000])
async def test_what_is_no_spec_is_not_gone_by(stage: ReconcilerStage, kept: str) -> None:
    metadata = {"annotations": {READABLE_ANNOTATION: kept}}
    stage.put("PulsarCluster", "blue", spec={"settings": {"maxTopics": []}}, metadata=metadata)
    with pytest.raises(SettingError):
        await stage.reconciler.reconcile(BLUE)
    assert condition(stage, "Stalled")["reason"] == "InvalidSpec"


async def test_a_resource_that_may_not_be_annotated_is_looked_after(stage: ReconcilerStage) -> None:
    stage.api.failures["patch", "PulsarCluster"] = [Refused("a policy says no")]
    await stage.reconciler.reconcile(BLUE)
    assert stage.api.objects["PulsarCluster", "here", "blue"]["status"] == {"phase": "Fine"}


async def test_paused_is_heard_in_a_spec_that_cannot_be_read(stage: ReconcilerStage) -> None:
    await stage.reconciler.reconcile(BLUE)
    stage.put_cluster(broker={"settings": {"maxTopics": []}}, paused=True)
    make_groups(stage, [Apply(child("Service", "blue-proxy", "proxy"))])
    await stage.reconciler.reconcile(BLUE)
    assert stage.did("apply") == []


async def test_a_pool_is_looked_after_while_its_clusters_spec_cannot_be_read(stage: ReconcilerStage) -> None:
    stage.put_pool()
    await stage.reconciler.reconcile(COLD)
    stage.put_cluster(settings={"a": []})
    await stage.reconciler.reconcile(COLD)
    assert stage.pools[-1].cluster is not None
    assert stage.api.objects["Bookie", "here", "cold"]["status"] == {"phase": "Fine"}


async def test_a_pool_that_cannot_be_read_leaves_its_cluster_looked_after(stage: ReconcilerStage) -> None:
    stage.put_pool(spec={"settings": {"a": []}}, status={"replicas": 4})
    assert await stage.reconciler.reconcile(BLUE) == 60
    assert [pool.replicas for pool in stage.clusters[-1].pools] == [4]
    with pytest.raises(SettingError):
        await stage.reconciler.reconcile(COLD)
    assert "spec.settings.a is a list" in condition(stage, "Stalled", COLD)["message"]


async def test_a_cluster_that_goes_need_not_be_readable(stage: ReconcilerStage) -> None:
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["other"]}
    spec = {"deletionPolicy": "Delete", "settings": {"a": []}}
    stage.put("PulsarCluster", "blue", spec=spec, metadata=going)
    await stage.reconciler.reconcile(BLUE)
    assert stage.clusters[-1].cluster.spec.deletion_policy == "Delete"


async def test_another_resource_of_the_same_name_does_not_inherit_a_spec(stage: ReconcilerStage) -> None:
    await stage.reconciler.reconcile(BLUE)
    del stage.api.objects["PulsarCluster", "here", "blue"]
    stage.put_cluster(settings={"a": []})
    with pytest.raises(SettingError):
        await stage.reconciler.reconcile(BLUE)


@pytest.mark.parametrize(
    ("component", "owner", "words", "expected"),
    [
        ("proxy", "PulsarCluster", ".spec.template.spec.tolerations[0].efect: not there", "spec.proxy.pod.tolerations"),
        ("zookeeper", "PulsarCluster", 'spec.template.spec.containers[0].env[3].x"', "spec.metadata.zookeeper.pod.env"),
        ("init", "PulsarCluster", ".spec.template.spec.affinity.x", "spec.broker.pod.affinity"),
        ("broker", "PulsarCluster", "spec.template.spec.containers[1].image: Required", "spec.broker.image"),
        ("broker", "PulsarCluster", 'spec.template.spec.containers[name="x"].foo', "spec.broker.pod.sidecars"),
        ("bookie", "Bookie", "spec.template.spec.volumes[4].name: Duplicate", "spec.pod.volumes of the Bookie"),
    ],
)
def test_the_field_at_fault(component: str, owner: str, words: str, expected: str) -> None:
    assert expected in what_to_correct(owner, child("Deployment", "x", component), words)


def test_a_quota_is_no_fields_fault() -> None:
    assert what_to_correct("PulsarCluster", child("Deployment", "x", "broker"), "exceeded quota: pods=4") == ""


def test_an_internal_error_is_told_as_one() -> None:
    told = failure_of(KeyError("spec"), 1)
    words = "internal error of the operator: KeyError: 'spec'. Its log has the traceback"
    assert told.event == EmitEvent("Warning", "PassFailed", words)
    assert told.obstacle == Obstacle(reason="PassFailed", message=words)
