"""Passes with plans that a test makes up: what is looked at, what is carried out, what is told."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from magnetar.control.errors import ControlRefused, ControlUnavailable, RefusalReason
from magnetar.core.errors import SettingError
from magnetar.operator.children.naming import FINALIZER
from magnetar.operator.kubernetes.errors import Conflict, Refused, ServerUnavailable
from magnetar.operator.plan.actions import (
    Annotate,
    Apply,
    CancelBookieDrain,
    CancelBrokerDrain,
    Delete,
    EmitEvent,
    GrowVolume,
    MakeControlToken,
    RetireLostBookie,
    Scale,
    SetBalanceDriver,
    SetFinalizer,
    StartBookieDrain,
    StartBrokerDrain,
)
from magnetar.operator.plan.conditions import timestamp
from magnetar.operator.plan.facts import (
    BookieFacts,
    BrokerFacts,
    EnsembleFacts,
    LostBookieFacts,
    ReadOnlyBrokerFacts,
    ZookeeperFacts,
)
from magnetar.operator.plan.pool.questions import Questions
from magnetar.operator.reconcile import LOOK_AGAIN_SECONDS, Key
from magnetar.operator.resources.cluster import BundleMove
from operator_fakes.stage import BLUE, COLD, MOVE, SPLIT, ReconcilerStage, small_stage

GI = 2**30


@pytest.fixture
def stage() -> ReconcilerStage:
    return small_stage()


async def test_a_resource_that_is_gone(stage: ReconcilerStage) -> None:
    assert await stage.reconciler.reconcile(Key("PulsarCluster", "here", "green")) is None
    assert stage.told.forgotten == ["green"]


async def test_a_cluster_is_seen_with_all_its_children(stage: ReconcilerStage) -> None:
    stage.put("ConfigMap", "blue-broker-abc", "broker")
    stage.put("ConfigMap", "cold-bookie-abc", "bookie", "cold")
    stage.put("ConfigMap", "other", metadata={"labels": {}})
    stage.put("Deployment", "blue-broker", "broker", spec={"replicas": 2})
    stage.put("PodMonitor", "blue", "monitoring")
    stage.put_pod("blue-zookeeper-0", "zookeeper", "10.0.0.1")
    stage.put_pod("cold-bookie-0", "bookie", "10.0.0.2", "cold")
    stage.put("PersistentVolumeClaim", "data-blue-zookeeper-0", "zookeeper")
    stage.put("PersistentVolumeClaim", "ledgers-cold-bookie-0", "bookie", "cold")
    stage.put_pool(spec={"replicas": 5}, status={"writableReplicas": 4})
    stage.put("Bookie", "strange", spec={"clusterName": "green"})
    stage.controls.servers["10.0.0.1:2181"] = ZookeeperFacts(mode="standalone")
    assert await stage.reconciler.reconcile(BLUE) == 60
    (seen,) = stage.clusters
    assert set(seen.children.objects) == {
        ("ConfigMap", "blue-broker-abc"),
        ("Secret", "blue-control"),
        ("Bookie", "cold"),
    }
    assert list(seen.children.workloads) == [("Deployment", "blue-broker")]
    assert [pod.name for pod in seen.children.pods] == ["blue-zookeeper-0"]
    assert [claim.name for claim in seen.children.claims] == ["data-blue-zookeeper-0", "ledgers-cold-bookie-0"]
    assert [(pool.name, pool.replicas, pool.status.writable_replicas) for pool in seen.pools] == [("cold", 5, 4)]
    assert seen.zookeeper == {"blue-zookeeper-0": ZookeeperFacts(mode="standalone")}
    assert (seen.pod_monitors_known, seen.driver, seen.brokers) == (False, "", {})
    stage.api.known.add("PodMonitor")
    await stage.reconciler.reconcile(BLUE)
    assert ("PodMonitor", "blue") in stage.clusters[-1].children.objects


async def test_brokers_are_asked_and_their_leader_for_more(stage: ReconcilerStage) -> None:
    for number, name in enumerate("abc", start=1):
        stage.put_pod(f"blue-broker-{name}", "broker", f"10.0.0.{number}")
    stage.controls.brokers = {
        "10.0.0.1:3183": BrokerFacts(broker_id="broker-a", registered=True),
        "10.0.0.2:3183": BrokerFacts(broker_id="broker-b", registered=True, leading=True),
    }
    stage.controls.latest = [BundleMove(time="2026-01-01T00:00:00Z", kind="split", bundle="b")]
    await stage.reconciler.reconcile(BLUE)
    (seen,) = stage.clusters
    assert sorted(seen.brokers) == ["blue-broker-a", "blue-broker-b"]
    assert (seen.driver, seen.moves, seen.load) == ("leader", stage.controls.latest, None)
    assert stage.controls.calls == [("driver", "10.0.0.2:3183"), ("moves", "10.0.0.2:3183")]


async def test_read_only_brokers_are_asked_at_their_web_ports(stage: ReconcilerStage) -> None:
    stage.put_pod("blue-read-only-broker-a", "read-only-broker", "10.0.0.1")
    stage.put_pod("blue-read-only-broker-b", "read-only-broker", "10.0.0.2")
    stage.controls.read_only = {"10.0.0.2:8080": ReadOnlyBrokerFacts(connections=7)}
    await stage.reconciler.reconcile(BLUE)
    [seen] = stage.clusters
    assert seen.read_only_brokers == {"blue-read-only-broker-b": ReadOnlyBrokerFacts(connections=7)}
    assert seen.brokers == {}


async def test_a_pool_is_seen_with_its_cluster(stage: ReconcilerStage) -> None:
    stage.put_pool(status={"phase": "Fine"})
    stage.put_pool("hot", status={"writableReplicas": 3})
    stage.put_pod("cold-bookie-0", "bookie", "10.0.0.1", "cold")
    stage.put_pod("cold-bookie-1", "bookie", "10.0.0.2", "cold")
    stage.put_pod("hot-bookie-0", "bookie", "10.0.0.3", "hot")
    stage.put("StatefulSet", "cold-bookie", "bookie", "cold", spec={})
    facts = BookieFacts(bookie_id="b0", writable=True)
    stage.controls.bookies = {"10.0.0.1:3182": facts}
    assert await stage.reconciler.reconcile(COLD) == 30
    (seen,) = stage.pools
    assert seen.cluster is not None
    assert seen.cluster.owner.uid == stage.api.objects["PulsarCluster", "here", "blue"]["metadata"]["uid"]
    assert [pod.name for pod in seen.children.pods] == ["cold-bookie-0", "cold-bookie-1"]
    assert (seen.bookies, seen.writable_elsewhere) == ({"cold-bookie-0": facts}, 3)
    assert (seen.lost, seen.under_replicated_ledgers) == ({}, None)
    assert stage.controls.calls == []


async def test_a_pool_without_its_cluster(stage: ReconcilerStage) -> None:
    stage.api.objects.clear()
    stage.put_pool()
    await stage.reconciler.reconcile(COLD)
    assert stage.pools[0].cluster is None


async def test_questions_go_to_the_first_bookie_that_answers(stage: ReconcilerStage) -> None:
    stage.put_pool()
    for number in range(3):
        stage.put_pod(f"cold-bookie-{number}", "bookie", f"10.0.0.{number}", "cold")
    stage.controls.bookies = {f"10.0.0.{number}:3182": BookieFacts(bookie_id="b", writable=True) for number in (1, 2)}
    lost = LostBookieFacts(bookie_id="gone:3181", registered=False, has_cookie=True, ledgers_left=3)
    stage.controls.lost = {"gone:3181": lost}
    stage.controls.under_replicated = 5
    stage.questions = Questions(
        count_under_replicated=True, lost=(("cold-bookie-0", "gone:3181"), ("cold-bookie-9", "unknown:3181"))
    )
    await stage.reconciler.reconcile(COLD)
    (seen,) = stage.pools
    assert (seen.lost, seen.under_replicated_ledgers) == ({"cold-bookie-0": lost}, 5)
    assert sorted(stage.controls.calls) == [
        ("lost_bookie", "10.0.0.1:3182", "gone:3181"),
        ("lost_bookie", "10.0.0.1:3182", "unknown:3181"),
        ("lost_bookie", "10.0.0.2:3182", "unknown:3181"),
        ("under_replicated_ledgers", "10.0.0.1:3182"),
    ]


async def test_questions_go_to_other_pools_if_none_of_its_own_answers(stage: ReconcilerStage) -> None:
    stage.put_pool()
    stage.put_pool("hot")
    stage.put_pod("hot-bookie-0", "bookie", "10.0.0.3", "hot")
    stage.questions = Questions(count_under_replicated=True, lost=())
    await stage.reconciler.reconcile(COLD)
    assert stage.pools[0].under_replicated_ledgers == 0
    assert stage.controls.calls == [("under_replicated_ledgers", "10.0.0.3:3182")]


async def test_all_brokers_are_asked_for_the_largest_ensemble(stage: ReconcilerStage) -> None:
    stage.put_pool()
    for number in range(3):
        stage.put_pod(f"blue-broker-{number}", "broker", f"10.0.1.{number}")
    largest = EnsembleFacts(size=4, wanted_by="topic persistent://a/b/t")
    stage.controls.ensembles = {"10.0.1.1:3183": EnsembleFacts(size=3, wanted_by="x"), "10.0.1.2:3183": largest}
    await stage.reconciler.reconcile(COLD)
    stage.questions = Questions(count_under_replicated=False, lost=(), largest_ensemble=True)
    await stage.reconciler.reconcile(COLD)
    assert [seen.largest_ensemble for seen in stage.pools] == [None, largest]


@pytest.mark.parametrize(("expands", "refused", "expected"), [(True, 0, True), (False, 0, False), (False, 1, True)])
async def test_classes_are_asked_only_where_volumes_are_to_grow(
    stage: ReconcilerStage, expands: bool, refused: int, expected: bool
) -> None:
    def put_claim(requested: str) -> None:
        spec = {"storageClassName": "fast", "resources": {"requests": {"storage": requested}}}
        stage.put("PersistentVolumeClaim", "ledgers-cold-bookie-0", "bookie", "cold", spec=spec)

    stage.api.put(
        {"apiVersion": "v1", "kind": "StorageClass", "metadata": {"name": "fast"}, "allowVolumeExpansion": expands}
    )
    stage.put_pool(spec={"storage": {"ledgers": {"size": "20Gi"}}})
    put_claim("20Gi")
    await stage.reconciler.reconcile(COLD)
    assert ("StorageClass", "fast") not in stage.did("get")
    put_claim("10Gi")
    stage.api.failures["get", "StorageClass"] = [Refused("no rights")] * refused
    await stage.reconciler.reconcile(COLD)
    assert stage.pools[-1].children.claims[0].expandable == expected


async def test_objects_are_applied_once_as_long_as_nobody_touches_them(stage: ReconcilerStage) -> None:
    wanted = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s", "namespace": "here", "labels": {"app.kubernetes.io/name": "magnetar"}},
        "spec": {"a": 1},
    }
    wanted["metadata"]["labels"]["app.kubernetes.io/instance"] = "blue"  # type: ignore[index]  # It is a dict.
    stage.actions = [Apply(wanted)]
    for _ in range(3):
        await stage.reconciler.reconcile(BLUE)
    assert stage.did("apply") == [("Service", "s")]
    stage.api.put({**wanted, "spec": {"a": 2}})
    for _ in range(2):
        await stage.reconciler.reconcile(BLUE)
    assert len(stage.did("apply")) == 2
    stage.actions = [Apply({**wanted, "spec": {"a": 3}})]
    await stage.reconciler.reconcile(BLUE)
    assert len(stage.did("apply")) == 3
    del stage.api.objects["Service", "here", "s"]
    await stage.reconciler.reconcile(BLUE)
    assert len(stage.did("apply")) == 4


async def test_actions_on_objects(stage: ReconcilerStage) -> None:
    deployment = stage.put("Deployment", "blue-broker", "broker", spec={"replicas": 2})["metadata"]["uid"]
    claim = stage.put("PersistentVolumeClaim", "c", spec={})["metadata"]["uid"]
    pod = stage.put("Pod", "p", metadata={"annotations": {"old": "x"}})["metadata"]["uid"]
    job = stage.put("Job", "j")["metadata"]["uid"]
    del stage.api.objects["Secret", "here", "blue-control"]
    stage.actions = [
        MakeControlToken(),
        Scale("Deployment", "blue-broker", deployment, 4),
        GrowVolume("c", claim, 20 * GI),
        Annotate("Pod", "p", pod, (("new", "1"), ("old", None))),
        Delete("Job", "j", job),
    ]
    await stage.reconciler.reconcile(BLUE)
    objects = stage.api.objects
    assert base64.b64decode(objects["Secret", "here", "blue-control"]["data"]["token"]) == b"chance"
    assert objects["Deployment", "here", "blue-broker"]["spec"]["replicas"] == 4
    assert objects["PersistentVolumeClaim", "here", "c"]["spec"]["resources"]["requests"]["storage"] == "20Gi"
    assert objects["Pod", "here", "p"]["metadata"]["annotations"] == {"new": "1"}
    assert ("Job", "here", "j") not in objects
    stage.actions = [MakeControlToken()]
    assert await stage.reconciler.reconcile(BLUE) == 60, "a token that is there is left as it is"


async def test_finalizers_of_others_stay(stage: ReconcilerStage) -> None:
    def finalizers() -> list[str]:
        found: list[str] = stage.api.objects["Bookie", "here", "cold"]["metadata"].get("finalizers", [])
        return found

    stage.put_pool(metadata={"finalizers": ["foreign"]})
    stage.actions = [SetFinalizer(present=True)]
    await stage.reconciler.reconcile(COLD)
    assert finalizers() == ["foreign", FINALIZER]
    stage.actions = [SetFinalizer(present=False)]
    await stage.reconciler.reconcile(COLD)
    assert finalizers() == ["foreign"]


async def test_actions_on_pods(stage: ReconcilerStage) -> None:
    stage.put_pool()
    for number in range(2):
        stage.put_pod(f"cold-bookie-{number}", "bookie", f"10.0.0.{number}", "cold")
    stage.controls.bookies["10.0.0.1:3182"] = BookieFacts(bookie_id="b1", writable=True)
    stage.controls.lost["gone"] = LostBookieFacts(bookie_id="gone", registered=False, has_cookie=False, ledgers_left=0)
    stage.actions = [StartBookieDrain("cold-bookie-0"), CancelBookieDrain("cold-bookie-1"), RetireLostBookie("gone")]
    await stage.reconciler.reconcile(COLD)
    assert stage.controls.calls == [
        ("start_bookie_drain", "10.0.0.0:3182", "secret"),
        ("cancel_bookie_drain", "10.0.0.1:3182", "secret"),
        ("retire_lost_bookie", "10.0.0.1:3182", "gone"),
    ]
    stage.controls.calls.clear()
    stage.put_pod("blue-broker-a", "broker", "10.0.1.1")
    stage.controls.brokers["10.0.1.1:3183"] = BrokerFacts(broker_id="broker-a", registered=True)
    stage.actions = [StartBrokerDrain("blue-broker-a"), CancelBrokerDrain("blue-broker-a"), SetBalanceDriver("control")]
    await stage.reconciler.reconcile(BLUE)
    assert stage.controls.calls[-3:] == [
        ("start_broker_drain", "10.0.1.1:3183", "secret"),
        ("cancel_broker_drain", "10.0.1.1:3183", "secret"),
        ("set_driver", "10.0.1.1:3183", "control"),
    ]


async def test_a_pod_that_has_gone_is_tried_again(stage: ReconcilerStage) -> None:
    stage.put_pool()
    stage.actions = [StartBookieDrain("cold-bookie-7")]
    with pytest.raises(ControlUnavailable):
        await stage.reconciler.reconcile(COLD)
    assert stage.did("apply_status") == [("Bookie", "cold")], "people see what is the matter"


async def test_the_status_is_written_when_it_differs(stage: ReconcilerStage) -> None:
    stage.status = {"phase": "Fine", "observedGeneration": 1, "brokerReplicas": 0}
    for _ in range(3):
        await stage.reconciler.reconcile(BLUE)
    assert len(stage.did("apply_status")) == 1
    # As it comes back from a server that fills in and leaves out what is as it is by default.
    stage.api.objects["PulsarCluster", "here", "blue"]["status"] = {
        "phase": "Fine",
        "observedGeneration": 1,
        "version": "",
    }
    await stage.reconciler.reconcile(BLUE)
    assert len(stage.did("apply_status")) == 1
    stage.status = {"phase": "Finer"}
    await stage.reconciler.reconcile(BLUE)
    assert stage.api.objects["PulsarCluster", "here", "blue"]["status"] == {"phase": "Finer"}


@pytest.mark.parametrize("error", [Refused("invalid"), ControlRefused(RefusalReason.FAILED_PRECONDITION, "not now")])
async def test_a_refusal_is_told_and_the_status_is_written(stage: ReconcilerStage, error: Exception) -> None:
    stage.put_pool()
    stage.put_pod("cold-bookie-0", "bookie", "10.0.0.1", "cold")
    stage.controls.refusals = [error]
    stage.actions = [StartBookieDrain("cold-bookie-0"), EmitEvent("Normal", "Never", "told")]
    with pytest.raises(type(error)):
        await stage.reconciler.reconcile(COLD)
    assert stage.did("apply_status") == [("Bookie", "cold")]
    (event,) = stage.told.events
    assert (event.type, event.message) == ("Warning", str(error))


async def test_what_the_api_server_refuses_stands_in_the_conditions_until_it_is_corrected(
    stage: ReconcilerStage,
) -> None:
    """Who applies a resource waits for its conditions: an Event alone leaves it in progress for ever."""

    def said(type_: str) -> dict[str, Any]:
        found = stage.api.objects["PulsarCluster", "here", "blue"]["status"]["conditions"]
        return next(one for one in found if one["type"] == type_)

    usual = {"reason": "Updating", "message": "", "lastTransitionTime": "2025-10-09T08:00:00Z", "observedGeneration": 1}
    stage.status = {
        "phase": "Updating",
        "conditions": [
            {"type": "Ready", "status": "False", **usual},
            {"type": "Stalled", "status": "False", **usual},
            {"type": "Paused", "status": "False", **usual},
        ],
    }
    await stage.reconciler.reconcile(BLUE)
    stage.actions = [Apply({"kind": "Service", "metadata": {"name": "blue-proxy", "namespace": "here"}})]
    for _ in range(2):
        stage.api.failures["apply", "Service"] = [Refused("apply Service: spec.ports[0].nodePort: 1 is not in range")]
        with pytest.raises(Refused):
            await stage.reconciler.reconcile(BLUE)
        assert (said("Stalled")["status"], said("Stalled")["reason"]) == ("True", "Refused")
        assert "nodePort: 1 is not in range" in said("Ready")["message"]
        assert said("Stalled")["lastTransitionTime"] == "2025-10-09T08:53:20Z"
        assert said("Paused") == {"type": "Paused", "status": "False", **usual}
        stage.clock.advance(60)
    await stage.reconciler.reconcile(BLUE)
    assert (said("Stalled")["status"], said("Ready")["reason"]) == ("False", "Updating")


async def test_a_volume_that_may_not_grow_holds_nothing_else_up(stage: ReconcilerStage) -> None:
    """By a quota, say. Else no bookie could be drained, and ZooKeeper's would even keep brokers from being updated."""
    stage.put_pool()
    stage.put_pod("cold-bookie-0", "bookie", "10.0.0.1", "cold")
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "here"}}
    uid = stage.api.put(claim)["metadata"]["uid"]
    stage.api.failures["patch", "PersistentVolumeClaim"] = [Refused("exceeded quota")]
    stage.actions = [
        GrowVolume("c", uid, 2 * GI),
        EmitEvent("Normal", "VolumeGrown", "c"),
        StartBookieDrain("cold-bookie-0"),
        EmitEvent("Normal", "DrainStarted", "cold-bookie-0"),
    ]
    with pytest.raises(Refused, match="exceeded quota"):
        await stage.reconciler.reconcile(COLD)
    assert [event.reason for event in stage.told.events] == ["DrainStarted", "Refused"]
    status = stage.api.objects["Bookie", "here", "cold"]["status"]
    assert ["exceeded quota" in found["message"] for found in status["conditions"]] == [True, True]


