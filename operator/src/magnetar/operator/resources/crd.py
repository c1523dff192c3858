"""CRDs out of the resources' types: structural schemas, as Kubernetes wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from magnetar.operator.resources.bookie import BOOKIE_RULES, BookieSpec, BookieStatus
from magnetar.operator.resources.cluster import CLUSTER_RULES, PulsarClusterSpec, PulsarClusterStatus
from magnetar.operator.resources.common import GROUP, VERSION, Part
from magnetar.operator.resources.markers import RULES, Rule

_DROPPED: Final = ("title",)

_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrinterColumn:
    """What `kubectl get` prints."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    """Above 0: with `-o wide` only."""

    def as_json(self) -> dict[str, Any]:
        """The column in the form of a CRD."""
        found: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.priority:
            found["priority"] = self.priority
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One custom resource."""

    kind: str
    plural: str
    short_name: str
    description: str
    spec: type[Part]
    status: type[Part]
    rules: Sequence[Rule]
    columns: Sequence[PrinterColumn]
    scale: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of the CRD, and of its file."""
        return f"{self.plural}.{GROUP}"


def condition(type_: str, field: str = "status") -> str:
    """Where a condition's field is found."""
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


DEFINITIONS: Final = (
    Definition(
        kind="PulsarCluster",
        plural="pulsarclusters",
        short_name="pulsar",
        description="A Pulsar cluster: metadata, bookies, brokers and proxies.",
        spec=PulsarClusterSpec,
        status=PulsarClusterStatus,
        rules=CLUSTER_RULES,
        columns=(
            PrinterColumn(name="Ready", path=condition("Ready")),
            PrinterColumn(name="Phase", path=".status.phase"),
            PrinterColumn(name="Bookies", path=".status.bookies.readyReplicas", type="integer"),
            PrinterColumn(name="Brokers", path=".status.brokers.readyReplicas", type="integer"),
            PrinterColumn(name="Proxies", path=".status.proxies.readyReplicas", type="integer"),
            PrinterColumn(name="ReadOnly", path=".status.readOnlyBrokers.readyReplicas", type="integer"),
            PrinterColumn(name="Version", path=".status.version"),
            PrinterColumn(name="Age", path=".metadata.creationTimestamp", type="date"),
            PrinterColumn(name="URL", path=".status.serviceUrl", priority=1),
            PrinterColumn(name="Message", path=condition("Ready", "message"), priority=1),
        ),
        scale={
            "specReplicasPath": ".spec.broker.replicas",
            "statusReplicasPath": ".status.brokerReplicas",
            "labelSelectorPath": ".status.brokerSelector",
        },
    ),
    Definition(
        kind="Bookie",
        plural="bookies",
        short_name="bk",
        description="A pool of bookies of a Pulsar cluster: one StatefulSet, whose pods go only when they are drained.",
        spec=BookieSpec,
        status=BookieStatus,
        rules=BOOKIE_RULES,
        columns=(
            PrinterColumn(name="Cluster", path=".spec.clusterName"),
            PrinterColumn(name="Ready", path=condition("Ready")),
            PrinterColumn(name="Desired", path=".spec.replicas", type="integer"),
            PrinterColumn(name="Running", path=".status.readyReplicas", type="integer"),
            PrinterColumn(name="Writable", path=".status.writableReplicas", type="integer"),
            PrinterColumn(name="Phase", path=".status.phase"),
            PrinterColumn(name="Age", path=".metadata.creationTimestamp", type="date"),
            PrinterColumn(name="Message", path=condition("Ready", "message"), priority=1),
        ),
        scale={
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    ),
)


def custom_resource_definition(definition: Definition) -> dict[str, Any]:
    """The CRD, in the order in which people read it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": definition.name},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": definition.kind,
                "listKind": f"{definition.kind}List",
                "plural": definition.plural,
                "singular": definition.kind.lower(),
                "shortNames": [definition.short_name],
                "categories": ["magnetar"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _root(definition)},
                    "subresources": {"status": {}, "scale": dict(definition.scale)},
                    "additionalPrinterColumns": [column.as_json() for column in definition.columns],
                }
            ],
        },
    }


def _root(definition: Definition) -> dict[str, Any]:
    return {
        "description": definition.description,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural_schema(definition.spec),
            "status": structural_schema(definition.status),
        },
        RULES: [rule.as_json() for rule in definition.rules],
    }


def structural_schema(type_: type[Part]) -> dict[str, Any]:
    """A type's schema without references, unions and nulls, which Kubernetes does not know."""
    schema = msgspec.json.schema(type_)
    return _Flattener(schema.pop("$defs", {})).flatten(schema)


class _Flattener:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions

    def flatten(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        schema = self._resolved(schema)
        if "anyOf" in schema and not schema.get(_INT_OR_STRING):
            schema = self._one_of(schema)
        if schema.get(_INT_OR_STRING):
            schema.pop("anyOf", None)
        if schema.get("default", ...) is None:
            del schema["default"]
        if "enum" in schema:
            schema.setdefault("type", "string")
        if "properties" in schema:
            schema["properties"] = {name: self.flatten(part) for name, part in schema["properties"].items()}
        if isinstance(schema.get("additionalProperties"), dict):
            schema["additionalProperties"] = self.flatten(schema["additionalProperties"])
        if isinstance(schema.get("items"), dict):
            schema["items"] = self.flatten(schema["items"])
        if schema.get(_PRESERVE):
            schema.pop("additionalProperties", None)
        return {name: value for name, value in schema.items() if name not in _DROPPED}

    def _resolved(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """With what it refers to in its place; what it says itself goes first."""
        reference = schema.get("$ref")
        if reference is None:
            return dict(schema)
        found = dict(self._definitions[reference.rpartition("/")[2]])
        return found | {name: value for name, value in schema.items() if name != "$ref"}

    def _one_of(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The one that is not null; where there are several, anything."""
        choices = [choice for choice in schema.pop("anyOf") if choice != {"type": "null"}]
        if len(choices) > 1:
            return schema | {_PRESERVE: True}
        return self._resolved(choices[0]) | schema
