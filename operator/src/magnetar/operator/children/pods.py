"""Pods: the operator's own template, and what people have put over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from magnetar.core.crashes import DIRECTORY_VARIABLE
from magnetar.operator.children.configuration import digest
from magnetar.operator.children.naming import TEMPLATE_ANNOTATION
from magnetar.operator.resources.common import Component, PodTemplate, ResourceRequirements

USER_ID: Final = 10_000
"""The user of the processes in our images; the group owns the volumes."""

POD_SECURITY: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""With `POD_SECURITY`, what Kubernetes' restricted profile asks for."""

CRASH_DIRECTORY: Final = "/tmp/crashes"  # noqa: S108  (a volume of the pod's own)
"""On a volume that goes with the pod and outlives its containers: the next one tells of a crash."""

HOST_LABEL: Final = "kubernetes.io/hostname"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A component's container."""

    name: str
    image: str
    pull_policy: str
    arguments: Sequence[str]
    ports: Mapping[str, int]
    readiness: Mapping[str, Any] | None = None
    liveness: Mapping[str, Any] | None = None
    startup: Mapping[str, Any] | None = None
    command: Sequence[str] = ()
    environment: Sequence[Mapping[str, Any]] = ()
    mounts: Sequence[Mapping[str, Any]] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)
    """What the component asks for when nobody says otherwise."""
    working_directory: str = ""
    crash_directory: str = ""
    """Where our own servers keep stacks and number of their crashes; empty: the process is none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A component's pods."""

    container: Container
    labels: Mapping[str, str]
    selector: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    volumes: Sequence[Mapping[str, Any]] = ()
    grace_seconds: int = 60
    pull_secrets: Sequence[str] = ()


def field_variable(name: str, path: str) -> dict[str, Any]:
    """An environment variable out of the pod itself, such as `status.podIP`."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def pod_template(pod: Pod, wanted: PodTemplate | None, resources: ResourceRequirements | None) -> dict[str, Any]:
    """A workload's `template`."""
    over = wanted or PodTemplate()
    container = _container(pod.container, over, resources)
    spec: dict[str, Any] = {
        "automountServiceAccountToken": over.service_account_name is not None,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": over.termination_grace_period_seconds or pod.grace_seconds,
        "securityContext": {**POD_SECURITY, **(over.security_context or {})},
        "affinity": over.affinity if over.affinity is not None else _apart(pod.selector),
        "containers": [container, *(over.sidecars or [])],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *pod.volumes, *(over.volumes or [])],
    }
    optional = {
        "serviceAccountName": over.service_account_name,
        "nodeSelector": over.node_selector,
        "tolerations": over.tolerations,
        "topologySpreadConstraints": _spread(pod.selector, over.topology_spread_constraints),
        "priorityClassName": over.priority_class_name,
        "schedulerName": over.scheduler_name,
        "runtimeClassName": over.runtime_class_name,
        "initContainers": over.init_containers,
        "imagePullSecrets": [{"name": name} for name in pod.pull_secrets],
    }
    spec |= {name: value for name, value in optional.items() if value}
    # Ours last: selectors find pods by them.
    metadata = {
        "labels": {**(over.labels or {}), **pod.labels},
        "annotations": {**(over.annotations or {}), **pod.annotations},
    }
    return {"metadata": metadata, "spec": spec}


def hashed_template(pod: Pod, spec: Component) -> dict[str, Any]:
    """The template of a component's pods, with a digest of all that a restart would change."""
    template = pod_template(pod, spec.pod, spec.resources)
    template["metadata"]["annotations"][TEMPLATE_ANNOTATION] = digest(template)
    return template


def _container(container: Container, over: PodTemplate, resources: ResourceRequirements | None) -> dict[str, Any]:
    asked = msgspec.to_builtins(resources) if resources is not None else {}
    found: dict[str, Any] = {
        "name": container.name,
        "image": container.image,
        "imagePullPolicy": container.pull_policy,
        "args": list(container.arguments),
        "env": [*container.environment, *_crash_variable(container, over), *(over.env or [])],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in container.ports.items()],
        "resources": {**container.resources, **asked},
        "securityContext": CONTAINER_SECURITY,
        # The last lines of the log, where a process that cannot start says why: the condition quotes them.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *container.mounts, *(over.volume_mounts or [])],  # noqa: S108
    }
    probes = {
        "readinessProbe": container.readiness,
        "livenessProbe": container.liveness,
        "startupProbe": container.startup,
        "command": list(container.command),
        "workingDir": container.working_directory,
    }
    return found | {name: value for name, value in probes.items() if value}


def _crash_variable(container: Container, over: PodTemplate) -> list[dict[str, Any]]:
    """None if people name a folder of their own: the API server refuses to apply a name that is there twice."""
    if not container.crash_directory or any(each.get("name") == DIRECTORY_VARIABLE for each in over.env or []):
        return []
    return [{"name": DIRECTORY_VARIABLE, "value": container.crash_directory}]


def _apart(selector: Mapping[str, str]) -> dict[str, Any]:
    """On different nodes and in different zones if it can be; a small Kubernetes cluster must do as well."""

    def term(weight: int, topology: str) -> dict[str, Any]:
        return {
            "weight": weight,
            "podAffinityTerm": {"labelSelector": {"matchLabels": dict(selector)}, "topologyKey": topology},
        }

    preferred = [term(100, HOST_LABEL), term(50, ZONE_LABEL)]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _spread(selector: Mapping[str, str], wanted: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [{"labelSelector": {"matchLabels": dict(selector)}, **constraint} for constraint in wanted or []]
