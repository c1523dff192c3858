"""Names, labels and owners of what the operator makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.operator.kubernetes.kinds import KINDS, Manifest
from magnetar.operator.resources.common import API_VERSION, GROUP

FIELD_MANAGER: Final = "magnetar-operator"
NUMBER_MANAGER: Final = "magnetar-operator-number"
"""The field manager of the default pool's number, while the cluster's spec says it."""

NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
VERSION_LABEL: Final = "app.kubernetes.io/version"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
PART_OF_LABEL: Final = "app.kubernetes.io/part-of"
POOL_LABEL: Final = f"{GROUP}/pool"
"""The label of bookies' pods and claims that names the Bookie resource they belong to."""

LABEL_LENGTH_MAX: Final = 63

TEMPLATE_ANNOTATION: Final = f"{GROUP}/template-hash"
"""The annotation of a StatefulSet's pods with a digest of all that a restart would change."""

READER_LABEL: Final = f"{GROUP}/reads-bookies"
"""Pods with the value `true` may reach bookies and ZooKeeper, where network policies are in force."""

REPLACE_ANNOTATION: Final = f"{GROUP}/replace"
"""On a bookie's pod: drain it, and let it start again with empty volumes. A wish that was seen outlives the pod: taken
back is it by removing this from the pod that has it, or by the value `false` on any."""
NOT_REPLACED: Final = "false"
DRAIN_ANNOTATION: Final = f"{GROUP}/drain"
"""On a broker's pod: a person has had it give its bundles away, and it takes none until that is taken back."""
READABLE_ANNOTATION: Final = f"{GROUP}/last-readable-spec"
"""The annotation of a custom resource with its spec as the operator could read it last, as JSON. It goes by it while
the newest cannot be read, after a restart too."""

FINALIZER: Final = f"{GROUP}/operator"
"""The finalizer of resources whose end is the operator's work."""

ZOOKEEPER: Final = "zookeeper"
BOOKIE: Final = "bookie"
BROKER: Final = "broker"
PROXY: Final = "proxy"
READ_ONLY_BROKER: Final = "read-only-broker"
INIT: Final = "init"
"""The Job that prepares the metadata store."""
CONTROL: Final = "control"
"""The token by which the operator speaks to pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerResource:
    """The resource that something is made for."""

    kind: str
    """The owner's kind of resource: PulsarCluster or Bookie."""
    name: str
    namespace: str
    uid: str

    def reference(self) -> dict[str, Any]:
        """What makes Kubernetes delete the children with it, and not before it is told to."""
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def to_be_replaced(annotations: Mapping[str, str]) -> bool:
    """Whether a pod's annotations say that its bookie is to be."""
    return annotations.get(REPLACE_ANNOTATION, NOT_REPLACED) != NOT_REPLACED


def selector(cluster: str, component: str, pool: str = "") -> dict[str, str]:
    """The labels that find a component's pods. They can never be changed: workloads' selectors are immutable."""
    found = {NAME_LABEL: "magnetar", INSTANCE_LABEL: cluster, COMPONENT_LABEL: component}
    return found | ({POOL_LABEL: pool} if pool else {})


def labels(cluster: str, component: str, *, version: str = "", pool: str = "") -> dict[str, str]:
    """All labels of a child."""
    found = selector(cluster, component, pool) | {MANAGED_BY_LABEL: FIELD_MANAGER, PART_OF_LABEL: cluster}
    # Names of images' versions may be longer than labels, and begin and end otherwise.
    text = version[:LABEL_LENGTH_MAX].strip("-_.")
    return found | ({VERSION_LABEL: text} if text else {})


def label_text(wanted: dict[str, str]) -> str:
    """Labels as a label selector's text, `name=value,…`, in the order of names."""
    return ",".join(f"{name}={value}" for name, value in sorted(wanted.items()))


def child(owner: OwnerResource, kind: str, name: str, its_labels: dict[str, str], **fields: Any) -> Manifest:
    """An object of the owner's namespace that goes when the owner goes."""
    return {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": its_labels,
            "ownerReferences": [owner.reference()],
        },
        **fields,
    }
