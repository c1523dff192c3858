"""What a cluster's children were and are not any more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.actions import Delete
from magnetar.operator.plan.facts import ClusterSeen

_GIVEN_UP: Final = frozenset({"NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "Service"})
"""Kinds of which a changed spec may want fewer."""

CONFIGURATIONS_KEPT: Final = 5
"""Configurations kept of each component, besides those in use: Deployments keep three older ReplicaSets that may be
gone back to."""


def leftovers(seen: ClusterSeen, wanted: Iterable[Manifest]) -> list[Delete]:
    """Deletions of what the operator made for this cluster and would not make any more. `wanted` is all that it would
    make, also what waits."""
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
    found = []
    for (kind, name), manifest in sorted(seen.children.objects.items()):
        if kind in _GIVEN_UP and (kind, name) not in names and _is_ours(seen, manifest):
            found.append(deletion_of(manifest, "the cluster's spec does not ask for it any more"))
    return found + _configurations(seen, names)


def finished_jobs(seen: ClusterSeen) -> list[Delete]:
    """Jobs whose work is done; to be asked once that is written down."""
    return [deletion_of(job, "its work is done") for job in seen.children.jobs() if _is_ours(seen, job)]


def _configurations(seen: ClusterSeen, wanted: set[tuple[str, str]]) -> list[Delete]:
    cluster = seen.cluster
    used = {name for pod in seen.children.pods for name in pod.config_maps}
    by_component: dict[str, list[Manifest]] = {}
    for (kind, name), manifest in seen.children.objects.items():
        if kind != "ConfigMap" or (kind, name) in wanted or name in used or not _is_ours(seen, manifest):
            continue
        component, _, _ = name.rpartition("-")
        if component in (cluster.zookeeper, cluster.broker, cluster.proxy, cluster.read_only_broker):
            by_component.setdefault(component, []).append(manifest)
    found = []
    for manifests in by_component.values():
        manifests.sort(key=_made_at, reverse=True)
        found += [deletion_of(manifest, "nothing uses it") for manifest in manifests[CONFIGURATIONS_KEPT:]]
    return found


def _made_at(manifest: Manifest) -> tuple[str, str]:
    metadata = manifest["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata["name"])


def _is_ours(seen: ClusterSeen, manifest: Manifest) -> bool:
    metadata = manifest["metadata"]
    owners = {reference.get("uid") for reference in metadata.get("ownerReferences") or ()}
    return seen.cluster.owner.uid in owners and not metadata.get("deletionTimestamp")


def deletion_of(manifest: Manifest, why: str) -> Delete:
    """Of this very object."""
    metadata = manifest["metadata"]
    return Delete(manifest["kind"], metadata["name"], metadata["uid"], reason=why)
