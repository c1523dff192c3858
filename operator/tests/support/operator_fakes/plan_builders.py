"""Small facts for the tests of plans: everything is well unless a test says otherwise."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from magnetar.operator.children.context import ClusterContext, Defaults
from magnetar.operator.children.naming import OwnerResource
from magnetar.operator.plan.facts import ClaimFacts, PodFacts, WorkloadFacts
from magnetar.operator.resources.cluster import PulsarClusterSpec

NAMESPACE: Final = "here"
NOW: Final = 1_760_000_000.0
WANTED: Final = "wanted"
"""The template hash of pods that are up to date in tests that make their own templates."""
DEFAULTS: Final = Defaults(image_repository="images/magnetar", version="0.1.0")


def make_cluster(name: str = "blue", **spec: Any) -> ClusterContext:
    """A cluster from its spec as YAML has it."""
    owner = OwnerResource(kind="PulsarCluster", name=name, namespace=NAMESPACE, uid=f"{name}-uid")
    return ClusterContext(owner=owner, spec=msgspec.convert(spec, PulsarClusterSpec), defaults=DEFAULTS)


def make_pod(name: str, component: str, **facts: Any) -> PodFacts:
    """A pod that is ready; its number is the end of its name if that is one."""
    tail = name.rsplit("-", 1)[-1]
    usual: dict[str, Any] = {
        "uid": f"{name}-uid",
        "ordinal": int(tail) if tail.isdigit() else -1,
        "template_hash": WANTED,
        "ready": True,
        "phase": "Running",
        "node": "node",
        "address": "10.0.0.1",
        "created_seconds": NOW - 3600,
    }
    return PodFacts(name=name, component=component, **(usual | facts))


def make_claim(name: str, component: str, volume: str, ordinal: int, **facts: Any) -> ClaimFacts:
    """A claim of 10 GiB that may grow."""
    usual: dict[str, Any] = {
        "uid": f"{name}-uid",
        "requested_bytes": 10 * 1024**3,
        "capacity_bytes": 10 * 1024**3,
        "expandable": True,
        "storage_class": "standard",
    }
    return ClaimFacts(name=name, component=component, volume=volume, ordinal=ordinal, **(usual | facts))


def make_workload(kind: str, name: str, replicas: int, **facts: Any) -> WorkloadFacts:
    """A workload whose pods are all there, ready and up to date."""
    usual: dict[str, Any] = {
        "uid": f"{name}-uid",
        "desired": replicas,
        "replicas": replicas,
        "ready": replicas,
        "updated": replicas,
        "settled": True,
        "template_hash": WANTED,
    }
    return WorkloadFacts(kind=kind, name=name, **(usual | facts))
