"""The CRDs: what Kubernetes wants of them, and that the files are what the types say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from magnetar.operator.resources.bookie import BookieSpec
from magnetar.operator.resources.cluster import PulsarClusterSpec, PulsarClusterStatus
from magnetar.operator.resources.crd import DEFINITIONS, custom_resource_definition
from magnetar.operator.resources.markers import RULES

from tools.charts import checking
from tools.charts.rendering import strict_schema
from tools.generate_crds import SIZE_BYTES_MAX, out_of_date, rendered
from tools.source_tree import ROOT

FILES = {definition.kind: f"{definition.name}.yaml" for definition in DEFINITIONS}
CRDS = {definition.kind: custom_resource_definition(definition) for definition in DEFINITIONS}


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from schemas(part, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from schemas(schema[keyword], f"{path}[]")


def version_of(crd: dict[str, Any]) -> dict[str, Any]:
    [found] = crd["spec"]["versions"]
    return dict(found)


ALL = [
    (f"{kind}{path}", schema)
    for kind, crd in CRDS.items()
    for path, schema in schemas(version_of(crd)["schema"]["openAPIV3Schema"])
]


def test_the_files_are_what_the_types_say() -> None:
    assert not out_of_date()


@pytest.mark.parametrize("content", rendered().values(), ids=rendered())
def test_each_can_be_applied_by_any_kubectl(content: str) -> None:
    assert len(content) < SIZE_BYTES_MAX
    assert len(json.dumps(yaml.safe_load(content))) < SIZE_BYTES_MAX


def test_schemas_are_structural() -> None:
    for path, schema in ALL:
        assert not {"$ref", "$defs", "allOf", "oneOf", "title"} & schema.keys(), path
        if not (schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")):
            assert isinstance(schema.get("type"), str), path
        assert not ("properties" in schema and "additionalProperties" in schema), path


def test_each_field_is_explained() -> None:
    for path, schema in ALL:
        if path.endswith("[]") or path.rpartition(".")[2] in {"apiVersion", "kind", "metadata", "spec", "status"}:
            continue
        assert schema.get("description"), path


def test_each_rule_says_what_to_do() -> None:
    rules = [rule for _, schema in ALL for rule in schema.get(RULES, ())]
    assert len(rules) >= 15
    assert all(len(rule["message"]) > 30 for rule in rules)


def test_what_must_not_change_cannot_by_being_said_or_left_out() -> None:
    """The API server asks a rule with `oldSelf` only of what was there before and still is. Three ZooKeeper servers
    that became one, because `metadata.zookeeper` was not there before, would have lost the metadata."""
    for path, schema in ALL:
        for name, part in schema.get("properties", {}).items():
            unchangeable = [rule for rule in part.get(RULES, ()) if rule["rule"] == "self == oldSelf"]
            if unchangeable and "default" not in part and name not in schema.get("required", ()):
                rules = [rule["rule"] for rule in schema.get(RULES, ())]
                assert any(f"has(self.{name}) == has(oldSelf.{name})" in rule for rule in rules), f"{path}.{name}"
    whole = " ".join(rule["rule"] for rule in version_of(CRDS["PulsarCluster"])["schema"]["openAPIV3Schema"][RULES])
    assert "has(oldSelf.spec.metadata.zookeeper) ? oldSelf.spec.metadata.zookeeper.replicas : 3" in whole


@pytest.mark.parametrize("crd", CRDS.values(), ids=CRDS)
def test_people_find_it_and_see_what_matters(crd: dict[str, Any]) -> None:
    names, version = crd["spec"]["names"], version_of(crd)
    assert names["categories"] == ["magnetar"]
    assert names["shortNames"]
    assert {"status", "scale"} == version["subresources"].keys()
    assert "Ready" in [column["name"] for column in version["additionalPrinterColumns"]]
    scale = version["subresources"]["scale"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    for path in scale.values():
        found: dict[str, Any] = {"properties": properties}
        for name in path.removeprefix(".").split("."):
            found = found["properties"][name]
        assert found["type"] in {"integer", "string"}


def samples_of_docs() -> list[dict[str, Any]]:
    """Whole resources in the page about Kubernetes, with their lines."""
    page = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    return [yaml.safe_load(block) | {"lines": block.splitlines()} for block in blocks if "apiVersion" in block]


@pytest.mark.parametrize("sample", samples_of_docs(), ids=lambda sample: sample["metadata"]["name"])
def test_the_definitions_know_every_field_of_the_samples(sample: dict[str, Any]) -> None:
    [version] = yaml.safe_load((ROOT / f"crds/{FILES[sample['kind']]}").read_text())["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    parts = {"kind": {"type": "string"}, "spec": spec}
    schema = json.loads(strict_schema({"type": "object", "properties": parts}, "resource", ["spec"]))
    given = {name: sample[name] for name in parts}
    assert list(checking.faults(schema, given)) == []
    assert list(checking.faults(schema, given | {"spec": given["spec"] | {"readOnlyBroker": {}}}))


def test_to_attach_to_a_cluster_of_others_takes_fewer_than_fifteen_lines() -> None:
    [sample] = [sample for sample in samples_of_docs() if "attach" in sample["spec"]]
    assert len(sample["lines"]) < 15
    spec = msgspec.convert(sample["spec"], PulsarClusterSpec)
    assert spec.attach is not None
    assert (spec.attach.cluster_name, spec.metadata.url) == ("pulsar-1", "zk:zookeeper.apache:2181")
    assert spec.read_only_brokers is not None
    # The rules about it: what they ask for, and what they refuse.
    assert (spec.broker.replicas, spec.broker.autoscaling) == (None, None)
    assert (spec.bookkeeper.replicas, spec.bookkeeper.autoscaling) == (None, None)


def test_a_cluster_takes_fewer_than_fifteen_lines() -> None:
    text = """\
apiVersion: pulsar.magnetar.dev/v1alpha1
kind: PulsarCluster
metadata:
  name: blue
spec:
  bookkeeper:
    storage:
      ledgers:
        size: 200Gi
  proxy:
    service:
      type: LoadBalancer
"""
    assert len(text.splitlines()) < 15
    spec = msgspec.convert(yaml.safe_load(text)["spec"], PulsarClusterSpec)
    assert spec.bookkeeper.storage.ledgers.size == "200Gi"
    assert spec.proxy.service.type == "LoadBalancer"


def test_defaults_of_the_schema_are_those_of_the_types() -> None:
    """The API server fills them in; what it sends must mean what an empty resource means."""

    def filled(schema: dict[str, Any]) -> Any:
        if "default" in schema:
            return schema["default"]
        return {
            name: filled(part)
            for name, part in schema.get("properties", {}).items()
            if "default" in part or (part.get("properties") and name in schema.get("required", ()))
        }

    for kind, type_, needed in (("PulsarCluster", PulsarClusterSpec, {}), ("Bookie", BookieSpec, {"clusterName": "a"})):
        schema = version_of(CRDS[kind])["schema"]["openAPIV3Schema"]["properties"]["spec"]
        assert msgspec.convert(filled(schema) | needed, type_) == msgspec.convert(needed, type_)


def test_fields_of_a_newer_version_are_no_mistake() -> None:
    assert msgspec.convert({"phase": "Ready", "later": 1}, PulsarClusterStatus).phase == "Ready"
