"""Settings that have no effect are told, and what is to be applied later is tried at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from magnetar.operator.children.owned import cluster_settings_without_effect
from magnetar.operator.kubernetes.errors import Refused
from magnetar.operator.plan.actions import Apply, DryRun, EmitEvent, Plan
from magnetar.operator.plan.cluster.plan import plan_cluster
from magnetar.operator.plan.pool.plan import plan_pool
from magnetar.operator.resources.bookie import BookieSpec
from magnetar.operator.resources.cluster import PulsarClusterSpec
from magnetar.operator.resources.common import Condition
from magnetar.operator.resources.crd import structural_schema
from operator_fakes.cluster_builders import fresh, healthy, told
from operator_fakes.plan_builders import make_cluster
from operator_fakes.pool_builders import PoolWorld
from operator_fakes.stage import BLUE, ReconcilerStage, small_stage


def said(plan: Plan, type_: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = plan.status["conditions"]
    return next(one for one in found if one["type"] == type_)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, []),
        ({"broker": {"settings": {"maxTopicsPerNamespace": 5}}}, []),
        ({"settings": {"clusterName": "blue"}}, []),
        (
            {"settings": {"clusterName": "mine"}},
            ["spec.settings.clusterName (use the PulsarCluster's own name)"],
        ),
        (
            {"broker": {"settings": {"loadBalancerAutoBundleSplitEnabled": False}}},
            ["spec.broker.settings.loadBalancerAutoBundleSplitEnabled (use spec.balance.splits)"],
        ),
        (
            {"broker": {"settings": {"advertisedAddress": "x"}}, "proxy": {"settings": {"metadataStoreUrl": "zk:x"}}},
            [
                "spec.broker.settings.advertisedAddress (ports and addresses of pods are fixed; spec.tls adds the TLS "
                "ports)",
                "spec.proxy.settings.metadataStoreUrl (use spec.metadata.url)",
            ],
        ),
        (
            {"authentication": {"token": {"secretName": "t"}}, "broker": {"settings": {"superUserRoles": "me"}}},
            ["spec.broker.settings.superUserRoles (use spec.authentication.superUserRoles)"],
        ),
        ({"broker": {"settings": {"superUserRoles": "me"}}}, []),
        (
            {"metadata": {"zookeeper": {"settings": {"server.1": "x", "tickTime": 1000}}}},
            ["spec.metadata.zookeeper.settings.server.1 (use spec.metadata.zookeeper.replicas)"],
        ),
    ],
)
def test_which_settings_have_no_effect(spec: dict[str, Any], expected: list[str]) -> None:
    assert cluster_settings_without_effect(make_cluster(**spec)) == expected


def test_they_are_told_once_and_the_cluster_is_ready_all_the_same() -> None:
    seen = healthy(broker={"settings": {"controlPort": 9}})
    before = [one for one in seen.status.conditions if one.type != "SettingsInEffect"]
    plan = plan_cluster(replace(seen, status=msgspec.structs.replace(seen.status, conditions=before)))
    ignored = said(plan, "SettingsInEffect")
    assert (ignored["status"], ignored["reason"]) == ("False", "SettingsIgnored")
    assert "spec.broker.settings.controlPort" in ignored["message"]
    assert [action.reason for action in plan.actions if isinstance(action, EmitEvent)].count("SettingsIgnored") == 1
    assert said(plan, "Ready")["status"] == "True"
    assert not [action for action in plan_cluster(told(seen)).actions if isinstance(action, EmitEvent)]


def test_a_pool_tells_its_own() -> None:
    world = PoolWorld()
    spec = msgspec.structs.replace(world.seen().spec, settings={"journalDirectories": "/mine", "journalMaxBackups": 3})
    plan = plan_pool(replace(world.seen(), spec=spec))
    assert isinstance(spec, BookieSpec)
    assert "spec.settings.journalDirectories (use storage.journal.count)" in said(plan, "SettingsInEffect")["message"]
    assert "journalMaxBackups" not in said(plan, "SettingsInEffect")["message"]
    assert "SettingsIgnored" in [action.reason for action in plan.actions if isinstance(action, EmitEvent)]


# --- what is applied later


def checked(plan: Plan) -> list[str]:
    return [action.manifest["metadata"]["name"] for action in plan.actions if isinstance(action, DryRun)]


def test_brokers_and_proxies_are_tried_before_their_turn() -> None:
    assert checked(plan_cluster(fresh())) == ["blue-broker", "blue-proxy"]
    assert checked(plan_cluster(healthy())) == []


@pytest.fixture
def stage() -> ReconcilerStage:
    return small_stage()


def deployment(image: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": "broker"}
    metadata = {"name": "blue-broker", "namespace": "here", "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"image": image}}


async def test_each_version_is_tried_once(stage: ReconcilerStage) -> None:
    for image in ("a", "a", "b"):
        stage.actions = [DryRun(deployment(image))]
        await stage.reconciler.reconcile(BLUE)
    assert stage.did("check") == [("Deployment", "blue-broker")] * 2
    assert ("Deployment", "here", "blue-broker") not in stage.api.objects


async def test_what_would_be_refused_is_told_at_once(stage: ReconcilerStage) -> None:
    stage.actions = [DryRun(deployment("a"))]
    for _ in range(2):
        words = "failed to create typed patch object: .spec.template.spec.affinity.nodeAffinityy: not declared (500)"
        stage.api.failures["check", "Deployment"] = [Refused(words)]
        with pytest.raises(Refused, match=r"Correct spec\.broker\.pod\.affinity"):
            await stage.reconciler.reconcile(BLUE)
    found = stage.api.objects["PulsarCluster", "here", "blue"]["status"]["conditions"]
    assert [one["type"] for one in found if "nodeAffinityy" in one["message"]] == ["Ready", "Stalled"]


async def test_a_webhook_that_takes_no_tries_refuses_nothing(stage: ReconcilerStage) -> None:
    stage.actions = [DryRun(deployment("a"))]
    stage.api.failures["check", "Deployment"] = [Refused('admission webhook "w" does not support dry run')]
    assert await stage.reconciler.reconcile(BLUE) == 60


def test_a_stateful_set_that_was_refused_is_applied_again_until_it_is_taken() -> None:
    """Else the next pass, which sees no difference, says that all is well, and the one after it that nothing is."""
    seen = PoolWorld().seen()
    usual = {"message": "", "last_transition_time": "2025-10-09T08:53:20Z", "observed_generation": 1}
    refused = Condition(type="Stalled", status="True", reason="Refused", **usual)  # type: ignore[arg-type]  # By name.
    for conditions, applies in (([], False), ([refused], True)):
        plan = plan_pool(replace(seen, status=msgspec.structs.replace(seen.status, conditions=conditions)))
        kinds = [action.manifest["kind"] for action in plan.actions if isinstance(action, Apply)]
        assert ("StatefulSet" in kinds) is applies


def test_values_of_settings_are_no_lists_nor_objects_for_the_api_server() -> None:
    """Structural schemas know no unions: what has members may have none."""
    spec = structural_schema(PulsarClusterSpec)["properties"]
    wanted = {"maxItems": 0, "maxProperties": 0, "x-kubernetes-preserve-unknown-fields": True}
    for settings in (spec["settings"], spec["broker"]["properties"]["settings"]):
        assert settings["additionalProperties"] == wanted