async def test_what_others_changed_is_looked_at_again(stage: ReconcilerStage) -> None:
    stage.actions = [Scale("Deployment", "gone", "uid", 3)]
    assert await stage.reconciler.reconcile(BLUE) == LOOK_AGAIN_SECONDS
    stage.actions = []
    stage.api.failures["apply_status", "PulsarCluster"] = [Conflict("another one")]
    assert await stage.reconciler.reconcile(BLUE) == LOOK_AGAIN_SECONDS


async def test_a_server_that_is_down_ends_the_pass(stage: ReconcilerStage) -> None:
    stage.api.failures["list", "Pod"] = [ServerUnavailable("down")]
    with pytest.raises(ServerUnavailable):
        await stage.reconciler.reconcile(BLUE)
    assert stage.clusters == []


async def test_paused_nothing_is_touched_but_the_status_and_the_finalizer(stage: ReconcilerStage) -> None:
    stage.put_cluster(paused=True)
    stage.put_pool()
    stage.actions = [
        Apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "here"}}),
        SetFinalizer(present=True),
        EmitEvent("Normal", "Paused", "by you"),
    ]
    for key in (BLUE, COLD):
        await stage.reconciler.reconcile(key)
    assert stage.did("apply") == []
    # The spec that could be read, and the finalizer.
    assert stage.did("patch") == [*[("PulsarCluster", "blue")] * 2, *[("Bookie", "cold")] * 2]
    assert len(stage.did("apply_status")) == len(stage.told.events) == 2


