"""The charts' files, as far as they can be checked without Helm; `e2e/kube/test_charts.py` has it render them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
import yaml
from magnetar.core.crashes import DIRECTORY_VARIABLE
from magnetar.operator.children.pods import CRASH_DIRECTORY
from magnetar.operator.children.policies import OPERATOR_LABELS
from magnetar.operator.command_line import application
from magnetar.operator.resources.bookie import BookieSpec
from magnetar.operator.resources.cluster import PulsarClusterSpec
from magnetar.operator.resources.common import API_VERSION
from magnetar.operator.resources.crd import DEFINITIONS, structural_schema
from typer.core import TyperGroup

from tools.charts import checking
from tools.charts.cluster_values import EXAMPLE, POOL_EXAMPLE, cluster_schema
from tools.charts.generate import out_of_date
from tools.charts.operator_values import OperatorValues
from tools.charts.rendering import between, rows, strict_schema, table, values_file

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "charts/magnetar-operator"
CLUSTER = ROOT / "charts/magnetar-cluster"
CHARTS = [OPERATOR, CLUSTER]
SPECS: dict[str, Any] = {"PulsarCluster": PulsarClusterSpec, "Bookie": BookieSpec}

UNSTEADY = re.compile(
    r"(?<![.$])\b(rand\w+|now|date\w*|lookup|gen\w+|uuidv4|getHostByName|env|expandenv|Revision|IsUpgrade)\b"
)
"""What renders something else the next time. (`derivePassword` would not, and has no place here either.)"""


def schema_of(chart: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((chart / "values.schema.json").read_text())
    return found


def values_of(chart: Path) -> Any:
    return yaml.safe_load((chart / "values.yaml").read_text())


def faults(chart: Path, given: Any) -> list[str]:
    """What Helm would say about these values over the chart's own."""
    return list(checking.faults(schema_of(chart), checking.merged(values_of(chart), given)))


def templates(chart: Path) -> dict[str, str]:
    return {
        path.relative_to(chart).as_posix(): path.read_text()
        for path in (chart / "templates").rglob("*")
        if path.is_file()
    }


def description(chart: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((chart / "Chart.yaml").read_text())
    return found


def test_what_is_made_from_types_is_what_they_say() -> None:
    assert out_of_date() == [], "run `make generate`"


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_the_own_values_and_those_of_tests_are_valid(chart: Path) -> None:
    assert faults(chart, {}) == []
    files = sorted((chart / "ci").glob("*-values.yaml"))
    assert files
    for path in files:
        assert faults(chart, yaml.safe_load(path.read_text())) == [], path


def test_the_file_of_everything_sets_nearly_everything() -> None:
    given = yaml.safe_load((OPERATOR / "ci/everything-values.yaml").read_text())
    assert values_of(OPERATOR).keys() - given.keys() == {"watchNamespaces", "affinity", "rbac"}
    given = yaml.safe_load((CLUSTER / "ci/everything-values.yaml").read_text())
    specification = structural_schema(PulsarClusterSpec)["properties"]
    assert specification.keys() - given["cluster"].keys() == {"attach", "paused", "hibernated", "networkPolicies"}


def test_examples_in_values_are_valid() -> None:
    assert faults(CLUSTER, {"cluster": yaml.safe_load(EXAMPLE), "pools": yaml.safe_load(POOL_EXAMPLE)}) == []
    text = (CLUSTER / "values.yaml").read_text()
    assert all(f"  # {line}" in text for line in (EXAMPLE + POOL_EXAMPLE).splitlines())


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"cluster": {"brokr": {}}}, "/cluster: brokr is not known"),
        ({"cluster": {"broker": {"replicas": "two"}}}, "/cluster/broker/replicas: str, not integer or null"),
        ({"cluster": {"broker": {"settings": {"a": {"b": 1}}}}}, "/cluster/broker/settings/a: dict, not string or"),
        ({"cluster": {"tls": {}}}, "/cluster/tls: no secretName"),
        ({"cluster": {"proxy": {"service": {"type": "External"}}}}, "/cluster/proxy/service/type: not one of"),
        ({"cluster": {"bookkeeper": {"storage": {"journal": {"size": "10GB"}}}}}, "/size: '10GB' does not match"),
        ({"cluster": {"metadata": {"zookeeper": {"replicas": 11}}}}, "/replicas: out of bounds"),
        ({"pools": {"a": {"clusterName": "x"}}}, "/pools/a: clusterName is not known"),
        ({"pools": {"A_b": {}}}, "/pools/A_b: 'A_b' does not match"),
        ({"cluster": None}, ": no cluster"),
        ({"name": "1st"}, "/name: '1st' does not match"),
        ({"test": {"serviceUrl": "http://x"}}, "/test/serviceUrl: 'http://x' does not match"),
    ],
)
def test_wrong_values_of_a_cluster_are_refused(given: Any, fault: str) -> None:
    (found,) = faults(CLUSTER, given)
    assert fault in found


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"replicas": 0}, "/replicas: out of bounds"),
        ({"replicas": None}, ": no replicas"),
        ({"image": {"digest": "abc"}}, "/image/digest: 'abc' does not match"),
        ({"image": {"name": "x"}}, "/image: name is not known"),
        ({"watchNamespaces": ["Team"]}, "/watchNamespaces/0: 'Team' does not match"),
        ({"imagePullSecrets": ["x"]}, "/imagePullSecrets/0: str, not object"),
        ({"nameOverride": "x"}, ": nameOverride is not known"),
    ],
)
def test_wrong_values_of_the_operator_are_refused(given: Any, fault: str) -> None:
    (found,) = faults(OPERATOR, given)
    assert fault in found


