"""Every kind of object that is read or written, and where the API server has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from magnetar.operator.resources.common import API_VERSION

Manifest: TypeAlias = dict[str, Any]
"""An object as Kubernetes' API takes it."""

PULSAR_CLUSTER: Final = "PulsarCluster"
BOOKIE_POOL: Final = "Bookie"


class Kind(NamedTuple):
    """A kind of Kubernetes resource: how it is named and where it is reached."""

    api_version: str
    plural: str
    """Its name in paths and rules."""
    namespaced: bool = True

    @property
    def root(self) -> str:
        """The path of its API version."""
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"


KINDS: Final[Mapping[str, Kind]] = {
    BOOKIE_POOL: Kind(API_VERSION, "bookies"),
    "ConfigMap": Kind("v1", "configmaps"),
    "CustomResourceDefinition": Kind("apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False),
    "Deployment": Kind("apps/v1", "deployments"),
    "Event": Kind("v1", "events"),
    "Job": Kind("batch/v1", "jobs"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": Kind("networking.k8s.io/v1", "networkpolicies"),
    "Node": Kind("v1", "nodes", namespaced=False),
    "PersistentVolumeClaim": Kind("v1", "persistentvolumeclaims"),
    "Pod": Kind("v1", "pods"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "PodMonitor": Kind("monitoring.coreos.com/v1", "podmonitors"),
    PULSAR_CLUSTER: Kind(API_VERSION, "pulsarclusters"),
    "ReplicaSet": Kind("apps/v1", "replicasets"),
    "Secret": Kind("v1", "secrets"),
    "Service": Kind("v1", "services"),
    "ServiceAccount": Kind("v1", "serviceaccounts"),
    "StatefulSet": Kind("apps/v1", "statefulsets"),
    "StorageClass": Kind("storage.k8s.io/v1", "storageclasses", namespaced=False),
}
"""A table, and not discovery: the operator may not ask for all that a server has, and paths are known before it."""


def path(kind: str, namespace: str | None, name: str = "") -> str:
    """The path of a kind's objects: of all namespaces if it is None, or of one object."""
    its = KINDS[kind]
    within = f"/namespaces/{namespace}" if namespace and its.namespaced else ""
    return f"{its.root}{within}/{its.plural}" + (f"/{name}" if name else "")
