"""The charts as Helm renders, installs, upgrades and tests them; every object is shown to the API server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from magnetar.operator.rbac import lease_rules, rules
from magnetar.operator.resources.crd import DEFINITIONS, custom_resource_definition

from e2e.kube.clusters import DeployedCluster, small
from e2e.kube.conftest import REPOSITORY, VERSION
from e2e.kube.kubectl import CommandFailed, Kubernetes, Manifest, Namespace, is_ready, name_of, wait_for
from e2e.kube.release import OperatorRelease

CHARTS = Path(__file__).resolve().parents[2] / "charts"
OPERATOR = CHARTS / "magnetar-operator"
CLUSTER = CHARTS / "magnetar-cluster"
CASES = [(chart, path) for chart in (OPERATOR, CLUSTER) for path in (None, *sorted((chart / "ci").glob("*.yaml")))]
RELEASE = "tried"
UNKNOWN_KINDS = {"PodMonitor", "ServiceMonitor"}
"""Their CRDs are not in every Kubernetes cluster."""


def case_name(value: Any) -> str:
    return "defaults" if value is None else str(value.stem if value.suffix else value.name)


def given(path: Path | None) -> tuple[str, ...]:
    return () if path is None else ("--values", str(path))


def render(namespace: Namespace, chart: Path, *options: str, release: str = RELEASE) -> str:
    """What `helm template` says, as if for the cluster that is there."""
    version = json.loads(namespace.kubernetes("version", "-o", "json"))["serverVersion"]["gitVersion"]
    return namespace.helm("template", release, str(chart), "--kube-version", version, *options)


def objects(text: str) -> list[Manifest]:
    return [found for found in yaml.safe_load_all(text) if found]


def of_kind(found: list[Manifest], kind: str) -> list[Manifest]:
    return [each for each in found if each["kind"] == kind]


def roles_of_namespaces(found: list[Manifest]) -> dict[tuple[str, str], Any]:
    return {(role["metadata"]["namespace"], name_of(role)): role["rules"] for role in of_kind(found, "Role")}


@pytest.mark.parametrize(("chart", "path"), CASES, ids=case_name)
def test_helm_finds_nothing_to_complain_of(shared_namespace: Namespace, chart: Path, path: Path | None) -> None:
    said = shared_namespace.helm("lint", "--strict", str(chart), *given(path))
    assert "[WARNING]" not in said
    assert "[ERROR]" not in said


@pytest.mark.parametrize(("chart", "path"), CASES, ids=case_name)
def test_every_object_is_what_the_api_server_takes(shared_namespace: Namespace, chart: Path, path: Path | None) -> None:
    options = [*given(path)]
    if path is not None and "watchNamespaces" in path.read_text():
        # Those of the file are not there.
        options += ["--set-json", f"watchNamespaces={json.dumps([shared_namespace.name])}"]
    text = render(shared_namespace, chart, *options)
    assert text == render(shared_namespace, chart, *options)
    found = objects(text)
    known = [each for each in found if each["kind"] not in UNKNOWN_KINDS]
    assert len(known) >= 1
    for each in found:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == chart.name
        assert labels["app.kubernetes.io/instance"] == RELEASE
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"].startswith(chart.name)
    # Pods that the restricted profile refuses are told as a warning where they come from templates.
    shared_namespace(
        *("apply", "--server-side", "--force-conflicts", "--field-manager=test", "--warnings-as-errors"),
        *("--dry-run=server", "--validate=strict", "-f", "-"),
        given=yaml.safe_dump_all(known),
    )


def test_the_operator_has_the_rights_that_its_code_names_and_no_other(shared_namespace: Namespace) -> None:
    found = objects(render(shared_namespace, OPERATOR, release="magnetar-operator"))
    roles = {name_of(role): role["rules"] for role in of_kind(found, "ClusterRole")}
    assert roles.pop("magnetar-operator") == rules(cluster_wide=True)
    assert set(roles) == {"magnetar-operator-view", "magnetar-operator-edit"}
    assert {rule["apiGroups"][0] for role in roles.values() for rule in role} == {"pulsar.magnetar.dev"}
    leases = {(shared_namespace.name, "magnetar-operator-lease"): lease_rules()}
    assert roles_of_namespaces(found) == leases

    options = ("--set-json", 'watchNamespaces=["team-a","team-b"]')
    found = objects(render(shared_namespace, OPERATOR, *options, release="magnetar-operator"))
    assert roles_of_namespaces(found) == leases | {
        (namespace, "magnetar-operator"): rules(cluster_wide=False) for namespace in ("team-a", "team-b")
    }
    assert not of_kind(found, "ClusterRoleBinding")
    for binding in of_kind(found, "RoleBinding"):
        [subject] = binding["subjects"]
        assert subject["namespace"] == shared_namespace.name


def test_the_crds_are_those_of_the_types_and_stay(shared_namespace: Namespace) -> None:
    found = {
        name_of(crd): crd for crd in of_kind(objects(render(shared_namespace, OPERATOR)), "CustomResourceDefinition")
    }
    assert {name: crd["spec"] for name, crd in found.items()} == {
        definition.name: custom_resource_definition(definition)["spec"] for definition in DEFINITIONS
    }
    for crd in found.values():
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    left = objects(render(shared_namespace, OPERATOR, "--set", "crds.install=false"))
    assert not of_kind(left, "CustomResourceDefinition")


def test_two_replicas_are_protected(shared_namespace: Namespace) -> None:
    found = objects(render(shared_namespace, OPERATOR, "--set", "replicas=2"))
    [budget] = of_kind(found, "PodDisruptionBudget")
    [deployment] = of_kind(found, "Deployment")
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert deployment["spec"]["template"]["spec"]["affinity"]
    assert not of_kind(objects(render(shared_namespace, OPERATOR)), "PodDisruptionBudget")


@pytest.mark.parametrize(
    ("chart", "value", "words"),
    [
        (CLUSTER, "cluster.brokr.replicas=1", "'/cluster': additional properties 'brokr' not allowed"),
        (CLUSTER, "cluster.broker.replicas=two", "'/cluster/broker/replicas': got string, want"),
        (CLUSTER, "cluster.proxy.service.type=External", "must be one of 'ClusterIP', 'LoadBalancer', 'NodePort'"),
        (CLUSTER, "cluster.bookkeeper.storage.journal.size=10GB", "'10GB' does not match pattern"),
        (CLUSTER, "cluster.broker.settings.a.b=1", "'/cluster/broker/settings/a': got object"),
        (CLUSTER, "pools.A_b.replicas=1", "invalid propertyName 'A_b'"),
        (CLUSTER, "name=1st", "'/name': '1st' does not match pattern"),
        (OPERATOR, "replicas=0", "'/replicas': minimum: got 0, want 1"),
        (OPERATOR, "image.digest=abc", "'/image/digest': 'abc' does not match pattern"),
        (OPERATOR, "image.repository=operator", "set clusters.imageRepository"),
        (OPERATOR, "metrics.podMonitor.enabled=true,metrics.serviceMonitor.enabled=true", "enable one of them"),
    ],
)
def test_wrong_values_are_refused_in_words(shared_namespace: Namespace, chart: Path, value: str, words: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        render(shared_namespace, chart, "--set", value)
    assert words in refused.value.output


def test_a_release_that_cannot_name_a_cluster_is_told_what_to_do(shared_namespace: Namespace) -> None:
    with pytest.raises(CommandFailed, match="Set `name`"):
        render(shared_namespace, CLUSTER, release="1st")
    assert of_kind(objects(render(shared_namespace, CLUSTER, "--set", "name=first", release="1st")), "PulsarCluster")


def test_names_may_look_like_something_else(shared_namespace: Namespace) -> None:
    for chart in (OPERATOR, CLUSTER):
        for each in objects(render(shared_namespace, chart, release="true")):
            assert {type(value) for value in each["metadata"]["labels"].values()} == {str}
            assert name_of(each).startswith(("true", "pulsarclusters.", "bookies."))
            assert isinstance(each["metadata"].get("namespace", ""), str)
    with pytest.raises(CommandFailed, match="Set fullnameOverride"):
        render(shared_namespace, OPERATOR, release="1st")
    [deployment] = of_kind(
        objects(render(shared_namespace, OPERATOR, "--set", "fullnameOverride=first", release="1e3")), "Deployment"
    )
    assert deployment["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == "1e3"


def test_pools_have_names_that_the_api_server_takes(shared_namespace: Namespace) -> None:
    [pool] = of_kind(objects(render(shared_namespace, CLUSTER, "--set", "pools.more.replicas=1")), "Bookie")
    assert name_of(pool) == f"{RELEASE}-more"
    with pytest.raises(CommandFailed, match="more than 40 characters"):
        render(shared_namespace, CLUSTER, "--set", f"pools.{'a' * 38}.replicas=1")


@pytest.mark.parametrize("ports", ["[]", "null", "[6443]"])
def test_no_rule_lets_everything_out(shared_namespace: Namespace, ports: str) -> None:
    options = ("--set-json", f'networkPolicy.egress={{"restricted": true, "apiServerPorts": {ports}}}')
    [policy] = of_kind(objects(render(shared_namespace, OPERATOR, *options)), "NetworkPolicy")
    assert all(rule["ports"] for rule in policy["spec"]["egress"])


def test_a_monitors_labels_go_over_those_of_all_objects(shared_namespace: Namespace) -> None:
    labels = "commonLabels.release=all,metrics.podMonitor.labels.release=prometheus"
    text = render(shared_namespace, OPERATOR, "--set", f"metrics.podMonitor.enabled=true,{labels}")
    [monitor] = of_kind(objects(text), "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["metadata"]["labels"]["app.kubernetes.io/name"] == OPERATOR.name
    assert text.count("release: prometheus") == 1


def test_what_does_not_fit_together_is_refused_by_the_api_server(kubernetes: Kubernetes, scratch: Namespace) -> None:
    with pytest.raises(CommandFailed) as refused:
        scratch.helm("install", RELEASE, str(CLUSTER), "--set", "cluster.bookkeeper.writeQuorum=3")
    assert "copies need as many bookies: raise bookkeeper.ensembleSize" in refused.value.output


def notes(namespace: Namespace, chart: Path, *options: str) -> str:
    said = namespace.helm("install", RELEASE, str(chart), "--dry-run=server", *options)
    return said.partition("NOTES:\n")[2]


def test_notes_tell_the_way_in_and_what_is_open(shared_namespace: Namespace) -> None:
    said = notes(shared_namespace, CLUSTER)
    assert f"service URL  pulsar://{RELEASE}-proxy.{shared_namespace.name}:6650" in said
    assert f"admin URL    http://{RELEASE}-proxy.{shared_namespace.name}:8080" in said
    assert f"port-forward service/{RELEASE}-proxy 6650 8080" in said
    assert said.count("WARNING") == 2
    said = notes(shared_namespace, CLUSTER, "--set", "cluster.proxy.service.type=NodePort")
    assert said.count("WARNING") == 3
    assert ".nodePort" in said
    said = notes(shared_namespace, CLUSTER, *given(CLUSTER / "ci/everything-values.yaml"))
    assert f"service URL  pulsar+ssl://orders-proxy.{shared_namespace.name}:6651" in said
    assert "WARNING" not in said
    said = notes(shared_namespace, CLUSTER, *given(CLUSTER / "ci/external-metadata-values.yaml"))
    assert f"service URL  pulsar://{RELEASE}-broker.{shared_namespace.name}:6650" in said
    said = notes(shared_namespace, CLUSTER, "--set", "cluster.proxy.replicas=0,cluster.proxy.service.type=LoadBalancer")
    assert f"port-forward service/{RELEASE}-broker" in said
    assert said.count("WARNING") == 2
    said = notes(shared_namespace, OPERATOR, "--set", "crds.install=false,rbac.create=false,rbac.aggregateRoles=false")
    assert "WARNING: rbac.create is false" in said
    assert "crds.install is false" in said


def test_a_cluster_is_installed_tried_and_changed_by_its_chart(
    operator: OperatorRelease, scratch: Namespace, note: Callable[[str], None]
) -> None:
    values = {
        "cluster": {**small(), "imageRepository": REPOSITORY, "version": VERSION},
        "test": {"messages": 500},
    }
    command = ("upgrade", "--install", "blue", str(CLUSTER), "--values", "-")
    run = scratch.kubernetes.run
    helm = (scratch.kubernetes.helm, "--namespace", scratch.name)
    cluster = DeployedCluster(scratch, "blue", values["cluster"])
    try:
        assert "service URL" in run(*helm, *command, given=json.dumps(values))
        # The test waits for a cluster that is starting.
        said = scratch.helm("test", "blue", "--logs", "--timeout", "5m")
        assert "500 messages were published" in said
        note(said.strip().splitlines()[-1])
        cluster.wait_ready()

        values["cluster"] = small(brokers=2) | {"imageRepository": REPOSITORY, "version": VERSION}
        values["pools"] = {"more": {"replicas": 1, "storage": values["cluster"]["bookkeeper"]["storage"]}}
        run(*helm, *command, given=json.dumps(values))
        wait_for("there are two brokers", lambda: len(cluster.ready_pods("broker")) == 2, 120)
        wait_for("the further pool serves", lambda: is_ready(scratch.get("pod", "blue-more-bookie-0")), 120)
        assert "500 messages were published" in scratch.helm("test", "blue", "--logs", "--timeout", "5m")
    finally:
        scratch.helm("uninstall", "blue", "--ignore-not-found")
        cluster.delete()