def test_values_of_a_file_before_can_be_left_out_again() -> None:
    assert faults(CLUSTER, {"cluster": {"broker": {"replicas": None}, "tls": None, "proxy": {"service": None}}}) == []
    assert faults(OPERATOR, {"resources": {"limits": None}, "nodeSelector": None, "securityContext": None}) == []
    assert faults(CLUSTER, {"global": {"anything": 1}}) == []


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_templates_use_every_value_and_no_other(chart: Path) -> None:
    text = "\n".join(templates(chart).values())
    used = set(re.findall(r"\.Values\.(\w+)", text))
    assert used == values_of(chart).keys()
    for name, value in values_of(chart).items():
        if isinstance(value, dict) and value and schema_of(chart)["properties"][name].get("properties"):
            # A part is named, or the whole is put in as it is.
            parts = [part for part in value if not re.search(rf"\.{part}\b", text)]
            assert not parts or f"with .Values.{name} " in text or f"toYaml .Values.{name} " in text, parts


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_templates_render_the_same_each_time(chart: Path) -> None:
    for path, text in templates(chart).items():
        actions = "\n".join(re.findall(r"\{\{(?!-? *\/\*).*?\}\}", text, re.DOTALL))
        actions = re.sub(r'"[^"]*"', '""', actions)
        assert not UNSTEADY.search(actions), path


_NUMBERS_AND_CHOICES = re.compile(
    r"\.Values\.(replicas|image\.pullPolicy|terminationGracePeriodSeconds|podDisruptionBudget\.maxUnavailable)$"
    r"|^\$kind$|imagePullPolicy"
)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_names_are_text_whatever_they_look_like(chart: Path) -> None:
    """A release, a namespace or a Secret may be called `true`, `null` or `1e3`."""
    for path, text in templates(chart).items():
        for action in re.findall(r"^ *(?:- )?[\w./-]+: \{\{-? ([^{}]*?) -?\}\}$", text, re.MULTILINE):
            assert action.endswith(("| quote", "| int")) or _NUMBERS_AND_CHOICES.search(action), f"{path}: {action}"