@pytest.mark.parametrize("key", [BLUE, COLD])
async def test_a_paused_cluster_that_is_deleted_is_taken_down(stage: ReconcilerStage, key: Key) -> None:
    stage.put_pool()
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["other"]}
    stage.put("PulsarCluster", "blue", spec={"paused": True}, metadata=going)
    service = stage.put("Service", "s")
    stage.actions = [Delete("Service", "s", service["metadata"]["uid"])]
    await stage.reconciler.reconcile(key)
    assert stage.did("delete") == [("Service", "s")]


async def test_a_resource_that_cannot_be_read_says_so(stage: ReconcilerStage) -> None:
    stage.put_cluster(bookkeeper={"ensembleSize": "many"})
    with pytest.raises(SettingError):
        await stage.reconciler.reconcile(BLUE)
    assert stage.told.events[0].reason == "ResourceUnreadable"


@pytest.fixture
def balanced(stage: ReconcilerStage) -> ReconcilerStage:
    stage.put_cluster(balance={"driver": "Operator", "intervalSeconds": 45})
    stage.put_pod("blue-broker-a", "broker", "10.0.0.1")
    stage.controls.brokers["10.0.0.1:3183"] = BrokerFacts(broker_id="broker-a", registered=True)
    return stage


async def test_balancing_goes_by_its_interval(balanced: ReconcilerStage) -> None:
    assert await balanced.reconciler.reconcile(BLUE) == 45
    assert balanced.moves_now == [MOVE, SPLIT]
    balanced.clock.advance(40)
    assert await balanced.reconciler.reconcile(BLUE) == 5
    assert balanced.clusters[1].load is None
    assert not balanced.moves_now
    balanced.clock.advance(5)
    await balanced.reconciler.reconcile(BLUE)
    (balancing,) = balanced.balancings
    assert len(balancing.rounds) == 2
    told = [call for call in balanced.controls.calls if call[0] in ("transfer_bundle", "split_bundle")]
    assert told[:2] == [
        ("transfer_bundle", "10.0.0.1:3183", MOVE.bundle, "broker-b"),
        ("split_bundle", "10.0.0.1:3183", SPLIT.bundle, "range_equally_divide"),
    ]
    assert balancing.failures == []