def test_pods_are_as_the_restricted_profile_wants_them() -> None:
    test = templates(CLUSTER)["templates/tests/smoke-test.yaml"]
    for line in ("runAsNonRoot: true", "allowPrivilegeEscalation: false", "readOnlyRootFilesystem: true", "- ALL"):
        assert line in test
    values = values_of(OPERATOR)
    assert values["podSecurityContext"]["runAsNonRoot"] is True
    assert values["podSecurityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert values["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert values["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_operators_pods_have_the_labels_that_clusters_let_in() -> None:
    helpers = templates(OPERATOR)["templates/_helpers.tpl"]
    for name, value in OPERATOR_LABELS.items():
        assert f"{name}: {value}\n" in helpers


def test_the_deployment_sets_what_the_command_reads() -> None:
    group = typer.main.get_command(application)
    assert isinstance(group, TyperGroup)
    read = {parameter.envvar for parameter in group.commands["run"].params if parameter.envvar}
    container = templates(OPERATOR)["templates/deployment.yaml"].partition("containers:")[2]
    assert set(re.findall(r"- name: ([A-Z_]+)$", container, re.MULTILINE)) == read - {"HTTP_HOST", "HTTP_PORT"}


def test_the_operators_crashes_are_kept_on_its_volume() -> None:
    container = templates(OPERATOR)["templates/deployment.yaml"].partition("containers:")[2]
    [folder] = re.findall(rf"- name: {DIRECTORY_VARIABLE}\n +value: (\S+)", container)
    assert folder == CRASH_DIRECTORY
    assert folder.startswith("/tmp/")
    assert "- name: tmp\n              mountPath: /tmp\n" in container


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_a_chart_has_the_version_of_what_it_installs(chart: Path) -> None:
    project = tomllib.loads((ROOT / "operator/pyproject.toml").read_text())["project"]
    found = description(chart)
    assert found["version"] == found["appVersion"] == project["version"]
    assert found["annotations"]["artifacthub.io/license"] == project["license"]
    assert found["kubeVersion"] == description(OPERATOR)["kubeVersion"]
    images = yaml.safe_load(found["annotations"]["artifacthub.io/images"])
    assert {image["image"] for image in images} == {f"magnetar/{image['name']}:{found['version']}" for image in images}
    for name in ("links", "changes"):
        assert yaml.safe_load(found["annotations"][f"artifacthub.io/{name}"])


def test_images_are_those_that_the_dockerfile_makes() -> None:
    stages = set(re.findall(r"^FROM .* AS (\w+)$", (ROOT / "images/Dockerfile").read_text(), re.MULTILINE))
    named = {
        image["name"]
        for chart in CHARTS
        for image in yaml.safe_load(description(chart)["annotations"]["artifacthub.io/images"])
    }
    assert named <= stages


def test_artifact_hub_is_told_of_the_resources() -> None:
    annotations = description(OPERATOR)["annotations"]
    told = {crd["name"]: crd for crd in yaml.safe_load(annotations["artifacthub.io/crds"])}
    assert {definition.name for definition in DEFINITIONS} == set(told)
    for definition in DEFINITIONS:
        crd = told[definition.name]
        assert (crd["kind"], crd["version"]) == (definition.kind, API_VERSION.partition("/")[2])
        assert definition.description.startswith(crd["description"])
    examples = yaml.safe_load(annotations["artifacthub.io/crdsExamples"])
    assert {example["kind"] for example in examples} == set(SPECS)
    for example in examples:
        assert example["apiVersion"] == API_VERSION
        schema = json.loads(strict_schema(structural_schema(SPECS[example["kind"]]), "x"))
        # Of custom resources everything has a default, or says by itself that it is needed.
        unknown = [fault for fault in checking.faults(schema, example["spec"]) if ": no " not in fault]
        assert not unknown
        msgspec.convert(example["spec"], SPECS[example["kind"]])


def test_a_table_tells_each_value_once() -> None:
    found = [row.path for row in rows(structural_schema(OperatorValues))]
    assert len(found) == len(set(found))
    assert "networkPolicy.egress.apiServerPorts" in found
    assert "imagePullSecrets[].name" in found
    assert "| `replicas` | int | `1` |" in table(list(rows(structural_schema(OperatorValues))))
    text = (CLUSTER / "README.md").read_text()
    for row in rows(structural_schema(PulsarClusterSpec), "cluster."):
        shared = re.sub(r"^cluster\.(metadata\.zookeeper|bookkeeper|broker|proxy)\.", "cluster.COMPONENT.", row.path)
        assert f"`{row.path}`" in text or f"`{shared}`" in text, row.path


def test_values_files_are_as_their_types_say() -> None:
    assert values_of(OPERATOR) == yaml.safe_load(values_file(structural_schema(OperatorValues), "", {}))
    values = values_of(CLUSTER)
    assert values["cluster"] == values["pools"] == {}
    assert "clusterName" not in cluster_schema()["properties"]["pools"]["additionalProperties"]["properties"]
    for chart in CHARTS:
        lines = (chart / "values.yaml").read_text().splitlines()
        for number, line in enumerate(lines):
            if re.match(r"\w+:", line):
                assert lines[number - 1].startswith("# "), line


def test_markers_that_are_missing_are_told() -> None:
    text = "a\n<!-- begin x: generated -->\nold\n<!-- end x -->\nb\n"
    assert between(text, "x", "new\n") == text.replace("old", "new")
    with pytest.raises(ValueError, match="no markers of y"):
        between(text, "y", "")