async def test_moves_that_fail_are_no_failure_of_the_pass(balanced: ReconcilerStage) -> None:
    balanced.controls.refusals = [ControlRefused(RefusalReason.NOT_FOUND, "not mine")]
    await balanced.reconciler.reconcile(BLUE)
    assert balanced.balancings[0].failures == [MOVE]


async def test_the_status_names_no_move_that_failed(balanced: ReconcilerStage) -> None:
    now, earlier = timestamp(balanced.clock.now_ms() / 1000), "2026-01-01T00:00:00Z"
    moved = {"kind": "unload", "source": "broker-a", "destination": "broker-b", "reason": "busy"}
    split = {"kind": "split", "source": "broker-a", "reason": "hot", "bundle": SPLIT.bundle, "time": now}
    before = {**moved, "bundle": MOVE.bundle, "time": earlier}
    balanced.status = {"lastMoves": [{**moved, "bundle": MOVE.bundle, "time": now}, split, before]}
    balanced.controls.refusals = [ControlRefused(RefusalReason.NOT_FOUND, "not mine")]
    await balanced.reconciler.reconcile(BLUE)
    assert balanced.api.objects["PulsarCluster", "here", "blue"]["status"]["lastMoves"] == [split, before]


async def test_moves_that_are_not_tried_are_said_to_have_failed(balanced: ReconcilerStage) -> None:
    balanced.actions = [Scale("Deployment", "gone", "uid", 3)]
    await balanced.reconciler.reconcile(BLUE)
    assert balanced.balancings[0].failures == [MOVE, SPLIT]


async def test_balancing_is_made_anew_with_its_settings(balanced: ReconcilerStage) -> None:
    await balanced.reconciler.reconcile(BLUE)
    balanced.put_cluster(balance={"driver": "Operator", "intervalSeconds": 15})
    balanced.clock.advance(60)
    await balanced.reconciler.reconcile(BLUE)
    assert [balancing.spec.interval_seconds for balancing in balanced.balancings] == [45, 15]
    balanced.put_cluster(balance={"driver": "Leader"})
    assert await balanced.reconciler.reconcile(BLUE) == 60
    assert len(balanced.balancings) == 2
